"""Unrolled recurrent networks: the cells of `mx.rnn`, hand-written ones, and random ones."""

import numpy as np

import jfit
from jfit import mx

sym = jfit.sym
STEPS = 6


def random_net(seed: int):
    """Return (symbol, input shapes) of a random recurrent network over 5 to 7 steps; some have a step that differs.

    The inputs are `data` (batch, steps, 4) and, for some, `start` (batch, 4).
    """
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(5, 8))
    plan = _random_plan(rng)
    shapes: dict[str, tuple[int, ...]] = {"data": (3, steps, 4)}
    data = sym.Variable("data")
    kind = rng.choice(["split", "slice_axis", "split_keep"])
    if kind == "split":
        xs = list(sym.SliceChannel(data, num_outputs=steps, axis=1, squeeze_axis=True, name="split"))
    elif kind == "split_keep":
        parts = sym.SliceChannel(data, num_outputs=steps, axis=1, name="split")
        xs = [sym.Reshape(p, shape=(0, -1), name=f"flat{t}") for t, p in enumerate(parts)]
    else:
        parts = [sym.slice_axis(data, axis=1, begin=t, end=t + 1, name=f"slice{t}") for t in range(steps)]
        xs = [sym.Reshape(p, shape=(0, -1), name=f"flat{t}") for t, p in enumerate(parts)]
    if rng.random() < 0.4:
        xs = xs[::-1]
    states = []
    for i in range(plan["states"]):
        first = rng.choice(["zeros", "input", "parameter"])
        if first == "input":
            states.append(sym.Variable("start"))
            shapes["start"] = (3, 4)
        else:
            zeros = sym._zeros(shape=(3, 4), name=f"begin{i}")
            states.append(zeros if first == "zeros" else sym.broadcast_add(xs[0], sym.Variable(f"learned{i}", shape=(1, 4))))
    odd = int(rng.integers(steps)) if rng.random() < 0.3 else -1  # a step with a parameter of its own, or another operator
    outputs = []
    for t in range(steps):
        outs, states = _step(plan, xs[t], states, t, t == odd)
        outputs.append(outs)
    net = _ending(rng, outputs, states)
    return net, {k: s for k, s in shapes.items() if k in net.list_arguments()}


def _random_plan(rng):
    count = int(rng.integers(1, 3))
    ops = [
        (str(rng.choice(["fc", "tanh", "add", "mul", "drop", "scale", "gates", "concat", "minus"])), *rng.integers(0, 4, 2))
        for _ in range(rng.integers(3, 9))
    ]
    return {"states": count, "ops": ops, "news": rng.integers(0, 3, count), "out": int(rng.integers(0, 3))}


def _step(plan, x, states, t, odd):
    """Return (output, new states) of step `t`; if `odd`, some parameters and operators differ from other steps."""
    joined = sym.FullyConnected(states[0], sym.Variable("w_state"), num_hidden=4, no_bias=True, name=f"s{t}_h")
    live = [x, *states, sym.elemwise_add(x, joined, name=f"s{t}_j")]
    for i, (op, a, b) in enumerate(plan["ops"]):
        first, second = live[-1 - a % len(live)], live[-1 - b % len(live)]
        name = f"s{t}_{i}"
        weight = "wabcd"[1:][i % 4]
        if op == "fc":
            own = f"own{i}" if odd and i % 2 else f"w{weight}_4"
            new = sym.FullyConnected(first, sym.Variable(own), sym.Variable(f"b{weight}"), num_hidden=4, name=name)
        elif op == "tanh":
            new = sym.Activation(first, act_type="relu" if odd and i % 2 else "tanh", name=name)
        elif op == "drop":
            new = sym.Dropout(first, p=0.4, name=name)
        elif op == "scale":
            new = sym.broadcast_mul(first, sym.Variable("scale", shape=(1, 4)), name=name)
        elif op == "gates":
            wide = sym.FullyConnected(first, sym.Variable(f"w{weight}_8"), num_hidden=8, no_bias=True, name=name)
            parts = sym.SliceChannel(wide, num_outputs=2, name=name + "p")
            new = sym.elemwise_mul(sym.sigmoid(parts[0], name=name + "s"), parts[1], name=name + "m")
        elif op == "concat":
            both = sym.Concat(first, second, dim=1, name=name)
            new = sym.FullyConnected(both, sym.Variable(f"w{weight}_c"), num_hidden=4, no_bias=True, name=name + "f")
        elif op == "minus":
            new = sym.broadcast_sub(first, 0.3 * second, name=name)
        else:
            new = (sym.elemwise_add if op == "add" else sym.elemwise_mul)(first, second, name=name)
        live.append(new)
    news = [sym.tanh(live[-1 - k % len(live)], name=f"s{t}_new{i}") for i, k in enumerate(plan["news"])]
    return live[-1 - plan["out"] % len(live)], news


def _ending(rng, outputs, states):
    kind = rng.choice(["concat", "stack", "each", "last", "back", "some", "wide"])
    if kind == "concat":
        return sym.Concat(*[sym.expand_dims(o, axis=1) for o in outputs], dim=1)
    if kind == "stack":
        return sym.stack(*outputs, axis=0)
    if kind == "back":
        return sym.stack(*outputs[::-1], axis=1)
    if kind == "some":
        return sym.Group([sym.Concat(*outputs[1:-1], outputs[0], dim=0), *states])
    if kind == "wide":
        return sym.Concat(*outputs, states[0], dim=1)
    return sym.Group(outputs) if kind == "each" else sym.Group(states)


