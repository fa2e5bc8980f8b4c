"""What the processes of a job tell each other through the store in rank 0: values that all exchange, a log that all read."""

from __future__ import annotations

import collections
import json
import threading
from collections.abc import Callable
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
        self._lock, self._numbers = threading.Lock(), collections.Counter[str]()
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
        kind, data = _packed(value)
        large = len(data) >= LARGE and threading.current_thread() is threading.main_thread()
        content = b"large " + kind + b"%d" % len(data) if large else kind + data
        key = self._put(name, content)
        self.open.add(key)
        try:
            received = [content if rank == self._rank else self._wait(f"{key}/{rank}") for rank in range(self._count)]
        finally:
            self.open.discard(key)
        number = int(key.rpartition("#")[2])
        if self._rank == 0 and number > 1:  # all have sent this value, so all have read the one before
            self._store.delete(f"value/{name}#{number - 1}")
        for rank, content in enumerate(received):
            if content.startswith(b"large "):
                received[rank] = content[6:7] + self._sent_by_devices(rank, int(content[7:]), data)
        return [json.loads(content[1:]) if content[:1] == b"j" else content[1:] for content in received]

    def post(self, name: str, value: Any) -> None:
        """Send a value without waiting for those of the others.  The process must not send one under this name again."""
        self._put(name, b"".join(_packed(value)))

    def missing(self, open_by: dict[int, list[str]]) -> dict[str, list[int]]:
        """Return {name of an exchange in which processes wait: ranks that have not sent their value}.

        Args:
            open_by: rank -> the attribute `open` of that process at its last heartbeat.
        """
        keys = {key for waits in open_by.values() for key in waits}
        others = {key: [rank for rank in range(self._count) if key not in open_by.get(rank, ())] for key in keys}
        absent = {key: [r for r in ranks if self._store.get(f"{key}/{r}") is None] for key, ranks in others.items()}
        return {key.removeprefix("value/"): ranks for key, ranks in absent.items() if ranks}

    def _put(self, name: str, content: bytes) -> str:
        with self._lock:
            if self.error is not None:
                raise self.error
            self._numbers[name] += 1
            key = f"value/{name}#{self._numbers[name]}"
        self._store.set(f"{key}/{self._rank}", content)
        return key

    def _wait(self, key: str) -> bytes:
        while True:
            if self.error is not None:
                raise self.error
            if (content := self._store.get(key, _WAIT)) is not None:
                return content

    def _sent_by_devices(self, rank: int, size: int, data: bytes) -> bytes:
        from jax.experimental import multihost_utils

        pieces = []
        for at in range(0, size, _PIECE):
            own = data[at : at + _PIECE] if rank == self._rank else b""
            piece = np.frombuffer(own.ljust(_PIECE, b"\0"), np.uint8)
            pieces.append(np.asarray(multihost_utils.broadcast_one_to_all(piece, rank == self._rank)).tobytes())
        return b"".join(pieces)[:size]


class Log:
    """Messages that all processes read in the same order, so that all of them draw the same conclusions.

    Args:
        store: the store of the job.

    Attributes:
        handlers: type of a message -> `handler(message)`, called on the thread that reads.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._next = store, 0
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {}

    def append(self, kind: str, **message: Any) -> None:
        """Add a message after those that were added before.

        Raises:
            JobError: rank 0 is gone.
        """
        number, content = self._next, json.dumps({"type": kind, **message}).encode()
        while not self._store.add(f"log/{number}", content):
            number += 1

    def read(self, seconds: float) -> None:
        """Wait for the next message, at most so many seconds, and call its handler.

        Raises:
            JobError: rank 0 is gone.
        """
        if (content := self._store.get(f"log/{self._next}", seconds)) is not None:
            self._next += 1
            message = json.loads(content)
            if handler := self.handlers.get(message["type"]):
                handler(message)


def _packed(value: Any) -> tuple[bytes, bytes]:
    if isinstance(value, bytes):
        return b"b", value
    try:
        return b"j", json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"exchange: the value cannot be sent as JSON ({error}); pass numbers, texts, lists, dicts or bytes"
        ) from None
