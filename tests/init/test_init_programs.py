"""Initial values by programs that all models share: the bits of a compiled program of each initializer, and no compiles."""

import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
import jfit.mx as mx
from jfit import counters, init, sym
from jfit.init import InitDesc, Initializer, draw_all, sampling
from jfit.init.core import draw_one
from jfit.init.sampling import ROWS, VALUES_ON_HOST, WIDTH

KEY = jax.random.key(11)
PROGRAM = ROWS * WIDTH


def reference(start, key, parameters):
    """Each parameter by a program of its own: what `draw_all` returned before programs were shared."""
    values = {}
    for name, (desc, spec) in parameters.items():
        draw = lambda k, desc=desc, spec=spec: start(k, desc, spec.shape, spec.dtype)  # noqa: E731
        values[name] = jax.jit(draw)(jax.random.fold_in(key, zlib.crc32(name.encode())))
    return values


def described(shapes, dtype="float32", **attrs):
    specs = {n: jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for n, s in shapes.items()}
    return {n: (InitDesc(n, attrs), spec) for n, spec in specs.items()}


def assert_same_bits(start, parameters, key=KEY):
    actual, expected = draw_all(start, key, parameters), reference(start, key, parameters)
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype and actual[name].shape == value.shape, name
        assert actual[name].sharding == value.sharding and not actual[name].weak_type, name
        assert np.asarray(actual[name]).tobytes() == np.asarray(value).tobytes(), name


SHAPES = {"a_weight": (7, 3), "b_weight": (16, 8, 3, 3), "c_weight": (1, 1), "d_bias": (5,), "bn_gamma": (3,), "bn_beta": (2,)}
STARTS = {
    "uniform": init.Uniform(0.3),
    "normal": init.Normal(1e-3),
    "negative scale": init.Uniform(-0.1),
    "whole number": init.Normal(2),
    "xavier": init.Xavier(),
    "xavier gaussian": init.Xavier("gaussian", "in", 2),
    "xavier out": init.Xavier("uniform", "out", 2.34),
    "msraprelu": init.MSRAPrelu("in", 0.1),
    "default": init.Default(),
    "orthogonal": init.Orthogonal(),
    "zero": init.Zero(),
    "one": init.One(),
    "constant": init.Constant(0.1),
    "mixed": init.Mixed([".*bias", "a.*", ".*"], ["one", init.Normal(0.5), init.Xavier()]),
    "mx xavier": mx.init.Xavier(magnitude=2),
    "mx normal": mx.init.Normal(0.2),
    "mx uniform": mx.init.Uniform(),
    "mx msra": mx.init.MSRAPrelu(),
    "mx orthogonal": mx.init.Orthogonal(rand_type="normal"),
    "mx one": mx.init.One(),
    "mx constant": mx.init.Constant(0.3),
    "mx mixed": mx.init.Mixed(["a", ".*"], [mx.init.Normal(0.5), mx.init.Xavier()]),
}


# Each initializer with one dtype, and those that the others consist of with all.
KINDS = [(name, ["float32", "float16", "bfloat16"][at % 3]) for at, name in enumerate(STARTS)]
KINDS += [(name, dtype) for name in ("uniform", "normal", "orthogonal") for dtype in ("float32", "float16", "bfloat16")]


@pytest.mark.repetitions(2, slow=12)
@pytest.mark.optimized
@pytest.mark.parametrize("name, dtype", dict.fromkeys(KINDS))
def test_values_have_the_bits_of_a_program_of_each_initializer(name, dtype):
    assert_same_bits(STARTS[name], described(SHAPES, dtype))


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("start", [init.Uniform(1 / 3), init.Normal(0.02)], ids=["uniform", "normal"])
def test_bits_hold_for_arrays_below_at_and_above_the_size_of_the_program(start):
    sizes = (0, 1, WIDTH - 1, WIDTH, WIDTH + 1, PROGRAM - WIDTH, PROGRAM, PROGRAM + 1, 2 * PROGRAM + 77)
    assert_same_bits(start, described({f"p{n}_weight": (n,) for n in sizes}))
    for n in (PROGRAM, PROGRAM + 1, VALUES_ON_HOST, VALUES_ON_HOST + 1):  # on the host, the last one by the program
        assert_same_bits(start, described({"w_weight": (n,)}))


