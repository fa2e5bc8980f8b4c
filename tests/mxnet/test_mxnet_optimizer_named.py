"""Optimizer objects against recorded MXNet trainings: float32 master weights, schedulers, multipliers, files, modules."""

import copy
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from cases.optimizer_objects import CASES, MODULES, flat, trained, updates

import jfit.mx as mx
from jfit import counters
from jfit.formats.mxnet_states import load_states
from jfit.mxnet import optimizer as opt
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer import get_updater
from jfit.mxnet.optimizer.lr_scheduler import FactorScheduler

QUICK = {"nadam_store", "lars", "sgd_half", "adam_half", "lars_rates", "lars_apart", "nadam_late", "lbsgd_rates", "lamb_late"}
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "shells.npz")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def quick_first(names):
    return [name if name in QUICK else slow(name) for name in names]


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("name", quick_first(CASES))
def test_an_updater_reproduces_mxnet(name):
    got, want = updates(mx, CASES[name]), GOLDEN[name]
    assert got.shape == want.shape
    # MXNet takes the norms of LARS and LAMB from the 16-bit weights, jfit from their masters
    rounded = name in ("lars_half", "lamb_half")
    np.testing.assert_allclose(got, want, rtol=1e-3 if rounded else 3e-5, atol=3e-5 if rounded else 3e-6)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("name", quick_first(MODULES))
def test_a_module_reproduces_mxnet(name):
    np.testing.assert_allclose(trained(mx, name), GOLDEN[f"module_{name}"], rtol=3e-5, atol=3e-6)


# ---- scalars that parameters share


def momentum_of(updates, sd=0.004):
    """m_schedule after the turns of these update numbers."""
    return np.prod([0.9 * (1 - 0.5 * 0.96 ** (t * sd)) for t in updates])


def test_nadams_m_schedule_is_an_attribute_and_setting_it_does_not_recompile():
    optimizer = opt.Nadam(learning_rate=0.1)
    updater, weights = get_updater(optimizer), [MutableArray(jnp.ones(2)), MutableArray(jnp.ones(2))]
    updater([0, 1], [jnp.ones(2)] * 2, weights)
    assert optimizer.m_schedule == pytest.approx(momentum_of([1, 1]))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.m_schedule == optimizer.m_schedule
        other.m_schedule = 1.0
        assert optimizer.m_schedule < 1
    with counters.counted() as seen:
        updater([0, 1], [jnp.ones(2)] * 2, weights)
    assert not seen["compiles"] and not seen["traces"]
    optimizer.m_schedule = 0.25
    updater(0, jnp.ones(2), weights[0])
    assert optimizer.m_schedule == pytest.approx(0.25 * momentum_of([3]))


def test_setting_momentum_later_adds_its_shared_scalars():
    optimizer, weight = opt.LARS(learning_rate=0.5, eta=0.1), MutableArray(jnp.ones(2))
    get_updater(optimizer)(0, jnp.ones(2), weight)
    assert not optimizer.shared.values()
    optimizer.momentum = 0.9
    get_updater(optimizer)(0, jnp.ones(2), weight)
    assert optimizer.shared.value("rate") == 0.5


def test_test_adds_gradients_and_counts_its_updates():
    optimizer, weight = opt.Test(rescale_grad=0.5), MutableArray(jnp.ones(2))
    updater = get_updater(optimizer)
    for _ in range(2):
        updater(0, jnp.ones(2), weight)
    assert (weight.asnumpy().tolist(), updater.states[0].asnumpy().tolist()) == ([2, 2], [2, 2])
    assert optimizer.num_update == 2


