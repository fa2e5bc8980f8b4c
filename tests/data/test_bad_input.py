"""Invalid arguments of `jfit.fit` raise before training; the message names the argument, the actual value and the remedy."""

from __future__ import annotations

import inspect
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from fit_support import blobs, mlp, train

import jfit

sym = jfit.sym
X, Y = blobs(20)


def fails(match: str, kind: type[Exception] | tuple[type[Exception], ...] = ValueError, **given) -> str:
    """Training with `given` raises `kind` with such a message, and no step is done; the message."""
    before = jfit.last_run()
    with pytest.raises(kind, match=match) as caught:
        train(**given)
    assert jfit.last_run() is before, "training began"
    return str(caught.value)


NINES = np.full(20, 9.0, np.float32)
STREAM = [(X[:4], np.array([0, 1, 7, 0]))]
WORDS, OBJECTS = np.array(["cat"] * 20), np.array([[object()] * 4] * 20)
TWO_INPUTS = sym.FullyConnected(sym.Variable("a_data") + sym.Variable("b_data"), num_hidden=3, name="fc")
NO_LOSS = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")


def labels(value: float, row: int = 7) -> np.ndarray:
    changed = Y.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    ("given", "match"),
    [
        # data
        ({"data": {"dta": X, "softmax_label": Y}}, r"'dta' is not an input of the graph \(nearest: 'data'\).*'softmax_label'"),
        ({"data": {"data": X}}, r"input 'softmax_label' is missing.*The graph needs 'data', 'softmax_label'"),
        (
            {"net": sym.SoftmaxOutput(TWO_INPUTS, name="softmax")},
            r"x has 1 array, the graph has 2 data inputs",
        ),
        ({"data": (X, Y[:19])}, r"input 'data' has 20 rows, input 'softmax_label' has 19; all inputs need the same number"),
        ({"data": (X, Y, np.ones(3))}, r"weight has shape \(3,\), the data has 20 rows"),
        ({"data": (OBJECTS, Y)}, r"input 'data' has dtype object"),
        ({"data": (X, WORDS)}, r"input 'softmax_label' has dtype <U"),
        ({"data": (X[:0], Y[:0])}, "empty data: input 'data' has 0 rows"),
        ({"data": lambda epoch: []}, "yielded no batch, expected at least one"),
        ({"eval_data": (X[:0], Y[:0])}, "empty data|yielded no batch"),
        ({"data": "abc"}, "data is 'abc'"),
        ({"data": [(1.0, 2.0), (3.0, 4.0)]}, "label .softmax_label.: row 1 is 4.0, expected classes"),  # not (X, Y)
        ({"data": Path("x.csv")}, r"data is .*Path\('x.csv'\) .*; read a file first"),
        # labels
        ({"data": (X, labels(3))}, r"label 'softmax_label': row 7 is 3.0, expected classes 0..2"),
        ({"eval_data": (X, NINES)}, r"label 'softmax_label': row 0 is 9.0, expected classes 0..2"),
        ({"data": STREAM}, r"label 'softmax_label': row 2 is 7, expected"),
        ({"eval_data": STREAM}, r"label 'softmax_label': row 2 is 7, expected"),
        # parameters and model
        (
            {"params": {"fc1_weight": np.ones((8, 5))}},
            r"params\['fc1_weight'\] has shape \(8, 5\), but the model",
        ),
        ({"params": {"fc1_wieght": X}}, r"params has 'fc1_wieght', which the model does not have; did you mean .*fc1_weight"),
        ({"frozen": ["*"]}, r"frozen=\['\*'\] leaves no parameter to train; leave out at least one of \['fc1_weight'"),
        ({"net": 3}, "model is 3; expected a Symbol, a jfit.Model, .*or a pure function"),
        ({"net": lambda params, x: x}, "a function as model needs loss="),
        ({"net": NO_LOSS, "data": {"data": X}}, r"none of the outputs \['fc_output'\] is a loss head"),
        # options
        *[
            ({name: 0}, f"{name} is 0; expected an integer of at least 1")
            for name in ("num_epoch", "micro_batches", "eval_batch_size")
        ],
        *[({"batch_size": n}, f"batch_size is {n}; expected an integer of at least 1") for n in (0, 2.5, True)],
        *[({name: 10**18}, f"{name} is {10**18}; expected at most 2147483647") for name in ("batch_size", "micro_batches")],
        *[({"seed": n}, f"seed is {n!r}; expected an integer") for n in ("a", None, 1.5, True, 2**70)],
        *[
            ({"steps_per_call": n}, 'steps_per_call is .*; expected "auto" or an integer of at least 1')
            for n in ("x", 0, 1.5, True)
        ],
        ({"optimizer_params": {"momentun": 0.9}}, "momentun"),
        ({"policy": "bfloat17"}, "policy is 'bfloat17'; expected a floating-point dtype"),
        ({"policy": jfit.Policy("float16", -1.0)}, "loss_scale is -1.0; expected a number above 0"),
        ({"callbacks": [3]}, "callbacks: found 3 of type int"),
        ({"checkpoint": "unused", "checkpoint_every": "batch"}, "checkpointing: every is 'batch'"),
        ({"resume_with": "bogus"}, "resume_with has 'bogus'; expected 'any', or names of these: model, optimizer"),
    ],
)
def test_what_is_wrong_is_named_before_training(given, match):
    fails(match, (ValueError, TypeError), **given)