@pytest.mark.slow
@pytest.mark.optimized
@settings(max_examples=6, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 9), max_size=5).map(tuple), min_size=1, max_size=6),
    # not so small that draws are subnormal: XLA flushes those to zero in one program and not in another
    scale=st.floats(-(2.0**20), 2.0**20, allow_nan=False, width=32).filter(lambda scale: scale == 0 or abs(scale) > 1e-30),
    seed=st.integers(0, 2**31 - 1),
    kind=st.sampled_from([init.Uniform, init.Normal]),
)
def test_any_shapes_scale_and_seed_have_the_bits_of_jax_random(shapes, scale, seed, kind):
    key, names = jax.random.key(seed), [f"p{n}_weight" for n in range(len(shapes))]
    drawn = draw_all(kind(scale), key, described(dict(zip(names, shapes, strict=True))))
    for name, shape in zip(names, shapes, strict=True):
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        assert np.asarray(drawn[name]).tobytes() == np.asarray(kind(scale).draw(own, "", shape)).tobytes()


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("inner", ["uniform", '["xavier", {"magnitude": 2}]', "orthogonal"])
def test_fused_rnns_have_the_bits_of_a_program_of_their_own(mode, inner):
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[mode]
    size = gates * 4 * (3 + 4) + gates * 4 * 2
    for start in (init.FusedRNN(inner, 4, 1, mode, forget_bias=2.0), mx.init.FusedRNN(inner, 4, 1, mode, forget_bias=2.0)):
        assert_same_bits(init.Uniform(0.05), described({"rnn_parameters": (size,)}, __init__=start.dumps()))
    assert_same_bits(mx.init.Xavier(), described({"rnn_parameters": (size,)}, __init__=start.dumps()))
    of_model = json.dumps(["fusedrnn", {"init": None, "num_hidden": 4, "num_layers": 1, "mode": mode}])
    assert_same_bits(init.Uniform(0.05), described({"rnn_parameters": (size,)}, __init__=of_model))


@pytest.mark.optimized
def test_attributes_and_stored_arrays_have_the_same_values():
    assert_same_bits(init.Xavier(), described({"x_any": (3, 2)}, __init__='["normal", {"sigma": 0.5}]'))
    assert_same_bits(init.Xavier(), described({"lstm_bias": (8,)}, __init__=init.LSTMBias().dumps()))
    assert_same_bits(init.Xavier(), described({"up_weight": (2, 1, 4, 4)}, __init__='["bilinear", {}]'))
    assert_same_bits(init.Xavier(), described({"x_any": (2,)}, __init__='["constant", {"value": [1.5, 2.5]}]'))
    stored = init.Load({"arg:a_weight": np.arange(21.0).reshape(7, 3)}, "normal")
    assert_same_bits(stored, described({"a_weight": (7, 3), "b_weight": (4, 5)}))
    assert_same_bits(init.One(), described({"n_weight": (2, 2)}, "int32"))


# ------------------------------------------------------------------------------------------------ counted
def net(hidden):
    out = sym.FullyConnected(sym.Variable("data"), num_hidden=hidden, name="fc1")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.BatchNorm(out, name="bn"), num_hidden=4, name="fc2"), name="softmax")


def test_another_model_compiles_and_traces_nothing():
    draw = lambda hidden: jfit.lower(net(hidden)).init(KEY, {"data": jax.ShapeDtypeStruct((8, 6), jnp.float32)})  # noqa: E731
    draw(5)
    with counters.counted() as counts:
        params, aux = draw(37)
    assert params["fc1_weight"].shape == (37, 6) and aux["bn_moving_var"].tolist() == [1.0] * 37
    assert counts["compiles"] == 0 and counts["traces"] == 0
    assert counts["host_syncs"] == 2  # the key and the values


def test_gluon_and_arrays_of_scripts_compile_nothing_for_a_new_shape():
    def draw(rows):
        parameter = mx.gluon.Parameter("w", shape=(rows, 3), init=mx.init.Xavier())
        parameter.initialize(mx.init.One())
        array = mx.nd.array(np.zeros((rows, 3), np.float32))
        mx.init.Normal()(InitDesc("w_weight"), array)
        return parameter.data(), array

    draw(4)
    with counters.counted() as counts:
        draw(91)
    assert counts["traces"] == 0


