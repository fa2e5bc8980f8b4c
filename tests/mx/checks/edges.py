"""Rare uses of common operators and classes: kernels larger than the data, modes of backward, states with their optimizer."""

import itertools
import os
import tempfile

import numpy as np
from recorded_checks import raised


def check_kernels_that_do_not_fit(mx):
    images, line, volume = mx.nd.ones((2, 3, 2, 4)), mx.nd.ones((2, 3, 2)), mx.nd.ones((2, 3, 2, 4, 4))
    nd, large = mx.nd, {"kernel": (5, 3), "num_filter": 4, "no_bias": True}
    filters = mx.nd.ones((4, 3, 5, 3))
    values = {
        "2-D": raised(nd.Convolution, images, filters, **large),
        "old": raised(nd.Convolution_v1, images, filters, **large),
        "dilated": raised(nd.Convolution, images, mx.nd.ones((4, 3, 3, 3)), **{**large, "kernel": (3, 3)}, dilate=(2, 1)),
        "padded": nd.Convolution(images, mx.nd.ones((4, 3, 3, 3)), **{**large, "kernel": (3, 3)}, dilate=(2, 1), pad=(2, 0)),
        "1-D": raised(nd.Convolution, line, mx.nd.ones((4, 3, 5)), **{**large, "kernel": (5,)}),
        "3-D": raised(nd.Convolution, volume, mx.nd.ones((4, 3, 5, 1, 1)), **{**large, "kernel": (5, 1, 1)}),
        "transposed": raised(nd.Deconvolution, images, mx.nd.ones((3, 4, 2, 2)), kernel=(2, 2), num_filter=4, pad=(3, 3)),
        "old pooling": raised(nd.Pooling_v1, images, kernel=(5, 3)),
        "patches": raised(nd.im2col, images, kernel=(5, 3)),
    }
    for kind in ("max", "avg"):
        for convention in ("valid", "full"):
            pool = {"kernel": (5, 3), "pool_type": kind, "pooling_convention": convention}
            values[f"{kind} {convention}"] = raised(nd.Pooling, images, **pool)
            values[f"{kind} {convention} symbol"] = raised(mx.sym.Pooling(mx.sym.var("x"), **pool).infer_shape, x=(2, 3, 2, 4))
    convolution = mx.sym.Convolution(mx.sym.var("x"), name="c", **large)
    values["symbol"] = raised(convolution.infer_shape, x=(2, 3, 2, 4))
    values["symbol in part"] = str(convolution.infer_shape_partial(x=(2, 3, 0, 4))[0])
    for name, layer in (("conv", mx.gluon.nn.Conv2D(4, (5, 3))), ("pool", mx.gluon.nn.MaxPool2D((5, 3)))):
        layer.initialize()
        values[name] = raised(lambda layer=layer: layer(images).asnumpy())
    return values


def check_batch_norm_in_prediction_mode(mx):
    rng, values = np.random.RandomState(0), {}
    x, head = rng.randn(4, 3, 2, 2), rng.randn(4, 3, 2, 2)
    vectors = rng.randn(4, 3) * [[1], [1], [1], [0]] + [[0], [0], [0], [1.5]]
    for record, back in ((True, True), (False, False), (False, True), (True, False)):
        arrays = [mx.nd.array(a) for a in (x, *vectors)]
        for array in arrays[:3]:
            array.attach_grad()
        with mx.autograd.record(train_mode=record):
            y = mx.nd.BatchNorm(*arrays, fix_gamma=False)
        y.backward(mx.nd.array(head), train_mode=back)
        name = f"record {record}, backward {back}"
        values[name] = y
        values |= {f"{name}, {which}": array.grad for which, array in zip("xgb", arrays[:3], strict=True)}
        values[f"{name}, mean"] = arrays[3]
    return values


def check_states_with_their_optimizer(mx):
    gradient, values = mx.nd.array([1, 1]), {}
    for name, options in {"sgd": {"momentum": 0.9}, "adam": {}, "rmsprop": {}}.items():
        for dump in (True, False):
            first = mx.optimizer.get_updater(mx.optimizer.create(name, learning_rate=0.5, rescale_grad=0.25, wd=0.1, **options))
            first(0, gradient, mx.nd.array([1, 2]))
            second = mx.optimizer.get_updater(mx.optimizer.create(name, learning_rate=0.1, rescale_grad=2.0))
            second.set_states(first.get_states(dump_optimizer=dump))
            case = f"{name} {'with' if dump else 'without'}"
            values |= {f"{case}, {key}": float(getattr(second.optimizer, key)) for key in ("rescale_grad", "lr", "wd")}
            if dump:
                weight = mx.nd.array([1, 2])
                second(0, gradient, weight)
                values[case] = weight
    return values


