"""Checks of the functions of `mx.np`, `mx.np.linalg`, `mx.np.random` and `mx.npx`."""

import numpy as onp
from np_arrays import with_np
from recorded_checks import raised


def draw(shape, low=-2.0, high=2.0, seed=0):
    return onp.random.RandomState(seed).uniform(low, high, shape).astype("float32")


@with_np
def check_unary(mx):
    np = mx.np
    domains = {
        "abs absolute fabs sign rint ceil floor trunc fix negative square exp expm1 sin cos tan sinh cosh tanh arctan arcsinh "
        "degrees radians cbrt reciprocal isnan isinf isfinite isposinf isneginf logical_not": (-2, 2),
        "sqrt log log2 log10 log1p": (0.1, 4),
        "arcsin arccos arctanh": (-0.9, 0.9),
        "arccosh": (1.1, 3),
    }
    values = {}
    for names, (low, high) in domains.items():
        x = np.array(draw((2, 3), low, high))
        values |= {name: getattr(np, name)(x) for name in names.split()}
    integers = np.array([1, 2, 7], dtype="int32")
    for name in ["abs", "sign", "square", "negative", "sqrt", "exp", "floor", "invert", "bitwise_not", "logical_not"]:
        values[f"{name}_int"] = getattr(np, name)(integers)
    special = np.array([onp.nan, onp.inf, -onp.inf, 0.0])
    for name in ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "nan_to_num"]:
        values[f"{name}_special"] = getattr(np, name)(special)
    out = np.zeros((2, 3))
    same = np.sqrt(np.ones((2, 3)) * 4, out=out)
    return values | {
        "out": out,
        "out_same": same is out,
        "number": float(np.sin(2)),
        "around": np.around(np.array([1.256, -2.744]), 2),
        "round": np.round(np.array([1.256, -2.744]), decimals=1),
        "rint_half": np.rint(np.array([0.5, 1.5, 2.5, -0.5])),
        "list": raised(np.sin, [1.0, 2.0]),
        "where": raised(np.sin, np.ones((2,)), where=np.ones((2,))),
        "unknown": raised(np.sin, np.ones((2,)), color=3),
    }


@with_np
def check_binary(mx):
    np = mx.np
    x, y = np.array(draw((2, 3), 0.5, 3)), np.array(draw((2, 3), 0.5, 3, seed=1))
    row = np.array([1.0, 2.0, 0.5])
    values = {}
    for name in [
        "add",
        "subtract",
        "multiply",
        "divide",
        "true_divide",
        "mod",
        "remainder",
        "power",
        "maximum",
        "minimum",
        "arctan2",
        "hypot",
        "copysign",
        "ldexp",
        "equal",
        "not_equal",
        "greater",
        "less",
        "greater_equal",
        "less_equal",
    ]:
        f = getattr(np, name)
        values |= {name: f(x, y), f"{name}_row": f(x, row), f"{name}_number": f(x, 2), f"{name}_left": f(2, x)}
    a, b = np.array([4, 6, 9], dtype="int32"), np.array([6, 4, 2], dtype="int32")
    for name in [
        "add",
        "multiply",
        "power",
        "maximum",
        "minimum",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "lcm",
        "greater",
        "true_divide",
        "mod",
    ]:
        values[f"{name}_int"] = getattr(np, name)(a, b)
    out = np.zeros((2, 3))
    np.add(x, y, out=out)
    return values | {
        "out": out,
        "numbers": int(np.add(1, 2)),
        "maximum_int_number": np.maximum(a, 5.5),
        "mod_negative": np.mod(np.array([-3.0, 3.0, -7.5]), np.array([2.0, -2.0, 2.0])),
        "power_negative": np.power(np.array([2.0, 4.0]), -1),
        "zero_dim": np.add(np.array(1.0), np.array(2.0)),
        "outer_shapes": np.multiply(np.ones((3, 1)), np.ones((1, 2))).shape,
    }


