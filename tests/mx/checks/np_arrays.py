"""Checks of `mx.np.ndarray`: creation, dtypes, text, indexing, operators, methods, conversions."""

import functools
import operator
import pickle

import numpy as onp
from recorded_checks import raised


def with_np(check):
    """Run a check with NumPy semantics switched on."""

    @functools.wraps(check)
    def run(mx):
        mx.npx.set_np()
        try:
            return check(mx)
        finally:
            mx.npx.reset_np()

    return run


def name_of(x):
    return type(x).__name__


@with_np
def check_creation(mx):
    np = mx.np
    host = onp.arange(6).reshape(2, 3)
    return {
        "list": np.array([[1, 2], [3, 4]]),
        "number": np.array(3),
        "bool_list": np.array([True, False]),
        "bool": np.array([1, 0], dtype="bool"),
        "int32": np.array([1.7, -2.7], dtype=np.int32),
        "from_numpy": np.array(host),
        "from_numpy_float32": np.array(host.astype("float32")),
        "from_numpy_cast": np.array(host, dtype="float16"),
        "from_array": np.array(np.array([1, 2], dtype="int8")),
        "empty_list": np.array([]),
        "zeros": np.zeros((2, 3)),
        "zeros_int": np.zeros(3, dtype="int32"),
        "zeros_scalar": np.zeros(()),
        "zeros_none": np.zeros((2,), dtype=None),
        "ones": np.ones((1, 2)),
        "ones_size_0": np.ones((0, 2)),
        "full": np.full((2, 2), 3.5),
        "full_int": np.full((2,), 3),
        "full_bool": np.full((2,), True),
        "full_dtype": np.full((2,), 7, dtype="int32"),
        "arange": np.arange(5),
        "arange_3": np.arange(1, 8, 3),
        "arange_float": np.arange(0.5, 3),
        "arange_int": np.arange(4, dtype="int32"),
        "arange_down": np.arange(3, 0, -1),
        "linspace": np.linspace(0, 1, 5),
        "linspace_open": np.linspace(0, 1, 4, endpoint=False),
        "linspace_step": np.linspace(0, 1, 5, retstep=True)[1],
        "logspace": np.logspace(0, 2, 3),
        "eye": np.eye(3),
        "eye_rectangular": np.eye(2, 3, 1),
        "eye_int": np.eye(2, dtype="int32"),
        "identity": np.identity(2),
        "empty_shape": np.empty((2, 3)).shape,
        "zeros_like": np.zeros_like(np.array([1, 2], dtype="int32")),
        "ones_like": np.ones_like(np.array([[1.0]])),
        "ones_like_dtype": np.ones_like(np.array([[1.0]]), dtype="int32"),
        "full_like": np.full_like(np.array([1.0, 2.0]), 7),
        "empty_like_shape": np.empty_like(np.zeros((2, 1))).shape,
        "indices": np.indices((2, 3)),
        "hanning": np.hanning(5),
        "hamming": np.hamming(5),
        "blackman": np.blackman(5),
        "meshgrid": list(np.meshgrid(np.arange(2), np.arange(3))),
        "tril": np.tril(np.ones((3, 3)), -1),
        "ctx": str(np.zeros((2,), ctx=mx.cpu(0)).ctx),
        "type": name_of(np.zeros((2,))),
    }


@with_np
def check_creation_errors(mx):
    np = mx.np
    return {
        "ragged": raised(np.array, [[1], [2, 3]]),
        "of_nd": raised(np.array, mx.nd.ones((1,))),
        "sum_of_list": raised(np.sum, [1, 2]),
        "set_np": raised(mx.npx.set_np, shape=False, array=True),
        "shape_off": raised(mx.util.set_np_shape, False),
        "use_np_5": raised(mx.util.use_np, 5),
        "inhomogeneous_concatenate": raised(lambda: np.concatenate([np.ones((2, 2)), np.ones((2, 3))]).asnumpy()),
        "broadcast": raised(lambda: (np.ones((2,)) + np.ones((3,))).asnumpy()),
        "matmul": raised(lambda: np.matmul(np.ones((2, 3)), np.ones((2, 3))).asnumpy()),
        "reshape": raised(lambda: np.ones((2, 3)).reshape(4).asnumpy()),
    }