def check_rows_with_a_gradient_of_zero(mx):
    values = {}
    for name, options in {"sgd": {}, "momentum": {"momentum": 0.9}, "all": {"lazy_update": False}, "adam": {}}.items():
        optimizer = {"learning_rate": 0.5, "wd": 0.1, **options}
        update = mx.optimizer.get_updater(mx.optimizer.create("adam" if name == "adam" else "sgd", **optimizer))
        weight = mx.nd.array(np.arange(8).reshape(4, 2))
        rows = mx.nd.sparse.row_sparse_array((np.float32([[1, 1], [0, 0]]), [0, 2]), shape=(4, 2))
        for _ in range(2):
            update(0, rows, weight)
        values[name] = weight
    data, mask = mx.sym.var("data"), mx.sym.var("mask")
    table = mx.sym.Embedding(data, name="e", input_dim=4, output_dim=2, sparse_grad=True)
    module = mx.mod.Module(mx.sym.MakeLoss(mx.sym.sum(table * mask)), ["data", "mask"], None)
    module.bind([("data", (2,)), ("mask", (2, 2))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9, "rescale_grad": 1.0})
    batch = [mx.nd.array([0, 2]), mx.nd.array([[1, 1], [0, 0]])]
    layer = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    layer.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9})
    for _ in range(2):
        module.forward_backward(mx.io.DataBatch(batch, []))
        module.update()
        with mx.autograd.record():
            loss = (layer(batch[0]) * batch[1]).sum()
        loss.backward()
        trainer.step(1)
    return {**values, "Module": module.get_params()[0]["e_weight"], "Trainer": layer.weight.data()}


def check_rows_of_zeros_in_a_store(mx):
    values, weight = {}, mx.nd.array(np.arange(10).reshape(5, 2))
    rows = lambda data, at: mx.nd.sparse.row_sparse_array((np.float32(data), at), shape=(5, 2))  # noqa: E731
    first, second = rows([[1, 1], [0, 0]], [0, 2]), rows([[0, 0], [2, 1]], [3, 4])
    optimizers = {"sgd": {}, "momentum": {"momentum": 0.9}, "all": {"lazy_update": False}, "adam": {}, "ftrl": {}}
    for stype in ("row_sparse", "default"):
        for name, options in optimizers.items():
            for pushed in (first, [first, second]):
                store = mx.kv.create("device")
                store.init("w", weight.tostype(stype))
                rule = name if name in ("adam", "ftrl") else "sgd"
                store.set_optimizer(mx.optimizer.create(rule, learning_rate=0.5, wd=0.1, **options))
                for _ in range(2):
                    store.push("w", pushed)
                out = mx.nd.zeros((5, 2)).tostype(stype)
                store.row_sparse_pull("w", out=out, row_ids=mx.nd.arange(5)) if stype != "default" else store.pull("w", out=out)
                values[f"{stype} {name} {'two' if isinstance(pushed, list) else 'one'}"] = out
    return values


def check_updater_of_a_module(mx):
    values = {}
    batch = mx.io.DataBatch([mx.nd.array(np.arange(12).reshape(4, 3))], [mx.nd.array([0, 1, 0, 1])])
    for name, options in {"sgd": {"momentum": 0.9}, "adam": {}}.items():
        dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(dense, name="softmax"))
        values[f"{name} before"] = str(module._updater)
        module.bind([("data", (4, 3))], [("softmax_label", (4,))])
        module.init_params(mx.init.One())
        module.init_optimizer(kvstore=None, optimizer=name, optimizer_params={"learning_rate": 0.1, **options})
        updater, saved = module._updater, []
        for _ in range(3):
            module.forward_backward(batch)
            module.update()
            saved.append(updater.get_states())
        updater.set_states(saved[0 if name == "sgd" else -1])  # jfit's contain update counts, on which Adam depends
        module.forward_backward(batch)
        module.update()
        values |= {f"{name} {k}": v for k, v in module.get_params()[0].items()}
        for index, state in updater.states.items():
            parts = state if isinstance(state, tuple) else (state,)
            values |= {f"{name} state {index} {k}": part for k, part in enumerate(parts)}
        values[f"{name} lr"] = float(module._optimizer.lr)
        values[f"{name} optimizer"] = updater.optimizer is module._optimizer
        values[f"{name} store"] = [str(module._kvstore), module._update_on_kvstore]
        module.init_optimizer(kvstore=mx.kv.create("local"), optimizer=name, force_init=True)
        values[f"{name} in a store"] = [str(module._updater), module._update_on_kvstore]
    return values


def check_random_arrays_by_position(mx):
    values, names = {}, {"uniform": (0, 1), "normal": (0, 1), "gamma": (1, 2), "negative_binomial": (3, 0.5), "randint": (0, 5)}
    names |= {"generalized_negative_binomial": (2, 0.3), "exponential": (2,), "poisson": (2,)}
    described = lambda a: [str(a.shape), a.dtype.__name__, str(a.context)]  # noqa: E731
    for name, numbers in names.items():
        operators = {f"random_{name}": getattr(mx.nd, f"random_{name}")}
        operators |= {name: getattr(mx.nd, name)} if name in ("uniform", "normal") else {}
        dtype = "int64" if name == "randint" else "float16"
        for short, draw in operators.items():
            out = mx.nd.zeros((2, 2), dtype="int32" if name == "randint" else "float32")
            values[f"{short} ctx"] = described(draw(*numbers, (2, 3), mx.cpu(1)))
            values[f"{short} dtype"] = described(draw(*numbers, 3, mx.cpu(0), dtype))
            values[f"{short} text"] = described(draw(*numbers, (2, 3), "cpu(1)"))
            values[f"{short} names"] = described(draw(*numbers, shape=2, ctx=mx.cpu(1), name="x"))
            values[f"{short} out"] = [draw(*numbers, (2, 2), mx.cpu(0), out.dtype, out) is out, draw(*numbers, out=out) is out]
            values[f"{short} dtype first"] = raised(draw, *numbers, (2, 2), dtype, mx.cpu(0))
            values[f"{short} surplus"] = raised(draw, *numbers, (2, 2), mx.cpu(0), "float32", None, None, 1)
            values[f"{short} twice"] = raised(draw, *numbers, (2, 2), shape=(2, 2))
        dtype = "int32" if name == "randint" else dtype  # jfit keeps 64-bit arrays on the host, which is cpu(0)
        values[f"random.{name}"] = described(getattr(mx.nd.random, name)(*numbers, (2, 3), dtype, mx.cpu(1)))
        values[f"random.{name} ctx"] = raised(getattr(mx.nd.random, name), *numbers, (2, 3), mx.cpu(0))
    return values


