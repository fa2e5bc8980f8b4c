"""Ctrl-C (SIGINT) and SIGTERM during training: the running step is finished first, and waits on the host end early.

A training step donates its input state: an exception after the dispatch, but before the new state is assigned, would leave no
state at all.  The first signal therefore only sets a flag, which training loops read between steps.  Functions that wait for
something else than a step (the next batch, a compilation) call `check` several times per second; it raises `Stopped` there.

Outside the main thread nothing is handled: Python neither allows signal handlers nor calls them there.
"""

from __future__ import annotations

import _signal  # pyright: ignore (as `signal`, which converts handlers to enums and takes ten times as long)
import contextlib
import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

WAIT_SECONDS = 0.1  # functions that wait call `check` this often, to notice Ctrl-C or SIGTERM
_STOPPED = "stopped by {signal}; the training state is that of the last finished step"


class Stopped(KeyboardInterrupt):
    """Raised by `check` in a function that waits, after the first Ctrl-C or SIGTERM.  No step is running at that time.

    Example:
        >>> issubclass(Stopped, KeyboardInterrupt)
        True
    """


class StopFlag:
    """A flag that Ctrl-C or SIGTERM sets, for a loop that checks it between steps; it is true once it is set.

    A second Ctrl-C raises KeyboardInterrupt immediately, or, while `critical` is True, sets `urgent`.  A second SIGTERM ends
    the process.  `jfit.graceful_stop` creates one for loops of your own.

    Attributes:
        set: True after the first signal.
        signal: the signal that set the flag, `signal.SIGINT` or `signal.SIGTERM`; None before it.
        critical: the loop sets this to True while a second Ctrl-C must not raise an exception.
        urgent: True after a second Ctrl-C while `critical` was True.
        owned: True if SIGTERM also set the flag of an enclosing `graceful_stop`, whose block then ends the process.

    Example:
        >>> import signal
        >>> with StopFlag().watching() as flag:
        ...     signal.raise_signal(signal.SIGINT)
        >>> flag.set, bool(flag), flag.signal.name
        (True, True, 'SIGINT')
    """

    def __init__(self) -> None:
        self.set = self.critical = self.urgent = self.owned = False
        self.signal: signal.Signals | None = None
        self._raises = False  # whether `check` raises `Stopped` in the block
        self._raised = False  # whether it has done so
        self._anywhere = False  # whether the handlers of the signals call `check` themselves
        self._handles: tuple[signal.Signals, ...] = ()

    def __bool__(self) -> bool:
        return self.set

    @property
    def in_job(self) -> bool:
        """Whether all processes of a job stop together: then every call of `agree` and `check_step` counts."""
        return False

    def agree(self, reason: str | None) -> str | None:
        """Return why to stop, or None.  In a job of several processes, all of them stop at the same call of this method.

        Args:
            reason: why this process wants to stop, or None.
        """
        return reason

    def check_step(self) -> None:
        """As `check`, between two steps: in a job, all processes call it equally often."""
        self.check()

    @property
    def exit_code(self) -> int:
        """The exit code of a process that a signal ended: 143 after SIGTERM, 130 after Ctrl-C, 0 if there was no signal."""
        return 0 if self.signal is None else 128 + self.signal

    @contextlib.contextmanager
    def watching(self, *, interrupt: bool = True, terminate: bool = False, raises: bool = True) -> Iterator[StopFlag]:
        """Return a context manager in which signals set the flag; its value is this object.

        Args:
            interrupt: whether to handle SIGINT (Ctrl-C), unless the process ignores it, as jobs that a shell starts in the
                background do.
            terminate: whether to handle SIGTERM, unless the user has installed a handler.
            raises: whether `check` raises `Stopped` in this block, once the flag is set.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        self._raises, terminate = raises, terminate and _is_free(signal.SIGTERM)
        self._handles = (signal.SIGINT,) * interrupt + (signal.SIGTERM,) * terminate
        with contextlib.ExitStack() as stack:
            if interrupt:
                stack.enter_context(_handled(signal.SIGINT, self._on_interrupt))
            if terminate:
                stack.enter_context(_handled(signal.SIGTERM, self._on_terminate))
            stack.callback(_remove, self)
            _flags.append(self)
            yield self

    @contextlib.contextmanager
    def anywhere(self) -> Iterator[None]:
        """Return a context manager in which the first signal raises `Stopped` at once, for code that waits without `check`."""
        self._anywhere = True
        try:
            yield
        finally:
            self._anywhere = False

    def check(self) -> None:
        """Raise `Stopped` if the flag is set; only once, so that code that ends the training can wait."""
        if self.set and self.may_raise:
            self._raised = True
            raise Stopped(text_of(self.signal))

    @property
    def may_raise(self) -> bool:
        """Whether `check` raises `Stopped` if a signal arrived: in a `watching(raises=True)` block, unless it did so before."""
        return self._raises and not self._raised

    @property
    def _is_requested(self) -> bool:
        """Whether this process got a signal, so that the next one is the second."""
        return self.set

    def _on_interrupt(self, previous: Any) -> None:
        if not self._is_requested:
            self._request(signal.SIGINT, previous)
        elif self.critical:
            self.urgent = True
        else:
            signal.signal(signal.SIGINT, previous)
            raise KeyboardInterrupt

    def _on_terminate(self, previous: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second SIGTERM ends the process, also within C code
        self.owned = previous != signal.SIG_DFL
        self._request(signal.SIGTERM, previous)

    def _request(self, number: signal.Signals, previous: Any) -> None:
        if not self.set:
            self.set, self.signal = True, number
        outer = getattr(previous, "jfit_flag", None)
        if isinstance(outer, StopFlag) and not outer._raises and not outer.set:  # of `graceful_stop`
            outer.set, outer.signal = True, number
        if self._anywhere:
            self.check()


_make_flag: list[Callable[[], StopFlag]] = [StopFlag]
_flags: list[StopFlag] = []  # those of the `watching` blocks in which the main thread is, innermost last
_deferred: list[list[int]] = []  # signals since the begin of each `defer_interrupts` block in which the main thread is


@contextlib.contextmanager
def graceful_stop(*, interrupt: bool = False) -> Iterator[StopFlag]:
    """Context manager for a training loop of your own that is to save its state when the process is asked to end (SIGTERM).

    Batch systems and containers send SIGTERM some seconds before they kill a process.  In the block, the first SIGTERM does not
    end the process; it makes the value of the context manager true.  A second SIGTERM ends the process.  If a handler of
    SIGTERM is installed, or outside the main thread, nothing is handled and the value stays false.  `jfit.fit` in this block
    stops after the current step, saves a checkpoint (with `checkpoint=`), and returns.

    Args:
        interrupt: whether Ctrl-C does the same; a second Ctrl-C raises KeyboardInterrupt.  Default: Ctrl-C raises
            KeyboardInterrupt, as usual.

    Returns:
        Context manager, whose value `stop` is false until a signal arrives.  `stop.signal` is the signal or None, and
        `stop.exit_code` 143 after SIGTERM, 130 after Ctrl-C, else 0.

    Example:
        >>> import jfit, signal
        >>> with jfit.graceful_stop() as stop:
        ...     for step in range(1000):
        ...         if step == 2:
        ...             signal.raise_signal(signal.SIGTERM)  # sent by the batch system
        ...         if stop:
        ...             print("saving the state of step", step)  # jfit.checkpoint.save(folder, state)
        ...             break
        saving the state of step 2
        >>> stop.exit_code  # then sys.exit(stop.exit_code)
        143
    """
    with stop_flag().watching(interrupt=interrupt, terminate=True, raises=False) as stop:
        yield stop


def stop_flag() -> StopFlag:
    """Return a new flag for a loop; in a job of several processes, signals set it on all of them after the same step."""
    return _make_flag[-1]()


def use_flags(make: Callable[[], StopFlag] | None) -> None:
    """Let `stop_flag()` return `make()` instead of a new `StopFlag`, whose signals then stop a whole job; None undoes it."""
    _make_flag[:] = [StopFlag if make is None else make]


def outside_of(flag: StopFlag, number: signal.Signals) -> list[StopFlag]:
    """The flags of enclosing `graceful_stop` blocks that handle a signal, and that it has not set."""
    return [f for f in _flags if f is not flag and not f._raises and not f.set and number in f._handles]


def text_of(number: signal.Signals | None) -> str:
    """Message of `Stopped` after a signal."""
    return _STOPPED.format(signal="SIGTERM" if number is signal.SIGTERM else "Ctrl-C")


def check() -> None:
    """Raise `Stopped` if a training loop of the main thread is to stop; called by functions that wait, in short intervals.

    Example:
        >>> with StopFlag().watching() as flag:
        ...     signal.raise_signal(signal.SIGINT)
        ...     try:
        ...         check()
        ...     except Stopped as stopped:
        ...         print(stopped)
        stopped by Ctrl-C; the training state is that of the last finished step
    """
    if threading.current_thread() is threading.main_thread():
        if _deferred and _deferred[-1]:
            raise Stopped(_STOPPED.format(signal="Ctrl-C"))
        if _flags:
            _flags[-1].check()


def check_step() -> None:
    """As `check`, between two steps of a loop: in a job of several processes, all of them call it equally often.

    Example:
        >>> check_step()
    """
    if _flags and not _deferred and threading.current_thread() is threading.main_thread():
        _flags[-1].check_step()
    else:
        check()


def is_watched() -> bool:
    """Return whether this thread is the main thread, in a block in which `check` may raise `Stopped`."""
    return bool(_deferred or (_flags and _flags[-1].may_raise)) and threading.current_thread() is threading.main_thread()


def in_graceful_stop() -> bool:
    """Return whether the main thread is in a block of `graceful_stop` that handles SIGTERM."""
    return isinstance(getattr(signal.getsignal(signal.SIGTERM), "jfit_flag", None), StopFlag)


def is_stopping() -> bool:
    """Return whether a training loop of the main thread has got a signal."""
    return any(flag.set for flag in _flags)


def in_thread(function: Callable[..., Any], *args: Any, daemon: bool = True) -> Future[Any]:
    """Call a function on a new thread, and return its result as a `concurrent.futures.Future`.

    Args:
        function: the function.
        *args: its arguments.
        daemon: whether the process may exit before the function returns.

    Example:
        >>> in_thread(abs, -3).result()
        3
    """
    future, context = Future[Any](), contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(function, *args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="jfit-worker", daemon=daemon).start()
    return future


def wait_for(future: Future[Any], waiting: Callable[[float], None] | None = None) -> None:
    """Wait until a future is done; `Stopped` may be raised.

    Args:
        future: a `concurrent.futures.Future`.
        waiting: called with the seconds of the wait so far, several times per second.

    Example:
        >>> future = in_thread(abs, -3)
        >>> wait_for(future)
        >>> future.done()
        True
    """
    started = time.monotonic()
    while not future.done():
        wait([future], WAIT_SECONDS)
        check()
        if waiting is not None:
            waiting(time.monotonic() - started)


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, or until `check` is called in it; the third Ctrl-C raises immediately.

    For a call that donates its argument: an interrupt before its result is assigned would lose the state.  In a loop that the
    first Ctrl-C stops between two steps, the second one is delayed, and further ones are too.

    Example:
        >>> import signal
        >>> try:
        ...     with defer_interrupts():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("end of the block")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        end of the block
        interrupted
    """
    if _deferred or threading.current_thread() is not threading.main_thread():  # within such a block, it does nothing
        yield
        return
    before = _signal.getsignal(signal.SIGINT)
    flag = getattr(before, "jfit_flag", None)
    if flag is not None and flag.may_raise:  # in a loop whose handler delays Ctrl-C itself, at less cost
        outer, flag.critical = flag.critical, True
        try:
            yield
        finally:
            flag.critical = outer
        if flag.urgent and not outer:
            raise KeyboardInterrupt
        return
    signals: list[int] = []

    def on_interrupt(previous: Any) -> None:
        signals.append(signal.SIGINT)
        if len(signals) > 2:
            signal.signal(signal.SIGINT, previous)
            raise KeyboardInterrupt

    try:
        with _handled(signal.SIGINT, on_interrupt):
            _deferred.append(signals)
            try:
                yield
            finally:
                _deferred.pop()
    finally:
        if signals and callable(before):
            for number in signals[:2]:
                before(number, None)


