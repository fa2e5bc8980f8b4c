"""BatchNorm's fix_gamma together with optimizers that have shared scalars, compared with recorded MXNet trainings."""

from pathlib import Path

import jax
import numpy as np
import pytest
from cases.fixed_gammas import (
    CASES,
    FIXED,
    ROWS,
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


def test_a_user_optimizer_class_receives_fixed_gammas_and_cannot_change_them():
    close(own_rule(mx), GOLDEN["own"])


@pytest.mark.slow
@pytest.mark.parametrize("on_store", [False, True])
def test_a_parameter_with_grad_req_null_does_not_advance_the_shared_scalars_of_the_trainer(on_store):
    close(trainers(mx, on_store), GOLDEN[f"trainer_{on_store}"])
