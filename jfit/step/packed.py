"""Sums over devices of values that are sent in a few bits.

Small integers are packed into 32-bit words, and bfloat16 values are sent as unsigned integers: XLA reduces bfloat16 in float32
on CPUs, with twice the bytes, but it does not convert integers.

A sum is computed in one of two ways, whichever sends fewer bytes:

    gather      every device receives the words of all devices (all_gather) and adds them
    exchange    every device receives one segment of the words of all devices (all_to_all) and adds it; then the sums of the
                segments are sent to all devices (all_gather)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.axis import axis_size
from jfit.platforms import platform_of

WORD = 32  # bits of a word


def pack(codes: Array, bits: int) -> Array:
    """Pack unsigned integers of a few bits into words along the last axis.

    Args:
        codes: integers from 0 to 2**bits - 1 of any integer dtype, shape (..., n).
        bits: number of bits of each, 1 to 32.

    Returns:
        uint32 words (..., ceil(n / k)), k = 32 // bits integers in each; word i has the integers i, i + words, i + 2 words, ...

    Example:
        >>> words = pack(jnp.array([1, 2, 0, 3]), 2)
        >>> words.shape, unpack(words, 2, 4).tolist()
        ((1,), [1, 2, 0, 3])
    """
    per_word = WORD // bits
    codes = _padded(codes.astype(jnp.uint32), per_word)
    codes = codes.reshape(*codes.shape[:-1], per_word, -1)
    return jnp.sum(codes << _shifts(bits, codes.ndim), axis=-2, dtype=jnp.uint32)


def unpack(words: Array, bits: int, count: int) -> Array:
    """Unpack the words of `pack`.

    Args:
        words: uint32 (..., words).
        bits: number of bits of each integer.
        count: n, number of integers.

    Returns:
        uint32 (..., n).

    Example:
        >>> unpack(jnp.array([0b0110], jnp.uint32), 2, 2).tolist()
        [2, 1]
    """
    codes = words[..., None, :] >> _shifts(bits, words.ndim + 1)
    codes = codes & jnp.uint32(2**bits - 1)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def _shifts(bits: int, ndim: int) -> Array:
    """Position of each integer in a word, shape (1, ..., integers per word, 1)."""
    return (bits * jnp.arange(WORD // bits, dtype=jnp.uint32)).reshape(*(1,) * (ndim - 2), -1, 1)


def _padded(x: Array, multiple: int) -> Array:
    """Pad the last axis with zeros to a multiple."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % multiple)])


def _exchanged(rows: Array, axis_name: str) -> Array:
    """Row i of every device is sent to device i: (devices, n) -> (devices, n), one row from each device."""
    return lax.all_to_all(rows, axis_name, 0, 0, tiled=True)


def added(terms: Sequence[Array]) -> Array:
    """Sum of the arrays of all devices, in order.

    XLA computes all of it in one pass over the result.  On CPU, `jnp.sum` over an axis of devices stores the unpacked values of
    all devices first, and takes 50 times as long.

    Args:
        terms: one array per device, of equal shapes.

    Example:
        >>> added([jnp.ones(2), jnp.ones(2)]).tolist()
        [2.0, 2.0]
    """
    return functools.reduce(jnp.add, terms)