@with_np
def check_reductions(mx):
    np = mx.np
    x = np.array(draw((2, 3, 2)))
    values = {}
    for name in [
        "sum",
        "prod",
        "mean",
        "std",
        "var",
        "max",
        "min",
        "amax",
        "amin",
        "all",
        "any",
        "argmax",
        "argmin",
        "cumsum",
        "average",
        "sometrue",
        "product",
    ]:
        f = getattr(np, name)
        values |= {name: f(x), f"{name}_axis": f(x, axis=1)}
        if name not in ("argmax", "argmin", "cumsum", "average"):
            values |= {f"{name}_axes": f(x, axis=(0, 2)), f"{name}_keepdims": f(x, axis=-1, keepdims=True)}
    integers = np.array([[1, 2, 7], [3, 1, 5]], dtype="int32")
    for name in ["sum", "prod", "mean", "max", "min", "cumsum", "argmax", "std"]:
        values[f"{name}_int"] = getattr(np, name)(integers)
    weights = np.array([1.0, 2.0, 3.0])
    return values | {
        "sum_bool": np.sum(x > 0),
        "sum_positional": np.sum(x, 1, None, True),
        "max_positional": np.max(x, 1, True),
        "mean_dtype": np.mean(integers, dtype="float32"),
        "var_ddof": np.var(x, axis=0, ddof=1),
        "average_weights": np.average(x, axis=1, weights=weights),
        "average_returned": list(np.average(x, axis=1, weights=weights, returned=True)),
        "percentile": np.percentile(x, 30),
        "percentile_axis": np.percentile(x, np.array([25.0, 75.0]), axis=1),
        "quantile": np.quantile(x, 0.4, axis=0, keepdims=True),
        "quantile_lower": np.quantile(x, 0.4, interpolation="lower"),
        "argsort": np.argsort(x, axis=1),
        "sort": np.sort(x, axis=1),
        "sort_flat": np.sort(x, axis=None),
        "histogram": list(np.histogram(x, bins=4, range=(-2.0, 2.0))),
        "bincount": np.bincount(np.array([0, 1, 1, 3], dtype="int32")),
        "bincount_weights": np.bincount(np.array([0, 1, 1], dtype="int32"), weights=np.array([0.5, 1.0, 2.0]), minlength=4),
        "out": np.sum(x, axis=0, out=np.zeros((3, 2))),
        "zero_size": np.sum(np.zeros((0, 2)), axis=0),
        "max_error": raised(lambda: np.max(x, axis=7).asnumpy()),
    }


