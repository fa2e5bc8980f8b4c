"""`prefetch`: read an iterable ahead in a background thread with a bounded queue; errors reach the reader in order."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from jfit import activity, interrupts
from jfit.checks import positive_integer

_JOIN_SECONDS = 5.0  # after this, `close` stops waiting for a source that blocks; its thread is a daemon
_STOP_SECONDS = 0.5  # the same after Ctrl-C or SIGTERM
LOG_SECONDS = 60.0  # waits for an item that are longer are logged


class DataTimeout(TimeoutError):
    """Raised if a data source takes longer than a limit, such as `data_timeout=` of `jfit.fit`, to return a batch.

    Example:
        >>> issubclass(DataTimeout, TimeoutError)
        True
    """


class Patience:
    """Reports that a source takes long to return an item, and limits the time: `patience(number, seconds)`.

    Args:
        what: function of the number of the item, from 0, that returns its description, such as "batch 3 of epoch 0".
        timeout: seconds after which `DataTimeout` is raised; None: never.
        own_seconds: function that returns for how many seconds this process has not waited for other processes; earlier time
            does not count for `timeout`.  None: all time counts.

    Attributes:
        busy: function that returns whether the devices still compute, so that a wait costs nothing yet.  None: they do not.

    Raises:
        DataTimeout: from a call with at least `timeout` seconds.

    Example:
        >>> patience = Patience("item {}".format, timeout=2.0)
        >>> patience(0, 1.0)
        >>> try:
        ...     patience(0, 2.0)
        ... except DataTimeout as error:
        ...     print(error)
        waited 2 s for item 0, the limit that data_timeout= sets; the loader is stopped or slow: look at it with ...
    """

    def __init__(
        self, what: Callable[[int], str], timeout: float | None = None, own_seconds: Callable[[], float] | None = None
    ) -> None:
        self.what, self.timeout, self._own_seconds = what, timeout, own_seconds
        self.busy: Callable[[], bool] | None = None
        self._due = LOG_SECONDS

    def doing(self, number: int, kind: str) -> activity.Doing:
        """Return a context manager for a wait for an item, which tells other processes of a job of it."""
        return activity.Doing(kind, lambda: f"waiting for {self.what(number)}", self.timeout)

    def __call__(self, number: int, seconds: float) -> None:
        """Log after `LOG_SECONDS` seconds, then each time that the seconds have doubled; raise after `timeout` seconds."""
        own_seconds = seconds if self._own_seconds is None else self._own_seconds()
        if self.timeout is not None and min(seconds, own_seconds) >= self.timeout:
            limit = f"waited {self.timeout:g} s for {self.what(number)}, the limit that data_timeout= sets"
            raise DataTimeout(f"{limit}; the loader is stopped or slow: look at it with py-spy dump, or raise the limit")
        if seconds < LOG_SECONDS:
            self._due = LOG_SECONDS
        elif seconds >= self._due:
            self._due = 2 * self._due
            logging.getLogger("jfit").warning(
                "waiting for %s for %.0f s; Ctrl-C stops the training, data_timeout= of jfit.fit sets a limit",
                self.what(number),
                seconds,
            )


def next_patiently(iterator: Iterator[Any], patience: Patience) -> Any:
    """Return the next item of an iterator, which another thread reads, so that Ctrl-C is noticed if it blocks in C code.

    Example:
        >>> next_patiently(iter([3]), Patience("item {}".format))
        3
    """
    item = interrupts.in_thread(next, iterator)
    with patience.doing(0, activity.FIRST):
        interrupts.wait_for(item, lambda seconds: patience(0, seconds))
    return item.result()


class _Channel:
    """Bounded queue from a writer thread to a reader thread; either thread can end the iteration."""

    def __init__(self, size: int):
        self.items: collections.deque[Any] = collections.deque()
        self.size, self.changed = size, threading.Condition()
        self.closed = self.finished = self.gave_up = False
        self.error: BaseException | None = None
        self.waited = 0.0

    def put(self, item: Any) -> bool:
        """Add an item, waiting while the queue is full; return False once the reader has closed the queue."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.size)
            if not self.closed:
                self.items.append(item)
                self.changed.notify_all()
            return not self.closed

    def get(self, patience: Callable[[int, float], None] | None = None, number: int = 0) -> Any:
        """Return the next item; at the end, raise the writer's error once, then StopIteration.

        Args:
            patience: called with `number` and the seconds of the wait so far, several times per second.
            number: number of the item.
        """
        with self.changed:
            if not (self.items or self.closed or self.finished):
                with patience.doing(number, activity.DATA) if isinstance(patience, Patience) else contextlib.nullcontext():
                    self._wait(patience, number)
            if self.items and not self.closed:
                self.changed.notify_all()
                return self.items.popleft()
            error, self.error = self.error, None
        raise StopIteration if error is None else error

    def _wait(self, patience: Callable[[int, float], None] | None, number: int) -> None:
        started = now = time.monotonic()
        busy, idle_since = getattr(patience, "busy", None), started
        while True:
            if busy is not None and not busy():
                busy, idle_since = None, now
            # While the devices compute, look more often: `waited` is right up to a tenth of each wait.
            pause = interrupts.WAIT_SECONDS if busy is None else min(interrupts.WAIT_SECONDS, (now - started) / 10 + 1e-3)
            if self.changed.wait_for(lambda: self.closed or self.items or self.finished, pause):
                break
            interrupts.check()
            now = time.monotonic()
            if patience is not None:
                patience(number, now - started)
        if busy is None:
            self.waited += time.monotonic() - idle_since

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
        thread.join(_STOP_SECONDS if interrupts.is_stopping() or channel.gave_up else _JOIN_SECONDS)


