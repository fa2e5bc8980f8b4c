"""Checks of recurrent networks with `mx.autograd`, hybridizing, files, several contexts, shared parameters."""

import os
import tempfile

import numpy as np
from recorded_checks import raised


def draw(mx, *shape, seed=0):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, shape))


def filled(mx, block, seed=1, **kwargs):
    block.initialize(**kwargs)
    rs = np.random.RandomState(seed)
    for p in block.collect_params().values():
        p.set_data(mx.nd.array(rs.uniform(-0.5, 0.5, p.shape)))
    return block


def grads(block, *ends):
    return {k.split("_", 1)[1]: p.grad() for k, p in block.collect_params().items() if k.endswith(ends)}


def check_truncated_backpropagation(mx):
    lstm, out = filled(mx, mx.gluon.rnn.LSTM(3, 2, input_size=2)), {}
    states = lstm.begin_state(batch_size=2)
    for step in range(3):
        states = [s.detach() for s in states]
        with mx.autograd.record():
            y, states = lstm(draw(mx, 2, 2, 2, seed=step), states)
            loss = (y * y).sum()
        loss.backward()
        out.update({f"loss {step}": loss.asscalar(), f"grad {step}": lstm.l0_h2h_weight.grad().copy()})
    return {**out, "h": states[0], "c": states[1]}


def check_whole_backpropagation(mx):
    gru, out = filled(mx, mx.gluon.rnn.GRU(3, input_size=2)), {}
    states = gru.begin_state(batch_size=2)
    with mx.autograd.record():
        total = 0
        for step in range(3):
            y, states = gru(draw(mx, 2, 2, 2, seed=step), states)
            total = total + (y * y).sum()
    total.backward()
    out.update(grads(gru, "weight", "bias"))
    return out


def check_gradients_of_begin_states(mx):
    lstm = filled(mx, mx.gluon.rnn.LSTM(3, bidirectional=True, input_size=2))
    states = [draw(mx, 2, 2, 3, seed=5), draw(mx, 2, 2, 3, seed=6)]
    for s in states:
        s.attach_grad()
    with mx.autograd.record():
        y, last = lstm(draw(mx, 3, 2, 2), states)
        loss = last[1].sum() + (y[-1] ** 2).sum()
    loss.backward()
    return {"h": states[0].grad, "c": states[1].grad, "y": y, **grads(lstm, "r0_h2h_bias")}


def check_grad_req_add(mx):
    cell = filled(mx, mx.gluon.rnn.GRUCell(3, input_size=2))
    cell.collect_params().setattr("grad_req", "add")
    for seed in range(2):
        with mx.autograd.record():
            y = cell.unroll(2, draw(mx, 2, 2, 2, seed=seed), merge_outputs=True)[0]
        y.backward()
    out = grads(cell, "weight", "bias")
    sums = {k: v.copy() for k, v in out.items()}
    cell.collect_params().zero_grad()
    return {**sums, "zeroed": cell.h2h_bias.grad()}


def check_frozen_weights(mx):
    lstm = filled(mx, mx.gluon.rnn.LSTM(3, input_size=2, prefix="frozen_"))
    lstm.collect_params(".*i2h.*").setattr("grad_req", "null")
    trainer = mx.gluon.Trainer(lstm.collect_params(), "sgd", {"learning_rate": 0.5})
    before = {k: p.data().copy() for k, p in lstm.collect_params().items()}
    with mx.autograd.record():
        loss = lstm(draw(mx, 3, 2, 2)).sum()
    loss.backward()
    trainer.step(2)
    return {k: p.data() - before[k] for k, p in lstm.collect_params().items()}


def check_grad_function(mx):
    cell = filled(mx, mx.gluon.rnn.RNNCell(3, input_size=2))
    x, h = draw(mx, 2, 2), draw(mx, 2, 3, seed=2)
    x.attach_grad()
    h.attach_grad()
    with mx.autograd.record():
        y, _ = cell(x, [h])
        y2, _ = cell(x, [y])
    gx, gh = mx.autograd.grad(y2, [x, h], head_grads=mx.nd.ones((2, 3)) * 2)
    return {"x": gx, "h": gh, "y2": y2}


