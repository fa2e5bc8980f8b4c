"""What README says about training JAX functions, for the trainings of `function_models`: `fit` computes the losses, metrics
and parameters of the same training by hand, whatever the batches, devices and dispatches, and after a resumption."""

from __future__ import annotations

import functools
import zlib

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


@pytest.mark.repetitions(3)
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
        data = jfit.data.ArrayData({**inputs, **({"label": label} if one.labelled else {})}, weight=weight, shuffle=False)
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
    assert_close(by_fit(CASES[name].build(), devices=2), by_hand(name, devices=2))


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
    data = jfit.data.ArrayData({"label": one.label}, seed=3)
    orders = [data.order(epoch) for epoch in range(EPOCHS)]
    assert all(sorted(order) == list(range(one.rows)) for order in orders) and list(orders[0]) != list(orders[1])
    assert_close(by_fit(one, shuffle=True, seed=3), models.by_hand(one, order=lambda epoch: orders[epoch]))


@pytest.mark.repetitions(1, slow=5)
@pytest.mark.parametrize("name", half([n for n in CASES if n != TREES], "DQN, target network in aux"))
def test_a_loop_of_training_steps_computes_what_fit_does(name):
    """Batches of their true size, in a loop of the user around the jitted step."""
    one = CASES[name].build()
    optimizer = get_for(False, one.fit.get("optimizer", one.optimizer), **one.fit.get("optimizer_params", {}))
    options = {k: v for k, v in one.fit.items() if k in ("schedule", "clip_norm")}
    scalar = one.fit.get("loss_per_batch", False)
    model = jfit.Model.from_function(one.apply, loss=one.loss, params=one.params, aux=one.aux, loss_per_batch=scalar)
    arrays = {**one.inputs, **({"label": one.label} if one.labelled else {})}
    state = jfit.init_state(model, optimizer, arrays)
    step, losses = jax.jit(jfit.train_step(model, optimizer, **options)), []
    for low in [*range(0, one.rows, BATCH)] * EPOCHS:
        rows = slice(low, low + BATCH)
        batch = {name: x[rows] for name, x in arrays.items()}
        state, out = step(state, batch if one.weight is None else jfit.Batch(batch, one.weight[rows]))
        losses.append(float(out.loss))
    expected, trees = by_hand(name), model.structure
    result = expected._replace(params=trees.params.unflatten(state.params), aux=trees.aux.unflatten(state.aux))
    assert differences(result, expected)["parameters"] <= TOLERANCE
    if one.weight is None and one.sums is None:
        counts = [len(range(low, min(low + BATCH, one.rows))) for low in range(0, one.rows, BATCH)]
        mean = np.average(losses[: len(counts)], weights=counts)
        assert mean == pytest.approx(expected.epochs[0]["loss"], rel=TOLERANCE)