def test_one_parameter_has_the_bits_of_its_initializer():
    for start in (
        init.Xavier(),
        init.Normal(0.1),
        mx.init.Uniform(0.2),
        lambda key, desc, shape, dtype: jnp.ones(shape, dtype),
    ):
        expected = start(KEY, InitDesc("a_weight"), (5, 3), jnp.float32)
        assert (draw_one(start, KEY, InitDesc("a_weight"), (5, 3)) == expected).all()


# ------------------------------------------------------------------------------------------------ other paths
class Half(init.Uniform):
    def draw(self, key, name, shape):
        return super().draw(key, name, shape) / 2


class InNumpy(Initializer):
    def draw(self, key, name, shape):
        seed = int(np.asarray(jax.random.key_data(key))[-1])
        return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


class Shifted(mx.init.Uniform):
    def _init_weight(self, name, arr):
        super()._init_weight(name, arr)
        arr[:] = arr + 1


def test_initializers_of_users_are_called():
    parameters = described({"a_weight": (3, 2), "b_bias": (4,)})
    for start in (Half(0.2), Shifted(0.1), init.Mixed(["a", ".*"], [Half(0.2), "one"]), lambda k, d, s, t: jnp.full(s, 3.0, t)):
        assert_same_bits(start, parameters)
    drawn = draw_all(InNumpy(), KEY, parameters)
    key = jax.random.fold_in(KEY, zlib.crc32(b"a_weight"))
    assert (drawn["a_weight"] == InNumpy().draw(key, "", (3, 2))).all()
    assert (draw_all(init.Uniform(jnp.float32(0.25)), KEY, parameters)["a_weight"] == reference_of(init.Uniform(0.25))).all()


def reference_of(start):
    return reference(start, KEY, described({"a_weight": (3, 2)}))["a_weight"]


def test_other_generators_draw_their_own_bits():
    parameters = described({"a_weight": (3, 2)})
    assert_same_bits(init.Uniform(0.1), parameters, jax.random.key(3, impl="rbg"))
    with jax.threefry_partitionable(False):
        assert_same_bits(init.Uniform(0.1), parameters)


def test_a_traced_or_committed_key_draws_the_same_values():
    parameters = described({"a_weight": (3, 2), "b_bias": (4,)})
    plain = draw_all(init.Normal(), KEY, parameters)
    traced = jax.jit(lambda key: draw_all(init.Normal(), key, parameters))(KEY)
    inside = jax.jit(lambda: draw_all(init.Normal(), KEY, parameters))()
    devices = jax.devices()
    on_second = draw_all(init.Normal(), jax.device_put(KEY, devices[1]), parameters)
    for name, value in plain.items():
        assert (traced[name] == value).all() and (inside[name] == value).all()
        assert on_second[name].devices() == {devices[1]} and (np.asarray(on_second[name]) == np.asarray(value)).all()
    with jax.default_device(devices[2]):
        assert draw_all(init.Normal(), jax.random.key(1), parameters)["a_weight"].devices() == {devices[2]}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_the_keys_of_an_integer_seed_are_those_of_jax_and_nothing_is_compiled(seed):
    expected = [*jax.random.split(jax.random.key(seed)), jax.random.fold_in(jax.random.key(seed), 2**31 + 7)]
    with counters.counted() as counts:
        keys = [*sampling.split_seed(seed), sampling.folded_seed(seed, 2**31 + 7)]
    assert counts["compiles"] == 0
    for key, other in zip(keys, expected, strict=True):
        assert key.dtype == other.dtype
        np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(other))


def test_other_seeds_and_generators_are_left_to_jax():
    assert [sampling.split_seed(seed) for seed in (-1, 2**31, True, np.arange(2), jax.random.key(0))] == [None] * 5
    with jax.default_prng_impl("rbg"):
        assert sampling.split_seed(0) is None
    jax.config.update("jax_random_seed_offset", 5)  # which changes the keys of a seed
    try:
        assert sampling.split_seed(0) is None and sampling.folded_seed(0, 0) is None
    finally:
        jax.config.update("jax_random_seed_offset", 0)
