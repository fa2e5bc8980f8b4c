"""Cases of sorting, scattering, counting, copying, and of arrays created from shapes."""

import numpy as np

DRAW = np.random.RandomState(12)
TIES = np.array([[3, 1, 3, 2, 1], [2, 2, 0, 2, 5]], np.float32)
UNTIED = np.array([[3, 1, 4, 2, 1.5], [2, 2.5, 0, 1, 5]], np.float32)
X = np.arange(12, dtype=np.float32).reshape(3, 4) / 10


def draw(*shape):
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def case(op, *arrays, names=("data",), req=None, skip=(), **attrs):
    found = {"op": op, "attrs": attrs, "inputs": dict(zip(names, arrays, strict=False)), "skip": skip}
    return found if req is None else found | {"req": dict.fromkeys(names, req)}


def ints(*values, dtype=np.int32):
    return np.array(values, dtype)


PROCESS = {
    "lda": DRAW.rand(2, 3).astype(np.float32),
    "alpha": DRAW.rand(3).astype(np.float32),
    "beta": DRAW.rand(3).astype(np.float32) + 0.2,
    "state": DRAW.rand(2, 3).astype(np.float32),
    "lags": DRAW.rand(2, 5).astype(np.float32),
    "marks": DRAW.randint(0, 3, (2, 5)).astype(np.int32),
    "valid_length": np.float32([3, 5]),
    "max_time": np.float32([5, 6]),
}

