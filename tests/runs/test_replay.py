"""Run.replay and jfit.replay: a step of a run, node by node, and the first node that is not finite."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit.loop.nonfinite import NonFiniteLoss
from jfit.loop.replayed import NodeValues, find_first_bad

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")


def net(hidden=lambda h: jfit.sym.relu(h, name="relu"), no_bias=False):
    data = jfit.sym.Variable("data")
    h = hidden(jfit.sym.FullyConnected(data, num_hidden=3, no_bias=no_bias, name="fc1"))
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(h, num_hidden=2, name="fc2"), name="softmax")


def fit(model=None, x=X, y=Y, **options):
    defaults = {
        "batch_size": 8,
        "progress": False,
        "shuffle": False,
        "num_epoch": 2,
        "optimizer_params": {"learning_rate": 0.5},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteLoss)
        return jfit.fit(net() if model is None else model, (x, y), **{**defaults, **options})


@functools.cache
def trained(folder):
    """A run with checkpoints, and its states before steps 1 to 9."""
    states = {}

    def record(event):
        states[event.step] = event.run.snapshot()

    every = jfit.callbacks.Callback(on=lambda event, _: record(event), events=("step",), every=1, name="record")
    return fit(checkpoint=folder, checkpoint_every=4, callbacks=[every]), states


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("runs"))


def by_hand(params, x, y):
    """Arrays and gradients of the mean loss of `net`, by NumPy."""
    w1, b1, w2, b2 = (params[k].astype(np.float64) for k in ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"))
    fc1 = x @ w1.T + b1
    relu = np.maximum(fc1, 0)
    fc2 = relu @ w2.T + b2
    softmax = np.exp(fc2) / np.exp(fc2).sum(1, keepdims=True)
    g2 = (softmax - np.eye(2)[y.astype(int)]) / len(x)
    g1 = (g2 @ w2) * (fc1 > 0)
    arrays = {"data": x, "fc1": fc1, "relu": relu, "fc2": fc2, "softmax": softmax}
    gradients = {"fc1_weight": g1.T @ x, "fc1_bias": g1.sum(0), "fc2_weight": g2.T @ relu, "fc2_bias": g2.sum(0)}
    return arrays, gradients, {"fc2": g2, "relu": g2 @ w2, "fc1": g1}


def test_values_gradients_and_updates_are_those_of_numpy(folder):
    run, states = trained(folder)
    before = run.snapshot()
    replay = run.replay(7)  # from the checkpoint of step 4
    assert (replay.start, replay.epoch, replay.batch, replay.first_bad) == (4, 1, 2, None)
    arrays, gradients, of_nodes = by_hand(states[7].params, X[16:24], Y[16:24])
    for name, array in arrays.items():
        node = replay[name]
        expected = [array.min(), array.max(), array.mean(), (array == 0).mean()]
        assert np.allclose([node.minimum, node.maximum, node.mean, node.zeros], expected, atol=1e-6), name
        assert (node.size, node.nonfinite, node.rows) == (array.size, 0, ())
    assert replay["relu"].inputs == ("fc1",) and replay["relu"].operator == "relu" and 0 < replay["relu"].zeros < 1
    for name, gradient in of_nodes.items():
        assert replay[name].gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-4), name
    assert {k: round(v, 6) for k, v in replay.gradients.items()} == pytest.approx(
        {k: np.linalg.norm(g) for k, g in gradients.items()}, rel=1e-4, abs=1e-6
    )
    rows = {p.name: p for p in replay.parameters}
    for name in gradients:
        old, new = (states[k].params[name].astype(np.float64) for k in (7, 8))
        # exact: the replayed steps have the bits of the run
        assert (rows[name].norm, rows[name].update_norm) == (np.linalg.norm(old), np.linalg.norm(new - old))
    assert replay.learning_rate == 0.5 and 0 < replay.updates["fc1_weight"] < 1
    losses = -np.log(arrays["softmax"][range(8), Y[16:24].astype(int)])
    assert np.isclose(replay.loss, losses.mean()) and np.isclose(replay["loss of softmax"].mean, losses.mean())
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(run.snapshot()), strict=True))


@pytest.mark.slow
def test_the_result_is_a_table_and_a_data_frame(folder):
    replay = trained(folder)[0].replay(4)
    text = str(replay)
    assert text.startswith("step 4 (epoch 0, batch 4): loss 0.") and "everything is finite" in text
    assert any(line.split()[:2] == ["relu", "relu"] for line in text.splitlines())
    pandas = pytest.importorskip("pandas")
    table = replay.to_pandas()
    assert isinstance(table, pandas.DataFrame) and table.loc["fc1", "maximum"] == replay["fc1"].maximum
    with pytest.raises(KeyError, match="step 4 has no node 'fc3'"):
        replay["fc3"]


def log_net():
    """The logarithm of |fc1|, which is 0 for rows of zeros."""
    return net(lambda h: jfit.sym.log(jfit.sym.abs(h, name="positive"), name="logarithm"), no_bias=True)


@pytest.mark.slow
def test_a_log_of_zero_is_named_with_its_rows_and_inputs():
    x = X + 3
    x[[18, 21]] = 0
    run = fit(log_net(), x, nan="stop", shuffle=True)
    assert run.stop_reason is not None
    step = int(run.stop_reason.split()[1])
    bad = run.replay(step).first_bad
    assert bad is not None and (bad.what, bad.node.name, bad.node.operator) == ("forward", "logarithm", "log")
    assert (bad.node.infinities, bad.node.nans) == (3 * len(bad.data_rows), 0) and set(bad.data_rows) <= {18, 21}
    (given,) = bad.inputs
    assert given.name == "positive" and given.minimum == 0 and given.nonfinite == 0
    assert f"of the batch (row{'s' * (len(bad.data_rows) > 1)} {', '.join(map(str, bad.data_rows))}" in str(bad)


def test_steps_that_the_run_has_not_reached_raise_a_sentence():
    run = fit(num_epoch=1)  # 5 steps
    assert run.replay(5).epoch == 1
    for step in (6, 10**9, 10**30):
        with pytest.raises(ValueError, match=f"step is {step}, but the run has done 5; pass a number from 0 to 5"):
            run.replay(step)
    with pytest.raises(ValueError, match=r"step is 1000000000, but training ends after 20 steps \(5 per epoch\)"):
        jfit.replay(None, (X, Y), net(), step=10**9, batch_size=8, num_epoch=4)


@pytest.mark.slow
def test_jfit_replay_needs_only_the_folder_or_trains_from_the_start(folder):
    run, _ = trained(folder)
    expected = run.replay(7)
    from_folder = jfit.replay(folder, (X, Y), step=7)
    assert (from_folder.start, from_folder.loss) == (4, expected.loss) and from_folder.nodes == expected.nodes
    options = {"batch_size": 8, "shuffle": False, "optimizer_params": {"learning_rate": 0.5}}
    expected_3 = jfit.replay(None, (X, Y), net(), step=3, **options).loss
    from_start = jfit.replay(None, (X, Y), net(), step=7, **options)
    assert (from_start.start, from_start.loss) == (0, expected.loss) and from_start.parameters == expected.parameters
    batches = iter([(X[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)])
    assert jfit.replay(None, batches, net(), step=3, optimizer_params={"learning_rate": 0.5}).loss == expected_3
    with pytest.raises(
        FileNotFoundError, match="no checkpoint at or before step 3; its steps are: 4, 8, 10"
    ):
        jfit.replay(folder, (X, Y), step=3)
    with pytest.raises(ValueError, match="no state before step 3 was kept"):
        run.replay(3)


@pytest.mark.slow
def test_a_division_by_zero_in_a_function_is_named_with_its_line():
    x = X.copy()
    x[18] = 0

    def apply(params, x):
        hidden = x @ params["w"]
        scaled = hidden / jnp.sum(jnp.abs(x), axis=1, keepdims=True)
        return jax.nn.relu(scaled)

    options = {"batch_size": 8, "shuffle": False, "loss": "cross_entropy", "params": {"w": jnp.ones((4, 2))}}
    replay = jfit.replay(None, (x, Y.astype(int)), apply, step=2, **options)
    bad = replay.first_bad
    assert bad is not None and bad.node.operator == "div" and bad.node.nans == 2
    assert bad.node.rows == (2,) and bad.data_rows == (18,)
    line = "scaled = hidden / jnp.sum(jnp.abs(x), axis=1, keepdims=True)"
    assert bad.node.source.startswith("test_replay.py:") and bad.node.source.endswith(f"apply: {line}")
    assert [node.operator for node in bad.inputs] == ["dot_general", "reduce_sum"] and bad.inputs[1].minimum == 0
    assert replay["relu"].inputs == ("div",)


@pytest.mark.slow
def test_rows_are_those_of_the_whole_batch_on_devices_and_in_micro_batches():
    x = X + 3
    x[[18, 22]] = 0
    options = {"batch_size": 8, "shuffle": False, "devices": 2, "micro_batches": 2}
    replay = jfit.replay(None, (x, Y), log_net(), step=2, **options)
    bad = replay.first_bad
    assert bad is not None and (bad.node.name, bad.node.rows, bad.data_rows) == ("logarithm", (2, 6), (18, 22))
    assert (bad.node.size, bad.node.infinities, replay["positive"].zeros) == (24, 6, 0.25)


@pytest.mark.slow
def test_padding_rows_are_not_in_the_statistics():
    run = fit(net(), X[:3], Y[:3], devices=2, num_epoch=1)  # 3 rows, padded to 8
    replay, params = run.replay(1), run.snapshot().params
    arrays, gradients, _ = by_hand(params, X[:3], Y[:3])
    assert replay["data"].size == 12 and replay["data"].mean == pytest.approx(X[:3].mean())
    assert all(replay[name].mean == pytest.approx(array.mean(), abs=1e-6) for name, array in arrays.items())
    assert replay.gradients == pytest.approx({k: np.linalg.norm(g) for k, g in gradients.items()}, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_a_module_is_shown_with_its_layers_and_the_lines_of_the_user():
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            h = linen.Dense(3)(x)
            h = jnp.sqrt(linen.relu(h) * 0)
            return linen.Dense(2)(h)

    options = {"step": 0, "batch_size": 8, "shuffle": False, "loss": "cross_entropy"}
    replay = jfit.replay(None, (X, Y.astype(int)), Net(), **options)
    bad = replay.first_bad
    assert bad is not None and (bad.what, bad.node.operator, bad.node.nonfinite) == ("backward", "sqrt", 0)
    assert bad.node.source.endswith("h = jnp.sqrt(linen.relu(h) * 0)") and np.isfinite(replay.loss)
    assert replay["Net/Dense_0/dot_general"].source.endswith("h = linen.Dense(3)(x)")
    assert "the backward pass of node 'Net/sqrt' (sqrt) is the first that is not finite" in str(replay)


@pytest.mark.slow
def test_an_update_that_overflows_is_named_by_its_parameter():
    data = jfit.sym.Variable("data")
    model = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(data, num_hidden=2, name="fc"), name="softmax")
    run = functools.partial(jfit.replay, None, (X * 1e20, Y), model, batch_size=8, shuffle=False)
    first, second = (run(step=k, optimizer_params={"learning_rate": 1e30}).first_bad for k in (0, 1))
    assert first is not None and (first.what, first.node.name) == ("update", "fc_weight")
    assert str(first).startswith("the update of parameter 'fc_weight' is not finite: 8 of 8 values; before it, the norm is ")
    assert second is not None and str(second).endswith("of 8 values; an earlier step made it so")


def values(name, *inputs, kind="node", nans=0, infinities=0, gradient=0):
    return NodeValues(name, name, kind, inputs, nans=nans, infinities=infinities, size=8, gradient_nonfinite=gradient)


def test_infinities_of_a_mask_and_values_that_were_not_chosen_are_not_the_first_bad_node():
    nodes = [
        values("x", kind="input"),
        values("-inf", kind="constant", infinities=1),
        values("unused", "x", nans=8),  # jnp.where chose the other branch
        values("chosen", "unused", "x"),
        values("masked", "chosen", "-inf", infinities=4),
        values("softmax", "masked"),
        values("log", "softmax", infinities=2),
        values("product", "log", "masked", nans=2),
        values("loss", "product", kind="loss", nans=2),
    ]
    bad = find_first_bad(nodes, [])
    assert bad is not None and bad.node.name == "log" and [node.name for node in bad.inputs] == ["softmax"]
    assert find_first_bad(nodes[:6], []) is None  # the loss is finite
    only_mask = [*nodes[:5], values("softmax", "masked", nans=8), values("loss", "softmax", kind="loss", nans=8)]
    bad = find_first_bad(only_mask, [])
    assert bad is not None and bad.node.name == "softmax"  # all positions are masked
