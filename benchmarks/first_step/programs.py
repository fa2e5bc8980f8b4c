"""The training steps of `python -m benchmarks.start --compile`, by jfit and by hand, ready to be lowered.

Both gather the rows of a batch from data on the device, train by SGD with momentum, count correct predictions, and donate their
state.  Hand-written networks with batch normalization update moving statistics, as jfit does.
"""

from __future__ import annotations

import functools as ft
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.first_step import BLOCKS, CLASSES, LEARNING_RATE, MOMENTUM, STAGES, measure

BATCHES, TOKENS, WORDS, WIDTH, LAYERS, HEADS = 2, 35, 1000, 200, 2, 4
BOTTLENECKS = ((64, 3), (128, 4), (256, 6), (512, 3))  # ResNet-50: (filters, blocks)
# kind -> (rows of a batch, shape of a row: channels first, or number of tokens)
SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {
    "mlp": (64, (784,)),
    "lenet": (128, (1, 28, 28)),
    "resnet20": (128, (3, 32, 32)),
    "lstm": (20, (TOKENS,)),
    "transformer": (20, (TOKENS,)),
    "resnet50": (32, (3, 64, 64)),
}
TEXT = ("lstm", "transformer")


def arrays(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two batches, channels first, and their labels."""
    rows, shape = SHAPES[kind]
    rng, count = np.random.default_rng(0), rows * BATCHES
    if kind in TEXT:
        words = rng.integers(0, WORDS, (2, count, *shape)).astype(np.int32)
        return words[0], words[1]
    return rng.standard_normal((count, *shape), dtype=np.float32), rng.integers(0, CLASSES, count).astype(np.int32)


# ------------------------------------------------------------------------------------------------ by hand
class Values(dict[str, Any]):
    """Parameters by name; `of` adds a parameter of zeros if there is none of this name."""

    def of(self, name: str, *shape: int) -> Any:
        if name not in self:
            self[name] = jnp.zeros(shape)
        return self[name]


def _norm(p: Any, aux: dict[str, Any], new: dict[str, Any], x: Any, name: str) -> Any:
    width = x.shape[-1]
    gamma, beta = p.of(f"{name}_gamma", width) + 1, p.of(f"{name}_beta", width)
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    for key, value in ((f"{name}_mean", mean), (f"{name}_var", variance)):
        new[key] = 0.9 * aux.get(key, jnp.zeros(width)) + 0.1 * value
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gamma + beta


def _conv(p: Any, x: Any, name: str, filters: int, kernel: int, stride: int = 1, padding: str = "SAME") -> Any:
    w = p.of(name, kernel, kernel, x.shape[-1], filters)
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _dense(p: Any, x: Any, name: str, width: int) -> Any:
    return x @ p.of(f"{name}_w", x.shape[-1], width) + p.of(f"{name}_b", width)


def _pool(x: Any) -> Any:
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def _resnet(p: Any, aux: Any, x: Any, kind: str) -> tuple[Any, Any]:
    new: dict[str, Any] = {}

    def unit(x: Any, name: str, filters: int, kernel: int, stride: int = 1) -> Any:
        return _norm(p, aux, new, _conv(p, x, name, filters, kernel, stride), name)

    if kind == "resnet50":
        x = _pool(jax.nn.relu(unit(x, "stem", 64, 7, 2)))
        for stage, (filters, blocks) in enumerate(BOTTLENECKS):
            for block in range(blocks):
                name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
                y = jax.nn.relu(unit(x, f"{name}_a", filters, 1))
                y = jax.nn.relu(unit(y, f"{name}_b", filters, 3, stride))
                short = x if block else unit(x, f"{name}_short", 4 * filters, 1, stride)
                x = jax.nn.relu(unit(y, f"{name}_c", 4 * filters, 1) + short)
    else:
        x = jax.nn.relu(unit(x, "stem", 16, 3))
        for stage, (filters, first) in enumerate(STAGES):
            for block in range(BLOCKS):
                name, stride = f"s{stage}b{block}", first if not block else 1
                y = unit(jax.nn.relu(unit(x, f"{name}_a", filters, 3, stride)), f"{name}_b", filters, 3)
                short = x if block or not stage else unit(x, f"{name}_short", filters, 1, stride)
                x = jax.nn.relu(y + short)
    return _dense(p, x.mean((1, 2)), "fc", CLASSES), new


def _recurrent(p: Any, x: Any, name: str) -> Any:
    state = jnp.zeros((len(x), WIDTH))
    inputs = _dense(p, x, f"{name}_i", 4 * WIDTH)
    weight = p.of(f"{name}_h", WIDTH, 4 * WIDTH)

    def cell(carry: Any, gates: Any) -> Any:
        hidden, memory = carry
        i, f, g, o = jnp.split(gates + hidden @ weight, 4, -1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    return lax.scan(cell, (state, state), inputs.swapaxes(0, 1))[1].swapaxes(0, 1)


def _scaled(p: Any, x: Any, name: str) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    scale, shift = p.of(f"{name}_g", WIDTH) + 1, p.of(f"{name}_s", WIDTH)
    return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def transformer(p: Any, tokens: Any) -> Any:
    """Logits (rows, tokens, words) of a causal transformer."""
    x = p.of("embed", WORDS, WIDTH)[tokens] + p.of("position", TOKENS, WIDTH)
    rows, length = tokens.shape
    mask = jnp.tril(jnp.ones((length, length), bool))
    for layer in range(LAYERS):
        name = f"l{layer}"
        q, k, v = jnp.split(_dense(p, _scaled(p, x, f"{name}_n1"), f"{name}_qkv", 3 * WIDTH), 3, -1)
        q, k, v = (a.reshape(rows, length, HEADS, WIDTH // HEADS) for a in (q, k, v))
        scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(WIDTH // HEADS), -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + _dense(p, mixed, f"{name}_o", WIDTH)
        x = x + _dense(p, jax.nn.gelu(_dense(p, _scaled(p, x, f"{name}_n2"), f"{name}_up", 4 * WIDTH)), f"{name}_down", WIDTH)
    return _dense(p, _scaled(p, x, "last"), "fc", WORDS)


def forward(p: Any, aux: Any, x: Any, kind: str) -> tuple[Any, Any]:
    """(logits, new moving statistics)."""
    if kind.startswith("resnet"):
        return _resnet(p, aux, x, kind)
    if kind == "transformer":
        return transformer(p, x), {}
    if kind == "lstm":
        x = p.of("embed", WORDS, WIDTH)[x]
        for layer in range(LAYERS):
            x = _recurrent(p, x, f"lstm{layer}")
        return _dense(p, x, "fc", WORDS), {}
    widths = [128, 64]
    if kind == "lenet":
        for i, filters in enumerate((20, 50)):
            bias = p.of(f"conv{i}_b", filters)
            x = _pool(jax.nn.relu(_conv(p, x, f"conv{i}", filters, 5, padding="VALID") + bias))
        x, widths = x.reshape(len(x), -1), [500]
    for i, width in enumerate(widths):
        x = jax.nn.relu(_dense(p, x, f"fc{i}", width))
    return _dense(p, x, "fc", CLASSES), {}


def by_hand(kind: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return (jitted step, its arguments)."""
    x, y = arrays(kind)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x
    rows = SHAPES[kind][0]
    values = Values()
    _, aux = jax.eval_shape(lambda: forward(values, {}, jnp.zeros((1, *x.shape[1:]), x.dtype), kind))
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=v.shape, scale=0.05), jnp.float32) for name, v in values.items()}
    aux = {name: jnp.zeros(v.shape) for name, v in aux.items()}

    @ft.partial(jax.jit, donate_argnums=0)
    def step(state: Any, x: Any, y: Any, order: Any) -> Any:
        params, momentum, aux, index, correct = state
        taken = lax.dynamic_slice_in_dim(order, index * rows, rows)
        batch, label = x.at[taken].get(mode="promise_in_bounds"), y.at[taken].get(mode="promise_in_bounds")

        def loss(p: Any) -> Any:
            logits, new = forward(Values(p), aux, batch, kind)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], -1)
            return -picked.mean(), (logits, new)

        (value, (logits, aux)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m - LEARNING_RATE * g, momentum, grads)
        params = jax.tree.map(jnp.add, params, momentum)
        return (params, momentum, aux, index + 1, correct + (logits.argmax(-1) == label).sum()), value

    momentum = jax.tree.map(jnp.zeros_like, params)
    state = params, momentum, aux, jnp.int32(0), jnp.int32(0)
    return step, (state, jnp.asarray(x), jnp.asarray(y), jnp.arange(rows * BATCHES, dtype=jnp.int32))


