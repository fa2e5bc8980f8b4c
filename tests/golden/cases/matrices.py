"""Cases of the linalg family, of diagonal and triangular matrices, and of attention."""

import numpy as np

DRAW = np.random.RandomState(11)
N = np.array([[4, 1, 0.5], [-1, 3, 0.2], [0.7, 0.2, 2]], np.float32)
S = np.array([[4, 1, 0.5], [1, 3, 0.2], [0.5, 0.2, 2]], np.float32)
STACK = np.stack([N, S, N + S])
TALL, FLAT = N[:, :2].copy(), N[:2].copy()


def draw(*shape):
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def case(op, *arrays, names=("A", "B", "C"), **attrs):
    return {"op": op, "attrs": attrs, "inputs": dict(zip(names, arrays, strict=False))}


CASES = [
    case("linalg_gemm2", draw(2, 3, 4), draw(4, 3, 2), axis=0),
    case("linalg_gemm2", draw(2, 3, 4), draw(2, 5, 4), axis=1, transpose_b=True),
    case("linalg_gemm2", draw(2, 3, 4), draw(2, 3, 5), axis=-3, transpose_a=True, alpha=2.5),
    case("linalg_gemm2", draw(2, 3, 4), draw(2, 5, 3), transpose_a=True, transpose_b=True, alpha=-1),
    case("linalg_gemm2", draw(2, 3), draw(3, 4)),
    case("linalg_gemm", draw(2, 3), draw(3, 4), draw(2, 4), beta=0.5),
    case("linalg_gemm", draw(2, 3, 4), draw(2, 3, 5), draw(4, 3, 5), axis=0, transpose_a=True, alpha=0.5, beta=2),
    case("linalg_gemm", draw(2, 2, 3, 4), draw(2, 2, 4, 5), draw(2, 2, 3, 5)),
    case("linalg_gemm", draw(1, 2, 3, 4), draw(1, 2, 5, 4), draw(1, 2, 3, 5), transpose_b=True, beta=0),
    case("linalg_syrk", FLAT),
    case("linalg_syrk", FLAT, transpose=True, alpha=2),
    case("linalg_syrk", draw(2, 2, 3, 2), alpha=-0.5),
    *[
        case(op, STACK if stacked else N, b, rightside=rightside, transpose=transpose, lower=lower, alpha=1.5)
        for op in ("linalg_trmm", "linalg_trsm")
        for stacked in (False, True)
        for rightside in (False, True)
        for transpose in (False, True)
        for lower in (False, True)
        if not stacked or transpose != lower
        for b in [draw(3, 2, 3) if stacked and rightside else draw(3, 3, 2) if stacked else draw(2, 3) if rightside else TALL]
    ],
    case("linalg_potrf", N),
    case("linalg_potrf", STACK),
    case("linalg_potri", N),
    case("linalg_potri", STACK[None]),
    case("linalg_sumlogdiag", STACK),
    case("linalg_sumlogdiag", N),
    case("linalg_inverse", N),
    case("linalg_inverse", STACK),
    case("linalg_det", N),
    case("linalg_det", STACK),
    case("linalg_det", draw(2, 2, 4, 4)),
    case("linalg_det", np.array([[1, 2], [2, 4]], np.float32)),
    case("linalg_slogdet", N),
    case("linalg_slogdet", np.stack([N, -S])[None]),
    case("linalg_slogdet", np.array([[[1, 2], [2, 4]], [[1, 2], [3, 4]]], np.float32)),
    case("linalg_gelqf", FLAT),
    case("linalg_gelqf", N),
    case("linalg_gelqf", draw(2, 2, 4)),
    case("_linalg_syevd", S),
    case("_linalg_syevd", STACK),
    case("_linalg_syevd", draw(2, 1, 4, 4)),
    *[case("linalg_extractdiag", N, offset=k) for k in (0, 1, -2)],
    case("linalg_extractdiag", STACK, offset=1),
    *[case("linalg_makediag", N[0], offset=k) for k in (0, -1)],
    case("linalg_makediag", N, offset=2),
    *[case("linalg_extracttrian", N, offset=k, lower=low) for k in (0, 1, -1) for low in (True, False)],
    case("linalg_extracttrian", STACK, offset=-2),
    *[case("linalg_extracttrian", draw(4, 4), offset=k, lower=low) for k in (0, 1) for low in (True, False)],
    *[case("linalg_maketrian", draw(6), offset=k, lower=low) for k in (0, 1) for low in (True, False)],
    *[case("linalg_maketrian", N, offset=k, lower=low) for k in (0, 1, -2) for low in (True, False)],
    *[
        case("diag", array, names=("data",), **attrs)
        for array, attrs in [
            (N, {"k": -1}),
            (FLAT, {"k": 2}),
            (N[0], {"k": 1}),
            (draw(2, 3, 4), {}),
            (draw(2, 3, 4), {"axis1": 0, "axis2": 2}),
            (draw(2, 3, 4), {"axis1": 2, "axis2": 1, "k": 1}),
            (draw(3, 4), {"axis1": -1, "axis2": -2, "k": 1}),
        ]
    ],
    *[
        case("khatri_rao", *arrays, names=("a", "b", "c"), num_args=len(arrays))
        | {"req": dict.fromkeys("abc"[: len(arrays)], "null")}
        for arrays in ([FLAT], [FLAT, N, N[1:]])
    ],
    case("_contrib_div_sqrt_dim", draw(2, 3), names=("data",)),
    case("_contrib_interleaved_matmul_selfatt_qk", draw(3, 2, 12), names=("queries_keys_values",), heads=2),
    case(
        "_contrib_interleaved_matmul_selfatt_valatt",
        draw(3, 2, 12),
        draw(4, 3, 3),
        names=("queries_keys_values", "attention"),
        heads=2,
    ),
    case("_contrib_interleaved_matmul_encdec_qk", draw(4, 2, 6), draw(3, 2, 12), names=("queries", "keys_values"), heads=3),
    case(
        "_contrib_interleaved_matmul_encdec_valatt", draw(3, 2, 12), draw(6, 4, 3), names=("keys_values", "attention"), heads=3
    ),
]