class Prefetch(Iterator[Any]):
    """Iterate over an iterable in order, reading up to `size` items ahead in a background thread.

    An exception raised by the iterable or by `transform` is raised in the caller after all items before it, with its original
    traceback.  The thread ends at the end of the iterable, on an error, on `close()`, on leaving the `with` block, or when the
    last reference to the iterator is dropped.  `jfit.data.prefetch` is another name of this class.

    Args:
        iterable: the iterable; a generator is closed in the background thread.
        size: maximum number of items read ahead, at least 1.
        transform: function applied to each item in the thread, such as decoding or `jax.device_put`; None: no function.
        patience: called with the number of the next item, from 0, and the seconds of the wait for it, several times per second
            while the caller waits; it may raise an exception, which ends the iteration.  None: waits have no limit.

    Attributes:
        thread: the `threading.Thread` that reads.

    Raises:
        ValueError: size is less than 1.

    Example:
        >>> with prefetch(range(4), size=2, transform=lambda k: k * k) as squares:
        ...     list(squares)
        [0, 1, 4, 9]
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        size: int = 2,
        transform: Callable[[Any], Any] | None = None,
        *,
        patience: Callable[[int, float], None] | None = None,
    ):
        positive_integer(size=size)
        self._channel, self._patience, self._count = _Channel(size), patience, 0
        # The thread refers only to the queue, so that this object can be garbage-collected while the thread runs; the finalizer
        # then closes the queue, which ends the thread.
        self.thread = thread = threading.Thread(
            target=_read, args=(self._channel, iterable, transform), name="jfit-prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, _stop, self._channel, thread)
        thread.start()

    def __next__(self) -> Any:
        try:
            item = self._channel.get(self._patience, self._count)
            self._count += 1
            return item
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # after which the caller may continue: no item is lost
                self._channel.gave_up = isinstance(error, DataTimeout)
                self.close()
            raise

    @property
    def waited(self) -> float:
        """Seconds for which the caller has waited for items so far."""
        return self._channel.waited

    def close(self) -> None:
        """Stop the thread and drop its items; iteration ends.  Calling it again has no effect."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


prefetch = Prefetch
