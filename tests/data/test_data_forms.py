"""Data as people have it: DataFrames, rows instead of batches, extra columns, endless streams, class weights, memory maps."""

import functools
import itertools
import re
import tracemalloc
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from fit_support import Killed, dies
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from jfit.data import ArrayData, Rows
from jfit.data import arrays as arrays_module
from jfit.data import as_data as any_data
from jfit.data.arrays import block_permutation, permutation
from jfit.feed.batches import DeviceBatches
from jfit.lowering.function import from_function

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1].astype("float64"), "c": X[:, 2], "y": Y})
RATE = {"learning_rate": 0.5}
PARAMS = {"w": jnp.zeros((3, 2)), "b": jnp.zeros((1, 2))}


def as_data(source, **options) -> Any:
    return any_data(source, **{"batch_size": 4, **options})


def linear(params, x):
    return x @ params["w"] + params["b"]


fit = functools.partial(
    jfit.fit,
    linear,
    loss="cross_entropy",
    params=PARAMS,
    batch_size=8,
    num_epoch=2,
    eval_metric=None,
    progress=False,
    optimizer_params=RATE,
)


def same(one, two):
    return all((np.asarray(one.params[k]) == np.asarray(two.params[k])).all() for k in PARAMS)


@pytest.fixture(scope="module")
def trained():
    """The run on plain arrays, with which the other forms of the same data are compared bit for bit."""
    return fit((X, Y))


class LikePolars:
    """A DataFrame with only what pandas and polars have in common."""

    def __init__(self, frame):
        self.frame, self.columns, self.dtypes = frame, list(frame.columns), list(frame.dtypes)

    def __getitem__(self, name):
        return types.SimpleNamespace(to_numpy=self.frame[name].to_numpy, dtype=self.frame[name].dtype)

    def to_numpy(self):
        return self.frame.to_numpy()


def library(module, name, **methods):
    """A class of another library, which need not be installed: classes are recognized by their module and name."""
    return type(name, (), {"__module__": module, **methods})


TorchDataset = library("torch.utils.data.dataset", "Dataset")
TorchIterable = library("torch.utils.data.dataset", "IterableDataset")


class Pairs(TorchDataset):
    def __init__(self, x: Any = X, y: Any = Y):
        self.x, self.y, self.read = x, y, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.read.append(i)
        return self.x[i], self.y[i]


class HuggingFace(library("datasets.arrow_dataset", "Dataset")):
    def __init__(self, columns, kind=None):
        self.columns, self.format = columns, {"type": kind}

    column_names = property(lambda self: list(self.columns))

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def with_format(self, kind):
        return HuggingFace(self.columns, kind)

    def select_columns(self, names):
        return HuggingFace({n: self.columns[n] for n in names}, self.format["type"])

    def __getitem__(self, indices):
        pick = lambda v: v[indices] if self.format["type"] == "numpy" else v[indices].tolist()  # noqa: E731
        return {k: pick(v) for k, v in self.columns.items()}


# ----------------------------------------------------------------------------------------------------------- DataFrames


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("frame", [FRAME, LikePolars(FRAME), dict(FRAME), {"features": X, "y": Y}])
def test_columns_train_and_score_like_arrays(trained, frame):
    run = fit(frame, label="y")
    assert same(run, trained) and run.score(frame) == trained.score((X, Y))
    np.testing.assert_array_equal(run.predict(frame), trained.predict(X))


def test_a_run_remembers_its_columns_and_their_order(trained, caplog):
    run = fit(FRAME, label="y", eval_data=FRAME[::-1])
    assert run.history.columns()[-1] == "val_loss"
    shuffled = FRAME[["c", "a", "b"]].assign(note=1.0)
    np.testing.assert_array_equal(run.predict(shuffled), trained.predict(X))
    assert caplog.text.count("'note', which the model does not take") == 1
    with pytest.raises(ValueError, match="no column 'b', one of the 3 feature columns"):
        run.predict(FRAME[["a", "c"]])
    np.testing.assert_array_equal(jfit.predict(linear, FRAME, params=run.params, label="y"), run.predict(X))


