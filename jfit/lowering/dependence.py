"""Which rows of a batch the values of a jaxpr depend on: an abstract interpretation, without computing anything.

Every variable of the jaxpr gets one of these abstract values:

- `None`: the value does not depend on the batch;
- a `RowLayout`: the rows of the batch are on one axis, and each entry of that axis depends on no other row;
- `Mixed`: entries depend on several rows of the batch, or that cannot be excluded.

The interpretation is conservative.  A primitive without a rule, or one used in a way that its rule does not cover, gives a
`Mixed` value of kind "unknown".  A value is of kind "dependent" where a primitive combines rows, such as a sum over the batch
axis.

>>> import jax, jax.numpy as jnp
>>> layouts = row_layouts(jax.make_jaxpr(lambda x: (x * 2, x.cumsum(0)))(jnp.ones((4, 3))), [batch_rows(4)])
>>> layouts[0], layouts[1].kind
(RowLayout(axis=0, before=1, size=4, after=1), 'dependent')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jfit.ops.rows import LOST, RowLayout, reshape_rows


class Mixed(NamedTuple):
    """A value that may depend on several rows of the batch.

    Attributes:
        kind: "dependent" (a primitive combines rows), "unknown" (no rule for a primitive) or "row" (inside a loop over the
            rows: the value depends on the row of this iteration only).
        reason: the primitive and where it is called, such as "reduce_sum over the batch axis in flax BatchNorm".

    Example:
        >>> Mixed("dependent", "sort over the batch axis").kind
        'dependent'
    """

    kind: str
    reason: str


Layout = RowLayout | Mixed | None
Rule = Callable[[Any, list[Layout]], list[Layout]]
_SEVERITY = {"row": 0, "unknown": 1, "dependent": 2}


def batch_rows(size: int, axis: int = 0) -> RowLayout:
    """Layout of an array whose axis `axis` is the batch axis.

    Example:
        >>> batch_rows(4)
        RowLayout(axis=0, before=1, size=4, after=1)
    """
    return RowLayout(axis, 1, size, 1)


def row_layouts(closed: Any, layouts: Sequence[Layout]) -> list[Layout]:
    """Compute the abstract values of the outputs of a jaxpr.

    Args:
        closed: result of `jax.make_jaxpr`.
        layouts: abstract value of each input of the jaxpr.

    Returns:
        list with the abstract value of each output.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> row_layouts(jax.make_jaxpr(lambda w, x: x @ w)(jnp.ones((3, 2)), jnp.ones((4, 3))), [None, batch_rows(4)])
        [RowLayout(axis=0, before=1, size=4, after=1)]
    """
    return _run(closed.jaxpr, layouts)


def equation_layouts(eqn: Any, operands: list[Layout]) -> list[Layout]:
    """Compute the abstract values of the results of one equation of a jaxpr from those of its operands."""
    return [None] * len(eqn.outvars) if all(x is None for x in operands) else _apply_rule(eqn, operands)


def is_literal(variable: Any) -> bool:
    """Return whether an operand of an equation is a `jax.extend.core.Literal`, without importing that module (20 ms)."""
    return hasattr(variable, "val")


def interpret(jaxpr: Any, values: Sequence[Any], rule: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Interpret a jaxpr with abstract values, None for what depends on none of its inputs; returns those of the outputs.

    Args:
        jaxpr: the jaxpr.
        values: abstract value of each input.
        rule: `(equation, values of its operands) -> values of its results`, for equations with an operand that is not None.
    """
    known: dict[Any, Any] = dict(zip(jaxpr.invars, values, strict=True))

    def read(variable: Any) -> Any:
        return None if is_literal(variable) else known.get(variable)

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if any(x is not None for x in operands):
            known.update(zip(eqn.outvars, rule(eqn, operands), strict=True))
    return [read(v) for v in jaxpr.outvars]


def body_of(eqn: Any) -> Any:
    """The jaxpr of the function that an equation calls; None if it calls none."""
    body = next((eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params), None)
    return getattr(body, "jaxpr", body)


def _run(jaxpr: Any, layouts: Sequence[Layout]) -> list[Layout]:
    return interpret(jaxpr, layouts, _apply_rule)


