"""Every optimizer is an optax transformation: chain, masked, MultiSteps, vmap, one compilation, buffer donation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from jfit import optim
from jfit.optim.registry import by_name, optax_names

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in optim.OPTIMIZERS if name not in ("ccsgd", "group_adagrad")},
    "sgd with momentum": ("sgd", {"momentum": 0.9}),
    "nag with momentum": ("nag", {"momentum": 0.9}),
    "signum without momentum": ("signum", {"momentum": 0.0}),
    "dcasgd with momentum": ("dcasgd", {"momentum": 0.9}),
    "rmsprop centered": ("rmsprop", {"centered": True}),
    "lars with momentum": ("lars", {"momentum": 0.9}),
    "lbsgd of pairs": ("lbsgd", {"momentum": 0.9, "batch_scale": 2}),
}
NAMED = ("sgld",)
# plain, and counted with a scalar of all parameters; the others are slow tests
KINDS = ("sgd with momentum", "nadam")
each_kind = pytest.mark.parametrize("rule", [r if r in KINDS else pytest.param(r, marks=pytest.mark.slow) for r in RULES])
every_rule = pytest.mark.parametrize("rule", RULES)


def create_rule(rule: str, **more: Any) -> Any:
    name, given = RULES[rule]
    decay = {} if name in ("groupadagrad", "test") else {"wd": 0.1}
    return optim.OPTIMIZERS[name].make(**{"learning_rate": 0.1, **decay, **given, **more})


def tree(seed: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {name: jnp.array(draw.normal(size=(3, 2)), dtype) for name in ("fc_bias", "fc_weight")}


def run(transform: Any, gradients: list[Any], weights: Any, **more: Any) -> tuple[Any, Any]:
    """(weights, state) after a step for each gradient."""
    state = transform.init(weights)
    for g in gradients:
        updates, state = transform.update(g, state, weights, **more)
        weights = optax.apply_updates(weights, updates)
    return weights, state


def equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-6), a, b)


@every_rule
def test_an_optimizer_in_a_chain_receives_the_transformed_gradient(rule):
    clip = optax.clip_by_global_norm(0.1)
    found, _ = run(optax.chain(clip, create_rule(rule)), [tree(1), tree(2)], tree(0))
    clipped = [clip.update(g, clip.init(g))[0] for g in (tree(1), tree(2))]
    equal(found, run(create_rule(rule), clipped, tree(0))[0])


@every_rule
def test_masked_leaves_are_unchanged(rule):
    masked = optax.masked(create_rule(rule), {"fc_weight": True, "fc_bias": False})
    updates, _ = masked.update(tree(1), masked.init(tree(0)), tree(0))
    alone, weight = create_rule(rule), {"fc_weight": tree(0)["fc_weight"]}
    want, _ = alone.update({"fc_weight": tree(1)["fc_weight"]}, alone.init(weight), weight)
    equal(updates, {**want, "fc_bias": tree(1)["fc_bias"]})


@pytest.mark.repetitions(slow=6)
@each_kind
def test_multi_steps_equal_one_step_with_the_mean_gradient(rule):
    gathered = optax.MultiSteps(create_rule(rule), 2)
    compiled = optax.GradientTransformation(gathered.init, jax.jit(gathered.update))
    found, state = run(compiled, [tree(1), tree(2), tree(3), tree(4)], tree(0))
    mean = [jax.tree.map(lambda x, y: (x + y) / 2, tree(k), tree(k + 1)) for k in (1, 3)]
    close(found, run(create_rule(rule), mean, tree(0))[0])
    assert int(state.gradient_step) == 2


@every_rule
def test_the_learning_rate_may_be_injected(rule):
    make = optim.OPTIMIZERS[RULES[rule][0]].make
    others = [name for name in jfit.optim.registry.inspect.signature(make).parameters if name != "learning_rate"]
    injected = optax.inject_hyperparams(make, static_args=others)(learning_rate=0.1, **RULES[rule][1])
    state = injected.init(tree(0))
    state.hyperparams["learning_rate"] = jnp.float32(0.02)
    found, _ = injected.update(tree(1), state, tree(0))
    plain = make(learning_rate=0.1, **RULES[rule][1])
    want, _ = plain.update(tree(1), plain.init(tree(0)), tree(0), learning_rate=jnp.float32(0.02))
    equal(found, want)


@every_rule
def test_the_state_shape_can_be_evaluated_and_each_leaf_has_its_own_buffer(rule):
    for more in ({}, {"multi_precision": True}):
        transform, weights = create_rule(rule, **more), tree(0, jnp.bfloat16 if more else jnp.float32)
        state = transform.init(weights)
        shapes = jax.eval_shape(transform.init, weights)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
        pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((state, weights))]
        assert len(set(pointers)) == len(pointers)


@pytest.mark.repetitions(slow=6)
@each_kind
def test_one_program_serves_all_learning_rates_and_donates_its_state(rule):
    transform, traces = create_rule(rule), []

    def step(weights, state, g, rate):
        traces.append(1)
        updates, state = transform.update(g, state, weights, learning_rate=rate)
        return optax.apply_updates(weights, updates), state

    compiled = jax.jit(step, donate_argnums=(0, 1))
    weights, state = tree(0), transform.init(tree(0))
    wanted = tree(0), transform.init(tree(0))
    for k, rate in enumerate((0.1, 0.1, 0.03)):
        held = jax.tree.leaves(weights if rule == "test" else (weights, state))  # "test" never reads its state
        weights, state = compiled(weights, state, tree(k), jnp.float32(rate))
        unread = (getattr(state, "shared", None) or {}).keys() & {"last"}  # LARS writes it anew without a look at it
        assert sum(not x.is_deleted() for x in held) <= len(unread)
        wanted = step(*wanted, tree(k), jnp.float32(rate))
    assert len(traces) == 1 + 3
    close((weights, state), wanted)


@pytest.mark.repetitions(slow=6)
@each_kind
def test_a_vmapped_update_equals_single_updates(rule):
    transform = create_rule(rule)
    weights, grads = (jax.tree.map(lambda *x: jnp.stack(x), tree(k), tree(k + 1)) for k in (0, 5))
    found, _ = jax.vmap(transform.update)(grads, jax.vmap(transform.init)(weights), weights)
    want, _ = transform.update(tree(6), transform.init(tree(1)), tree(1))
    close(jax.tree.map(lambda x: x[1], found), want)


@every_rule
def test_the_order_of_leaves_changes_nothing(rule):
    name, _ = RULES[rule]
    turned = {"order": ["fc_weight", "fc_bias"]} if name in ("nadam", "lars") else {}
    grads = [tree(k) for k in range(1, 4)]
    found, _ = run(create_rule(rule, **turned, wd_mult=None), grads, tree(0))
    other = {"fc_weight": "a_weight", "fc_bias": "z_bias"}  # sorted the other way round
    if name in NAMED:
        other = {k: k for k in other}
    renamed = lambda t: {other[k]: v for k, v in t.items()}  # noqa: E731
    turned = {"order": [other[k] for k in turned["order"]]} if turned else {}
    want, _ = run(create_rule(rule, **turned, wd_mult=None), [renamed(g) for g in grads], renamed(tree(0)))
    equal(renamed(found), want)


@every_rule
def test_a_zero_gradient_without_weight_decay_gives_a_zero_update(rule):
    name = RULES[rule][0]
    if name in ("ftrl", "sgld"):
        pytest.skip("Ftrl makes weights anew, SGLD adds noise")
    zero = jax.tree.map(jnp.zeros_like, tree(0))
    found, _ = run(create_rule(rule, wd=0.0), [zero, zero, zero], tree(0))
    (close if name == "ftml" else equal)(found, tree(0))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-3, 3, width=16), min_size=4, max_size=4), st.sampled_from(["float32", "bfloat16"]))
def test_ftrl_keeps_exact_zeros(row, dtype):
    transform = optim.ftrl(0.1, lamda1=1.0, multi_precision=dtype == "bfloat16")
    weights, grads = {"w": jnp.zeros(4, dtype)}, {"w": jnp.array(row, dtype)}
    found, state = run(transform, [grads, grads], weights)
    still = np.abs(np.asarray(state.slots["z"]["w"])) <= 1.0
    assert np.array_equal(np.asarray(found["w"], np.float32) == 0, still)


def test_noise_depends_on_learning_rate_and_name_and_not_on_the_devices():
    weights = {"a_weight": jnp.zeros(10000), "b_weight": jnp.zeros(10000)}
    transform = optim.sgld(0.04)
    first, state = transform.update(weights, transform.init(weights), weights)
    second, _ = transform.update(weights, state, weights)
    noises = [first["a_weight"], first["b_weight"], second["a_weight"]]
    for noise in noises:
        assert abs(float(noise.std()) / 0.2 - 1) < 0.03
        assert abs(float(noise.mean())) < 0.01
    spread = np.corrcoef(np.stack(noises))
    assert np.abs(spread - np.eye(3)).max() < 0.05
    gradient = jax.tree.map(jnp.ones_like, weights)
    moved, _ = transform.update(gradient, transform.init(weights), weights)
    np.testing.assert_allclose(moved["a_weight"] - first["a_weight"], -0.02, atol=1e-6)
    reseeded, _ = run(optim.sgld(0.04, seed=1), [weights], weights)
    assert not np.array_equal(reseeded["a_weight"], first["a_weight"])
    update = lambda w, _: transform.update(w, transform.init(w), w)[0]  # noqa: E731
    replicated = jax.pmap(update, in_axes=(None, 0), devices=jax.devices()[:4])(weights, jnp.arange(4))
    for k in range(4):
        np.testing.assert_allclose(replicated["b_weight"][k], first["b_weight"], rtol=1e-6)


@pytest.mark.repetitions(slow=10)
@pytest.mark.parametrize(
    "name",
    [n if n in ("lion", "nadamw", "polyak_sgd") else pytest.param(n, marks=pytest.mark.slow) for n in optax_names()],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Specifying a key")
def test_an_optimizer_of_optax_is_the_same_by_name_and_by_instance(name):
    make = vars(optax).get(name) or vars(optax.contrib)[name]
    given = {} if name == "polyak_sgd" else {"learning_rate": 0.05}
    named = optim.get(name, **given)
    instance = optim.get(make(**given, **({"max_learning_rate": 1.0} if not given else {})))
    assert instance.learning_rate is None and not instance.takes_rate
    results = []
    for found in (named, instance):
        transform = optax.with_extra_args_support(found)
        fed = {"learning_rate": jnp.float32(0.05)} if found.takes_rate else {}
        results.append(run(transform, [tree(1), tree(2)], tree(0), value=jnp.float32(1.0), **fed)[0])
    close(*results)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(results))


@pytest.mark.parametrize("name", ["sophia", "dpsgd"])
def test_a_train_step_raises_for_unsupported_optimizers(name):
    with pytest.raises(ValueError, match=f"optimizer '{name}' .* Use another"):
        optim.get(name)
    assert name not in optax_names()


def test_an_optimizer_is_an_optax_transformation_with_additional_attributes():
    named, own, foreign = optim.get("lion"), optim.sgd(0.5), optim.get(optax.sgd(0.25))
    assert all(isinstance(o, optax.GradientTransformationExtraArgs) and len(o) == 2 for o in (named, own, foreign))
    assert (own.takes_rate, own.base_lr, foreign.takes_rate, foreign.base_lr) == (True, 0.5, False, None)
    assert own.state_spec is not None and named.state_spec is foreign.state_spec is None and named.takes_rate
    assert optim.get(own) is own and optim.get(optim.get("sgd")).name == "sgd"
    added, _ = optax.chain(own).update({"w": jnp.ones(1)}, (own.init({"w": jnp.ones(1)}),), {"w": jnp.ones(1)})
    assert added["w"].tolist() == [-0.5]


def test_nadam_takes_a_negative_or_traced_beta1_which_it_never_takes_the_logarithm_of():
    def updated(beta1):  # as for MXNet's class, which may have any beta1
        opt, w = by_name("nadam", {"learning_rate": 0.1, "beta1": beta1}, checks=False), {"w_weight": jnp.ones(2)}
        return opt.update(w, opt.init(w), w)[0]["w_weight"]

    assert np.isfinite(updated(-0.3)).all()
    np.testing.assert_allclose(jax.jit(updated)(0.8), updated(0.8), rtol=1e-6)
