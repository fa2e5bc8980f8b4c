"""Checks of `mx.gluon.rnn` and `mx.gluon.contrib.rnn`: layers, cells, unrolling, modifiers."""

import os
import tempfile

import numpy as np
from recorded_checks import raised


def draw(mx, *shape, seed=0):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, shape))


def filled(mx, block, seed=1, scale=0.5):
    """Initialize a block and set its parameters, of known shapes, to fixed values."""
    block.initialize()
    rs = np.random.RandomState(seed)
    for p in block.collect_params().values():
        p.set_data(mx.nd.array(rs.uniform(-scale, scale, p.shape)))
    return block


def flat(out):
    """Flatten nested lists of arrays."""
    return [y for x in out for y in flat(x)] if isinstance(out, (list, tuple)) else [out]


def graded(mx, block, x, *others, grads=()):
    """Return outputs and gradients of a weighted sum of all outputs with respect to `x` and the parameters named by endings."""
    x.attach_grad()
    with mx.autograd.record():
        outs = flat(block(x, *others))
        loss = sum((y * mx.nd.array(np.arange(1, y.size + 1).reshape(y.shape) / y.size)).sum() for y in outs)
    loss.backward()
    named = {k: p.grad() for k, p in block.collect_params().items()}
    kept = {f"grad {e}": g for e in grads for k, g in named.items() if k.endswith(e)}
    return {**{f"out{i}": y for i, y in enumerate(outs)}, "grad x": x.grad, **kept}


def labelled(label, values):
    return {f"{label} {k}": v for k, v in values.items()}


def names_and_shapes(block):
    return [[k, list(p.shape)] for k, p in block.collect_params().items()]


# ------------------------------------------------------------------------------------------------ layers
def check_layer_parameters(mx):
    rnn = mx.gluon.rnn
    layers = {
        "rnn": rnn.RNN(3, prefix="a_"),
        "rnn tanh": rnn.RNN(3, 2, "tanh", input_size=4, prefix="a_"),
        "lstm": rnn.LSTM(3, 2, input_size=4, prefix="b_"),
        "lstm bi": rnn.LSTM(3, 2, bidirectional=True, dropout=0.5, input_size=5, prefix="b_"),
        "lstm projection": rnn.LSTM(4, 2, projection_size=2, input_size=3, prefix="p_"),
        "lstm projection bi": rnn.LSTM(4, 2, projection_size=2, bidirectional=True, prefix="p_"),
        "gru": rnn.GRU(3, layout="NTC", prefix="c_"),
        "gru deep": rnn.GRU(3, num_layers=3, dropout=0.2, prefix="c_"),
    }
    out = {}
    for label, layer in layers.items():
        infos = [[list(i["shape"]), i["__layout__"], np.dtype(i["dtype"]).name] for i in layer.state_info(2)]
        begin = [list(s.shape) for s in layer.begin_state(2)]
        out.update({f"{label} parameters": names_and_shapes(layer), f"{label} repr": repr(layer)})
        out.update({f"{label} states": infos, f"{label} begin": begin})
    return out


def check_layer_saved_names(mx):
    rnn, out = mx.gluon.rnn, {}
    for label, layer in {
        "lstm": rnn.LSTM(2, 2, input_size=2),
        "gru bi": rnn.GRU(2, bidirectional=True, input_size=2),
        "projection": rnn.LSTM(3, projection_size=2, input_size=2),
    }.items():
        filled(mx, layer)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.params")
            layer.save_parameters(path)
            out[f"{label} names"] = sorted(mx.nd.load(path))
            other = type(layer)(
                **(
                    {"hidden_size": 3, "projection_size": 2}
                    if label == "projection"
                    else {"hidden_size": 2, "num_layers": 2}
                    if label == "lstm"
                    else {"hidden_size": 2, "bidirectional": True}
                )
            )
            other.load_parameters(path)
        out[f"{label} first weight"] = next(iter(other.collect_params().values())).data()
    return out


