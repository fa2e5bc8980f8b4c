"""Hand-written JAX: functions of a dict of parameters, and one jitted step for each batch.

Data, row order, step index and metric are on the device, the state is donated, the host reads one number per epoch;
convolutions are NHWC, dense layers work on matrices, the input product of an LSTM is one product for all steps. The options
select alternative implementations; the defaults are the fastest (see benchmarks/README.md).
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

from benchmarks.peers import Leg
from benchmarks.workloads import BLOCKS, CLASSES, MOMENTUM, STAGES, Workload

Arrays = dict[str, Any]
SLICES = {"lenet": 16, "resnet20": 4}  # of the batch, over which filter gradients are summed


class Values(dict[str, Any]):
    """Parameters by name; `of` adds a parameter of zeros if there is none of this name."""

    def of(self, name: str, *shape: int) -> Any:
        """The parameter of this name and shape."""
        if name not in self:
            self[name] = jnp.zeros(shape)
        return self[name]


# ------------------------------------------------------------------------------------------------ layers
def _convolve(x: Any, w: Any, stride: int, padding: str) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


@ft.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve_sliced(x: Any, w: Any, stride: int, padding: str, slices: int) -> Any:
    """Convolution whose filter gradient is summed over `slices` slices of the batch."""
    return _convolve(x, w, stride, padding)


def _sliced_forward(x: Any, w: Any, stride: int, padding: str, slices: int) -> tuple[Any, tuple[Any, Any]]:
    return _convolve(x, w, stride, padding), (x, w)


def _sliced_backward(stride: int, padding: str, slices: int, saved: tuple[Any, Any], g: Any) -> tuple[Any, Any]:
    x, w = saved
    (dx,) = jax.vjp(lambda v: _convolve(v, w, stride, padding), x)[1](g)
    # XLA:CPU computes a filter gradient several times faster over short batches than over one long one.
    parts = zip(jnp.split(x, slices), jnp.split(g, slices), strict=True)
    dw = sum(jax.vjp(lambda v, xs=xs: _convolve(xs, v, stride, padding), w)[1](gs)[0] for xs, gs in parts)
    return dx, jnp.asarray(dw)


_convolve_sliced.defvjp(_sliced_forward, _sliced_backward)


def _conv(
    p: Values, x: Any, name: str, filters: int, kernel: int, stride: int = 1, padding: str = "SAME", slices: int = 1
) -> Any:
    w = p.of(f"{name}_w", kernel, kernel, x.shape[-1], filters)
    return _convolve_sliced(x, w, stride, padding, slices) if slices > 1 else _convolve(x, w, stride, padding)


def _dense(p: Values, x: Any, name: str, width: int) -> Any:
    return x @ p.of(f"{name}_w", x.shape[-1], width) + p.of(f"{name}_b", width)


def _pool(x: Any, how: str = "reshape") -> Any:
    if how == "window":
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def _batch_norm(p: Values, aux: Arrays, new: Arrays, x: Any, name: str) -> Any:
    width, dtype, x = x.shape[-1], x.dtype, x.astype(jnp.float32)
    gamma, beta = p.of(f"{name}_gamma", width) + 1, p.of(f"{name}_beta", width)
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    for key, value in ((f"{name}_mean", mean), (f"{name}_var", variance)):
        new[key] = 0.9 * aux.get(key, jnp.zeros(width)) + 0.1 * value
    return ((x - mean) * lax.rsqrt(variance + 1e-5) * gamma + beta).astype(dtype)


def _layer_norm(p: Values, x: Any, name: str) -> Any:
    width, dtype, x = x.shape[-1], x.dtype, x.astype(jnp.float32)
    centered = x - x.mean(-1, keepdims=True)
    gamma, beta = p.of(f"{name}_gamma", width) + 1, p.of(f"{name}_beta", width)
    return (centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta).astype(dtype)


# ------------------------------------------------------------------------------------------------ networks
def _resnet(p: Values, aux: Arrays, x: Any, workload: Workload, slices: int) -> tuple[Any, Arrays]:
    new: Arrays = {}

    def unit(x: Any, name: str, filters: int, kernel: int, stride: int = 1) -> Any:
        return _batch_norm(p, aux, new, _conv(p, x, name, filters, kernel, stride, slices=slices if kernel == 3 else 1), name)

    if workload.kind == "resnet50":
        x = _pool(jax.nn.relu(unit(x, "stem", 64, 7, 2)))
        for stage, (filters, blocks) in enumerate(workload.bottlenecks):
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


def _lstm(p: Values, x: Any, name: str, width: int) -> Any:
    """A layer (tokens, rows, features) -> (tokens, rows, width)."""
    state = jnp.zeros((x.shape[1], width), x.dtype)
    gates = _dense(p, x.reshape(-1, x.shape[-1]), f"{name}_i", 4 * width).reshape(*x.shape[:2], 4 * width)
    weight = p.of(f"{name}_h_w", width, 4 * width)

    def cell(carry: Any, gates: Any) -> Any:
        hidden, memory = carry
        i, f, g, o = jnp.split(gates + hidden @ weight, 4, -1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    return lax.scan(cell, (state, state), gates)[1]


def lstm(p: Values, tokens: Any, workload: Workload) -> Any:
    """Logits (tokens * rows, words), by time: the labels have to be transposed."""
    x = p.of("embed", workload.words, workload.width)[tokens.T]
    for layer in range(workload.layers):
        x = _lstm(p, x, f"lstm{layer}", workload.width)
    return _dense(p, x.reshape(-1, workload.width), "fc", workload.words)


def _attention(q: Any, k: Any, v: Any, causal: bool, form: str) -> Any:
    """Attention of (rows, tokens, heads, width of a head); `form` is "einsum", or an implementation of JAX's function."""
    if form != "einsum":
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=form)  # pyright: ignore
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -1e9) if causal else scores
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def transformer(p: Values, tokens: Any, workload: Workload, attention: str = "einsum") -> Any:
    """Logits (rows * tokens, words) of a transformer that normalizes before its layers."""
    (rows, length), width, heads = tokens.shape, workload.width, workload.heads
    x = p.of("embed", workload.words, width)[tokens] + p.of("position", length, width)
    x = x.reshape(-1, width)  # (rows * tokens, width): products of matrices have faster gradients than those of 3-D arrays
    for layer in range(workload.layers):
        name = f"l{layer}"
        qkv = _dense(p, _layer_norm(p, x, f"{name}_n1"), f"{name}_qkv", 3 * width)
        q, k, v = (a.reshape(rows, length, heads, width // heads) for a in jnp.split(qkv, 3, -1))
        mixed = _attention(q, k, v, workload.causal, attention).reshape(x.shape)
        x = x + _dense(p, mixed, f"{name}_o", width)
        up = jax.nn.gelu(_dense(p, _layer_norm(p, x, f"{name}_n2"), f"{name}_up", 4 * width), approximate=False)
        x = x + _dense(p, up, f"{name}_down", width)
    x = _layer_norm(p, x, "last")
    return x @ p["embed"].T if workload.tied else _dense(p, x, "fc", workload.words)


def forward(
    p: Values, aux: Arrays, x: Any, workload: Workload, pool: str = "reshape", slices: int = 1, attention: str = "einsum"
) -> tuple[Any, Arrays]:
    """(logits, new moving statistics)."""
    kind = workload.kind
    if workload.text:
        return lstm(p, x, workload) if kind == "lstm" else transformer(p, x, workload, attention), {}
    if kind.startswith("resnet"):
        return _resnet(p, aux, x, workload, slices)
    widths = [128, 64]
    if kind == "lenet":
        for name, filters in (("conv1", 20), ("conv2", 50)):
            bias = p.of(f"{name}_b", filters)
            x = _pool(jax.nn.relu(_conv(p, x, name, filters, 5, padding="VALID", slices=slices) + bias), pool)
        x, widths = x.reshape(len(x), -1), [500]
    for i, width in enumerate(widths):
        x = jax.nn.relu(_dense(p, x, f"fc{i}", width))
    return _dense(p, x, "fc", CLASSES), {}


# ------------------------------------------------------------------------------------------------ training
def _sgd(rate: float, params: Arrays, state: Any, grads: Arrays) -> tuple[Arrays, Any]:
    state = jax.tree.map(lambda m, g: MOMENTUM * m - rate * g, state, grads)
    return jax.tree.map(jnp.add, params, state), state


def _adam(rate: float, params: Arrays, state: Any, grads: Arrays) -> tuple[Arrays, Any]:
    mean, square, count = state
    count = count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, grads)
    scale, correction = rate / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
    params = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) / correction + 1e-8), params, mean, square)
    return params, (mean, square, count)


