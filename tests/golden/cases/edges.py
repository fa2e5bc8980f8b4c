"""Edge cases of elementwise operators and reductions: integers, nan, zero divisors, empty axes, ties."""

import numpy as np

INTS = np.array([-5, -1, 0, 3, 7], np.int32)
BYTES = np.array([0, 1, 5, 255], np.uint8)
ODD = np.array([[np.nan, 1, 0, -2.5, np.inf], [3, np.nan, 0, 2, -np.inf]], np.float32)
SMALL = np.array([[[1, 2, 2], [0, -1, 0.5]], [[2, 2, -3], [1.5, 0, 1]]], np.float32)


def case(op, *arrays, names=("data",), **attrs):
    return {"op": op, "attrs": attrs, "inputs": dict(zip(names, arrays, strict=False))}


def pair(op, lhs, rhs):
    return case(op, lhs, rhs, names=("lhs", "rhs"))


CASES = [
    *[
        case(op, array, scalar=scalar, is_int=whole)
        for op in ("_plus_scalar", "_greater_scalar", "_equal_scalar", "_maximum_scalar", "_logical_xor_scalar")
        for array, scalar, whole in ((INTS, -0.5, True), (BYTES, -3, True), (INTS, -0.5, False))
    ],
    case("_power_scalar", INTS, scalar=3),
    case("_power_scalar", np.array([1, -1, 2, -2], np.int32), scalar=-3),
    case("_rpower_scalar", INTS, scalar=2),
    case("_hypot_scalar", INTS, scalar=4),
    case("_mod_scalar", INTS, scalar=-3),
    case("_mod_scalar", SMALL[0], scalar=0),
    case("_rmod_scalar", SMALL[0, :1], scalar=3),
    *[pair(op, INTS, np.array([3, -3, 2, -2, 5], np.int32)) for op in ("_mod", "elemwise_div", "_power", "_hypot")],
    pair("_mod", SMALL[0], SMALL[1]),
    pair("broadcast_mod", SMALL[:, :1], SMALL[:1, :, :1]),
    *[case(op, np.float32([np.nan, 2, np.inf]), scalar=2) | {"req": {"data": "null"}} for op in ("_maximum_scalar",)],
    *[
        pair(op, ODD[0], ODD[1]) | {"req": {"lhs": "null", "rhs": "null"}}
        for op in ("_maximum", "_minimum", "broadcast_maximum", "_hypot")
    ],
    case("sign", ODD),
    *[case(op, np.array([1, 2, 4], np.int32)) for op in ("sigmoid", "rsqrt", "sqrt", "exp", "abs", "square")],
    case("clip", BYTES, a_min=-1, a_max=1),
    case("clip", BYTES, a_min=2, a_max=300),
    case("clip", INTS.astype(np.int8), a_min=-1.7, a_max=3.9),
    *[
        case(op, SMALL, axis=(), exclude=exclude, keepdims=keep)
        for op in ("sum", "max")
        for exclude in (False, True)
        for keep in (False, True)
    ],
    *[
        case(op, array, axis=1)
        for op in ("argmax", "argmin")
        for array in (np.array([[3, 1, 3, 1]], np.int8), np.array([[3, 1, 3, 1]], np.float16), ODD)
    ],
    case("argmax_channel", np.array([[1, 3, 3]], np.int32)),
    case("max", np.array([[np.nan, 1], [1, 2]], np.float32), axis=1),
    *[case(op, INTS[None], axis=axis) for op in ("sum", "mean", "prod", "max", "min") for axis in (0, 1)],
    case(
        "_contrib_SparseEmbedding",
        np.array([[0, 3], [1, 3]], np.float32),
        np.arange(12, dtype=np.float32).reshape(4, 3) / 5,
        names=("data", "weight"),
        input_dim=4,
        output_dim=3,
    )
    | {"req": {"data": "null", "weight": "null"}},
]
