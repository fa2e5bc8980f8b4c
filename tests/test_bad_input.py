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


# ------------------------------------------------------------------------------------------------ names
def test_an_unknown_input_name_raises_with_the_nearest_name():
    fails(
        r"'dta' is not an input of the graph \(nearest: 'data'\).*'data', 'softmax_label'", data={"dta": X, "softmax_label": Y}
    )


def test_a_missing_label_is_named():
    fails(r"input 'softmax_label' is missing.*The graph needs 'data', 'softmax_label'", data={"data": X})
    fails(r"input .data. has 20 rows, input .softmax_label. has 2; all inputs need the same number of rows", data=(X, [Y, Y]))


def test_missing_and_extra_arrays_raise_with_both_numbers():
    two = sym.FullyConnected(sym.Variable("a_data") + sym.Variable("b_data"), num_hidden=3, name="fc")
    two = sym.SoftmaxOutput(two, name="softmax")
    fails(r"x has 1 array, the graph has 2 data inputs \('a_data', 'b_data'\)", net=two, data=(X, Y))


# ------------------------------------------------------------------------------------------------ shapes and dtypes
def test_a_shape_mismatch_raises_with_the_node_and_both_shapes():
    conv = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=2, name="conv1")
    net = sym.SoftmaxOutput(sym.Flatten(conv), name="softmax")
    message = fails("conv1", net=net)
    assert "(8, 4)" in message


def test_a_parameter_of_another_shape_raises_with_its_name():
    fails(r"params\['fc1_weight'\] has shape \(8, 5\), but the model needs \(8, 4\)", params={"fc1_weight": np.ones((8, 5))})
    fails(r"params has 'fc1_wieght', which the model does not have; did you mean .*fc1_weight", params={"fc1_wieght": X})


def test_labels_of_another_shape_raise_before_training():
    message = fails("softmax", data=(X, np.zeros((20, 5), np.float32)))
    assert "5" in message


def test_arrays_with_different_numbers_of_rows_raise():
    fails(r"input 'data' has 20 rows, input 'softmax_label' has 19", data=(X, Y[:19]))
    fails(r"weight has shape \(3,\), the data has 20 rows", data=(X, Y, np.ones(3)))


def test_arrays_of_objects_and_strings_raise_with_their_name():
    fails(r"input 'data' has dtype object", data=(np.array([[object()] * 4] * 20), Y))
    fails(r"input 'softmax_label' has dtype <U", data=(X, np.array(["cat"] * 20)))


def test_integer_inputs_are_cast_where_floats_are_needed():
    run = train(data=((X * 10).astype(np.int64), Y.astype(np.int64)), num_epoch=1, optimizer_params={"learning_rate": 1e-3})
    assert np.isfinite(run.history.column("loss")).all()


# ------------------------------------------------------------------------------------------------ labels
def test_an_out_of_range_label_raises_with_its_row():
    wrong = Y.copy()
    wrong[7] = 3
    fails(r"label 'softmax_label': row 7 is 3.0, expected classes 0..2", data=(X, wrong))
    wrong[7] = -1
    fails(r"row 7 is -1.0", data=(X, wrong))
    wrong[7] = np.nan
    fails(r"row 7 is nan", data=(X, wrong))


def test_an_invalid_label_in_evaluation_data_raises_before_training():
    wrong = np.full(20, 9.0, np.float32)
    fails(r"label 'softmax_label': row 0 is 9.0, expected classes 0..2", eval_data=(X, wrong))


def test_an_invalid_label_in_the_first_batch_of_a_stream_raises_before_training():
    fails(r"label 'softmax_label': row 2 is 7, expected", data=[(X[:4], np.array([0, 1, 7, 0]))])
    fails(r"label 'softmax_label': row 2 is 7, expected", eval_data=[(X[:4], np.array([0, 1, 7, 0]))])


# ------------------------------------------------------------------------------------------------ how much data
def test_empty_data_raises():
    fails("empty data: input 'data' has 0 rows", data=(X[:0], Y[:0]))
    fails("yielded no batch, expected at least one", data=lambda epoch: [])
    fails("empty data|yielded no batch", eval_data=(X[:0], Y[:0]))


def test_a_batch_larger_than_the_data_works():
    run = train(data=(X, Y), batch_size=64, num_epoch=3)
    assert run.position["step"] == 3
    exact = train(data=(X, Y), batch_size=20, num_epoch=3)
    for name, value in exact.params.items():
        np.testing.assert_allclose(run.params[name], value, rtol=1e-5, atol=1e-6)


def test_an_evaluation_batch_of_another_size_works():
    run = train(eval_data=(X, Y), eval_batch_size=7, num_epoch=1)
    assert run.history.column("val_loss")[0] == pytest.approx(run.score((X, Y), batch_size=20)["loss"], rel=1e-5)


# ------------------------------------------------------------------------------------------------ names of things
def test_unknown_names_raise_with_the_nearest_names():
    fails(r"amad.*adam", optimizer="amad")
    fails(r"acuracy.*accuracy", eval_metric="acuracy")
    fails(r"cosin.*cosine", schedule="cosin")
    fails(r"frozen='fc9\*' matches no parameter", frozen=["fc9*"])
    with pytest.raises((AttributeError, ValueError), match=r"FullyConected.*FullyConnected"):
        sym.FullyConected(sym.Variable("data"), num_hidden=2)
    with pytest.raises(ValueError, match=r"num_hiden.*num_hidden"):
        sym.FullyConnected(sym.Variable("data"), num_hiden=2)


