"""Small and old names: updates as functions, sparse arithmetic, registries, switches, logs, the profiler."""

import importlib
import warnings

import numpy as np
from recorded_checks import raised


def _arrays(mx, count, size=4, dtype="float32"):
    rng = np.random.RandomState(5)
    return [mx.nd.array(rng.rand(size).astype("float32") + 0.1, dtype=dtype) for _ in range(count)]


def check_update_functions(mx):
    rules = {
        "sgd_update": (0, {}),
        "sgd_mom_update": (1, {"momentum": 0.9}),
        "nag_mom_update": (1, {"momentum": 0.9}),
        "signsgd_update": (0, {}),
        "signum_update": (1, {"momentum": 0.9, "wd_lh": 0.01}),
        "adam_update": (2, {"beta1": 0.8}),
        "ftml_update": (3, {"t": 3}),
        "ftrl_update": (2, {"lamda1": 0.1}),
        "rmsprop_update": (1, {}),
        "rmspropalex_update": (3, {"gamma2": 0.8}),
    }
    out = {}
    for name, (states, options) in rules.items():
        for case, more in {"": {}, "_scaled": {"wd": 0.1, "rescale_grad": 0.5}, "_clipped": {"clip_gradient": 0.3}}.items():
            if name == "ftml_update" and case == "_clipped":
                more = {"clip_grad": 0.3}
            weight, grad, *rest = _arrays(mx, 2 + states)
            new = getattr(mx.nd, name)(weight, grad, *rest, lr=0.1, out=weight, **options, **more)
            out[name + case] = [new.asnumpy(), *(s.asnumpy() for s in rest)]
    weight, grad, momentum = _arrays(mx, 3)
    before = weight.asnumpy()
    mx.nd.sgd_mom_update(weight, grad, mom=momentum, lr=0.1, momentum=0.5)
    out["weight_unchanged"] = bool((weight.asnumpy() == before).all())
    result = mx.nd.sgd_mom_update(weight, grad, momentum, lr=0.1, momentum=0.5, out=weight)
    out["weight_written"], out["returns_out"] = weight.asnumpy(), result is weight
    return out


def check_updates_of_several(mx):
    out = {}
    a, b, c, d, m, n = _arrays(mx, 6)
    mx.nd.multi_sgd_update(a, b, c, d, lrs=(0.1, 0.2), wds=(0.0, 0.1), num_weights=2, out=[a, c])
    out["multi_sgd"] = [x.asnumpy() for x in (a, c)]
    mx.nd.multi_sgd_mom_update(a, b, m, c, d, n, lrs=(0.1, 0.2), wds=(0.0, 0.1), momentum=0.9, num_weights=2, out=[a, c])
    out["multi_sgd_mom"] = [x.asnumpy() for x in (a, c, m, n)]
    lrs, wds = mx.nd.array([0.1, 0.2]), mx.nd.array([0.0, 0.1])
    mx.nd.preloaded_multi_sgd_update(a, b, c, d, lrs, wds, num_weights=2, out=[a, c])
    out["preloaded"] = [x.asnumpy() for x in (a, c)]
    half, grad = _arrays(mx, 2, dtype="float16")
    master = half.astype("float32")
    mx.nd.mp_sgd_update(half, grad, master, lr=0.1, out=half)
    out["mp_sgd"] = [half.asnumpy(), master.asnumpy()]
    momentum = mx.nd.zeros(4)
    mx.nd.mp_sgd_mom_update(half, grad, momentum, master, lr=0.1, momentum=0.9, out=half)
    out["mp_sgd_mom"] = [half.asnumpy(), momentum.asnumpy(), master.asnumpy()]
    return out


