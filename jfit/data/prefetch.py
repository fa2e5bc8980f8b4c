"""`prefetch`: read an iterable ahead in a background thread with a bounded queue; errors reach the reader in order."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

_JOIN_SECONDS = 5.0  # after this, `close` stops waiting for a source that blocks; its thread is a daemon


class _Channel:
    """Bounded queue from a writer thread to a reader thread; either thread can end the iteration."""

    def __init__(self, size: int):
        self.items: collections.deque[Any] = collections.deque()
        self.size, self.changed = size, threading.Condition()
        self.closed = self.finished = False
        self.error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Add an item, waiting while the queue is full; return False once the reader has closed the queue."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.size)
            if not self.closed:
                self.items.append(item)
                self.changed.notify_all()
            return not self.closed

    def get(self) -> Any:
        """Return the next item; at the end, raise the writer's error once, then StopIteration."""
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
            del item  # the queue bounds memory only if this thread holds no reference to an item
    except BaseException as err:  # raised in the reading thread
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
    """Iterator over items that a background thread reads up to `size` ahead; created by `prefetch`.

    Args:
        source: iterable to read.
        size: maximum number of items in the queue.
        transform: function applied to each item in the thread, or None.

    Example:
        >>> items = Prefetch(range(3), 1, None)
        >>> next(items), items.close(), list(items)
        (0, None, [])
    """

    def __init__(self, source: Iterable[Any], size: int, transform: Callable[[Any], Any] | None):
        self._channel = _Channel(size)
        # The thread refers only to the queue, so that this object can be garbage-collected while the thread runs; the finalizer
        # then closes the queue, which ends the thread.
        thread = threading.Thread(target=_read, args=(self._channel, source, transform), name="jfit-prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, _stop, self._channel, thread)
        thread.start()

    def __next__(self) -> Any:
        try:
            return self._channel.get()
        except KeyboardInterrupt:
            raise  # the caller may catch it and continue: no item is lost
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the thread and drop its items; iteration ends.  Calling it again has no effect."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def prefetch(iterable: Iterable[Any], size: int = 2, transform: Callable[[Any], Any] | None = None) -> Prefetch:
    """Iterate over an iterable in order, reading up to `size` items ahead in a background thread.

    An exception raised by the iterable or by `transform` is raised in the caller after all items before it, with its original
    traceback.  The thread ends at the end of the iterable, on an error, on `close()`, on leaving the `with` block, or when the
    last reference to the iterator is dropped.

    Args:
        iterable: the iterable; a generator is closed in the background thread.
        size: maximum number of items read ahead, at least 1.
        transform: function applied to each item in the thread, such as decoding or `jax.device_put`; None: no function.

    Returns:
        Prefetch: an iterator with a `close()` method, also a context manager.

    Raises:
        ValueError: size is less than 1.

    Example:
        >>> with prefetch(range(4), size=2, transform=lambda k: k * k) as squares:
        ...     list(squares)
        [0, 1, 4, 9]
    """
    if size < 1:
        raise ValueError(f"prefetch size is {size}, expected at least 1; to read without a thread, iterate directly.")
    return Prefetch(iterable, size, transform)
