"""Rules for the reduction of gradients over devices: their numbers, bytes, residuals, and what they do with NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_nets import assert_equal, batch_norm_net, batch_of, mlp, weighted
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import jfit
from jfit import counters
from jfit.data import Batch
from jfit.optim.rows import SparseRows
from jfit.parallel import Traffic, collectives, compile_spmd
from jfit.step import reduce
from jfit.step.packed import pack, psum, sum_bfloat16, sum_signs, unpack
from jfit.step.reduce import Reduce, quantize

ACC = jfit.metrics.get(["acc", "ce"])


# ------------------------------------------------------------------------------------------ oracles
@functools.cache
def unpacked_two_bit(threshold: float = 0.5) -> Reduce:
    """2-bit quantization whose values are summed as floats: MXNet's numbers, without saving a byte."""

    def apply(gradients, sums, local, axis_name):
        sent, residuals = {}, dict(local)
        for name, gradient in gradients.items():
            gradient = gradient.dense(len(local[name])) if isinstance(gradient, SparseRows) else gradient
            sent[name], residuals[name] = quantize(gradient, local[name], threshold)
        if axis_name is not None:
            sent, sums = lax.psum((sent, sums), axis_name)
        return sent, sums, residuals

    return Reduce(lambda gradients: jax.tree.map(jnp.zeros_like, gradients), apply)


@functools.cache
def applied(rule):
    return jax.jit(jax.vmap(lambda g, s, r: rule.apply(g, s, r, "d"), axis_name="d"))  # vmap has the collectives of pmap


def on_devices(rule, gradients, local=None, sums=()):
    """Apply a rule to gradients with a leading device axis.  Returns numpy arrays."""
    if local is None:
        local = {} if rule.init({}) is None else jax.tree.map(np.zeros_like, gradients)
    return jax.tree.map(np.asarray, applied(rule)(gradients, sums, local))


def gradients_of(devices, rng, scale=1.0):
    shapes = {"w": (5, 7), "b": (3,), "one": ()}
    return {k: np.asarray(scale * rng.normal(size=(devices, *shape)), np.float32) for k, shape in shapes.items()}


# ------------------------------------------------------------------------------------------ packed words
@pytest.mark.parametrize("size", [0, 1, 33])
def test_packed_integers_unpack_to_themselves(size, rng):
    values = rng.integers(0, 2**32, size=(2, size), dtype=np.uint32)
    codes = {bits: values & np.uint32(2**bits - 1) for bits in (1, 2, 3, 5, 8, 9, 16, 32)}
    words = jax.jit(lambda codes: {bits: pack(c, bits) for bits, c in codes.items()})(codes)
    assert {bits: w.shape for bits, w in words.items()} == {bits: (2, -(-size // (32 // bits))) for bits in codes}
    assert_equal(jax.jit(lambda words: {bits: unpack(w, bits, size) for bits, w in words.items()})(words), codes)


SHAPES = [(1, 3), (2, 17), (3, 16), (5, 1), (8, 100), (8, 0), (130, 40)]  # 130 devices: sums of 9 bits


@functools.cache
def summed(fn, devices, size):
    return jax.jit(jax.vmap(lambda x: fn(x, "d"), axis_name="d"))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 999))
def test_sums_of_signs_are_exact_on_any_number_of_devices(shape, seed):
    signs = np.random.default_rng(seed).integers(-1, 2, size=shape).astype(np.int8)
    signs[:, : seed % 3] = seed % 3 - 1  # all devices agree: the largest sums
    assert_equal(summed(sum_signs, *shape)(signs), np.tile(signs.sum(axis=0, dtype=np.int32), (shape[0], 1)))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 999))
def test_bfloat16_sums_are_within_their_error_bound(shape, seed):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6, size=(1, shape[1]))).astype(np.float32)
    sums = np.asarray(summed(sum_bfloat16, *shape)(values))
    exact, magnitudes = values.astype(np.float64).sum(axis=0), np.abs(values).astype(np.float64).sum(axis=0)
    assert np.all(np.abs(sums - exact[None]) <= (2**-7 * (1 + 2**-8) + shape[0] * 2**-23) * magnitudes[None])
    assert_equal(sums, np.tile(sums[:1], (shape[0], 1)))