def check_lstm_forward_and_gradients(mx):
    layer = filled(mx, mx.gluon.rnn.LSTM(3, input_size=4))
    h, c = draw(mx, 1, 2, 3, seed=3), draw(mx, 1, 2, 3, seed=4)
    grads = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
    out = labelled("plain", graded(mx, layer, draw(mx, 3, 2, 4), grads=grads))
    return {**out, **labelled("states", graded(mx, layer, draw(mx, 3, 2, 4), [h, c], grads=grads))}


def check_gru_forward_and_gradients(mx):
    layer = filled(mx, mx.gluon.rnn.GRU(3, 2, bidirectional=True, layout="NTC", input_size=4))
    grads = ("l0_i2h_weight", "r1_h2h_weight", "l1_h2h_bias")
    return graded(mx, layer, draw(mx, 2, 3, 4), draw(mx, 4, 2, 3, seed=3), grads=grads)


def check_rnn_forward_and_gradients(mx):
    relu = filled(mx, mx.gluon.rnn.RNN(3, input_size=4))
    tanh = filled(mx, mx.gluon.rnn.RNN(3, 2, activation="tanh", input_size=4))
    out = labelled("relu", graded(mx, relu, draw(mx, 3, 2, 4), grads=("i2h_weight",)))
    return {**out, **labelled("tanh", graded(mx, tanh, draw(mx, 3, 2, 4), grads=("l1_h2h_weight", "l0_i2h_bias")))}


def check_lstm_options(mx):
    rnn, x = mx.gluon.rnn, draw(mx, 3, 2, 4)
    lengths = mx.nd.array([3, 1])
    clipped = filled(mx, rnn.LSTM(3, input_size=4, state_clip_min=-0.1, state_clip_max=0.2))
    masked = filled(mx, rnn.LSTM(3, input_size=4, use_sequence_length=True))
    projected = filled(mx, rnn.LSTM(4, 2, projection_size=3, input_size=4))
    dropped = filled(mx, rnn.LSTM(3, 2, dropout=0.5, input_size=4))
    start = masked.begin_state(2)
    out = {"projection": projected(x), "predict mode dropout": dropped(x)}
    out["projection states"] = projected(x, projected.begin_state(2))[1]
    out["clipped"] = flat(clipped(x, clipped.begin_state(2)))
    out["lengths"] = flat(masked(x, start, lengths))
    out["lengths no states"] = flat(masked(x, None, lengths))
    gru = filled(mx, rnn.GRU(3, bidirectional=True, use_sequence_length=True, input_size=4))
    out["gru lengths bi"] = flat(gru(x, gru.begin_state(2), lengths))
    return out


def check_layer_states_and_errors(mx):
    rnn, x = mx.gluon.rnn, draw(mx, 3, 2, 4)
    gru = filled(mx, rnn.GRU(3, input_size=4))
    wrong = mx.nd.zeros((1, 5, 3))
    one, listed = gru(x, gru.begin_state(2)[0]), gru(x, gru.begin_state(batch_size=2, func=mx.nd.ones))
    return {
        "state alone": flat(one),
        "state list": flat(listed),
        "output types": [type(one).__name__, type(one[1]).__name__, type(gru(x)).__name__],
        "wrong state": raised(gru, x, wrong),
        "wrong layout": raised(rnn.GRU, 3, layout="CNT"),
        "wrong activation": raised(rnn.RNN, 3, activation="elu"),
        "uninitialized": raised(rnn.GRU(3), x),
        "wrong input size": raised(lambda: rnn.GRU(3, input_size=5)(x).asnumpy()),
        "begin dtype": str(np.dtype(gru.begin_state(2, dtype="float16")[0].dtype)),
        "prefix": [rnn.GRU(2, prefix="q_").prefix, rnn.LSTM(2, prefix="q_").name],
    }


def check_layer_deferred(mx):
    rnn, x = mx.gluon.rnn, draw(mx, 3, 2, 4)
    out = {}
    for label, layer in {"lstm": rnn.LSTM(3, 2), "gru bi": rnn.GRU(3, 2, bidirectional=True), "rnn": rnn.RNN(3)}.items():
        before = repr(layer)
        layer.initialize(mx.init.Constant(0.1))
        y = layer(x)
        shapes = [list(p.shape) for p in layer.collect_params().values()]
        out.update({f"{label} before": before, f"{label} after": repr(layer), f"{label} shapes": shapes, f"{label} out": y})
    return out


