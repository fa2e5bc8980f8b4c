"""Optimizer states restored from a file are bitwise equal, and training continues as if it had not stopped."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import optim
from jfit.checkpoints import checkpoint

NAMES = sorted({entry: name for name, entry in reversed(optim.OPTIMIZERS.items())}.values())
SETTINGS = {
    "lars": {"momentum": 0.9},
    "lbsgd": {"momentum": 0.9, "batch_scale": 2},
    "nag": {"momentum": 0.9},
    "rmsprop": {"centered": True},
    "sgd": {"momentum": 0.9},
}
# a weight of 32 bits and one of 16, so that one has a master and the other None in its place
START = {"a_weight": jnp.ones((2, 1)), "b_weight": jnp.ones((1, 2), jnp.float16)}
BATCH = {"x": np.arange(6, dtype="float32").reshape(3, 2) / 6, "label": np.ones(3, "float32")}


def forward(p, x):
    return x @ p["a_weight"] * p["b_weight"].sum().astype(jnp.float32)


MODEL = jfit.Model.from_function(forward, loss=lambda out, label: (out - label[:, None]) ** 2, params=START)


# of each kind of state one: a slot, none but a key, a count and scalars that are shared, a copy of the weight
FAST = ("sgd", "sgld", "nadam", "dcasgd")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
@pytest.mark.repetitions(slow=6)
def test_a_stop_between_two_steps_changes_no_bit(name, tmp_path):
    params = {"learning_rate": 0.1, "multi_precision": True, "lr_mult": {"b_weight": 0.5}, **SETTINGS.get(name, {})}
    made = optim.get(name, **params)
    step = jax.jit(jfit.train_step(MODEL, made))
    begin = functools.partial(jfit.init_state, MODEL, made, BATCH)
    half = step(step(begin(), BATCH)[0], BATCH)[0]
    checkpoint.save(tmp_path, half)
    again = checkpoint.restore(tmp_path, begin(seed=1))
    straight, resumed = (step(step(state, BATCH)[0], BATCH)[0] for state in (half, again))
    assert jax.tree.structure(straight) == jax.tree.structure(resumed)
    for one, other in zip(jax.tree.leaves(straight), jax.tree.leaves(resumed), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    moved = [not np.array_equal(straight.params[n], START[n]) for n in START]
    assert any(moved), "nothing was learned, so nothing was tested"
    assert straight.opt_state.slots["master"]["a_weight"] is None
    assert straight.opt_state.slots["master"]["b_weight"].dtype == jnp.float32