def test_several_labels_and_several_inputs_are_columns():
    frame = as_data(FRAME, batch_size=4, input_names=["x"], label_names=["label"], label=["b", "y"])
    assert frame.arrays["label"].shape == (40, 2) and frame.arrays["x"].shape == (40, 2)
    each = as_data(FRAME, batch_size=4, input_names=["a", "b"], label_names=["l", "m"], label=["y", "c"])
    assert {k: v.shape for k, v in each.arrays.items()} == dict.fromkeys(["a", "b", "l", "m"], (40,))
    with pytest.raises(ValueError, match=r"no column 'q' .* of the inputs 'a', 'q'"):
        as_data(FRAME, batch_size=4, input_names=["a", "q"], label_names=["l"], label="y")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"s": ["u", "v"] * 20}, {}, "has no numbers; encode them"),
        ({"s": pd.Categorical([1, 2] * 20)}, {}, "column 's' (category) has no numbers; encode them"),
        ({"s": pd.array([1, None] * 20, "Int64")}, {}, "column 's' (Int64) has missing values"),
        ({"s": pd.Timestamp("2020")}, {}, "column 's' (datetime64"),
        ({"s": [1e300] * 40}, {}, "input 's' (float64) contains 1e+300, which is out of range of float32"),
        ({"y": ["u", "v"] * 20}, {}, "column 'y' ("),
        ({}, {"label": "Y"}, "the data has no column 'Y' (nearest: 'y'); pass that of the label as label="),
        ({}, {"label": None}, "the data has no column 'label'; pass that of the label as label=, one of 'a', 'b', 'c', 'y'"),
        ({}, {"sample_weight": np.ones(3)}, "weight has shape (3,), the data has 40 rows"),
    ],
)
def test_columns_that_cannot_be_used_raise_with_their_name(change, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(FRAME.assign(**change), **{"label": "y", **options})


def test_a_label_name_needs_data_with_names():
    with pytest.raises(ValueError, match="label='y' names a column, but the data is a tuple"):
        fit((X, Y), label="y")
    for stream in ([(X, Y)], iter([(X, Y)]), Pairs(), [jfit.data.Batch({"x": X, "label": Y})]):
        kind = "RowBatches" if isinstance(stream, Pairs) else type(stream).__name__
        with pytest.raises(ValueError, match=f"label='y' names a column, but the {kind} yielded a"):
            fit(stream, label="y")


# --------------------------------------------------------------------------------------------------------- rows


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    "rows",
    [
        Pairs(),
        list(zip(X, Y, strict=True)),
        [{"x": x, "label": y} for x, y in zip(X.tolist(), Y.tolist(), strict=True)],
        HuggingFace({"x": X, "label": Y}),
        Rows(list(zip(X, Y, strict=True))),
        [(jnp.asarray(x), y) for x, y in zip(X, Y, strict=True)],
    ],
)
def test_rows_with_random_access_are_shuffled_and_batched_like_arrays(trained, rows):
    run = fit(rows)
    assert same(run, trained) and run.score(rows) == pytest.approx(trained.score((X, Y)))
    np.testing.assert_allclose(run.predict(rows), trained.predict(X), rtol=1e-6)


class StreamOfPairs(TorchIterable):
    def __iter__(self):
        return zip(X, Y, strict=True)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("make", [lambda: zip(X, Y, strict=True), lambda: map(list, zip(X, Y, strict=True)), StreamOfPairs])
def test_iterables_of_rows_are_batched_in_their_order(make):
    ordered = fit((X, Y), shuffle=False, num_epoch=1)
    assert same(fit(make(), num_epoch=1), ordered)
    assert same(fit(lambda epoch: make(), num_epoch=1), ordered)


