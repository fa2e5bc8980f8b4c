"""The threads of a run: one trains, others may score, predict and read its state meanwhile, and some compile its programs.

A dispatch (call of a compiled program) makes a new state and donates the old one, whose arrays JAX deletes.  A thread
that used them would fail with "Array has been deleted".  Other threads therefore get copies, made between two dispatches.

XLA compiles without Python's lock: the programs of a run (full batches, the incomplete last batch, evaluation) are compiled at
the same time, and while the first steps are computed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jfit.evaluate.scorer import ResidentScorer
from jfit.platforms import cores
from jfit.programs import Program
from jfit.step.state import TrainState

MAX_THREADS = 3  # that compile: training, incomplete last batch, evaluation
Programs = Sequence[tuple[Program, tuple[Any, ...]]]
_LONGEST_PAUSE = 0.1  # seconds that the training waits at most for a thread that asked for a copy


class TrainingThread:
    """Record of the thread that trains a run, and a lock: its dispatches exclude copies of the state by other threads.

    As a context manager, it encloses each dispatch of the training thread.

    Attributes:
        name: name of the thread that trains; None if none does.
    is_elsewhere: whether another thread than the caller's trains.

    Example:
        >>> training = TrainingThread()
        >>> with training.training(lambda: None):
        ...     print(training.name, training.is_elsewhere)
        MainThread False
        >>> with training.reading(lambda: {"w": 1.0}) as state:
        ...     print(state)
        {'w': 1.0}
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._id: int | None = None
        self._lock = threading.RLock()
        self._waiting: set[int] = set()  # threads that wait for the end of a dispatch
        self._reading: list[int] = []  # threads that use the state itself, because no thread trained when they began

    def __enter__(self) -> None:
        if self._waiting:  # a lock may go to the same thread again and again
            end = time.monotonic() + _LONGEST_PAUSE
            while self._waiting and time.monotonic() < end:
                time.sleep(0.001)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread trains."""
        return self._id is not None and self._id != threading.get_ident()

    def check_here(self, method: str, remedy: str) -> None:
        """Raise RuntimeError if another thread trains; `remedy` is the end of the message."""
        if self.is_elsewhere:
            raise RuntimeError(f"{method}: thread {self.name!r} trains this run at the same time; {remedy}")

    @contextlib.contextmanager
    def training(self, copy_state: Callable[[], None]) -> Iterator[None]:
        """Return a context manager in which this thread trains.

        Args:
            copy_state: replaces the state by a copy; called if other threads are using it.

        Raises:
            RuntimeError: a thread trains the run already.
        """
        is_ours = False
        try:
            with self._lock:
                if self._id is not None:
                    raise RuntimeError(self._refusal())
                is_ours = True
                self._id, self.name = threading.get_ident(), threading.current_thread().name
                if any(thread != self._id for thread in self._reading):
                    copy_state()
            yield
        finally:
            if is_ours:
                self._id = self.name = None

    def _refusal(self) -> str:
        where = f"thread {self.name!r}" if self.is_elsewhere else "this thread, in one of whose callbacks this call is"
        return (
            f"this run is being trained by {where}; a run has one state, which only one call can train. Wait until that "
            "training has ended, or call jfit.fit, which makes another run"
        )

    @contextlib.contextmanager
    def reading(self, get_state: Callable[[], Any]) -> Iterator[Any]:
        """Return a context manager whose value is a state that no other thread changes or deletes in the block.

        Args:
            get_state: returns the state or a part of it.
        """
        thread = threading.get_ident()
        with self.exclusive():
            copies = self.is_elsewhere
            state = copied(get_state()) if copies else get_state()
            self._reading.append(thread)
        try:
            yield state
        finally:
            self._reading.remove(thread)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context manager in which no other thread dispatches."""
        thread = threading.get_ident()
        self._waiting.add(thread)
        try:
            with self._lock:
                self._waiting.discard(thread)
                yield
        finally:
            self._waiting.discard(thread)


def copied(tree: Any) -> Any:
    """Copy the arrays of a pytree on their devices."""
    return jax.tree.map(lambda x: jnp.copy(x) if isinstance(x, jax.Array) else x, tree)


@contextlib.contextmanager
def compiling_ahead(evaluate: Any = None) -> Iterator[Callable[[TrainState, Programs], None]]:
    """Context manager with threads that compile: one for two processor cores, at most 3; none with a single core.

    XLA compiles single programs on several cores already, so that more threads would only compete with each other.

    Compilations that have not begun at the end of the block are cancelled.  One that has begun cannot be stopped: after an
    interrupt, its thread ends when it is done.

    Args:
        evaluate: the evaluation of the run, whose program is compiled too if it is a `ResidentScorer`; else it is ignored.

    Yields:
        Function (state, [(`Program`, arguments after the state), ...]), to be called before the first of these programs is.  It
        traces them, and the evaluation after them, while other threads compile.  Only its first call has an effect.
    """
    pool = ThreadPoolExecutor(max(1, min(cores() // 2, MAX_THREADS)), "jfit-compile")  # threads start when they are needed
    futures: list[Future[Any]] = []
    pending = [evaluate] if cores() > 1 else []

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        futures.append(pool.submit(function, *arguments))
        return futures[-1]

    def prepare(state: TrainState, programs: Programs) -> None:
        if not pending:
            return
        evaluation = pending.pop()
        for program, arguments in programs:
            with contextlib.suppress(Exception):  # raised where the program is called
                program.prepare(state, *arguments, submit=submit)
        if isinstance(evaluation, ResidentScorer):
            with contextlib.suppress(Exception):
                evaluation.prepare(state, submit)

    try:
        yield prepare
    finally:
        pool.shutdown(wait=all(future.done() for future in futures), cancel_futures=True)
