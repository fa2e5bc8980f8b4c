"""`devices="auto"`: which devices are chosen, and when they are fewer than there are."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_nets import conv_net, mlp

import jfit
from jfit.feed import auto_devices as auto
from jfit.loop.dispatch import dispatcher_of
from jfit.lowering.model import Plan, specs_of
from jfit.prepare.options import FitOptions
from jfit.prepare.problem import prepare
from jfit.step.reduce import get as get_reduce

PADDABLE, UNPADDABLE = Plan((), (), True), Plan((), (), False, "sorted over the batch axis")


class Accelerator:
    platform = "gpu"


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(auto, "cores", lambda: 4)
    auto._advise.cache_clear()


def test_a_cpu_has_a_device_per_core_for_convolutions_and_one_device_for_other_models(four_cores):
    assert [d.id for d in auto.auto_devices(convolutions=True)] == [0, 1, 2, 3]
    assert [d.id for d in auto.auto_devices(convolutions=False)] == [0]
    assert len(auto.auto_devices(convolutions=True, most=3)) == 3


def test_processes_of_a_job_use_as_many_devices_as_the_smallest_host(four_cores, monkeypatch):
    monkeypatch.setattr(auto, "exchange", lambda count, name: [count, 2])
    assert [d.id for d in auto.auto_devices(convolutions=True)] == [0, 1]


def test_accelerators_are_all_used(four_cores, monkeypatch, caplog):
    local = [Accelerator() for _ in range(6)]
    monkeypatch.setattr(jax, "local_devices", lambda: local)
    assert auto.auto_devices(convolutions=False) == auto.auto_devices(convolutions=True) == local
    assert not caplog.records


def test_one_line_says_how_to_emulate_devices(four_cores, monkeypatch, caplog):
    one = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: one)
    with caplog.at_level(logging.INFO, "jfit"):
        assert auto.auto_devices(convolutions=False) == one and not caplog.records
        assert auto.auto_devices(convolutions=True) == auto.auto_devices(convolutions=True) == one
    (record,) = caplog.records
    assert record.name == "jfit"
    assert "--xla_force_host_platform_device_count=4" in record.message and "('jax_num_cpu_devices', 4)" in record.message


@pytest.mark.parametrize(
    ("plan", "sizes", "micro_batches", "reduce", "count"),
    [
        (PADDABLE, [32], 1, "psum", 4),
        (PADDABLE, [31, 2], 1, "psum", 4),  # padded
        (PADDABLE, [3, 1], 1, "psum", 3),
        (PADDABLE, [8], 4, "psum", 2),
        (PADDABLE, None, 1, "psum", 4),
        (UNPADDABLE, [32, 16], 1, "psum", 4),
        (UNPADDABLE, [32, 6], 1, "psum", 2),
        (UNPADDABLE, [24], 4, "psum", 3),
        (UNPADDABLE, [32, 5], 1, "psum", 1),
        (UNPADDABLE, None, 1, "psum", 1),
        (UNPADDABLE, [32, 8], 1, "ordered", 4),
    ],
)
def test_batches_can_be_split_over_the_chosen_devices(four_cores, caplog, plan, sizes, micro_batches, reduce, count):
    devices = auto.training_devices(conv_net(), plan, sizes, micro_batches, get_reduce(reduce))
    assert len(devices) == count and len(caplog.records) == (count < 4)
    if count < 4 and not plan.paddable:
        assert f"{count} of 4 devices" in caplog.text and "cannot be padded: sorted over the batch axis" in caplog.text


def convolved(params, x):
    return jax.jit(lambda x: jax.lax.conv(x, params["w"], (1, 1), "SAME"))(x).mean((1, 2, 3))


def scaled(params, x):
    return (x * params["w"].sum()).mean((1, 2, 3))


def blurred_error(y, label):
    return jnp.square(jnp.convolve(y - label, jnp.ones(3), mode="same"))


@pytest.mark.parametrize(
    ("net", "terms", "convolutions"),
    [
        (convolved, {"loss": jnp.subtract}, True),
        (scaled, {"loss": jnp.subtract}, False),
        (scaled, {"loss": blurred_error}, True),
        (scaled, {"loss": lambda y, label: blurred_error(y, label).sum(), "loss_per_batch": True}, True),
    ],
)
def test_functions_and_losses_are_searched_for_convolutions_which_run_one_step_per_dispatch(net, terms, convolutions):
    params, batch = {"w": jnp.ones((1, 1, 3, 3))}, {"x": np.ones((6, 1, 4, 4), "float32"), "label": np.zeros(6, "float32")}
    assert jfit.Model.from_function(net, params=params, **terms).plan(specs_of(batch)).convolutions == convolutions
    options = FitOptions(params=params, batch_size=3, steps_per_call=2, shuffle=False, **terms).checked()
    problem = prepare(net, batch, None, options)
    assert dispatcher_of(problem).spec.steps_per_call == (1 if convolutions else 2)
    if "loss_per_batch" not in terms:  # such a loss does not allow for micro-batches
        step = jfit.train_step(jfit.Model.from_function(net, params=params, **terms), micro_batches=2)
        assert ("scan" in str(jax.make_jaxpr(step)(problem.take_state(), batch))) != convolutions


@pytest.mark.slow
@pytest.mark.parametrize(("net", "shape", "count"), [(conv_net, (1, 6, 6), 4), (mlp, (5,), 1)])
def test_fit_score_and_predict_choose_devices_and_pad(four_cores, net, shape, count):
    rng, symbol = np.random.default_rng(0), net().symbol
    x, y = rng.standard_normal((10, *shape), np.float32), rng.integers(0, 3, 10)
    settings = {"batch_size": 6, "num_epoch": 1, "progress": False, "shuffle": False}
    run = jfit.fit(symbol, (x, y), devices="auto", **settings)
    alone = jfit.fit(symbol, (x, y), **settings)
    assert len(run.settings.devices) == len(run.state.step.sharding.device_set) == count
    for name, value in alone.params.items():
        np.testing.assert_allclose(run.params[name], value, rtol=1e-5, atol=1e-6)
    options = {"params": run.params, "aux": run.aux, "batch_size": 6}
    one, several = (jfit.predict(symbol, x, devices=devices, **options) for devices in (None, "auto"))
    np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-6)
    score = jfit.score(symbol, (x, y), devices="auto", **options)
    assert score == pytest.approx(jfit.score(symbol, (x, y), **options), rel=1e-5)


def test_auto_needs_a_model():
    with pytest.raises(ValueError, match=r"devices='auto' is not supported here; pass None, a number"):
        jfit.parallel.resolve("auto")