def check_layer_initializers(mx):
    layer = mx.gluon.rnn.LSTM(
        2,
        i2h_bias_initializer=mx.init.LSTMBias(1.0),
        h2h_weight_initializer="ones",
        h2h_bias_initializer=mx.init.Constant(3),
        i2h_weight_initializer=mx.init.Constant(2),
        input_size=2,
    )
    layer.initialize()
    params = {k.split("_", 1)[1]: p.data() for k, p in layer.collect_params().items()}
    return {**params, "default bias": list(filled_bias(mx).values())}


def filled_bias(mx):
    layer = mx.gluon.rnn.LSTM(2, input_size=2)
    layer.initialize()
    return {k: p.data() for k, p in layer.collect_params(".*bias").items()}


def check_layer_cast(mx):
    layer = filled(mx, mx.gluon.rnn.GRU(3, input_size=4))
    layer.cast("float16")
    dtypes = sorted({np.dtype(p.dtype).name for p in layer.collect_params().values()})
    return {"dtypes": dtypes, "state dtype": str(layer.state_info(1)[0]["dtype"])}


def check_layer_hybridized(mx):
    out = {}
    for label, layer in {
        "lstm": mx.gluon.rnn.LSTM(3, 2, input_size=4),
        "gru": mx.gluon.rnn.GRU(3, layout="NTC", input_size=4),
    }.items():
        filled(mx, layer).hybridize()
        x = draw(mx, 3, 2, 4)
        states = layer.begin_state(x.shape[0 if label == "gru" else 1])
        out.update(labelled(label, graded(mx, layer, x, states, grads=("l0_i2h_weight",))))
    alone = filled(mx, mx.gluon.rnn.GRU(3, input_size=4))
    alone.hybridize()
    return {**out, "alone": alone(draw(mx, 3, 2, 4))}


def check_layer_in_sequential(mx):
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Embedding(5, 4),
            mx.gluon.rnn.LSTM(3, layout="NTC", input_size=4),
            mx.gluon.nn.Dense(2, flatten=False, in_units=3),
        )
    filled(mx, net)
    x = mx.nd.array([[0, 1, 2], [4, 3, 1]])
    plain = net(x)
    net.hybridize()
    return {"plain": plain, "hybrid": net(x), "parameters": names_and_shapes(net), "repr": repr(net)}


def check_layer_symbol(mx):
    x = mx.sym.Variable("data")
    lstm, gru = mx.gluon.rnn.LSTM(3, prefix="l_"), mx.gluon.rnn.GRU(3, layout="NTC", bidirectional=True, prefix="g_")
    with_states = lstm(x, [mx.sym.Variable("h"), mx.sym.Variable("c")])
    group = mx.sym.Group([with_states[0], *with_states[1]])
    y = gru(x)
    return {
        "arguments": y.list_arguments(),
        "shapes": [list(s) for s in y.infer_shape(data=(2, 5, 4))[0]],
        "outputs": [list(s) for s in y.infer_shape(data=(2, 5, 4))[1]],
        "state arguments": group.list_arguments(),
        "state outputs": [list(s) for s in group.infer_shape(data=(5, 2, 4))[1]],
    }


# ------------------------------------------------------------------------------------------------ cells
def check_cell_parameters(mx):
    rnn, out = mx.gluon.rnn, {}
    cells = {
        "rnn": rnn.RNNCell(3, prefix="a_"),
        "rnn relu": rnn.RNNCell(3, activation="relu", input_size=2, prefix="a_"),
        "lstm": rnn.LSTMCell(3, input_size=2, prefix="b_"),
        "gru": rnn.GRUCell(3, prefix="c_"),
        "dropout": rnn.DropoutCell(0.5),
        "dropout axes": rnn.DropoutCell(0.5, axes=(1,)),
        "zoneout": rnn.ZoneoutCell(rnn.LSTMCell(3, input_size=2, prefix="b_"), 0.1, 0.2),
        "residual": rnn.ResidualCell(rnn.GRUCell(3, input_size=3, prefix="c_")),
        "bidirectional": rnn.BidirectionalCell(rnn.GRUCell(3, prefix="l_"), rnn.LSTMCell(3, prefix="r_")),
    }
    for label, cell in cells.items():
        out.update({f"{label} repr": repr(cell), f"{label} parameters": names_and_shapes(cell)})
        out[f"{label} states"] = [[list(i["shape"]), i["__layout__"]] for i in cell.state_info(2)]
        out[f"{label} prefix"] = cell.prefix if label[:7] != "dropout" else cell.prefix.rstrip("0123456789_")
    return out


