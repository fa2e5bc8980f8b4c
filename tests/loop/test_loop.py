"""The training loop: order of events, stopping, Ctrl-C, exceptions, losses that are not finite."""

from __future__ import annotations

import os
import signal
import weakref

import jax
import numpy as np
import pytest
from fit_support import bits, blobs, mlp, train

import jfit
from jfit import counters
from jfit.callbacks import EVENTS, Callback, lambda_callback
from jfit.loop.dispatch import ResidentDispatcher
from jfit.loop.nonfinite import NonFiniteLoss


def recorder(seen: list, *, every: int | None = 4, kinds: tuple[str, ...] = EVENTS) -> Callback:
    wanted = {k: lambda event: seen.append(event) for k in kinds if k not in ("log", "checkpoint")}
    return lambda_callback(every=every, **wanted)


# ------------------------------------------------------------------------------------------------ events
def test_events_are_ordered_and_have_the_position_of_the_run():
    seen: list = []
    train(callbacks=[recorder(seen)], eval_data=blobs(9))
    where = [(e.kind, e.epoch, e.batch, e.step) for e in seen]
    assert where == [
        ("fit_start", 0, 0, 0),
        ("epoch_start", 0, 0, 0),
        ("step", 0, 4, 4),
        ("step_log", 0, 4, 4),
        ("evaluation", 0, 7, 7),
        ("epoch_end", 0, 7, 7),
        ("epoch_start", 1, 0, 7),
        ("step", 1, 1, 8),
        ("step", 1, 5, 12),
        ("step_log", 1, 1, 8),
        ("step_log", 1, 5, 12),
        ("evaluation", 1, 7, 14),
        ("epoch_end", 1, 7, 14),
        ("fit_end", 2, 0, 14),
    ]
    assert all(e.num_batches == 7 for e in seen)
    end = seen[5].logs
    assert {"loss", "accuracy", "lr", "time", "samples_per_second", "val_loss", "val_accuracy"} <= set(end)
    assert end["lr"] == pytest.approx(0.1) and end["samples_per_second"] > 0


def test_log_points_have_loss_metrics_learning_rate_and_speed(monkeypatch):
    monkeypatch.setattr("jfit.loop.pace.LOG_SECONDS", 0.0)
    seen: list = []
    run = train(data=blobs(400), batch_size=4, num_epoch=1, callbacks=[lambda_callback(log=seen.append)], steps_per_call=1)
    assert {"loss", "accuracy", "lr", "samples_per_second"} <= set(seen[0].logs)
    assert run.history.column("step", "points") == [16 + 8 * i for i in range(len(seen))]
    # Events are sent one log point later, with the position of their values.
    assert [e.step for e in seen] == [16 + 8 * i for i in range(len(seen))]


# ------------------------------------------------------------------------------------------------ errors on the way
def test_a_callback_that_raises_keeps_the_last_state_and_the_note_names_it():
    def fail(event):
        if event.step == 4:
            raise RuntimeError("the disk is full")

    ended: list = []
    with pytest.raises(RuntimeError, match="the disk is full") as caught:
        train(callbacks=[lambda_callback(every=2, step=fail), lambda_callback(fit_end=ended.append)])
    assert any("after step 4" in note and "jfit.last_run()" in note for note in caught.value.__notes__)
    run = jfit.last_run()
    assert run is not None and run.position == {"epoch": 0, "batch": 4, "step": 4} and int(run.state.step) == 4
    assert len(ended) == 1  # bars and files were closed
    assert run.score(blobs())["loss"] > 0


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("more", [{}, {"devices": 2, "steps_per_call": 1}, {"data_on_device": False}])
def test_a_deleted_run_is_freed_with_its_data(more):
    run = train(num_epoch=1, eval_data=blobs(9), **more)
    assert jfit.last_run() is run
    before, kept = weakref.ref(run._loop.dispatcher.data), weakref.ref(run)
    run.score(blobs(8))
    run.predict(blobs(8)[0])
    arrays = [weakref.ref(a) for a in jax.tree.leaves((run.state, getattr(run._loop.dispatcher.batches, "arrays", ())))]
    del run
    assert kept() is None and before() is None and jfit.last_run() is None
    assert [a for a in arrays if a() is not None] == []


def test_a_run_that_was_interrupted_is_kept_until_the_next_one():
    stop = lambda_callback(every=2, step=lambda event: signal.raise_signal(signal.SIGINT))
    interrupted = train(callbacks=[stop])
    assert interrupted.interrupted and interrupted.stop_reason == "interrupted by Ctrl-C"
    assert jfit.last_run().interrupted and jfit.last_run().position["step"] == 2
    run = train(num_epoch=1)
    assert jfit.last_run() is run


def test_the_first_exception_is_raised_even_if_closing_fails_too():
    def fail(event):
        raise RuntimeError("first") if event.kind == "epoch_end" else OSError("second")

    with pytest.raises(RuntimeError, match="first"):
        train(callbacks=[lambda_callback(epoch_end=fail, fit_end=fail)])