@with_np
def check_manipulation(mx):
    np = mx.np
    x, y = np.array(draw((2, 3))), np.array(draw((2, 3), seed=1))
    cube = np.arange(24).reshape(2, 3, 4)
    v = np.arange(6)
    return {
        "reshape": np.reshape(x, (3, 2)),
        "reshape_infer": np.reshape(cube, (-1, 4)).shape,
        "ravel": np.ravel(x),
        "transpose": np.transpose(cube).shape,
        "transpose_axes": np.transpose(cube, (1, 0, 2)),
        "swapaxes": np.swapaxes(cube, 0, 2).shape,
        "moveaxis": np.moveaxis(cube, 0, -1),
        "rollaxis": np.rollaxis(cube, 2).shape,
        "expand_dims": np.expand_dims(x, 1).shape,
        "squeeze": np.squeeze(x[None, :, None]),
        "squeeze_axis": np.squeeze(x[None, :, None], axis=0).shape,
        "concatenate": np.concatenate([x, y]),
        "concatenate_axis": np.concatenate((x, y), axis=1),
        "concatenate_none": np.concatenate((x, y), axis=None),
        "stack": np.stack([x, y]),
        "stack_last": np.stack([x, y], axis=-1),
        "vstack": np.vstack([x, y]),
        "row_stack": np.row_stack([x, y]),
        "hstack": np.hstack([x, y]),
        "hstack_1d": np.hstack([v, v]),
        "dstack": np.dstack([x, y]),
        "column_stack": np.column_stack([v, v]),
        "append": np.append(x, y, axis=0),
        "append_flat": np.append(v, np.array([9.0])),
        "split": np.split(v, 3),
        "split_type": type(np.split(v, 3)).__name__,
        "split_indices": np.split(v, [2, 5]),
        "split_indices_tuple": np.split(v, (2, 5)),
        "split_axis": np.split(x, 3, axis=1),
        "split_error": raised(lambda: np.split(v, 4)),
        "array_split": np.array_split(v, 4),
        "hsplit": np.hsplit(x, 3),
        "vsplit": np.vsplit(x, 2),
        "dsplit": np.dsplit(cube, 2),
        "tile": np.tile(x, (2, 2)),
        "tile_int": np.tile(v, 2),
        "repeat": np.repeat(x, 2),
        "repeat_axis": np.repeat(x, 2, axis=1),
        "flip": np.flip(x),
        "flip_axis": np.flip(x, axis=1),
        "flipud": np.flipud(x),
        "fliplr": np.fliplr(x),
        "roll": np.roll(x, 1),
        "roll_axis": np.roll(x, (1, 1), axis=(0, 1)),
        "rot90": np.rot90(x),
        "rot90_twice": np.rot90(x, 2),
        "broadcast_to": np.broadcast_to(v, (2, 6)),
        "broadcast_arrays": list(np.broadcast_arrays(np.ones((2, 1)), np.zeros((1, 3)))),
        "atleast_1d": np.atleast_1d(np.array(1.0)),
        "atleast_2d": np.atleast_2d(v).shape,
        "atleast_3d": np.atleast_3d(x).shape,
        "pad": np.pad(x, ((1, 0), (0, 2))),
        "pad_value": np.pad(x, ((1, 1), (1, 1)), mode="constant", constant_values=7),
        "pad_edge": np.pad(x, ((1, 1), (0, 1)), mode="edge"),
        "pad_reflect": np.pad(x, ((1, 1), (2, 1)), mode="reflect"),
        "insert": np.insert(v, 2, np.array(9.0)),
        "insert_axis": np.insert(x, 1, np.array([7.0, 8.0]), axis=1),
        "delete": np.delete(v, 2),
        "delete_slice": np.delete(v, slice(1, 4)),
        "delete_axis": np.delete(x, 1, axis=1),
        "resize": np.resize(v, (2, 5)),
        "copy": np.copy(x),
        "trace": np.trace(x),
        "diag": np.diag(x),
        "diag_vector": np.diag(v, 1),
        "diagonal": np.diagonal(cube, axis1=1, axis2=2),
        "diagflat": np.diagflat(v[:2]),
        "tril": np.tril(x),
        "diff": np.diff(v * v),
        "diff_2": np.diff(x, n=2, axis=1),
        "ediff1d": np.ediff1d(v * v),
        "unique": np.unique(np.array([3, 1, 3, 2], dtype="int32")),
        "unique_all": list(np.unique(np.array([3.0, 1.0, 3.0]), return_index=True, return_inverse=True, return_counts=True)),
        "nonzero": list(np.nonzero(x > 0)),
        "where": np.where(x > 0, x, y),
        "where_number": np.where(x > 0, x, 0),
        "where_numbers": np.where(x > 0, 1.0, -1.0),
        "where_nonzero": list(np.where(x > 0)),
        "clip": np.clip(x, -0.5, 0.5),
        "clip_low": np.clip(x, 0, None),
        "take": np.take(x, np.array([0, 1], dtype="int32"), axis=1),
        "take_flat": np.take(x, np.array([0, 5], dtype="int32")),
        "take_clip": np.take(v, np.array([-1, 8], dtype="int32"), mode="clip"),
        "take_wrap": np.take(v, np.array([-1, 8], dtype="int32"), mode="wrap"),
        "take_float_index": np.take(v, np.array([1.0, 2.0])),
        "unravel_index": np.unravel_index(np.array([3, 5], dtype="int32"), (2, 3)),
        "diag_indices_from": list(np.diag_indices_from(np.ones((3, 3)))),
        "shape": np.shape(x),
        "may_share_memory": bool(np.may_share_memory(x, y)),
    }