def check_cell_steps(mx):
    rnn, x, out = mx.gluon.rnn, draw(mx, 2, 4), {}
    cells = {
        "rnn": rnn.RNNCell(3, input_size=4),
        "rnn softsign": rnn.RNNCell(3, activation="softsign", input_size=4),
        "rnn block": rnn.RNNCell(3, activation=mx.gluon.nn.LeakyReLU(0.3), input_size=4),
        "lstm": rnn.LSTMCell(3, input_size=4),
        "lstm relu": rnn.LSTMCell(3, input_size=4, activation="relu", recurrent_activation="softsign"),
        "gru": rnn.GRUCell(3, input_size=4),
    }
    for label, cell in cells.items():
        filled(mx, cell)
        states = [draw(mx, 2, 3, seed=9 + i) for i, _ in enumerate(cell.state_info())]
        out.update(labelled(label, graded(mx, cell, x, states, grads=("i2h_weight", "h2h_bias"))))
    return out


def check_cell_deferred(mx):
    cell = mx.gluon.rnn.LSTMCell(3)
    cell.initialize(mx.init.Constant(0.1))
    before = repr(cell)
    y, states = cell(draw(mx, 2, 4), cell.begin_state(2))
    return {"before": before, "after": repr(cell), "y": y, "c": states[1], "type": type(states).__name__}


def check_cell_begin_state(mx):
    rnn = mx.gluon.rnn
    cell, named = rnn.LSTMCell(3, prefix="n_"), rnn.GRUCell(3, prefix="m_")
    symbols = [s.name for s in cell.begin_state(func=mx.sym.zeros)] + [s.name for s in cell.begin_state(func=mx.sym.var)]
    cell.reset()
    again = [s.name for s in cell.begin_state(func=mx.sym.Variable, batch_size=4)]
    return {
        "zeros": cell.begin_state(batch_size=2),
        "ones": named.begin_state(batch_size=2, func=mx.nd.ones),
        "names": symbols,
        "after reset": again,
        "dtype": str(np.dtype(cell.begin_state(2, dtype="float16")[0].dtype)),
    }


def check_unroll_layouts(mx):
    rnn, out = mx.gluon.rnn, {}
    cell = filled(mx, rnn.LSTMCell(3, input_size=4))
    x = draw(mx, 2, 3, 4)
    for label, kwargs in {
        "NTC": {},
        "NTC merged": {"merge_outputs": True},
        "NTC list": {"merge_outputs": False},
        "TNC merged": {"merge_outputs": True, "layout": "TNC"},
        "TNC": {"layout": "TNC"},
        "begin": {"begin_state": [draw(mx, 2, 3, seed=5), draw(mx, 2, 3, seed=6)], "merge_outputs": True},
    }.items():
        data = x if kwargs.get("layout") != "TNC" else x.swapaxes(0, 1)
        outputs, states = cell.unroll(3, data, **kwargs)
        out[f"{label} is list"] = isinstance(outputs, list)
        out[f"{label} outputs"] = flat(outputs)
        out[f"{label} states"] = states
    steps = [x[:, t] for t in range(3)]
    out["list in"] = flat(cell.unroll(3, steps)[0])
    out["list in, merged"] = cell.unroll(3, steps, merge_outputs=True)[0]
    out["one step"] = flat(cell.unroll(1, x[:, :1])[0])
    out["wrong length"] = raised(cell.unroll, 4, x)
    out["wrong list"] = raised(cell.unroll, 4, steps)
    out["no inputs"] = raised(cell.unroll, 4, None)
    return out