def check_sparse_arrays(mx):
    sparse, positions = mx.nd.sparse, ([1, 2, 3, 4], ([0, 2, 1, 1], [1, 0, 2, 2]))
    matrix = sparse.csr_matrix((np.float32([1, 2, 3]), [0, 2, 1], [0, 2, 2, 3]), shape=(3, 3))
    rows = sparse.row_sparse_array((np.float32([[1, 2], [3, 4]]), [0, 2]), shape=(4, 2))
    parts = {"slice": matrix[1:3], "end": matrix[-1:], "row": matrix[0], "last": matrix[-1], "all": matrix[:]}
    values = {f"{name} {which}": f(part) for name, part in parts.items() for which, f in (("", _dense), ("stype", _stype))}
    for name, made in {
        "positions": sparse.csr_matrix(positions, shape=(3, 4)),
        "positions alone": sparse.csr_matrix(positions),
        "scipy": sparse.csr_matrix(matrix.asscipy() * 2),
        "copy": sparse.csr_matrix(matrix),
        "empty": sparse.csr_matrix((2, 3)),
        "empty rows": sparse.row_sparse_array((2, 3)),
        "cast": mx.nd.cast_storage(mx.nd.array([[0, 1], [0, 0]]), "csr"),
        "cast rows": mx.nd.cast_storage(mx.nd.array([[0, 1], [0, 0]]), stype="row_sparse"),
        "cast back": mx.nd.cast_storage(rows, "default"),
    }.items():
        values |= {name: made.asnumpy(), f"{name} stype": made.stype, f"{name} dtype": np.dtype(made.dtype).name}
    values |= {"asscipy": matrix.asscipy().toarray()}
    return {**values, "stored": sparse.csr_matrix(positions, shape=(3, 4)).data}


def _dense(array):
    return array.asnumpy()


def _stype(array):
    return array.stype


def check_text_and_shapes_of_arrays(mx):
    x = mx.nd.arange(6)
    executor = (mx.sym.var("x") * 2).bind(mx.cpu(), {"x": x})
    return {
        "output": str(executor.forward()[0]),
        "view": str(x[1:3]),
        "broadcast": x.broadcast_to((2, 6)),
        "broadcast 3-D": x.reshape((2, 1, 3)).broadcast_to((2, 2, 3)),
        "broadcast zeros": x.broadcast_to((1, 2, 6)),
    }


def check_methods_before_init_params(mx):
    module = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), name="softmax"))
    module.bind([("data", (4, 5))])
    return {
        name: raised(getattr(module, name)) for name in ("update", "backward", "get_outputs", "get_params", "init_optimizer")
    }


def check_average_pooling_beyond_the_end(mx):
    x = mx.nd.array(np.random.RandomState(0).rand(1, 1, 6, 6))
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Pooling(x, kernel=(3, 3), stride=(2, 2), pool_type="avg", pooling_convention="full")
    y.backward()
    return {"y": y, "gradient": x.grad}


def check_pooling_with_as_much_padding_as_kernel(mx):
    values, data = {}, np.random.RandomState(0).rand(1, 2, 4, 5)
    for kind, more in {"sum": {}, "lp": {"p_value": 2}, "max": {}, "avg": {}}.items():
        for convention in ("valid", "full"):
            x, name = mx.nd.array(data), f"{kind} {convention}"
            options = {"kernel": (1, 2), "stride": (2, 3), "pad": (1, 2), "pool_type": kind, **more}
            if kind in ("max", "avg"):
                options["kernel"] = (2, 2)
                values[name] = raised(lambda o=options, c=convention: mx.nd.Pooling(x, **o, pooling_convention=c).asnumpy())  # noqa: B023
                continue
            x.attach_grad()
            with mx.autograd.record():
                y = mx.nd.Pooling(x, **options, pooling_convention=convention)
            y.backward()
            values |= {name: y, f"{name} gradient": x.grad}
    return values