def _apply_rule(eqn: Any, operands: list[Layout]) -> list[Layout]:
    name = eqn.primitive.name
    if name in _CALLS:
        inner = body_of(eqn)
        if len(inner.invars) == len(operands) and len(inner.outvars) == len(eqn.outvars):
            return _run(inner, operands)
        return [_unknown(eqn)] * len(eqn.outvars)
    if name in _CONTROL:
        return _CONTROL[name](eqn, operands)
    mixed = _mixed(eqn, operands)
    if mixed is not None:
        return [mixed] * len(eqn.outvars)
    rule = _RULES.get(name)
    return rule(eqn, operands) if rule else [_unknown(eqn)] * len(eqn.outvars)


# ------------------------------------------------------------------------------------------------ abstract values
def _mixed(eqn: Any, values: Sequence[Layout]) -> Mixed | None:
    """The worst of the mixed values, which every result of a primitive inherits; None if there are none."""
    mixed = {v for v in values if isinstance(v, Mixed)}
    worst = max(mixed, key=lambda v: _SEVERITY[v.kind], default=None)
    if worst is not None and worst.kind == "row" and (len(mixed) > 1 or any(isinstance(v, RowLayout) for v in values)):
        return _dependent(eqn, "of every row with every other row")  # the row of this iteration, and another or all rows
    return worst


def _dependent(eqn: Any, how: str = "over the batch axis") -> Mixed:
    return Mixed("dependent", f"{eqn.primitive.name} {how}{_where(eqn)}")


def _unknown(eqn: Any) -> Mixed:
    return Mixed("unknown", f"{eqn.primitive.name}{_where(eqn)}")


_PACKAGES = (str(Path(jax.__file__ or "").parent), str(Path(__file__).parents[1]))


def _where(eqn: Any) -> str:
    """The function outside jax and jfit that called a primitive, such as " in flax BatchNorm (normalization.py, line 102)"."""
    traceback = getattr(getattr(eqn, "source_info", None), "traceback", None)
    frames = [f for f in getattr(traceback, "frames", ()) if not f.file_name.startswith((*_PACKAGES, "<"))]
    if not frames:
        return ""
    file, line = Path(frames[0].file_name), frames[0].line_num
    parts = file.parts
    package = parts[parts.index("site-packages") + 1] if "site-packages" in parts[:-2] else ""
    same = [f.function_name for f in frames[:8] if f.file_name == frames[0].file_name]
    method = next((name for name in same if name.endswith(".__call__")), same[0])
    name = method.removesuffix(".__call__").split("<locals>.")[-1]
    return f" in {package} {name} ({file.name}, line {line})" if package else f" in {name} ({file.name}, line {line})"


def _join(eqn: Any, values: Sequence[Layout]) -> Layout:
    """The abstract value of a combination of values, entry by entry."""
    mixed, layouts = _mixed(eqn, values), {v for v in values if isinstance(v, RowLayout)}
    if mixed is not None:
        return mixed
    return _dependent(eqn, "of every row with every other row") if len(layouts) > 1 else next(iter(layouts), None)


def _moved(layout: RowLayout, axis: int) -> RowLayout:
    return layout._replace(axis=axis)


def _first(operands: Sequence[Layout]) -> RowLayout:
    return next(x for x in operands if isinstance(x, RowLayout))


# ------------------------------------------------------------------------------------------- rules: one array
def _elementwise(eqn: Any, operands: list[Layout]) -> list[Layout]:
    joined = _join(eqn, operands)
    if isinstance(joined, RowLayout):
        return [
            joined if o.aval.shape[joined.axis : joined.axis + 1] == (joined.length,) else _unknown(eqn) for o in eqn.outvars
        ]
    return [joined] * len(eqn.outvars)


def _identity(eqn: Any, operands: list[Layout]) -> list[Layout]:
    return list(operands)


def _broadcast(eqn: Any, operands: list[Layout]) -> list[Layout]:
    layout = _first(operands)
    axis = eqn.params["broadcast_dimensions"][layout.axis]
    return [_moved(layout, axis) if eqn.outvars[0].aval.shape[axis] == layout.length else _unknown(eqn)]