def test_rows_resume_in_the_middle_of_an_epoch_without_reading_the_rows_before(tmp_path, trained):
    fit(Pairs(), num_epoch=1, checkpoint=tmp_path, checkpoint_every=3, callbacks=[lambda e: e.step == 3 and e.run.stop()])
    rows = Pairs()
    assert same(fit(rows, checkpoint=tmp_path, resume=True), trained)
    assert len(rows.read) <= 8 + 2 * 40 - 3 * 8  # the first batch of all is read for its shapes


def test_rows_and_batches_are_told_apart_by_type_or_by_a_scalar():
    def shapes(source, **options):
        data = as_data(source, batch_size=2, input_names=["x"], label_names=["y"], shuffle=False, **options)
        return [b.inputs["x"].shape for b in data.batches(0)]

    x, y = np.ones((3, 5)), np.ones((3, 5))
    assert shapes([(x, y)]) == [(3, 5)]
    assert shapes(Rows([(x, y)] * 3)) == [(2, 3, 5), (1, 3, 5)]
    assert shapes(Rows(iter([(x, y)] * 3))) == [(2, 3, 5), (1, 3, 5)]
    assert shapes(Pairs([x] * 3, [y] * 3)) == [(2, 3, 5), (1, 3, 5)]
    assert shapes([(1.5, 1)] * 3) == [(2,), (1,)]
    assert shapes([([1.5, 2.5], [1, 0])]) == [(2,)]
    assert shapes(iter([{"x": [1.0, 2.0], "target": 1}] * 3), label="target") == [(2, 2), (1, 2)]
    with pytest.raises(ValueError, match="input 'x' has 5 rows, input 'y' has 3") as caught:
        shapes(iter([(np.ones(5), np.ones(3))]))
    assert "pass jfit.data.Rows(data)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (Pairs([]), ValueError, "yielded no batch, expected at least one"),
        ([(X[0], 1), (X[0, :2], 1)], ValueError, "'[0]' of the rows of a batch have different shapes, (3,) and (2,)"),
        (Rows([(X[0], 1), (X[0],)]), ValueError, "is shorter than argument 1"),
        ({"train": HuggingFace({"x": X})}, TypeError, "data is a dict of data sets; pass one of them, such as data['train']"),
        (HuggingFace({"xx": X, "label": Y}), ValueError, "'xx' is not an input of the model (nearest: 'x')"),
    ],
)
def test_rows_that_make_no_batch_raise(rows, error, message):
    with pytest.raises(error, match=re.escape(message)):
        fit(rows)


# -------------------------------------------------------------------------------------------------------- extra columns


@pytest.mark.repetitions(3)
@pytest.mark.parametrize(
    "extended",
    [
        {"x": X, "label": Y, "id": ["row"] * 40},
        [{"x": X[i : i + 8], "label": Y[i : i + 8], "id": None} for i in range(0, 40, 8)],
        HuggingFace({"x": X, "label": Y, "text": np.array(["row"] * 40)}),
    ],
)
def test_arrays_that_the_model_does_not_take_are_dropped_with_one_line(extended, caplog):
    fit(extended)
    lines = [r.getMessage() for r in caplog.records if r.name == "jfit"]
    assert len(lines) == 1 and re.match(r"the data has '(id|text)', which the model does not take: not used", lines[0])


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(
    "names",
    [
        list(pd.date_range("2020-01-01", periods=3)),
        [("a", 1), ("a", 2), ("b", 1)],
        [0, 1, 2],
        [0.5, ("d", pd.Timestamp("2020-01-01")), True],
    ],
)
def test_a_loaded_run_finds_columns_whose_names_are_not_strings(tmp_path, trained, names):
    frame = pd.DataFrame({name: X[:, i] for i, name in enumerate(names)} | {"y": Y})
    frame.columns = pd.Index([*names, "y"], tupleize_cols=False)
    run = fit(frame, label="y", checkpoint=tmp_path)
    assert same(run, trained)
    model = from_function(linear, loss="cross_entropy", params=PARAMS)
    loaded = jfit.Run.load(tmp_path, model)
    np.testing.assert_array_equal(loaded.predict(frame[[*frame.columns[::-1]]]), run.predict(X))