@with_np
def check_text(mx):
    np = mx.np
    return {
        "float": repr(np.array([1, 2.5])),
        "scalar": repr(np.array(3.0)),
        "matrix": repr(np.array([[1, 2], [3, 4]])),
        "int32": repr(np.array([1, 2], dtype="int32")),
        "bool": repr(np.array([1, 0], dtype="bool")),
        "float16": repr(np.array([1.5], dtype="float16")),
        "float64": repr(np.array([1.5], dtype="float64")),
        "uint8": repr(np.array([7], dtype="uint8")),
        "empty": repr(np.array([])),
        "empty_2d": repr(np.zeros((2, 0))),
        "long": repr(np.ones(1200)),
        "str": str(np.array([[1, 2], [3, 4]])),
        "str_scalar": str(np.array(2.5)),
        "format": f"{np.array(2.5):.2f}",
        "format_array": f"{np.array([2.5])}",
        "list": repr(list(np.array([1, 2]))),
        "view": repr(np.arange(6).reshape(2, 3)[1]),
        "entry": repr(np.arange(6)[4]),
        "result": repr(np.arange(3) > 1),
        "nd": repr(np.array([1.0]).as_nd_ndarray()),
    }


@with_np
def check_attributes(mx):
    np = mx.np
    x, scalar = np.arange(6).reshape(2, 3), np.array(2.5)
    return {
        "shape": x.shape,
        "ndim": x.ndim,
        "size": x.size,
        "dtype": str(x.dtype),
        "dtype_is": x.dtype == onp.float32,
        "dtype_type": isinstance(x.dtype, onp.dtype),
        "T": x.T,
        "scalar_shape": scalar.shape,
        "scalar_size": scalar.size,
        "item": scalar.item(),
        "item_flat": x.item(4),
        "item_index": x.item((1, 0)),
        "tolist": x.tolist(),
        "tolist_int": np.array([1, 2], dtype="int32").tolist(),
        "float": float(scalar),
        "int": int(np.array([7.9])),
        "bool": bool(np.array(1)),
        "bool_empty": bool(np.array([])),
        "bool_many": raised(bool, x),
        "len": len(x),
        "len_scalar": raised(len, scalar),
        "int_of_scalar": [10, 20, 30][int(np.array(1, dtype="int32"))],
        "iteration": [row.tolist() for row in x],
        "iteration_scalars": [v.item() for v in x[0]],
        "asnumpy": x.asnumpy(),
        "context": str(x.context),
        "stype": x.stype,
        "pickled": pickle.loads(pickle.dumps(x)),
        "pickled_type": name_of(pickle.loads(pickle.dumps(x))),
        "absent_exp": raised(lambda: x.exp()),
        "absent_asscalar": raised(lambda: x.asscalar()),
        "absent_norm": raised(lambda: x.norm()),
        "absent": raised(lambda: x.no_such_name),
        "is_nd": isinstance(x, mx.nd.NDArray),
        "item_of_many": raised(x.item),
        "contains_by_any": bool((x == 4).any()),
    }


@with_np
def check_conversions(mx):
    np = mx.np
    x = np.array([[1.5, -2.5], [3.0, 4.0]])
    shared, other = np.zeros((2, 2)), np.zeros((2,))
    shared.as_nd_ndarray()[:] = 5
    x.copyto(into := np.zeros((2, 2)))
    nd = mx.nd.ones((2,))
    nd.as_np_ndarray()[0] = 9
    return {
        "as_nd": isinstance(x.as_nd_ndarray(), np.ndarray),
        "as_np": isinstance(x.as_nd_ndarray().as_np_ndarray(), np.ndarray),
        "as_np_of_np": x.as_np_ndarray() is x,
        "shared": shared,
        "shared_back": nd,
        "copy": x.copy(),
        "copy_is_new": x.copy() is not x,
        "copyto": into,
        "astype": x.astype("int32"),
        "astype_bool": x.astype(bool),
        "astype_float16": x.astype(np.float16),
        "astype_same": x.astype("float32", copy=False) is x,
        "astype_casting": raised(x.astype, "int32", casting="safe"),
        "as_in_ctx": x.as_in_ctx(mx.cpu()).ctx == mx.cpu(),
        "detach": x.detach(),
        "detach_type": name_of(x.detach()),
        "nd_sum": x.as_nd_ndarray().sum(),
        "nd_plus_np": raised(lambda: x + mx.nd.ones((2, 2))),
        "nd_in_place": raised(lambda: x.__setitem__(0, mx.nd.ones((2,)))),
        "tostype": raised(x.tostype, "csr"),
        "other": other,
    }