def sum_signs(signs: Array, axis_name: str) -> Array:
    """Sum of -1, 0 and 1 over devices, which is exact: about 1/4 byte per value is sent, and the sums in few bits.

    Args:
        signs: -1, 0 or 1, any dtype, shape (n,).
        axis_name: name of the device axis of pmap or shard_map.

    Returns:
        int32 (n,), the sums.

    Example:
        >>> add = jax.vmap(lambda signs: sum_signs(signs, "devices"), axis_name="devices")
        >>> add(jnp.array([[1, 0, -1], [1, -1, 0]])).tolist()
        [[2, -1, -1], [2, -1, -1]]
    """
    devices, count = axis_size(axis_name), signs.shape[0]
    if count == 0:
        return signs.astype(jnp.int32)
    codes, bits = signs.astype(jnp.int32) + 1, (2 * devices).bit_length()  # bits of a sum of codes, 0 to 2 * devices
    # In words per value and per device that sends: gather devices * 1/16, exchange 1/16 + bits of the sum.
    if (devices - 1) * (WORD // bits) <= WORD // 2:
        words = lax.all_gather(pack(codes, 2), axis_name)
        return added([unpack(one, 2, count) for one in words]).astype(jnp.int32) - devices
    segments = _padded(codes, devices).reshape(devices, -1)
    size = segments.shape[1]
    received = added([unpack(one, 2, size) for one in _exchanged(pack(segments, 2), axis_name)])
    sums = lax.all_gather(pack(received, bits), axis_name)
    return unpack(sums, bits, size).reshape(-1)[:count].astype(jnp.int32) - devices


def sum_bfloat16(values: Array, axis_name: str) -> Array:
    """Sum over devices of values that are sent in bfloat16 and added in float32.

    Args:
        values: float32 (n,).
        axis_name: name of the device axis of pmap or shard_map.

    Returns:
        float32 (n,).  With more than two devices, the sums are rounded to bfloat16, too, because they are sent to all devices.

    Example:
        >>> add = jax.vmap(lambda values: sum_bfloat16(values, "devices"), axis_name="devices")
        >>> add(jnp.array([[1.0, 1.001], [2.0, 0.0]]))[0].tolist()
        [3.0, 1.0]
    """
    devices, count = axis_size(axis_name), values.shape[0]
    if count == 0:
        return values
    if devices <= 2:  # gathering moves as many bytes as the exchange, and does not round the sum to bfloat16
        return added(list(_from_words(lax.all_gather(_to_words(values), axis_name))))
    segments = _padded(values, devices).reshape(devices, -1)
    sums = added(list(_from_words(_exchanged(_to_words(segments), axis_name))))
    return _from_words(lax.all_gather(_to_words(sums), axis_name)).reshape(-1)[:count]


def psum(tree: Any, axis_name: str | None) -> Any:
    """Sum a pytree over devices by `lax.psum`, such that float32 and small int32 arrays need one all-reduce.

    XLA combines all-reduces of one dtype.  So an int32 array of at most 1024 elements is sent as four float32 arrays, one per
    byte, whose sums are exact for fewer than 65536 devices.

    Args:
        tree: pytree of arrays.
        axis_name: name of the device axis of pmap or shard_map; None for one device.

    Returns:
        The pytree of sums, with the same dtypes.

    Example:
        >>> add = jax.vmap(lambda x: psum(x, "devices"), axis_name="devices")
        >>> add(jnp.array([2**20, -3])).tolist()
        [1048573, 1048573]
    """
    if axis_name is None:
        return tree
    shifts = [0, 8, 16, 24]

    def is_sent_as_bytes(x: Any) -> bool:
        return jnp.asarray(x).dtype == jnp.int32 and jnp.size(x) <= 1024

    def sent(x: Any) -> Any:
        if not is_sent_as_bytes(x):
            return x
        word = lax.bitcast_convert_type(jnp.asarray(x), jnp.uint32)
        return [((word >> jnp.uint32(k)) & jnp.uint32(255)).astype(jnp.float32) for k in shifts]

    def received(x: Any, total: Any) -> Any:
        if not is_sent_as_bytes(x):
            return total
        word = sum(byte.astype(jnp.uint32) << jnp.uint32(k) for byte, k in zip(total, shifts, strict=True))
        return lax.bitcast_convert_type(word, jnp.int32)  # modulo 2**32, as a sum of int32

    return jax.tree.map(received, tree, _sum(jax.tree.map(sent, tree), axis_name))


def _sum(tree: Any, axis_name: str) -> Any:
    """`lax.psum`; in a job of several processes on CPU as one vector per dtype, because gloo sends every operand on its own."""
    if jax.process_count() == 1 or platform_of() != "cpu":
        return lax.psum(tree, axis_name)
    leaves, structure = jax.tree.flatten(tree)
    sums = on_vectors(lambda x: lax.psum(x, axis_name), {str(i): jnp.asarray(x) for i, x in enumerate(leaves)})
    return structure.unflatten(sums.values())


def on_vectors(call: Callable[[Array], Array], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Call a function of vectors (n,) -> (n,) once per dtype, with all arrays of that dtype, and cut the results again."""
    results = joined_call(lambda x: call(x[0])[None], {k: x.reshape(1, -1) for k, x in arrays.items()})
    return {k: results[k].reshape(x.shape) for k, x in arrays.items()}


def joined_call(call: Callable[[Array], Array], parts: Mapping[str, Array]) -> dict[str, Array]:
    """Concatenate arrays (n, chunk) of equal dtype along axis 1, call a function (n, m) -> (k, m) once, and cut again."""
    result: dict[str, Array] = {}
    for dtype in dict.fromkeys(x.dtype for x in parts.values()):
        group = {k: x for k, x in parts.items() if x.dtype == dtype}
        whole, at = call(jnp.concatenate(list(group.values()), axis=1)), 0
        for name, part in group.items():
            result[name] = whole[:, at : at + part.shape[1]]
            at += part.shape[1]
    return result


def _to_words(values: Array) -> Array:
    return lax.bitcast_convert_type(values.astype(jnp.bfloat16), jnp.uint16)


def _from_words(words: Array) -> Array:
    return lax.bitcast_convert_type(words, jnp.bfloat16).astype(jnp.float32)