def check_unroll_valid_length(mx):
    rnn, out = mx.gluon.rnn, {}
    x, lengths = draw(mx, 2, 3, 4), mx.nd.array([3, 1])
    stack = rnn.SequentialRNNCell()
    stack.add(rnn.GRUCell(3, input_size=4))
    stack.add(rnn.ResidualCell(rnn.GRUCell(3, input_size=3)))
    cells = {
        "lstm": rnn.LSTMCell(3, input_size=4),
        "bidirectional": rnn.BidirectionalCell(rnn.GRUCell(3, input_size=4), rnn.GRUCell(3, input_size=4)),
        "stack": stack,
    }
    for label, cell in cells.items():
        filled(mx, cell)
        for merge in (True, False, None)[: 2 if label == "bidirectional" else 3]:  # with None, MXNet swaps the axes and fails
            outputs, states = cell.unroll(3, x, merge_outputs=merge, valid_length=lengths)
            out.update({f"{label} {merge} outputs": flat(outputs), f"{label} {merge} states": flat(states)})
        outputs, states = cell.unroll(3, x.swapaxes(0, 1), layout="TNC", merge_outputs=True, valid_length=lengths)
        out.update({f"{label} TNC outputs": outputs, f"{label} TNC states": flat(states)})
    return out


def check_unroll_gradients(mx):
    rnn, out = mx.gluon.rnn, {}
    for label, cell in {
        "rnn": rnn.RNNCell(3, input_size=4),
        "lstm": rnn.LSTMCell(3, input_size=4),
        "gru": rnn.GRUCell(3, input_size=4),
    }.items():
        filled(mx, cell)
        x = draw(mx, 2, 3, 4)
        x.attach_grad()
        with mx.autograd.record():
            outputs, states = cell.unroll(3, x, merge_outputs=True)
            loss = (outputs * draw(mx, 2, 3, 3, seed=7)).sum() + states[-1].sum()
        loss.backward()
        out[f"{label} grad x"] = x.grad
        out.update({f"{label} {k.split('_', 1)[1]}": p.grad() for k, p in cell.collect_params().items()})
    return out


def check_sequential(mx):
    rnn, out = mx.gluon.rnn, {}
    for kind in (rnn.SequentialRNNCell, rnn.HybridSequentialRNNCell):
        stack = kind(prefix="s_")
        with stack.name_scope():
            stack.add(rnn.LSTMCell(3, input_size=4))
            stack.add(rnn.DropoutCell(0.5))
            stack.add(rnn.GRUCell(2, input_size=3))
        filled(mx, stack)
        x = draw(mx, 2, 3, 4)
        y, states = stack(x[:, 0], stack.begin_state(batch_size=2))
        outputs, last = stack.unroll(3, x, merge_outputs=True)
        name = kind.__name__
        out.update({f"{name} step": y, f"{name} states": states, f"{name} outputs": outputs, f"{name} last": last})
        out.update({f"{name} len": len(stack), f"{name} item": repr(stack[2]), f"{name} repr": repr(stack)})
        out[f"{name} info"] = [list(i["shape"]) for i in stack.state_info(2)]
        out[f"{name} parameters"] = names_and_shapes(stack)
    return out


def check_hybrid_sequential_hybridized(mx):
    rnn = mx.gluon.rnn
    stack = rnn.HybridSequentialRNNCell()
    stack.add(rnn.LSTMCell(3, input_size=4))
    stack.add(rnn.GRUCell(2, input_size=3))
    filled(mx, stack).hybridize()
    x = draw(mx, 2, 3, 4)
    step, states = stack(x[:, 0], stack.begin_state(batch_size=2))
    outputs, last = stack.unroll(3, x, merge_outputs=True)
    return {"step": step, "states": states, "outputs": outputs, "last": last}