def initial(workload: Workload, x: np.ndarray) -> tuple[Arrays, Arrays]:
    """He-normal weights, small embeddings, zero biases; and zeros for the moving statistics."""
    values, small = Values(), 0.02 if workload.tied else 0.1
    row = jax.ShapeDtypeStruct((workload.batch, *x.shape[1:]), x.dtype)
    _, aux = jax.eval_shape(lambda x: forward(values, {}, x, workload), row)
    rng, params = np.random.default_rng(0), {}
    for name, value in values.items():
        he = (2 / math.prod(value.shape[:-1])) ** 0.5 if name.endswith("_w") else 0
        scale = small if name in ("embed", "position") else he
        params[name] = rng.standard_normal(value.shape, dtype=np.float32) * np.float32(scale)
    return jax.device_put(params), jax.device_put({name: np.zeros(v.shape, np.float32) for name, v in aux.items()})


def training(
    workload: Workload,
    *,
    feed: str = "gather",
    pool: str = "reshape",
    slices: int | None = None,
    attention: str = "einsum",
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]:
    """Make the training step.

    Args:
        workload: what to train.
        feed: "gather" (batches indexed by the shuffled order) or "permute" (the step takes slices of permuted data).
        pool: max pooling by "reshape" and max, or by reduce_"window".
        slices: slices of the batch over which filter gradients are summed; None: 16 for LeNet, 4 for ResNet-20.
        attention: "einsum", or the `implementation` of `jax.nn.dot_product_attention`.

    Returns:
        (step(state, (x, y, order)) -> state, the state at the start, (x, y)); the state is (params, state of the optimizer,
        moving statistics, index of the batch, sum of the metric).
    """
    x, y = workload.arrays("NHWC")
    params, aux = initial(workload, x)
    slices = SLICES.get(workload.kind, 1) if slices is None else slices
    size, update = workload.batch, ft.partial(_adam if workload.text else _sgd, workload.learning_rate)

    def rows(index: Any, data: tuple[Any, ...]) -> tuple[Any, Any]:
        x, y, order = data
        if feed == "permute":
            return lax.dynamic_slice_in_dim(x, index * size, size), lax.dynamic_slice_in_dim(y, index * size, size)
        taken = lax.dynamic_slice_in_dim(order, index * size, size)
        # The indices of a permutation are in bounds; without the default clamping W1 is 1.6 % faster.
        return x.at[taken].get(mode="promise_in_bounds"), y.at[taken].get(mode="promise_in_bounds")

    def step(state: tuple[Any, ...], data: tuple[Any, ...]) -> tuple[Any, ...]:
        params, rule, aux, index, total = state
        batch, label = rows(index, data)
        label = (label.T if workload.kind == "lstm" else label).reshape(-1)

        def loss(p: Arrays) -> tuple[Any, Any]:
            low = jax.tree.map(lambda value: value.astype(workload.dtype), p)
            images = batch if workload.text else batch.astype(workload.dtype)
            logits, new = forward(Values(low), aux, images, workload, pool, slices, attention)
            logits = logits.astype(jnp.float32)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], 1).mean(), (logits, new)

        (value, (logits, aux)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        params, rule = update(params, rule, grads)
        metric = value if workload.text else (logits.argmax(-1) == label).mean()
        return params, rule, aux, index + 1, total + metric

    zeros = [jax.device_put({n: np.zeros(v.shape, np.float32) for n, v in params.items()}) for _ in range(1 + workload.text)]
    rule = (*zeros, np.int32(0)) if workload.text else zeros[0]
    return step, (params, rule, aux, np.int32(0), np.float32(0)), (x, y)


def begin(workload: Workload, *, steps: int = 1, feed: str = "gather", read: bool = False, **form: Any) -> Leg:
    """Prepare the leg; `steps` are training steps per dispatch, `feed` and `form` the options of `training`.

    With `read`, the host reads the metric after every dispatch.
    """
    step, state, data = training(workload, feed=feed, **form)
    x, y = jax.device_put(data)

    def several(state: Any, data: Any) -> Any:
        return lax.fori_loop(0, jnp.minimum(steps, workload.steps - state[3]), lambda _, s: step(s, data), state)

    program = jax.jit(step if steps == 1 else several, donate_argnums=0)
    permute = jax.jit(lambda x, y, order: (x[order], y[order]))
    rng = np.random.default_rng(0)

    def train() -> float:
        nonlocal state
        order = rng.permutation(workload.rows).astype(np.int32)
        epoch = (*permute(x, y, order), order[:1]) if feed == "permute" else (x, y, jax.device_put(order))
        state = (*state[:3], np.int32(0), np.float32(0))
        for _ in range(-(-workload.steps // steps)):
            state = program(state, epoch)
            if read:
                float(state[4])
        return float(state[4]) / workload.steps  # sync: the only read of the epoch

    return Leg(train, lambda: sum(value.size for value in jax.tree.leaves(state[0])))
