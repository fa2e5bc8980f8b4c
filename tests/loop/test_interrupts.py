"""Ctrl-C handling: the first interrupt is deferred, the second raises, and the previous handler is restored."""

import signal
import threading

import pytest

from jfit import interrupts
from jfit.interrupts import StopFlag, defer_interrupts


@pytest.fixture(autouse=True)
def _usual_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores the signal
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_third_interrupt_of_a_deferred_block_raises_at_once():
    reached = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():
        for number in range(4):
            signal.raise_signal(signal.SIGINT)
            reached.append(number)
    assert reached == [0, 1]


def test_without_a_settable_handler_signals_are_left_alone(monkeypatch):
    entered = []

    def blocks():
        with StopFlag().watching() as flag, defer_interrupts():
            entered.append(flag.set)

    thread = threading.Thread(target=blocks)
    thread.start()
    thread.join()
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # a handler that is not Python's cannot be put back
    blocks()
    monkeypatch.undo()
    assert entered == [False, False]


def test_ctrl_c_while_a_handler_is_removed_leaves_none(monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    getsignal, calls = signal.getsignal, []

    def interrupted(number):
        if number == signal.SIGTERM:
            calls.append(number)
            if len(calls) == 1:
                raise KeyboardInterrupt
        return getsignal(number)

    with pytest.raises(KeyboardInterrupt), StopFlag().watching(terminate=True):
        monkeypatch.setattr(signal, "getsignal", interrupted)
    monkeypatch.undo()
    assert calls and [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not interrupts.is_watched()