@with_np
def check_indexing(mx):
    np = mx.np
    x = np.array(onp.random.RandomState(0).uniform(size=(3, 4, 2)).astype("float32"))
    v = np.arange(5)
    mask = np.array([True, False, True, False, True], dtype="bool")
    i, j = np.array([0, 2], dtype="int32"), np.array([1, 3], dtype="int32")
    return {
        "int": x[1],
        "negative": x[-1],
        "entry": x[1, 2, 0],
        "entry_shape": v[2].shape,
        "slice": x[1:],
        "step": v[::2],
        "reverse": v[::-1],
        "two": x[0:2, 1],
        "ellipsis": x[..., 0],
        "newaxis": x[:, None].shape,
        "newaxis_end": v[:, np.newaxis],
        "empty_tuple": x[()],
        "empty_slice": v[2:2],
        "list": v[[0, 2]],
        "array": x[i],
        "pairs": x[i, j],
        "array_slice": x[i, 1:3],
        "array_int": x[i, 2],
        "numpy": v[onp.array([1, 1])],
        "matrix_index": v[np.array([[0, 1], [2, 3]], dtype="int32")],
        "mask": v[mask],
        "mask_numpy": v[onp.array([1, 0, 0, 1, 0], bool)],
        "mask_condition": v[v > 2],
        "mask_2d": x[x > 0.5],
        "mask_rows": x[np.array([1, 0, 1], dtype="bool")],
        "mask_none": v[v > 9],
        "scalar": np.array(4.0)[()],
        "scalar_index": raised(lambda: np.array(4.0)[0]),
        "out_of_range": raised(lambda: x[5]),
        "too_many": raised(lambda: v[0, 0].asnumpy()),
        "bool_true": v[True],
        "array_type": name_of(x[i]),
        "mixed": x[1, :, i % 2],
        "negative_list": v[[-1, -2]],
        "slice_negative": v[-3:-1],
        "slice_over": v[3:100],
        "rows_of_3": x[2, 1:3, ::-1],
    }


@with_np
def check_assignment(mx):
    np = mx.np

    def assigned(key, value, shape=(3, 4)):
        x = np.zeros(shape)
        x[key] = value
        return x

    view = np.zeros((2, 3))
    view[1][:] = 4
    base = np.arange(6)
    part = base[2:4]
    part[0] = 50
    scalar = np.array(1.0)
    scalar[()] = 8
    integers = np.zeros((2,), dtype="int32")
    integers[:] = 2.7
    i = np.array([0, 2], dtype="int32")
    return {
        "all": assigned(slice(None), 2),
        "row": assigned(1, onp.arange(4)),
        "entry": assigned((1, 2), 5),
        "column": assigned((slice(None), 1), np.array([1, 2, 3])),
        "list_value": assigned(0, [1, 2, 3, 4]),
        "step": assigned((slice(None, None, 2), slice(1, 3)), 3),
        "ellipsis": assigned(Ellipsis, 6),
        "array": assigned(i, 7),
        "pairs": assigned((i, i), np.array([5, 6])),
        "mask": assigned(np.array(onp.eye(3, 4), dtype="bool"), 9),
        "mask_rows": assigned(np.array([1, 0, 1], dtype="bool"), 9),
        "broadcast": assigned(slice(0, 2), np.ones((1, 4))),
        "view": view,
        "part": base,
        "scalar": scalar,
        "integers": integers,
        "wrong_shape": raised(lambda: assigned(0, np.ones((3,))).asnumpy()),
        "out_of_range": raised(lambda: assigned(9, 1).asnumpy()),
        "scalar_index": raised(lambda: scalar.__setitem__(0, 1)),
    }