def test_unknown_optimizer_parameters_raise_with_their_name():
    fails(r"momentun", optimizer_params={"momentun": 0.9})


def test_too_many_devices_raise_and_the_error_explains_emulation():
    fails(r"devices=64 is not available: this machine has 8 cpu devices.*xla_force_host_platform_device_count=64", devices=64)


# ------------------------------------------------------------------------------------------------ kinds of things
@pytest.mark.parametrize(
    "given",
    [{"batch_size": 0}, {"batch_size": 2.5}, {"batch_size": True}, {"num_epoch": -1}, {"num_epoch": 0}, {"micro_batches": 0}]
    + [{"eval_batch_size": 0}],
    ids=str,
)
def test_invalid_numbers_raise_with_the_argument(given):
    (name, value) = next(iter(given.items()))
    fails(rf"{name} is {value!r}; expected an integer of at least 1", **given)


def test_a_batch_of_more_rows_than_are_numbered_raises():
    for name in ("batch_size", "eval_batch_size", "micro_batches"):
        fails(rf"{name} is {10**18}; expected at most 2147483647", **{name: 10**18})


@pytest.mark.parametrize("value", ["a", None, 1.5, True, 2**70])
def test_a_seed_that_is_no_integer_raises(value):
    fails(rf"seed is {value!r}; expected an integer", seed=value)


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


def test_something_must_be_left_to_train():
    fails(r"frozen=\['\*'\] leaves no parameter to train; leave out at least one of \['fc1_weight'", frozen=["*"])


@pytest.mark.parametrize("value", ["x", 0, 1.5, True])
def test_steps_per_call_must_be_auto_or_a_positive_integer(value):
    fails(r'steps_per_call is .*; expected "auto" or an integer of at least 1', steps_per_call=value)


def test_invalid_models_raise():
    fails("model is 3; expected a Symbol, a jfit.Model, .*or a pure function", TypeError, net=3)
    fails("a function as model needs loss=", TypeError, net=lambda params, x: x)


def test_a_graph_without_a_loss_raises():
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")
    fails(r"none of the outputs \['fc_output'\] is a loss head", net=net, data={"data": X})


def test_a_metric_on_the_host_needs_whole_batches():
    def bias(label, output):
        return float(output.mean())

    fails(r"metric 'bias' runs on the host.*micro_batches=2 they are not kept", eval_metric=bias, micro_batches=2)


def test_data_without_batches_raises():
    fails("data is 'abc'", TypeError, data="abc")
    fails(r"data has shape \(2,\), expected at least 2 axes", data=[(1.0, 2.0), (3.0, 4.0)])  # rows of one number


async def asynchronous_batches():
    yield X, Y


def test_data_of_a_type_that_is_not_read_says_what_to_do():
    fails(r"data is .*Path\('x.csv'\) .*; read the file first", TypeError, data=Path("x.csv"))
    fails(r"data is \{1, 2\} \(set\), .*; a set has no order, pass a list", TypeError, data={1, 2})
    fails("async_generator.*; write the generator with def instead of async def", TypeError, data=asynchronous_batches())


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
        ("bogus", "$"),
    ],
)
def test_unknown_arguments_are_named_with_what_fit_has_instead(name, text):
    fails(rf"^fit\(\) got an unexpected keyword argument '{name}'{text}", TypeError, **{name: 3})
    assert not {name, "unknown"} & set(inspect.signature(jfit.fit).parameters)


def test_a_name_in_resume_with_that_nothing_is_compared_by_raises_without_a_checkpoint_too():
    fails("resume_with has 'bogus'; expected 'any', or names of these: model, optimizer", resume_with="bogus")


def test_score_and_predict_do_not_ignore_a_batch_size_of_0():
    run = train(num_epoch=1)
    for call in (lambda: run.predict(X, batch_size=0), lambda: run.score((X, Y), batch_size=0)):
        with pytest.raises(ValueError, match="batch_size is 0; expected an integer of at least 1"):
            call()


def test_invalid_callbacks_raise():
    fails("callbacks: found 3 of type int", TypeError, callbacks=[3])
    fails("checkpointing: every is 'batch'", checkpoint="unused", checkpoint_every="batch")


def test_a_policy_that_is_not_a_dtype_raises():
    fails("policy is 'bfloat17'; expected a floating-point dtype", policy="bfloat17")


@pytest.mark.parametrize("policy", ["float16", jfit.Policy("half")])
def test_float16_needs_a_scaled_loss(policy):
    fails("policy is '(float16|half)', .* does not scale the loss; pass policy=\"bfloat16\"", policy=policy)


def test_resume_without_a_checkpoint_folder_raises():
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        train(resume=True)


# ------------------------------------------------------------------------------------------------ evaluation data
def test_evaluation_data_of_another_shape_names_the_node_before_training():
    message = fails("fc1", eval_data=(X[:, :3], Y))
    assert "data float32[8, 3], weight float32[8, 4]" in message


def test_errors_about_evaluation_data_mention_it():
    with pytest.raises(ValueError) as caught:
        train(eval_data=(X, np.full(20, 9.0, np.float32)))
    assert any("eval_data" in note for note in caught.value.__notes__)


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