def check_updates_in_phases(mx):
    out = {}
    for case, options in {
        "": {},
        "_plain": {"bias_correction": False, "wd": 0.1},
        "_clipped": {"clip_gradient": 0.3, "t": 4},
    }.items():
        weight, grad, mean, var = _arrays(mx, 4)
        step = mx.nd.lamb_update_phase1(weight, grad, mean, var, **{"t": 1, "wd": 0.0, "rescale_grad": 0.5, **options})
        out["lamb_1" + case] = [x.asnumpy() for x in (step, mean, var, weight)]
        for bounds in ({}, {"lower_bound": 2.0}, {"upper_bound": 0.5}):
            new = mx.nd.lamb_update_phase2(weight, step, weight.norm(), step.norm(), lr=0.1, **bounds)
            out["lamb_2" + case + "".join(bounds)] = [new.asnumpy(), weight.asnumpy()]
    zero = mx.nd.zeros(1)
    out["lamb_2_zero"] = mx.nd.lamb_update_phase2(weight, step, zero, step.norm(), lr=0.1, out=weight).asnumpy()
    out["lamb_2_written"] = weight.asnumpy()
    half, grad = _arrays(mx, 2, dtype="float16")
    master, (mean, var) = half.astype("float32"), _arrays(mx, 2)
    step = mx.nd.mp_lamb_update_phase1(half, grad, mean, var, master, t=2, wd=0.1)
    out["mp_lamb_1"] = [x.asnumpy() for x in (step, mean, var, master)]
    mx.nd.mp_lamb_update_phase2(half, step, master.norm(), step.norm(), master, lr=0.1, out=half)
    out["mp_lamb_2"] = [half.asnumpy(), master.asnumpy()]
    rates, squares, slopes, decays = _arrays(mx, 4)
    slopes[1] = 0
    out["multi_lars"] = mx.nd.multi_lars(rates, squares, slopes, decays, eta=0.1, eps=1e-6, rescale_grad=0.5).asnumpy()
    weight, grad = (x.reshape((2, 2)) for x in _arrays(mx, 2))
    history, rows = mx.nd.ones((2, 1)), grad.tostype("row_sparse")
    mx.nd.contrib.group_adagrad_update(weight, rows, history, lr=0.1, rescale_grad=0.5, out=weight)
    out["group_adagrad"] = [weight.asnumpy(), history.asnumpy()]
    return out


def check_sparse_updates(mx):
    out = {}
    rules = {"sgd_update": 0, "sgd_mom_update": 1, "adam_update": 2, "ftrl_update": 2, "adagrad_update": 1}
    for name, states in rules.items():
        options = {"momentum": 0.9} if "mom" in name else {}
        for kind in ("rows", "dense"):
            weight, *rest = (x.reshape((4, 2)).tostype("row_sparse") for x in _arrays(mx, 1 + states, 8))
            grad = mx.nd.array([[1, 2], [0, 0], [0, 0], [3, 4]])
            grad = grad.tostype("row_sparse") if kind == "rows" else grad
            if kind == "rows" or name in ("sgd_update", "adam_update"):
                if kind == "dense":
                    weight, *rest = (x.tostype("default") for x in (weight, *rest))
                getattr(mx.nd.sparse, name)(weight, grad, *rest, lr=0.1, out=weight, **options)
                out[f"{name}_{kind}"] = [x.asnumpy() for x in (weight, *rest)]
    return out


def check_sparse_arithmetic(mx):
    dense, other = np.array([[0, 1], [2, 0]], "float32"), np.array([[0, 3], [0, 4]], "float32")
    ones, out = mx.nd.ones((2, 2)), {}
    for kind in ("csr", "row_sparse"):
        a, b = mx.nd.array(dense).tostype(kind), mx.nd.array(other).tostype(kind)
        cases = {
            "add": lambda: a + b,  # noqa: B023
            "sub": lambda: a - b,  # noqa: B023
            "times": lambda: a * 2,  # noqa: B023
            "rtimes": lambda: 2 * a,  # noqa: B023
            "by": lambda: a / 2,  # noqa: B023
            "neg": lambda: -a,  # noqa: B023
            "plus_number": lambda: a + 1,  # noqa: B023
            "plus_dense": lambda: a + ones,  # noqa: B023
            "sparse_add": lambda: mx.nd.sparse.add(a, b),  # noqa: B023
            "sparse_subtract": lambda: mx.nd.sparse.subtract(a, b),  # noqa: B023
            "sparse_multiply": lambda: mx.nd.sparse.multiply(a, 3),  # noqa: B023
            "sparse_divide": lambda: mx.nd.sparse.divide(a, 2),  # noqa: B023
            "sqrt": lambda: mx.nd.sparse.sqrt(a),  # noqa: B023
            "abs": lambda: mx.nd.sparse.abs(a),  # noqa: B023
            "square": lambda: mx.nd.sparse.square(a),  # noqa: B023
            "elemwise_add": lambda: mx.nd.sparse.elemwise_add(a, b),  # noqa: B023
            "zeros": lambda: mx.nd.sparse.zeros(kind, (2, 3)),  # noqa: B023
            "nd_zeros": lambda: mx.nd.zeros((2, 3), stype=kind),  # noqa: B023
            "array": lambda: mx.nd.sparse.array(a),  # noqa: B023
        }
        for name, compute in cases.items():
            result = compute()
            out[f"{kind}_{name}"] = [result.stype, result.asnumpy()]
    csr = mx.nd.array(dense).tostype("csr")
    out["dot"] = mx.nd.sparse.dot(csr, ones).asnumpy()
    out["array_dense"] = raised(mx.nd.sparse.array, [[1, 2]])
    out["array_dtype"] = np.dtype(mx.nd.sparse.array(csr, dtype="float64").dtype).name
    return out