def _is_free(number: signal.Signals) -> bool:
    """Return whether no handler of the user is installed for a signal."""
    handler = signal.getsignal(number)
    return handler is signal.SIG_DFL or isinstance(getattr(handler, "jfit_flag", None), StopFlag)


def _remove(flag: StopFlag) -> None:
    with contextlib.suppress(ValueError):
        _flags.remove(flag)


@contextlib.contextmanager
def _handled(number: signal.Signals, on_signal: Callable[[Any], None]) -> Iterator[None]:
    """Handle a signal in the block by `on_signal(previous handler)`.

    Nothing is handled if the process ignores the signal, or if C code set the previous handler, which cannot be restored.
    """
    previous, process = _signal.getsignal(number), os.getpid()
    if previous is None or previous == signal.SIG_IGN:
        yield
        return

    def handler(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked process, such as a worker of a loader, inherits the handler
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            signal.raise_signal(number)
            return
        on_signal(previous)

    def restore() -> None:
        if _signal.getsignal(number) is handler:  # else it was handled, or the user has installed another one
            _signal.signal(number, previous)

    handler.__dict__["jfit_flag"] = getattr(on_signal, "__self__", None)
    try:
        _signal.signal(number, handler)
        yield
    finally:
        try:
            restore()
        finally:
            restore()  # Ctrl-C may have ended the first call
