"""The training steps of `python -m benchmarks.start --compile`, by jfit and by hand, ready to be lowered.

Both gather the rows of a batch from data on the device, train, sum the metric, and donate their
state. Hand-written networks with batch normalization update moving statistics, as jfit does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.first_step import measure
from benchmarks.peers import hand
from benchmarks.workloads import KINDS, Workload


def _workload(kind: str) -> Workload:
    return KINDS[kind].resized(2 * KINDS[kind].batch)


def by_hand(kind: str) -> tuple[Any, tuple[Any, ...]]:
    """Return (jitted step, its arguments)."""
    workload = _workload(kind)
    step, state, (x, y) = hand.training(workload, slices=1)
    order = jnp.arange(workload.rows, dtype=jnp.int32)
    return jax.jit(step, donate_argnums=0), (state, (jnp.asarray(x), jnp.asarray(y), order))


class _Found(Exception):
    """Raised instead of training; its argument is the list of (program, arguments after the state) of the first epoch."""


def by_jfit(kind: str) -> tuple[Any, tuple[Any, ...]]:
    """Return (program of the training step of `jfit.fit`, its arguments)."""
    import jfit
    from benchmarks.peers import jfit_fit
    from jfit.loop.dispatch import ResidentDispatcher

    def found(programs: Any) -> None:
        raise _Found(programs)

    dispatcher: Any = ResidentDispatcher
    original = dispatcher.dispatches
    dispatcher.dispatches = lambda self, *where: original(self, *where[:5], found)
    try:
        jfit_fit.begin(_workload(kind)).train()
    except _Found as error:
        (program, arguments), *_ = error.args[0]
        run = jfit.last_run()
        assert run is not None
        return program, (run.state, *arguments)
    raise RuntimeError("jfit.fit asked for no program")


def main(kind: str, side: str) -> None:
    """Lower and compile a step; print {"lower": [wall, CPU seconds], "compile": ...}."""
    step, values = (by_jfit if side == "jfit" else by_hand)(kind)
    lowered: list[Any] = []
    measure({"lower": lambda: lowered.append(step.lower(*values)), "compile": lambda: lowered[0].compile()})
