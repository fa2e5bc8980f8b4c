"""Fourier transforms and count sketches along the last axis. MXNet implements them on GPUs only."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from jfit.ops.attributes import integer
from jfit.ops.registry import operator
from jfit.ops.rows import LOST, RowLayout
from jfit.ops.rules import accumulating, first_types, from_data, last_axis, need_shape, unmixed


@operator("_contrib_fft", attrs={"compute_size": integer(128)}, rows=unmixed(last_axis))
def fft(ctx, attrs, data):
    """y[k] = Σₙ x[n] exp(-2πi kn / N) along the last axis, with real and imaginary parts interleaved."""
    transform = jnp.fft.fft(data.astype(accumulating(data.dtype)))
    return jnp.stack([transform.real, transform.imag], -1).reshape((*data.shape[:-1], -1)).astype(data.dtype)


@operator("_contrib_ifft", attrs={"compute_size": integer(128)}, rows=unmixed(last_axis))
def ifft(ctx, attrs, data):
    """y[n] = Re Σₖ x[k] exp(2πi kn / N), not divided by N; x has real and imaginary parts interleaved along the last axis."""
    parts = data.astype(accumulating(data.dtype)).reshape((*data.shape[:-1], -1, 2))
    return (jnp.fft.ifft(lax.complex(parts[..., 0], parts[..., 1])).real * parts.shape[-2]).astype(data.dtype)


def _sketch_rows(attrs, rows, shapes, outs):
    data = rows[0]
    if any(r is not None for r in rows[1:]) or (isinstance(data, RowLayout) and data.axis == len(shapes[0]) - 1):
        return [LOST]
    return [data]


@operator(
    "_contrib_count_sketch",
    attrs={"out_dim": integer(), "processing_batch_size": integer(32)},
    fill=from_data(lambda attrs, data, h, s: [data, h or (1, data[-1]), s or (1, data[-1])]),
    types=first_types,
    rows=_sketch_rows,
)
def count_sketch(ctx, attrs, data, h, s):
    """y[..., j] = Σ s[i] x[..., i] over all i with h[i] = j; h (hash) and s (signs) have no gradient."""
    h, s = h.reshape(-1), s.reshape(-1)
    need_shape("h", h.shape, data.shape[-1:])
    need_shape("s", s.shape, data.shape[-1:])
    buckets = h.astype(jnp.int32)
    wide = data.astype(accumulating(data.dtype))
    signed = wide * lax.stop_gradient(s).reshape((1,) * (data.ndim - 1) + (-1,)).astype(wide.dtype)
    total = jnp.zeros((*data.shape[:-1], attrs.out_dim), wide.dtype).at[..., buckets].add(signed, mode="drop")
    return total.astype(data.dtype)