# ------------------------------------------------------------------------------------------------ shapes and dtypes
def test_a_shape_mismatch_raises_with_the_node_and_both_shapes():
    conv = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=2, name="conv1")
    net = sym.SoftmaxOutput(sym.Flatten(conv), name="softmax")
    message = fails("conv1", net=net)
    assert "(8, 4)" in message


def test_integer_inputs_are_cast_where_floats_are_needed():
    run = train(data=((X * 10).astype(np.int64), Y.astype(np.int64)), num_epoch=1, optimizer_params={"learning_rate": 1e-3})
    assert np.isfinite(run.history.column("loss")).all()


# ------------------------------------------------------------------------------------------------ names of things
def test_unknown_names_raise_with_the_nearest_names():
    fails(r"amad.*adam", optimizer="amad")
    fails(r"acuracy.*accuracy", eval_metric="acuracy")
    fails(r"cosin.*cosine", schedule="cosin")
    fails(r"frozen='fc9\*' matches no parameter; the names are 'fc1_weight'", frozen=["fc9*"])
    with pytest.raises((AttributeError, ValueError), match=r"FullyConected.*FullyConnected"):
        sym.FullyConected(sym.Variable("data"), num_hidden=2)
    with pytest.raises(ValueError, match=r"num_hiden.*num_hidden"):
        sym.FullyConnected(sym.Variable("data"), num_hiden=2)


@pytest.mark.parametrize(
    "optimizer, numbers, text",
    [
        ("sgd", {"learning_rate": None}, "learning_rate is None; expected a finite number of at least 0"),
        ("sgd", {"learning_rate": True}, "learning_rate is True; expected a finite number"),
        ("sgd", {"learning_rate": 10**400}, r"learning_rate is 10+\.\.\.0+; expected a finite number"),
        ("sgd", {"learning_rate": 10**5000}, "learning_rate is an integer of 16610 bits; expected a finite number"),
        ("sgd", {"learning_rate": "0.1"}, "learning_rate is '0.1'; expected a finite number"),
        ("lion", {"learning_rate": -1.0}, "learning_rate is -1.0; expected a finite number"),
        ("lion", {"weight_decay": float("inf")}, "weight_decay is inf; expected a finite number"),
        ("sgd", {"wd": -0.1}, "wd is -0.1; expected a finite number of at least 0"),
        ("sgd", {"momentum": 1}, "momentum is 1; expected a number from 0 to below 1"),
        ("adam", {"beta1": -0.5}, "beta1 is -0.5; expected a number from 0 to below 1"),
        ("adam", {"epsilon": float("nan")}, "epsilon is nan; expected a finite number of at least 0"),
    ],
)
def test_numbers_with_which_no_optimizer_trains_raise(optimizer, numbers, text):
    fails(text, optimizer=optimizer, optimizer_params=numbers)


def test_a_rate_and_a_decay_of_0_are_allowed():
    start = np.ones((8, 4), np.float32)
    run = train(num_epoch=1, params={"fc1_weight": start}, optimizer_params={"learning_rate": 0, "wd": 0.0})
    np.testing.assert_array_equal(run.params["fc1_weight"], start)
    train(num_epoch=1, seed=jnp.int32(3), optimizer_params={"momentum": None})  # an array of one integer; no momentum


