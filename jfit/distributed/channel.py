"""Values that all processes of a job exchange through the store in rank 0."""

from __future__ import annotations

import collections
import json
import threading
from typing import Any

import numpy as np

from jfit.distributed.client import Store
from jfit.distributed.errors import JobError

LARGE = 1 << 20  # bytes from which a value is sent by the devices, if it is exchanged on the main thread
_PIECE = 4 << 20  # bytes sent by the devices at once; one size, so that one program sends all values
_WAIT = 0.5  # seconds after which a wait for a value looks for Ctrl-C, and for the end of the job


class Channel:
    """Exchanges of values between all processes.

    Args:
        store: the store of the job.
        rank: number of this process.
        count: number of processes.

    Attributes:
        open: names and numbers of the exchanges in which this process waits for others.
        error: what exchanges raise, after the job has ended.
    """

    def __init__(self, store: Store, rank: int, count: int) -> None:
        self._store, self._rank, self._count = store, rank, count
        self._numbers = collections.Counter[str]()
        self.open: set[str] = set()
        self.error: JobError | None = None

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Send a value, and return the values of all processes, by rank.

        Args:
            name: all processes exchange values of the same name in the same order, and on threads of the same kind; other
                names may come in between.
            value: JSON (None, numbers, texts, lists, dicts of them), or bytes.

        Raises:
            JobError: the job has ended.
            TypeError: the value is not JSON.
        """
        data = _packed(value)
        large = len(data) >= LARGE and threading.current_thread() is threading.main_thread()
        content = b"large %d" % len(data) if large else data
        key = self._put(name, content)
        self.open.add(key)
        try:
            received = [content if rank == self._rank else self.wait(f"{key}/{rank}") for rank in range(self._count)]
        finally:
            self.open.discard(key)
        self._done(key)
        for rank, content in enumerate(received):
            if content.startswith(b"large "):
                received[rank] = self._sent_by_devices(rank, int(content[6:]), data)
        return [json.loads(content[1:]) if content[:1] == b"j" else content[1:] for content in received]

    def post(self, name: str, value: Any) -> None:
        """Send a value without waiting for those of the others.  The process must not send one under this name again."""
        self._done(self._put(name, _packed(value)))

    def missing(self, open_by: dict[int, list[str]]) -> dict[str, list[int]]:
        """Return {name of an exchange in which processes wait: ranks that have not sent their value}.

        Args:
            open_by: rank -> the attribute `open` of that process at its last heartbeat.
        """
        result = {}
        for key in {key for keys in open_by.values() for key in keys}:
            sent = self._store.all(key)  # empty if all processes have read the values since the heartbeat
            ranks = [rank for rank in range(self._count) if key not in open_by.get(rank, ()) and str(rank) not in sent]
            if sent and ranks:
                result[key.removeprefix("value/")] = ranks
        return result

    def wait(self, key: str) -> bytes:
        """Return a value of the store, as soon as it has one.

        Raises:
            JobError: the job has ended.
        """
        while self.error is None:
            if (content := self._store.get(key, _WAIT)) is not None:
                return content
        raise self.error

    def _put(self, name: str, content: bytes) -> str:
        if self.error is not None:
            raise self.error
        self._numbers[name] += 1
        key = f"value/{name}#{self._numbers[name]}"
        self._store.set(f"{key}/{self._rank}", content)
        return key

    def _done(self, key: str) -> None:
        """This process needs the values of an exchange no more; the last one removes them."""
        if self._store.count(f"{key}/done") == self._count:
            self._store.delete(key)

    def _sent_by_devices(self, rank: int, size: int, data: bytes) -> bytes:
        from jax.experimental import multihost_utils

        pieces = []
        for at in range(0, size, _PIECE):
            own = data[at : at + _PIECE] if rank == self._rank else b""
            piece = np.frombuffer(own.ljust(_PIECE, b"\0"), np.uint8)
            pieces.append(np.asarray(multihost_utils.broadcast_one_to_all(piece, rank == self._rank)).tobytes())
        return b"".join(pieces)[:size]


def _packed(value: Any) -> bytes:
    return b"b" + value if isinstance(value, bytes) else b"j" + json.dumps(value).encode()
