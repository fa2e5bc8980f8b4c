"""Losses that are not finite: the policies of fit(nan=), the cause in the message, checkpoints that are kept."""

import re
import warnings

import numpy as np
import pytest

import jfit
from jfit.loop.nonfinite import NonFiniteLoss

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")
BAD = X.copy()
BAD[19, 2] = np.nan  # in batch 2 of 5


def net():
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")


def train(x=BAD, **options):
    defaults = {"steps_per_call": 1, "progress": False, "shuffle": False, "num_epoch": 2, "optimizer": "adam"}
    return jfit.fit(net(), (x, Y), batch_size=8, **{**defaults, **options})


def params(run):
    return {k: np.asarray(v) for k, v in run.snapshot().params.items()}


def same(one, other):
    return all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.slow
def test_skip_leaves_the_state_unchanged_in_the_bad_step_and_names_the_input():
    with pytest.warns(NonFiniteLoss) as caught:
        run = train(nan="skip", num_epoch=1)
    message = str(caught[0].message)
    assert re.match(r"step 2 \(epoch 0\) changed nothing, .*: input 'data' of batch 2 is not, in row 3 of the batch", message)
    # the same steps by hand, without the bad one
    model, batch = jfit.lower(net()), lambda i: {"data": X[8 * i : 8 * i + 8], "softmax_label": Y[8 * i : 8 * i + 8]}
    step = jfit.train_step(model, "adam")
    state = jfit.init_state(model, "adam", batch(0), initializer=None)
    for i in (0, 1, 3, 4):
        state, _ = step(state._replace(step=np.int32(i)), batch(i))
    assert all(np.allclose(v, params(run)[k], atol=1e-6) for k, v in state.params.items())
    assert int(run.state.step) == 5 and int(run.state.opt_state.count) == 4
    assert np.isfinite(run.history.epochs[0]["loss"])


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("reduce", ["sharded", "sharded_parameters", "ordered", "2bit"])
def test_skip_works_with_every_rule_of_reduction(reduce):
    with pytest.warns(NonFiniteLoss):
        run = train(nan="skip", num_epoch=1, devices=2, reduce=reduce)
    assert all(np.isfinite(v).all() for v in params(run).values()) and np.isfinite(run.score((X, Y))["loss"])


def test_skip_of_finite_steps_gives_the_same_bits():
    assert same(params(train(X, nan="skip")), params(train(X)))


def test_stop_returns_the_state_at_the_start_of_the_epoch():
    with pytest.warns(NonFiniteLoss, match="training stops, and the state is that of step 0 again"):
        run = train(nan="stop")
    assert run.stop_reason == "step 2 is not finite" and run.position == {"epoch": 0, "batch": 0, "step": 0}
    assert all(np.isfinite(v).all() for v in params(run).values()) and not len(run.history)


def test_stop_returns_the_state_of_the_last_finite_checkpoint(tmp_path):
    with pytest.warns(NonFiniteLoss, match="the state is that of step 2 again"):
        run = train(nan="stop", checkpoint=tmp_path, checkpoint_every=1)
    assert run.position["step"] == int(run.state.step) == 2 and np.isfinite(run.score((X, Y))["loss"])


def test_rollback_continues_with_the_next_batches():
    with pytest.warns(NonFiniteLoss, match="the state is that of step . again, and training continues") as caught:
        run = train(nan="rollback")
    assert len(caught) == 2 and run.position == {"epoch": 2, "batch": 0, "step": 10} == {**run.position}
    assert all(np.isfinite(v).all() for v in params(run).values()) and int(run.state.step) == 10


def test_warn_trains_on_and_a_finite_checkpoint_is_kept(tmp_path):
    with pytest.warns(NonFiniteLoss, match="not finite since step 2"):
        train(num_epoch=2, checkpoint=tmp_path, checkpoint_every=1)
    steps = sorted(int(path.name[5:]) for path in tmp_path.glob("step-*"))
    assert steps == [2, 8, 9, 10]
    assert np.isfinite(jfit.checkpoint.load_arrays(tmp_path / "step-00000002")["params/fc_weight"]).all()
    # a resumed run leaves out those with nan
    with pytest.warns(UserWarning, match=r"step 10 in .* infinite values in 'params/.*; the run continues from step 2, the"):
        run = train(X, num_epoch=1, checkpoint=tmp_path, resume=True, resume_with="data")
    assert run.position["step"] == 5 and np.isfinite(params(run)["fc_weight"]).all()
    earlier = tmp_path / "earlier-1"
    assert sorted(path.name for path in earlier.glob("*")) == ["step-00000008", "step-00000009", "step-00000010"]
    with pytest.warns(NonFiniteLoss):
        assert train(resume=earlier / "step-00000009").position["step"] == 10
    with pytest.warns(NonFiniteLoss), pytest.warns(UserWarning, match="no other one in this folder is finite; the run contin"):
        train(num_epoch=3, resume=earlier)


def test_the_cause_is_a_gradient_if_the_inputs_are_finite():
    data, weight = jfit.sym.Variable("data"), jfit.sym.Variable("scale", shape=(1,))
    hidden = jfit.sym.broadcast_mul(jfit.sym.FullyConnected(data, num_hidden=2, name="fc"), jfit.sym.sqrt(weight))
    out = jfit.sym.SoftmaxOutput(hidden, name="softmax")
    with pytest.warns(NonFiniteLoss, match="the gradients of 'scale' are not"):
        start = {"scale": np.zeros(1, "float32")}
        jfit.fit(out, (X, Y), batch_size=8, num_epoch=1, nan="skip", params=start, progress=False)


def test_the_policy_is_one_of_four():
    with pytest.raises(ValueError, match="nan is 'ignore'; expected one of 'warn', 'stop', 'skip', 'rollback'"):
        train(nan="ignore")


def test_finite_losses_cost_no_wait_and_no_warning():
    train(X)
    with warnings.catch_warnings(), jfit.counters.counted() as plain:
        warnings.simplefilter("error")
        train(X)
    with jfit.counters.counted() as skipping:
        train(X, nan="skip")
    assert plain["host_syncs"] == skipping["host_syncs"]