def test_groupadagrad_raises_for_vectors_and_weight_decay():
    updater = get_updater(opt.GroupAdaGrad())
    with pytest.raises(ValueError, match=r"shape \(2,\), but it must be a matrix"):
        updater(0, jnp.ones(2), MutableArray(jnp.ones(2)))
    with pytest.raises(AssertionError, match=r"weight decay is 0\.1"):
        get_updater(opt.GroupAdaGrad(wd=0.1))(0, jnp.ones((2, 2)), MutableArray(jnp.ones((2, 2))))
    named = opt.GroupAdaGrad(wd=0.1, param_idx2name={0: "a"})  # no ending that decays
    updater = get_updater(named)
    updater(0, jnp.ones((3, 2)), MutableArray(jnp.ones((3, 2))))
    assert updater.states[0].shape == (3, 1)


def test_adadelta_does_not_modify_the_gradient():
    grad = MutableArray(jnp.ones(2))
    get_updater(opt.AdaDelta(rescale_grad=0.5))(0, grad, MutableArray(jnp.ones(2)))
    assert grad.asnumpy().tolist() == [1, 1]


def test_lbsgds_gradient_sums_are_separate_from_the_states():
    optimizer = opt.LBSGD(momentum=0.9, batch_scale=2, warmup_epochs=0, learning_rate=0.5)
    updater, weight = get_updater(optimizer), MutableArray(jnp.ones(2))
    updater(0, jnp.ones(2), weight)
    assert weight.asnumpy().tolist() == [1, 1] and updater.states[0].asnumpy().tolist() == [0, 0]
    updater(0, 3 * jnp.ones(2), weight)
    assert weight.asnumpy().tolist() == [1 - 0.5 * 2 * 2] * 2


# ---- in a module


def module_of(name, settings, devices=1, store="local", dtype="float32"):
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="z1")
    out = mx.sym.FullyConnected(mx.sym.Activation(out, act_type="tanh"), num_hidden=3, name="a2")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax"), context=[mx.cpu(i) for i in range(devices)])
    module.bind([mx.io.DataDesc("data", (6, 4), dtype)], [mx.io.DataDesc("softmax_label", (6,), dtype)])
    first = {"z1_weight": (4, 4), "z1_bias": (4,), "a2_weight": (3, 4), "a2_bias": (3,)}
    module.init_params(arg_params={n: mx.nd.array(np.cos(np.arange(np.prod(s)) + 1).reshape(s)) for n, s in first.items()})
    module.init_optimizer(store, name, settings)
    return module


def one_step(module, t, dtype="float32"):
    data = mx.nd.array(np.sin(np.arange(24) * (t + 1)).reshape(6, 4), dtype=dtype)
    module.forward(mx.io.DataBatch([data], [mx.nd.array([0, 1, 2, 2, 1, 0], dtype=dtype)]), is_train=True)
    module.backward()
    module.update()


def params_of(module):
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


RESUMED = {
    "nadam": {"learning_rate": 0.05},
    "sgld": {"learning_rate": 0.01},
    "lars": {"momentum": 0.9, "learning_rate": 0.5},
}


@pytest.mark.parametrize(
    ("name", "devices", "store"), [("nadam", 1, "local"), slow("sgld", 2, "device"), slow("lars", 1, "local")]
)
def test_a_module_that_loads_its_states_goes_on_bit_for_bit(name, devices, store, tmp_path):
    first, path = module_of(name, RESUMED[name], devices, store), str(tmp_path / "x.states")
    for t in range(2):
        one_step(first, t)
    first.save_optimizer_states(path)
    second = module_of(name, RESUMED[name], devices, store)
    second.set_params(*first.get_params())
    second.load_optimizer_states(path)
    if name == "nadam":
        assert second._optimizer.m_schedule == first._optimizer.m_schedule == pytest.approx(momentum_of([1] * 4 + [2] * 4))
    for module in (first, second):
        for t in range(2, 4):
            one_step(module, t)
    want = params_of(first)
    for key, value in params_of(second).items():
        np.testing.assert_array_equal(value, want[key])