def cell(name: str):
    """Return a recurrent cell of `mx.rnn` by its name."""
    if name == "zoneout":
        return mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(5), 0.2, 0.3)
    if name == "residual":
        return mx.rnn.ResidualCell(mx.rnn.GRUCell(4))
    if name == "bidirectional":
        return mx.rnn.BidirectionalCell(mx.rnn.LSTMCell(4, prefix="l_"), mx.rnn.GRUCell(4, prefix="r_"))
    if name == "stack":
        stack = mx.rnn.SequentialRNNCell()
        for i in range(2):
            stack.add(mx.rnn.LSTMCell(4, prefix=f"l{i}_"))
            stack.add(mx.rnn.DropoutCell(0.3, prefix=f"d{i}_"))
        return stack
    return {"lstm": mx.rnn.LSTMCell, "gru": mx.rnn.GRUCell, "rnn": mx.rnn.RNNCell}[name](5)


CELLS = ("lstm", "gru", "rnn", "zoneout", "residual", "bidirectional", "stack")


def unrolled(name: str, merge: bool, steps: int = STEPS):
    """Return the outputs of a cell over `data` (batch, steps, 4)."""
    outputs, _ = cell(name).unroll(steps, sym.Variable("data"), merge_outputs=merge)
    return outputs if merge else sym.Group(list(outputs))


def tagger(steps: int, tags: int = 4, words: int = 20, hidden: int = 4):
    """Return the loss of an LSTM-CRF tagger: the forward algorithm over the emissions of a bidirectional LSTM.

    The inputs are `data` (batch, steps) and `tags_label` (batch, steps), both integers.
    """
    embedded = sym.Embedding(sym.Variable("data"), input_dim=words, output_dim=hidden, name="embed")
    both = mx.rnn.BidirectionalCell(mx.rnn.LSTMCell(hidden, prefix="l_"), mx.rnn.LSTMCell(hidden, prefix="r_"))
    outputs, _ = both.unroll(steps, embedded, merge_outputs=False)
    transitions = sym.Variable("transitions", shape=(tags, tags), init="uniform")
    gold = sym.one_hot(sym.Variable("tags_label"), depth=tags)
    gold = list(sym.SliceChannel(gold, num_outputs=steps, axis=1, squeeze_axis=True))
    weight, bias = sym.Variable("tag_weight"), sym.Variable("tag_bias")
    alpha, score = None, None
    for t, output in enumerate(outputs):
        emission = sym.FullyConnected(output, weight, bias, num_hidden=tags, name=f"emission{t}")
        points = sym.sum(emission * gold[t], axis=1)
        if alpha is None:
            alpha, score = emission, points
            continue
        moves = sym.sum(sym.dot(gold[t - 1], transitions) * gold[t], axis=1)
        score = score + points + moves
        paths = sym.broadcast_add(sym.expand_dims(alpha, axis=2), sym.expand_dims(transitions, axis=0))
        best = sym.max(paths, axis=1, keepdims=True)
        total = sym.log(sym.sum(sym.exp(sym.broadcast_sub(paths, best)), axis=1))
        alpha = total + sym.Reshape(best, shape=(0, -1)) + emission
    best = sym.max(alpha, axis=1, keepdims=True)
    total = sym.log(sym.sum(sym.exp(sym.broadcast_sub(alpha, best)), axis=1)) + sym.Reshape(best, shape=(-1,))
    return sym.MakeLoss(total - score, name="loss")


def decoder(steps: int, words: int = 7, hidden: int = 5):
    """Return the outputs of a decoder that reads its own most likely word, with attention to `memory` (batch, 3, hidden).

    The other input is `data` (batch,), the first word.
    """
    memory = sym.Variable("memory")
    table = sym.Variable("table")
    w, u, p = (sym.Variable(f"{k}_weight") for k in ("in", "state", "out"))
    word, state = sym.Variable("data"), sym._zeros(shape=(0, hidden))
    outputs = []
    for t in range(steps):
        vector = sym.Embedding(word, table, input_dim=words, output_dim=hidden, name=f"embed{t}")
        scores = sym.softmax(sym.batch_dot(memory, sym.expand_dims(state, axis=2)), axis=1)
        context = sym.sum(sym.broadcast_mul(memory, scores), axis=1)
        joined = sym.Concat(vector, context, dim=1)
        state = sym.tanh(
            sym.FullyConnected(joined, w, num_hidden=hidden, no_bias=True)
            + sym.FullyConnected(state, u, num_hidden=hidden, no_bias=True)
        )
        logits = sym.FullyConnected(state, p, num_hidden=words, no_bias=True, name=f"logits{t}")
        word = sym.argmax(logits, axis=1)
        outputs.append(logits)
    return sym.Concat(*[sym.expand_dims(o, axis=1) for o in outputs], dim=1)


def reader(steps: int, hidden: int = 5, classes: int = 6, features: int = 4, labels: int = 3):
    """Return an OCR network: a two-layer LSTM over the columns of an image, trained with CTC (as MXNet's lstm_ocr example).

    The inputs are `data` (batch, steps, features) and `label` (batch, labels).
    """
    stack = mx.rnn.SequentialRNNCell()
    for i in range(2):
        stack.add(mx.rnn.LSTMCell(hidden, prefix=f"l{i}_"))
    outputs, _ = stack.unroll(steps, sym.Variable("data"), merge_outputs=False)
    pred = sym.FullyConnected(sym.Concat(*outputs, dim=0), num_hidden=classes, name="pred")
    label = sym.cast(sym.Reshape(sym.Variable("label"), shape=(-1,)), dtype="int32")
    return sym.WarpCTC(data=pred, label=label, label_length=labels, input_length=steps, name="ctc")