def test_integers_are_summed_with_the_floats_and_wrap_around():
    values = {"i": np.array([[2**31 - 1, -7], [1, 3]], np.int32), "f": np.float32([[0.5], [1]]), "u": np.uint8([[255], [3]])}
    sums = jax.vmap(lambda x: psum(x, "d"), axis_name="d")(values)
    assert {k: (v.dtype, v[1].tolist()) for k, v in sums.items()} == {
        "i": (jnp.int32, [-(2**31), -4]),
        "f": (jnp.float32, [1.5]),
        "u": (jnp.uint8, [2]),
    }


# ------------------------------------------------------------------------------------------ numbers of the rules
@pytest.mark.parametrize("threshold", [0.5, 0.1])
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_packed_and_unpacked_2_bit_quantization_agree_bit_by_bit(devices, threshold, rng):
    locals_ = [None, None]
    for _ in range(4):
        gradients, sums = gradients_of(devices, rng, threshold), jnp.arange(devices)
        results = [
            on_devices(rule(threshold), gradients, local, sums)
            for rule, local in zip((reduce.two_bit, unpacked_two_bit), locals_, strict=True)
        ]
        locals_ = [result[2] for result in results]
        if threshold == 0.1 and devices == 8:  # k * 0.1 is rounded once, a sum of k times 0.1 is rounded k times
            for k, v in results[1][0].items():
                np.testing.assert_allclose(results[0][0][k], v, rtol=devices * 2**-24)
            assert_equal(results[0][1:], results[1][1:])
        else:
            assert_equal(results[0], results[1])


@pytest.mark.parametrize("name", ["psum", "bfloat16", "2bit"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_on_one_device_shows_in_the_result(name, value, rng):
    rule, gradients = reduce.get(name), gradients_of(4, rng)
    gradients["w"][2, 1, 1] = value
    result, _, local = on_devices(rule, gradients)
    assert not np.isfinite(result["w"][:, 1, 1]).any()
    assert all(np.isfinite(result[k]).all() for k in ("b", "one"))
    assert all(
        np.isfinite(x).all() for x in jax.tree.leaves(local)
    )  # the next gradient is quantized as if nothing had happened
    after, _, _ = on_devices(rule, gradients_of(4, rng), local)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))


@pytest.mark.parametrize("name", ["psum", "bfloat16", "2bit"])
def test_rules_keep_dtypes_and_sum_the_rows_of_tables(name, rng):
    rows = SparseRows(jnp.array([[2, 0, 2], [1, 1, 3]]), jnp.asarray(rng.normal(size=(2, 3, 2)), jnp.float32))
    rule, tables = reduce.get(name), {"t": jnp.zeros((2, 4, 2)), "h": jnp.zeros((2, 5), jnp.float16), "e": jnp.zeros((2, 0))}
    half = jnp.asarray(rng.normal(size=(2, 5)), jnp.float16)
    result, _, _ = on_devices(rule, {"t": rows, "h": half, "e": tables["e"]}, jax.vmap(rule.init)(tables))
    dense = jax.vmap(lambda r: r.dense(4))(rows)
    expected = {"t": dense, "h": half} if name in ("psum", "bfloat16") else None
    if expected is None:
        expected, _, _ = on_devices(rule, {"t": dense, "h": half})
        assert_equal(result["t"], expected["t"])
    else:
        table = jax.vmap(lambda r: SparseRows(r.indices, r.values).dense(4))(result["t"])
        np.testing.assert_allclose(table[0], dense.sum(axis=0), atol=1e-6)
    assert result["h"].dtype == np.float16 and result["e"].shape == (2, 0)
    assert rule.apply({}, (), rule.init({}), None)[0] == {}


# ------------------------------------------------------------------------------------------ bytes of a training step
def step_of(model, devices, rule="psum", *, metrics=ACC, batch=None, **options):
    batch = batch_of(16) if batch is None else batch
    parallel = jfit.data_parallel(jfit.train_step(model, "sgd", metrics=metrics, **options), devices, reduce=rule)
    inputs = batch.inputs if isinstance(batch, Batch) else batch
    return parallel, parallel.place(jfit.init_state(model, "sgd", inputs, metrics=metrics)), batch


