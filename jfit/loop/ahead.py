"""Threads that compile the programs of a run before they are needed.

XLA compiles without Python's lock: the programs of a run (full batches, the incomplete last batch, evaluation) are compiled at
the same time, and while the first steps are computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jfit.evaluate.scorer import ResidentScorer
from jfit.parallel.contexts import cores
from jfit.programs import Program
from jfit.step.state import TrainState

MAX_THREADS = 3  # training, incomplete last batch, evaluation
Programs = Sequence[tuple[Program, tuple[Any, ...]]]


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
