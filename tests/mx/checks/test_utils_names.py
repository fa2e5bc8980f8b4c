"""`mx.test_utils`: comparisons, tolerances, random inputs, checks of symbols."""

import os

import numpy as np
from recorded_checks import raised


def check_assert_almost_equal(mx):
    tu, a = mx.test_utils, np.arange(6, dtype="float32").reshape(2, 3)
    off = {k: a + np.float32(v) for k, v in {"exact": 0, "close": 5e-4, "far": 5e-2}.items()}
    out = {}
    for name, b in off.items():
        out[name] = raised(tu.assert_almost_equal, a, b)
        out[f"{name}_nd"] = raised(tu.assert_almost_equal, mx.nd.array(a), mx.nd.array(b))
        out[f"{name}_mixed"] = raised(tu.assert_almost_equal, a.astype("float64"), mx.nd.array(b))
        out[f"{name}_half"] = raised(tu.assert_almost_equal, a.astype("float16"), b.astype("float16"))
        out[f"{name}_rtol"] = raised(tu.assert_almost_equal, a, b, rtol=0.1, atol=0.1)
        out[f"{name}_allclose"] = raised(tu.assert_allclose, a, b)
        out[f"{name}_almost_equal"] = bool(tu.almost_equal(a, b, 1e-3, 1e-3))
        out[f"{name}_same"] = bool(tu.same(a, b))
    return out


def check_assert_almost_equal_of_special_values(mx):
    tu, nan, inf = mx.test_utils, np.float32(np.nan), np.float32(np.inf)
    a, b = np.float32([1, nan, inf]), np.float32([1, nan, inf])
    ints = np.arange(4)
    return {
        "nan": raised(tu.assert_almost_equal, a, b),
        "equal_nan": raised(tu.assert_almost_equal, a, b, equal_nan=True),
        "ignore_nan": raised(tu.assert_almost_equal_ignore_nan, a, np.float32([1, 7, inf])),
        "ignore_nan_differs": raised(tu.assert_almost_equal_ignore_nan, a, np.float32([2, 7, inf])),
        "inf": raised(tu.assert_almost_equal, a[2:], -b[2:]),
        "ints": raised(tu.assert_almost_equal, ints, ints),
        "ints_differ": raised(tu.assert_almost_equal, ints, ints + 1),
        "bools": raised(tu.assert_almost_equal, ints > 1, ints > 1),
        "bools_differ": raised(tu.assert_almost_equal, ints > 1, ints > 2),
        "numbers": raised(tu.assert_almost_equal, 1.0, 1.0 + 1e-9),
        "numbers_differ": raised(tu.assert_almost_equal, 1.0, 1.1),
        "broadcast": raised(tu.assert_almost_equal, np.ones((2, 3)), np.ones(3)),
        "no_broadcast": raised(tu.assert_almost_equal, np.ones((2, 3)), np.ones(3), use_broadcast=False),
        "scalar_arrays": raised(tu.assert_almost_equal, np.float32(1), np.float32(2)),
    }


def check_tolerances(mx):
    tu = mx.test_utils
    names = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
    out = {f"rtol_{n}": tu.default_rtols()[np.dtype(n)] for n in names}
    out |= {f"atol_{n}": tu.default_atols()[np.dtype(n)] for n in names}
    out |= {f"eps_{n}": tu.default_numeric_eps()[np.dtype(n)] for n in names[:3]}
    half, single = np.ones(2, "float16"), mx.nd.ones(2)
    return out | {
        "tols": tu.get_tols(half, single, None, None),
        "tols_of_numbers": tu.get_tols(1.0, single, None, None),
        "tols_by_dtype": tu.get_tols(single, single, {np.dtype("float32"): 0.5}, {np.dtype("float16"): 0.5}),
        "tolerance": tu.get_tolerance(half, None, tu.default_rtols()),
        "effective_dtype": str(tu.effective_dtype(single)),
        "get_rtol": [tu.get_rtol(), tu.get_rtol(0.5), tu.get_rtol(None, np.dtype("float32"))],
        "get_atol": [tu.get_atol(), tu.get_atol(0.5), tu.get_atol(None, np.dtype("float32"))],
        "default_dtype": tu.default_dtype().__name__,
        "default_context": str(tu.default_context()),
    }


def check_random_inputs(mx):
    tu = mx.test_utils
    np.random.seed(7)
    return {
        "arrays": tu.random_arrays((2, 3)),
        "several": tu.random_arrays((2,), (), (1, 2)),
        "uniform": tu.random_uniform_arrays((2,), (3,), low=1.0, high=2.0),
        "uniform_wrong": raised(tu.random_uniform_arrays, (2,), hi=2),
        "shape_2d": [int(s) for s in tu.rand_shape_2d()],
        "shape_3d": [int(s) for s in tu.rand_shape_3d(3, 4, 5)],
        "shape_nd": [int(s) for s in tu.rand_shape_nd(4, 6)],
        "shape_zero": [int(s) for s in tu.rand_shape_2d(2, 2, True)],
        "integers": [int(np.random.randint(*limits, dtype=np.int64)) for limits in ((0, 10), (20, 30))],
        "ndarray": tu.rand_ndarray((3, 2)),
        "ndarray_half": tu.rand_ndarray((3,), dtype="float16"),
        "state": float(np.random.rand()),
    }