def check_which_rows_ftrl_updates(mx):
    """All rows of a dense weight, whose initial values the first update discards; of a row_sparse one those of the gradient."""
    table, values = np.arange(8).reshape(4, 2), {}
    rows = mx.nd.sparse.row_sparse_array((np.float32([[1, 1], [2, 0]]), [0, 2]), shape=(4, 2))
    options = {"learning_rate": 0.5, "wd": 0.1, "rescale_grad": 1.0}
    for kind in ("default", "row_sparse"):
        weight = mx.nd.array(table).tostype(kind)
        weight[:] = mx.nd.array(table + 1).tostype(kind)
        other, store = weight.copy(), mx.kv.create("local")
        update = mx.optimizer.get_updater(mx.optimizer.create("ftrl", **options))
        states = [mx.nd.zeros((4, 2), stype=kind) for _ in range(2)]
        store.set_optimizer(mx.optimizer.create("ftrl", **options))
        store.init("w", weight.copy())
        for _ in range(2):
            update(0, rows, weight)
            mx.nd.ftrl_update(other, rows, *states, lr=0.5, wd=0.1, out=other)
            store.push("w", rows)
        values |= {kind: weight.asnumpy(), f"{kind} n": states[1].asnumpy(), f"{kind} function": other.asnumpy()}
        out = mx.nd.zeros((4, 2), stype=kind)
        if kind == "default":
            store.pull("w", out)
        else:
            store.row_sparse_pull("w", out, row_ids=mx.nd.arange(4))
        values[f"{kind} store"] = out.asnumpy()
    data = mx.sym.var("data")
    for store, kind in ((None, "default"), ("local", "default"), (None, "row_sparse"), ("local", "row_sparse")):
        table = mx.sym.var("e_weight", stype=kind)
        embedded = mx.sym.Embedding(data, table, name="e", input_dim=4, output_dim=2, sparse_grad=True)
        module = mx.mod.Module(mx.sym.MakeLoss(mx.sym.sum(embedded)), ["data"], None)
        module.bind([("data", (2,))])
        module.init_params(mx.init.One())
        module.init_optimizer(store, "ftrl", options)
        for _ in range(2):
            module.forward_backward(mx.io.DataBatch([mx.nd.array([0, 2])], []))
            module.update()
        values[f"Module {store} {kind}"] = module.get_params()[0]["e_weight"].asnumpy()
        if store is None and kind == "row_sparse":
            continue
        weight = mx.gluon.Parameter("w", shape=(4, 2), stype=kind, grad_stype="row_sparse")
        weight.initialize(mx.init.One())
        trainer = mx.gluon.Trainer([weight], "ftrl", {"learning_rate": 0.5, "wd": 0.1}, store)
        ids = mx.nd.array([0, 2], dtype="int64")
        for _ in range(2):
            array = weight.data() if kind == "default" else weight.row_sparse_data(mx.nd.arange(4, dtype="int64"))
            with mx.autograd.record():
                loss = mx.nd.Embedding(ids, array, input_dim=4, output_dim=2, sparse_grad=True).sum()
            loss.backward()
            trainer.step(1)
        array = weight.data() if kind == "default" else weight.row_sparse_data(mx.nd.arange(4, dtype="int64"))
        values[f"Trainer {store} {kind}"] = array.asnumpy()
    return values