def check_bidirectional(mx):
    rnn, out = mx.gluon.rnn, {}
    cell = filled(mx, rnn.BidirectionalCell(rnn.LSTMCell(3, input_size=4), rnn.GRUCell(2, input_size=4)))
    x = draw(mx, 2, 3, 4)
    for layout in ("NTC", "TNC"):
        data = x if layout == "NTC" else x.swapaxes(0, 1)
        for merge in (True, False, None):
            outputs, states = cell.unroll(3, data, layout=layout, merge_outputs=merge)
            out[f"{layout} {merge}"] = [isinstance(outputs, list), *flat(outputs)]
    out["states"] = flat(states)
    out["step"] = raised(cell, x[:, 0], cell.begin_state(batch_size=2))
    out["zoneout"] = raised(rnn.ZoneoutCell, cell)
    return out


def check_modifiers(mx):
    rnn, out = mx.gluon.rnn, {}
    x = draw(mx, 2, 3, 3)
    cells = {
        "residual": rnn.ResidualCell(rnn.LSTMCell(3, input_size=3)),
        "zoneout 0": rnn.ZoneoutCell(rnn.GRUCell(3, input_size=3)),
        "zoneout predict": rnn.ZoneoutCell(rnn.LSTMCell(3, input_size=3), 0.4, 0.3),
        "residual zoneout": rnn.ResidualCell(rnn.ZoneoutCell(rnn.GRUCell(3, input_size=3), 0.5)),
        "dropout predict": rnn.DropoutCell(0.5),
    }
    for label, cell in cells.items():
        filled(mx, cell)
        for merge in (True, False, None):
            outputs, states = cell.unroll(3, x, merge_outputs=merge)
            out[f"{label} {merge}"] = [isinstance(outputs, list), *flat(outputs)]
        out[f"{label} states"] = states
        out[f"{label} step"] = flat(cell(x[:, 0], cell.begin_state(func=mx.nd.zeros, batch_size=2)))
    base = rnn.GRUCell(3)
    rnn.ResidualCell(base)
    out["base begin_state"] = raised(base.begin_state, batch_size=2)
    out["modified twice"] = raised(rnn.ZoneoutCell, base)
    out["dropout text"] = raised(rnn.DropoutCell, "half")
    out["shared parameters"] = list(cells["residual"].params) == list(cells["residual"].base_cell.params)
    return out


def check_cell_symbols(mx):
    rnn, out = mx.gluon.rnn, {}
    x = mx.sym.Variable("data")
    stack = rnn.HybridSequentialRNNCell(prefix="s_")
    with stack.name_scope():
        stack.add(rnn.LSTMCell(3))
        stack.add(rnn.GRUCell(2))
    cells = {
        "rnn": rnn.RNNCell(3, prefix="r_"),
        "lstm": rnn.LSTMCell(3, prefix="l_"),
        "gru": rnn.GRUCell(3, prefix="g_"),
        "bidirectional": rnn.BidirectionalCell(rnn.GRUCell(3, prefix="f_"), rnn.GRUCell(3, prefix="b_")),
        "stack": stack,
    }
    for label, cell in cells.items():
        merged, states = cell.unroll(2, x, merge_outputs=True)
        listed, _ = cell.unroll(2, x, merge_outputs=False)
        out[f"{label} arguments"] = merged.list_arguments()
        out[f"{label} internals"] = [
            n for n in mx.sym.Group(listed).get_internals().list_outputs() if n.startswith(cell.prefix)
        ]
        out[f"{label} shapes"] = [list(s) for s in merged.infer_shape(data=(2, 2, 4))[0]]
        out[f"{label} outputs"] = [list(s) for s in merged.infer_shape(data=(2, 2, 4))[1]]
        out[f"{label} states"] = [s.list_outputs()[0] for s in flat(states)]
    return out


def check_cell_shared_parameters(mx):
    rnn = mx.gluon.rnn
    one = rnn.LSTMCell(3, input_size=4, prefix="one_")
    two = rnn.LSTMCell(3, input_size=4, prefix="two_", params=one.params)
    filled(mx, one)
    x = draw(mx, 2, 4)
    return {
        "names": list(two.params),
        "same": two.i2h_weight is one.i2h_weight,
        "equal": two(x, two.begin_state(2))[0] - one(x, one.begin_state(2))[0],
    }