CASES = [
    *[
        case("topk", TIES, ret_typ=kind, k=k, axis=axis, is_ascend=ascend)
        for kind in ("indices", "value", "both", "mask")
        for k, axis, ascend in ((3, 1, True), (1, 0, False), (4, None, False))
    ],
    case("topk", TIES, k=2, dtype="int32"),
    case("topk", TIES, k=0, axis=0, ret_typ="both", is_ascend=True),
    case("topk", TIES, k=2, ret_typ="both", dtype="uint8"),
    case("topk", TIES.astype(np.int32), k=2, ret_typ="both"),
    case("topk", TIES.astype(np.uint8), k=2, ret_typ="value", is_ascend=True),
    *[case("sort", UNTIED, axis=axis, is_ascend=up) for axis, up in ((-1, False), (0, True))],
    *[case("sort", TIES, axis=axis, is_ascend=up) for axis in (-1, None) for up in (True, False)],
    case("sort", TIES.astype(np.int32), axis=1, is_ascend=False),
    *[case("argsort", TIES, axis=axis, is_ascend=up) for axis in (-1, 0, None) for up in (True, False)],
    case("argsort", TIES.astype(np.int32), dtype="int32"),
    case("gather_nd", X, np.float32([[0, 2, 2], [1, 3, 3]]), names=("data", "indices")),
    case("gather_nd", X, ints([[0, 2], [1, -1]]), names=("data", "indices"), req="null"),
    case("gather_nd", draw(2, 3, 2), ints([0, 1, 1], [2, 0, 0]), names=("data", "indices")),
    case("scatter_nd", draw(3), np.float32([[0, 2, 1], [1, 3, 3]]), names=("data", "indices"), shape=(3, 4)),
    case("scatter_nd", draw(3), np.float32([[0, 2, 2], [1, 3, 3]]), names=("data", "indices"), shape=(3, 4)),
    case("scatter_nd", draw(2, 4), ints([0, 2]), names=("data", "indices"), shape=(3, 4)),
    *[
        case("_contrib_index_copy", X, index, draw(2, 4), names=("old_tensor", "index_vector", "new_tensor"))
        | {"req": {"index_vector": "null"}}
        for index in (ints(2, 0), np.float32([1, 2]), ints(2, 2))
    ],
    case("batch_take", X, ints(0, 5, -1), names=("a", "indices"), req="null"),
    case("ravel_multi_index", np.float32([[0, 1, 2], [3, 0, 9]]), shape=(4, 5)),
    case("ravel_multi_index", ints([0, 1, 2], [3, 0, 9]), shape=(-1, 5)),
    case("unravel_index", np.float32([0, 7, 19, 25]), shape=(4, 5)),
    case("unravel_index", ints(0, 7, 19), shape=(-1, 2, 3)),
    case("_slice_assign", X, draw(2, 2), names=("lhs", "rhs"), req="null", begin=(0, 1), end=(2, 3)),
    case("_slice_assign", X, draw(2, 2), names=("lhs", "rhs"), req="null", begin=(0, None), end=(3, None), step=(2, -3)),
    case("_slice_assign_scalar", X, req="null", scalar=5, begin=(1,), end=(3,)),
    case("_crop_assign_scalar", X, req="null", begin=(None, 3), end=(None, None), step=(1, -2)),
    *[case("_histogram", X, req="null", bin_cnt=n, range=r) for n, r in ((3, (0, 1)), (5, (0.15, 0.95)))],
    case("_histogram", X, np.float32([0, 0.25, 0.5, 1.1]), names=("data", "bins"), req="null"),
    case("_histogram", (10 * X).astype(np.int32), req="null", bin_cnt=4, range=(2, 10)),
    case("moments", draw(2, 3, 4), axes=(0, 2)),
    case("moments", draw(2, 3, 4), axes=(-1,), keepdims=True),
    case("moments", draw(2, 3), axes=(0, 1)),
    *[case("cumsum", draw(3, 4), names=("a",), axis=axis) for axis in (0, 1, None)],
    case("cumsum", (10 * X).astype(np.int32), names=("a",), axis=0, dtype="float32"),
    case("cumsum", (10 * X).astype(np.int8), names=("a",), axis=1),
    case("cumsum", 3 * X, names=("a",), axis=1, dtype="int32", req="null"),
    case("multi_sum_sq", X[0], X, names=("a", "b"), req="null", num_arrays=2),
    case("all_finite", X, req="null"),
    case("all_finite", np.float32([1, np.inf]), req="null"),
    case("all_finite", np.float16([1, np.nan]), req="null", init_output=False),
    case("multi_all_finite", X, np.float32([np.nan]), names=("a", "b"), req="null", num_arrays=2),
    case("multi_all_finite", X, X[0], names=("a", "b"), req="null", num_arrays=2),
    *[
        case("_contrib_allclose", *pair, names=("a", "b"), req="null", **attrs)
        for pair, attrs in [
            ((X, X + np.float32(1e-6)), {}),
            ((X, X * np.float32(1.0001)), {"rtol": 1e-3}),
            ((X, X + np.float32(0.01)), {"atol": 0.1}),
            ((np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf])), {}),
            ((np.float32([np.nan]), np.float32([np.nan])), {"equal_nan": False}),
        ]
    ],
    case("amp_multicast", X[0].astype(np.float16), X[1], names=("a", "b"), num_outputs=2),
    case("amp_multicast", X[0].astype(np.float16), X[1], names=("a", "b"), num_outputs=2, cast_narrow=True),
    case("amp_multicast", X[0].astype(np.float16), ints(1, 2), X[1], names=("a", "b", "c"), num_outputs=3),
    case("amp_multicast", X[0].astype(np.float16), X[1].astype(np.float16), names=("a", "b"), num_outputs=2),
    case("amp_cast", draw(2, 3), dtype="float16"),
    case("cast_storage", draw(2, 3), stype="default"),
    case("_identity_with_attr_like_rhs", draw(2, 3), draw(2, 3), names=("lhs", "rhs")),
    case("_contrib_gradientmultiplier", draw(2, 3), scalar=-0.5, is_int=False),
    case("_contrib_gradientmultiplier", draw(2, 3), scalar=2),
    case("_contrib_round_ste", 3 * draw(2, 3)),
    case("_contrib_round_ste", np.float32([-1.5, -0.5, 0.5, 1.5, 2.5])),
    case("_contrib_sign_ste", np.float32([-1.5, 0, 0.5])),
    case("_contrib_quadratic", draw(2, 3), a=1.5, b=2, c=-3),
    case("_contrib_quadratic", ints(1, 2, 3), a=1.5, b=2, c=-3),
    case("_scatter_elemwise_div", draw(2, 3), draw(2, 3), names=("lhs", "rhs")),
    case("_scatter_plus_scalar", draw(2, 3), scalar=2),
    case("_scatter_minus_scalar", draw(2, 3), scalar=2),
    case("_rnn_param_concat", draw(3), draw(2), names=("a", "b"), num_args=2, dim=0),
    case("_rnn_param_concat", draw(3, 4), draw(3, 1), names=("a", "b"), num_args=2),
    case("_mod", 3 * draw(2, 3), draw(2, 3), names=("lhs", "rhs")),
    *[
        case("_contrib_arange_like", array, **attrs)
        for array, attrs in [
            (X, {"start": 1, "step": 0.5, "axis": 1}),
            (X, {"repeat": 2}),
            (X, {"repeat": 5}),
            (X, {"repeat": 3, "axis": 0}),
            (X.astype(np.int32), {"axis": -1}),
        ]
    ],
    case("_contrib_index_array", X),
    case("_contrib_index_array", X, axes=(1, 0, -1)),
    case("shape_array", X),
    case("size_array", X),
    *[
        {"op": "_eye", "attrs": attrs, "inputs": {}}
        for attrs in ({"N": 2, "M": 4, "k": 1, "dtype": "int32"}, {"N": 3, "M": 2, "k": -1}, {"N": 2})
    ],
    *[
        {"op": "_linspace", "attrs": attrs, "inputs": {}}
        for attrs in (
            {"start": 1, "stop": 3, "num": 5},
            {"start": 1, "stop": 3, "num": 4, "endpoint": False, "dtype": "float16"},
            {"start": 2, "stop": -3, "num": 1},
            {"start": 0, "stop": 9, "num": 4, "dtype": "int32"},
        )
    ],
    case("depth_to_space", draw(2, 8, 2, 3), block_size=2),
    case("space_to_depth", draw(2, 2, 4, 6), block_size=2),
    {"op": "_contrib_hawkesll", "inputs": PROCESS, "req": dict.fromkeys(("lags", "marks", "valid_length", "max_time"), "null")},
]
