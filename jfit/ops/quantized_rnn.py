"""The recurrent operator on quantized data: its weights are floats in the file, so it is the float operator on floats again."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jfit.ops import rnn  # noqa: F401  registers RNN
from jfit.ops.attributes import DTYPES, Attrs
from jfit.ops.context import Ctx
from jfit.ops.registry import lookup, operator

RNN = lookup("RNN")
SCALES = ("data_scale", "data_shift")


def _inputs(attrs: Attrs) -> tuple[str, ...]:
    return (*RNN.input_names(attrs), *SCALES)


def _fill(attrs: Attrs, ins: list, outs: list) -> list:
    assert RNN.fill is not None
    return [*RNN.fill(attrs, ins[:-2], outs), (1,), (1,)]


def _types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    floats = [DTYPES["float32"]]
    return [DTYPES["uint8"], *floats * (len(ins) - 1)], floats * len(RNN.output_names(attrs))


@operator(
    "_contrib_quantized_rnn",
    inputs=_inputs,
    outputs=RNN.outputs,
    attrs=RNN.attrs,
    fill=_fill,
    types=_types,
    rows=lambda attrs, rows, shapes, outs: RNN.rows(attrs, rows[:-2], shapes[:-2], outs),
    needs_rng=True,
)
def quantized_rnn(ctx: Ctx, attrs: Attrs, data: Array, *rest: Array) -> Array | tuple[Array, ...]:
    """y = RNN((q - shift) / scale) in floats; MXNet also rounds the weights, so its numbers differ by about one step."""
    *weights, scale, shift = rest
    values = (data.astype(jnp.float32) - shift.reshape((1,) * data.ndim)) / scale.reshape((1,) * data.ndim)
    return RNN.fn(ctx, attrs, values, *weights)