def test_an_exception_of_an_iterator_propagates_and_training_can_continue():
    x, y = blobs()
    broken = {"yes": True}

    def batches(epoch):
        for i in range(6):
            if i == 3 and epoch == 1 and broken["yes"]:
                raise OSError("bad sector")
            yield x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8]

    with pytest.raises(OSError, match="bad sector"):
        train(data=batches, num_epoch=3)
    run = jfit.last_run()
    assert run is not None and run.position == {"epoch": 1, "batch": 3, "step": 9}
    assert run.score((x, y))["accuracy"] > 0
    broken["yes"] = False
    run.train(2)
    assert run.position == {"epoch": 3, "batch": 0, "step": 18}
    assert bits(run.state) == bits(train(data=batches, num_epoch=3).state)


def lose_the_device(monkeypatch, at_step: int) -> None:
    """From `at_step` on a dispatch deletes the buffers of the state and raises."""
    original = ResidentDispatcher.dispatches

    def dispatches(self, *where):
        for dispatch in original(self, *where):

            def run(state, dispatch=dispatch):
                if int(state.step) < at_step:
                    return dispatch.run(state)
                jax.tree.map(lambda x: x.delete(), state)
                raise RuntimeError("INTERNAL: the device fell off the bus")

            yield dispatch._replace(run=run)

    monkeypatch.setattr(ResidentDispatcher, "dispatches", dispatches)


def test_after_losing_the_device_state_the_last_checkpoint_is_returned_and_named(monkeypatch, tmp_path):
    expected = train(num_epoch=1).snapshot()
    lose_the_device(monkeypatch, 10)
    with pytest.raises(RuntimeError, match="fell off the bus") as caught:
        train(num_epoch=3, checkpoint=tmp_path, steps_per_call=1)
    assert any(f"the checkpoint of step 7 from {tmp_path}" in note for note in caught.value.__notes__)
    run = jfit.last_run()
    assert run is not None and run.position == {"epoch": 1, "batch": 0, "step": 7}
    assert bits(run.state.params) == bits(expected.params)


def test_after_losing_the_device_state_without_a_checkpoint_the_note_mentions_it(monkeypatch):
    lose_the_device(monkeypatch, 3)
    with pytest.raises(RuntimeError) as caught:
        train(steps_per_call=1)
    assert any("there is no checkpoint; pass checkpoint=" in note for note in caught.value.__notes__)


# ------------------------------------------------------------------------------------------------ stops
def test_ctrl_c_between_two_epochs_starts_no_further_epoch():
    press = lambda_callback(epoch_end=lambda event: os.kill(os.getpid(), signal.SIGINT))
    run = train(num_epoch=5, callbacks=[press])
    assert run.interrupted and run.position == {"epoch": 1, "batch": 0, "step": 7}


def test_stop_ends_training_and_keeps_the_reason():
    run = train(num_epoch=9, callbacks=[lambda event: event.run.stop("enough") if event.epoch == 1 else None])
    assert run.stop_reason == "enough" and not run.interrupted and len(run.history) == 2
    run.train(1)
    assert run.stop_reason is None and len(run.history) == 3


def test_early_stopping_restores_the_best_state_and_the_step_count_continues():
    x, y = blobs()
    seen: dict[int, jfit.TrainState] = {}
    keep = lambda_callback(epoch_end=lambda event: seen.update({event.epoch: event.run.snapshot()}))
    # after two epochs the rate becomes absurd: the loss rises
    spoil = lambda_callback(epoch_end=lambda event: event.run.set_base_lr(50.0) if event.epoch == 1 else None)
    stopping = jfit.callbacks.early_stopping("loss", patience=2)
    run = train(mlp(hidden=6), (x, y), num_epoch=20, callbacks=[keep, spoil, stopping])
    best = int(np.argmin(run.history.column("loss")))
    assert len(run.history) == best + 3
    assert "early_stopping" in run.stop_reason
    assert bits(run.state.params) == bits(seen[best].params)
    assert int(run.state.step) == run.position["step"] == 7 * len(run.history)
    run.set_base_lr(0.01)
    assert np.isfinite(run.train(1).history.column("loss")[-1])


# ------------------------------------------------------------------------------------------------ learning rate
def test_setting_the_rate_never_compiles_and_is_logged():
    counts: list[int] = []

    def halve(event):
        counts.append(counters.COUNTS["compiles"])
        event.run.set_base_lr(event.run.base_lr / 2)

    run = train(num_epoch=4, callbacks=[lambda_callback(epoch_end=halve)])
    assert run.history.column("lr") == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    assert counts[0] == counts[-1]


# ------------------------------------------------------------------------------------------------ no numbers
@pytest.mark.parametrize("per_call", [1, 4])
def test_a_nan_loss_warns_once_with_the_step(per_call):
    x, y = blobs(64)
    x[40] = np.nan  # batch 5 of the unshuffled order
    with pytest.warns(NonFiniteLoss, match="not finite since step 5") as seen:
        run = train(data=(x, y), shuffle=False, steps_per_call=per_call, num_epoch=3)
    assert len(seen) == 1
    assert run.position["epoch"] == 3 and np.isnan(run.history.column("loss")[-1])


def test_snapshots_of_a_run_stay_valid_after_donation():
    kept: list = []
    run = train(num_epoch=3, callbacks=[lambda event: kept.append(event.run.snapshot())])
    assert [int(s.step) for s in kept] == [7, 14, 21]
    assert all(isinstance(v, np.ndarray) for v in jax.tree.leaves(kept[0]))
    assert bits(kept[-1]) == bits(run.state)