# ------------------------------------------------------------------------------------------------ jfit
def _symbol(kind: str) -> Any:
    import jfit
    from benchmarks.first_step.jfit_fit import _unit, network

    sym = jfit.sym
    if kind not in ("lstm", "resnet50"):
        return network(kind)
    x = sym.Variable("data")
    if kind == "lstm":
        x = sym.Embedding(x, input_dim=WORDS, output_dim=WIDTH, name="embed")
        x = sym.RNN(sym.swapaxes(x, dim1=0, dim2=1), state_size=WIDTH, num_layers=LAYERS, mode="lstm", name="lstm")
        x = sym.Reshape(sym.swapaxes(x, dim1=0, dim2=1), shape=(-1, WIDTH))
        label = sym.Reshape(sym.Variable("softmax_label"), shape=(-1,))
        return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=WORDS, name="fc"), label, name="softmax")
    x = sym.Pooling(_unit(x, 64, 7, 2, "stem"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    for stage, (filters, blocks) in enumerate(BOTTLENECKS):
        for block in range(blocks):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            y = _unit(_unit(x, filters, 1, 1, f"{name}_a"), filters, 3, stride, f"{name}_b")
            y = _unit(y, 4 * filters, 1, 1, f"{name}_c", relu=False)
            short = x if block else _unit(x, 4 * filters, 1, stride, f"{name}_short", relu=False)
            x = sym.Activation(y + short, act_type="relu", name=f"{name}_relu")
    x = sym.Flatten(sym.Pooling(x, global_pool=True, kernel=(2, 2), pool_type="avg"))
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=CLASSES, name="fc"), name="softmax")


