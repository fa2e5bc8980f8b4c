"""Stateful optimizers: MXNet 1.9.1's values, update counts, multipliers and state nesting; one dispatch; user classes."""

import copy
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters
from jfit.formats import FormatError
from jfit.formats.mxnet_states import dump_states
from jfit.formats.pickles import Inert
from jfit.mxnet import optimizer as opt
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer import SGD, Adam, Optimizer, create, get_updater
from jfit.mxnet.optimizer.apply import apply_update, state_from_mxnet
from jfit.mxnet.optimizer.lr_scheduler import CosineScheduler, FactorScheduler, PolyScheduler

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "updater.json").read_text())
NAMES = {int(i): name for i, name in GOLDEN["names"].items()}
SHAPES = {int(i): tuple(shape) for i, shape in GOLDEN["shapes"].items()}


def value(seed, shape):
    return np.round(np.cos(np.arange(np.prod(shape)) * 1.7 + seed), 3).astype("float32").reshape(shape)


def of_case(case):
    kwargs = dict(case["kw"])
    if "sched" in case:
        kwargs["lr_scheduler"] = FactorScheduler(**case["sched"])
    optimizer = create(case["name"], param_idx2name=NAMES, **kwargs)
    if "lr_mult" in case:
        optimizer.set_lr_mult(case["lr_mult"])
        optimizer.set_wd_mult(case["wd_mult"])
    return optimizer


def flat(state):
    return [] if state is None else [box.asnumpy() for box in (state if isinstance(state, tuple) else (state,))]


@pytest.fixture(params=GOLDEN["cases"], ids=lambda c: f"{c['name']}-{len(c['kw'])}")
def case(request):
    return request.param


