"""Values of MXNet where small things matter to its own users: shapes and names at the edges of symbols, modules and stores."""

import numpy as np


def fill(mx, executor):
    """Give the arguments of an executor values that depend on their number only."""
    for number, array in enumerate(executor.arg_arrays):
        array[:] = mx.nd.arange(array.size).reshape(array.shape) / 10 + number


def check_one_axis_of_data(mx):
    """A layer whose data has only the axis of rows sees one feature for each row."""
    out = mx.sym.FullyConnected(mx.sym.sum(mx.sym.Variable("x"), axis=1), num_hidden=3, name="fc")
    executor = out.simple_bind(mx.cpu(), x=(4, 2))
    fill(mx, executor)
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((4, 3)))
    return {
        "weight": executor.arg_dict["fc_weight"].shape,
        "out": executor.outputs[0].asnumpy(),
        "gradient": executor.grad_dict["x"].asnumpy(),
    }


def check_shapes(mx):
    """Shapes of variables and of parts that are known only from what uses them."""
    parts = mx.sym.SliceChannel(mx.sym.Variable("a", shape=(0, 6)), num_outputs=6, squeeze_axis=True)
    used = parts[4] + mx.sym.Variable("c", shape=(3,))
    thirds = mx.sym.SliceChannel(mx.sym.Variable("a", shape=(0, 9, 0)), num_outputs=3)
    both = thirds[2] + mx.sym.Variable("c", shape=(2, 3, 5))
    return {
        "number": mx.sym.Variable("b", shape=4).attr("__shape__").strip("(),"),
        "squeezed": used.infer_shape()[0],
        "parts": both.infer_shape()[0],
        "cast": np.dtype(mx.sym.Variable("x").astype("float16").infer_type(x="float32")[1][0]).name,
    }


def check_smaller_executor(mx):
    """A smaller executor has the first values of the larger one, and writes to them."""
    executor = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2, name="fc").simple_bind(mx.cpu(), x=(4, 3))
    fill(mx, executor)
    smaller = executor.reshape(x=(2, 3))
    smaller.forward()
    values = {"x": smaller.arg_dict["x"].asnumpy(), "out": smaller.outputs[0].asnumpy()}
    smaller.arg_dict["x"][:] = 7
    return {**values, "written": executor.arg_dict["x"].asnumpy()}