def check_contrib_functions(mx):
    x = mx.nd.array([[1, 2], [np.nan, np.inf], [-np.inf, 3]])
    return {
        "boolean_mask": mx.nd.contrib.boolean_mask(mx.nd.array([[1, 2], [3, 4], [5, 6]]), mx.nd.array([0, 1, 1])),
        "isnan": mx.nd.contrib.isnan(x),
        "isinf": mx.nd.contrib.isinf(x),
        "isfinite": mx.nd.contrib.isfinite(x),
        "names": [n in dir(mx.nd.contrib) for n in ("foreach", "while_loop", "cond", "boolean_mask", "isnan")],
        "cond": mx.nd.contrib.cond(mx.nd.array([1]), lambda: mx.nd.ones(1), lambda: mx.nd.zeros(1)),
    }


def check_conversions(mx):
    x = np.arange(6, dtype="int32").reshape(2, 3)
    a = mx.nd.array([[1, 2], [3, 4]])
    histogram = mx.nd.histogram(mx.nd.array([0, 1, 1, 2.5]), bins=3, range=(0, 3))
    edges = mx.nd.histogram(mx.nd.array([0, 1, 1, 2.5]), bins=mx.nd.array([0, 1, 3]))
    return {
        "from_numpy": mx.nd.from_numpy(x),
        "dlpack": mx.nd.from_dlpack(mx.nd.to_dlpack_for_read(a)),
        "dlpack_write": mx.nd.from_dlpack(mx.nd.to_dlpack_for_write(a)),
        "histogram": [h.asnumpy() for h in histogram],
        "histogram_edges": [h.asnumpy() for h in edges],
        "histogram_whole": [h.asnumpy() for h in mx.nd.histogram(mx.nd.array([0, 1, 1, 2.5]), bins=2)],
        "like": [
            list(getattr(mx.nd.random, f"{n}_like")(data=a).shape)
            for n in ("uniform", "normal", "exponential", "gamma", "poisson", "negative_binomial")
        ],
        "moveaxis": mx.nd.moveaxis(mx.nd.array(x), 0, 1),
        "concatenate": mx.nd.concatenate([a, a], axis=1),
        "stack": mx.nd.stack(a, a),
    }


