"""Random numbers whose distribution is an input: _sample_*, the multinomial, unique ids, and a random order.

Row i of the parameters makes row i of the result, from the key of that row: the same numbers on any number of devices.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.ops.attributes import DTYPES, Attrs, choice, flag, integer, maybe_choice, maybe_shape, shape
from jfit.ops.context import Ctx
from jfit.ops.draws import FLOATS, TABLE, Distribution, drawn_types, finished, shape_of
from jfit.ops.registry import Shape, operator
from jfit.ops.rows import LOST, RowLayout, no_rows
from jfit.ops.rules import accumulating, agreed, dtype_of, size_of, unify


def _batched(ctx: Ctx) -> int:
    """Which input has the rows of the batch; the first where none has."""
    return next((i for i, rows in enumerate(ctx.rows) if isinstance(rows, RowLayout)), 0)


# ------------------------------------------------------------------------------------------ _sample_*
def _one_shape(attrs: Attrs, ins: list, outs: list) -> list:
    """All parameters have one shape."""
    return [unify(ins, "each entry of the one is a distribution with the same entry of the other")] * len(ins)


def _parameter_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    known = next((t for t in ins if t is not None), None)
    return [known if t is None else t for t in ins], drawn_types(attrs, ins)[1]


def _leading_rows(attrs, rows, shapes, outs):
    """The axes of the parameters come first in the result, so the rows stay where they are."""
    return [agreed(rows)]


def _add(law: Distribution) -> None:
    name = f"_sample_{law.name}"

    def sample(ctx: Ctx, attrs: Attrs, *parameters: Array) -> Array:
        lead = parameters[0].shape
        if any(p.shape != lead for p in parameters):
            raise ValueError(
                f"{name}: the parameters have shapes {[p.shape for p in parameters]}, needed one shape because each entry "
                "of the one is a distribution with the same entry of the other; broadcast them"
            )
        # every entry gets a key of its own, drawn from the key of its row
        keys = ctx.random(jax.random.split, lead, _batched(ctx)).reshape(-1)
        flat = [p.astype(jnp.float32).reshape(-1) for p in parameters]
        drawn = jax.vmap(lambda key, *own: law.draw(key, attrs.shape, *own))(keys, *flat)
        return finished(drawn.reshape(*lead, *attrs.shape), dtype_of(attrs.dtype or "float32"))

    sample.__doc__ = f"{(law.draw.__doc__ or '').rstrip('.')}: `shape` numbers for each entry of the parameters."
    operator(
        name,
        inputs=law.arrays,
        attrs={"shape": shape(()), "dtype": maybe_choice(*FLOATS)},
        aliases=(name[1:],),
        fill=_one_shape,
        types=_parameter_types,
        rows=_leading_rows,
        needs_rng=True,
    )(sample)


for _law in TABLE:
    _add(_law)


# ------------------------------------------------------------------------------------------ multinomial
def _chosen_types(attrs: Attrs, ins: list[Any]) -> tuple[list[Any], list[Any]]:
    return ins, [DTYPES[attrs.dtype], *([ins[0]] if attrs.get_prob else [])]


def _chosen_rows(attrs, rows, shapes, outs):
    """Rows on the axis of the probabilities are mixed, all others stay."""
    first = rows[0]
    mixed = isinstance(first, RowLayout) and first.axis == len(shapes[0]) - 1
    return [LOST if mixed else first] * len(outs)


@operator(
    "_sample_multinomial",
    attrs={
        "shape": shape(()),
        "get_prob": flag(False),
        "dtype": choice("float16", "float32", "float64", "int32", "uint8", default="int32"),
    },
    outputs=lambda attrs: ("output0", "output1") if attrs.get_prob else ("output",),
    aliases=("sample_multinomial",),
    types=_chosen_types,
    rows=_chosen_rows,
    needs_rng=True,
)
def multinomial(ctx: Ctx, attrs: Attrs, data: Array) -> Array | tuple[Array, Array]:
    """y = k with probability p[..., k]; get_prob gives log p[..., y] too, whose gradient is 1 / p[..., y] (REINFORCE)."""
    if data.ndim == 0:
        raise ValueError("_sample_multinomial: data is a single number, needed probabilities along its last axis; reshape it")
    lead, classes = data.shape[:-1], data.shape[-1]
    number = size_of(attrs.shape)
    wide = data.astype(accumulating(data.dtype))
    first = ctx.rows[0]
    which = None if isinstance(first, RowLayout) and first.axis == len(lead) else 0  # rows along the classes are mixed
    drawn = ctx.random(jax.random.uniform, (*lead, number), which).reshape(-1, number)
    steps = lax.stop_gradient(jnp.cumsum(wide.reshape(-1, classes), axis=1))
    # the first class whose cumulated probability exceeds the number; the last one takes what rounding leaves
    chosen = jax.vmap(lambda edges, at: jnp.searchsorted(edges, at, side="right"))(steps, drawn.astype(steps.dtype))
    chosen = jnp.clip(chosen, 0, classes - 1)
    out = (*lead, *attrs.shape) or (1,)
    ids = chosen.reshape(out).astype(dtype_of(attrs.dtype))
    if not attrs.get_prob:
        return ids
    kept = jnp.take_along_axis(wide.reshape(-1, classes), chosen, axis=1)
    return ids, jnp.log(kept).astype(data.dtype).reshape(out)


# ------------------------------------------------------------------------------------------ unique ids, random order
@operator(
    "_sample_unique_zipfian",
    inputs=(),
    attrs={"range_max": integer(), "shape": maybe_shape()},
    outputs=("output0", "output1"),
    types=lambda attrs, ins: (ins, [DTYPES["int64"]] * 2),
    rows=no_rows,
    needs_rng=True,
)
def unique_zipfian(ctx: Ctx, attrs: Attrs) -> tuple[Array, Array]:
    """y = different ids in each row, p(id) ∝ log((id + 1.5) / (id + 0.5)) cut at 0 and range_max; and how many tries they took.

    Draws with repetition until all ids of a row differ are the same as draws without repetition (the largest of
    log p + Gumbel noise, in order), and the tries for the next id are geometric in the probability that is left.
    """
    size: Shape = shape_of("_sample_unique_zipfian", attrs)
    if len(size) != 2 or size[1] > attrs.range_max:
        raise ValueError(
            f"_sample_unique_zipfian: shape is {size} and range_max is {attrs.range_max}, needed (rows, ids of a row) with no "
            "more ids than range_max because they all differ; change them"
        )
    edges = jnp.clip(jnp.arange(attrs.range_max + 1) - 0.5, 0, None) + 1.0
    edges = edges.at[-1].set(float(attrs.range_max))
    chance = jnp.log(edges[1:] / edges[:-1]) / jnp.log(float(max(attrs.range_max, 2)))

    def row(key: Array) -> tuple[Array, Array]:
        order, wait = jax.random.split(key)
        _, ids = lax.top_k(jnp.log(chance) + jax.random.gumbel(order, chance.shape), size[1])
        taken = jnp.concatenate([jnp.zeros(1), jnp.cumsum(chance[ids])[:-1]])
        noise = jax.random.uniform(wait, (size[1],), minval=jnp.finfo(jnp.float32).tiny)
        again = jnp.floor(jnp.log(noise) / jnp.log(jnp.clip(taken, jnp.finfo(jnp.float32).tiny, 1 - 1e-6)))
        return ids, jnp.sum(1 + again.astype(jnp.int32))

    ids, tries = jax.vmap(row)(ctx.random(jax.random.split, size[:1]))
    return ids.astype(dtype_of("int64")), tries.astype(dtype_of("int64"))


@operator(
    "_shuffle",
    aliases=("shuffle",),
    rows=lambda attrs, rows, shapes, outs: [LOST if isinstance(rows[0], RowLayout) and rows[0].axis == 0 else rows[0]],
    needs_rng=True,
)
def shuffle(ctx: Ctx, attrs: Attrs, data: Array) -> Array:
    """y[i] = x[π(i)] along the first axis, π a random order; the gradient goes back the same way (MXNet has none here)."""
    if data.ndim == 0:
        raise ValueError("_shuffle: data is a single number, needed at least one axis to put into an order; reshape it")
    order = ctx.random(lambda key, size: jax.random.permutation(key, data.shape[0]), (data.shape[0],), which=None)
    return jnp.take(data, order, axis=0)