def check_an_optimizer_of_the_user_with_a_row_sparse_key(mx):
    class Slow(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

        def update(self, index, weight, grad, state):
            state[:] = state + grad.tostype("default")
            dense = weight.tostype("default") - 0.5 * state
            weight[:] = dense if weight.stype == "default" else dense.tostype("row_sparse")

    store = mx.kv.create("local")
    store.set_optimizer(Slow())
    store.init("w", mx.nd.array(np.arange(1, 9).reshape(4, 2)).tostype("row_sparse"))
    kept = []
    for _ in range(2):
        store.push("w", mx.nd.ones((4, 2)).tostype("row_sparse"))
    out = mx.nd.zeros((4, 2), stype="row_sparse")
    store.row_sparse_pull("w", out, row_ids=mx.nd.arange(4))
    other = mx.kv.create("local")
    other.init("w", mx.nd.zeros((2,)))

    def updater(key, pushed, stored):
        stored += pushed
        kept.append(stored)

    other._set_updater(updater)
    for _ in range(2):
        other.push("w", mx.nd.ones((2,)))
    return {"weight": out.asnumpy(), "kept": [array.asnumpy().tolist() for array in kept]}


def check_images_resized_with_halves(mx):
    random, values = np.random.RandomState(6), {}
    image = mx.nd.array(random.randint(0, 256, (20, 24, 3)), dtype="uint8")
    for size, interp in (((12, 10), 1), ((12, 10), 3), ((8, 10), 1), ((6, 5), 1), ((6, 5), 3), ((12, 20), 1)):
        values[f"{size} {interp}"] = mx.image.imresize(image, *size, interp=interp).reshape((-1,))[:200]
    return values


def check_numpy_symbols_are_indexed_as_arrays(mx):
    keys = {
        "columns": np.s_[:, 1:3],
        "row": 1,
        "last": np.s_[-1, ::2],
        "rows": np.s_[1:],
        "backwards": np.s_[::-1],
        "one": (0, 2),
    }
    values = {}

    class Indexed(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return [x[key] for key in keys.values()] + [x[:, 0] + x[1:, 3][0]]

    with mx.util.np_shape(True), mx.util.np_array(True):
        block, x = Indexed(), mx.np.arange(12).reshape(3, 4)
        block.hybridize()
        x.attach_grad()
        with mx.autograd.record():
            results = block(x)
            total = sum((result * result).sum() for result in results)
        total.backward()
        values |= {name: result.asnumpy() for name, result in zip((*keys, "sum"), results, strict=True)}
        values["gradient"] = x.grad.asnumpy()

        class Wrong(mx.gluon.HybridBlock):
            def __init__(self, key):
                super().__init__()
                self._key = key

            def hybrid_forward(self, F, x):
                return x[self._key]

        for name, key in {"list of columns": np.s_[:, [0, 2]], "outside": 5, "column outside": np.s_[:, -5]}.items():
            wrong = Wrong(key)
            wrong.hybridize()
            values[name] = raised(lambda block: block(x).asnumpy(), wrong)
    return values


def check_cursor_of_an_array_iterator(mx):
    values = {}
    for handle in ("pad", "discard", "roll_over"):
        data = mx.io.NDArrayIter(np.arange(10), np.arange(10), 4, last_batch_handle=handle)
        seen = [data.cursor]
        for _ in range(3):
            for _ in data:
                seen.append(data.cursor)
            data.reset()
            seen.append(data.cursor)
        values |= {handle: seen, f"{handle} rows": data.idx.tolist()}
        data.hard_reset()
        data.cursor = 0
        values[f"{handle} after an assignment"] = data.next().data[0].asnumpy()
    return values


def check_outputs_of_converted_graphs(mx):
    amp, sym = mx.contrib.amp if hasattr(mx.contrib, "amp") else __import__("mxnet.contrib.amp").contrib.amp, mx.sym
    fc = sym.FullyConnected(sym.var("data"), num_hidden=2, name="fc")
    graphs = {"fc": fc, "relu": sym.relu(fc), "softmax": sym.softmax(fc), "after softmax": sym.Flatten(sym.softmax(fc))}
    graphs |= {"sum": fc + sym.exp(fc), "low sum": fc + sym.relu(fc), "loss": sym.SoftmaxOutput(fc), "scaled": sym.exp(fc) * 2}
    graphs |= {"parts": sym.Group(list(sym.split(fc, num_outputs=2))), "both": sym.Group([fc, sym.softmax(fc)])}
    values = {
        f"{name} {dtype}": ["amp_cast_float32" in output for output in amp.convert_symbol(graph, dtype).list_outputs()]
        for name, graph in graphs.items()
        for dtype in ("float16", "bfloat16")
    }
    return values | {"excluded": amp.convert_symbol(fc, "float16", excluded_sym_names=["fc"]).list_outputs()}


def check_vectors_of_tokens_are_replaced(mx):
    text = mx.contrib.text
    path = os.path.join(tempfile.mkdtemp(), "vectors.txt")
    with open(path, "w") as file:
        file.write("a 0.1 0.2\nb 0.3 0.4\nc 0.5 0.6\n")
    vectors = text.embedding.CustomEmbedding(path)
    vectors.update_token_vectors("a", mx.nd.array([1, 2]))
    vectors.update_token_vectors(["c"], mx.nd.array([[3, 4]]))
    vectors.update_token_vectors(["b", "<unk>"], mx.nd.array([[5, 6], [7, 8]]))
    return {
        "vectors": vectors.idx_to_vec.asnumpy(),
        "unknown": vectors.get_vecs_by_tokens("d").asnumpy(),
        "not there": raised(vectors.update_token_vectors, "d", mx.nd.array([1, 2])),
        "too long": raised(vectors.update_token_vectors, "a", mx.nd.array([1, 2, 3])),
        "too few": raised(vectors.update_token_vectors, ["a", "b"], mx.nd.array([[1, 2]])),
    }


def check_factors_of_sparse_rows_are_updated_by_rows(mx):
    random, values = np.random.RandomState(4), {}
    x = np.where(random.uniform(size=(12, 9)) < 0.15, random.uniform(0.2, 1, (12, 9)), 0).astype("float32")
    y = (x[:, 0] > x[:, 1]).astype("float32")
    start = {"fc_weight": mx.nd.array(random.normal(0, 0.3, (9, 2))), "bias": mx.nd.zeros(2)}
    optimizers = {
        "sgd": {"momentum": 0.9, "learning_rate": 0.5},
        "adam": {"learning_rate": 0.1},
        "ftrl": {"learning_rate": 0.5},
    }
    for stype in ("default", "row_sparse"):
        product = mx.sym.sparse.dot(mx.sym.var("data", stype="csr"), mx.sym.var("fc_weight", shape=(9, 2), stype=stype))
        net = mx.sym.SoftmaxOutput(mx.sym.broadcast_add(product, mx.sym.var("bias", shape=(2,))), name="softmax")
        data = mx.io.NDArrayIter(mx.nd.array(x).tostype("csr"), y, 3, last_batch_handle="discard")
        for name, options in optimizers.items():
            module = mx.mod.Module(net)
            module.bind(data.provide_data, data.provide_label)
            module.init_params(arg_params={**start, "fc_weight": start["fc_weight"].tostype(stype)})
            module.init_optimizer(kvstore=None, optimizer=name, optimizer_params={**options, "wd": 0.05})
            for _ in range(2):
                data.reset()
                for batch in data:
                    module.forward_backward(batch)
                    module.update()
            values |= {f"{stype} {name} {k}": v.asnumpy() for k, v in module.get_params()[0].items()}
    return values


def check_recurrent_layers_of_numpy_arrays(mx):
    found, kinds = {}, {"rnn": mx.gluon.rnn.RNN, "lstm": mx.gluon.rnn.LSTM, "gru": mx.gluon.rnn.GRU}
    with mx.util.np_shape(True), mx.util.np_array(True):
        for (name, kind), hybrid in itertools.product(kinds.items(), (False, True)):
            rs = np.random.RandomState(3)
            layer = kind(3, 2, layout="NTC", bidirectional=name == "gru")
            layer.initialize(mx.init.Constant(0.2))
            if hybrid:
                layer.hybridize()
            x, states = mx.np.array(rs.rand(2, 4, 5).astype("float32")), layer.begin_state(batch_size=2)
            x.attach_grad()
            with mx.autograd.record():
                outputs, last = layer(x, states)
                total = (outputs**2).sum() + last[-1].sum()
            total.backward()
            key = f"{name}_{'hybridized' if hybrid else 'eager'}"
            found[f"{key}_arrays"] = [isinstance(a, mx.np.ndarray) for a in (*states, outputs, *last)]
            found[f"{key}_values"] = [outputs, last[-1], x.grad, layer.l0_i2h_weight.grad()]
    return found


def check_arrays_like_numpy_symbols(mx):
    class Like(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            halves = F.np.full_like(x[:, 0], 0.5)
            return (
                F.np.ones_like(x),
                F.np.zeros_like(x, dtype="int32"),
                F.np.where(x > 2, x * x, F.np.ones_like(x)).sum(1) * halves,
            )

    with mx.util.np_shape(True), mx.util.np_array(True):
        block, x = Like(), mx.np.arange(6).reshape(2, 3)
        block.hybridize()
        x.attach_grad()
        with mx.autograd.record():
            ones, zeros, sums = block(x)
        sums.backward()
        return {"ones": ones, "zeros": zeros, "zeros_dtype": str(zeros.dtype), "sums": sums, "gradient": x.grad}


def check_blocks_without_parameters_are_imported(mx):
    class Line(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return 2 * x + 1

    block, x, path = Line(), mx.nd.array([[1, 2]]), os.path.join(tempfile.mkdtemp(), "line")
    block.hybridize()
    block(x)
    block.export(path)
    imported = mx.gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    dense = mx.gluon.nn.Dense(2, in_units=2)
    return {
        "result": imported(x),
        "no parameters": raised(block.collect_params().load, f"{path}-0000.params"),
        "missing": raised(dense.collect_params().load, f"{path}-0000.params"),
    }


def _hybridized(mx, block, x):
    """Hybridize a block, compute the gradient of the sum of its squared outputs with respect to x, and return the outputs."""
    block.hybridize()
    x.attach_grad()
    with mx.autograd.record():
        y = block(x)
        total = (y * y).sum()
    total.backward()
    return y


def check_numpy_symbols_of_several_results(mx):
    results = {
        "one part": lambda F, x: F.np.split(x, 3, axis=1)[1],
        "last part": lambda F, x: F.np.split(x, 2)[-1],
        "row of a part": lambda F, x: F.np.split(x, 3, axis=1)[1][0],
        "at indices": lambda F, x: F.np.split(x, [2, 5], axis=1)[2],
        "by name": lambda F, x: F.np.split(x, indices_or_sections=(1,), axis=1)[1],
        "unpacked": lambda F, x: (lambda a, b, c: a + b * c)(*F.np.split(x, 3, axis=1)),
        "all": lambda F, x: F.np.concatenate([2 * part for part in F.np.split(x, 3, axis=1)][1:]),
        "number": lambda F, x: x * len(F.np.split(x, 3, axis=1)),
        "whole": lambda F, x: F.np.split(x, 1)[0],
        "unequal": lambda F, x: F.np.array_split(x, 4, axis=1)[1],
        "columns": lambda F, x: F.np.hsplit(x, 3)[1],
        "rows": lambda F, x: F.np.vsplit(x, 2)[1],
        "depth": lambda F, x: F.np.dsplit(F.np.expand_dims(x, 0), 3)[1],
        "singular values": lambda F, x: F.np.linalg.svd(x)[1],
        "eigenvalues": lambda F, x: F.np.linalg.eigh(F.np.dot(x, x.T))[0],
        "log of the determinant": lambda F, x: F.np.linalg.slogdet(F.np.dot(x, x.T))[1],
    }
    values = {}

    class Part(mx.gluon.HybridBlock):
        def __init__(self, result):
            super().__init__()
            self._result = result

        def hybrid_forward(self, F, x):
            return self._result(F, x)

    with mx.util.np_shape(True), mx.util.np_array(True):
        for name, result in results.items():
            x = mx.np.array(np.arange(12).reshape(2, 6) / 8)
            values[name] = _hybridized(mx, Part(result), x).asnumpy()
            if name != "eigenvalues":  # MXNet's gradient is 0
                values[f"{name} gradient"] = x.grad.asnumpy()
        block = Part(lambda F, x: F.np.split(x, 3, axis=1)[3])
        block.hybridize()
        values["no such part"] = raised(block, x)
    return values


def check_names_that_callbacks_of_fit_find(mx):
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    names = (
        "self train_data eval_data eval_metric validation_metric epoch nbatch data_batch begin_epoch num_epoch monitor kvstore "
    )
    names += "optimizer optimizer_params arg_params aux_params allow_missing force_rebind force_init "
    names += "epoch_end_callback batch_end_callback eval_end_callback eval_batch_end_callback initializer sparse_row_id_fn"
    values = {}

    def look(param):
        found = param.locals
        values[f"epoch {param.epoch}, batch {param.nbatch}"] = {
            "names": [name for name in names.split() if name in found],
            "numbers": [found[name] for name in ("epoch", "nbatch", "begin_epoch", "num_epoch")],
            "objects": [found["self"] is module, found["train_data"] is train, found["eval_data"] is valid],
            "settings": [found["optimizer"], found["validation_metric"], found["allow_missing"], found["monitor"]],
            "metric": found["eval_metric"] is param.eval_metric,
            "labels": found["data_batch"].label[0].asnumpy().tolist(),
        }

    data, labels = np.arange(12, dtype="float32").reshape(6, 2), np.float32([0, 1, 0, 1, 1, 1])
    for wrapped in (False, True):  # arrays in memory, and batches of any iterator
        train, valid = (mx.io.NDArrayIter(data, labels, 3) for _ in range(2))
        train = mx.io.ResizeIter(train, 2) if wrapped else train
        module = mx.mod.Module(net)
        module.fit(train, valid, begin_epoch=3 + 2 * wrapped, num_epoch=5 + 2 * wrapped, batch_end_callback=look)
    return values


def check_row_sparse_parameters_of_a_module(mx):
    values = {}
    table = mx.sym.var("e_weight", stype="row_sparse")
    embedded = mx.sym.Embedding(mx.sym.var("data"), table, name="e", input_dim=4, output_dim=2, sparse_grad=True)
    net = mx.sym.FullyConnected(embedded, num_hidden=2, name="fc")
    for store in (None, "local"):
        module = mx.mod.Module(mx.sym.MakeLoss(mx.sym.sum(net)), ["data"], None)
        module.bind([("data", (2,))])
        module.init_params(mx.init.One())
        module.init_optimizer(store, "sgd", {"learning_rate": 0.5})
        module.forward_backward(mx.io.DataBatch([mx.nd.array([0, 2])], []))
        module.update()
        params, aux = module.get_params()
        values |= {f"{store} {name}": array.asnumpy() for name, array in params.items()}
        stored = params["e_weight"]
        values[f"{store} types"] = [type(stored).__name__, stored.stype, params["fc_weight"].stype, len(aux)]
        values |= {f"{store} rows": stored.indices.asnumpy(), f"{store} stored": stored.data.asnumpy()}
        module.set_params({**params, "e_weight": stored * 2}, aux)
        values[f"{store} assigned"] = module.get_params()[0]["e_weight"].asnumpy()
        path = os.path.join(tempfile.mkdtemp(), "net")
        module.save_checkpoint(path, 1)
        values[f"{store} saved"] = mx.model.load_checkpoint(path, 1)[1]["e_weight"].asnumpy()
    return values


def check_reshape_of_numpy_symbols(mx):
    class Reshaped(mx.gluon.HybridBlock):
        def __init__(self, shape, options):
            super().__init__()
            self._shape, self._options = shape, options

        def hybrid_forward(self, F, x):
            return F.npx.reshape(x, self._shape, **self._options) * F.np.mean(x, axis=2)[1, 2]

    values = {}
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.array(np.arange(24).reshape(2, 3, 4) / 8, dtype="float32")
        for shape in ((-2, -1), (-2, -2, 2, -1), (-5, -1), (-2, -6, 3, 1, -4), -1, (-4,), (5, 5)):
            for reverse in (False, True):
                block = Reshaped(shape, {"reverse": reverse} if reverse else {})
                block.hybridize()
                name = f"{shape} {reverse}"
                values[name] = raised(lambda block=block: block(x).asnumpy())
                if values[name] == "no error":
                    values[name] = block(x).asnumpy()
    return values


def check_attributes_of_early_stopping(mx):
    estimator = mx.gluon.contrib.estimator
    net, values = mx.gluon.nn.Dense(2, in_units=3), {}
    net.initialize(mx.init.One())
    rows = mx.gluon.data.ArrayDataset(np.ones((8, 3), "float32"), np.float32([0, 1] * 4))
    data = mx.gluon.data.DataLoader(rows, 4)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    accuracy = mx.metric.Accuracy()
    fit = estimator.Estimator(net, mx.gluon.loss.SoftmaxCELoss(), train_metrics=accuracy, trainer=trainer)
    for patience in (1, 9):
        stopping = estimator.EarlyStoppingHandler(fit.train_metrics[0], patience=patience, mode="max")
        fit.fit(data, epochs=4, event_handlers=[stopping])
        values[f"patience {patience}"] = [stopping.stop_training, stopping.stopped_epoch, stopping.current_epoch, stopping.wait]
    return values


def check_constants_of_numpy_symbols(mx):
    functions = {
        "positions": lambda F, x: x + F.np.arange(3),
        "masked": lambda F, x: F.np.where(F.np.tril(F.np.ones((2, 3))) > 0, x, F.np.zeros((2, 3))),
        "identity": lambda F, x: F.np.dot(x, 2 * F.np.eye(3)),
        "joined": lambda F, x: F.np.concatenate([x, F.np.zeros((1, 3))], axis=0),
        "before": lambda F, x: 1 - F.np.linspace(0, 1, 3) * x,
    }
    values = {}
    with mx.util.np_shape(True), mx.util.np_array(True):
        for name, function in functions.items():
            x = mx.np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]])
            values[name], values[f"{name}_gradient"] = _hybridized(mx, mx.gluon.nn.HybridLambda(function), x), x.grad
    return values


def check_boxes_of_the_background(mx):
    rows = [
        [0, 0.9, 0.1, 0.1, 0.5, 0.5],
        [-1, 0.99, 0, 0, 1, 1],
        [1, 0.8, 0.12, 0.1, 0.5, 0.52],
        [-0.5, 0.3, 0.6, 0.6, 0.9, 0.9],
    ]
    options = {"coord_start": 2, "score_index": 1, "id_index": 0}
    return {str(b): mx.nd.contrib.box_nms(mx.nd.array([rows]), background_id=b, **options) for b in (-1, 0, 1, -2)}


def check_gradient_of_mae_at_equal_values(mx):
    data, label = mx.nd.array([[1, 2, 3], [0, 0, 0]]), mx.nd.array([[1, 3, 2], [0, -1, 1]])
    data.attach_grad()
    with mx.autograd.record():
        loss = mx.nd.MAERegressionOutput(data, label, grad_scale=2)
    loss.backward()
    return {"gradient": data.grad}


def check_checkpoint_before_bind(mx):
    norm = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), name="bn")
    module = mx.mod.Module(norm, label_names=None)
    module.bind([("data", (4, 3))], for_training=False)
    module.init_params(mx.init.One())
    module.save_checkpoint("before", 1)
    loaded = mx.mod.Module.load("before", 1, label_names=None)
    args, aux = loaded.get_params()
    loaded.save_checkpoint("copied", 2)
    _, again, statistics = mx.model.load_checkpoint("copied", 2)
    return {"args": args, "aux": aux, "copied": again, "statistics": statistics}