@with_np
def check_products(mx):
    np = mx.np
    a, b = np.array(draw((2, 3))), np.array(draw((3, 2), seed=1))
    v, w = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])
    batch = np.array(draw((2, 3, 4), seed=2))
    return {
        "dot": np.dot(a, b),
        "dot_vector": np.dot(a, v),
        "dot_vectors": np.dot(v, w),
        "dot_scalar": np.dot(a, np.array(2.0)),
        "dot_batch": np.dot(batch, np.ones((4, 2))),
        "matmul": np.matmul(a, b),
        "matmul_batch": np.matmul(batch, np.ones((4, 2))),
        "matmul_broadcast": np.matmul(batch, np.ones((2, 4, 1))),
        "inner": np.inner(v, w),
        "inner_2d": np.inner(a, a),
        "outer": np.outer(v, w),
        "vdot": np.vdot(a, a),
        "tensordot": np.tensordot(a, b, 1),
        "tensordot_axes": np.tensordot(a, b, axes=([0, 1], [1, 0])),
        "einsum": np.einsum("ij,jk->ik", a, b),
        "einsum_trace": np.einsum("ii", np.ones((3, 3))),
        "einsum_batch": np.einsum("bij,bij->b", batch, batch),
        "polyval": np.polyval(v, w),
        "kron_like": np.einsum("i,j->ij", v, w),
    }


@with_np
def check_linalg(mx):
    np, linalg = mx.np, mx.np.linalg
    a = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
    b = np.array([1.0, 2.0, 3.0])
    u, s, v = linalg.svd(np.array(draw((2, 3))))
    w, q = linalg.eigh(a)
    sign, logdet = linalg.slogdet(a)
    return {
        "norm": linalg.norm(a),
        "norm_axis": linalg.norm(a, axis=0),
        "norm_1": linalg.norm(b, ord=1),
        "norm_fro": linalg.norm(a, ord="fro"),
        "norm_keepdims": linalg.norm(a, axis=1, keepdims=True),
        "inv": linalg.inv(a),
        "det": linalg.det(a),
        "slogdet": [sign, logdet],
        "cholesky": linalg.cholesky(a),
        "solve": linalg.solve(a, b),
        "solve_matrix": linalg.solve(a, a),
        "pinv": linalg.pinv(np.array(draw((2, 3)))),
        "svd_values": s,
        "svd_product": np.dot(u * s, v),
        "svd_shapes": [u.shape, s.shape, v.shape],
        "eigh_values": w,
        "eigh_product": np.dot(q * w, q.T),
        "eigvalsh": linalg.eigvalsh(a),
        "eigvals": np.sort(linalg.eigvals(a)),
        "eig": np.sort(linalg.eig(a)[0]),
        "tensorinv": linalg.tensorinv(a.reshape(3, 1, 3, 1)).shape,
        "tensorsolve": linalg.tensorsolve(a, b),
        "matrix_rank": int(linalg.matrix_rank(a)),
        "matrix_power": linalg.matrix_power(a, 2),
        "qr_r": abs(linalg.qr(a)[1]),
        "cond": float(linalg.cond(a)),
        "lstsq": linalg.lstsq(a, b, rcond=None)[0],
        "multi_dot": linalg.multi_dot([a, a, a]),
        "singular": raised(lambda: linalg.solve(np.ones((2, 3)), np.ones((2,))).asnumpy()),
    }


