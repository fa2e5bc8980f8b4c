"""Read ahead in a background thread: bounded, honest about errors, and gone when nobody listens any more."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

_JOIN_SECONDS = 5.0  # a source that blocks longer than this is left to its daemon thread


class _Channel:
    """A bounded queue between two threads that either side can end."""

    def __init__(self, size: int):
        self.items: collections.deque[Any] = collections.deque()
        self.size, self.changed = size, threading.Condition()
        self.closed = self.finished = False
        self.error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """False once the reader has gone."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.size)
            if not self.closed:
                self.items.append(item)
                self.changed.notify_all()
            return not self.closed

    def get(self) -> Any:
        """The next item; at the end StopIteration, or once the writer's error."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.items or self.finished)
            if self.items and not self.closed:
                self.changed.notify_all()
                return self.items.popleft()
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def finish(self, error: BaseException | None) -> None:
        with self.changed:
            self.finished, self.error = True, error
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed, self.error = True, None
            self.items.clear()
            self.changed.notify_all()


def _read(channel: _Channel, source: Iterable[Any], transform: Callable[[Any], Any] | None) -> None:
    error: BaseException | None = None
    iterator: Any = None
    try:
        iterator = iter(source)
        for item in iterator:
            if not channel.put(item if transform is None else transform(item)):
                break
            del item  # the queue bounds memory only if the thread keeps no item of its own
    except BaseException as err:  # every error is the caller's to see
        error = err
    try:
        if hasattr(iterator, "close"):
            iterator.close()  # a generator must be closed by the thread that runs it
    except BaseException as err:
        error = error or err
    channel.finish(error)


def _stop(channel: _Channel, thread: threading.Thread) -> None:
    channel.close()
    # Garbage collection may run this inside the reading thread, which cannot wait for itself.
    if thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)


class Prefetch(Iterator[Any]):
    """Iterator that a background thread keeps up to `size` items ahead; made by `prefetch`."""

    def __init__(self, source: Iterable[Any], size: int, transform: Callable[[Any], Any] | None):
        self._channel = _Channel(size)
        # The thread knows the channel, never this object: dropping the last reference to it ends the thread.
        thread = threading.Thread(target=_read, args=(self._channel, source, transform), name="jfit-prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, _stop, self._channel, thread)
        thread.start()

    def __next__(self) -> Any:
        try:
            return self._channel.get()
        except KeyboardInterrupt:
            raise  # the caller may catch it and go on: no item is lost
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the thread and drop what it had read; iterating ends.  May be called again."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def prefetch(iterable: Iterable[Any], size: int = 2, transform: Callable[[Any], Any] | None = None) -> Prefetch:
    """Items of an iterable in their order, read ahead by a background thread.

    An exception of the iterable or of `transform` reaches the caller in place of the item it prevented, after all items
    before it, with its original traceback.  No thread remains after the end, an error, `close()`, leaving the `with`
    block, or when the last reference is dropped.

    Args:
        iterable: what to read; a generator is closed in the thread that ran it.
        size: items kept ready, at least 1.
        transform: applied to each item in the thread (decoding, putting on a device).

    Returns:
        An iterator with `close()`, also a context manager.

    Raises:
        ValueError: size is below 1.

    Example:
        >>> with prefetch(range(4), size=2, transform=lambda k: k * k) as squares:
        ...     list(squares)
        [0, 1, 4, 9]
    """
    if size < 1:
        raise ValueError(f"prefetch size is {size}, at least 1 is needed; to read without a thread, iterate directly.")
    return Prefetch(iterable, size, transform)
