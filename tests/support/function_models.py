"""Small trainings of JAX functions, each with the same training written by hand in plain JAX, optax and scikit-learn.

`CASES` has one builder of a `Case` for each.  `by_fit` trains it with jfit, `by_hand` without: the two share the user's
network, its initial parameters and the data, and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import sklearn.metrics as sk
from flax import nnx
from jax import lax
from scipy.special import expit, log_softmax, softmax

import jfit

ROWS, BATCH, EPOCHS, FEATURES, CLASSES = 20, 8, 2, 4, 3  # batches of 8, 8 and 4 rows
TIMES = VOCABULARY = 5  # the axes of times and of classes have the same length
HIDDEN = ("epoch", "batch", "step", "time", "compile_time", "data_time", "samples_per_second", "lr")  # of a history, no results


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        apply: the network, `apply(params, *inputs, key=, train=, aux=)` with the keywords it takes, as for `jfit.fit`.
        params, aux: initial values, pytrees.
        inputs: arrays by name, in the order of the arguments of `apply`.
        label: labels, a pytree of arrays whose axis 0 is the rows.
        labelled: whether `label` is part of the data; else it is only for `sums` and `metrics`.
        only_loss: whether `label` is a dict of arrays of the data, by name, that only the loss takes.
        loss: the argument of `jfit.fit`.
        sums: by hand `(output, label, row weights) -> (sum of losses, sum of their weights)`; it gets the keywords `params`,
            `aux` and `step` that it takes.  Default: from `loss`, which is then a function of the user or of optax.
        optimizer: the optax optimizer of the training by hand, and the argument of `jfit.fit` if `fit` has none.
        average: by hand, the parameters that are evaluated and returned, from the state of `optimizer`.  Default: the trained
            ones.
        fit: further arguments of `jfit.fit`.
        metrics: name in the history -> its value by scikit-learn, a function of outputs and labels.
        weight: row weights (rows,), or None.
        coupled: whether the rows of a batch affect each other; set by `case`.
        evaluated: whether all rows are evaluated after each epoch.
    """

    apply: Callable[..., Any]
    params: Any
    inputs: Mapping[str, np.ndarray]
    label: np.ndarray
    loss: Any
    sums: Callable[..., Any] | None = None
    optimizer: Any = field(default_factory=lambda: optax.sgd(0.1, momentum=0.9))
    average: Callable[[Any], Any] | None = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    aux: Any = None
    weight: np.ndarray | None = None
    coupled: bool = False
    evaluated: bool = True
    labelled: bool = True
    only_loss: bool = False

    @property
    def rows(self) -> int:
        return len(jax.tree.leaves(self.label)[0])

    @property
    def arrays(self) -> dict[str, Any]:
        """The data as a dict by name."""
        if self.only_loss:
            return {**self.inputs, **self.label}
        return {**self.inputs, **({"label": self.label} if self.labelled else {})}

    @property
    def data(self) -> Any:
        """The data as the users of `fit` pass it: a tuple if there is one input with labels, else a dict."""
        if not self.labelled or self.only_loss or len(self.inputs) > 1:
            return self.arrays
        arrays = (*self.inputs.values(), self.label)
        return arrays if self.weight is None else (*arrays, self.weight)


class Result(NamedTuple):
    """Numbers of a training: values per epoch by column of the history, parameters, auxiliary state."""

    epochs: list[dict[str, float]]
    params: Any
    aux: Any


class Entry(NamedTuple):
    """A builder of a `Case`, and what tests choose cases by without building them."""

    build: Callable[[], Case]
    coupled: bool
    random: bool


CASES: dict[str, Entry] = {}


def case(name: str, *, coupled: bool = False, random: bool = False) -> Callable[[Callable[[np.random.Generator], Case]], Any]:
    """Register a builder of a `Case`; it is built once, from random numbers that depend on the name only.

    Args:
        name: name of the case.
        coupled: whether the rows of a batch affect each other, so that batches are not padded or divided.
        random: whether the network draws random numbers in training.
    """

    def register(build: Callable[[np.random.Generator], Case]) -> Callable[[np.random.Generator], Case]:
        def once() -> Case:
            return replace(build(np.random.default_rng(zlib.crc32(name.encode()))), coupled=coupled)

        CASES[name] = Entry(functools.cache(once), coupled, random)
        return build

    return register


# ------------------------------------------------------------------------------------------------ with and without jfit
def by_fit(one: Case, **options: Any) -> jfit.Run:
    """Train with `jfit.fit`, and evaluate on the same rows after each epoch."""
    settings = {"optimizer": one.optimizer, "batch_size": BATCH, "num_epoch": EPOCHS, "shuffle": False, "progress": False}
    settings |= {"loss": one.loss, "params": one.params, "aux": one.aux, "eval_data": one.data if one.evaluated else None}
    settings |= {**one.fit, **options}
    return jfit.fit(one.apply, settings.pop("train_data", one.data), **settings)


def result_of(run: jfit.Run) -> Result:
    return Result([{k: v for k, v in row.items() if k not in HIDDEN} for row in run.history.epochs], run.params, run.aux)