def elements(tree) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.mark.repetitions(2)
@pytest.mark.optimized
@pytest.mark.parametrize("case", ["mlp", "batch norm", "batch norm, weights", "micro-batches"])
def test_psum_is_one_all_reduce_of_the_gradients_and_a_few_scalars(case):
    model = batch_norm_net() if "norm" in case else mlp()
    batch = weighted(batch_of(16), [0, *[1] * 15], [1] * 16) if "weights" in case else None
    parallel, state, batch = step_of(model, 4, micro_batches=2 if "micro" in case else 1, batch=batch)
    traffic = collectives(parallel, state, batch)
    # loss sum, rows, sum of cross-entropies; accuracy: two integers, as bytes; with weights: devices that have rows
    scalars = 3 + 2 * 4 + ("weights" in case)
    arrays = 4 * (elements(state.params) + elements(state.aux))
    assert traffic.all_reduce.count == traffic.total.count == 1
    assert arrays < traffic.total.operand_bytes <= arrays + 4 * scalars
    assert traffic.total.wire_bytes == 1.5 * traffic.total.operand_bytes


@pytest.mark.repetitions(1)
@pytest.mark.optimized
@pytest.mark.parametrize("devices", [2, 8])
def test_each_rule_sends_its_bytes(devices):
    sent, shapes = {}, {"w": (300, 80), "b": (300,)}
    for name in ("psum", "bfloat16", "2bit"):
        rule = reduce.get(name)

        def apply(gradients, sums, local, *, axis_name, rule=rule):
            return rule.apply(gradients, sums, local, axis_name)

        gradients = {k: jax.ShapeDtypeStruct((devices, *shape), np.float32) for k, shape in shapes.items()}
        program = compile_spmd(apply, jax.devices()[:devices], (0, 0, 0), (None, None, 0), name="reduce")
        local = None if rule.init({}) is None else gradients
        traffic = collectives(program, gradients, jax.ShapeDtypeStruct((devices,), np.float32), local)
        of_sums = 0 if name == "psum" else traffic.all_reduce.wire_bytes
        assert traffic.all_reduce.count == 1 and of_sums <= 32
        sent[name] = (traffic.total.wire_bytes - of_sums) / 24_300
        exchange = name in ("bfloat16", "2bit") and devices > 2
        assert (traffic.all_to_all.count, traffic.all_gather.count) == (exchange, name != "psum")
        assert traffic.reduce_scatter == traffic.collective_permute == Traffic()
    ring = (devices - 1) / devices
    expected = {
        "psum": 8 * ring,
        "bfloat16": 4 * ring,
        "2bit": (devices - 1) / 4 if devices == 2 else ring * (1 / 4 + 4 / 6),  # sums of 8 devices: 5 bits, 6 in a word
    }
    assert sent == pytest.approx(expected, rel=0.02)  # the last words are padded


# ------------------------------------------------------------------------------------------ training
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_training_with_packed_words_has_the_bits_of_the_unpacked_rule(devices):
    states = []
    for rule in (reduce.two_bit(0.25), unpacked_two_bit(0.25)):
        parallel, state, batch = step_of(mlp(), devices, rule)
        for _ in range(5):
            state, _ = parallel(state, batch)
        states.append(state)
    assert np.asarray(states[0].params["fc1_bias"]).any()
    assert_equal(states[0]._replace(metrics=None), states[1]._replace(metrics=None))


@pytest.mark.parametrize("name", ["bfloat16", "2bit"])
def test_replicas_stay_equal_and_the_second_step_compiles_nothing(name):
    parallel, state, batch = step_of(mlp(), 4, name)
    state, _ = parallel(state, batch)
    with counters.counted() as seen:
        state, _ = parallel(state, batch)
    assert seen["compiles"] == seen["traces"] == seen["host_syncs"] == 0
    for leaf in jax.tree.leaves((state.params, state.opt_state)):
        assert len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2bit"])
def test_a_resumed_run_has_the_residuals_and_bits_of_an_uninterrupted_one(name, tmp_path, rng):
    x = rng.normal(size=(64, 3)).astype(np.float32)
    fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=1, name="fc")
    net, data = jfit.sym.LinearRegressionOutput(fc, name="out"), (x, x @ np.float32([[1], [-2], [0.5]]))
    settings = {"batch_size": 16, "devices": 4, "reduce": name, "progress": False}
    straight = jfit.fit(net, data, num_epoch=4, **settings)
    jfit.fit(net, data, num_epoch=2, checkpoint=tmp_path, **settings)
    resumed = jfit.fit(net, data, num_epoch=4, checkpoint=tmp_path, resume=True, **settings)
    assert_equal((resumed.params, resumed.state.local), (straight.params, straight.state.local))
    with pytest.raises(ValueError, match=r"local/fc_bias has shape \(4, 1\) in the checkpoint, expected \(2, 1\)"):
        jfit.fit(net, data, num_epoch=5, checkpoint=tmp_path, resume=True, **{**settings, "devices": 2})