@with_np
def check_operators(mx):
    np, rng = mx.np, onp.random.RandomState(1)
    x, y = (np.array(rng.uniform(0.5, 2, (2, 3)).astype("float32")) for _ in range(2))
    row = np.array([1.0, 2.0, 3.0])
    a, b = np.array([1, 2, 7], dtype="int32"), np.array([3, 2, 4], dtype="int32")
    s = np.array(2.0)
    values = {}
    for name in ("add", "sub", "mul", "truediv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"):
        f = getattr(operator, name)
        values |= {f"{name}": f(x, y), f"{name}_row": f(x, row), f"{name}_number": f(x, 1.5), f"{name}_left": f(2, x)}
        values |= {f"{name}_int": f(a, b), f"{name}_int_float": f(a, 1.5), f"{name}_scalar": f(x, s)}
        values |= {f"{name}_mixed": f(a, row)} if len(name) > 2 else {}
    for name in ("and_", "or_", "xor"):
        values |= {name: getattr(operator, name)(a, b), f"{name}_bool": getattr(operator, name)(x > 1, y > 1)}
    return (
        values
        | {
            "and_number": a & 3,
            "matmul": x @ np.ones((3, 2)),
            "matmul_vector": x @ row,
            "neg": -x,
            "neg_scalar": -s,
            "abs": abs(np.array([-1.0, 2.0])),
            "invert": ~a,
            "invert_bool": ~(x > 1),
            "round": round(np.array([1.26, -2.74]), 1),
            "numpy_number": x * onp.float32(3),
            "numpy_number_left": onp.float32(3) * x,
            "zero_size": np.zeros((0, 3)) + row,
            "zero_dim": s * s,
            "zero_dim_shape": (s + 1).shape,
            "with_list": raised(lambda: x + [1, 2, 3]),
            "with_none": raised(lambda: x == None),  # noqa: E711
            "chain": (x + y) * row / 2 - 1,
            "half": np.array([1.5], dtype="float16") * 2.5,
            "half_float": np.array([1.5], dtype="float16") + np.array([1.0]),
            "int8": np.array([100], dtype="int8") + 1,
            "uint8_int32": np.array([200], dtype="uint8") + a[:1],
            "bool_sum": np.array([1, 0], dtype="bool") + np.array([1, 1], dtype="bool"),
            "bool_float": np.array([1, 0], dtype="bool") * np.array([1.5, 2.5]),
            "bool_number": np.array([1, 0], dtype="bool") + 1,
        }
    )


@with_np
def check_in_place(mx):
    np = mx.np
    values = {}
    for name, number in (("iadd", 2), ("isub", 1.5), ("imul", 3), ("itruediv", 4), ("imod", 2)):
        x = np.array([[1.0, 2.0], [3.0, 5.0]])
        same = x
        x = getattr(operator, name)(x, number)
        values |= {name: x, f"{name}_same": same is x}
        x = getattr(operator, name)(x, np.array([1.0, 2.0]))
        values[f"{name}_array"] = x
    for name in ("iand", "ior", "ixor"):
        x = np.array([1, 2, 7], dtype="int32")
        values[name] = getattr(operator, name)(x, np.array([3, 3, 3], dtype="int32"))
    x = np.zeros((2, 2))
    x[0] += 3
    values["row"] = x
    return values


