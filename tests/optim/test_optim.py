"""Learning rates, multipliers and counts of optimizers, and their resolution by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import refused

import jfit
from jfit import optim

RNG = np.random.default_rng(0)
START = {"fc_weight": RNG.normal(size=(3, 2)), "fc_bias": RNG.normal(size=3)}


def f32(tree):
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32), tree)


def test_nothing_is_stored_when_every_multiplier_is_one():
    assert jax.tree.leaves(optim.sgd(0.1).init(f32(START))) == []
    assert optim.sgd(0.1, wd=0.1, wd_mult=None).init(f32(START)).wd_mult is None
    state = optim.sgd(0.1, wd=0.1).init(f32(START))
    assert state.wd_mult.tolist() == [0.0, 1.0]  # leaf order: fc_bias, fc_weight


def test_multipliers_are_traced():
    w = f32(START)
    tx = optim.sgd(0.1, wd=0.1, lr_mult={"fc_bias": 2.0}, wd_mult={"fc_bias": 0.5})
    step, state = jax.jit(tx.update), tx.init(w)
    zero = jax.tree.map(jnp.zeros_like, w)
    updates, _ = step(zero, state, w)
    np.testing.assert_allclose(updates["fc_bias"], -0.2 * 0.05 * w["fc_bias"], rtol=1e-5)
    frozen = state._replace(lr_mult=jnp.zeros(2))
    updates, _ = step(zero, frozen, w)
    assert not np.any(updates["fc_weight"])
    step(zero, frozen._replace(wd_mult=jnp.ones(2)), w)
    assert step._cache_size() == 1


def test_without_mxnet_names_weight_decay_applies_to_matrices():
    tree = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
    assert optim.sgd(0.1, wd=0.1).init(tree).wd_mult.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["sgd", "lion"])
def test_a_schedule_at_construction_counts_updates(name):
    rates = optax.piecewise_constant_schedule(1.0, {1: 0.5})
    tx = optim.get(name, learning_rate=rates)
    w = {"a_bias": jnp.ones(())}
    state, steps = tx.init(w), []
    for _ in range(3):
        updates, state = tx.update(w, state, jax.tree.map(jnp.zeros_like, w))
        steps.append(-float(updates["a_bias"]))
    assert steps == [1.0, 0.5, 0.5]
    own = optim.sgd(optim.factor(step=1, factor=0.5, base_lr=1.0))
    assert float(own.update(w, own.init(w), w)[0]["a_bias"]) == -1.0


def test_instances_are_returned_unchanged():
    plain = optax.adam(0.1)
    found = optim.get(plain)
    assert tuple(found) == tuple(plain) and (found.learning_rate, found.takes_rate) == (None, False)
    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
    assert optim.get(injected).learning_rate == 0.25
    assert optim.injected_rate(plain.init({"w": jnp.ones(1)})) is None
    assert optim.get("adam").learning_rate == 0.001
    resolved = optim.get("nag")
    assert optim.get(resolved) is resolved


class WithState:
    """As nnx.Optimizer, whose repr is as long as its state."""

    tx = optax.adam(0.1)

    def update(self, model, grads): ...


test_errors_describe_the_problem = refused(
    (lambda: optim.get("sdg"), ValueError, "unknown optimizer 'sdg'; did you mean 'sgd'"),
    (lambda: optim.get("sgd", momentun=1), ValueError, "no parameter 'momentun'; did you mean 'momentum'"),
    (lambda: optim.get("lion", b9=1), ValueError, "optimizer 'lion' has no parameter 'b9'"),
    (lambda: optim.get("lbfgs"), ValueError, "optimizer 'lbfgs' has a line search"),
    (lambda: optim.get(optax.lbfgs()), ValueError, "has a line search"),
    (lambda: optim.get(optax.sgd(0.1), momentum=1), ValueError, r"an instance, so its parameters \(momentum\)"),
    (lambda: optim.get(3), TypeError, "an optimizer must be a name or an optax transformation"),
    (
        lambda: optim.get(WithState()),
        TypeError,
        r"object of type test_optim.WithState; pass the optax transformation it was",
    ),
    (lambda: optim.get(optax.adam), TypeError, r"object of type builtins.function; call it, as in optax.adam\(0.001\)\.$"),
    (lambda: optim.sgd(0.1).update({}, optim.sgd(0.1).init({})), ValueError, "need the parameters"),
    (lambda: optim.sgd(0.1, wd=1, wd_mult="odd").init({"a": jnp.ones(1)}), ValueError, "wd_mult is 'odd'"),
)


def test_numbers_out_of_range_raise_for_optimizers_of_jfit_but_not_for_classes_of_mxnet():
    for make, text in (
        (lambda: optim.sgd(-0.1), "learning_rate is -0.1; expected a finite number of at least 0"),
        (lambda: optim.lars(0.1, momentum=np.float32(2)), "momentum is 2.0; expected a number from 0 to below 1"),
        (lambda: optim.get("nag", wd=float("inf")), "wd is inf; expected a finite number"),
        (lambda: jfit.init_state(jfit.lower(jfit.sym.Variable("data")), "sgd", learning_rate=-1), "learning_rate is -1"),
    ):
        with pytest.raises(ValueError, match=text):
            make()
    assert jax.jit(lambda rate: optim.sgd(rate).base_lr * 2)(0.5) == 1  # traced numbers are not read
    weight = jfit.mx.nd.ones(2)
    nag = jfit.mx.optimizer.NAG(learning_rate=-1.0, wd=-1.0)
    nag.update(0, weight, jfit.mx.nd.ones(2), nag.create_state(0, weight))
    np.testing.assert_array_equal(weight.asnumpy(), [1, 1])  # 1 + (1 - 1 * 1)