def check_update_before_a_pass(mx):
    """An update before the first pass has gradients of 0: only weight decay moves the weights."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    module = mx.mod.Module(net, label_names=None)
    module.bind([("data", (4, 3))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9})
    module.update()
    weight = module.get_params()[0]["fc_weight"].asnumpy()
    module.bind([("data", (1, 3))], for_training=False, force_rebind=True)
    rows = mx.io.NDArrayIter(np.ones((3, 3), "float32"))
    return {"weight": weight, "after binding again": module.predict(rows).asnumpy()}


def check_storage_of_parameters(mx):
    """Parameters of a module have the storage type of their variable."""
    table = mx.sym.Variable("table", shape=(5, 2), init=mx.init.One(), stype="row_sparse")
    module = mx.mod.Module(mx.sym.dot(mx.sym.Variable("data", stype="csr"), table), label_names=None)
    module.bind([("data", (3, 5))])
    module.init_params()
    stored = module._arg_params["table"]
    return {"stype": stored.stype, "values": stored.asnumpy()}


def check_rows_of_a_store(mx):
    """Rows may be named by nested lists, one list for each key."""
    store = mx.kv.create("local")
    store.init(["a", "b"], [mx.nd.ones((3, 2)).tostype("row_sparse"), mx.nd.full((3, 2), 2).tostype("row_sparse")])
    outs = [[mx.nd.zeros((3, 2), stype="row_sparse")], [mx.nd.zeros((3, 2), stype="row_sparse")]]
    store.row_sparse_pull(["a", "b"], out=outs, row_ids=[[mx.nd.array([0, 2])], [mx.nd.array([1])]])
    return {"a": outs[0][0].asnumpy(), "b": outs[1][0].asnumpy()}


def check_ftrl_in_rows(mx):
    """Ftrl leaves the rows of a row_sparse weight alone that a row_sparse gradient does not have."""
    weight = mx.nd.array([[1, 2], [3, 4], [5, 6]]).tostype("row_sparse")
    gradient = mx.nd.sparse.row_sparse_array(([[0.5, -1.0]], [1]), shape=(3, 2))
    update = mx.optimizer.get_updater(mx.optimizer.Ftrl(learning_rate=0.5, wd=0.01))
    for _ in range(2):
        update(0, gradient, weight)
    return {"weight": weight.asnumpy()}


def check_candidates(mx):
    """The expected counts of classes, of arrays and of symbols."""
    classes = mx.nd.array([0, 3, 9], dtype="int32")
    drawn, true, own = mx.nd.contrib.rand_zipfian(classes, 50, 10)
    symbols = mx.sym.Group(mx.sym.contrib.rand_zipfian(mx.sym.Variable("true"), 50, 10))
    outputs = symbols.bind(mx.cpu(), {"true": classes}).forward()
    found = drawn.asnumpy()
    return {
        "true": true.asnumpy().astype("float32"),
        "of symbols": outputs[1].asnumpy().astype("float32"),
        "range": [bool(found.min() >= 0), bool(found.max() < 10)],
        "own": bool(np.allclose(own.asnumpy(), 50 * np.log((found + 2.0) / (found + 1.0)) / np.log(11), rtol=1e-5)),
    }


def check_names_of_star_imports(mx):
    """Names that star imports of the test utilities give to scripts."""
    return {"names": sorted(n for n in ("np", "rnd", "os", "sys", "time", "json") if hasattr(mx.test_utils, n))}


def check_positions_and_names_of_arguments(mx):
    one, three = mx.nd.ones((2, 2)), mx.nd.array(np.arange(9.0).reshape(1, 1, 3, 3))
    nets = {
        "average": mx.gluon.nn.AvgPool2D(2, 2, 0, True),
        "average_padded": mx.gluon.nn.AvgPool2D(2, 2, 1, False, "NCHW", False),
        "largest": mx.gluon.nn.MaxPool2D(2, 2, 0, "NCHW", True),
    }
    both = mx.metric.CompositeEvalMetric(["acc"])
    both.update_dict(labels={"y": mx.nd.array([1, 0])}, preds={"p": mx.nd.array([[0.2, 0.8], [0.1, 0.9]])})
    found = {
        "gemm": mx.nd.linalg.gemm(one, one, one, False, False, 2.0, 3.0).asnumpy(),
        "gemm2": mx.nd.linalg.gemm2(one, one, False, False, 2.0).asnumpy(),
        "deconvolution": list(
            mx.nd.Deconvolution(three, mx.nd.ones((1, 1, 2, 2)), None, (2, 2), (2, 2), (1, 1), (0, 0), (1, 1), (), 1).shape
        ),
        "convolution": list(
            mx.nd.Convolution(three, mx.nd.ones((1, 1, 2, 2)), mx.nd.ones(1), (2, 2), (1, 1), (1, 1), (0, 0), 1).shape
        ),
        "no_bias": mx.nd.FullyConnected(one, one, None, 2, True).asnumpy(),
        "no_length": mx.nd.softmax(mx.nd.array([[0, 1], [2, 4]]), None, 0).asnumpy(),
        "no_axis": list(mx.nd.sum(three, None, True).shape),
        "symbol_no_bias": mx.sym.FullyConnected(mx.sym.Variable("x"), mx.sym.Variable("w"), None, 3, True).list_arguments(),
        "scale_down": list(mx.image.scale_down(src_size=(10, 20), size=(30, 30))),
        "update_dict": list(both.get()),
        "rows": mx.test_utils.rand_sparse_ndarray((4, 2), "row_sparse", 1.0, modifier_func=lambda v: 2.0)[0].asnumpy(),
        "custom": list(mx.metric.CustomMetric(lambda label, pred: 1.0, "one", True).get())[:1],
    }
    return found | {name: net(three).asnumpy() for name, net in nets.items()}


def check_views_and_copies(mx):
    """A slice of contiguous entries is a view, any other a copy: how many entries of an array a write to its slice changes."""
    every, one, some = slice(None), slice(1, 2), slice(None, None, 2)
    keys = [0, (0, 1), one, some, (every, 0), (every, one), (0, every, 1), (0, one), (..., 1), (0, ..., 0), (one, one)]
    keys += [(every, every, one), (one, slice(0, 2), every), slice(None, None, -1), (slice(0, 2), ...), (1, some), (None, 1)]
    found = {}
    for key in keys:
        x = mx.nd.zeros((3, 3, 2))
        y = x[key]
        y[:] = 1
        found[str(key)] = [list(y.shape), int(x.sum().asscalar())]
    x = mx.nd.zeros((2, 3))
    others = {"expand": x.expand_dims(0, inplace=True), "flat": x.flatten(), "like": x.reshape_like(mx.nd.ones((6,)))}
    for name, y in others.items():
        y[:] = 1
        found[name] = [list(y.shape), float(x.sum().asscalar())]
        x[:] = 0
    x.slice_assign(mx.nd.ones((1, 2)), (0, 0), (1, 2), (None, None))
    x.slice_assign_scalar(3.0, (1, 0), (2, 3), (None, 2))
    return found | {
        "assigned": x.asnumpy(),
        "symbols of numbers": [mx.sym.maximum(2, 3.5), mx.sym.pow(2, 3), mx.sym.hypot(3, 4)],
    }


def check_sparse_arrays(mx):
    data, columns, starts = np.array([1.0, 2, 3, 4, 5, 6], "float32"), np.array([0, 2, 2, 0, 1, 2]), np.array([0, 2, 3, 6])
    csr = mx.nd.sparse.csr_matrix((data, columns, starts), shape=(3, 3))
    rows = mx.nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [0, 2]), shape=(4, 2))
    arrays = {
        "row": csr[1],
        "last": csr[-1],
        "some": csr[0:2],
        "whole": rows[:],
        "copied": mx.nd.array(csr),
        "rows copied": mx.nd.array(rows),
        "cast": csr.astype("int32"),
        "moved": csr.copyto(mx.cpu()),
        "of a shape": mx.nd.sparse.csr_matrix((2, 3)),
        "rows of a shape": mx.nd.sparse.row_sparse_array((2, 3)),
        "of places": mx.nd.sparse.csr_matrix((data[:2], ([0, 1], [1, 0])), shape=(2, 2)),
        "of scipy": mx.nd.sparse.csr_matrix(csr.asscipy()),
        "of integers": mx.nd.sparse.csr_matrix(np.array([[0, 1], [2, 0]], "int32")),
        "of lists": mx.nd.sparse.csr_matrix([[0, 1], [2, 0]]),
        "stored": mx.nd.cast_storage(mx.nd.array([[0, 1], [1, 0]]), "csr"),
        "dense": mx.nd.cast_storage(csr, "default"),
        "joined": mx.nd.sparse.concat(csr, csr, dim=0),
    }
    found = {name: [array.stype, array.asnumpy(), np.dtype(array.dtype).name] for name, array in arrays.items()}
    return found | {"text": [repr(csr), repr(rows)], "scipy": csr.asscipy().toarray()}