def test_shared_scalars_are_kept_when_the_optimizer_is_replaced():
    module = module_of("nadam", RESUMED["nadam"])
    one_step(module, 0)
    old, schedule = module._optimizer, pytest.approx(momentum_of([1] * 4))
    module.init_optimizer(optimizer="sgd", force_init=True)
    one_step(module, 1)
    assert old.m_schedule == schedule and copy.deepcopy(old).m_schedule == schedule
    module.init_optimizer(optimizer=old, force_init=True)
    assert old.m_schedule == schedule


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nadam", "lars", pytest.param("sgld", marks=pytest.mark.slow)])
def test_shared_scalars_are_equal_on_any_number_of_devices(name, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    found = []
    for devices in (1, 3):
        mx.random.seed(5)
        module = module_of(name, RESUMED[name], devices, "device")
        assert not module._update_on_kvstore
        for t in range(2):
            one_step(module, t)
            module._optimizer.lr *= 0.5
        found.append(params_of(module))
    for key, value in found[0].items():
        np.testing.assert_allclose(value, found[1][key], rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        slow("nadam", {"learning_rate": 0.05}),
        slow("lars", {"momentum": 0.9, "eta": 0.1, "lr_scheduler": ("FactorScheduler", 2)}),
        ("lbsgd", {"momentum": 0.9, "batch_scale": 2, "warmup_epochs": 1, "lr_scheduler": ("FactorScheduler", 2)}),
    ],
)
def test_many_steps_per_dispatch_equal_single_steps(name, settings):
    rows = np.concatenate([np.sin(np.arange(24) * (t + 1)).reshape(6, 4) for t in range(6)]).astype("float32")
    label = np.tile([0, 1, 2, 2, 1, 0], 6).astype("float32")

    def made():
        given = dict(settings)
        if "lr_scheduler" in given:
            given["lr_scheduler"] = FactorScheduler(given["lr_scheduler"][1], 0.5, base_lr=0.1)
        return module_of(name, given)

    alone, whole = made(), made()
    for t in range(6):
        one_step(alone, t)
    whole.fit(mx.io.NDArrayIter(rows, label, 6), num_epoch=1)
    assert int(whole.state.step) == int(alone.state.step) == 6
    want = params_of(alone)
    for key, value in params_of(whole).items():
        np.testing.assert_array_equal(value, want[key])


def test_a_float16_module_trains_with_master_weights(tmp_path):
    module = module_of("adam", {"learning_rate": 1e-5, "multi_precision": True}, dtype="float16")
    assert module.parameters.state.params["z1_weight"].dtype == np.float16
    before = params_of(module)
    for t in range(8):
        one_step(module, t, "float16")
    module.save_optimizer_states(str(tmp_path / "x.states"))
    masters = {n: np.asarray(v) for n, v in module.parameters.state.opt_state.slots["master"].items()}
    moved = np.abs(masters["z1_weight"] - before["z1_weight"]).max()
    assert moved == pytest.approx(8e-5, rel=0.3)  # less than half a unit of float16, which no rounded weight would have moved
    states = load_states(tmp_path / "x.states").states
    assert [[a.dtype for a in flat(states[i])] for i in (0, 1)] == [[np.float32] * 3] * 2
    module.load_optimizer_states(str(tmp_path / "x.states"))
    one_step(module, 8, "float16")
    for name, value in params_of(module).items():
        np.testing.assert_array_equal(
            value, np.asarray(module.parameters.state.opt_state.slots["master"][name]).astype("float16")
        )


def test_saved_states_contain_multipliers_and_names_as_in_mxnet():
    first = get_updater(opt.Adam(wd=0.1, param_idx2name={0: "a_weight", 1: "a_bias"}))
    first.optimizer.set_lr_mult({0: 0.5})
    second = get_updater(opt.Adam())
    second.set_states(first.get_states(dump_optimizer=True))
    mine, theirs = first.optimizer, second.optimizer
    assert (mine.lr_mult, mine.wd_mult, mine.idx2name) == (theirs.lr_mult, theirs.wd_mult, theirs.idx2name)