def _reshape(eqn: Any, operands: list[Layout]) -> list[Layout]:
    if eqn.params.get("dimensions") is not None:
        return [_unknown(eqn)]
    layout = reshape_rows(_first(operands), eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
    return [_unknown(eqn) if layout is LOST else layout]  # type: ignore[list-item]


def _squeeze(eqn: Any, operands: list[Layout]) -> list[Layout]:
    return [_without_axes(eqn, _first(operands), eqn.params["dimensions"])]


def _without_axes(eqn: Any, layout: RowLayout, axes: Sequence[int]) -> Layout:
    axes = [a % _rank(eqn) for a in axes]
    return _dependent(eqn) if layout.axis in axes else _moved(layout, layout.axis - sum(a < layout.axis for a in axes))


def _transpose(eqn: Any, operands: list[Layout]) -> list[Layout]:
    layout = _first(operands)
    return [_moved(layout, eqn.params["permutation"].index(layout.axis))]


def _reduce(eqn: Any, operands: list[Layout]) -> list[Layout]:
    joined = _join(eqn, operands)
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["dimensions"]
    return [_without_axes(eqn, joined, axes) if isinstance(joined, RowLayout) else joined] * len(eqn.outvars)


def _combining(combines: Callable[[Any, int], bool]) -> Rule:
    """Rule of a primitive that keeps the axes, and combines the entries of an axis if `combines(eqn, axis)`."""

    def rule(eqn: Any, operands: list[Layout]) -> list[Layout]:
        joined = _join(eqn, operands)
        if isinstance(joined, RowLayout) and combines(eqn, joined.axis):
            joined = _dependent(eqn)
        return [joined] * len(eqn.outvars)

    return rule


def _along(name: str) -> Rule:
    """Rule of a primitive that combines the entries of one axis or several, given by a parameter; default: the last one."""

    def combines(eqn: Any, axis: int) -> bool:
        axes = eqn.params.get(name, -1)
        return axis in [a % _rank(eqn) for a in (axes if isinstance(axes, tuple | list) else (axes,))]

    return _combining(combines)


def _trailing(count: Callable[[Any], int]) -> Rule:
    """Rule of a primitive that works on the last axes, `count(eqn)` of them, separately for each entry of the others."""
    return _combining(lambda eqn, axis: axis >= _rank(eqn) - count(eqn))


def _rank(eqn: Any) -> int:
    return len(eqn.invars[0].aval.shape)


def _over_windows(eqn: Any, axis: int) -> bool:
    p = eqn.params
    return (p["window_dimensions"][axis], p["window_strides"][axis], *p["padding"][axis]) != (1, 1, 0, 0)


def _concatenate(eqn: Any, operands: list[Layout]) -> list[Layout]:
    joined, axis = _join(eqn, operands), eqn.params["dimension"]
    if not isinstance(joined, RowLayout) or joined.axis != axis:
        return [joined]
    if any(x is None for x in operands):
        return [_unknown(eqn)]
    return [joined._replace(before=joined.before * len(operands))]


def _stack(eqn: Any, operands: list[Layout]) -> list[Layout]:
    joined, axis = _join(eqn, operands), eqn.params["axis"]
    return [_moved(joined, joined.axis + (axis <= joined.axis)) if isinstance(joined, RowLayout) else joined]


def _tile(eqn: Any, operands: list[Layout]) -> list[Layout]:
    layout, reps = _first(operands), eqn.params["reps"]
    return [layout._replace(before=layout.before * reps[layout.axis])]


def _pad(eqn: Any, operands: list[Layout]) -> list[Layout]:
    joined = _join(eqn, operands)
    padded = isinstance(joined, RowLayout) and any(eqn.params["padding_config"][joined.axis])
    return [_unknown(eqn) if padded else joined]


def _part(eqn: Any, layout: RowLayout, start: int, length: int) -> Layout:
    """Contiguous entries of the axis of the rows: all rows again (one of several concatenated batches), or single rows."""
    unit = layout.size * layout.after
    if length and start % unit == 0 and length % unit == 0:
        return layout._replace(before=length // unit)
    return _dependent(eqn, "of single rows of the batch")


def _slice(eqn: Any, operands: list[Layout]) -> list[Layout]:
    layout, strides = _first(operands), eqn.params["strides"]
    start, limit = (eqn.params[k][layout.axis] for k in ("start_indices", "limit_indices"))
    if strides is not None and strides[layout.axis] != 1:
        return [_dependent(eqn, "of single rows of the batch")]
    return [_part(eqn, layout, start, limit - start)]


def _split(eqn: Any, operands: list[Layout]) -> list[Layout]:
    layout, sizes = _first(operands), [int(s) for s in eqn.params["sizes"]]
    if layout.axis != eqn.params["axis"]:
        return [layout] * len(sizes)
    return [_part(eqn, layout, sum(sizes[:k]), size) for k, size in enumerate(sizes)]


def _dynamic_slice(eqn: Any, operands: list[Layout]) -> list[Layout]:
    layout = operands[0]
    whole = isinstance(layout, RowLayout) and eqn.params["slice_sizes"][layout.axis] == eqn.invars[0].aval.shape[layout.axis]
    return [layout if whole else _dependent(eqn, "of single rows of the batch")]


def _dynamic_update_slice(eqn: Any, operands: list[Layout]) -> list[Layout]:
    joined = _join(eqn, operands[:2])
    shapes = [v.aval.shape for v in eqn.invars[:2]]
    whole = isinstance(joined, RowLayout) and shapes[0][joined.axis] == shapes[1][joined.axis]
    return [joined if whole else _unknown(eqn)]


# ------------------------------------------------------------------------------------------------ rules: several arrays
def _dot_general(eqn: Any, operands: list[Layout]) -> list[Layout]:
    contracted, batched = eqn.params["dimension_numbers"]
    free, results = len(batched[0]), []
    for side, layout in enumerate(operands[:2]):
        rank = len(eqn.invars[side].aval.shape)
        others = [a for a in range(rank) if a not in (*contracted[side], *batched[side])]
        if isinstance(layout, RowLayout):
            if layout.axis in contracted[side]:
                return [_dependent(eqn)]
            axes = list(batched[side])
            at = axes.index(layout.axis) if layout.axis in axes else free + others.index(layout.axis)
            results.append(_moved(layout, at))
        free += len(others)
    return [_join(eqn, results)]


def _convolution(eqn: Any, operands: list[Layout]) -> list[Layout]:
    spec, layout = eqn.params["dimension_numbers"], operands[0]
    if operands[1] is not None or not isinstance(layout, RowLayout) or eqn.params["batch_group_count"] != 1:
        return [_unknown(eqn)]
    return [_moved(layout, spec.out_spec[0]) if layout.axis == spec.lhs_spec[0] else _dependent(eqn)]


def _gather(eqn: Any, operands: list[Layout]) -> list[Layout]:
    (layout, indices), d, sizes = operands, eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    rank = len(eqn.outvars[0].aval.shape)
    outer = [a for a in range(rank) if a not in d.offset_dims]  # axes of the indices in the output
    results: list[Layout] = []
    if isinstance(indices, RowLayout):
        if indices.axis >= len(outer):
            return [_unknown(eqn)]
        results.append(_moved(indices, outer[indices.axis]))
    if isinstance(layout, RowLayout):
        window = [
            a for a in range(len(sizes)) if a not in (*d.collapsed_slice_dims, *d.operand_batching_dims)
        ]  # axes of the operand in the output
        if layout.axis in d.operand_batching_dims:
            at = d.start_indices_batching_dims[d.operand_batching_dims.index(layout.axis)]
            results.append(_moved(layout, outer[at]))
        elif layout.axis in window and sizes[layout.axis] == eqn.invars[0].aval.shape[layout.axis]:
            results.append(_moved(layout, d.offset_dims[window.index(layout.axis)]))
        else:  # rows by their number: each row its own one, as in x[jnp.arange(n), labels], or any other
            return [_unknown(eqn)]
    return [_join(eqn, results)]


def _scatter(eqn: Any, operands: list[Layout]) -> list[Layout]:
    (layout, indices, updates), d = operands, eqn.params["dimension_numbers"]
    shapes = [v.aval.shape for v in eqn.invars]
    outer = [a for a in range(len(shapes[2])) if a not in d.update_window_dims]  # axes of the indices in the updates
    window = [a for a in range(len(shapes[0])) if a not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    results = [layout]
    for axes, x in (("indices", indices), ("updates", updates)):
        if not isinstance(x, RowLayout):
            continue
        if axes == "updates" and x.axis in d.update_window_dims:
            at = window[d.update_window_dims.index(x.axis)]
        else:
            place = x.axis if axes == "indices" else outer.index(x.axis)
            if place not in d.scatter_indices_batching_dims:
                return [_unknown(eqn)]
            at = d.operand_batching_dims[d.scatter_indices_batching_dims.index(place)]
        results.append(_moved(x, at))
    joined = _join(eqn, results)
    if not isinstance(joined, RowLayout) or joined.axis in d.operand_batching_dims:
        return [joined]
    at = joined.axis
    whole = at in window and shapes[2][d.update_window_dims[window.index(at)]] == shapes[0][at]
    return [joined if whole else _unknown(eqn)]


def _random_bits(eqn: Any, operands: list[Layout]) -> list[Layout]:
    return [operands[0]] * len(eqn.outvars)  # one key for each row: the axes of the keys come first


# ------------------------------------------------------------------------------------------------ loops and branches
def _fixed_point(body: Callable[[list[Layout]], list[Layout]], carry: list[Layout], eqn: Any) -> list[Layout]:
    """Abstract values of the carry of a loop, valid before and after every iteration."""
    while True:
        joined = [_join(eqn, pair) for pair in zip(carry, body(carry), strict=True)]
        if joined == carry:
            return carry
        carry = joined


def _scan(eqn: Any, operands: list[Layout]) -> list[Layout]:
    constants, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    jaxpr = eqn.params["jaxpr"].jaxpr
    fixed, carry, xs = operands[:constants], operands[constants : constants + carries], operands[constants + carries :]
    over_rows = next((x for x in xs if isinstance(x, RowLayout) and x.axis == 0), None)
    if over_rows is not None and over_rows != batch_rows(over_rows.size):
        return [_unknown(eqn)] * len(eqn.outvars)

    this_row = Mixed("row", f"iteration {id(eqn)}")  # the rows of two nested loops are different values

    def element(x: Layout) -> Layout:
        return x if not isinstance(x, RowLayout) else this_row if x.axis == 0 else _moved(x, x.axis - 1)

    def body(carry: list[Layout]) -> list[Layout]:
        return _run(jaxpr, [*fixed, *carry, *map(element, xs)])

    carry = _fixed_point(lambda c: body(c)[:carries], carry, eqn)
    if over_rows is not None and any(x is not None for x in carry):
        return [_dependent(eqn)] * len(eqn.outvars)  # later rows see what earlier rows left in the carry
    stacked = [over_rows if y == this_row else _moved(y, y.axis + 1) if isinstance(y, RowLayout) else y for y in body(carry)]
    return [*carry, *stacked[carries:]]


def _while(eqn: Any, operands: list[Layout]) -> list[Layout]:
    p, first = eqn.params, eqn.params["cond_nconsts"]
    second = first + p["body_nconsts"]
    body = p["body_jaxpr"].jaxpr
    carry = _fixed_point(lambda c: _run(body, [*operands[first:second], *c]), operands[second:], eqn)
    (condition,) = _run(p["cond_jaxpr"].jaxpr, [*operands[:first], *carry])
    # a loop that jax.vmap made runs until all rows are done, and its body leaves finished rows unchanged
    if isinstance(condition, Mixed) and condition.kind != "row":
        return [_unknown(eqn)] * len(carry)
    return [_join(eqn, (value, condition)) for value in carry]


def _cond(eqn: Any, operands: list[Layout]) -> list[Layout]:
    index, *rest = operands
    if isinstance(index, Mixed) and index.kind != "row":
        return [index] * len(eqn.outvars)
    branches = [_run(b.jaxpr, rest) for b in eqn.params["branches"]]
    return [_join(eqn, (index, *values)) for values in zip(*branches, strict=True)]


_CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call"}
_CONTROL: dict[str, Rule] = {"scan": _scan, "while": _while, "cond": _cond, "optimization_barrier": _identity}
_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil clamp
clz complex conj convert_element_type copy copy_p cos cosh device_put digamma div eq eq_to erf erf_inv erfc exp exp2
expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to
max min mul mulhi name ne neg nextafter not or polygamma population_count pow pvary real reduce_precision
regularized_incomplete_beta rem round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta random_clone random_fold_in
threefry2x32
"""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(("random_bits", "random_split", "random_seed", "random_wrap", "random_unwrap"), _random_bits),
    **dict.fromkeys([f"reduce_{kind}" for kind in ("sum", "max", "min", "prod", "and", "or", "xor")], _reduce),
    **dict.fromkeys(("argmax", "argmin", "reduce"), _reduce),
    **dict.fromkeys([f"cum{kind}" for kind in ("sum", "prod", "max", "min", "logsumexp")], _along("axis")),
    **dict.fromkeys([f"reduce_window{kind}" for kind in ("", "_sum", "_max", "_min")], _combining(_over_windows)),
    **dict.fromkeys(["scatter", *(f"scatter{s}{k}" for s in "-_" for k in ("add", "sub", "mul", "min", "max"))], _scatter),
    **dict.fromkeys(("cholesky", "eigh", "qr", "lu", "triangular_solve", "householder_product"), _trailing(lambda eqn: 2)),
    "sort": _along("dimension"),
    "rev": _along("dimensions"),
    "top_k": _along("axis"),
    "fft": _trailing(lambda eqn: len(eqn.params["fft_lengths"])),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "tile": _tile,
    "pad": _pad,
    "slice": _slice,
    "split": _split,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "scatter": _scatter,
}