@pytest.mark.parametrize("value", [0, -1.0, True, float("nan"), float("inf"), "1"])
@pytest.mark.parametrize("name", ["clip_norm", "clip_value"])
def test_limits_of_gradients_must_be_above_0(name, value):
    fails(rf"{name} is {value!r}; expected a number above 0, or None for no limit", **{name: value})


@pytest.mark.parametrize(
    "x, y", [(X, Y), (X.tolist(), Y.tolist()), (pd.DataFrame(X), pd.Series(Y))], ids=["numpy", "list", "pandas"]
)
def test_labels_as_a_third_argument_are_recognized(x, y):
    fails(r"softmax_label.* pass them as a pair: fit\(model, \(x, y\)\)", data=x, eval_data=y)


@pytest.mark.parametrize(
    "name, text",
    [
        ("epochs", "; use num_epoch"),
        ("validation_data", "; use eval_data"),
        ("learning_rate", r"; use optimizer_params=\{'learning_rate': \.\.\.\}"),
        ("lr", r"; use optimizer_params=\{'learning_rate': \.\.\.\}"),
        ("batchsize", "; did you mean 'batch_size'"),
        ("xyz", "$"),
    ],
)
def test_unknown_arguments_are_named_with_what_fit_has_instead(name, text):
    fails(rf"^fit\(\) got an unexpected keyword argument '{name}'{text}", TypeError, **{name: 3})
    assert not {name, "unknown"} & set(inspect.signature(jfit.fit).parameters)


def test_score_and_predict_do_not_ignore_a_batch_size_of_0():
    run = train(num_epoch=1)
    for call in (lambda: run.predict(X, batch_size=0), lambda: run.score((X, Y), batch_size=0)):
        with pytest.raises(ValueError, match="batch_size is 0; expected an integer of at least 1"):
            call()


# ------------------------------------------------------------------------------------------------ evaluation data
def test_evaluation_data_of_another_shape_names_the_node_before_training():
    message = fails("fc1", eval_data=(X[:, :3], Y))
    assert "data float32[8, 3], weight float32[8, 4]" in message


def test_a_loaded_run_cannot_train(tmp_path):
    train(num_epoch=1).save(tmp_path)
    loaded = jfit.Run.load(tmp_path)
    with pytest.raises(ValueError, match="train: this run was loaded without training data"):
        loaded.train()
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        jfit.Run.load(tmp_path / "none")


# ------------------------------------------------------------------------------------------------ row weights
ONES = np.ones(20, np.float32)


def with_row(value: float, row: int = 3) -> np.ndarray:
    weight = ONES.copy()
    weight[row] = value
    return weight


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-1.0, r"-1\.0")])
def test_a_negative_or_non_finite_row_weight_raises(value, shown):
    bad, message = with_row(value), rf"^weight of row 3 is {shown}; row weights must be finite and at least 0"
    fails(message, data=(X, Y, bad))
    fails(message, data=jfit.Batch({"data": X, "softmax_label": Y}, bad))
    fails(message, data=(X, Y), eval_data=(X, Y, bad))


def test_a_bad_row_weight_in_a_stream_names_its_batch():
    halves = [slice(0, 10), slice(10, 20)]
    with pytest.raises(ValueError, match=r"^batch 1 of epoch 0: weight of row 3 is nan"):
        train(data=[(X[h], Y[h], with_row(np.nan, 13)[h]) for h in halves])
    batch = jfit.Batch({"data": X, "softmax_label": Y}, ONES, with_row(-1))
    fails(r"^batch 0 of epoch 0: metric_weight of row 3 is -1", data=[batch])


def test_a_train_step_in_a_custom_loop_raises_for_invalid_weights():
    step = jfit.data_parallel(jfit.train_step(jfit.lower(mlp())), 1)
    batch = {"data": X, "softmax_label": Y}
    with pytest.raises(ValueError, match="weight of row 3 is nan"):
        step(jfit.init_state(jfit.lower(mlp()), "sgd", batch), jfit.Batch(batch, with_row(np.nan)))
