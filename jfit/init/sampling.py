"""Distributions of initial values, and their drawing by two compiled programs that all models of the process share.

With JAX's default generator (partitionable threefry), value i of `jax.random.uniform(key, shape)` and `jax.random.normal(key,
shape)` depends on the key and on i alone.  So one program of fixed shape, whose rows are pieces of any arrays with any keys,
draws the values of every parameter, with the bits that these functions return for the whole array.  On a CPU, NumPy computes
the random bits of a small model, which leaves a smaller program for normal values and none for uniform ones.

>>> import jax
>>> from jfit.init.sampling import Fixed, Normal, Piece, draw_arrays
>>> spec = jax.ShapeDtypeStruct((2, 3), jnp.float32)
>>> drawn = draw_arrays(jax.random.key(0), {"w": (Normal(0.1), spec), "b": (Fixed(np.float32(0)), spec)}, {})
>>> bool((drawn["w"] == 0.1 * jax.random.normal(jax.random.key(0), (2, 3))).all()), drawn["b"].sum().item()
(True, 0.0)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.lazy import uncollected
from jfit.programs import settings

# A call of a program draws ROWS pieces of WIDTH values: large enough that the call itself costs little, small enough that the
# values stay in the cache and that a small model wastes less than 2 ms on values that it does not need.
ROWS, WIDTH = 256, 1024
VALUES_ON_HOST = 1 << 19  # number of values whose bits NumPy computes in 15 ms; compiling the program takes 60 ms more
VALUES_PER_READ = 1 << 24  # number of values that are drawn between two waits of the host: bounds the memory to 64 MB


class Uniform(NamedTuple):
    """U(-scale, scale)."""

    scale: float

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw an array, float32, also in a traced function."""
        return jax.random.uniform(key, shape, jnp.float32, -self.scale, self.scale)


class Normal(NamedTuple):
    """N(0, scale^2)."""

    scale: float

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw an array, float32, also in a traced function."""
        return self.scale * gauss(key, shape)


class Fixed(NamedTuple):
    """Constant values, an array that broadcasts to the shape of the parameter."""

    values: np.ndarray | np.floating[Any]

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Return the values as an array of `shape`; `key` is ignored."""
        return jnp.array(np.broadcast_to(self.values, shape))


