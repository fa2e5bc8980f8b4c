"""What a key-value store is to Module and Trainer, and the register of stores that people write themselves."""

from __future__ import annotations

from typing import Any, ClassVar


class KVStoreBase:
    """What Module and Trainer ask of a store; a store of one's own derives from it and calls `register`.

    Attributes:
        type: its name.
        rank: number of this process.
        num_workers: number of processes.

    Example:
        >>> @KVStoreBase.register
        ... class Mine(KVStoreBase):
        ...     type = "mine"
        >>> KVStoreBase.kv_registry["mine"].type
        'mine'
    """

    OPTIMIZER = "optimizer"
    kv_registry: ClassVar[dict[str, type]] = {}

    type: Any = None
    rank = 0
    num_workers = 1

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> Any:
        """Give every device the first value of a key."""
        raise NotImplementedError(f"{type(self).__name__} defines no broadcast(key, value, out).")

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> Any:
        """Give every device the sum of all values of a key."""
        raise NotImplementedError(f"{type(self).__name__} defines no pushpull(key, value, out).")

    def is_capable(self, capability: str) -> bool:
        """Whether the store can update weights itself (`optimizer`); one of one's own cannot unless it says so."""
        check_capability(capability)
        return False

    @staticmethod
    def register(klass: type) -> type:
        """Class decorator: `create` finds the store under its lower-case class name."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass


def check_capability(capability: str) -> None:
    """Raises ValueError unless the capability is one that can be asked for."""
    if capability.lower() != KVStoreBase.OPTIMIZER:
        raise ValueError(f"capability {capability!r} is unknown; a kvstore can be asked for 'optimizer'.")