# ------------------------------------------------------------------------------------------------------ steps_per_epoch


def batches(start=0, count=10**6):
    for i in range(start, start + count):
        rows = np.arange(8 * i, 8 * i + 8) % 40
        yield X[rows], Y[rows]


class Loader:
    """A loader without a length, whose every pass has three batches."""

    def __iter__(self):
        return batches(0, 3)


def test_endless_streams_go_on_where_the_last_epoch_ended():
    one, long = fit(batches(), steps_per_epoch=5, num_epoch=3), fit(batches(0, 15), num_epoch=1)
    assert same(one, long) and [row["step"] for row in one.history.epochs] == [5, 10, 15]
    assert same(fit(lambda: batches(), steps_per_epoch=5, num_epoch=3), long)
    assert same(fit(Loader(), steps_per_epoch=2, num_epoch=3), fit(Loader(), num_epoch=2))


@pytest.mark.slow
def test_finite_streams_and_arrays_are_cut():
    five = list(batches(0, 5))
    assert same(fit(five, steps_per_epoch=2), fit(five[:2]))
    assert same(fit(lambda epoch: batches(epoch), steps_per_epoch=2), fit(lambda epoch: batches(epoch, 2)))
    order = [ArrayData({"x": X}).order(epoch)[:16] for epoch in (0, 1)]
    by_hand = [[(X[o[:8]], Y[o[:8]]), (X[o[8:]], Y[o[8:]])] for o in order]
    for on_device in (True, False):
        run = fit((X, Y), steps_per_epoch=2, data_on_device=on_device)
        assert same(run, fit(lambda epoch: by_hand[epoch])) and run.position["step"] == 4


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("source", [itertools.cycle([(X, Y)]), itertools.repeat((X, Y)), "grain"])
def test_a_stream_that_is_known_to_be_endless_needs_steps_per_epoch(source, trained):
    if source == "grain":
        source = pytest.importorskip("grain").MapDataset.source([(X, Y)]).repeat()
    with pytest.raises(ValueError, match="is endless, so an epoch would never end; pass steps_per_epoch="):
        fit(source)
    with pytest.raises(ValueError, match="is endless"):
        trained.score(source)


def test_a_stream_that_is_too_short_for_its_steps_raises():
    for data in ([(X, Y)], (X, Y)):
        with pytest.raises(ValueError, match=r"steps_per_epoch is 9, but the (list|data) has [15] batches"):
            fit(data, steps_per_epoch=9)
    with pytest.raises(ValueError, match="epoch 1: the generator ended after 1 of steps_per_epoch=2 batches"):
        fit(batches(0, 3), steps_per_epoch=2)
    with pytest.raises(ValueError, match="epoch 0: the <lambda> ended after 3 of steps_per_epoch=4 batches"):
        fit(lambda epoch: batches(0, 3), steps_per_epoch=4)
    with pytest.raises(ValueError, match="steps_per_epoch is 0; expected an integer of at least 1"):
        fit((X, Y), steps_per_epoch=0)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("stop", [7, 5, 10])
def test_an_endless_stream_resumes_exactly(tmp_path, stop, caplog):
    whole = fit(batches(), steps_per_epoch=5, num_epoch=3)
    part = functools.partial(fit, steps_per_epoch=5, num_epoch=3, checkpoint=tmp_path)
    part(batches(), checkpoint_every=1, callbacks=[lambda e: e.step == stop and e.run.stop()])
    assert same(part(batches(), resume=True), whole)


class Numbers:
    """An iterator with a state, like those of grain."""

    def __init__(self, count):
        self.number, self.count, self.read = 0, count, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number >= self.count:
            raise StopIteration
        self.number, self.read = self.number + 1, self.read + 1
        return next(batches(self.number - 1))

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