class _Found(Exception):
    """Raised instead of training; its argument is the list of (program, arguments after the state) of the first epoch."""


def by_jfit(kind: str) -> tuple[Any, tuple[Any, ...]]:
    """Return (program of the training step of `jfit.fit`, its arguments)."""
    import jfit
    from jfit.loop.dispatch import ResidentDispatcher

    def found(programs: Any) -> None:
        raise _Found(programs)

    dispatcher: Any = ResidentDispatcher
    original = dispatcher.dispatches
    dispatcher.dispatches = lambda self, *where: original(self, *where[:5], found)
    rule = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
    options: dict[str, Any] = {"num_epoch": 1, "optimizer_params": rule, "progress": False, "batch_size": SHAPES[kind][0]}
    model: Any = None
    if kind == "transformer":
        values = Values()
        jax.eval_shape(lambda: transformer(values, jnp.zeros((1, TOKENS), jnp.int32)))
        params = {name: np.zeros(v.shape, np.float32) for name, v in values.items()}
        model, options = (lambda p, x: transformer(Values(p), x)), {**options, "params": params, "loss": "cross_entropy"}
    try:
        jfit.fit(model or _symbol(kind), arrays(kind), **options)
    except _Found as error:
        (program, arguments), *_ = error.args[0]
        run = jfit.last_run()
        assert run is not None
        return program, (run.state, *arguments)
    raise RuntimeError("jfit.fit asked for no program")


def main(kind: str, side: str) -> None:
    """Lower and compile a step; print {"lower": [wall, CPU seconds], "compile": ...}."""
    step, values = (by_jfit if side == "jfit" else by_hand)(kind)
    lowered: list[Any] = []
    measure({"lower": lambda: lowered.append(step.lower(*values)), "compile": lambda: lowered[0].compile()})