def check_random_sparse_inputs(mx):
    tu = mx.test_utils
    np.random.seed(3)
    out = {}
    rows, (values, indices) = tu.rand_sparse_ndarray((6, 2), "row_sparse", 0.5)
    out |= {"rows": rows.asnumpy(), "rows_type": rows.stype, "values": values, "indices": indices}
    out["rows_init"] = tu.rand_sparse_ndarray((4, 2), "row_sparse", data_init=3.0)[0].asnumpy()
    out["rows_given"] = tu.rand_sparse_ndarray((5, 2), "row_sparse", rsp_indices=np.array([1, 3]))[0].asnumpy()
    out["rows_empty"] = tu.rand_ndarray((4, 2), "row_sparse", 0.0).asnumpy()
    csr, parts = tu.rand_sparse_ndarray((4, 5), "csr", 0.4)
    out |= {"csr": csr.asnumpy(), "csr_type": csr.stype, "csr_indptr": parts[0].asnumpy(), "csr_data": parts[2].asnumpy()}
    out["csr_init"] = tu.rand_ndarray((3, 4), "csr", density=0.5).asnumpy()
    out["density"] = raised(tu.rand_ndarray, (4, 9), "csr", density=1.5)
    out["stype"] = raised(tu.rand_ndarray, (4, 9), "other")
    return out


def check_array_helpers(mx):
    tu, x = mx.test_utils, np.arange(6.0).reshape(2, 3)
    return {
        "np_reduce": tu.np_reduce(x, 1, False, np.sum),
        "np_reduce_axes": tu.np_reduce(x, (0, 1), True, np.max),
        "np_reduce_all": tu.np_reduce(x, None, False, np.sum),
        "collapse": tu.collapse_sum_like(x, (1, 3)),
        "collapse_rank": tu.collapse_sum_like(x, (3,)),
        "same_array": tu.same_array(*[mx.nd.ones(2)] * 2),
        "other_array": tu.same_array(mx.nd.ones(2), mx.nd.ones(2)),
        "view": tu.same_array(*(lambda a: (a, a.reshape((2, 1)).reshape((2,))))(mx.nd.ones(2))),
    }


def check_symbolic_checks(mx):
    tu, x = mx.test_utils, np.array([[1, 2], [3, 4]], "float32")
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    y, net = np.ones_like(x) * 2, mx.sym.dot(a, b)
    forward, backward = tu.check_symbolic_forward, tu.check_symbolic_backward
    head = np.ones((2, 2), "float32")
    return {
        "forward": forward(net, [x, y], [x @ y])[0].asnumpy(),
        "forward_names": forward(net, {"b": y, "a": x}, [x @ y])[0].asnumpy(),
        "forward_wrong": raised(forward, net, [x, y], [x @ y + 1]),
        "forward_location": raised(forward, net, {"a": x}, [x @ y]),
        "forward_asnumpy": forward(net, [x, y], [x @ y], dtype="asnumpy")[0].asnumpy(),
        "forward_double": raised(forward, net, [x, y], [x @ y], dtype=np.float64),
        "backward": {k: v.asnumpy() for k, v in backward(net, [x, y], [head], [head @ y.T, x.T @ head]).items()},
        "backward_some": sorted(backward(net, [x, y], [head], {"a": head @ y.T})),
        "backward_wrong": raised(backward, net, [x, y], [head], [head, head]),
        "backward_add": raised(backward, net, [x, y], [mx.nd.array(head)], [head @ y.T, x.T @ head], grad_req="add"),
        "backward_null": raised(backward, net, [x, y], [head], [head, head], grad_req="null"),
        "backward_mixed": raised(backward, net, [x, y], [head], [head @ y.T, head], grad_req={"a": "write", "b": "null"}),
        "backward_double": raised(backward, net, [x, y], [head], [head @ y.T, x.T @ head], dtype=np.float64),
        "simple_forward": tu.simple_forward(net, a=x, b=y),
        "simple_forward_several": tu.simple_forward(mx.sym.SliceChannel(a, num_outputs=2), a=x),
    }