@with_np
def check_fallback(mx):
    np = mx.np
    x, v = np.array(draw((2, 3))), np.array([3.0, 1.0, 2.0, 1.0])
    return {
        "allclose": np.allclose(x, x),
        "array_equal": np.array_equal(x, x + 1),
        "isclose": np.isclose(x, x),
        "argwhere": np.argwhere(x > 0),
        "flatnonzero": np.flatnonzero(x > 0),
        "count_nonzero": int(np.count_nonzero(x > 0)),
        "cov": np.cov(x),
        "corrcoef": np.corrcoef(x),
        "correlate": np.correlate(v, v),
        "digitize": np.digitize(v, np.array([0.0, 1.5, 2.5])),
        "divmod": list(np.divmod(v, np.array([2.0, 2.0, 2.0, 2.0]))),
        "extract": np.extract(v > 1, v),
        "heaviside": np.heaviside(x, np.zeros((2, 3))),
        "interp": np.interp(np.array([0.5, 1.5]), np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0])),
        "intersect1d": np.intersect1d(v, np.array([1.0, 2.0])),
        "isin": np.isin(v, np.array([1.0])),
        "lexsort": np.lexsort((v, v)),
        "modf": list(np.modf(x)),
        "nanmax": float(np.nanmax(x)),
        "nancumsum": np.nancumsum(v),
        "nanprod": float(np.nanprod(v)),
        "ndim": np.ndim(x),
        "partition": np.partition(v, 2)[2],
        "polyfit": np.polyfit(np.arange(4), v, 1),
        "polymul": np.polymul(v, v),
        "ptp": float(np.ptp(x)),
        "roots": np.sort(np.roots(np.array([1.0, -3.0, 2.0]))),
        "searchsorted": np.searchsorted(np.array([1.0, 2.0, 3.0]), np.array([2.5])),
        "select": np.select([x > 1, x > 0], [x, -x]),
        "setdiff1d": np.setdiff1d(v, np.array([1.0])),
        "setxor1d": np.setxor1d(v, np.array([1.0, 7.0])),
        "signbit": np.signbit(x),
        "size": np.size(x),
        "take_along_axis": np.take_along_axis(x, np.argsort(x, axis=1), 1),
        "union1d": np.union1d(v, np.array([7.0])),
        "vander": np.vander(v[:2], 3),
        "apply_along_axis": np.apply_along_axis(lambda row: row.sum(), 1, x),
        "result_type": str(np.result_type(np.float32, np.int32)),
        "nanmedian": float(np.nanmedian(v)),
        "unwrap": np.unwrap(v),
        "trim_zeros": np.trim_zeros(np.array([0.0, 1.0, 0.0])),
        "choose": np.choose(np.array([0, 1], dtype="int32"), np.array([[1.0, 2.0], [3.0, 4.0]])),
        "compress": np.compress(onp.array([True, False, True, False]), v),
        "positive": np.positive(v),
        "alltrue": bool(np.alltrue(v)),
    }


@with_np
def check_constants(mx):
    np = mx.np
    return {
        "pi": np.pi,
        "e": np.e,
        "inf": np.inf,
        "nan": np.isnan(np.array([np.nan])),
        "newaxis": np.newaxis is None,
        "dtypes": [
            onp.dtype(getattr(np, n)).name
            for n in ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool_"]
        ],
        "finfo": float(np.finfo("float32").eps),
        "absent": raised(lambda: np.no_such_function),
        "ninf": np.NINF,
        "array_type": np.ndarray.__name__,
        "nd_np": mx.nd.np.ones((2,)),
        "nd_npx": mx.nd.npx.relu(np.array([-1.0, 2.0])),
    }


@with_np
def check_random(mx):
    np = mx.np
    n = (4000,)
    mx.random.seed(3)
    means = {
        "uniform": (np.random.uniform(1.0, 3.0, n), 2.0),
        "normal": (np.random.normal(1.0, 0.5, n), 1.0),
        "exponential": (np.random.exponential(0.5, size=n), 0.5),
        "gamma": (np.random.gamma(2.0, 0.5, size=n), 1.0),
        "beta": (np.random.beta(2.0, 2.0, size=n), 0.5),
        "chisquare": (np.random.chisquare(2.0, size=n), 2.0),
        "gumbel": (np.random.gumbel(0.0, 1.0, size=n), 0.5772),
        "logistic": (np.random.logistic(1.0, 0.3, size=n), 1.0),
        "lognormal": (np.random.lognormal(0.0, 0.25, size=n), 1.0317),
        "pareto": (np.random.pareto(5.0, size=n), 0.25),
        "power": (np.random.power(3.0, size=n), 0.75),
        "rayleigh": (np.random.rayleigh(1.0, size=n), 1.2533),
        "weibull": (np.random.weibull(2.0, size=n), 0.8862),
        "randint": (np.random.randint(0, 5, size=n), 2.0),
        "rand": (np.random.rand(4000), 0.5),
        "randn": (np.random.randn(4000), 0.0),
        "choice": (np.random.choice(5, size=n), 2.0),
        "bernoulli": (mx.npx.random.bernoulli(prob=0.25, size=n), 0.25),
        "uniform_n": (mx.npx.random.uniform_n(1.0, 3.0, batch_shape=n), 2.0),
        "normal_n": (mx.npx.random.normal_n(1.0, 0.5, batch_shape=n), 1.0),
    }
    values = {f"{k}_mean": bool(abs(float(x.astype("float32").mean()) - m) < 0.1) for k, (x, m) in means.items()}
    values |= {f"{k}_dtype": str(x.dtype).replace("64", "32") for k, (x, m) in means.items()}
    mx.random.seed(5)
    first = np.random.uniform(size=(3,))
    mx.npx.random.seed(5)
    x = np.arange(10)
    np.random.shuffle(x)
    low = np.array([0.0, 10.0])
    return values | {
        "same_seed": bool((first == np.random.uniform(size=(3,))).all()),
        "shuffled": np.sort(x),
        "shape_none": np.random.uniform().shape,
        "shape_int": np.random.normal(size=3).shape,
        "shape_tuple": np.random.normal(size=(2, 3)).shape,
        "shape_of_arrays": np.random.uniform(low, low + 1).shape,
        "shape_broadcast": np.random.normal(low, 1.0, size=(3, 2)).shape,
        "of_arrays": np.floor(np.random.uniform(low, low + 0.5)),
        "multinomial": np.random.multinomial(10, [0.0, 1.0, 0.0]),
        "multinomial_size": np.random.multinomial(10, [0.5, 0.5], size=(3,)).sum(axis=1),
        "choice_p": np.random.choice(3, size=(4,), p=np.array([0.0, 1.0, 0.0])),
        "choice_all": np.sort(np.random.choice(4, size=(4,), replace=False)),
        "multivariate_normal": np.random.multivariate_normal(np.zeros((2,)), np.eye(2), size=(3,)).shape,
        "dtype": str(np.random.normal(size=(2,), dtype="float16").dtype),
        "randint_dtype": str(np.random.randint(0, 9, size=(2,), dtype="int64").dtype).replace("64", "32"),
        "out": np.random.uniform(5.0, 5.0, size=(2,), out=np.zeros((2,))),
        "uniform_n_arrays": mx.npx.random.uniform_n(low, low + 1, batch_shape=(4,)).shape,
        "normal_n_arrays": mx.npx.random.normal_n(low, np.ones((2,)), batch_shape=(4, 3)).shape,
    }


