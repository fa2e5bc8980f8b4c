"""Ctrl-C: once it waits its turn, twice it raises, and the handler that was there comes back."""

import signal
import threading

import pytest

from jfit.train.interrupts import StopFlag, shielded


@pytest.fixture(autouse=True)
def _usual_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores the signal
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("block", [shielded, lambda: StopFlag().watching()], ids=["shielded", "watching"])
def test_a_second_interrupt_raises_at_once(block):
    reached = []
    with pytest.raises(KeyboardInterrupt), block():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]


def test_a_shielded_interrupt_is_told_behind_the_error_of_the_block():
    with pytest.raises(KeyboardInterrupt) as told, shielded():
        signal.raise_signal(signal.SIGINT)
        raise OSError("the disk is full")
    assert isinstance(told.value.__context__, OSError)


def test_an_interrupt_behind_a_shield_reaches_the_flag_around_it():
    with StopFlag().watching() as flag:
        with shielded():
            signal.raise_signal(signal.SIGINT)
            assert not flag.set
        assert flag.set


def test_where_no_handler_can_be_set_nothing_is_done(monkeypatch):
    entered = []

    def blocks():
        with StopFlag().watching() as flag, shielded():
            entered.append(flag.set)

    thread = threading.Thread(target=blocks)
    thread.start()
    thread.join()
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # a handler that is not Python's cannot be put back
    blocks()
    monkeypatch.undo()
    assert entered == [False, False]
