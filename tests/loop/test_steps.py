"""Training that is counted in steps: `num_steps`, intervals in steps, evaluations within epochs, endless streams."""

from __future__ import annotations

import csv
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fit_support import Killed, bits, blobs, dies, mlp, train

import jfit
from jfit.callbacks import early_stopping, lambda_callback, reduce_on_plateau

X, Y = blobs()  # 7 batches of at most 8 rows
EVAL = blobs(20, seed=1)
HIDDEN = ("time", "compile_time", "data_time", "samples_per_second")


def by_steps(steps: int = 17, **given: Any) -> jfit.Run:
    """Training for a number of steps, with an evaluation after every fifth."""
    settings: dict[str, Any] = {"eval_data": EVAL, "eval_every": jfit.every(steps=5)}
    return train(mlp(dropout=0.5), num_epoch=None, num_steps=steps, **(settings | given))


def tables(run: jfit.Run) -> list[Any]:
    rows = [run.history.epochs, run.history.evaluations, run.history.steps]
    return [[{k: v for k, v in row.items() if k not in HIDDEN} for row in table] for table in rows]


def assert_same(one: jfit.Run, other: jfit.Run) -> None:
    assert bits(one.state) == bits(other.state)
    assert tables(one) == tables(other) and one.position == other.position


class Endless:
    """An endless loader with a position, as torchdata's `StatefulDataLoader`: batch i is that of the key i."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next += 1
        rows = np.random.default_rng(self.next).integers(0, len(X), 8)
        return X[rows], Y[rows]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


# ------------------------------------------------------------------------------------------------ num_steps
@pytest.mark.parametrize("on_device", [True, False])
def test_num_steps_trains_the_same_batches_as_a_loop_of_optax(on_device):
    w, x, y = jnp.zeros((4, 3)), X[:48], Y[:48].astype(int)
    loss = lambda w, x, y: optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean()  # noqa: E731
    schedule = optax.cosine_decay_schedule(0.5, 10)
    optimizer = optax.sgd(schedule)
    state, expected = optimizer.init(w), w

    @jax.jit
    def step(w, state, x, y):
        updates, state = optimizer.update(jax.grad(loss)(w, x, y), state)
        return optax.apply_updates(w, updates), state

    order = [*range(0, 48, 8)] * 2
    for start in order[:10]:  # six batches per epoch: the run ends in the middle of the second
        expected, state = step(expected, state, x[start : start + 8], y[start : start + 8])
    run = jfit.fit(
        lambda w, x: x @ w,
        (x, y),
        params=w,
        loss="cross_entropy",
        optimizer=optimizer,
        num_steps=10,
        batch_size=8,
        shuffle=False,
        progress=False,
        data_on_device=on_device,
        steps_per_call=4,
    )
    np.testing.assert_allclose(np.asarray(run.params), np.asarray(expected), rtol=1e-5, atol=1e-6)
    assert run.position == {"epoch": 1, "batch": 4, "step": 10} and (run.num_steps, run.num_epoch) == (10, None)
    assert [(row["epoch"], row["step"]) for row in run.history.epochs] == [(0, 6), (1, 10)]


def test_whole_epochs_in_steps_are_those_of_num_epoch():
    given: dict[str, Any] = {"eval_data": EVAL, "schedule": "cosine", "optimizer_params": {"learning_rate": 0.1}}
    assert_same(train(num_epoch=None, num_steps=14, **given), train(num_epoch=2, **given))


def test_a_run_goes_on_for_more_steps_and_replaces_the_row_of_its_last_epoch():
    run = by_steps(10)
    assert [(row["epoch"], row["step"]) for row in run.history.epochs] == [(0, 7), (1, 10)]
    assert_same(run.train(num_steps=7), by_steps(17))
    assert run.train(1).position == {"epoch": 3, "batch": 0, "step": 21}  # the rest of the third epoch
    with pytest.raises(ValueError, match="num_epoch=1 and num_steps=2 are both passed"):
        run.train(1, num_steps=2)


# ------------------------------------------------------------------------------------------------ evaluations within epochs
def test_evaluations_are_those_of_the_parameters_of_their_steps():
    seen: dict[int, dict] = {}
    score = lambda event: seen.setdefault(event.step, event.run.score(EVAL))  # noqa: E731
    events: list = []
    note = lambda_callback(evaluation=events.append, epoch_end=events.append, every=1, step=score)
    run = by_steps(callbacks=[note])
    rows = run.history.evaluations
    assert [(row["epoch"], row["step"]) for row in rows] == [(0, 5), (1, 10), (2, 15), (2, 17)]
    for row in rows:
        assert {k: v for k, v in row.items() if k.startswith("val_")} == {f"val_{k}": v for k, v in seen[row["step"]].items()}
    found = [(e.kind, e.step, e.ends_epoch, "val_loss" in e.logs) for e in events]
    evaluation, end = "evaluation", "epoch_end"
    assert found == [
        (evaluation, 5, False, True),
        (end, 7, False, False),
        (evaluation, 10, False, True),
        (end, 14, False, False),
        (evaluation, 15, False, True),
        (evaluation, 17, True, True),
        (end, 17, False, True),
    ]
    assert run.history.column("val_loss") == [None, None, rows[-1]["val_loss"]]


@pytest.mark.parametrize("on_device", [True, False])
def test_an_evaluation_at_the_last_step_of_an_epoch_is_that_of_the_epoch(on_device):
    events: list = []
    note = lambda_callback(evaluation=events.append)
    given: dict[str, Any] = {"data_on_device": on_device, "callbacks": [note]}
    run = train(num_epoch=2, eval_data=EVAL, eval_every=jfit.every(steps=7), **given)
    assert [(e.step, e.ends_epoch) for e in events] == [(7, True), (14, True)]
    assert_same(run, train(num_epoch=2, eval_data=EVAL, data_on_device=on_device))


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("given", [{}, {"devices": 2}, {"data_on_device": False}], ids=["one", "two devices", "host"])
def test_several_steps_per_call_stop_at_evaluations_with_the_same_bits(given):
    one, several = (by_steps(steps_per_call=n, callbacks=[early_stopping(patience=99)], **given) for n in (1, 4))
    assert bits(one.state.params) == bits(several.state.params)
    assert one.history.column("val_loss", "evaluations") == several.history.column("val_loss", "evaluations")
    assert one.position == several.position == {"epoch": 2, "batch": 3, "step": 17}


def test_intervals_in_epochs_and_steps_for_checkpoints_and_recorded_steps(tmp_path):
    saved: list[int] = []
    keep = jfit.callbacks.checkpointing(tmp_path, every=jfit.every(epochs=2), keep=None)
    run = train(num_epoch=5, callbacks=[keep], log_every=jfit.every(epochs=2))
    saved = [int(path.name.split("-")[1]) for path in sorted(tmp_path.glob("step-*"))]
    assert saved == [14, 28, 35] and run.history.column("step", "steps") == [14, 28]
    run = by_steps(checkpoint=tmp_path / "a", checkpoint_every=jfit.every(steps=6), log_every=jfit.every(steps=6))
    assert sorted(path.name for path in (tmp_path / "a").glob("step-*")) == [f"step-{n:08}" for n in (6, 12, 17)]
    assert run.history.column("step", "steps") == [6, 12]


# ------------------------------------------------------------------------------------------------ monitored values
def test_early_stopping_by_steps_counts_evaluations_wherever_they_are():
    stop = early_stopping("val_loss", patience=jfit.every(steps=10), min_delta=1e9)  # the first evaluation is the best one
    runs = [by_steps(99, callbacks=[stop], steps_per_call=n) for n in (1, 4)]
    for run in runs:
        assert (run.stop_reason or "").startswith("early_stopping: val_loss has not improved for 10 steps (best ")
        assert run.position["step"] == 15 and run.history.column("step", "evaluations") == [5, 10, 15]
    assert bits(runs[0].state.params) == bits(runs[1].state.params) == bits(by_steps(5).state.params)
    run = by_steps(99, callbacks=[early_stopping("val_loss", patience=2, min_delta=1e9)])
    assert run.position["step"] == 15 and "for 2 evaluations" in (run.stop_reason or "")
    run = by_steps(99, callbacks=[early_stopping("val_loss", patience=jfit.every(epochs=1), min_delta=1e9)])
    assert run.position["step"] == 10 and "for 1 epochs" in (run.stop_reason or "")
    run = by_steps(99, callbacks=[early_stopping("loss", patience=1, min_delta=1e9)])  # of epochs
    assert run.position == {"epoch": 2, "batch": 0, "step": 14}


@pytest.mark.parametrize("every", [1, jfit.every(steps=7)])
def test_an_evaluation_at_the_end_of_an_epoch_counts_once(every):
    stop = early_stopping("val_loss", patience=2, min_delta=1e9)  # the first evaluation is the best one
    run = train(num_epoch=9, eval_data=EVAL, eval_every=every, callbacks=[stop])
    assert run.position == {"epoch": 3, "batch": 0, "step": 21} and "has not improved for 2 epochs" in (run.stop_reason or "")


def test_a_plateau_of_step_evaluations_reduces_the_rate():
    plateau = lambda **given: reduce_on_plateau("val_loss", factor=0.5, min_delta=1e9, **given)  # noqa: E731
    rates = lambda run: dict(zip(run.history.column("step", "steps"), run.history.column("lr", "steps"), strict=True))  # noqa: E731
    by_count = by_steps(callbacks=[plateau(patience=1)], log_every=1)
    by_step = by_steps(callbacks=[plateau(patience=jfit.every(steps=5))], log_every=1)
    assert rates(by_count) == rates(by_step)  # steps 10 and 15 are one evaluation, or five steps, after the best or last one
    expected = [0.1] * 10 + [0.05] * 5 + [0.025] * 2
    assert list(rates(by_step).values()) == pytest.approx(expected)


def test_the_best_checkpoint_is_that_of_an_evaluation_within_an_epoch(tmp_path):
    given: dict[str, Any] = {"checkpoint": tmp_path, "checkpoint_best": "val_loss", "optimizer_params": {"learning_rate": 3.0}}
    run = by_steps(**given)
    best = min(run.history.evaluations, key=lambda row: row["val_loss"])
    assert jfit.checkpoint.best(tmp_path).name == f"step-{best['step']:08}"
    loaded = jfit.Run.load(tmp_path, which="best")
    assert loaded.score(EVAL)["loss"] == pytest.approx(best["val_loss"], rel=1e-6)
    assert jfit.Run.load(tmp_path).history.evaluations == run.history.evaluations


# ------------------------------------------------------------------------------------------------ resuming
def watched() -> list[Any]:
    """Callbacks that count evaluations: neither stops the run, and the rate changes at some evaluations."""
    patience = jfit.every(steps=12)
    return [early_stopping(patience=jfit.every(steps=90)), reduce_on_plateau(patience=patience, factor=0.9, min_delta=1e9)]


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("at", [5, 6, 11, 14, 16])
@pytest.mark.parametrize("every", [5, 4])
def test_a_run_killed_within_an_epoch_resumes_with_its_bits(tmp_path, at, every):
    given: dict[str, Any] = {"steps": 30, "checkpoint_every": every, "log_every": 3}
    with pytest.raises(Killed):
        by_steps(checkpoint=tmp_path / "a", callbacks=[*watched(), dies(at)], **given)
    again = by_steps(checkpoint=tmp_path / "a", resume=True, callbacks=watched(), **given)
    whole = by_steps(checkpoint=tmp_path / "b", callbacks=watched(), **given)
    assert_same(again, whole)
    states = [dict(run.meta()["callbacks"]) for run in (again, whole)]
    names = [name for name in states[0] if not name.startswith("checkpointing")]
    assert len(names) == 2 and all(states[0][name] == states[1][name] for name in names)


def test_a_run_killed_between_an_evaluation_and_its_best_checkpoint_evaluates_once(tmp_path):
    counts: list[int] = []
    count = lambda_callback(evaluation=lambda event: counts.append(event.step))
    best: dict[str, Any] = {"checkpoint": tmp_path, "checkpoint_best": "val_loss", "checkpoint_every": 10}
    with pytest.raises(Killed):
        by_steps(callbacks=[count, dies(7)], **best)  # the checkpoint of step 5 is that of the evaluation
    again = by_steps(callbacks=[count], resume=True, **best)
    assert counts == [5, 10, 15, 17]
    assert_same(again, by_steps())


def test_loggers_have_one_row_per_evaluation_and_epoch_also_after_a_resume(tmp_path, caplog):
    def loggers() -> list[Any]:
        files = jfit.callbacks.csv_logger(tmp_path / "a.csv"), jfit.callbacks.jsonl_logger(tmp_path / "a.jsonl")
        return [*files, jfit.callbacks.speedometer()]

    with pytest.raises(Killed):  # the checkpoint of step 5 was saved before the evaluation of step 5
        by_steps(checkpoint=tmp_path, checkpoint_every=5, callbacks=[*loggers(), dies(6)])
    caplog.set_level("INFO", logger="jfit")
    run = by_steps(checkpoint=tmp_path, checkpoint_every=5, resume=True, callbacks=loggers())
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [int(row["step"]) for row in rows] == [line["step"] for line in lines] == [5, 7, 10, 14, 15, 17]
    assert [float(row["val_loss"]) for row in rows if row["val_loss"]] == run.history.column("val_loss", "evaluations")
    assert sum("Validation-accuracy" in message for message in caplog.messages) == 4


def test_a_run_killed_after_its_last_checkpoint_still_gets_its_last_row(tmp_path):
    def fails(event):
        raise Killed

    at_end = lambda_callback(evaluation=lambda event: fails(event) if event.ends_epoch else None)
    with pytest.raises(Killed):
        by_steps(10, eval_every=jfit.every(steps=7), checkpoint=tmp_path, checkpoint_every=10, callbacks=[at_end])
    with pytest.raises(Killed):  # at the end of the first epoch
        by_steps(10, eval_every=jfit.every(steps=20), checkpoint=tmp_path, checkpoint_every=10, callbacks=[at_end])
    again = by_steps(10, eval_every=jfit.every(steps=20), checkpoint=tmp_path, checkpoint_every=10, resume=True)
    assert_same(again, by_steps(10, eval_every=jfit.every(steps=20)))
    assert by_steps(10, eval_every=jfit.every(steps=20), checkpoint=tmp_path, resume=True).position == again.position


def test_verify_and_replay_train_the_same_steps_again(tmp_path):
    by_steps(callbacks=[jfit.callbacks.checkpointing(tmp_path, every=6)])
    assert jfit.verify(tmp_path, (X, Y)).same
    assert jfit.replay(tmp_path, (X, Y), step=8).epoch == 1
    with pytest.raises(ValueError, match="replay: step is 17, but training ends after 17 steps"):
        jfit.replay(tmp_path, (X, Y), step=17)


# ------------------------------------------------------------------------------------------------ endless streams
@pytest.mark.parametrize(
    "make",
    [lambda: itertools.cycle([(X[:8], Y[:8])]), lambda: ((X[:8], Y[:8]) for _ in itertools.count())],
    ids=["cycle", "generator"],
)
def test_an_endless_stream_is_one_epoch_whose_row_comes_at_the_end(make):
    run = by_steps(10, data=make())
    assert run.position == {"epoch": 0, "batch": 10, "step": 10}
    assert [(row["epoch"], row["step"]) for row in run.history.epochs] == [(0, 10)]
    assert run.history.column("step", "evaluations") == [5, 10]
    assert_same(run.train(num_steps=3), by_steps(13, data=make()))


@pytest.mark.parametrize("given", [{}, {"steps_per_call": 3}, {"steps_per_epoch": 4}], ids=str)
def test_a_run_that_goes_on_with_an_endless_generator_loses_none_of_its_batches(given):
    numbers = (np.full((8, 1), i, np.float32) for i in itertools.count())
    seen = lambda output, batch: (output, {"seen": batch["x"][:, 0]})  # noqa: E731
    model = jfit.Model.from_function(lambda params, x: x[:, 0] * params, loss=seen, params=jnp.zeros(()))
    run = jfit.fit(model, numbers, num_steps=5, log_every=1, progress=False, **given).train(num_steps=4).train(num_steps=1)
    assert run.history.column("seen", "steps") == list(range(10))


def test_a_run_that_ended_with_its_stream_does_not_evaluate_the_same_step_twice():
    batches = lambda: ((X[i : i + 8], Y[i : i + 8]) for i in range(0, 32, 8))  # noqa: E731
    run = by_steps(4, data=batches, eval_every=jfit.every(steps=2)).train(num_steps=2)
    assert run.history.column("step", "evaluations") == [2, 4, 6]
    assert [(row["epoch"], row["step"], "val_loss" in row) for row in run.history.epochs] == [(0, 4, True), (1, 6, True)]


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("at", [6, 11])
@pytest.mark.parametrize("devices", [1, 2])
def test_an_endless_stream_with_a_position_resumes_with_its_bits(tmp_path, at, devices):
    given: dict[str, Any] = {"checkpoint_every": 4, "devices": devices}
    with pytest.raises(Killed):
        by_steps(data=Endless(), checkpoint=tmp_path / "a", callbacks=[*watched(), dies(at)], **given)
    again = by_steps(data=Endless(), checkpoint=tmp_path / "a", resume=True, callbacks=watched(), **given)
    assert_same(again, by_steps(data=Endless(), checkpoint=tmp_path / "b", callbacks=watched(), **given))


# ------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_epoch": 2, "num_steps": 3}, "num_epoch=2 and num_steps=3 are both passed; a run ends after"),
        ({"num_epoch": None, "num_steps": 0}, "num_steps is 0; expected an integer of at least 1"),
        ({"data": itertools.cycle([(X, Y)])}, "the cycle is endless, .*; pass steps_per_epoch=, or num_steps= to fit"),
        ({"eval_every": "step"}, "eval_every is 'step'; expected an integer of at least 1"),
        (
            {"data": ((X, Y) for _ in range(2)), "log_every": jfit.every(epochs=1)},
            r"log_every is every\(epochs=1\), but the number of batches per epoch is not known; pass every\(steps=",
        ),
    ],
)
def test_lengths_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        train(**given)


def test_an_endless_epoch_is_not_trained_to_its_end():
    run = by_steps(2, data=itertools.cycle([(X[:8], Y[:8])]), eval_data=None)
    with pytest.raises(ValueError, match="an epoch of the training data may be endless; pass num_steps="):
        run.train()


def test_an_interval_has_steps_or_epochs():
    assert jfit.every(steps=3) == jfit.Every(3) != jfit.every(epochs=3)
    with pytest.raises(ValueError, match="every: nothing passed; expected either steps= or epochs="):
        jfit.every()
    with pytest.raises(ValueError, match="every: steps and epochs passed"):
        jfit.every(steps=1, epochs=1)
    with pytest.raises(ValueError, match="every: epochs is 0; expected an integer of at least 1"):
        jfit.every(epochs=0)


def test_a_sweep_refuses_steps_with_a_sentence():
    over: dict[str, Any] = {"learning_rate": [0.1, 0.2]}
    with pytest.raises(ValueError, match=r"num_steps.*members train whole epochs; pass num_epoch"):
        jfit.sweep(mlp(), (X, Y), over=over, num_steps=3)
    with pytest.raises(ValueError, match=r"eval_every is every\(steps=5\), but members are evaluated after epochs"):
        jfit.sweep(mlp(), (X, Y), EVAL, over=over, eval_every=jfit.every(steps=5))


def test_a_monitored_evaluation_that_never_comes_is_an_error():
    with pytest.raises(ValueError, match=r"'val_loss' is not logged; .* Pass eval_data= to fit"):
        by_steps(eval_data=None, callbacks=[early_stopping()])
    with pytest.raises(ValueError, match="'val_los' is not logged; did you mean 'val_loss'"):
        by_steps(callbacks=[early_stopping("val_los")])
