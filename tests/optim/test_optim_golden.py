"""Optimizers reproduce the trajectories recorded from MXNet 1.9.1, weights and states, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases.optimizers import CASES, ORDER, RATES, RESCALE, Case, gradients, start

from jfit import optim

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "optimizers.npz")
MASTER_LAST = ("sgd", "nag", "lars", "lbsgd")  # MXNet keeps (momentum, master), elsewhere (master, state)


def in_mxnets_order(case: Case, state: optim.OptState, name: str) -> list[Any]:
    """The slots of one parameter as MXNet nests them; the gradients that LBSGD gathers are no part of its states."""
    slots = {slot: tree[name] for slot, tree in state.slots.items() if slot != "sum" and tree[name] is not None}
    if case.half and case.optimizer not in MASTER_LAST:
        slots = {"master": slots.pop("master"), **slots}
    return list(slots.values())


def followed(case: Case) -> list[np.ndarray]:
    """What the recorder writes, from jfit's rule; operation by operation, which compiles nothing for a case alone."""
    made = optim.get(case.optimizer, **{**case.settings, **case.extra})
    weights: Any = {name: jnp.array(x) for name, x in start(case).items()}
    state, rows = made.init(weights), []
    for rate, step in zip(RATES, gradients(case), strict=True):
        grads = {name: jnp.array(g) * np.asarray(RESCALE, g.dtype) for name, g in step.items()}
        fed = jnp.float32(case.settings["learning_rate"] * rate)
        updates, state = made.update(grads, state, weights, learning_rate=fed)
        weights = optax.apply_updates(weights, updates)
        found = [weights[name] for name in ORDER] + [x for name in ORDER for x in in_mxnets_order(case, state, name)]
        rows.append(np.concatenate([np.asarray(x, np.float32).ravel() for x in found]))
    return rows


OFTEN = [name for name, case in CASES.items() if not case.half or case.optimizer in ("sgd", "lars")]


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_weights_and_states_are_mxnets_after_every_step(name):
    case, golden = CASES[name], GOLDEN[name]
    rows = np.stack(followed(case))
    assert rows.shape == golden.shape
    size = sum(x.size for x in start(case).values())
    weights, states = np.s_[:, :size], np.s_[:, size:]
    # float32 and six steps; a 16-bit weight may round to its neighbour where its master lies in the middle
    np.testing.assert_allclose(rows[weights], golden[weights], rtol=1e-3 if case.half else 2e-6, atol=1e-6)
    rtol, atol = 2e-6, 1e-6
    if case.optimizer == "ftml":
        # MXNet's 1 - beta2^t is off by 6e-8 / (2e-3), a power in float32; in z numbers of d's size cancel
        rtol, atol = 2e-5, 5e-6
    if case.half and case.optimizer in ("lamb", "lars"):
        atol = 1e-4  # MXNet's norms are those of the 16-bit weight, with squares of 16 bits; jfit's are the master's
    np.testing.assert_allclose(rows[states], golden[states], rtol=rtol, atol=atol)