def check_cell_in_hybrid_block(mx):
    class Net(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.cell = mx.gluon.rnn.LSTMCell(3)
                self.out = mx.gluon.nn.Dense(2)

        def hybrid_forward(self, F, x):
            outputs, _ = self.cell.unroll(3, x, layout="NTC", merge_outputs=True)
            return self.out(outputs)

    net = Net(prefix="net_")
    net.initialize(mx.init.Constant(0.2))
    x = draw(mx, 2, 3, 4)
    plain = graded(mx, net, x, grads=("i2h_weight", "h2h_weight"))
    net.hybridize()
    return {
        **labelled("plain", plain),
        **labelled("hybrid", graded(mx, net, x, grads=("i2h_weight", "h2h_weight"))),
        "parameters": names_and_shapes(net),
        "repr": repr(net),
    }


def check_custom_cell(mx):
    class Sum(mx.gluon.rnn.HybridRecurrentCell):
        def __init__(self, size, **kwargs):
            super().__init__(**kwargs)
            self._size = size
            self.scale = self.params.get("scale", shape=(1,), init="ones")

        def state_info(self, batch_size=0):
            return [{"shape": (batch_size, self._size), "__layout__": "NC"}]

        def _alias(self):
            return "sum"

        def hybrid_forward(self, F, inputs, states, scale):
            total = F.broadcast_mul(inputs, scale) + states[0]
            return total, [total]

    cell = Sum(3, prefix="sum_")
    cell.initialize()
    x = draw(mx, 2, 3, 3)
    outputs, states = cell.unroll(3, x, merge_outputs=True)
    base = mx.gluon.rnn.RecurrentCell()
    return {
        "outputs": outputs,
        "state": states[0],
        "repr names": names_and_shapes(cell),
        "no state_info": "raised" in raised(base.state_info),
        "activation": cell._get_activation(mx.nd, x, "relu"),
    }


# ------------------------------------------------------------------------------------------------ contrib
def check_prefixes_of_subclasses(mx):
    rnn, contrib = mx.gluon.rnn, mx.gluon.contrib.rnn
    made = [(rnn.RNNCell, 3), (rnn.LSTMCell, 3), (rnn.GRUCell, 3), (rnn.DropoutCell, 0.5), (contrib.LSTMPCell, 3, 2)]
    made += [(contrib.Conv1DLSTMCell, (3, 8), 4, 3, 3), (contrib.Conv2DGRUCell, (3, 8, 8), 4, 3, 3)]
    return {base.__name__: type("Mine", (base,), {})(*args).prefix.rstrip("0123456789_") for base, *args in made}


def check_contrib_lstmp(mx):
    cell = filled(mx, mx.gluon.contrib.rnn.LSTMPCell(4, 3, input_size=4, prefix="p_"))
    x = draw(mx, 2, 3, 4)
    outputs, states = cell.unroll(3, x, merge_outputs=True)
    symbol = mx.gluon.contrib.rnn.LSTMPCell(4, 3, prefix="q_").unroll(2, mx.sym.Variable("x"), merge_outputs=True)[0]
    return {
        "outputs": outputs,
        "states": states,
        "repr": repr(cell),
        "parameters": names_and_shapes(cell),
        **labelled("step", graded(mx, cell, x[:, 0], cell.begin_state(2), grads=("h2r_weight", "h2h_weight"))),
        "info": [list(i["shape"]) for i in cell.state_info(2)],
        "arguments": symbol.list_arguments(),
        "shapes": [list(s) for s in symbol.infer_shape(x=(2, 2, 5))[0]],
    }


def check_contrib_conv(mx):
    contrib, out = mx.gluon.contrib.rnn, {}
    cells = {
        "1d rnn": contrib.Conv1DRNNCell((2, 5), 3, 3, 3, i2h_pad=1, prefix="a_"),
        "1d lstm": contrib.Conv1DLSTMCell((2, 5), 2, (3,), (3,), prefix="b_"),
        "1d gru": contrib.Conv1DGRUCell((2, 5), 2, 3, 3, activation="relu", prefix="c_"),
        "2d rnn": contrib.Conv2DRNNCell((2, 4, 4), 2, (3, 3), (3, 3), i2h_pad=(1, 1), activation="sigmoid", prefix="d_"),
        "2d lstm": contrib.Conv2DLSTMCell((2, 4, 4), 2, 3, 3, i2h_pad=1, prefix="e_"),
        "2d gru": contrib.Conv2DGRUCell((2, 4, 4), 2, 3, 3, i2h_dilate=1, h2h_dilate=2, prefix="f_"),
        "3d lstm": contrib.Conv3DLSTMCell((1, 3, 3, 3), 2, 3, 3, i2h_pad=1, prefix="g_"),
    }
    for label, cell in cells.items():
        filled(mx, cell)
        shape = cell._input_shape
        y, states = cell(draw(mx, 2, *shape), cell.begin_state(2))
        y, states = cell(draw(mx, 2, *shape, seed=3), states)
        out.update({f"{label} y": y, f"{label} states": states, f"{label} repr": repr(cell)})
        out.update(
            {f"{label} parameters": names_and_shapes(cell), f"{label} info": [list(i["shape"]) for i in cell.state_info(2)]}
        )
        out[f"{label} layout"] = cell.state_info(2)[0]["__layout__"]
    block = contrib.Conv1DRNNCell((2, 5), 3, 3, 3, i2h_pad=1, activation=mx.gluon.nn.LeakyReLU(0.2))
    filled(mx, block)
    out["block activation"] = block(draw(mx, 2, 2, 5), block.begin_state(2))[0]
    out["even kernel"] = raised(contrib.Conv1DRNNCell, (2, 5), 3, 3, 2)
    out["wrong dimensions"] = raised(contrib.Conv2DRNNCell, (2, 5, 5), 3, (3,), 3)
    out["unrolled"] = flat(cells["2d lstm"].unroll(2, draw(mx, 2, 2, 2, 4, 4), layout="NTCHW", merge_outputs=True))
    out["last axis shapes"] = names_and_shapes(contrib.Conv2DGRUCell((4, 5, 2), 3, 3, 3, conv_layout="NHWC", prefix="h_"))
    return out


def check_contrib_variational_dropout(mx):
    rnn, contrib, out = mx.gluon.rnn, mx.gluon.contrib.rnn, {}
    x = draw(mx, 2, 3, 4)
    for label, rates in {"predict": (0.3, 0.0, 0.2), "states": (0.3, 0.3, 0.3), "zero": (0, 0, 0)}.items():
        cell = filled(mx, contrib.VariationalDropoutCell(rnn.LSTMCell(3, input_size=4, prefix="v_"), *rates))
        for merge in (True, None):
            outputs, states = cell.unroll(3, x, merge_outputs=merge)
            out[f"{label} {merge}"] = [isinstance(outputs, list), *flat(outputs)]
        out[f"{label} states"] = states
        out[f"{label} repr"] = repr(cell)
        out[f"{label} lengths"] = flat(cell.unroll(3, x, valid_length=mx.nd.array([1, 3]), merge_outputs=True))
    two = rnn.BidirectionalCell(rnn.GRUCell(3), rnn.GRUCell(3))
    out["bidirectional"] = raised(contrib.VariationalDropoutCell, two, 0.1, 0.1)
    with mx.autograd.train_mode():
        cell = filled(mx, contrib.VariationalDropoutCell(rnn.RNNCell(3, input_size=3), drop_outputs=0.5))
        outputs = cell.unroll(3, mx.nd.zeros((2, 3, 3)), merge_outputs=True)[0].asnumpy() == 0
    out["same mask in all steps"] = bool((outputs == outputs[:, :1]).all())
    return out


def check_training_dropout_statistics(mx):
    rnn, out = mx.gluon.rnn, {}
    ones = mx.nd.ones((40, 5, 20))
    with mx.autograd.train_mode():
        dropped = rnn.DropoutCell(0.5).unroll(5, ones, merge_outputs=True)[0].asnumpy()
        cell = rnn.DropoutCell(0.5, axes=(1,))
        shared = cell.unroll(5, ones, merge_outputs=True)[0].asnumpy()
    out["values"] = sorted(set(dropped.ravel().tolist()))
    out["share"] = bool(0.45 < (dropped == 0).mean() < 0.55)
    out["one mask for all steps"] = bool((shared == shared[:, :1]).all())
    return out