def check_registry(mx):
    class Shape:
        def __init__(self, size=1):
            self.size = size

    register = mx.registry.get_register_func(Shape, "shape")
    alias, create = mx.registry.get_alias_func(Shape, "shape"), mx.registry.get_create_func(Shape, "shape")

    @register
    class Circle(Shape):
        pass

    @alias("box", "quad")
    class Square(Shape):
        pass

    circle = create("circle", size=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        register(Circle)
    return {
        "names": sorted(mx.registry.get_registry(Shape)),
        "create": [type(circle).__name__, circle.size],
        "case": type(create("CIRCLE")).__name__,
        "alias": type(create("quad")).__name__,
        "keyword": create(shape="box", size=5).size,
        "json_list": create('["circle", {"size": 7}]').size,
        "json_dict": create('{"shape": "circle", "size": 8}').size,
        "dict": create({"shape": "circle", "size": 9}).size,
        "object": create(circle) is circle,
        "object_arguments": raised(create, circle, size=1),
        "unknown": raised(create, "hexagon"),
        "type": raised(create, 3),
        "not_subclass": raised(register, int),
        "warns": [len(caught), issubclass(caught[0].category, UserWarning)],
    }


def check_misc(mx):
    misc = importlib.import_module(f"{mx.__name__}.misc")
    schedule = misc.FactorScheduler(step=2, factor=0.5)
    before = mx.engine.set_bulk_size(7)
    inside = []
    with mx.engine.bulk(3):
        inside.append(mx.engine.set_bulk_size(3))
    features = mx.runtime.Features()
    return {
        "rates": [schedule(i) for i in range(5)],
        "step": raised(misc.FactorScheduler, 0),
        "factor": raised(misc.FactorScheduler, 1, 1.5),
        "base": raised(misc.LearningRateScheduler(), 1),
        "bulk": [inside, mx.engine.set_bulk_size(before)],
        "features": sorted(features)[:5],
        "feature": [features.is_enabled("cuda"), raised(features.is_enabled, "nothing")],
        "feature_list": len(mx.runtime.feature_list()) == len(features),
        "feature_text": repr(features["CUDA"]),
        "slices": [[s.start, s.stop] for s in mx.executor_manager._split_input_slice(10, [1, 2, 1])],
        "slices_uneven": [[s.start, s.stop] for s in mx.executor_manager._split_input_slice(5, [1, 1])],
        "slices_empty": raised(mx.executor_manager._split_input_slice, 1, [1, 1]),
        "error_class": mx.error.MXNetError is mx.base.MXNetError,
        "py_str": mx.base.py_str(b"abc"),
        "types": [isinstance(3, mx.base.integer_types), isinstance(2.5, mx.base.numeric_types), mx.base.mx_real_t.__name__],
        "symbol_error": issubclass(mx.base.NotImplementedForSymbol, mx.base.MXNetError),
    }


def check_logs(mx):
    import io
    import re

    logger = mx.log.get_logger("jfit-checks", level=mx.log.INFO)
    stream = io.StringIO()
    logger.handlers[0].stream = stream
    logger.info("one %d", 1)
    logger.debug("two")
    logger.error("three")
    logger.propagate = False
    lines = [re.sub(r"\d{4} \d\d:\d\d:\d\d \d+ \S+?(\w+\.py)", r"TIME \1", line) for line in stream.getvalue().splitlines()]
    return {
        "lines": [re.sub(r":\d+\]", ":N]", line) for line in lines],
        "level": logger.level,
        "handlers": len(mx.log.get_logger("jfit-checks").handlers),
        "same": mx.log.get_logger("jfit-checks") is logger,
        "levels": [mx.log.DEBUG, mx.log.INFO, mx.log.WARNING, mx.log.ERROR, mx.log.CRITICAL, mx.log.NOTSET],
    }


def check_profiler_objects(mx):
    domain = mx.profiler.Domain("training")
    task, frame, event = domain.new_task("epoch"), domain.new_frame("batch"), mx.profiler.Event("load")
    counter, marker = domain.new_counter("rows", 1), domain.new_marker("now")
    for part in (task, frame, event):
        part.start()
        part.stop()
    counter += 3
    counter -= 1
    counter.increment(2)
    counter.decrement()
    counter.set_value(5)
    marker.mark("process")
    mx.profiler.set_config(profile_all=True, filename="profile-checks.json", aggregate_stats=True)
    return {
        "texts": [str(p) for p in (domain, task, frame, event, counter)],
        "unknown": raised(mx.profiler.set_config, colour=1),
        "state": raised(mx.profiler.set_state, "walk"),
    }


def check_switches(mx):
    @mx.util.use_np_shape
    def shape_inside():
        return mx.is_np_shape()

    @mx.util.use_np
    class Net:
        def both(self):
            return [mx.is_np_shape(), mx.is_np_array()]

        @property
        def value(self):
            return mx.is_np_array()

    out = {
        "first": [mx.is_np_shape(), mx.is_np_array()],
        "decorated": shape_inside(),
        "class": Net().both(),
        "property": Net().value,
        "array_alone": raised(mx.util.set_np, shape=False, array=True),
    }
    with mx.np_shape(), mx.np_array(True):
        out["scopes"] = [mx.is_np_shape(), mx.is_np_array()]
        out["shape_off"] = raised(mx.util.set_np_shape, False)
    mx.util.set_np()
    out["set"] = [mx.is_np_shape(), mx.is_np_array()]
    mx.util.reset_np()
    out["reset"] = [mx.is_np_shape(), mx.is_np_array()]
    out["returns"] = [mx.util.set_np_shape(True), mx.util.set_np_shape(False)]
    return out


def check_thread_local_state(mx):
    import threading

    seen = {}

    def inside():
        seen["attributes"] = dict(mx.AttrScope._current.value._attr) if hasattr(mx.AttrScope._current, "value") else {}
        seen["context"] = str(mx.current_context())
        with mx.AttrScope(b="2"), mx.name.Prefix("t_"), mx.cpu(2):
            seen["name"] = mx.sym.relu(mx.sym.Variable("x"), name="r").name
            seen["inside"] = sorted(mx.AttrScope._current.value._attr)
            seen["context_inside"] = str(mx.current_context())

    with mx.AttrScope(a="1"), mx.name.Prefix("p_"), mx.cpu(1):
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        out = {f"thread_{k}": v for k, v in seen.items()}
        out["attributes"] = dict(mx.AttrScope._current.value._attr)
        with mx.AttrScope(c="3"):
            out["nested"] = sorted(mx.AttrScope._current.value._attr)
        out["name"] = mx.sym.relu(mx.sym.Variable("x"), name="r").name
        out["context"] = str(mx.current_context())
        out["default_ctx"] = str(mx.Context._default_ctx.value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out["default"] = str(mx.Context.default_ctx)
    out["devices"] = [mx.Context.devstr2type["gpu"], mx.Context.devtype2str[1]]
    out["manager"] = type(mx.name.NameManager._current.value).__name__
    return out


def check_module_gradients(mx):
    data = mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn", fix_gamma=True)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2, name="fc"), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params(mx.init.One(), arg_params={"other": mx.nd.ones(3)}, allow_missing=True)
    batch = mx.io.DataBatch([mx.nd.array(np.arange(12.0).reshape(4, 3))], [mx.nd.array([0, 1, 0, 1])])
    module.forward_backward(batch)
    group = module._exec_group
    grads = {n: g for n, g in zip(group.param_names, group.grad_arrays)}  # noqa: B905, C416
    return {
        "none": [n for n, g in grads.items() if g[0] is None],
        "shapes": {n: list(g[0].shape) for n, g in grads.items()},
        "gamma": grads["bn_gamma"][0],
        "beta_shape": list(grads["bn_beta"][0].shape),
        "other": raised(module.init_params, mx.init.One(), {"other": mx.nd.ones(3)}, {}, True, True),
    }


def check_modules(mx):
    data = mx.sym.Variable("data")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2, name="fc"), name="softmax")
    x, y = np.random.RandomState(3).rand(8, 3).astype("float32"), np.arange(8) % 2
    it = mx.io.NDArrayIter(x, y, 4)
    kinds = []

    class Seen(mx.metric.EvalMetric):
        def update(self, labels, preds):
            kinds.append([type(labels[0]).__name__, type(preds[0]).__name__])

    out = {
        "label": [it.label[0][0], it.label[0][1].asnumpy()],
        "data": [it.data[0][0], it.data[0][1].asnumpy()],
    }
    for name, context in {"one": mx.cpu(0), "twice": [mx.cpu(0), mx.cpu(0)]}.items():
        module = mx.mod.Module(net, context=context)
        it.reset()
        module.fit(
            it, eval_metric=Seen("seen"), initializer=mx.init.One(), optimizer_params={"learning_rate": 0.5}, num_epoch=2
        )
        out[f"fitted_{name}"] = module.get_params()[0]["fc_weight"]
    out["metric"] = kinds[0]
    plain = mx.mod.Module(mx.sym.FullyConnected(data, num_hidden=2, name="fc"), label_names=None)
    plain.bind([("data", (4, 3))], inputs_need_grad=True)
    plain.init_params(mx.init.One())
    plain.forward(mx.io.DataBatch([mx.nd.ones((4, 3))], None), is_train=True)
    out["no_heads"] = raised(plain.backward)
    plain.forward(mx.io.DataBatch([mx.nd.ones((4, 3))], None), is_train=True)
    plain.backward([mx.nd.ones((4, 2))])
    out["input_grads"] = plain.get_input_grads()[0]
    out["backend"] = net.get_backend_symbol("MKLDNN").list_arguments()
    out["scope_get"] = [mx.AttrScope(a="1").get(None), mx.AttrScope(a="1").get({"b": "2"})]
    return out