@pytest.mark.parametrize("name", ["2bit"])
def test_a_nan_gradient_on_one_device_ends_in_first_bad_step(name):
    """At s = 0, 0 * sqrt(s) is 0 and its gradient is NaN: the loss of that step is finite, that of the next is NaN."""

    def net(p, x):
        return x @ p["w"] + p["s"] + 0 * jnp.sqrt(jnp.where(x[:, 0] > 50, p["s"], 1))

    model = jfit.Model.from_function(net, loss=optax.l2_loss, params={"w": jnp.ones(2), "s": jnp.zeros(())})
    x = np.ones((8, 2), np.float32)
    batches = [{"x": x, "label": np.full(8, 2, np.float32)} for _ in range(3)]  # no error, so that s stays 0
    batches[1]["x"] = np.concatenate([x[:7], 99 * x[:1]])  # one row of the last device
    parallel = jfit.data_parallel(jfit.train_step(model, "sgd"), 4, reduce=name)
    state, bad = parallel.place(jfit.init_state(model, "sgd", batches[0])), []
    for batch in batches:
        state, out = parallel(state, batch)
        bad.append(int(out.first_bad_step))
    assert bad == [-1, -1, 2]


def test_residuals_of_other_devices_raise_and_rules_without_state_drop_them(tmp_path):
    model = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=optax.l2_loss, params={"w": jnp.ones(2)})
    state = jfit.init_state(model, "sgd", learning_rate=0.1)
    step = jfit.train_step(model, "sgd")
    placed = {n: jfit.data_parallel(step, n, reduce="2bit").place(state) for n in (1, 4)}
    for before, after, found, expected in [(4, 1, r"\(4, 2\)", r"\(2,\)"), (1, 4, r"\(2,\)", r"\(4, 2\)")]:
        with pytest.raises(ValueError, match=rf"state.local\['w'\].* has shape {found}, expected {expected} on {after} device"):
            jfit.data_parallel(step, after, reduce="2bit").place(placed[before])
    for rule in ("psum", "bfloat16", "sharded"):
        assert jfit.data_parallel(step, 2, reduce=rule).place(placed[4]).local is None
    path = jfit.checkpoint.save(tmp_path, placed[4])
    with pytest.raises(ValueError, match=r"local/w is in the checkpoint.*residuals of reduce='2bit', one per device"):
        jfit.checkpoint.restore(path, like=state)


@pytest.mark.slow
def test_a_run_resumed_with_another_rule_starts_with_residuals_of_0_or_drops_them(tmp_path, rng):
    def run(epochs, rule, **options):
        return jfit.fit(
            lambda p, x: x @ p["w"], (x, x @ np.float32([1, -2])), loss=optax.l2_loss, params={"w": jnp.ones(2)}, batch_size=8,
            num_epoch=epochs, devices=4, reduce=rule, progress=False, checkpoint=tmp_path, **options,
        )  # fmt: skip

    x = rng.normal(size=(16, 2)).astype(np.float32)
    first = run(1, "psum")
    with pytest.warns(UserWarning, match="has no residuals for the reduce= of this run: they start at 0"):
        same = run(1, "2bit", resume=True, resume_with="reduce")  # without a step, because the epoch is complete
    assert_equal((same.params, same.state.local), (first.params, {"w": np.zeros((4, 2), np.float32)}))
    with pytest.warns(UserWarning, match="they start at 0"):
        trained = run(2, "2bit", resume=True, resume_with="reduce")
    assert np.any(trained.state.local["w"])
    with pytest.warns(UserWarning, match="has residuals of reduce='2bit'.*: they are dropped"):
        dropped = run(2, "psum", resume=True, resume_with="reduce")
    assert dropped.state.local is None
    assert_equal(dropped.params, trained.params)


def test_unknown_rules_and_thresholds_raise():
    with pytest.raises(ValueError, match="reduce is 'two'; expected one of 'psum', 'bfloat16', '2bit', "):
        reduce.get("two")