def key_of_step(seed: int, step: Any, number: int = 0) -> Any:
    """The key in a step, as documented: the second half of the seed's key, folded with the step and the micro-batch."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.split(jax.random.key(seed))[1], step), number)


def by_hand(
    one: Case,
    batch_size: int = BATCH,
    epochs: int = EPOCHS,
    order: Callable[[int], Any] | None = None,
    devices: int = 1,
    micro_batches: int = 1,
    seed: int = 0,
) -> Result:
    """Train without jfit: batches of their true size, the gradient of the mean loss of each, one update of optax.

    Args:
        one: the training.
        batch_size: number of rows of a batch.
        epochs: number of epochs.
        order: epoch -> indices of the rows in the order of this epoch.  Default: as they are.
        devices: number of parts of a batch that are computed separately: sums of losses are added, aux is averaged.
        micro_batches: number of parts of a batch, each with its own key and the aux that the part before returns.
        seed: seed of the keys of the steps.
    """
    weight = np.ones(one.rows, "float32") if one.weight is None else one.weight
    everything = (tuple(one.inputs.values()), one.label, weight)
    evaluate = jax.jit(lambda p, a, step, *rows: totals_by_hand(one, p, jax.tree.map(jnp.asarray, a), *rows, None, step))

    @jax.jit
    def update(params, aux, state, step, *shards):
        def mean(params):
            sums, last = [], aux
            for number, shard in enumerate(shards):
                key = key_of_step(seed, step, 0 if devices > 1 else number)
                key = key if devices == 1 else jax.random.fold_in(key, number)
                # copies of aux, because Flax does not change variables of another trace
                sums.append(totals_by_hand(one, params, jax.tree.map(jnp.asarray, last), *shard, key, step))
                last = aux if devices > 1 else sums[-1][-1]
            totals, counts, outputs, new = zip(*sums, strict=True)
            new = jax.tree.map(mean_of_devices, *new) if devices > 1 else last
            return sum(totals) / sum(counts), (sum(totals), sum(counts), outputs, new)

        gradient, (total, count, outputs, new) = jax.grad(mean, has_aux=True)(params)
        changes, new_state = one.optimizer.update(gradient, state, params)
        old, new = (params, aux, state), (optax.apply_updates(params, changes), new, new_state)
        return *jax.tree.map(lambda x, y: jnp.where(count > 0, x, y), new, old), (total, count, joined(jnp, outputs))

    params, aux = jax.tree.map(jnp.asarray, (one.params, one.aux))
    state, history = one.optimizer.init(params), []
    for epoch in range(epochs):
        rows = np.arange(one.rows) if order is None else np.asarray(order(epoch))
        parts = [rows[low : low + batch_size] for low in range(0, one.rows, batch_size)]
        results = []
        for number, part in enumerate(parts):
            shards = [take(everything, shard) for shard in shards_of(one, part, batch_size, devices * micro_batches)]
            params, aux, state, sums = update(params, aux, state, np.int32(epoch * len(parts) + number), *shards)
            results.append((*sums, *take(everything, part)[1:]))
        values = values_by_hand(one, results)
        if one.evaluated:  # in the batches of training without shuffling, which matters if rows affect each other
            shards = [shard for part in parts for shard in shards_of(one, part, batch_size, devices)]
            parts = [take(everything, part) for part in (shards if one.coupled else [slice(None)])]
            used = params if one.average is None else one.average(state)
            done = np.int32(len(results) * (epoch + 1))
            scored = values_by_hand(one, [(*evaluate(used, aux, done, *part)[:3], *part[1:]) for part in parts])
            values |= {f"val_{k}": v for k, v in scored.items()}
        history.append(values)
    return Result(history, params if one.average is None else one.average(state), aux)


def joined(module: Any, parts: Any) -> Any:
    """Concatenate pytrees of arrays along the rows, with the functions of numpy or jax.numpy."""
    return jax.tree.map(lambda *x: module.concatenate(x), *parts)


def take(arrays: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], arrays)


def shards_of(one: Case, rows: np.ndarray, batch_size: int, parts: int) -> list[np.ndarray]:
    """The rows of each part.  An incomplete batch is padded to the whole size, unless rows affect each other."""
    size = -(-(len(rows) if one.coupled else batch_size) // parts)
    return [rows[low : low + size] for low in range(0, len(rows), size)]


def mean_of_devices(*values: Any) -> Any:
    return sum(values) / len(values) if jnp.issubdtype(values[0].dtype, jnp.floating) else values[0]


def totals_by_hand(one: Case, params: Any, aux: Any, inputs: Any, label: Any, weight: Any, key: Any, step: Any) -> Any:
    """(sum of losses, sum of their weights, outputs, new aux) of a batch after `step` updates; in evaluation, `key` is None."""
    keywords = inspect.signature(one.apply).parameters
    extra = {k: v for k, v in {"key": key, "train": key is not None, "aux": aux}.items() if k in keywords}
    output = one.apply(params, *inputs, **extra)
    output, aux = output if "aux" in extra else (output, aux)
    if one.sums is not None:
        given = {"params": params, "aux": aux, "step": step}.items()
        extra = {k: v for k, v in given if k in inspect.signature(one.sums).parameters}
        return *one.sums(output, label, weight, **extra), output, aux
    losses = one.loss(output, label)
    losses = losses.reshape(len(losses), -1).mean(1)
    return (losses * weight).sum(), weight.sum(), output, aux


def values_by_hand(one: Case, results: list[Any]) -> dict[str, float]:
    """Loss and metrics over batches: [(sum of losses, sum of weights, outputs, labels, row weights)]."""
    totals, counts, outputs, labels, weights = zip(*results, strict=True)
    used = np.concatenate(weights) > 0
    output, label = (take(joined(np, jax.device_get(parts)), used) for parts in (outputs, labels))
    values = {"loss": float(sum(np.float64(t) for t in totals) / sum(np.float64(c) for c in counts))}
    return values | {name: float(metric(output, label)) for name, metric in one.metrics.items()}


def differences(a: Result, b: Result) -> dict[str, float]:
    """Largest relative differences: of losses, of metrics, and of parameters and aux relative to the largest of each leaf."""
    assert jax.tree.structure((a.params, a.aux)) == jax.tree.structure((b.params, b.aux))
    assert [sorted(row) for row in a.epochs] == [sorted(row) for row in b.epochs]
    pairs = [(k, x[k], y[k]) for x, y in zip(a.epochs, b.epochs, strict=True) for k in x]
    relative = [(k, abs(x - y) / max(abs(y), 1e-30) if x != y else 0.0) for k, x, y in pairs]
    leaves = [
        (plain(x), plain(y))
        for tree, other in ((a.params, b.params), (a.aux, b.aux))
        for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    ]
    return {
        "loss": max((d for k, d in relative if k.endswith("loss")), default=0.0),
        "metrics": max((d for k, d in relative if not k.endswith("loss")), default=0.0),
        "parameters": max(float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in leaves),
    }


def plain(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).astype(np.float64)


# ------------------------------------------------------------------------------------------------ data and networks
def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype("float32")


def layers(rng: np.random.Generator, *sizes: int) -> list[dict[str, np.ndarray]]:
    return [{"w": floats(rng, n, m) / np.float32(n**0.5), "b": floats(rng, 1, m) / 4} for n, m in pairwise(sizes)]


def mlp(params: Any, x: Any) -> Any:
    for i, layer in enumerate(params):
        x = (jnp.tanh(x) if i else x) @ layer["w"] + layer["b"]
    return x


def blobs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, CLASSES, ROWS).astype("int32")
    return floats(rng, CLASSES, FEATURES)[y] + floats(rng, ROWS, FEATURES) / 2, y


def one_hot(y: np.ndarray, classes: int = CLASSES) -> np.ndarray:
    return np.eye(classes, dtype="float32")[y]


SOFTMAX, INTEGER = optax.softmax_cross_entropy, optax.softmax_cross_entropy_with_integer_labels
SIGMOID = optax.sigmoid_binary_cross_entropy


def argmax_accuracy(output, label):
    return sk.accuracy_score(label.reshape(-1), output.argmax(-1).reshape(-1))


def binary_accuracy(threshold):
    return lambda output, label: sk.accuracy_score(label.reshape(-1), output.reshape(-1) > threshold)


def squared_error(output, label):
    return sk.mean_squared_error(label.reshape(len(label), -1), output.reshape(len(label), -1))


ACCURACY = {"accuracy": argmax_accuracy}
MSE = {"mse": squared_error}
ONE_HOT_ACCURACY = {"accuracy": lambda o, y: sk.accuracy_score(y.argmax(1), o.argmax(1))}


def perceptron(rng, x, y, outputs, **options):
    """A network with a hidden layer."""
    return Case(**{"apply": mlp, "params": layers(rng, FEATURES, 6, outputs), "inputs": {"x": x}, "label": y, **options})


def classifier(rng, **options):
    x, y = blobs(rng)
    return perceptron(
        rng, x, options.pop("label", lambda y: y)(y), CLASSES, **{"loss": INTEGER, "metrics": ACCURACY, **options}
    )


def trained_only(rng, **options):
    return classifier(rng, metrics={}, evaluated=False, **{**options, "fit": {"eval_metric": None, **options.get("fit", {})}})


# ------------------------------------------------------------------------------------------------ regression
@case("regression (n,), loss by name")
def _(rng):
    x, options = floats(rng, ROWS, FEATURES), {"learning_rate": 0.1, "momentum": 0.9}
    fit = {"optimizer": "sgd", "optimizer_params": options}
    squares = lambda o, y, w: ((o - y) ** 2 @ w, w.sum())  # noqa: E731
    one = perceptron(rng, x, np.sin(x.sum(1)), 1, loss="mse", sums=squares, fit=fit, metrics=MSE)
    return replace(one, apply=lambda p, x: mlp(p, x)[:, 0])


@case("regression, several outputs")
def _(rng):
    x = floats(rng, ROWS, FEATURES)
    metrics = {
        "mse": squared_error,
        "mae": lambda o, y: sk.mean_absolute_error(y, o),
        "rmse": lambda o, y: sk.mean_squared_error(y, o) ** 0.5,
    }
    y = np.stack([np.sin(x.sum(1)), x[:, 0] * x[:, 1]], 1)
    fit = {"eval_metric": jfit.metrics.get(list(metrics), average="micro")}
    return perceptron(rng, x, y, 2, loss=optax.huber_loss, optimizer=optax.rmsprop(0.01), fit=fit, metrics=metrics)


# ------------------------------------------------------------------------------------------------ classification
class Dense(NamedTuple):
    w: Any
    b: Any


@case("integer labels, NamedTuple parameters")
def _(rng):
    probabilities = lambda o: softmax(o.astype("float64"), -1)  # noqa: E731
    metrics = {
        "accuracy": argmax_accuracy,
        "cross-entropy": lambda o, y: sk.log_loss(y, probabilities(o), labels=range(CLASSES)),
        "recall": lambda o, y: sk.recall_score(y, o.argmax(1), average="macro", labels=range(CLASSES), zero_division=0),
        "pcc": lambda o, y: sk.matthews_corrcoef(y, o.argmax(1)),
    }
    named = [*jfit.metrics.get(["acc", "ce", "pcc"]), *jfit.metrics.get("recall", average="macro")]
    one = classifier(rng, fit={"eval_metric": named}, metrics=metrics)
    apply = lambda p, x: jnp.tanh(x @ p[0].w + p[0].b) @ p[1].w + p[1].b  # noqa: E731
    return replace(one, apply=apply, params=tuple(Dense(**layer) for layer in one.params))


@case("one-hot labels")
def _(rng):
    return classifier(rng, label=one_hot, loss=SOFTMAX, metrics=ONE_HOT_ACCURACY)


def binary(rng, activation=lambda o: o, **options):
    x = floats(rng, ROWS, FEATURES)
    y = (x[:, 0] + floats(rng, ROWS) > 0).astype("float32")
    return replace(perceptron(rng, x, y, 1, **options), apply=lambda p, x: activation(mlp(p, x)[:, 0]))


@case("binary probabilities")
def _(rng):
    loss = lambda o, y: -(y * jnp.log(o) + (1 - y) * jnp.log(1 - o))  # noqa: E731
    return binary(rng, jax.nn.sigmoid, loss=loss, metrics={"accuracy": binary_accuracy(0.5)})


@case("binary logits")
def _(rng):
    metrics = {
        "accuracy": binary_accuracy(0),
        "cross-entropy": lambda o, y: sk.log_loss(y, expit(o.astype("float64"))),
        "roc_auc": lambda o, y: sk.roc_auc_score(y, o),
    }
    named = [*jfit.metrics.get(["acc", "ce"]), jfit.metrics.roc_auc(bins=1 << 16)]
    return binary(rng, loss=SIGMOID, fit={"eval_metric": named}, metrics=metrics)


@case("row weights")
def _(rng):
    one = classifier(rng)
    return replace(one, weight=rng.choice([0.0, 0.5, 1.0, 2.0], ROWS).astype("float32"))


# ------------------------------------------------------------------------------------------------ sequences
def language(rng):
    tokens = rng.integers(0, VOCABULARY, (ROWS, TIMES + 1)).astype("int32")
    params = {"embed": floats(rng, VOCABULARY, 6), "place": floats(rng, 1, TIMES, 6) / 2, "body": layers(rng, 6, 6, VOCABULARY)}
    return tokens[:, :-1], tokens[:, 1:].copy(), params


def causal(p, x):
    """Attention to earlier tokens, and a logit for each token of the vocabulary."""
    h = p["embed"][x] + p["place"]
    scores = jnp.where(jnp.tril(jnp.ones((1, TIMES, TIMES), bool)), jnp.einsum("btc,bsc->bts", h, h) / 2, -1e9)
    h = h + jnp.einsum("bts,bsc->btc", jax.nn.softmax(scores), h)
    for i, layer in enumerate(p["body"]):
        h = (jax.nn.gelu(h) if i else h) @ layer["w"] + layer["b"][None]
    return h


def token_accuracy(ignored):
    return lambda o, y: sk.accuracy_score(y[y != ignored], o.argmax(-1)[y != ignored])


def token_perplexity(ignored):
    def value(output, label):
        log_p = np.take_along_axis(log_softmax(output.astype("float64"), -1), np.maximum(label, 0)[..., None], -1)[..., 0]
        return np.exp(-log_p[label != ignored].mean())

    return value


def sums_of_tokens(ignored):
    """The mean is over the tokens that are not ignored."""

    def sums(output, label, weight):
        used = (label != ignored) * weight[:, None]
        return (INTEGER(output, jnp.maximum(label, 0)) * used).sum(), used.sum()

    return sums


@case("language model, T = V, labels -100 ignored")
def _(rng):
    x, y, params = language(rng)
    y[rng.random(y.shape) < 0.4] = -100
    return Case(
        apply=causal,
        params=params,
        inputs={"x": x},
        label=y,
        loss=jfit.losses.get("cross_entropy", ignore_index=-100),
        sums=sums_of_tokens(-100),
        fit={"eval_metric": ["acc", "perplexity"]},
        metrics={"accuracy": token_accuracy(-100), "perplexity": token_perplexity(-100)},
    )


@case("language model, own loss, labels -1 ignored")
def _(rng):
    x, y, params = language(rng)
    y[rng.random(y.shape) < 0.4] = -1

    def masked(output, label):  # each row is the mean over its tokens that have a label
        used = label != -1
        return (INTEGER(output, jnp.where(used, label, 0)) * used).sum(-1) / jnp.maximum(used.sum(-1), 1)

    return Case(
        apply=causal,
        params=params,
        inputs={"x": x},
        label=y,
        loss=masked,
        optimizer=optax.adamw(0.01),
        fit={"eval_metric": ["auto", "perplexity"]},
        metrics={"accuracy": token_accuracy(-1), "perplexity": token_perplexity(-1)},
    )


def tagging(rng):
    x = rng.integers(0, 7, (ROWS, TIMES)).astype("int32")
    y = (x + np.roll(x, 1, 1)) % CLASSES
    return x, y.astype("int32")


@case("sequence tags, convolution")
def _(rng):
    x, y = tagging(rng)

    def apply(p, x):
        h = lax.conv_general_dilated(p["embed"][x], p["kernel"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        return jax.nn.relu(h) @ p["w"]

    params = {"embed": floats(rng, 7, 4), "kernel": floats(rng, 3, 4, 6) / 3, "w": floats(rng, 6, CLASSES)}
    return Case(
        apply=apply, params=params, inputs={"x": x}, label=y, loss="cross_entropy", sums=sums_of_tokens(-1), metrics=ACCURACY
    )


# ------------------------------------------------------------------------------------------------ representation learning
def autoencoder(rng, weight=None):
    """Several outputs, a loss without labels, and values that it logs; `weight(step)` of the divergence."""
    x, latent = (floats(rng, ROWS, FEATURES) > 0).astype("float32"), 2

    def apply(p, x, *, key, train):
        mean, log_var = jnp.split(mlp(p["encoder"], x), 2, axis=1)
        noise = jax.random.normal(key, mean.shape) if train else jnp.zeros_like(mean)
        return {"logits": mlp(p["decoder"], mean + jnp.exp(log_var / 2) * noise), "posterior": (mean, log_var)}

    def divergence(output, module=jnp):
        mean, log_var = output["posterior"]
        return (module.exp(log_var) + mean**2 - 1 - log_var).sum(1) / 2

    def bound(outputs, batch):
        error = SIGMOID(outputs["logits"], batch["x"]).sum(1)
        return error + divergence(outputs), {"error": error, "kl": divergence(outputs)}

    def annealed(outputs, batch, step):
        losses, logged = bound(outputs, batch)
        return losses + (weight(step) - 1) * logged["kl"], logged

    def sums(output, x, w, step):
        losses = bound(output, {"x": x}) if weight is None else annealed(output, {"x": x}, step)
        return losses[0] @ w, w.sum()

    def error(output, x):
        return FEATURES * sk.log_loss(x.reshape(-1), expit(output["logits"].astype("float64")).reshape(-1))

    return Case(
        apply=apply,
        params={"encoder": layers(rng, FEATURES, 6, 2 * latent), "decoder": layers(rng, latent, 6, FEATURES)},
        inputs={"x": x},
        label=x,
        labelled=False,
        loss=bound if weight is None else annealed,
        sums=sums,
        optimizer=optax.adam(0.02),
        metrics={"error": error, "kl": lambda output, _: divergence(output, np).mean()},
    )


case("variational autoencoder", random=True)(autoencoder)


@case("several inputs and outputs by name")
def _(rng):
    x, y = blobs(rng)
    inputs = {"values": x, "use": (rng.random(ROWS) < 0.8).astype("float32")}
    label = {"class": y, "sum": x.sum(1, keepdims=True)}

    def apply(p, x):
        h = jnp.tanh(mlp(p["body"], x["values"])) * x["use"][:, None]
        return {"class": h @ p["class"], "sum": h @ p["sum"]}

    def sums(output, label, weight):
        losses = INTEGER(output["class"], label["class"]) + 0.5 * ((output["sum"] - label["sum"]) ** 2)[:, 0]
        return losses @ weight, weight.sum()

    metrics = {
        "class_loss": lambda o, y: sk.log_loss(y["class"], softmax(o["class"].astype("float64"), 1), labels=range(CLASSES)),
        "sum_loss": lambda o, y: squared_error(o["sum"], y["sum"]),
        "class_accuracy": lambda o, y: argmax_accuracy(o["class"], y["class"]),
        "sum_mae": lambda o, y: sk.mean_absolute_error(y["sum"], o["sum"]),
    }
    return Case(
        apply=apply,
        params={"body": layers(rng, FEATURES, 6), "class": floats(rng, 6, CLASSES), "sum": floats(rng, 6, 1)},
        inputs={"x": inputs},
        label=label,
        loss={"class": "cross_entropy", "sum": "mse"},
        sums=sums,
        fit={"loss_weights": {"sum": 0.5}, "eval_metric": {"class": "acc", "sum": jfit.metrics.get("mae", average="micro")[0]}},
        metrics=metrics,
    )


def normalized(x):
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)


@case("contrastive loss, one scalar per batch", coupled=True)
def _(rng):
    inputs = {"one": floats(rng, ROWS, FEATURES), "other": floats(rng, ROWS, FEATURES)}

    def scalar(outputs):
        scores = outputs[0] @ outputs[1].T / 0.5
        return -(jnp.diagonal(jax.nn.log_softmax(scores)) + jnp.diagonal(jax.nn.log_softmax(scores.T))).mean()

    return Case(
        apply=lambda p, one, other: (normalized(mlp(p, one)), normalized(mlp(p, other))),
        params=layers(rng, FEATURES, 6, FEATURES),
        inputs=inputs,
        label=np.zeros(ROWS, "float32"),
        labelled=False,
        loss=scalar,
        sums=lambda output, _, w: (scalar(output) * w.sum(), w.sum()),
        fit={"loss_per_batch": True},
    )


@case("contrastive loss", coupled=True)
def _(rng):
    x = floats(rng, ROWS, FEATURES)

    def contrastive(a, b):
        a, b = (v / jnp.linalg.norm(v, axis=1, keepdims=True) for v in (a, b))
        return -jnp.diagonal(jax.nn.log_softmax(a @ b.T / 0.5))

    return Case(
        apply=mlp,
        params=layers(rng, FEATURES, 6, FEATURES),
        inputs={"x": x},
        label=x + floats(rng, ROWS, FEATURES) / 8,
        loss=contrastive,
    )


# ------------------------------------------------------------------------------------------------ own training objectives
@case("DQN, target network in aux")
def _(rng):
    """The target of each row contains the target network, which follows the parameters after each step."""

    def apply(p, state, action, following, done, *, aux, train):
        q = jnp.take_along_axis(mlp(p, state), action[:, None], 1)
        ahead = mlp(aux, following).max(1, keepdims=True) * (1 - done[:, None].astype("float32"))
        if train:
            aux = jax.tree.map(lambda slow, fast: 0.8 * slow + 0.2 * lax.stop_gradient(fast), aux, p)
        return jnp.concatenate([q, ahead], 1), aux

    def temporal_difference(output, reward):
        return optax.huber_loss(output[:, 0], reward + 0.9 * lax.stop_gradient(output[:, 1]))

    inputs = {
        "state": floats(rng, ROWS, FEATURES),
        "action": rng.integers(0, 2, ROWS).astype("int32"),
        "following": floats(rng, ROWS, FEATURES),
        "done": rng.random(ROWS) < 0.2,
    }
    return Case(
        apply=apply,
        params=layers(rng, FEATURES, 6, 2),
        aux=layers(rng, FEATURES, 6, 2),
        inputs=inputs,
        label=floats(rng, ROWS),
        loss=temporal_difference,
        optimizer=optax.adam(0.02),
        fit={"eval_metric": None},
    )


# ------------------------------------------------------------------------------------------------ auxiliary state and keys
@case("batch normalization", coupled=True)
def _(rng):
    x, y = blobs(rng)

    def apply(p, x, *, aux, train):
        h = x @ p["w"]
        mean, var = (h.mean(0, keepdims=True), h.var(0, keepdims=True)) if train else (aux["mean"], aux["var"])
        new = {k: 0.9 * aux[k] + 0.1 * v for k, v in (("mean", mean), ("var", var))} if train else aux
        return jax.nn.relu((h - mean) / jnp.sqrt(var + 1e-3) * p["scale"]) @ p["out"], new

    params = {"w": floats(rng, FEATURES, 6), "scale": np.ones((1, 6), "float32"), "out": floats(rng, 6, CLASSES)}
    aux = {"mean": np.zeros((1, 6), "float32"), "var": np.ones((1, 6), "float32")}
    return Case(apply=apply, params=params, aux=aux, inputs={"x": x}, label=y, loss=INTEGER, metrics=ACCURACY)


@case("dropout, one key per step", random=True)
def _(rng):
    def apply(p, x, *, key, train):
        h = jnp.tanh(x @ p[0]["w"] + p[0]["b"])
        if train:
            h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h * 2, 0)
        return h @ p[1]["w"] + p[1]["b"]

    return classifier(rng, apply=apply)


# ------------------------------------------------------------------------------------------------ trees and optimizers
@case("integer and float inputs")
def _(rng):
    inputs = {
        "user": rng.integers(0, 6, ROWS).astype("int64"),
        "item": rng.integers(0, 9, (ROWS, 2)).astype("uint8"),
        "price": rng.normal(size=(ROWS, 1)),
        "new": rng.random(ROWS) < 0.3,
    }

    def apply(p, user, item, price, new):
        h = p["user"][user] + p["item"][item].sum(1) + price.astype("float32") * p["price"]
        return jnp.tanh(jnp.where(new[:, None], -h, h)) @ p["out"]

    params = {"user": floats(rng, 6, 4), "item": floats(rng, 9, 4), "price": floats(rng, 1, 4), "out": floats(rng, 4, CLASSES)}
    y = rng.integers(0, CLASSES, ROWS)
    return Case(apply=apply, params=params, inputs=inputs, label=y, loss=INTEGER, optimizer=optax.adam(0.02), metrics=ACCURACY)


@case("clipping of gradients")
def _(rng):
    by_hand = optax.chain(optax.clip_by_global_norm(0.3), optax.adam(0.02))
    return trained_only(rng, optimizer=by_hand, fit={"optimizer": optax.adam(0.02), "clip_norm": 0.3})


@case("schedule")
def _(rng):
    schedule = optax.warmup_cosine_decay_schedule(0.02, 0.3, 2, 6)
    fit = {"optimizer": "sgd", "optimizer_params": {"momentum": 0.9}, "schedule": schedule}
    return trained_only(rng, optimizer=optax.sgd(schedule, momentum=0.9), fit=fit)


# ------------------------------------------------------------------------------------------------ modules as functions
class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(FEATURES, 6, use_bias=False, rngs=rngs)  # the gradient of a bias would be pure rounding
        self.norm, self.last = nnx.BatchNorm(6, rngs=rngs), nnx.Linear(6, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


@case("Flax nnx, batch normalization", coupled=True)
def _(rng):
    graph, params, rest = nnx.split(NnxNet(nnx.Rngs(0)), nnx.Param, ...)

    def apply(params, x, *, aux, train):
        net = nnx.merge(graph, params, aux)
        net.train() if train else net.eval()
        return net(x), nnx.split(net, nnx.Param, ...)[2]

    return classifier(rng, apply=apply, params=params, aux=rest)


@case("Equinox, dropout with one key per row", random=True)
def _(rng):
    x, y = blobs(rng)
    first, second = jax.random.split(jax.random.key(2))
    net = [eqx.nn.Linear(FEATURES, 6, key=first), eqx.nn.Dropout(0.5), eqx.nn.Linear(6, CLASSES, key=second)]
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def apply(p, x, *, key, train):
        first, dropout, last = eqx.combine(p, static)
        if not train:
            return jax.vmap(lambda x: last(jnp.tanh(first(x))))(x)
        keys = jax.random.split(key, x.shape[0])
        return jax.vmap(lambda x, key: last(dropout(jnp.tanh(first(x)), key=key)))(x, keys)

    return Case(apply=apply, params=params, inputs={"x": x}, label=y, loss=INTEGER, metrics=ACCURACY)


# ------------------------------------------------------------------------------------------------ programs of docs/gallery
class Averaged(NamedTuple):
    """State of `averaged`: that of the optimizer, and Σ d^(t - i) w(i) and Σ d^(t - i) over the updates i = 1, ..., t."""

    inner: Any
    total: Any
    count: Any

    @property
    def mean(self) -> Any:
        return jax.tree.map(lambda x: x / self.count, self.total)


def averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    def init(params):
        return Averaged(optimizer.init(params), jax.tree.map(jnp.zeros_like, params), jnp.float32(0))

    def update(gradient, state, params):
        changes, inner = optimizer.update(gradient, state.inner, params)
        total = jax.tree.map(lambda s, w: decay * s + w, state.total, optax.apply_updates(params, changes))
        return changes, Averaged(inner, total, decay * state.count + 1)

    return optax.GradientTransformation(init, update)


@case("Equinox, convolution, averaged parameters")
def _(rng):
    first, second = jax.random.split(jax.random.key(3))
    net = [eqx.nn.Conv2d(1, 3, 3, key=first), eqx.nn.Linear(12, CLASSES, key=second)]
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def apply(p, x):
        convolution, last = eqx.combine(p, static)
        return jax.vmap(lambda x: last(jnp.tanh(convolution(x)).reshape(-1)))(x)

    return Case(
        apply=apply,
        params=params,
        inputs={"x": floats(rng, ROWS, 1, 4, 4)},
        label=rng.integers(0, CLASSES, ROWS),
        loss=INTEGER,
        optimizer=averaged(optax.adam(0.02), 0.9),
        average=lambda state: state.mean,
        fit={"optimizer": optax.adam(0.02), "ema": 0.9},
        metrics=ACCURACY,
    )


@case("SimCLR, outputs of all devices", coupled=True)
def _(rng):
    def nt_xent(outputs):
        z = jnp.concatenate(outputs)
        scores, rows = z @ z.T / 0.5 - 1e9 * jnp.eye(len(z)), jnp.arange(len(z) // 2)
        losses = INTEGER(scores, jnp.concatenate([rows + len(rows), rows]))
        return losses[: len(rows)] + losses[len(rows) :]

    return Case(
        apply=lambda p, one, other: (normalized(mlp(p, one)), normalized(mlp(p, other))),
        params=layers(rng, FEATURES, 6, FEATURES),
        inputs={"one": floats(rng, ROWS, FEATURES), "other": floats(rng, ROWS, FEATURES)},
        label=np.zeros(ROWS, "float32"),
        labelled=False,
        loss=nt_xent,
        sums=lambda output, _, w: (nt_xent(output) @ w, w.sum()),
        fit={"gather_outputs": True},
    )


@case("LoRA, frozen patterns")
def _(rng):
    def apply(p, x):
        for i, q in enumerate(p):
            x = (jnp.tanh(x) if i else x) @ q["w"] + x @ q["down"] @ q["up"] + q["b"]
        return x

    one = classifier(rng, apply=apply)
    adapters = [{"down": floats(rng, n, 2), "up": np.zeros((2, m), "float32")} for n, m in ((FEATURES, 6), (6, CLASSES))]
    trained = [{"w": "keep", "b": "keep", "down": "train", "up": "train"}] * 2
    return replace(
        one,
        params=[a | b for a, b in zip(one.params, adapters, strict=True)],
        optimizer=optax.multi_transform({"train": optax.adam(0.02), "keep": optax.set_to_zero()}, trained),
        fit={"optimizer": optax.adam(0.02), "frozen": ["*/w", "*/b"]},
    )


@case("distillation, logits of the teacher with the labels")
def _(rng):
    def distill(logits, label):
        soft = SOFTMAX(logits / 2, jax.nn.softmax(label["teacher"] / 2))
        return INTEGER(logits, label["class"]) / 4 + 3 * soft

    one = trained_only(rng, loss=distill)
    return replace(one, label={"class": one.label, "teacher": mlp(layers(rng, FEATURES, CLASSES), one.inputs["x"])})


@case("MAML, each row is a task")
def _(rng):
    """A network that is trained by one step on a few points of each task, and the loss of what it then predicts."""
    tasks = {"x": floats(rng, ROWS, 3, 1), "y": floats(rng, ROWS, 3, 1), "query": floats(rng, ROWS, 5, 1)}

    def adapted(p, x, y, query):
        gradient = jax.grad(lambda p: ((mlp(p, x) - y) ** 2).mean())(p)
        return mlp(jax.tree.map(lambda w, g: w - 0.1 * g, p, gradient), query)

    return Case(
        apply=lambda p, x, y, query: jax.vmap(adapted, (None, 0, 0, 0))(p, x, y, query),
        params=layers(rng, 1, 6, 1),
        inputs=tasks,
        label=np.sin(tasks["query"]),
        loss=lambda o, y: ((o - y) ** 2).mean((1, 2)),
        optimizer=optax.adam(0.02),
        fit={"eval_metric": None},
    )


@case("PINN, derivatives of the network")
def _(rng):
    """u'' = -u at the points of the batch, and u(0) = 1."""
    u = lambda p, t: mlp(p, t.reshape(1, 1))[0, 0]  # noqa: E731

    def apply(p, t):
        return jax.vmap(jax.grad(jax.grad(u, 1), 1), (None, 0))(p, t) + jax.vmap(u, (None, 0))(p, t)

    def physics(residual, batch, params):
        return residual**2 + (u(params, jnp.float32(0)) - 1) ** 2

    return Case(
        apply=apply,
        params=layers(rng, 1, 6, 1),
        inputs={"t": floats(rng, ROWS)},
        label=np.zeros(ROWS, "float32"),
        labelled=False,
        loss=physics,
        sums=lambda output, _, w, params: (physics(output, None, params) @ w, w.sum()),
        optimizer=optax.adam(0.02),
    )


@case("variational autoencoder, annealed", random=True)
def _(rng):
    return autoencoder(rng, lambda step: jnp.minimum(step / 4, 1.0))


@case("DQN, replay memory")
def _(rng):
    """Arrays that only the loss takes, and a loss that reads the target network in aux."""

    def apply(p, state, *, aux, train):
        return mlp(p, state), optax.incremental_update(p, aux, 0.2) if train else aux

    def temporal_difference(q, batch, aux):
        target = batch["reward"] + 0.9 * jnp.where(batch["done"], 0, mlp(aux, batch["following"]).max(1))
        chosen = jnp.take_along_axis(q, batch["action"][:, None], 1)[:, 0]
        return optax.huber_loss(chosen, lax.stop_gradient(target))

    memory = {
        "action": rng.integers(0, 2, ROWS).astype("int32"),
        "reward": floats(rng, ROWS),
        "following": floats(rng, ROWS, FEATURES),
        "done": rng.random(ROWS) < 0.2,
    }
    return Case(
        apply=apply,
        params=layers(rng, FEATURES, 6, 2),
        aux=layers(rng, FEATURES, 6, 2),
        inputs={"state": floats(rng, ROWS, FEATURES)},
        label=memory,
        labelled=False,
        only_loss=True,
        loss=temporal_difference,
        sums=lambda q, memory, w, aux: (temporal_difference(q, memory, aux) @ w, w.sum()),
        optimizer=optax.adam(0.02),
    )


# ------------------------------------------------------------------------------------------------ streams of batches
class Stream(NamedTuple):
    """A training on batches whose arrays need not have rows in common.

    Attributes:
        apply: the network, of parameters and the arrays of a batch that have the names of its arguments.
        params: initial values, a pytree.
        loss: `loss(outputs, batch)`, one scalar for the batch.
        batches: dicts of arrays by name.
    """

    apply: Callable[..., Any]
    params: Any
    loss: Callable[..., Any]
    batches: list[dict[str, Any]]


STREAM_OPTIMIZER = optax.adam(0.02)


def by_hand_of_stream(one: Stream, steps: int, every: int) -> tuple[Any, list[float], list[float]]:
    """(parameters, loss of each step, mean loss of all batches after every `every` steps and at the end), without jfit."""

    def loss(params, batch):
        names = list(inspect.signature(one.apply).parameters)[1:]
        return one.loss(one.apply(params, *(batch[name] for name in names)), batch)

    evaluate, value_and_grad = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
    params, state, losses, evaluations = one.params, STREAM_OPTIMIZER.init(one.params), [], []
    for step in range(steps):
        value, gradient = value_and_grad(params, one.batches[step % len(one.batches)])
        changes, state = STREAM_OPTIMIZER.update(gradient, state, params)
        params = optax.apply_updates(params, changes)
        losses.append(float(value))
        if (step + 1) % every == 0 or step + 1 == steps:
            evaluations.append(float(np.mean([evaluate(params, batch) for batch in one.batches])))
    return params, losses, evaluations


def gpt_stream(rng: np.random.Generator) -> Stream:
    """Windows of a text."""
    _, _, params = language(rng)
    text = rng.integers(0, VOCABULARY, 100).astype("int32")
    windows = [np.stack([text[i : i + TIMES + 1] for i in rng.integers(0, 94, BATCH)]) for _ in range(4)]
    batches = [{"x": w[:, :-1], "label": w[:, 1:]} for w in windows]
    return Stream(causal, params, lambda logits, batch: INTEGER(logits, batch["label"]).mean(), batches)


def pinn_stream(rng: np.random.Generator) -> Stream:
    """u'' = -u at the points of a batch, and given values at other points, of another number."""
    u = lambda p, t: mlp(p, t.reshape(1, 1))[0, 0]  # noqa: E731

    def apply(p, inside, ends):
        residual = jax.vmap(lambda t: jax.grad(jax.grad(u, 1), 1)(p, t) + u(p, t))(inside)
        return residual, jax.vmap(u, (None, 0))(p, ends)

    def physics(outputs, batch):
        return (outputs[0] ** 2).mean() + ((outputs[1] - batch["values"]) ** 2).mean()

    points = [(floats(rng, 9), floats(rng, 4)) for _ in range(4)]
    batches = [{"inside": inside, "ends": ends, "values": np.cos(ends)} for inside, ends in points]
    return Stream(apply, layers(rng, 1, 6, 1), physics, batches)


class Graph(NamedTuple):
    nodes: Any
    senders: Any
    receivers: Any
    n_node: Any


def graph_stream(rng: np.random.Generator) -> Stream:
    """Three graphs with 12 nodes and 15 edges in all, of which the last one is padding."""

    def apply(p, graph):
        messages = jnp.tanh(graph.nodes[graph.senders] @ p["message"])
        nodes = jnp.tanh(graph.nodes @ p["node"] + jax.ops.segment_sum(messages, graph.receivers, 12))
        graphs = jnp.repeat(jnp.arange(3), graph.n_node, total_repeat_length=12)
        return jax.ops.segment_sum(nodes @ p["out"], graphs, 3)

    def batch():
        n_node = rng.integers(2, 6, 2)
        n_node = np.append(n_node, 12 - n_node.sum()).astype("int32")
        starts, number = np.cumsum(n_node) - n_node, rng.integers(0, 2, 15)
        senders, receivers = (starts[number] + rng.integers(0, n_node[number]) for _ in range(2))
        unused = np.arange(15) >= 10  # edges of the padding
        ends = (np.where(unused, 11, nodes).astype("int32") for nodes in (senders, receivers))
        graph = Graph(floats(rng, 12, FEATURES), *ends, n_node)
        return {"graph": graph, "energy": floats(rng, 3), "is_graph": np.array([True, True, False])}

    def error(energies, batch):
        return jnp.mean((energies - batch["energy"]) ** 2, where=batch["is_graph"])

    params = {"message": floats(rng, FEATURES, 6), "node": floats(rng, FEATURES, 6), "out": floats(rng, 6)}
    return Stream(apply, params, error, [batch() for _ in range(4)])


STREAMS = {"GPT, windows": gpt_stream, "PINN, points": pinn_stream, "padded graphs": graph_stream}