def check_hybridized_training(mx):
    class Net(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.lstm = mx.gluon.rnn.LSTM(3, input_size=2)
                self.cell = mx.gluon.rnn.GRUCell(3, input_size=3)
                self.out = mx.gluon.nn.Dense(1, in_units=3)

        def hybrid_forward(self, F, x, states):
            y, states = self.lstm(x, states)
            _, last = self.cell.unroll(3, y, layout="TNC", merge_outputs=True)
            return self.out(last[0]), states

    out = {}
    for hybrid in (False, True):
        net = filled(mx, Net(prefix="net_"))
        if hybrid:
            net.hybridize()
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
        states = net.lstm.begin_state(batch_size=2)
        losses = []
        for step in range(3):
            with mx.autograd.record():
                y, states = net(draw(mx, 3, 2, 2, seed=step), [s.detach() for s in states])
                loss = ((y - 1) ** 2).mean()
            loss.backward()
            trainer.step(1)
            losses.append(loss.asscalar())
        out.update(
            {f"losses {hybrid}": losses, f"weight {hybrid}": net.lstm.l0_i2h_weight.data(), f"state {hybrid}": states[1]}
        )
    return out


def check_foreach(mx):
    class Loop(mx.gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.cell = mx.gluon.rnn.LSTMCell(3, input_size=2)

        def hybrid_forward(self, F, x, h, c):
            outputs, states = F.contrib.foreach(self.cell, x, [h, c])
            return outputs, states[0], states[1]

    out = {}
    for hybrid in (False, True):
        net = filled(mx, Loop())
        if hybrid:
            net.hybridize()
        x = draw(mx, 3, 2, 2)
        x.attach_grad()
        with mx.autograd.record():
            y, _, c = net(x, mx.nd.zeros((2, 3)), mx.nd.zeros((2, 3)))
            loss = (y * y).sum() + c.sum()
        loss.backward()
        out.update(
            {f"y {hybrid}": y, f"c {hybrid}": c, f"grad {hybrid}": x.grad, f"weight {hybrid}": net.cell.h2h_weight.grad()}
        )
    return out


def check_files(mx):
    net = mx.gluon.nn.HybridSequential(prefix="files_")
    with net.name_scope():
        net.add(mx.gluon.rnn.LSTM(3, 2, input_size=2), mx.gluon.nn.Dense(2, in_units=3, flatten=False))
    filled(mx, net).hybridize()
    x = draw(mx, 3, 2, 2)
    y = net(x)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net")
        net.save_parameters(path + ".params")
        names = sorted(mx.nd.load(path + ".params"))
        net.export(path + "-exported", epoch=3)
        files = sorted(os.listdir(folder))
        block = mx.gluon.SymbolBlock.imports(path + "-exported-symbol.json", ["data"], path + "-exported-0003.params")
        symbol, args, _ = mx.model.load_checkpoint(path + "-exported", 3)
        imported = block(x)
    return {
        "y": y,
        "names": names,
        "files": files,
        "imported": imported,
        "outputs": symbol.list_outputs(),
        "args": sorted(args),
    }


def check_contexts(mx):
    contexts = [mx.cpu(0), mx.cpu(1)]
    gru = filled(mx, mx.gluon.rnn.GRU(3, layout="NTC", input_size=2, prefix="ctx_"), ctx=contexts)
    parts = mx.gluon.utils.split_and_load(draw(mx, 4, 3, 2), contexts)
    trainer = mx.gluon.Trainer(gru.collect_params(), "sgd", {"learning_rate": 0.5})
    with mx.autograd.record():
        losses = [(gru(x) ** 2).sum() for x in parts]
    mx.autograd.backward(losses)
    each = [g.copy() for g in gru.l0_h2h_weight.list_grad()]
    trainer.step(4)
    states = gru.begin_state(2, ctx=contexts[1])
    return {
        "losses": [v.asscalar() for v in losses],
        "grads": each,
        "state on": str(states[0].context),
        "weights": [d.asnumpy() for d in gru.l0_h2h_weight.list_data()],
        "out on": str(gru(parts[1]).context),
    }


def check_shared_layers(mx):
    one = mx.gluon.rnn.GRU(3, input_size=2, prefix="one_")
    two = mx.gluon.rnn.GRU(3, input_size=2, prefix="two_", params=one.collect_params())
    filled(mx, one)
    x = draw(mx, 3, 2, 2)
    with mx.autograd.record():
        loss = one(x).sum() + 2 * two(x).sum()
    loss.backward()
    return {"names": list(two.collect_params()), "same": two.l0_i2h_bias is one.l0_i2h_bias, **grads(one, "weight")}


def check_attributes_and_types(mx):
    rnn = mx.gluon.rnn
    lstm = filled(mx, rnn.LSTM(3, input_size=2, prefix="a_"))
    stack = rnn.SequentialRNNCell(prefix="s_")
    stack.add(rnn.DropoutCell(0.2))
    stack.add(rnn.RNNCell(2, prefix="r_"))
    return {
        "weight": lstm.l0_i2h_weight.data(),
        "selected": list(lstm.collect_params(".*bias")),
        "hybrid": isinstance(rnn.LSTMCell(2), rnn.HybridRecurrentCell),
        "sequential is hybrid": isinstance(stack, mx.gluon.HybridBlock),
        "module": mx.gluon.rnn.rnn_cell.LSTMCell is rnn.LSTMCell,
        "layer module": mx.gluon.rnn.rnn_layer.GRU is rnn.GRU,
        "hybrid stack of plain": raised(rnn.HybridSequentialRNNCell().add, stack),
        "stack names": list(stack.collect_params()),
        "single state": len(stack.begin_state(batch_size=1)),
        "not a block": raised(stack.add, 3) != "no error",
    }


def check_dropout_between_layers(mx):
    lstm, out = filled(mx, mx.gluon.rnn.LSTM(3, 2, dropout=0.5, input_size=2)), {}
    x = draw(mx, 3, 2, 2)
    with mx.autograd.record(train_mode=False):
        predicted = lstm(x)
    with mx.autograd.record():
        trained = lstm(x)
        again = lstm(x)
    out["predicted"] = predicted
    out["same"] = [bool((a.asnumpy() == b.asnumpy()).all()) for a, b in ((trained, predicted), (trained, again))]
    return out


def check_zoneout_in_training(mx):
    out = {}
    for label, rates in {"states": (0.0, 1 - 1e-7), "outputs": (1 - 1e-7, 0.0)}.items():
        cell = filled(mx, mx.gluon.rnn.ZoneoutCell(mx.gluon.rnn.RNNCell(3, input_size=3), *rates))
        with mx.autograd.train_mode():
            outputs, states = cell.unroll(3, draw(mx, 2, 3, 3), merge_outputs=True)
        out.update({f"{label} outputs": outputs, f"{label} states": states})
    return out


def check_sequence_losses(mx):
    lstm = filled(mx, mx.gluon.rnn.LSTM(4, layout="NTC", input_size=2))
    x, labels, lengths = draw(mx, 2, 5, 2), mx.nd.array([[1, 2], [2, 0]]), mx.nd.array([5, 3])
    ctc = mx.gluon.loss.CTCLoss(layout="NTC", label_layout="NT")
    with mx.autograd.record():
        y = lstm(x)
        masked = mx.nd.SequenceMask(y.swapaxes(0, 1), sequence_length=lengths, use_sequence_length=True)
        last = mx.nd.SequenceLast(masked, sequence_length=lengths, use_sequence_length=True)
        loss = ctc(y, labels) + last.sum(axis=1)
    loss.backward()
    return {"loss": loss, **grads(lstm, "i2h_weight", "h2h_bias")}


def check_second_unroll_and_lengths(mx):
    cell, out = filled(mx, mx.gluon.rnn.LSTMCell(3, input_size=2, prefix="again_")), {}
    for length in (2, 4, 1):
        outputs, states = cell.unroll(length, draw(mx, 2, length, 2), layout="NTC", merge_outputs=True)
        out.update({f"outputs {length}": outputs, f"c {length}": states[1]})
    cell.hybridize()
    for length in (2, 3):
        out[f"hybrid {length}"] = cell.unroll(length, draw(mx, 2, length, 2), merge_outputs=True)[0]
    y, states = cell(draw(mx, 2, 2), cell.begin_state(2))
    out["step type"] = [type(states).__name__, len(states)]
    out["step"] = y
    return out


def check_valid_length_gradients(mx):
    rnn = mx.gluon.rnn
    cell = filled(mx, rnn.BidirectionalCell(rnn.LSTMCell(2, input_size=2), rnn.GRUCell(2, input_size=2)))
    x = draw(mx, 2, 3, 2)
    x.attach_grad()
    with mx.autograd.record():
        outputs, states = cell.unroll(3, x, merge_outputs=True, valid_length=mx.nd.array([2, 3]))
        loss = (outputs * draw(mx, 2, 3, 4, seed=8)).sum() + sum(s.sum() for s in states)
    loss.backward()
    return {"outputs": outputs, "x": x.grad, **grads(cell, "i2h_weight", "h2h_bias")}


def check_errors(mx):
    rnn, x = mx.gluon.rnn, draw(mx, 2, 3, 2)
    cell = filled(mx, rnn.GRUCell(3, input_size=2))
    lstm = filled(mx, rnn.LSTM(3, input_size=2, use_sequence_length=True))
    return {
        "features": raised(lambda: cell(draw(mx, 2, 5), cell.begin_state(2))[0].asnumpy()),
        "batch": raised(lambda: cell(x[:, 0], cell.begin_state(5))[0].asnumpy()),
        "uninitialized": raised(lambda: rnn.LSTMCell(3)(x[:, 0], [mx.nd.zeros((2, 3))] * 2)),
        "unrolled list length": raised(cell.unroll, 2, [x[:, 0]]),
        "wrong keyword": raised(rnn.GRUCell, 3, hidden=2),
        "wrong keyword of a layer": raised(rnn.GRU, 3, projection_size=2),
        "abstract": raised(lambda: rnn.HybridRecurrentCell()(x[:, 0], [])) != "no error",
        "batch of states": raised(lambda: lstm(x, lstm.begin_state(7), mx.nd.array([1, 1, 1]))),
    }


def check_hybridized_compositions(mx):
    rnn, contrib, out = mx.gluon.rnn, mx.gluon.contrib.rnn, {}

    class Unrolled(mx.gluon.HybridBlock):
        def __init__(self, cell, layout, **kwargs):
            super().__init__(**kwargs)
            self.cell, self._layout = cell, layout

        def hybrid_forward(self, F, x, lengths=None):
            outputs, states = self.cell.unroll(2, x, layout=self._layout, merge_outputs=True, valid_length=lengths)
            return outputs, states

    def stack():
        cells = rnn.HybridSequentialRNNCell(prefix="stack_")
        with cells.name_scope():
            cells.add(rnn.BidirectionalCell(rnn.LSTMCell(2, prefix="l_"), rnn.GRUCell(2, prefix="r_")))
            cells.add(rnn.DropoutCell(0.3))
            cells.add(rnn.ResidualCell(rnn.GRUCell(4, prefix="top_")))
        return cells

    x, lengths = draw(mx, 2, 2, 4), mx.nd.array([2, 1])
    cells = {
        "stack": (stack, "TNC", x.swapaxes(0, 1), lengths),
        "zoneout": (lambda: rnn.ZoneoutCell(rnn.LSTMCell(3, prefix="z_"), 0.2, 0.2), "NTC", x, None),
        "variational": (lambda: contrib.VariationalDropoutCell(rnn.GRUCell(3, prefix="v_"), 0.2, 0.2, 0.2), "NTC", x, None),
        "projection": (lambda: contrib.LSTMPCell(4, 2, prefix="p_"), "NTC", x, lengths),
        "convolution": (
            lambda: contrib.Conv1DLSTMCell((2, 4), 3, 3, 3, i2h_pad=1, prefix="c_"),
            "NTCW",
            draw(mx, 2, 2, 2, 4),
            None,
        ),
    }
    for label, (make, layout, data, valid) in cells.items():
        args = (data,) if valid is None else (data, valid)
        net = Unrolled(make(), layout)
        net.initialize()
        net(*args)  # infers the shapes
        rs = np.random.RandomState(4)
        for p in net.collect_params().values():
            p.set_data(mx.nd.array(rs.uniform(-0.5, 0.5, p.shape)))
        plain = net(*args)[0]
        net.hybridize()
        data.attach_grad()
        with mx.autograd.record(train_mode=False):
            outputs, states = net(*args)
            loss = (outputs * outputs).sum() + sum(s.sum() for s in states)
        loss.backward(train_mode=False)
        last = list(net.collect_params().values())[-1]
        out.update({f"{label} outputs": plain, f"{label} hybrid": outputs, f"{label} states": list(states)})
        out.update({f"{label} grad": data.grad, f"{label} last parameter": [list(last.shape), last.grad()]})
    return out


def check_deferred_networks(mx):
    net = mx.gluon.nn.HybridSequential(prefix="deep_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Embedding(6, 3),
            mx.gluon.rnn.GRU(2, 2, layout="NTC", bidirectional=True),
            mx.gluon.rnn.LSTM(3, layout="NTC"),
            mx.gluon.nn.Dense(2),
        )
    net.initialize(mx.init.Constant(0.3))
    net.hybridize()
    tokens = mx.nd.array([[1, 2, 3], [0, 4, 5]])
    with mx.autograd.record():
        y = net(tokens)
    y.backward()
    shapes = [[k, list(p.shape)] for k, p in net.collect_params().items()]
    return {"y": y, "shapes": shapes, "grad": net[1].l1_h2h_weight.grad(), "embedding": net[0].weight.grad()}


def check_stepwise_sampling(mx):
    """Greedy decoding, one step at a time, with a cell that was trained unrolled."""
    cell = filled(mx, mx.gluon.rnn.GRUCell(4, input_size=5, prefix="g_"))
    head = filled(mx, mx.gluon.nn.Dense(5, in_units=4, prefix="h_"), seed=6)
    out = {}
    for hybrid in (False, True):
        if hybrid:
            cell.hybridize()
            head.hybridize()
        cell.reset()
        token, states, chosen = mx.nd.array([1, 3]), cell.begin_state(batch_size=2), []
        for _ in range(5):
            y, states = cell(mx.nd.one_hot(token, 5), states)
            token = head(y).argmax(axis=1)
            chosen.append(token.asnumpy().tolist())
        out[f"tokens {hybrid}"] = chosen
        out[f"state {hybrid}"] = states[0]
    return out
