"""Feeding of batches: steps per dispatch, incomplete last batches, resumption, numbers of programs and host waits, threads."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from fit_support import bits, blobs, convnet, mlp, rowmixer, same, train

import jfit
from jfit import counters
from jfit.loop.dispatch import auto_steps_per_call

IMAGES = blobs(26, (1, 8, 8))
NETS = {
    "mlp": (mlp(), None),
    "dropout": (mlp(dropout=0.5), None),
    "batch_norm": (mlp(batch_norm=True), None),
    "conv": (convnet(), IMAGES),
}
ONE_BY_ONE: dict[tuple[str, bool], jfit.Run] = {}


def one_by_one(name: str, resident: bool) -> jfit.Run:
    if (name, resident) not in ONE_BY_ONE:
        net, data = NETS[name]
        ONE_BY_ONE[name, resident] = train(net, data, steps_per_call=1, data_on_device=resident)
    return ONE_BY_ONE[name, resident]


# ------------------------------------------------------------------------------------------------ several steps a call
@pytest.mark.repetitions(1, slow=4)
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stream"])
@pytest.mark.parametrize("name", NETS)
def test_several_steps_a_call_give_the_bits_of_one_by_one(name, resident):
    net, data = NETS[name]
    # 50 rows: six full batches and a tail of two, so that 4 does not divide them
    assert same(one_by_one(name, resident), train(net, data, steps_per_call=4, data_on_device=resident))


@pytest.mark.slow
def test_several_steps_a_call_agree_on_two_devices():
    one = train(mlp(dropout=0.5), devices=2, steps_per_call=1)
    assert same(one, train(mlp(dropout=0.5), devices=2, steps_per_call=4))
    assert same(one, train(mlp(dropout=0.5), devices=2, steps_per_call=4, data_on_device=False))


@pytest.mark.optimized
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stream"])
def test_a_dispatch_ends_at_the_next_callback_boundary(resident):
    seen = []
    callback = jfit.callbacks.lambda_callback(every=3, step=lambda event: seen.append((event.epoch, event.batch, event.step)))
    run = train(steps_per_call=8, callbacks=[callback], data_on_device=resident)
    assert seen == [(0, 3, 3), (0, 6, 6), (1, 2, 9), (1, 5, 12)]
    assert same(run, one_by_one("mlp", resident))


def test_on_cpu_small_dense_nets_run_many_steps_per_dispatch_and_convolutional_nets_one():
    small, conv = jfit.lower(mlp()), jfit.lower(convnet())
    assert auto_steps_per_call(small, {"w": np.zeros(100)}, 64) == 32
    assert auto_steps_per_call(small, {"w": np.zeros(10**8)}, 64) == 1
    if jax.default_backend() == "cpu":
        assert auto_steps_per_call(conv, {"w": np.zeros(100)}, 64) == 1


# ------------------------------------------------------------------------------------------------ tails and padding


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stream"])
def test_rows_that_can_neither_be_padded_nor_divided_raise(resident):
    with pytest.raises(ValueError, match=r"a batch of 5 rows does not divide into 2 equal parts.*mixes the rows"):
        train(rowmixer(), blobs(21), devices=2, data_on_device=resident)


@pytest.mark.slow
@pytest.mark.optimized
# ------------------------------------------------------------------------------------------------ positions
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stream"])
def test_training_continues_identically_from_any_batch(resident):
    whole = one_by_one("dropout", resident)
    for at in (1, 6, 7):  # 6: before the tail, 7: after it, before the epoch's end
        stop = jfit.callbacks.lambda_callback(every=at, step=lambda e, at=at: e.run.stop() if e.step == at else None)
        run = train(NETS["dropout"][0], callbacks=[stop], steps_per_call=4, data_on_device=resident)
        assert run.position == {"epoch": 0, "batch": at, "step": at}
        run.train(2)
        assert bits(run.state) == bits(whole.state)
        assert run.history.column("loss") == whole.history.column("loss")


# ------------------------------------------------------------------------------------------------ programs and waits
def epochs_of(seen_at_end: list, **given):
    """Train three epochs; the counts of each epoch."""
    marks = []
    mark = jfit.callbacks.lambda_callback(epoch_end=lambda event: marks.append(dict(counters.COUNTS)))
    counters.listen()
    start = dict(counters.COUNTS)
    run = train(num_epoch=3, callbacks=[mark], **given)
    for before, after in zip([start, *marks], marks, strict=False):
        seen_at_end.append({k: after[k] - before.get(k, 0) for k in after if after[k] != before.get(k, 0)})
    return run


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stream"])
@pytest.mark.parametrize("per_call", [1, 4])
def test_an_epoch_with_an_incomplete_batch_compiles_two_train_programs_and_later_epochs_none(resident, devices, per_call):
    seen: list[dict[str, int]] = []
    epochs_of(seen, eval_data=blobs(21), devices=devices, data_on_device=resident, steps_per_call=per_call)
    trained = sum(v for k, v in seen[0].items() if k.startswith("traces:train"))
    assert trained == 2
    assert seen[0]["traces:eval"] == 1
    for later in seen[1:]:
        assert "compiles" not in later and "traces" not in later, later


def test_on_cpu_a_convolutional_net_always_runs_one_step_per_dispatch():
    seen: list[dict[str, int]] = []
    epochs_of(seen, net=convnet(), data=IMAGES, steps_per_call=2, batch_size=8)  # 3 full batches and the tail
    programs = {k for k in seen[0] if k.startswith("traces:")} - {"traces:initial_values", "traces:init_optimizer"}
    assert programs == {"traces:train", "traces:train_tail"}
    assert all("compiles" not in later for later in seen[1:])


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stream"])
def test_an_epoch_of_a_hundred_steps_waits_at_most_fifteen_times(resident):
    seen: list[dict[str, int]] = []
    epochs_of(seen, data=blobs(400), batch_size=4, steps_per_call=1, data_on_device=resident)
    assert all(0 < epoch["host_syncs"] <= 15 for epoch in seen), seen


def test_the_training_loop_reads_from_devices_only_through_the_counters(monkeypatch):
    kind = type(jax.numpy.zeros(1))
    allowed: list[bool] = []
    forbidden: list[str] = []
    for name in ("__array__", "__float__", "__int__", "__bool__", "__index__", "item", "tolist", "block_until_ready"):
        original = getattr(kind, name)

        def spy(self, *args, _name=name, _original=original, **kwargs):
            if not allowed:
                forbidden.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(kind, name, spy)
    for name in ("read", "wait"):
        original = getattr(counters, name)

        def counted(value, _original=original):
            allowed.append(True)
            try:
                return _original(value)
            finally:
                allowed.pop()

        monkeypatch.setattr(counters, name, counted)
    watched = jfit.callbacks.lambda_callback(epoch_start=lambda event: forbidden.clear())
    train(data=blobs(200), eval_data=blobs(21), batch_size=4, callbacks=[watched], steps_per_call=1)
    assert forbidden == []
    assert float(jax.numpy.zeros(())) == 0 and forbidden == ["__float__"]  # the spy does see what it is there for