@with_np
def check_methods(mx):
    np, rng = mx.np, onp.random.RandomState(2)
    x = np.array(rng.uniform(-1, 1, (2, 3)).astype("float32"))
    calls = {
        "sum": [(), (0,), (1,)],
        "mean": [(), (0,)],
        "prod": [(), (1,)],
        "max": [(), (0,)],
        "min": [(), (1,)],
        "std": [(), (0,)],
        "var": [(), (1,)],
        "argmax": [(), (0,)],
        "argmin": [(), (1,)],
        "cumsum": [(), (1,)],
        "argsort": [(), (0,)],
        "all": [(), (0,)],
        "any": [(), (1,)],
        "clip": [(-0.5, 0.5)],
        "reshape": [(3, 2), ((6,),), (-1,), (-1, 2)],
        "transpose": [(), (1, 0), ((1, 0),)],
        "swapaxes": [(0, 1)],
        "flatten": [()],
        "repeat": [(2,), (2, 1)],
        "round": [(), (1,)],
        "squeeze": [()],
        "broadcast_to": [((4, 2, 3),)],
        "take": [(np.array([2, 0], dtype="int32"),), (np.array([1], dtype="int32"), 1)],
        "dot": [(np.ones((3, 2)),)],
        "nonzero": [()],
        "copy": [()],
    }
    values = {f"{name}_{n}": getattr(x, name)(*args) for name, all_args in calls.items() for n, args in enumerate(all_args)}
    return values | {
        "sum_keepdims": x.sum(axis=1, keepdims=True),
        "sum_axes": x.sum(axis=(0, 1)),
        "sum_dtype": np.array([1, 2], dtype="int8").sum(dtype="int32"),
        "mean_int": np.array([1, 2], dtype="int32").mean(),
        "var_ddof": x.var(ddof=1),
        "argmax_dtype": str(x.argmax().dtype),
        "squeeze_axis": x[None].squeeze(axis=0),
        "expand_dims": raised(lambda: x.expand_dims(0)),
        "zero_size_sum": np.zeros((0, 3)).sum(axis=0),
        "scalar_result": x.sum().shape,
    }


@with_np
def check_numpy_dispatch(mx):
    np = mx.np
    x = np.array([[1.0, -2.0], [3.0, 4.0]])
    results = {
        "sin": onp.sin(x),
        "add": onp.add(x, x),
        "multiply_number": onp.multiply(x, 2),
        "mean": onp.mean(x),
        "sum_axis": onp.sum(x, axis=0),
        "concatenate": onp.concatenate([x, x], axis=1),
        "dot": onp.dot(x, x),
        "stack": onp.stack([x, x]),
        "transpose": onp.transpose(x),
        "reshape": onp.reshape(x, (4,)),
        "where": onp.where(x > 0, x, np.zeros_like(x)),
        "maximum": onp.maximum(x, 1),
        "argmax": onp.argmax(x, axis=1),
        "zeros_like": onp.zeros_like(x),
        "allclose": onp.allclose(x, x),
        "cov": onp.cov(x),
        "median": onp.median(x),
    }
    return results | {f"{k}_type": name_of(v) for k, v in results.items() if k not in ("allclose", "median")}


def check_switches(mx):
    util = mx.util
    states = []

    def note():
        states.append((util.is_np_shape(), util.is_np_array()))

    note()
    with util.np_shape(True):
        note()
    with util.np_array(True):
        note()
    util.use_np(note)()
    util.use_np_shape(note)()
    util.use_np_array(note)()

    @util.use_np
    class Noting:
        kind = 3

        def __init__(self):
            note()

        @property
        def value(self):
            note()
            return 5

        def method(self, k=2):
            note()
            return k + self.kind

    noting = Noting()
    results = [noting.value, noting.method(), noting.method(k=4)]
    mx.npx.set_np()
    note()
    mx.npx.set_np(array=False)
    note()
    mx.npx.reset_np()
    note()
    with mx.np_shape():
        note()
        with mx.np_shape(False):
            note()
    return {
        "states": [list(s) for s in states],
        "results": results,
        "previous": [util.set_np_shape(True), util.set_np_shape(False)],
        "name": util.use_np(note).__name__,
        "class_name": Noting.__name__,
        "npx": mx.npx.is_np_array() or mx.npx.is_np_shape(),
        "top": [mx.is_np_array(), mx.is_np_shape(), mx.use_np is util.use_np, mx.use_np_shape is util.use_np_shape],
    }