class Pieces(NamedTuple):
    """A flat array that consists of pieces with different distributions."""

    pieces: Sequence[Piece]

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw all pieces and concatenate their flat values."""
        keys = (key if p.fold is None else jax.random.fold_in(key, p.fold) for p in self.pieces)
        flat = [p.distribution.draw(k, p.shape).reshape(-1) for k, p in zip(keys, self.pieces, strict=True)]
        return jnp.concatenate(flat).reshape(shape)


class Piece(NamedTuple):
    """One piece of `Pieces`.

    Attributes:
        fold: the key of the piece is fold_in(key, fold); None: the key of the parameter.
        shape: its shape.
        distribution: its distribution.
    """

    fold: int | None
    shape: tuple[int, ...]
    distribution: Distribution


Distribution: TypeAlias = Uniform | Normal | Fixed | Pieces


def gauss(key: Array, shape: Sequence[int]) -> Array:
    """Draw standard normal values, float32."""
    # Without the barrier XLA fuses the last multiplication with the caller's, and the last bit depends on the program.
    return lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32))


# ------------------------------------------------------------------------------------------------ the shared programs
def _threefry(key: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Threefry-2x32 of the counters (high, low), uint32 arrays (NumPy or JAX) that broadcast with the two words of the key.

    The 20 rounds are written out: XLA compiles them in a fifth of the time of the loop that JAX uses on CPU.

    Source: Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405.
    """
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(bits)) | (y >> np.uint32(32 - bits)))
        x, y = x + words[(group + 1) % 3], y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _row_bits(rows: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Random bits of the rows of a (ROWS, WIDTH) array, uint32; each row of `rows` is (key, first counter), 4 words."""
    key0, key1, high, low = (rows[:, n : n + 1] for n in range(4))
    x, y = _threefry((key0, key1), high, low + lax.broadcasted_iota(jnp.uint32, shape, 1))
    return x ^ y


def _unsupported(*_: Any) -> Any:
    raise NotImplementedError("this generator only draws bits")


@functools.lru_cache(maxsize=16)
def _program(kind: type, under: tuple[Any, ...]) -> Any:
    """Compiled program `(rows, scales) -> values`: uint32 (ROWS, 4), float32 (ROWS,) -> float32 (ROWS, WIDTH).

    `under`: the settings of jax.  Those of the compiler (`jax_disable_most_optimizations`) are not in the keys of jax.jit.
    """
    from jax.extend.random import define_prng_impl  # takes 20 ms, which `import jfit` does not have to wait for

    # A generator whose key is the whole table of rows: jax.random converts its bits to floats as it does for threefry.
    others = dict.fromkeys(("seed", "split", "fold_in"), _unsupported)
    generator = define_prng_impl(key_shape=(ROWS, 4), random_bits=_row_bits, name="jfit_rows", tag="rows", **others)

    def initial_values(rows: Array, scales: Array) -> Array:
        counters.count_trace("initial_values")
        return kind(scales[:, None]).draw(jax.random.wrap_key_data(rows, impl=generator), (ROWS, WIDTH))

    return jax.jit(initial_values)


@functools.lru_cache(maxsize=16)
def _gauss_program(under: tuple[Any, ...]) -> Any:
    """Compiled program `(uniform values, scales) -> values` of `Normal`; shapes and `under` as for `_program`."""

    def initial_values(uniform: Array, scales: Array) -> Array:
        counters.count_trace("initial_values")
        return scales[:, None] * lax.optimization_barrier(np.float32(np.sqrt(2)) * lax.erf_inv(uniform))  # as jax.random.normal

    return jax.jit(initial_values)


def _on_host(kind: type, rows: np.ndarray, scales: np.ndarray) -> Any:
    """The values of `_program` on a CPU, from random bits that NumPy computes, so that XLA compiles little or nothing."""
    key0, key1, high, low = (rows[:, n : n + 1] for n in range(4))
    with np.errstate(over="ignore"):  # uint32 wraps around
        x, y = _threefry((key0, key1), high, low + np.arange(WIDTH, dtype=np.uint32))
    unit = ((x ^ y) >> np.uint32(9) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)
    above = scales[:, None] if kind is Uniform else np.float32(1)
    below = -above if kind is Uniform else np.nextafter(-above, np.float32(0))
    # XLA computes unit * (above - below) + below with one rounding.  So does this: only the cast from float64 rounds.
    uniform = np.maximum(below, (unit.astype(np.float64) * (above - below) + below).astype(np.float32))
    return uniform if kind is Uniform else _gauss_program(settings())(uniform, scales)


class _Run(NamedTuple):
    """Consecutive values of one array that have one key and one distribution; `target` is where they are written."""

    key: np.ndarray  # two words, uint32
    distribution: Uniform | Normal
    target: np.ndarray  # float32, flat


def _dispatch(runs: Sequence[_Run], on_cpu: bool) -> list[Any]:
    """Start the calls that draw `runs` of one kind of distribution, each padded to a multiple of WIDTH values."""
    lengths = [-(-len(r.target) // WIDTH) for r in runs]
    kind, size = type(runs[0].distribution), -(-sum(lengths) // ROWS) * ROWS
    on_host = on_cpu and size * WIDTH <= VALUES_ON_HOST
    rows, scales = np.zeros((size, 4), np.uint32), np.zeros(size, np.float32)
    end = 0
    for run, length in zip(runs, lengths, strict=True):
        start, end = end, end + length
        counter = np.arange(length, dtype=np.uint64) * np.uint64(WIDTH)
        rows[start:end, :2], scales[start:end] = run.key, run.distribution.scale
        rows[start:end, 2], rows[start:end, 3] = counter >> np.uint64(32), counter & np.uint64(0xFFFFFFFF)
    program = functools.partial(_on_host, kind) if on_host else _program(kind, settings())
    return [program(rows[n : n + ROWS], scales[n : n + ROWS]) for n in range(0, size, ROWS)]


def _collect(runs: Sequence[_Run], calls: Sequence[np.ndarray]) -> None:
    """Copy the results of `_dispatch` to the targets of the runs."""
    position = 0
    for run in runs:
        written = 0
        while written < len(run.target):
            call, offset = divmod(position + written, ROWS * WIDTH)
            part = calls[call].reshape(-1)[offset : offset + len(run.target) - written]
            run.target[written : written + len(part)] = part
            written += len(part)
        position += -(-written // WIDTH) * WIDTH


# ------------------------------------------------------------------------------------------------ arrays
Specs: TypeAlias = Mapping[str, tuple[Distribution, jax.ShapeDtypeStruct]]


def drawable(key: Any) -> bool:
    """Return whether the shared programs draw the same bits as jax.random from this key: a concrete, typed threefry key."""
    if not isinstance(key, Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.ndim:
        return False
    if str(jax.random.key_impl(key)) != "threefry2x32" or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return False
    data = jax.random.key_data(key)  # traced if the key or the caller is traced
    return not isinstance(data, jax.core.Tracer) and len(data.devices()) == 1  # type: ignore[attr-defined]


def folded_seed(seed: Any, number: int) -> Array | None:
    """`jax.random.fold_in(jax.random.key(seed), number)`, computed on the host, which compiles nothing.

    Returns:
        Key, or None if the seed is not an integer from 0 to 2^31 - 1, or JAX is set to another generator than threefry or to
        a `jax_random_seed_offset`.
    """
    integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 2**31
    config: Any = jax.config
    if not integer or config.jax_default_prng_impl != "threefry2x32" or config.jax_random_seed_offset:
        return None
    data = _fold(np.array([0, seed], np.uint32), number)
    return jax.random.wrap_key_data(jax.device_put(data))


def split_seed(seed: Any) -> tuple[Array, Array] | None:
    """`jax.random.split(jax.random.key(seed))`, computed on the host.

    Returns:
        The two keys, or None where `folded_seed` returns None, or if `jax_threefry_partitionable` is off: then `split` makes
        other keys than `fold_in`.
    """
    first, second = folded_seed(seed, 0), folded_seed(seed, 1)
    splits_by_fold = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    return (first, second) if splits_by_fold and first is not None and second is not None else None


def draw_arrays(key: Array, parameters: Specs, folds: Mapping[str, int]) -> dict[str, Array]:
    """Draw arrays with the bits that `Distribution.draw` has in a compiled program; nothing is compiled after the first call.

    Args:
        key: PRNG key for which `drawable` is true.
        parameters: name -> (distribution, jax.ShapeDtypeStruct).
        folds: name -> integer; the key of the array is fold_in(key, integer).  Names that are missing use `key` itself.

    Returns:
        Dict: name -> array of the shape and dtype in `parameters`, on the device of the key if that was chosen explicitly.
    """
    data = jax.random.key_data(key)
    device = data.sharding if data.committed else None
    random = any(not isinstance(distribution, Fixed) for distribution, _ in parameters.values())
    words = counters.read(data) if random else np.zeros(2, np.uint32)  # sync: the key, computed by the caller just before
    arrays = {}
    for names in _groups(parameters):
        runs: list[_Run] = []
        flat = {}
        for name in names:
            distribution, spec = parameters[name]
            flat[name] = _array(distribution, spec, _fold(words, folds.get(name)), runs)
        with uncollected(), _computed_on(data):
            _fill(runs, next(iter(data.devices())).platform == "cpu")
        for name in names:
            value = flat.pop(name)
            arrays[name] = jax.device_put(value.astype(parameters[name][1].dtype, copy=False), device, may_alias=False)
    return arrays


def _computed_on(key: Array) -> contextlib.AbstractContextManager[Any]:
    """Context in which programs run on the device of a key that was placed explicitly."""
    default = jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
    [device] = key.devices()
    # Without a change of the default device there is no new trace: JAX keeps programs by this setting.
    return jax.default_device(device) if key.committed and device != default else contextlib.nullcontext()


def _groups(parameters: Specs) -> Iterator[list[str]]:
    """Divide the names into groups of at most VALUES_PER_READ values, or of one array."""
    group, total = [], 0
    for name, (_, spec) in parameters.items():
        size = math.prod(spec.shape)
        if group and total + size > VALUES_PER_READ:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def _array(distribution: Distribution, spec: Any, key: np.ndarray, runs: list[_Run]) -> np.ndarray:
    """Return an array of the shape of `spec`; its random values are not yet drawn, but appended to `runs`."""
    if isinstance(distribution, Fixed):
        return np.broadcast_to(distribution.values, spec.shape)
    values = np.empty(math.prod(spec.shape), np.float32)
    whole = Piece(None, spec.shape, distribution)
    end = 0
    for piece in distribution.pieces if isinstance(distribution, Pieces) else (whole,):
        start, end = end, end + math.prod(piece.shape)
        if isinstance(piece.distribution, Fixed):
            values[start:end] = np.broadcast_to(piece.distribution.values, piece.shape).reshape(-1)
        else:
            assert not isinstance(piece.distribution, Pieces)
            runs.append(_Run(_fold(key, piece.fold), piece.distribution, values[start:end]))
    return values.reshape(spec.shape)


def _fill(runs: Iterable[_Run], on_cpu: bool) -> None:
    """Draw the values of all runs."""
    kinds = [[r for r in runs if isinstance(r.distribution, kind) and len(r.target)] for kind in (Uniform, Normal)]
    calls = [_dispatch(same, on_cpu) if same else [] for same in kinds]
    results = iter(counters.read(list(itertools.chain(*calls))) if any(calls) else ())  # sync: the values, once per group
    for same, started in zip(kinds, calls, strict=True):
        _collect(same, list(itertools.islice(results, len(started))))


def _fold(key: np.ndarray, data: int | None) -> np.ndarray:
    """jax.random.fold_in on the host: key data (2,), uint32; None returns the key."""
    if data is None:
        return key
    with np.errstate(over="ignore"):  # uint32 wraps around
        return np.stack(_threefry(tuple(key), np.uint32(0), np.uint32(data)))
