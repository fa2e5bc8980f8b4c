"""Resuming a run gives bitwise the same result as an uninterrupted run, with any optimizer."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_support import Killed, bits, blobs, dies, mlp, same, train

import jfit
from jfit import optim
from jfit.callbacks import Callback, early_stopping, lambda_callback, saving
from jfit.checkpoints import checkpoint, writing

HARD = {
    "schedule": jfit.optim.cosine(base_lr=0.1, max_update=28),
    "num_epoch": 4,
}


def hard(**given) -> jfit.Run:
    """Dropout, shuffling, a schedule, momentum and a ragged tail: everything that remembers."""
    return train(mlp(dropout=0.5), **(HARD | given))


@pytest.mark.repetitions(1)
# ------------------------------------------------------------------------------------------------ equal bits
@pytest.mark.parametrize("given", [{}, {"devices": 2}, {"data_on_device": False}], ids=["one", "two devices", "stream"])
def test_a_stopped_and_resumed_training_equals_an_uninterrupted_one(tmp_path, given):
    hard(num_epoch=2, checkpoint=tmp_path, **given)
    assert same(hard(checkpoint=tmp_path, resume=True, **given), hard(**given))


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("given", [{}, {"devices": 2}, {"data_on_device": False}], ids=["one", "two devices", "stream"])
def test_a_checkpoint_in_the_middle_of_an_epoch_resumes_there(tmp_path, given):
    with pytest.raises(Killed):
        hard(checkpoint=tmp_path, checkpoint_every=4, callbacks=[dies(11)], **given)
    newest = jfit.checkpoint.latest(tmp_path)
    assert newest is not None and newest.name == "step-00000008"
    seen: list = []
    watch = lambda_callback(fit_start=lambda e: seen.append((e.epoch, e.batch, e.step)))
    again = hard(checkpoint=tmp_path, checkpoint_every=4, resume=True, callbacks=[watch], **given)
    assert seen == [(1, 1, 8)]
    assert same(again, hard(**given))


def test_a_checkpoint_at_the_last_step_of_an_epoch_finishes_the_epoch_first(tmp_path):
    with pytest.raises(Killed):
        hard(checkpoint=tmp_path, checkpoint_every=7, callbacks=[dies(8)])
    again = hard(checkpoint=tmp_path, resume=True)
    whole = hard()
    assert bits(again.state) == bits(whole.state)
    assert again.history.column("loss") == whole.history.column("loss")


def test_the_state_at_the_end_of_training_is_always_saved_and_once(tmp_path, monkeypatch):
    written: list[int] = []
    write = lambda prepared, *args: (written.append(prepared.record["step"]), writing.write(prepared, *args))[1]  # noqa: E731
    monkeypatch.setattr(saving, "write", write)

    def steps(folder: str, **given: Any) -> list[int]:
        written.clear()
        run = train(checkpoint=tmp_path / folder, **given)
        assert bits(jfit.Run.load(tmp_path / folder).params) == bits(run.params)
        return list(written)

    def at(step: int, act: Callable[[Any], Any]) -> Callback:
        return lambda_callback(every=step, step=lambda event: act(event) if event.step == step else None)

    assert steps("a", checkpoint_every=10) == [10, 14] and steps("b", checkpoint_every=7) == [7, 14]
    assert steps("c", checkpoint_every=10, checkpoint_best="accuracy")[-1] == 14 and steps("d") == [7, 14]
    stops = {
        "run.stop": at(3, lambda event: event.run.stop()),
        "Ctrl-C": at(3, lambda event: signal.raise_signal(signal.SIGINT)),
        "early stopping": early_stopping("loss", patience=1, min_delta=1e9, restore_best=False),
    }
    last = {name: steps(name, checkpoint_every=10, num_epoch=9, callbacks=[stop]) for name, stop in stops.items()}
    assert last == {"run.stop": [3], "Ctrl-C": [3], "early stopping": [10, 14]}
    # the best state, that of the first epoch, is restored at the end, and again if a stopped run is resumed
    restored = [early_stopping("loss", patience=1, min_delta=1e9)]
    assert steps("f", num_epoch=9, callbacks=restored) == [7, 14, 14]
    assert jfit.Run.load(tmp_path / "f").position["step"] == 14
    resumed = train(num_epoch=2, checkpoint=tmp_path / "Ctrl-C", resume=True)
    assert same(resumed, train(num_epoch=2))
    assert steps("a", checkpoint_every=10, resume=True) == []  # the last checkpoint has the final state
    assert steps("e", resume=tmp_path / "a") == [14]  # nothing is left to train, but the folder is another one


# ------------------------------------------------------------------------------------------------ where from
def test_resume_without_a_checkpoint_starts_a_new_run(tmp_path):
    assert same(train(checkpoint=tmp_path / "none", resume=True), train())


# ------------------------------------------------------------------------------------------------ callbacks
def test_early_stopping_continues_its_count(tmp_path):
    never_better = lambda: early_stopping("loss", patience=4, min_delta=1e9, restore_best=False)  # noqa: E731
    train(num_epoch=3, checkpoint=tmp_path, callbacks=[never_better()])
    again = train(num_epoch=9, checkpoint=tmp_path, resume=True, callbacks=[never_better()])
    assert len(again.history) == 5 and "early_stopping" in (again.stop_reason or "")


def test_two_callbacks_of_one_name_have_separate_states(tmp_path):
    def counter(step: int) -> Callback:
        return Callback(on=lambda event, state: state + step, init=lambda: 0, events=("epoch_end",), name="count")

    train(num_epoch=1, checkpoint=tmp_path, callbacks=[counter(1), counter(10)])
    again = train(num_epoch=2, checkpoint=tmp_path, resume=True, callbacks=[counter(1), counter(10)])
    assert [p for p in again.meta()["callbacks"] if p[0] == "count"] == [["count", 2], ["count", 20]]


# ------------------------------------------------------------------------------------------------ a real death
def test_a_new_run_moves_the_checkpoints_of_an_earlier_one_aside(tmp_path):
    train(num_epoch=3, checkpoint=tmp_path)
    train(num_epoch=1, checkpoint=tmp_path, seed=5)
    resumed = train(num_epoch=2, checkpoint=tmp_path, seed=5, resume=True)
    assert same(resumed, train(num_epoch=2, seed=5))
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "earlier-1").iterdir()) == ["step"] * 3


# ------------------------------------------------------------------------------------------------ loaders with a position
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("kind", ["MapDataset", "IterDataset", "DataLoader"])
def test_grain_is_resumed_exactly_in_the_middle_of_an_epoch(tmp_path, kind):
    grain = pytest.importorskip("grain")
    rows = [{"data": x, "softmax_label": y} for x, y in zip(*blobs(), strict=True)]

    def make():
        if kind == "DataLoader":
            sampler = grain.samplers.IndexSampler(
                50, shuffle=True, seed=3, num_epochs=1, shard_options=grain.sharding.NoSharding()
            )
            return grain.DataLoader(data_source=rows, sampler=sampler, operations=[grain.transforms.Batch(8)], worker_count=0)
        found = grain.MapDataset.source(rows).shuffle(seed=3)
        return found.batch(8) if kind == "MapDataset" else found.to_iter_dataset().batch(8)

    given = {"num_epoch": 2, "checkpoint": tmp_path, "checkpoint_every": 4}
    with pytest.raises(Killed):
        train(data=make(), callbacks=[dies(10)], **given)
    kept = jfit.checkpoint.load_meta(tmp_path)
    assert kept["position"]["step"] == 8 and kept["data"] is not None
    assert same(train(data=make(), resume=True, **given), train(data=make(), num_epoch=2))


NAMES = sorted({entry: name for name, entry in reversed(optim.OPTIMIZERS.items())}.values())
SETTINGS = {
    "lars": {"momentum": 0.9},
    "lbsgd": {"momentum": 0.9, "batch_scale": 2},
    "nag": {"momentum": 0.9},
    "rmsprop": {"centered": True},
    "sgd": {"momentum": 0.9},
}
# a weight of 32 bits and one of 16, so that one has a master and the other None in its place
START = {"a_weight": jnp.ones((2, 1)), "b_weight": jnp.ones((1, 2), jnp.float16)}
ROWS_OF_TWO = {"x": np.arange(6, dtype="float32").reshape(3, 2) / 6, "label": np.ones(3, "float32")}


def forward(p, x):
    return x @ p["a_weight"] * p["b_weight"].sum().astype(jnp.float32)


MODEL = jfit.Model.from_function(forward, loss=lambda out, label: (out - label[:, None]) ** 2, params=START)


# of each kind of state one: a slot, none but a key, a count and scalars that are shared, a copy of the weight
FAST = ("sgd", "sgld", "nadam", "dcasgd")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
@pytest.mark.repetitions(slow=6)
def test_a_stop_between_two_steps_changes_no_bit(name, tmp_path):
    params = {"learning_rate": 0.1, "multi_precision": True, "lr_mult": {"b_weight": 0.5}, **SETTINGS.get(name, {})}
    made = optim.get(name, **params)
    step = jax.jit(jfit.train_step(MODEL, made))
    begin = functools.partial(jfit.init_state, MODEL, made, ROWS_OF_TWO)
    half = step(step(begin(), ROWS_OF_TWO)[0], ROWS_OF_TWO)[0]
    checkpoint.save(tmp_path, half)
    again = checkpoint.restore(tmp_path, begin(seed=1))
    straight, resumed = (step(step(state, ROWS_OF_TWO)[0], ROWS_OF_TWO)[0] for state in (half, again))
    assert jax.tree.structure(straight) == jax.tree.structure(resumed)
    for one, other in zip(jax.tree.leaves(straight), jax.tree.leaves(resumed), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    moved = [not np.array_equal(straight.params[n], START[n]) for n in START]
    assert any(moved), "nothing was learned, so nothing was tested"
    assert straight.opt_state.slots["master"]["a_weight"] is None
    assert straight.opt_state.slots["master"]["b_weight"].dtype == jnp.float32
