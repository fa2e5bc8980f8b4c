"""ONNX converters of elementwise operators: of one array, of two, of an array and a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jfit.export.nodes.core import CONVERTERS, TYPES, At, Graph, converts

# jfit's operator -> the single ONNX node that computes it
PLAIN = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softsign": "Softsign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "abs": "Abs", "sign": "Sign", "negative": "Neg", "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "arcsinh": "Asinh",
    "arccosh": "Acosh", "arctanh": "Atanh", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "_copy": "Identity",
    "BlockGrad": "Identity", "_contrib_sign_ste": "Sign",
}  # fmt: skip


ON_INTEGERS = ("Abs", "Ceil", "Floor", "Identity", "Neg", "Relu", "Sign")
FLOAT = np.dtype(np.float32)


def _is_float(node: At) -> bool:
    return node.dtype.kind not in "iub"


def _on_floats(build: Callable[..., str]) -> Callable[..., str]:
    """Wrap a converter of one array so that integer data is cast to float32 first and the result cast back to its dtype.

    Float data is converted by `build` unchanged.  For ONNX operators that are defined for floats only.
    """

    def convert(graph: Graph, node: At, data: str) -> str:
        if _is_float(node):
            return build(graph, node, data)
        wide = node._replace(ins=(node.of(0)._replace(dtype=FLOAT),))
        return graph.cast(build(graph, wide, graph.cast(data, FLOAT)), node.dtype)

    return convert


def _plain(kind: str) -> Callable[..., Any]:
    def convert(graph: Graph, node: At, data: str) -> str:
        rounds = kind in ("Floor", "Ceil")  # no change for integers
        return data if rounds and not _is_float(node) else graph.add(kind, data)

    return convert if kind in ON_INTEGERS else _on_floats(convert)


for ours, theirs in PLAIN.items():
    converts(ours)(_plain(theirs))


# ------------------------------------------------------------------------------------------ one array, several nodes
def _root(graph: Graph, node: At, data: str) -> str:
    return graph.add("Mul", graph.add("Sign", data), graph.binary("Pow", graph.add("Abs", data), 1 / 3, node.dtype))


def _towards_zero(graph: Graph, node: At, data: str, plus: float = 0.0) -> str:
    """Return sign(x) ⌊|x| + plus⌋: truncation, or rounding half away from zero with plus = 0.5."""
    size = graph.add("Abs", data)
    size = graph.binary("Add", size, plus, node.dtype) if plus else size
    return graph.add("Mul", graph.add("Sign", data), graph.add("Floor", size))


# operator -> function (graph, node, data) -> tensor
PHRASES: dict[str, Callable[..., str]] = {
    "log2": lambda g, n, x: g.binary("Mul", g.add("Log", x), 1 / math.log(2), n.dtype),
    "log10": lambda g, n, x: g.binary("Mul", g.add("Log", x), 1 / math.log(10), n.dtype),
    "log1p": lambda g, n, x: g.add("Log", g.binary("Add", x, 1, n.dtype)),
    "expm1": lambda g, n, x: g.binary("Sub", g.add("Exp", x), 1, n.dtype),
    "rsqrt": lambda g, n, x: g.add("Reciprocal", g.add("Sqrt", x)),
    "square": lambda g, n, x: g.add("Mul", x, x),
    "cbrt": _root,
    "rcbrt": lambda g, n, x: g.add("Reciprocal", _root(g, n, x)),
    "degrees": lambda g, n, x: g.binary("Mul", x, 180 / math.pi, n.dtype),
    "radians": lambda g, n, x: g.binary("Mul", x, math.pi / 180, n.dtype),
    "logical_not": lambda g, n, x: g.cast(g.binary("Equal", x, 0, n.dtype), n.dtype),
}
ROUNDING: dict[str, Callable[..., str]] = {
    "round": lambda g, n, x: _towards_zero(g, n, x, 0.5),
    "rint": lambda g, n, x: g.add("Ceil", g.binary("Sub", x, 0.5, n.dtype)),  # ties towards -infinity
    "fix": _towards_zero,
    "trunc": _towards_zero,
    "_contrib_round_ste": lambda g, n, x: _towards_zero(g, n, x, 0.5),
}
CONVERTERS.update({k: f if k in ("square", "logical_not") else _on_floats(f) for k, f in PHRASES.items()})


IDENTITIES = """
_copyto _CrossDeviceCopy _identity_with_attr_like_rhs cast_storage _contrib_gradientmultiplier
LinearRegressionOutput MAERegressionOutput SVMOutput MakeLoss make_loss IdentityAttachKLSparseReg
"""
CONVERTERS.update({
    "zeros_like": lambda g, n, x: g.full(n.outs[0].shape, 0, n.outs[0].dtype),  # not x - x, which would keep NaN
    "ones_like": lambda g, n, x: g.full(n.outs[0].shape, 1, n.outs[0].dtype),
    "hard_sigmoid": lambda g, n, x: g.add("HardSigmoid", x, alpha=n.attrs.alpha, beta=n.attrs.beta),
    "clip": lambda g, n, x: g.add("Clip", x, *(g.const(v, n.dtype) for v in (n.attrs.a_min, n.attrs.a_max))),
    **dict.fromkeys(("Cast", "amp_cast"), lambda g, n, x: g.add("Cast", x, to=TYPES[n.outs[0].dtype.name])),
    "amp_multicast": lambda g, n, *xs: tuple(g.cast(x, o.dtype, i.dtype) for x, o, i in zip(xs, n.outs, n.ins, strict=True)),
    "add_n": lambda g, n, *xs: g.add("Sum", *xs),
    "LogisticRegressionOutput": lambda g, n, x, label="": g.add("Sigmoid", x),
    **dict.fromkeys(IDENTITIES.split(), lambda g, n, x, *rest: x),
})  # fmt: skip


for ours, build in ROUNDING.items():  # which do not change integers
    CONVERTERS[ours] = lambda g, n, x, build=build: build(g, n, x) if _is_float(n) else x


# ------------------------------------------------------------------------------------------ two arrays
def _one(kind: str) -> Callable[..., str]:
    return lambda graph, dtype, a, b: graph.add(kind, a, b)


def _logic(kind: str) -> Callable[..., str]:
    return lambda graph, dtype, a, b: graph.add(kind, graph.cast(a, np.bool_), graph.cast(b, np.bool_))


def _mod(graph: Graph, dtype: Any, a: str, b: str) -> str:
    """Return a - b ⌊a / b⌋, 0 where b = 0: the remainder with the sign of b."""
    is_zero, zero = graph.binary("Equal", b, 0, dtype), graph.const(0, dtype)
    safe = graph.add("Where", is_zero, graph.const(1, dtype), b)
    if np.dtype(dtype).kind in "iu":
        rest = graph.add("Mod", a, safe, fmod=0)
    else:
        rest = graph.add("Sub", a, graph.add("Mul", safe, graph.add("Floor", graph.add("Div", a, safe))))
    return graph.add("Where", is_zero, zero, rest)


def _hypot(graph: Graph, dtype: Any, a: str, b: str) -> str:
    work = dtype if np.dtype(dtype).kind not in "iu" else FLOAT
    a, b = graph.cast(a, work, dtype), graph.cast(b, work, dtype)
    return graph.cast(graph.add("Sqrt", graph.add("Add", graph.add("Mul", a, a), graph.add("Mul", b, b))), dtype, work)


# stem of the operator names -> function (graph, dtype, a, b) -> tensor; the tensors of TESTS are bool
ARITHMETIC: dict[str, Callable[..., str]] = {
    "add": _one("Add"), "sub": _one("Sub"), "mul": _one("Mul"), "div": _one("Div"), "mod": _mod, "maximum": _one("Max"),
    "minimum": _one("Min"), "power": _one("Pow"), "hypot": _hypot,
}  # fmt: skip
TESTS: dict[str, Callable[..., str]] = {
    "equal": _one("Equal"), "not_equal": lambda graph, dtype, a, b: graph.add("Not", graph.add("Equal", a, b)),
    "greater": _one("Greater"), "greater_equal": _one("GreaterOrEqual"),
    "lesser": _one("Less"), "lesser_equal": _one("LessOrEqual"),
    "logical_and": _logic("And"), "logical_or": _logic("Or"), "logical_xor": _logic("Xor"),
}  # fmt: skip


def _of_two(build: Callable[..., str]) -> Callable[..., str]:
    def convert(graph: Graph, node: At, lhs: str, rhs: str) -> str:
        # jfit promotes dtypes as JAX does; ONNX requires equal ones
        a, b = node.of(0).dtype, node.of(1).dtype
        common = a if a == b else node.outs[0].dtype if build in ARITHMETIC.values() else np.promote_types(a, b)
        result = build(graph, common, graph.cast(lhs, common, a), graph.cast(rhs, common, b))
        return graph.cast(result, node.outs[0].dtype, np.bool_ if build in TESTS.values() else common)

    return convert


for stem, build in (ARITHMETIC | TESTS).items():
    equal = f"elemwise_{stem}" if stem in ("add", "sub", "mul", "div") else f"_{stem}"
    converts(equal, f"broadcast_{stem}")(_of_two(build))
converts("_grad_add")(_of_two(ARITHMETIC["add"]))
converts("_scatter_elemwise_div")(_of_two(ARITHMETIC["div"]))


@converts("where")
def where(graph: Graph, node: At, condition: str, x: str, y: str) -> str:
    """Convert to ONNX Where; a condition with fewer axes than the data gets trailing axes of size 1."""
    test, data = node.of(0), node.of(1)
    flag = graph.cast(condition, np.bool_, test.dtype)
    return graph.add("Where", graph.unsqueeze(flag, range(len(test.shape), len(data.shape))), x, y)


# ------------------------------------------------------------------------------------------ an array and a number
def _with_scalar(build: Callable[..., str], swapped: bool) -> Callable[..., str]:
    def convert(graph: Graph, node: At, data: str) -> str:
        # truncate the number if the output is integer (with is_int=False it is float, even for integer data)
        work, scalar = node.outs[0].dtype, node.attrs.scalar
        number = np.asarray(int(scalar), np.int64).astype(work) if work.kind in "iu" else scalar
        pair = graph.cast(data, work, node.dtype), graph.const(number, work)
        result = build(graph, work, *(reversed(pair) if swapped else pair))
        return graph.cast(result, work, np.bool_ if build in TESTS.values() else work)

    return convert


SCALARS = {"plus": "add", "minus": "sub"}
for stem in ("plus", "minus"):
    converts(f"_scatter_{stem}_scalar")(_with_scalar(ARITHMETIC[SCALARS[stem]], swapped=False))
for stem in ("plus", "minus", "mul", "div", "power", "mod", "maximum", "minimum", "hypot"):
    converts(f"_{stem}_scalar")(_with_scalar(ARITHMETIC[SCALARS.get(stem, stem)], swapped=False))
for stem in ("minus", "div", "power", "mod"):
    converts(f"_r{stem}_scalar")(_with_scalar(ARITHMETIC[SCALARS.get(stem, stem)], swapped=True))
for stem, build in TESTS.items():
    converts(f"_{stem}_scalar")(_with_scalar(build, swapped=False))