@pytest.mark.repetitions(4)
@pytest.mark.parametrize("as_lists", [True, False])
def test_the_updater_follows_mxnet_even_if_an_index_is_updated_less_often(case, as_lists):
    optimizer = of_case(case)
    updater = get_updater(optimizer)
    weights = {i: MutableArray(jnp.asarray(value(i, shape))) for i, shape in SHAPES.items()}
    for t, ids in enumerate(GOLDEN["steps"]):
        grads = [value(10 * t + i + 5, SHAPES[i]) for i in ids]
        if as_lists:
            updater(ids, grads, [weights[i] for i in ids])
        elif optimizer.aggregate_num > 1:
            return  # MXNet asks for the rate once for all of a group
        else:
            for i, grad in zip(ids, grads, strict=True):
                updater(i, grad, weights[i])
    for i in SHAPES:
        np.testing.assert_allclose(weights[i].asnumpy(), case["weights"][str(i)], rtol=2e-5, atol=2e-6)
        want = case["states"][str(i)]
        assert isinstance(updater.states[i], MutableArray) == (case["lone"][str(i)] and bool(want))
        for got, wanted in zip(flat(updater.states[i]), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
    assert {str(i): n for i, n in optimizer.counts().items()} == case["counts"]
    assert optimizer.num_update == case["num_update"]
    assert optimizer.rate() == pytest.approx(case["rate"])


# ---- one dispatch


def problem(count=160, dtype="float32"):
    keys = range(count)
    return list(keys), [jnp.full((3, 2), 1 + k, dtype) for k in keys], [jnp.full((3, 2), 0.5, dtype) for _ in keys]


@pytest.mark.slow
def test_160_parameters_are_one_program_and_changed_scalars_do_not_recompile():
    optimizer = Adam(learning_rate=0.25, wd=0.125, beta1=0.875)
    indices, weights, grads = problem()
    weights, states = apply_update(optimizer, indices, weights, grads, [None] * 160)
    optimizer.lr, optimizer.rescale_grad = 0.5, 0.25
    optimizer.set_wd_mult({3: 0.0})
    optimizer.set_lr_mult({5: 2.0})
    optimizer.count([7])
    with counters.counted() as seen:
        apply_update(optimizer, indices, weights, grads, states)
        other = Adam(learning_rate=1.0, wd=0.125, beta1=0.875)
        other.begin_num_update = 9
        apply_update(other, indices, weights, grads, states)
    assert not seen  # no trace, no compile, no wait
    with counters.counted() as seen:
        apply_update(Adam(beta1=0.75, wd=0.125), indices, weights, grads, states)
    assert seen["traces:apply_update"] == 1


class Hooked:
    """What a subclass may say of an index, in MXNet's names."""

    def _get_lrs(self, indices):
        return [2 * lr for lr in super()._get_lrs(indices)]

    def _get_wds(self, indices):
        return [0.5 for _ in indices]


@pytest.mark.parametrize("rule", ["SGD", "NAG"])
def test_learning_rates_and_decays_overridden_by_a_subclass_are_used(rule):
    kind = type("Mine", (Hooked, getattr(opt, rule)), {})
    mine = kind(learning_rate=0.25, wd=0.1, param_dict={1: SimpleNamespace(lr_mult=0.5, wd_mult=0.0)})
    assert not mine.is_pure and mine.takes_lists
    weights = [MutableArray(jnp.ones(1)), MutableArray(jnp.ones(1))]
    get_updater(mine)([0, 1], [jnp.ones(1)] * 2, weights)
    assert [w.asnumpy().item() for w in weights] == [0.25, 0.625]


def test_update_counts_and_learning_rates_overridden_by_a_subclass_are_used():
    class Even(SGD):
        def _update_count(self, index):
            super()._update_count(index)
            super()._update_count(index)

        @property
        def learning_rate(self):
            return 0.5 * self.num_update

    mine, weight = Even(), MutableArray(jnp.ones(1))
    mine.update(0, weight, jnp.ones(1), None)
    assert mine.num_update == 2 and weight.asnumpy().item() == 0.0 and not mine.is_pure


# ---- configuration


def test_create_ignores_case_and_raises_with_the_nearest_name():
    assert type(create("SGD")) is SGD
    assert isinstance(create("ccsgd", momentum=0.5), SGD)
    with pytest.raises(ValueError, match=r"Cannot find optimizer adamm: the nearest names are .*'adam'"):
        create("adamm")
    with pytest.raises(AssertionError, match="param_idx2name"):
        SGD(param_idx2name=["a"])
    with pytest.raises(TypeError, match="foo"):
        SGD(foo=1)
    with pytest.raises(TypeError, match="too many positional arguments"):
        SGD(0.9, False, 3)


def test_a_learning_rate_with_a_scheduler_replaces_its_base_and_prints_a_warning(capsys):
    drop = FactorScheduler(2, 0.5, base_lr=0.25)
    assert SGD(lr_scheduler=drop).learning_rate == 0.25
    assert capsys.readouterr().out == ""
    optimizer = SGD(lr_scheduler=drop, learning_rate=1.0)
    assert "replaces base_lr 0.25" in capsys.readouterr().out
    optimizer.count([0, 1, 0, 0])
    assert (optimizer.num_update, optimizer.rate(), drop.base_lr) == (3, 0.5, 0.5)
    # Poly and Cosine keep the base that they were made with, and a warm-up its end
    assert SGD(lr_scheduler=PolyScheduler(10, base_lr=0.1), learning_rate=0.5).lr_scheduler(1) == pytest.approx(0.081)
    assert SGD(lr_scheduler=CosineScheduler(10, base_lr=0.1), learning_rate=0.5).lr_scheduler(5) == pytest.approx(0.05)
    late = FactorScheduler(50, base_lr=0.1, warmup_steps=10)
    SGD(lr_scheduler=late, learning_rate=0.5)
    assert (late(5), late(20)) == (0.05, 0.5)
    # Adam always has a rate of its own
    assert Adam(lr_scheduler=FactorScheduler(2, base_lr=0.25)).rate() == 0.001


def test_set_learning_rate_raises_with_a_scheduler():
    optimizer = SGD()
    optimizer.set_learning_rate(0.5)
    assert optimizer.learning_rate == 0.5
    with pytest.raises(UserWarning, match="lr_scheduler"):
        SGD(lr_scheduler=FactorScheduler(2)).set_learning_rate(0.5)


def test_multipliers_are_looked_up_by_parameter_then_index_then_name():
    data = jfit.sym.Variable("data", lr_mult=3.0, wd_mult=2.0)
    net = jfit.sym.FullyConnected(data, name="fc", num_hidden=2)
    optimizer = SGD(wd=0.1, sym=net, param_idx2name={0: "fc_weight", 1: "fc_bias", 2: "data"})
    assert [m.tolist() for m in optimizer.multipliers([0, 1, 2])] == [[1, 1, 3], [1, 0, 2]]
    optimizer.set_wd_mult({"fc_bias": 0.5})
    assert optimizer.wd_mult == {"fc_bias": 0.5, "data": 2.0}
    optimizer.set_wd_mult({})
    optimizer.set_lr_mult({0: 7.0, "fc_weight": 9.0})
    assert [m.tolist() for m in optimizer.multipliers([0, 1, 2])] == [[7, 1, 3], [1, 0, 2]]
    assert optimizer.multipliers(["fc_weight", "fc_bias"])[0].tolist() == [9, 1]  # a key-value store knows names only
    optimizer.param_dict = {0: SimpleNamespace(lr_mult=0.5, wd_mult=0.25)}
    assert [m.tolist() for m in optimizer.multipliers([0, 1])] == [[0.5, 1], [0.25, 0]]
    assert optimizer._get_lr(0) == pytest.approx(0.005)
    assert optimizer._get_wds([0, 1]) == [pytest.approx(0.025), 0.0]


def test_update_counts_are_per_device_and_start_at_begin_num_update():
    optimizer = SGD(begin_num_update=5)
    optimizer.count([0, 1])
    optimizer._set_current_context(3)
    optimizer._update_count(0)
    assert (optimizer.num_update, optimizer._index_update_count) == (6, {0: 6})
    optimizer.count(0)
    assert optimizer._all_index_update_counts == {0: {0: 6, 1: 6}, 3: {0: 7}}
    assert (optimizer.counts(), optimizer.num_update) == ({0: 7, 1: 6}, 7)
    optimizer.set_counts({0: 20}, 21)
    optimizer._set_current_context(1)
    optimizer.count([0, 1])
    assert (optimizer._index_update_count, optimizer.num_update) == ({0: 21, 1: 6}, 21)


def test_pickles_and_copies_drop_the_parameters_and_keep_the_counts():
    optimizer = Adam(param_idx2name={0: "a_weight"}, lr_scheduler=FactorScheduler(2, 0.5, base_lr=0.001))
    optimizer.param_dict = {0: SimpleNamespace(lr_mult=1, wd_mult=1)}
    optimizer._set_current_context(2)
    optimizer.count([0])
    for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        other.count([0])
        assert (other.counts(), other.param_dict, other.hyper_key()) == ({0: 2}, {}, optimizer.hyper_key())
        assert other._all_index_update_counts == {0: {}, 2: {0: 2}}
    assert optimizer.num_update == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_weights_are_rounded_without_master_weights_and_not_with_them(dtype):
    half = MutableArray(jnp.ones(2, dtype))
    updater = get_updater(SGD(learning_rate=0.5, momentum=0.5))
    with pytest.warns(UserWarning, match=f"a weight is {dtype}.*multi_precision=True"):
        updater(0, jnp.ones(2, dtype), half)
    assert (half.asnumpy().tolist(), half.dtype, updater.states[0].dtype) == ([0.5, 0.5], jnp.dtype(dtype), np.float32)
    for optimizer in (SGD(learning_rate=1e-4, multi_precision=True), Adam(learning_rate=1e-4, multi_precision=True)):
        half, updater = MutableArray(jnp.ones(2, dtype)), get_updater(optimizer)
        for _ in range(20):
            updater(0, jnp.ones(2, dtype), half)
        master = updater.states[0][1 if optimizer.master_last else 0]
        np.testing.assert_allclose(master.asnumpy(), 1 - 20e-4, rtol=1e-6)
        np.testing.assert_array_equal(half.asnumpy(), np.asarray(master.value.astype(dtype)))
        assert half.value.dtype == dtype and master.dtype == np.float32


def test_a_user_optimizer_class_receives_the_master_weight():
    class Halving(Optimizer):
        def create_state(self, index, weight):
            return MutableArray(jnp.zeros(weight.shape))

        def update(self, index, weight, grad, state):
            assert weight.dtype == grad.dtype == np.float32
            weight[:] = weight.value - 1e-4 * grad.value

    half, updater = MutableArray(jnp.ones(2, jnp.float16)), get_updater(Halving(multi_precision=True))
    for _ in range(20):
        updater(0, MutableArray(jnp.ones(2, jnp.float16)), half)
    assert half.dtype == np.float16 and half.asnumpy()[0] == np.float16(1 - 20e-4)


# ---- states


def test_states_of_another_optimizer_raise():
    one = np.ones(2, "float32")
    with pytest.raises(ValueError, match=r"has 2 arrays, SGD expects 1 \(momentum\)"):
        state_from_mxnet(SGD(momentum=0.5), (one, one))
    with pytest.raises(ValueError, match="state of parameter 'w' is None; create it"):
        Adam().update("w", MutableArray(one), one, None)


def test_states_have_the_array_class_of_the_weight():
    class Mine(MutableArray):
        pass

    mean, var = Adam().create_state(0, Mine(jnp.ones(2)))
    assert (type(mean), type(var)) == (Mine, Mine)
    assert Optimizer().create_state(0, Mine(jnp.ones(2))) is None


def test_dump_optimizer_saves_the_settings_with_the_states():
    def make(**kwargs):
        return SGD(momentum=0.5, **kwargs)

    first = get_updater(make(lr_scheduler=FactorScheduler(1, 0.5, base_lr=1.0)))
    for _ in range(3):
        first(0, np.ones(2, "float32"), MutableArray(jnp.ones(2)))
    for other in (make(learning_rate=3.0), make(lr_scheduler=FactorScheduler(7))):
        second = get_updater(other)
        second.set_states(first.get_states(dump_optimizer=True))
        assert (other.rate(), other.lr_scheduler.step, other.num_update) == (0.25, 1, 3)
    with pytest.raises(ValueError, match="saved with SGD, expected Adam"):
        get_updater(Adam()).set_states(first.get_states(dump_optimizer=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": "abc"}, "optimizer SGD, attribute 'lr': found 'abc', expected a finite number"),
        ({"lr": None}, "attribute 'lr': found None, expected a finite number .*because there is no lr_scheduler"),
        ({"wd": None}, "attribute 'wd': found None, expected a finite number"),
        ({"momentum": [1.0]}, r"attribute 'momentum': found \[1.0\], expected a finite number"),
        ({"lr_mult": {0: "abc"}}, "lr_mult, attribute 0: found 'abc', expected a finite number"),
        ({"wd_mult": 5}, "attribute 'wd_mult': found 5, expected a dict"),
        ({"idx2name": {0: 5}}, "idx2name, attribute 0: found 5, expected text"),
        ({"lr_scheduler": 5}, "attribute 'lr_scheduler': found 5, expected the attributes of a scheduler"),
        ({"lr_scheduler": {"class": "Other", "a": 1}}, "lr_scheduler: found class Other with class, a; .*before loading"),
        ({"class": "Nadam", "shared": 5}, "'shared': found 5, expected a dict"),
        ({"class": "Nadam", "shared": {"m_schedule": "abc"}}, "scalar 'm_schedule' of all parameters: found 'abc'"),
        ({"class": "Nadam", "shared": {"m_schedule": [1.0, 2.0]}}, r"expected finite float32 of shape \(\)"),
        ({"class": "Nadam", "shared": {"m_schedule": 1e39}}, "found 1e\\+39, expected finite"),
        ({"class": "SGLD", "shared": {"key": [0.5, 1.5]}}, "expected finite uint32"),
        ({"class": "SGLD", "shared": {"key": {"a": 1}}}, "damaged"),
        ({"class": "LARS", "momentum": 0.9, "shared": {"rate": {}}}, "damaged"),
    ],
)
def test_damaged_settings_raise(settings, message):
    name = settings.get("class", "SGD")
    updater = get_updater(opt.create(name))
    with pytest.raises(FormatError, match=f"^x.states: .*{message}"):
        updater.set_states(dump_states({}, {}, 1, {"class": name, **settings}), "x.states")


def test_settings_of_an_mxnet_trainer_are_loaded():
    schedule = Inert("mxnet.lr_scheduler.FactorScheduler", vars(FactorScheduler(1, 0.5, base_lr=0.5)))
    attributes = {
        "lr": 0.5,
        "wd": 0.25,
        "beta1": 0.75,
        "num_update": 3,
        "_index_update_count": {0: 3},
        "lr_scheduler": schedule,
    }
    one = np.ones(2, "float32")
    data = dump_states({0: (one, one)}, optimizer=Inert("mxnet.optimizer.optimizer.Adam", attributes))
    optimizer = Adam(learning_rate=7.0)
    get_updater(optimizer).set_states(data)
    assert (optimizer.wd, optimizer.beta1, optimizer.counts(), optimizer.rate()) == (0.25, 0.75, {0: 3}, 0.125)


def test_assigned_states_move_to_the_weights_device_without_recompiling():
    updater = get_updater(SGD(learning_rate=0.5, momentum=0.25, wd=0.75))
    updater.set_states({0: np.ones(2, "float32"), 1: None})
    where = jax.devices()[1]
    weights = [MutableArray(jax.device_put(jnp.ones(2), where)) for _ in range(2)]
    grads = [jax.device_put(jnp.zeros(2), where)] * 2
    updater([0, 1], grads, weights)
    assert updater.states[0].value.devices() == updater.states[1].value.devices() == {where}
    with counters.counted() as seen:
        updater([0, 1], grads, weights)
    assert not seen


def test_an_immutable_weight_raises():
    with pytest.raises(TypeError, match="immutable"):
        get_updater(SGD())(0, np.ones(2), jnp.ones(2))


# ---- classes of users


@pytest.fixture
def registered():
    known = dict(Optimizer.opt_registry)
    yield
    Optimizer.opt_registry.clear()
    Optimizer.opt_registry.update(known)


def test_a_user_class_works_through_the_updater(registered):
    @Optimizer.register
    class Halving(Optimizer):
        def create_state(self, index, weight):
            return MutableArray(np.zeros(weight.shape, "float32"))

        def update(self, index, weight, grad, state):
            self._update_count(index)
            state[:] = state.value + 1
            weight[:] = weight.value - self._get_lr(index) * self._get_wd(index) * np.asarray(grad)

    optimizer = create("halving", learning_rate=0.5, wd=1.0, param_idx2name={0: "a_weight", 1: "a_bias"})
    assert not optimizer.is_pure
    assert SGD().is_pure
    updater = get_updater(optimizer)
    weights = [MutableArray(jnp.ones(2)), MutableArray(jnp.ones(2))]
    for _ in range(2):
        updater([0, 1], [np.ones(2, "float32")] * 2, weights)
    assert [w.asnumpy().tolist() for w in weights] == [[0.0, 0.0], [1.0, 1.0]]
    assert updater.states[1].asnumpy().tolist() == [2.0, 2.0]
    assert optimizer.counts() == {0: 2, 1: 2}
    with pytest.raises(NotImplementedError, match="Optimizer has no update;"):
        Optimizer().update(0, weights[0], weights[0], None)


def test_a_users_subclass_may_call_the_rule_it_extends(registered):
    @Optimizer.register
    class Clipped(SGD):
        def update(self, index, weight, grad, state):
            super().update(index, weight, np.minimum(grad, 1), state)

    updater = get_updater(create("clipped", learning_rate=0.5, momentum=0.9))
    weight = MutableArray(jnp.ones(2))
    updater("w", np.float32([4, 1]), weight)
    assert weight.asnumpy().tolist() == [0.5, 0.5]
    assert updater.states["w"].asnumpy().tolist() == [-0.5, -0.5]


def test_registering_a_name_twice_warns(registered):
    with pytest.warns(UserWarning, match="'sgd' was"):
        Optimizer.register(type("SGD", (Optimizer,), {}))
