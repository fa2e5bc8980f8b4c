"""BatchNorm's fix_gamma together with optimizers that have shared scalars, compared with recorded MXNet trainings."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.fixed_gammas import (
    CASES,
    FIXED,
    ROWS,
    STEPS,
    arrays,
    batch,
    fed_forward,
    first_values,
    module_of,
    network,
    own_rule,
    params_of,
    raveled,
    step,
    trained,
    trainers,
    value,
)

import jfit
import jfit.mx as mx
from jfit import optim

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "fixed_gammas.npz")
QUICK = {"nadam", "nadam_store", "lars_store", "lbsgd"}
NADAM = CASES["nadam"]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-6)  # as of other modules that MXNet recorded


def schedule_after(counts, decay=0.004):
    """m_schedule after turns of these update numbers."""
    return np.prod([0.9 * (1 - 0.5 * 0.96 ** (t * decay)) for t in counts])


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
@pytest.mark.repetitions(slow=9)
def test_a_module_with_fixed_gammas_repeats_mxnet(name):
    close(trained(mx, name), GOLDEN[name])


def test_a_fixed_gamma_advances_the_shared_scalars_and_stays_one():
    module = module_of(mx, NADAM, first_values())
    for t in range(2):
        step(mx, module, t)
    assert module._optimizer.m_schedule == pytest.approx(schedule_after([1] * 10 + [2] * 10))  # MXNet's 0.0011 after one step
    assert all((params_of(module)[name] == 1).all() for name in FIXED)
    assert not {*FIXED} & {*module.parameters.state.opt_state.slots["mean"]}
    assert module._optimizer.counts() == dict.fromkeys(range(10), 2)


@pytest.mark.slow
def test_a_fit_of_whole_epochs_and_feedforward_repeat_mxnet():
    close(fed_forward(mx), GOLDEN["feedforward"])
    module, (data, labels) = module_of(mx, CASES["lbsgd"], first_values()), arrays()
    module.fit(mx.io.NDArrayIter(data, labels, ROWS), num_epoch=1)
    close(raveled(params_of(module)), GOLDEN["lbsgd"][-1])


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("optimizer", ["nadam", optim.nadam(0.05, wd=0.01)], ids=["name", "instance"])
def test_fit_repeats_mxnet_in_the_order_of_the_graph(optimizer):
    data, labels = arrays()
    run = jfit.fit(
        network(mx), {"data": data, "softmax_label": labels}, batch_size=ROWS, num_epoch=1, shuffle=False, progress=False,
        params=first_values(), optimizer=optimizer, optimizer_params=NADAM.settings if optimizer == "nadam" else None,
    )  # fmt: skip
    close(raveled(run.params), GOLDEN["nadam"][-1])
    assert all((run.params[name] == 1).all() for name in FIXED)


def two_norms(key=2):
    """A network of one or two norms whose gammas are fixed."""
    out = mx.sym.BatchNorm(mx.sym.Variable("data"), name="norm")
    if key == 2:
        out = mx.sym.BatchNorm(mx.sym.Activation(out, act_type="tanh"), name="top")
    return mx.sym.SoftmaxOutput(out, name="softmax")


def test_parameters_frozen_by_the_user_do_not_advance_the_shared_scalars():
    model, (data, labels) = jfit.lower(two_norms()), batch(0)
    inputs = {"data": data, "softmax_label": labels}
    state = jfit.init_state(model, "nadam", inputs, frozen=["norm_*"])
    state, _ = jax.jit(jfit.train_step(model, "nadam", frozen=["norm_*"]))(state, inputs)
    assert float(state.opt_state.shared["m_schedule"]) == pytest.approx(schedule_after([1] * 2))
    module = mx.mod.Module(two_norms(), fixed_param_names=["norm_gamma"])
    module.bind([("data", data.shape)], [("softmax_label", labels.shape)])
    module.init_params()
    module.init_optimizer(optimizer="nadam")
    step(mx, module, 0)
    assert module._optimizer.m_schedule == pytest.approx(schedule_after([1] * 3))


def test_names_without_an_update_advance_the_shared_scalars_in_the_given_order():
    ones = {name: jnp.ones(()) for name in ("a_weight", "b_weight")}
    fixed = optim.nadam(0.1, order=["x", "b_weight", "y", "a_weight"], fixed=["x", "y", "z", "a_weight"])
    updates, state = fixed.update(ones, fixed.init(ones), ones)
    assert float(state.shared["m_schedule"]) == pytest.approx(schedule_after([1] * 5))
    alone = optim.nadam(0.1)
    moved = {}
    for turn in range(1, 5):
        start = alone.init({"w": ones["a_weight"]})
        start = start._replace(shared={"m_schedule": jnp.float32(schedule_after([1] * (turn - 1)))})
        moved[turn] = alone.update({"w": jnp.ones(())}, start, {"w": jnp.ones(())})[0]["w"]
    assert float(updates["b_weight"]) == pytest.approx(float(moved[2]), rel=1e-6)
    assert float(updates["a_weight"]) == pytest.approx(float(moved[4]), rel=1e-6)


def test_a_fixed_gamma_was_updated_as_often_as_the_beta_after_it():
    ones = {name: jnp.ones(()) for name in ("a_weight", "b_beta", "c_weight")}
    named, unnamed = ["a_weight", "b_gamma", "b_beta", "c_weight"], ["c_weight", "b_beta", "a_weight"]
    # a name that no order has comes last, and as often as the one before it
    for order, counts in ((named, [6, 2, 2, 3]), (unnamed, [3, 2, 6, 6])):
        fixed = optim.nadam(0.1, schedule_decay=5.0, order=order, fixed=["b_gamma"])
        state = fixed.init(ones)._replace(count=jnp.array([5, 1, 2], jnp.int32))
        _, state = fixed.update(ones, state, ones)
        assert float(state.shared["m_schedule"]) == pytest.approx(schedule_after(counts, 5.0), rel=1e-5)


def test_a_user_optimizer_class_receives_fixed_gammas_and_cannot_change_them():
    close(own_rule(mx), GOLDEN["own"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nadam_store", "lbsgd"])
def test_a_training_resumed_from_its_states_continues_bit_for_bit(name, tmp_path):
    case, path = CASES[name], str(tmp_path / "x.states")
    first = module_of(mx, case, first_values())
    for t in range(2):
        step(mx, first, t)
    first.save_optimizer_states(path)
    second = module_of(mx, case, params_of(first))
    second.set_params(*first.get_params())
    second.load_optimizer_states(path)
    assert second._optimizer.counts() == first._optimizer.counts()
    for t in range(2, STEPS):
        step(mx, first, t)
        step(mx, second, t)
    np.testing.assert_array_equal(raveled(params_of(second)), raveled(params_of(first)))


@pytest.mark.slow
def test_a_bucket_updates_only_its_own_fixed_gammas_with_their_own_counts():
    module = mx.mod.BucketingModule(lambda key: (two_norms(key), ("data",), ("softmax_label",)), default_bucket_key=2)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    module.init_optimizer(optimizer="nadam", optimizer_params={"learning_rate": 0.05, "schedule_decay": 2.0})
    counts, data = [], value(0, (4, 3))
    for key, updates in ((2, [1, 1, 1, 1]), (1, [2, 2]), (2, [3, 3, 2, 2])):
        given = {"provide_data": [("data", (4, 3))], "provide_label": [("softmax_label", (4,))], "bucket_key": key}
        module.forward(mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array([0, 1, 2, 0])], **given))
        module.backward()
        module.update()
        counts += updates
        assert module._curr_module._optimizer.m_schedule == pytest.approx(schedule_after(counts, 2.0), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("on_store", [False, True])
def test_a_parameter_with_grad_req_null_does_not_advance_the_shared_scalars_of_the_trainer(on_store):
    close(trainers(mx, on_store), GOLDEN[f"trainer_{on_store}"])
