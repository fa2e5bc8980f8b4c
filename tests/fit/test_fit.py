"""`jfit.fit` end to end: accepted models and data, the returned Run, and bitwise reproducibility."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys

import jax
import numpy as np
import optax
import pytest
from fit_support import bits, blobs, mlp, same, train

import jfit
from jfit import counters
from jfit.feed.batches import fits_on_device
from jfit.prepare import FitOptions

sym = jfit.sym
X, Y = blobs()
EVAL = blobs(21, seed=1)


@pytest.fixture(scope="module")
def run() -> jfit.Run:
    """A trained run that tests only look at."""
    return train(eval_data=EVAL, num_epoch=3)


def linear(params, x):
    return x @ params["layer"]["w"] + params["layer"]["b"][None]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels.astype("int32"))


def start() -> dict[str, dict[str, np.ndarray]]:
    return {"layer": {"w": np.zeros((4, 3), np.float32), "b": np.zeros(3, np.float32)}}


# ------------------------------------------------------------------------------------------------ models
def test_a_symbol_and_its_lowered_model_train_alike():
    assert same(train(mlp()), train(jfit.lower(mlp())))


def test_a_function_model_accepts_initial_values_by_name():
    model = jfit.Model.from_function(linear, loss=cross_entropy, params=start())
    other = {"layer": {"w": np.full((4, 3), 0.5, np.float32)}}
    run = train(model, params=other, optimizer_params={"learning_rate": 0.0}, num_epoch=1)
    assert (np.asarray(run.params["layer"]["w"]) == 0.5).all() and not np.asarray(run.params["layer"]["b"]).any()


# ------------------------------------------------------------------------------------------------ data
def batches_of(size: int = 8):
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("handle", "steps"), [("pad", [7, 14]), ("discard", [6, 12]), ("roll_over", [6, 12])])
def test_mxnet_iterators_are_accepted(handle, steps):
    data = jfit.NDArrayIter(X, Y, batch_size=8, last_batch_handle=handle)
    run = train(data=data, eval_data=jfit.NDArrayIter(*EVAL, batch_size=8))
    assert run.history.column("step") == steps
    assert run.history.column("val_loss")[-1] == pytest.approx(run.score(EVAL)["loss"], rel=1e-5)  # wrapped rows do not count
    assert run.predict(jfit.NDArrayIter(*EVAL, batch_size=8)).shape[1:] == (3,)


# ------------------------------------------------------------------------------------------------ what a Run gives
def test_the_history_has_one_complete_row_per_epoch(run):
    wanted = ["epoch", "step", "time", "samples_per_second", "lr", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert [name for name in run.history.columns() if name != "compile_time"] == wanted  # of epochs that compiled programs
    assert run.history.column("epoch") == [0, 1, 2] and run.history.column("step") == [7, 14, 21]
    assert all(v > 0 for v in run.history.column("samples_per_second"))
    assert run.history.column("loss")[-1] < run.history.column("loss")[0]


def test_parameters_are_plain_dicts_of_arrays(run):
    assert type(run.params) is dict and type(run.aux) is dict
    assert sorted(run.params) == ["fc1_bias", "fc1_weight", "fc2_bias", "fc2_weight"]
    assert run.symbol is not None and run.base_lr == pytest.approx(0.1)
    assert run.position == {"epoch": 3, "batch": 0, "step": 21}


def test_score_is_that_of_the_outputs(run):
    outputs = run.predict(EVAL[0])
    labels = EVAL[1].astype(int)
    expected = -np.log(outputs[np.arange(21), labels]).mean()
    for size in (4, 8, 21, 64):
        found = run.score(EVAL, batch_size=size)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        assert found["accuracy"] == pytest.approx((outputs.argmax(1) == labels).mean())
    assert run.history.column("val_loss")[-1] == pytest.approx(expected, rel=1e-5)
    assert set(run.score(EVAL, "ce")) == set(run.score(EVAL, ["ce"])) == {"loss", "cross-entropy"}
    with pytest.raises(ValueError, match="unknown metric"):  # also after a list that is printed like it
        run.score(EVAL, "['ce']")


def test_predictions_keep_the_row_order_for_any_batch_size_and_form_of_data(run):
    whole = run.predict(X, batch_size=50)
    assert whole.shape == (50, 3) and isinstance(whole, np.ndarray)
    for data, size in ((X, 7), (X, 64), ((X, Y), 8), ({"data": X}, 8), ({"data": X, "softmax_label": Y}, 8), (batches_of(), 8)):
        np.testing.assert_allclose(run.predict(data, batch_size=size), whole, rtol=1e-5, atol=1e-6)


def test_several_outputs_come_as_a_tuple():
    body = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    net = sym.Group([sym.SoftmaxOutput(body, name="softmax"), sym.BlockGrad(body, name="body")])
    run = train(net, num_epoch=1)
    outputs = run.predict(X, batch_size=12)
    assert [o.shape for o in outputs] == [(50, 4), (50, 4)]
    np.testing.assert_allclose(
        outputs[1], X @ np.asarray(run.params["fc_weight"]).T + np.asarray(run.params["fc_bias"]), rtol=1e-4, atol=1e-5
    )


def test_continuing_a_run_equals_a_longer_run(run):
    assert same(train(eval_data=EVAL, num_epoch=1).train(2), run)


def test_a_saved_run_predicts_the_same(run, tmp_path):
    run.save(tmp_path / "kept")
    again = jfit.Run.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.predict(X), run.predict(X))
    assert again.history == run.history and again.position == run.position
    assert again.score(EVAL) == pytest.approx(run.score(EVAL))


def test_a_run_is_not_pickled_but_saved(run):
    for call in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"a Run cannot be pickled .*; use run.save\(folder\)"):
            call(run)
    assert copy.copy(run).history is run.history


def test_a_saved_function_needs_its_model_again(tmp_path):
    run = train(linear, params=start(), loss=cross_entropy, num_epoch=1)
    run.save(tmp_path)
    with pytest.raises(ValueError, match="has no graph: the model of the run was a function; pass the model as model="):
        jfit.Run.load(tmp_path)
    np.testing.assert_array_equal(jfit.Run.load(tmp_path, run.model).predict(X), run.predict(X))


def test_a_checkpoint_without_a_graph_loads_with_a_model_or_raises(run, tmp_path):
    jfit.checkpoint.save(tmp_path, run.snapshot())
    with pytest.raises(ValueError, match=r"has no graph: .* wrote it without meta=run.meta\(\); pass the model as model="):
        jfit.Run.load(tmp_path)
    again = jfit.Run.load(tmp_path, run.model)
    np.testing.assert_array_equal(again.predict(X), run.predict(X))
    assert len(again.history) == 0 and again.position == {"epoch": 0, "batch": 0, "step": int(run.state.step)}
    with pytest.raises(ValueError, match=r"has no 'position', 'history', 'callbacks', .* without meta=run.meta"):
        train(num_epoch=4, resume=tmp_path)
    jfit.checkpoint.save(tmp_path / "other", {"w": np.ones(3)}, step=7)
    with pytest.raises(ValueError, match=r"has no parameters: found arrays \['w'\], expected names such as 'params/...'"):
        jfit.Run.load(tmp_path / "other", run.model)


def test_a_run_has_a_readable_repr(run, tmp_path):
    assert repr(run).startswith("<Run: 3 epochs, 67 parameters, loss ")
    assert "val_accuracy" in repr(run)
    page = run._repr_html_()
    assert "<table>" in page and "Run of 3 epochs" in page
    pytest.importorskip("matplotlib")
    run.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_progress_prints_a_table_on_request(capsys):
    train(num_epoch=2, progress=True)
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    (header,) = (i for i, line in enumerate(lines) if line.startswith("epoch") and "accuracy" in line and "|" not in line)
    assert "samples/s" in lines[header]
    assert {line.split()[0] for line in lines[header + 1 :] if line.strip() and "|" not in line} == {"0", "1"}
    train(num_epoch=1, progress="auto")
    assert capsys.readouterr().out == ""


# ------------------------------------------------------------------------------------------------ determinism
def test_a_seed_fixes_every_bit_and_another_seed_changes_them():
    net = mlp(dropout=0.5)
    assert same(train(net, seed=3), train(net, seed=3))
    assert bits(train(net, seed=3).params) != bits(train(net, seed=4).params)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_functions_with_row_ids_drop_the_same_values_in_micro_batches(devices):
    def dropped(params, x, *, key=None, row_ids):
        if key is not None:
            x = jax.vmap(lambda i, row: row * jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, row.shape))(row_ids, x)
        return linear(params, x)

    whole, parts = (
        train(dropped, params=start(), loss=cross_entropy, devices=devices, micro_batches=count) for count in (1, 4)
    )
    np.testing.assert_allclose(parts.params["layer"]["w"], whole.params["layer"]["w"], rtol=1e-4, atol=1e-6)


def test_initializers_and_initial_values_reach_the_parameters():
    run = train(initializer="zeros", num_epoch=1, optimizer_params={"learning_rate": 0.0})
    assert not any(np.asarray(v).any() for v in run.params.values())
    given = {"fc2_bias": np.array([1.0, 2.0, 3.0])}
    run = train(params=given, num_epoch=1, optimizer_params={"learning_rate": 0.0})
    assert np.asarray(run.params["fc2_bias"]).tolist() == [1.0, 2.0, 3.0]


def test_multipliers_on_variables_reach_the_optimizer():
    def net(**attrs):
        weight = sym.Variable("fc_weight", **attrs)
        return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), weight, num_hidden=3, name="fc"), name="softmax")

    given = {"num_epoch": 1, "batch_size": 50, "optimizer_params": {"learning_rate": 0.1, "wd": 0.1}}
    start = np.asarray(train(net(), **(given | {"optimizer_params": {"learning_rate": 0.0}})).params["fc_weight"])
    plain = np.asarray(train(net(), **given).params["fc_weight"]) - start
    slow = np.asarray(train(net(lr_mult=0.5), **given).params["fc_weight"]) - start
    np.testing.assert_allclose(slow, plain / 2, rtol=1e-3, atol=1e-6)
    bare = np.asarray(train(net(wd_mult=0.0), **given).params["fc_weight"]) - start
    np.testing.assert_allclose(bare - plain, 0.1 * 0.1 * start, rtol=1e-3, atol=1e-6)


# ------------------------------------------------------------------------------------------------ evaluation
def test_data_that_exceeds_the_free_device_memory_is_streamed():
    data = jfit.data.ArrayData({"data": X})
    devices = jax.devices()[:1]
    assert fits_on_device(data, devices) and not fits_on_device(data, devices, resident=1 << 60)
    assert not fits_on_device(batches_of(), devices)


def test_evaluation_needs_one_read_per_epoch():
    marks: list[int] = []
    mark = jfit.callbacks.lambda_callback(epoch_end=lambda event: marks.append(counters.COUNTS["host_syncs"]))
    train(num_epoch=4, eval_data=blobs(200), callbacks=[mark])
    assert np.diff(marks).tolist() == [2, 2, 2]  # the epoch's totals, the evaluation's


@pytest.mark.parametrize("names", ["ce", ["acc", "ce"], ("acc", "ce")], ids=["name", "list", "tuple"])
def test_scoring_by_the_same_names_again_compiles_nothing(run, names):
    first = run.score(EVAL, names)
    with counters.counted() as seen:
        assert run.score(EVAL, names) == first
    assert dict(seen) == {"host_syncs": 1}


def test_options_are_the_arguments_of_fit_and_those_that_lr_find_and_cost_share_with_it():
    """With the same defaults: no argument exists in one of them and is forgotten in another."""
    arguments = {name: p.default for name, p in list(inspect.signature(jfit.fit).parameters.items())[3:]}
    options = {field.name: field.default for field in dataclasses.fields(FitOptions)}
    assert options == arguments
    for tool, count in ((jfit.lr_find, 26), (jfit.cost, 24)):
        shared = {name: p.default for name, p in inspect.signature(tool).parameters.items() if name in options}
        others = sys.modules[tool.__module__]._SHARED
        assert len(shared) + len(others) == count and {*others} <= {*options}
        assert shared.items() <= (options | {"batch_size": shared["batch_size"]}).items()