def check_numeric_gradient(mx):
    tu, x = mx.test_utils, np.random.RandomState(0).rand(2, 3).astype("float32") + 0.5
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    norm = mx.sym.BatchNorm(a, fix_gamma=False, name="bn")
    wrong = mx.sym.BlockGrad(a) * 2
    args = {"a": x, "bn_gamma": np.ones(3, "float32"), "bn_beta": np.zeros(3, "float32")}
    moving = {"bn_moving_mean": np.zeros(3, "float32"), "bn_moving_var": np.ones(3, "float32")}
    check = tu.check_numeric_gradient
    return {
        "square": raised(check, mx.sym.square(a), [x], rtol=0.02, atol=0.02),
        "product": raised(check, a * b, {"a": x, "b": x + 1}, rtol=0.02, atol=0.02),
        "one": raised(check, a * b, [x, x + 1], grad_nodes=["a"], rtol=0.02, atol=0.02),
        "add": raised(check, a * b, [x, x + 1], grad_nodes={"a": "add", "b": "write"}, rtol=0.02, atol=0.02),
        "wrong": raised(check, wrong, [x], rtol=0.02, atol=0.02),
        "batch_norm": raised(check, norm, args, moving, 1e-2, 0.16, 0.02),
        "double": raised(check, mx.sym.tanh(a), [x], dtype=np.float64, rtol=1e-2, atol=1e-2),
        "location": raised(check, a * b, {"a": x}),
        "numeric_grad": tu.numeric_grad(mx.sym.square(a).bind(mx.cpu(), {"a": mx.nd.array(x)}), {"a": x.copy()}, eps=2.0**-6)[
            "a"
        ].round(1),
    }


def check_consistency(mx):
    tu, a = mx.test_utils, mx.sym.Variable("a")
    net = mx.sym.FullyConnected(a, num_hidden=2, name="fc")
    kinds = [{"ctx": mx.cpu(0), "a": (3, 4), "type_dict": {"a": np.dtype(t).type}} for t in ("float32", "float32")]
    np.random.seed(1)
    truth = tu.check_consistency(net, kinds, scale=0.5)
    out = {f"truth_{k}": v.asnumpy() for k, v in truth.items()}
    out["state"] = float(np.random.rand())
    other = [net, mx.sym.FullyConnected(a * 2, num_hidden=2, name="fc")]
    out["differs"] = raised(tu.check_consistency, other, kinds)
    out["reported"] = raised(tu.check_consistency, other, kinds, raise_on_err=False)
    out["null"] = sorted(tu.check_consistency(net, kinds, grad_req="null"))
    out["add"] = sorted(tu.check_consistency(net, kinds, grad_req="add"))
    return out


def check_optimizers(mx):
    tu = mx.test_utils
    sgd = [mx.optimizer.SGD(learning_rate=0.1, momentum=m) for m in (0.9, 0.9, 0.5)]
    return {
        "equal": raised(tu.compare_optimizer, sgd[0], sgd[1], (3, 2), "float32"),
        "other": raised(
            tu.compare_optimizer, sgd[0], mx.optimizer.SGD(learning_rate=0.2), (3, 2), "float32", compare_states=False
        ),
        "several": raised(tu.compare_optimizer, sgd[0], sgd[1], [(3, 2), (4,)], "float32", ntensors=2),
        "tuple": raised(
            tu.compare_ndarray_tuple, (mx.nd.ones(2), (None, mx.nd.ones(1))), (mx.nd.ones(2), (None, mx.nd.ones(1)))
        ),
        "tuple_differs": raised(tu.compare_ndarray_tuple, (mx.nd.ones(2),), (mx.nd.zeros(2),)),
        "none": raised(tu.compare_ndarray_tuple, None, mx.nd.ones(2)),
    }


def check_process_helpers(mx):
    tu, calls = mx.test_utils, []

    @tu.retry(3)
    def flaky():
        calls.append(1)
        assert len(calls) > 1

    flaky()
    out = {"retries": len(calls), "retry_fails": raised(tu.retry(2)(lambda: tu.assert_exception(abs, TypeError, 1)))}
    os.environ["JFIT_CHECK_A"] = "1"
    with tu.environment("JFIT_CHECK_A", "2"):
        out["environment"] = os.environ["JFIT_CHECK_A"]
    with tu.environment({"JFIT_CHECK_A": None, "JFIT_CHECK_B": "3"}):
        out["environments"] = [os.environ.get("JFIT_CHECK_A"), os.environ.get("JFIT_CHECK_B"), tu.getenv("JFIT_CHECK_B")]
    out["restored"] = [os.environ.pop("JFIT_CHECK_A"), os.environ.get("JFIT_CHECK_B")]
    with tu.discard_stderr():
        os.write(2, b"")
    out["assert_exception"] = raised(tu.assert_exception, int, ValueError, "x")
    out["assert_exception_none"] = raised(tu.assert_exception, int, ValueError, "1")
    out["assert_exception_other"] = raised(tu.assert_exception, int, KeyError, "x")
    it = tu.DummyIter(mx.io.NDArrayIter(np.arange(8.0).reshape(4, 2), np.arange(4.0), 2))
    out["dummy"] = [next(it).data[0].asnumpy().tolist() for _ in range(3)]
    out["dummy_provide"] = [it.provide_data[0].name, list(it.provide_data[0].shape), it.provide_label[0].name, it.batch_size]
    out["gpus"] = len(tu.list_gpus()) >= 0
    tu.set_default_context(mx.cpu(1))
    out["context"] = str(tu.default_context())
    with mx.cpu(0):
        out["context_inside"] = str(mx.current_context())
    out["context_after"] = str(mx.context.current_context())
    tu.set_default_context(mx.cpu(0))
    return out