@with_np
def check_npx(mx):
    np, npx = mx.np, mx.npx
    x = np.array(draw((2, 3)))
    image = np.array(draw((1, 2, 4, 4)))
    weight = np.array(draw((3, 2, 3, 3), seed=1))
    table = np.array(draw((5, 2), seed=2))
    ones, zeros = np.ones((2,)), np.zeros((2,))
    i = np.array([0, 2], dtype="int32")
    npx.save("np_arrays.params", {"a": x, "b": ones})
    loaded = npx.load("np_arrays.params")
    npx.save("np_list.params", [x])
    return {
        "relu": npx.relu(x),
        "sigmoid": npx.sigmoid(x),
        "softmax": npx.softmax(x),
        "softmax_axis": npx.softmax(x, axis=0),
        "log_softmax": npx.log_softmax(x, axis=-1),
        "activation": npx.activation(x, act_type="tanh"),
        "activation_softrelu": npx.activation(x, act_type="softrelu"),
        "leaky_relu": npx.leaky_relu(x, act_type="leaky", slope=0.1),
        "elu": npx.leaky_relu(x, act_type="elu", slope=1.0),
        "gelu": npx.leaky_relu(x, act_type="gelu"),
        "fully_connected": npx.fully_connected(x, np.ones((4, 3)), np.zeros((4,)), num_hidden=4),
        "fully_connected_no_bias": npx.fully_connected(x, np.ones((4, 3)), num_hidden=4, no_bias=True),
        "fully_connected_flatten": npx.fully_connected(
            np.ones((2, 3, 4)), np.ones((5, 4)), num_hidden=5, no_bias=True, flatten=False
        ),
        "convolution": npx.convolution(image, weight, np.zeros((3,)), kernel=(3, 3), num_filter=3),
        "convolution_pad": npx.convolution(image, weight, no_bias=True, kernel=(3, 3), num_filter=3, pad=(1, 1), stride=(2, 2)),
        "deconvolution": npx.deconvolution(
            image, np.array(draw((2, 2, 3, 3), seed=3)), kernel=(3, 3), num_filter=2, no_bias=True
        ),
        "pooling": npx.pooling(image, kernel=(2, 2), stride=(2, 2), pool_type="max"),
        "pooling_global": npx.pooling(image, global_pool=True, pool_type="avg", kernel=(1, 1)),
        "batch_norm": npx.batch_norm(image, ones, zeros, zeros, ones, fix_gamma=False),
        "layer_norm": npx.layer_norm(x, np.ones((3,)), np.zeros((3,))),
        "dropout": npx.dropout(x, p=0.5),
        "embedding": npx.embedding(i, table, input_dim=5, output_dim=2),
        "one_hot": npx.one_hot(i, 3),
        "one_hot_dtype": npx.one_hot(i, depth=3, dtype="int32"),
        "pick": npx.pick(x, np.array([0, 2], dtype="int32")),
        "topk": npx.topk(x, k=2),
        "topk_values": npx.topk(x, k=1, ret_typ="value", axis=1),
        "topk_both": list(npx.topk(x, k=2, ret_typ="both")),
        "batch_dot": npx.batch_dot(np.ones((2, 2, 3)), np.ones((2, 3, 1))),
        "batch_dot_transpose": npx.batch_dot(np.ones((2, 2, 3)), np.ones((2, 1, 3)), transpose_b=True),
        "batch_flatten": npx.batch_flatten(image).shape,
        "gather_nd": npx.gather_nd(x, np.array([[0, 1], [1, 2]], dtype="int32")),
        "sequence_mask": npx.sequence_mask(np.ones((3, 2)), np.array([1.0, 2.0]), use_sequence_length=True, value=-1),
        "cast": npx.cast(x, dtype="int32"),
        "erf": npx.erf(x),
        "erfinv": npx.erfinv(x / 3),
        "gamma": npx.gamma(np.array([1.5, 4.0])),
        "gammaln": npx.gammaln(np.array([1.5, 4.0])),
        "smooth_l1": npx.smooth_l1(x, scalar=1.0),
        "reshape_like": npx.reshape_like(x, np.ones((3, 2))),
        "arange_like": npx.arange_like(x, axis=1),
        "shape_array": npx.shape_array(x),
        "slice": npx.slice(x, begin=(0, 1), end=(2, 3)),
        "nonzero": npx.nonzero(x > 0),
        "reshape_copy": npx.reshape(image, (-2, -2, -1)).shape,
        "reshape_rest": npx.reshape(image, (1, 2, -4)).shape,
        "reshape_merge": npx.reshape(image, (-2, -5, -2)).shape,
        "reshape_split": npx.reshape(image, (-2, -2, -6, 2, -1, -4)).shape,
        "reshape_plain": npx.reshape(x, (3, 2)),
        "reshape_reverse": npx.reshape(np.ones((2, 3, 4, 8)), (-4, -1, 2, -6), reverse=True).shape,
        "loaded_a": loaded["a"],
        "loaded_names": sorted(loaded),
        "loaded_type": type(loaded["a"]).__name__,
        "loaded_list": npx.load("np_list.params")[0],
        "num_gpus_is_int": isinstance(npx.num_gpus(), int),
        "cpu": str(npx.cpu()),
        "gpu": str(npx.gpu(1)),
        "current_context": str(npx.current_context()),
        "waitall": npx.waitall(),
        "is_np_array": npx.is_np_array(),
        "type": type(npx.relu(x)).__name__,
        "rnn": npx.rnn(
            np.ones((2, 1, 2)),
            np.ones((48,)) * 0.1,
            np.zeros((1, 1, 2)),
            np.zeros((1, 1, 2)),
            state_size=2,
            num_layers=1,
            mode="lstm",
        ),
        "absent": raised(lambda: npx.no_such_operator),
    }


