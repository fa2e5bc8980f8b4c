"""The gradient of PReLU's slope where MXNet 1.9.1's in-place execution multiplies it by the slope; jfit reproduces that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit.graph.in_place import overwritten

sym = jfit.sym


def prelu(x, name="p"):
    return sym.LeakyReLU(x, sym.Variable(f"{name}_gamma"), act_type="prelu", name=name)


def dense(x, name, size=6):
    return sym.FullyConnected(x, num_hidden=size, name=name)


def on_data(data):
    return dense(prelu(data), "b")


def inside(data):
    return dense(prelu(dense(data, "a")), "b")


def chain(data):
    return dense(prelu(prelu(dense(data, "a")), "q"), "b")


def branches(data):
    x = prelu(dense(data, "a"))
    return dense(x, "b") + dense(x, "c")


def added_to_its_input(data):
    h = dense(data, "a")
    return dense(h + prelu(h), "b")


def times_its_input(data):
    h = dense(data, "a")
    return dense(h * prelu(h), "b")


def added_to_a_later_branch(data):
    return dense(prelu(dense(data, "a")) + dense(data, "c"), "b")


def added_to_an_earlier_branch(data):
    return dense(dense(data, "c") + prelu(dense(data, "a")), "b")


def reshaped(data):
    return dense(sym.Reshape(prelu(sym.Flatten(dense(data, "a"))), shape=(-1, 6)), "b")


GRAPHS = [
    (on_data, set()),
    (inside, {"p"}),
    (chain, {"p", "q"}),
    (branches, {"p"}),
    (added_to_its_input, set()),
    (times_its_input, {"p"}),
    (added_to_a_later_branch, set()),
    (added_to_an_earlier_branch, {"p"}),
    (reshaped, {"p"}),
]


@pytest.mark.parametrize(("make", "want"), GRAPHS, ids=[g[0].__name__ for g in GRAPHS])
def test_the_gradient_is_overwritten_in_the_same_graphs_as_in_mxnet(make, want):
    net = make(sym.Variable("data"))
    found = overwritten(net.nodes(), net.heads, ["data"])
    assert {n.name for n in net.nodes() if id(n) in found} == want


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("slopes", [(6,), (1,)], ids=str)
def test_the_slope_gradient_is_multiplied_by_the_slope_and_the_others_are_exact(slopes):
    model = jfit.lower(inside(sym.Variable("data")))
    draw = np.random.RandomState(0)
    data = jnp.asarray(draw.standard_normal((5, 4)), "float32")
    params, aux = model.init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((5, 4), "float32")})
    params = {**params, "p_gamma": jnp.asarray(draw.uniform(0.1, 0.9, slopes), "float32")}

    def by_hand(p):
        h = data @ p["a_weight"].T + p["a_bias"].reshape(1, -1)
        return jnp.sum(
            (jnp.where(h > 0, h, h * p["p_gamma"].reshape(1, -1)) @ p["b_weight"].T + p["b_bias"].reshape(1, -1)) ** 2
        )

    got = jax.jit(jax.grad(lambda p: jnp.sum(model.apply(p, aux, {"data": data}, train=True)[0][0] ** 2)))(params)
    want = jax.jit(jax.grad(by_hand))(params)
    want["p_gamma"] = want["p_gamma"] * params["p_gamma"]
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