def check_shapes_of_other_inputs(mx):
    features = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    executor = features.simple_bind(mx.cpu(), data=(3, 4), softmax_label=(3,))
    return {
        "arguments": {n: list(a.shape) for n, a in executor.arg_dict.items()},
        "misspelled": raised(features.simple_bind, mx.cpu(), dat=(3, 4)) != "no error",
        "infer_shape": raised(features.infer_shape, data=(3, 4), softmax_label=(3,)),
    }


def check_created_numpy_symbols_in_children(mx):
    class Positions(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.table, self.dense = mx.gluon.nn.Embedding(3, 2), mx.gluon.nn.Dense(2, in_units=2)

        def hybrid_forward(self, F, x):
            return x + self.table(F.np.arange(3)) + self.dense(F.np.ones((1, 2)))

    with mx.util.np_shape(True), mx.util.np_array(True):
        block = Positions(prefix="p_")
        block.initialize(mx.init.One())
        block.hybridize()
        trainer = mx.gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
        values = []
        for _ in range(2):
            with mx.autograd.record():
                y = block(mx.np.ones((3, 2)))
            y.backward()
            trainer.step(1)
            values.append(y)
        return {"outputs": values, "weights": [p.data() for p in block.collect_params().values()]}


def check_numbers_beside_numpy_arrays(mx):
    values = {}
    with mx.util.np_shape(True), mx.util.np_array(True):
        for dtype in ("uint8", "int8", "int32"):
            x = mx.np.array([0, 1, 2, 100], dtype=dtype)
            for low, high in ((-1, 1), (0.5, 1.5), (None, 300), (-200, 50)):
                values[f"{dtype} clip {low} {high}"] = mx.np.clip(x, low, high)
            values[f"{dtype} clip"] = x.clip(-1000, 1)
            values[f"{dtype} clip to an array"] = x.clip(0, mx.np.array(2, dtype=dtype))
        mask, x = mx.np.array([True, False], dtype=bool), mx.np.array([1, 2.5])
        arrays = {"float": x, "int": mx.np.array([1, 2], dtype="int32"), "bool": mask}
        for name, array in arrays.items():
            values[f"{name} or number"] = mx.np.where(mask, array, 1.5)
            values[f"number or {name}"] = mx.np.where(array, -1.5, array)
        for x1, x2 in ((1, 0), (2.5, 1), (True, False)):
            values[f"{x1} or {x2}"] = mx.np.where(x > 1, x1, x2)
        values["bitwise"] = [mask | True, mask & 1, mask ^ True, mx.np.bitwise_or(mask, True)]
        block = mx.gluon.nn.HybridLambda(lambda F, x: F.np.where(x > 1, 1, 0) + F.np.where(x > 2, 3, x))
        values["hybridized"], values["gradient"] = _hybridized(mx, block, x), x.grad
        block = mx.gluon.nn.HybridLambda(lambda F, x: F.np.bitwise_xor(x, 1))
        block.hybridize()
        values["hybridized bitwise"] = block(mask)
        for dtype in ("int32", "uint8"):  # MXNet's results are float64
            block = mx.gluon.nn.HybridLambda(lambda F, x: (1.5 - x * 2.5) * (x > 1.5))
            block.hybridize()
            values[f"hybridized {dtype}"] = block(mx.np.array([0, 1, 2, 200], dtype=dtype)).astype("float32")
        values["large"] = mx.np.where(mask, mx.np.array([1, 2], dtype="float16"), -1e9)
    return values


def check_booleans_compared_with_numbers(mx):
    values = {}
    with mx.util.np_shape(True), mx.util.np_array(True):
        mask, x = mx.np.array([False, True, True], dtype=bool), mx.np.array([1, 2, 3], dtype="int32")
        for name, number in itertools.product(("equal", "not_equal", "less", "greater_equal"), (2, 0.5, -1, 0, True)):
            block = mx.gluon.nn.HybridLambda(lambda F, x, name=name, number=number: getattr(F.np, name)(x, number))
            block.hybridize()
            values[f"{name} {number}"] = [getattr(mx.np, name)(mask, number), block(mask)]
        for number in (2, 2.0, 1, True):  # equal numbers of two types have programs of their own
            block = mx.gluon.nn.HybridLambda(lambda F, x, number=number: x * number)
            block.hybridize()
            values[f"times {number}"] = [block(x).dtype.kind, block(x).astype("float32")]
        for number in (0.0, -0.0, 0):
            block = mx.gluon.nn.HybridLambda(lambda F, x, number=number: x / number)
            block.hybridize()
            values[f"by {number}"] = block(mx.np.array([1.0, -1.0]))
        values["of numpy"] = mask == np.bool_(True)
    return values