@with_np
def check_gradients(mx):
    np, npx = mx.np, mx.npx
    start, rows, mask = draw((2, 3), 0.3, 0.9), np.array([1, 0], dtype="int32"), np.array([[1, 0, 1], [0, 1, 1]], dtype="bool")
    losses = {
        "sum": lambda x: np.sum(x * x),
        "mean": lambda x: x.mean(),
        "exp": lambda x: np.exp(x).sum(),
        "tanh": lambda x: np.tanh(x).sum(),
        "sqrt": lambda x: np.sqrt(x).sum(),
        "log": lambda x: np.log(x).sum(),
        "sin": lambda x: np.sin(x).sum(),
        "power": lambda x: (x**3).sum(),
        "power_left": lambda x: (2**x).sum(),
        "divide": lambda x: (1 / x).sum(),
        "dot": lambda x: np.dot(x, x.T).sum(),
        "matmul": lambda x: (x @ np.ones((3, 2))).sum(),
        "einsum": lambda x: np.einsum("ij,ij->", x, x),
        "reshape": lambda x: (x.reshape(3, 2) * np.array([1.0, 2.0])).sum(),
        "transpose": lambda x: (x.T[0] * 3).sum(),
        "slice": lambda x: (x[:, 1:] * 2).sum(),
        "row": lambda x: x[1].sum() * 4,
        "entry": lambda x: x[0, 1] * x[1, 2],
        "index_array": lambda x: (x[rows] * np.array([[1.0], [2.0]])).sum(),
        "concatenate": lambda x: (np.concatenate([x, 2 * x]) ** 2).sum(),
        "stack": lambda x: np.stack([x, x * x]).sum(),
        "split": lambda x: (np.split(x, 3, axis=1)[1] * 5).sum(),
        "where": lambda x: np.where(mask, x, x * x).sum(),
        "clip": lambda x: np.clip(x, 0.4, 0.7).sum(),
        "maximum": lambda x: np.maximum(x, 0.6).sum(),
        "max": lambda x: np.max(x, axis=1).sum(),
        "var": lambda x: np.var(x),
        "norm": lambda x: np.linalg.norm(x),
        "broadcast": lambda x: (x * np.array([1.0, 2.0, 3.0])).sum(),
        "broadcast_to": lambda x: np.broadcast_to(x, (4, 2, 3)).sum(),
        "cumsum": lambda x: np.cumsum(x).sum(),
        "pad": lambda x: (np.pad(x, ((1, 1), (0, 0))) * 2).sum(),
        "take": lambda x: np.take(x, rows, axis=1).sum(),
        "astype": lambda x: (x.astype("float16") * 2).astype("float32").sum(),
        "copy": lambda x: (x.copy() * 3).sum(),
        "softmax": lambda x: (npx.softmax(x)[:, 0]).sum(),
        "fully_connected": lambda x: npx.fully_connected(x, np.ones((4, 3)), num_hidden=4, no_bias=True).sum(),
        "numpy": lambda x: onp.sum(onp.exp(x)),
    }
    values = {}
    for name, loss in losses.items():
        x = np.array(start)
        x.attach_grad()
        with mx.autograd.record():
            y = loss(x)
        y.backward()
        values |= {name: x.grad, f"{name}_loss": y}
    x = np.array([1.0, 2.0])
    x.attach_grad()
    with mx.autograd.record():
        y = x * 2
        z = (y.detach() * x).sum()
    z.backward()
    return values | {
        "detach": x.grad,
        "grad_type": isinstance(x.grad, np.ndarray),
        "vector": grad_of_vector(mx),
    }