def test_an_endless_stream_with_a_state_resumes_without_reading_earlier_epochs(tmp_path):
    whole = fit(Numbers(10**6), steps_per_epoch=5, num_epoch=3)
    assert same(whole, fit(batches(), steps_per_epoch=5, num_epoch=3))
    part = functools.partial(fit, steps_per_epoch=5, num_epoch=3, checkpoint=tmp_path)
    part(Numbers(10**6), checkpoint_every=1, callbacks=[lambda e: e.step == 12 and e.run.stop()])
    source = Numbers(10**6)
    assert same(part(source, resume=True), whole) and source.read == 1 + 5  # the first batch is read for its shapes


class Stateful:
    """A loader with a length and a state: every `iter()` is a new pass with other batches, or the rest of one after a load."""

    def __init__(self, length=4):
        self.number, self.batch, self.loaded, self.length = -1, 0, False, length

    def __len__(self):
        return self.length

    def state_dict(self):
        return {"number": self.number, "batch": self.batch}

    def load_state_dict(self, state):
        self.number, self.batch, self.loaded = state["number"], state["batch"], True

    def __iter__(self):
        if not self.loaded or self.batch >= self.length:
            self.number, self.batch = self.number + 1, 0
        self.loaded = False
        return self.rest()

    def rest(self):
        while self.batch < self.length:
            self.batch += 1
            yield next(batches(7 * self.number + self.batch))