def check_errors(mx):
    a, b = mx.nd.ones((2, 3)), mx.nd.ones((4, 5))
    it = mx.io.NDArrayIter(np.zeros((4, 2)), np.zeros(4), 2)
    x = mx.sym.Variable("x")
    return {
        "add": raised(lambda: (a + b).asnumpy()),
        "dot": raised(lambda: mx.nd.dot(a, b).asnumpy()),
        "reshape": raised(a.reshape, (7, 2)),
        "asscalar": raised(a.asscalar),
        "bool": raised(bool, a),
        "index": raised(lambda: a[5]),
        "index_axes": raised(lambda: a[0, 0, 0]),
        "concat": raised(lambda: mx.nd.concat(a, b, dim=0).asnumpy()),
        "operator": raised(lambda: mx.nd.no_such_operator),
        "attribute": raised(lambda: mx.nd.FullyConnected(a, mx.nd.ones((2, 3)), no_bias=True)),
        "load": raised(mx.nd.load, "no-such-file.params"),
        "symbol_load": raised(mx.sym.load, "no-such-file.json"),
        "symbol_json": raised(mx.sym.load_json, "{"),
        "bind_missing": raised((x + 1).bind, mx.cpu(), {}),
        "simple_bind": raised((x + 1).simple_bind, mx.cpu()),
        "metric": raised(mx.metric.create, "no_such_metric"),
        "optimizer": raised(mx.optimizer.create, "no_such_optimizer"),
        "initializer": raised(mx.init.create, "no_such_initializer"),
        "kvstore": raised(mx.kv.create, "no_such_store"),
        "kvstore_key": raised(mx.kv.create("local").pull, 3, mx.nd.ones(2)),
        "iterator": raised(lambda: [it.next() for _ in range(9)]),
        "module_bind": raised(mx.mod.Module(x, ("x",), None).bind, [("wrong", (2, 3))]),
        "module_forward": raised(lambda: mx.mod.Module(mx.sym.SoftmaxOutput(x, name="softmax"), ("x",)).forward(None)),
        "context": raised(mx.Context, "disk"),
        "attr": raised(mx.sym.Variable, "x", attr={"a": 1}),
        "variable_name": raised(mx.sym.Variable, 3),
        "group": raised(mx.sym.Group, []),
        "compose": raised(mx.sym.FullyConnected, a, num_hidden=2),
    }