def grad_of_vector(mx):
    x = mx.np.array([1.0, 2.0, 3.0])
    x.attach_grad()
    with mx.autograd.record():
        y = x * x
    y.backward(mx.np.array([1.0, 10.0, 100.0]))
    return x.grad


@with_np
def check_blocks(mx):
    np, values = mx.np, {}

    class Net(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.w = self.params.get("w", shape=(4, 3), init=mx.init.Constant(0.1))
                self.b = self.params.get("b", shape=(3,), init=mx.init.Constant(0.2))

        def hybrid_forward(self, F, x, w, b):
            h = F.np.tanh(F.np.dot(x, w) + b)
            h = F.np.concatenate([h, F.np.exp(h)], axis=1)
            return F.npx.softmax(F.np.add(h, 1) * 2)

    x = np.array(draw((2, 4)))
    for mode in ("imperative", "hybridized"):
        net = Net()
        net.initialize()
        if mode == "hybridized":
            net.hybridize()
        with mx.autograd.record():
            y = net(x)
            loss = (y * np.arange(6)).sum()
        loss.backward()
        values |= {
            f"{mode}_output": y,
            f"{mode}_type": isinstance(y, np.ndarray),
            f"{mode}_grad_w": net.w.grad(),
            f"{mode}_grad_b": net.b.grad(),
            f"{mode}_data_type": isinstance(net.w.data(), np.ndarray),
        }
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        trainer.step(2)
        values[f"{mode}_updated"] = net.w.data()
    return values