class Iterators:
    """An iterable without a state, whose iterators have one."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return Numbers(self.count)


CUTS = [
    (Stateful, {"steps_per_epoch": 3}),
    (Stateful, {"steps_per_epoch": 4, "checkpoint_every": 4}),
    (lambda: Iterators(10**6), {"steps_per_epoch": 3}),
    (lambda: Iterators(4), {}),
    (Stateful, {"steps_per_epoch": 3, "checkpoint_every": 2}),
    (lambda: Iterators(4), {"steps_per_epoch": 3, "checkpoint_every": 2}),
]


@pytest.mark.repetitions(1, slow=4)
@pytest.mark.parametrize(("source", "options"), CUTS)
def test_a_cut_pass_resumes_at_the_batches_of_the_uninterrupted_run(tmp_path, source, options, caplog):
    whole = fit(source(), num_epoch=4, **{k: v for k, v in options.items() if k != "checkpoint_every"})
    part = functools.partial(fit, checkpoint=tmp_path, **options)
    part(source(), num_epoch=2)
    part(source(), num_epoch=2, resume=True)  # no step
    assert same(part(source(), num_epoch=4, resume=True), whole)
    assert not caplog.records


@pytest.mark.parametrize(("source", "every"), [(Stateful, 3), (Stateful, "epoch"), (lambda: Iterators(4), 3)])
def test_a_loader_with_a_position_is_resumed_exactly(tmp_path, source, every):
    part = functools.partial(fit, num_epoch=3, checkpoint=tmp_path, checkpoint_every=every)
    with pytest.raises(Killed):
        part(source(), callbacks=[dies(8 if every == 3 else 6)])
    assert jfit.checkpoint.load_meta(tmp_path)["position"]["step"] == (6 if every == 3 else 4)  # of epochs of 4 batches
    assert same(part(source(), resume=True), fit(source(), num_epoch=3))


# --------------------------------------------------------------------------------------- validation_split and eval_every


def test_validation_split_evaluates_the_last_rows():
    weight = np.linspace(0.5, 1, 40)
    run = fit((X, Y, weight), validation_split=0.33)  # floor(40 * 0.67) = 26 rows are trained
    by_hand = fit((X[:26], Y[:26], weight[:26]), (X[26:], Y[26:], weight[26:]))
    assert same(run, by_hand) and run.history.column("val_loss") == by_hand.history.column("val_loss")


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((X, Y), {"validation_split": 1.0}, "validation_split is 1.0; expected a fraction between 0 and 1"),
        ((X, Y), {"validation_split": 0.999}, "empty data: input 'x' has 0 rows"),
        ([(X, Y)], {"validation_split": 0.5}, "the training data is an iterable"),
        ((X, Y), {"validation_split": 0.5, "eval_data": (X, Y)}, "validation_split= and eval_data= are both passed"),
        ((X, Y), {"eval_every": 0}, "eval_every is 0; expected an integer of at least 1"),
    ],
)
def test_evaluation_options_that_contradict_the_data_raise(data, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(data, **options)


def test_eval_every_evaluates_every_nth_epoch_and_the_last():
    stopping = jfit.callbacks.early_stopping("val_loss", patience=2)
    run = fit((X, Y), (X, Y), num_epoch=5, eval_every=2, callbacks=[stopping])
    assert [value is not None for value in run.history.column("val_loss")] == [False, True, False, True, True]
    every = fit((X, Y), (X, Y), num_epoch=5)
    assert same(run, every) and run.history.column("val_loss")[3] == every.history.column("val_loss")[3]
    stopped = fit((X, Y), (X, 1 - Y), num_epoch=20, eval_every=2, callbacks=[stopping])
    assert len(stopped.history) == 6  # evaluated in epochs 1, 3 and 5; the last two are no improvement


# --------------------------------------------------------------------------------------------------------------- weights

WEIGHTS = {0: 1.0, 1: 5.0}


def weighted_loss(params, rows):
    logits = X[rows] @ params["w"] + params["b"]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), Y[rows][:, None], 1)[:, 0]
    weight = jnp.array([1.0, 5.0])[Y[rows]]
    return (losses * weight).sum() / weight.sum()


def trained_by_hand(order):
    params = PARAMS
    for low in range(0, 40, 8):
        gradients = jax.grad(weighted_loss)(params, order[low : low + 8])
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, gradients)
    return params


@pytest.mark.slow
def test_class_weights_multiply_the_weights_of_rows():
    by_hand = trained_by_hand(permutation(40, 0, 0))
    run = fit((X, Y), class_weight=WEIGHTS, num_epoch=1)
    for name in PARAMS:
        np.testing.assert_allclose(run.params[name], by_hand[name], rtol=1e-5, atol=1e-6)
    rows = np.where(Y == 1, 5.0, 1.0)
    for other in (
        fit((X, Y), sample_weight=rows, num_epoch=1),
        fit((X, Y, rows), num_epoch=1),
        fit((X, Y.astype("float32")), class_weight=WEIGHTS, num_epoch=1),
        fit((X, Y, rows / 5), class_weight={0: 5.0, 1: 5.0}, num_epoch=1),
        fit(Pairs(), class_weight=WEIGHTS, num_epoch=1),
    ):
        assert same(run, other)


@pytest.mark.slow
def test_class_weights_of_streams_and_one_hot_labels():
    ordered = trained_by_hand(np.arange(40))
    one_hot = np.eye(2, dtype="float32")[Y]
    cuts = [slice(i, i + 8) for i in range(0, 40, 8)]
    streams = [[(X[c], Y[c]) for c in cuts], [(X[c], one_hot[c]) for c in cuts], [(X[c], jnp.asarray(Y[c])) for c in cuts]]
    soft = functools.partial(jfit.fit, linear, loss="cross_entropy", params=PARAMS, batch_size=8, num_epoch=1, progress=False)
    for stream in streams:
        run = soft(stream, class_weight=WEIGHTS, eval_metric=None, optimizer_params={"learning_rate": 0.5})
        for name in PARAMS:
            np.testing.assert_allclose(run.params[name], ordered[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        (Y, {0: 1.0}, "row 0 is 1, expected one of the classes of class_weight, 0 "),
        (Y + 0.5, WEIGHTS, "expected one of the classes of class_weight"),
        (np.full((40, 2), 0.5), WEIGHTS, "expected one of the classes of class_weight"),
        (Y, {}, "class_weight is {}, expected a dict of class indices"),
        (Y, {"a": 1.0}, "class_weight is {'a': 1.0}, expected a dict of class indices"),
        (Y, {0: -1.0}, "class_weight is {0: -1.0}, expected"),
    ],
)
def test_class_weights_that_do_not_fit_the_labels_raise(labels, weights, message):
    first = int(np.argmax(Y))
    for data in ((X[first:], labels[first:]), [(X[first:], labels[first:])]):
        with pytest.raises(ValueError, match=re.escape(message)):
            fit(data, class_weight=weights)


def test_weights_that_cannot_be_applied_raise():
    with pytest.raises(ValueError, match="class_weight= needs one label per row that is a class, but the model estimates"):
        jfit.fit(linear, (X, X[:, :2]), loss="mse", params=PARAMS, class_weight=WEIGHTS, progress=False)
    with pytest.raises(ValueError, match="row weights are passed twice"):
        fit((X, Y, np.ones(40)), sample_weight=np.ones(40))
    with pytest.raises(ValueError, match=r"sample_weight has the row weights of arrays, but the data is a list"):
        fit([(X, Y)], sample_weight=np.ones(40))


@pytest.mark.slow
def test_class_weights_and_options_do_not_change_data_that_the_user_passed():
    data = ArrayData({"x": X, "label": Y})
    one, two = (fit(data, class_weight=WEIGHTS, num_epoch=1) for _ in range(2))
    assert data.weight is None and same(one, two) and same(one, fit((X, Y), class_weight=WEIGHTS, num_epoch=1))
    stream = jfit.data.StreamData([(X, Y)], jfit.data.Names.of(["x"], ["label"]))
    with pytest.raises(ValueError, match="class_weight= is passed with a StreamData"):
        fit(stream, class_weight=WEIGHTS)
    for source in (data, stream):
        for name, value in {"label": "y", "sample_weight": np.ones(40), "steps_per_epoch": 1}.items():
            with pytest.raises(
                ValueError, match=f"{name}= is passed with data of type {type(source).__name__}, which is converted"
            ):
                fit(source, **{name: value})


# ---------------------------------------------------------------------------------------------------------------- resume


class Passes:
    """A loader of batches that yields the same batches in every pass, without a state."""

    def __iter__(self):
        return batches(0, 5)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(("source", "line"), [(Passes, True), (lambda: list(batches(0, 5)), False), (Pairs, False)])
def test_resuming_an_iterable_without_a_position_logs_one_line(tmp_path, source, line, caplog):
    fit(source(), num_epoch=1, checkpoint=tmp_path)
    assert not caplog.records
    assert same(fit(source(), checkpoint=tmp_path, resume=True), fit(source()))
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == line and all("resume: a Passes has no position that a checkpoint can save" in text for text in lines)


# ----------------------------------------------------------------------------------------------------------- memory maps


@pytest.fixture
def small_limits(monkeypatch):
    """Memory maps of more than 1000 bytes stay on the disk, those of more than 5000 bytes are shuffled in blocks."""
    limits = {"MAPPED_BYTES": 1000, "BLOCK_SHUFFLE_BYTES": 5000, "BLOCK_BYTES": 256, "BUFFER_BYTES": 2048}
    for name, value in limits.items():
        monkeypatch.setattr(arrays_module, name, value)


def mapped(folder, array, name="x"):
    np.save(folder / f"{name}.npy", array)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("on_device", [False, True])
def test_memory_maps_train_like_arrays(tmp_path, small_limits, shuffle, on_device):
    x = mapped(tmp_path, RNG.normal(size=(100, 3)))
    y = mapped(tmp_path, (x[:, 0] > 0).astype("int64").repeat(2).reshape(100, 2), "y")[:, 0]
    options = {"shuffle": shuffle, "data_on_device": on_device}
    run = fit((x, y), **options)
    assert same(run, fit((np.array(x), np.array(y)), **options))
    assert run.score((x, y)) == run.score((np.array(x), np.array(y)))
    np.testing.assert_array_equal(run.predict(x), run.predict(np.array(x)))


def test_labels_and_values_on_the_disk_are_checked_when_they_are_read(tmp_path, small_limits):
    y = np.zeros(400, "int64")
    y[300] = 7
    with pytest.raises(ValueError, match=r"row [0-9]+ is 7, expected classes 0..1"):
        fit((np.zeros((400, 3)), mapped(tmp_path, y)), data_on_device=False)
    with pytest.raises(ValueError, match=r"labels on disk: .*row 300 is 7, expected classes 0..1"):
        fit((np.zeros((400, 3)), mapped(tmp_path, y)))
    fit((np.zeros((400, 3)), mapped(tmp_path, y), np.arange(400) != 300), num_epoch=1)  # a row without weight
    x = np.zeros((400, 3))
    x[300, 1] = 1e300
    with pytest.raises(ValueError, match=r"input 'x' \(float64\) contains 1e\+300"):
        fit((mapped(tmp_path, x), y * 0), data_on_device=False)


def test_a_large_memory_map_is_shuffled_in_blocks(tmp_path, small_limits):
    x = mapped(tmp_path, np.arange(1000.0).reshape(500, 2))
    data, again = ArrayData({"x": x}, seed=3), ArrayData({"x": x}, seed=3)
    read = np.concatenate([b.inputs["x"][:, 0] for b in data.batches(epoch=1, batch_size=16)])
    assert read.dtype == np.float32 and sorted(read) == list(np.arange(0, 1000, 2))
    np.testing.assert_array_equal(read, 2 * again.order(1))
    late = np.concatenate([b.inputs["x"][:, 0] for b in again.batches(epoch=1, batch_size=16, start=20)])
    np.testing.assert_array_equal(read[320:], late)
    assert (data.order(0) != data.order(1)).any()
    exact = ArrayData({"x": np.array(x)}, seed=3).order(1)
    assert (exact == permutation(500, 3, 1)).all() and (exact != data.order(1)).any()


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_a_block_permutation_has_every_row_once_and_few_blocks_per_buffer(count, block, blocks, seed):
    order = block_permutation(count, seed, 5, block, block * blocks)
    assert order.dtype == np.int32 and sorted(order) == list(range(count))
    for low in range(0, count, block * blocks):
        assert len(set(order[low : low + block * blocks] // block)) <= blocks + 2  # a short last block moves the others


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, False])
def test_training_on_a_large_map_needs_memory_for_a_batch(tmp_path, monkeypatch, shuffle):
    monkeypatch.setattr(arrays_module, "BLOCK_SHUFFLE_BYTES", 32 << 20)
    monkeypatch.setattr(arrays_module, "BUFFER_BYTES", 2 << 20)
    x = np.memmap(tmp_path / "x", "float64", "w+", shape=(500, 16384))  # a sparse file of 64 MB
    params = {"w": jnp.zeros((16384, 2)), "b": jnp.zeros((1, 2))}
    options = {"params": params, "batch_size": 10, "num_epoch": 1, "data_on_device": False, "steps_per_call": 1}
    fit((x[:20], np.arange(500)[:20] % 2), **options)  # compile before memory is measured
    tracemalloc.start()
    try:
        fit((x, np.arange(500) % 2), shuffle=shuffle, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A batch has 1.3 MB in the file and 0.7 MB in float32, the buffer 2 MB.  How many batches are alive at once (those read
    # ahead, and those that devices have not taken yet) depends on threads; the whole data would have 32 MB in float32.
    assert peak < 16 << 20


# ------------------------------------------------------------------------------------------------------- resident arrays


def test_data_on_the_devices_is_copied_once():
    x = np.zeros((4096, 64))
    model = from_function(linear, loss="cross_entropy", params=PARAMS)
    devices = jax.devices()[:1]
    for given_, copies in ((x, 1), (x.astype("float32"), 1), (jnp.asarray(x), 0), (x.tolist(), 1)):
        tracemalloc.start()
        try:
            data = ArrayData({"x": given_, "label": np.zeros(4096, "int32")})
            resident = DeviceBatches(model, data, devices, 64).arrays["x"]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        shared = np.shares_memory(np.asarray(resident), data.arrays["x"])
        assert shared == (given_ is not data.arrays["x"])
        assert peak < (copies + 0.5) * 2**20 or isinstance(given_, list)