def check_arguments(mx):
    """Names and positions of arguments that scripts use."""
    header, x = mx.recordio.IRHeader(0, 1.0, 2, 0), mx.nd.array([2.0, 3.0])
    a = mx.np.array([[1.0, -2.0], [3.0, 4.0]])
    dense = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2, name="fc")
    return {
        "pack": list(mx.recordio.pack(header=header, s=b"ab")),
        "unpack": list(mx.recordio.unpack(s=mx.recordio.pack(header, b"ab"))[1]),
        "list_attr": sorted(dense.list_attr(recursive=False).items()),
        "recursive": raised(dense.list_attr, recursive=True),
        **{f"norm {ord}": mx.np.linalg.norm(a, ord=ord) for ord in ("inf", np.inf, "fro", None)},
        "norm axis": mx.np.linalg.norm(a, "inf", 0),
        "norm keepdims": mx.np.linalg.norm(a, axis=1, keepdims=True),
        "trapz": mx.np.trapz(mx.np.array([1.0, 2.0, 4.0]), dx=0.5),
        "power": mx.nd.power(base=x, exp=2),
        "power array": mx.nd.power(x, exp=x),
        "power number": mx.nd.power(base=2, exp=x),
        "power symbol": mx.sym.power(base=mx.sym.Variable("x"), exp=2).eval(x=x)[0],
    }
