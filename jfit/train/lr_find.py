"""lr_find: which learning rates a network learns at, seen in one short run whose rate climbs from tiny to too large.

The run is a throw-away: it trains copies.  The losses stay on the devices and are read eight at a time, and the rate is data,
so that the whole sweep is one program.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.data import ArrayData
from jfit.data.batch import is_mxnet_iter
from jfit.formats.atomic import atomic_write
from jfit.graph import Symbol
from jfit.lowering.build import lower_with_inputs, model_and_values, split_trained
from jfit.lowering.model import Model
from jfit.optim import Optimizer, Schedule
from jfit.parallel import Window, place
from jfit.step import train_step
from jfit.step.state import TrainState, init_state
from jfit.train.batches import data_of, first_batch, settings_of
from jfit.train.fit import checked_plan, resolve_optimizer
from jfit.train.history import axes_for
from jfit.train.loop import Dispatch, DispatchSpec, StopFlag, make_dispatcher


class RateRange:
    """What `lr_find` saw.

    Attributes:
        rates: learning rates, (steps,) float64, rising.
        losses: loss of the batch that was trained at each, (steps,) float64; where the run diverged the last may be infinite.
        smoothed: running mean s ← β s + (1 − β) loss, divided by 1 − β^steps, (steps,) float64.
        smoothing: β.
        stopped: "end", "diverged" or "interrupted".

    Example:
        >>> seen = RateRange(np.geomspace(1e-4, 1, 9), np.array([3, 3, 3, 2.5, 1.5, 1, 1, 2, 9.0]), smoothing=0.0)
        >>> round(seen.suggestion, 3), round(seen.minimum, 3)
        (0.006, 0.032)
    """

    def __init__(self, rates: Any, losses: Any, *, smoothing: float = 0.9, stopped: str = "end") -> None:
        self.rates, self.losses = np.asarray(rates, np.float64), np.asarray(losses, np.float64)
        self.smoothed, self.smoothing, self.stopped = smooth(self.losses, smoothing), smoothing, stopped

    def __len__(self) -> int:
        return len(self.rates)

    @property
    def suggestion(self) -> float:
        """A rate to begin with: where the loss falls fastest over log(rate).

        The fall is that of the smoothed loss over β / (1 − β) steps, so that single batches do not decide, before its minimum;
        its middle is moved back by the steps that a running mean is late, β / (1 − β).

        It errs on the small side: in trials (dense and convolutional networks, classes and numbers, SGD, momentum, Adam and
        Lion, four epochs) the best rate of a grid lay between half of it and forty times it, nearer to the first for Lion and
        to the last for SGD on numbers.  A tenth of `minimum` is another rule of thumb: it was nearer to the best in most of
        these trials, and too large for Lion in small batches.  The curve (`plot`) tells more than one number; try both.

        Raises:
            ValueError: the loss never fell.
        """
        low, logs = self._lowest(), np.log(self.rates)
        span = int(np.clip(round(self.smoothing / (1 - self.smoothing)), 1, max(1, low // 2)))
        falls = self.smoothed[: low + 1 - span] - self.smoothed[span : low + 1]
        first = min(span, len(falls) - 1)  # the first means are of a few batches
        last = span + first + int(np.argmax(falls[first:]))
        middle = last - span / 2 - _late(last + 1, self.smoothing)
        return float(np.exp(np.interp(middle, np.arange(len(logs)), logs)))

    @property
    def minimum(self) -> float:
        """The rate with the lowest smoothed loss: too large to train with, the loss is about to rise.

        Raises:
            ValueError: the loss never fell.
        """
        return float(self.rates[self._lowest()])

    def _lowest(self) -> int:
        usable = np.where(np.isfinite(self.smoothed), self.smoothed, np.inf)
        low = int(np.argmin(usable)) if len(usable) else 0
        if low < 1:
            raise ValueError(
                f"lr_find: the loss never fell in {len(self)} steps from rate {self._edge(0)} to {self._edge(-1)}, so there is "
                "no rate to suggest; start lower (start=), take more steps (steps=), and check that the data can be learned."
            )
        return low

    def _edge(self, i: int) -> str:
        return f"{self.rates[i]:.3g}" if len(self) else "-"

    def plot(self, path: str | Path | None = None, axes: Any = None) -> Any:
        """Loss over rate, the suggestion marked (matplotlib).

        Args:
            path: an image file to write as well (no display is needed).
            axes: matplotlib axes to draw into; made when None.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there is nothing to draw.

        Example:
            >>> import tempfile
            >>> seen = RateRange([0.1, 1.0, 10.0], [2.0, 1.0, 3.0])
            >>> len(seen.plot(tempfile.mkdtemp() + "/rates.png").axes)
            1
        """
        if not len(self):
            raise ValueError("lr_find: there is nothing to plot, it was stopped before its first step.")
        figure, (axis, *_) = axes_for("lr_find", 1, path, axes)
        _draw(self, axis)
        if path is not None:
            suffix = Path(path).suffix.lstrip(".") or "png"
            atomic_write(path, lambda file: figure.savefig(file, format=suffix, dpi=120))
        return figure

    def __repr__(self) -> str:
        found = _or_none(lambda: f"{self.suggestion:.3g}") or "none, the loss never fell"
        ended = {"end": "", "diverged": ", diverged there"}.get(self.stopped, f", {self.stopped}")
        return f"<lr_find: {len(self)} steps, rates {self._edge(0)} to {self._edge(-1)}{ended}; suggestion: {found}>"

    def _repr_html_(self) -> str:
        text = f"<p><b>{html.escape(repr(self))}</b></p>"
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return text
        if not len(self):
            return text
        figure, file = Figure(figsize=(5.5, 3.4), layout="constrained"), io.BytesIO()
        _draw(self, figure.subplots())
        figure.savefig(file, format="png", dpi=100)
        return f'{text}<img src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def smooth(losses: Any, beta: float) -> np.ndarray:
    """s_n / (1 - beta^n) with s_n = beta s_{n-1} + (1 - beta) loss_n, s_0 = 0: a running mean that starts unbiased.

    Example:
        >>> smooth([4.0, 4.0, 0.0], 0.5).round(3).tolist()
        [4.0, 4.0, 1.714]
    """
    found, total = [], 0.0
    for n, loss in enumerate(np.asarray(losses, np.float64), 1):
        total = beta * total + (1 - beta) * float(loss)
        found.append(total / (1 - beta**n))
    return np.array(found, np.float64)


def _late(count: int, beta: float) -> float:
    """How many steps old the losses in a running mean of `count` are on average: β / (1 − β) once there are many."""
    return beta / (1 - beta) - count * beta**count / (1 - beta**count)


def lr_find(
    model: Any,
    train_data: Any,
    *,
    start: float = 1e-6,
    end: float = 10.0,
    steps: int = 100,
    smoothing: float = 0.9,
    diverge: float = 4.0,
    batch_size: int = 32,
    optimizer: Any = "sgd",
    optimizer_params: Mapping[str, Any] | None = None,
    initializer: Any = None,
    devices: Any = None,
    shuffle: bool = True,
    seed: int = 0,
    frozen: Sequence[str] = (),
    micro_batches: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    policy: Any = None,
    params: Any = None,
    aux: Any = None,
    loss: Callable[..., Any] | None = None,
    data_on_device: bool | str = "auto",
    sync_batch_stats: bool = False,
) -> RateRange:
    """Learning-rate range test: step i of n trains a batch at rate start · (end / start)^(i / (n − 1)), and its loss is kept.

    Nothing that is trained here is kept: parameters, auxiliary states and models that are given stay as they are.

    Args:
        model, train_data, batch_size, optimizer, optimizer_params, initializer, devices, shuffle, seed: as for `fit`.  The
            learning rate among the optimizer's parameters is ignored.
        frozen, micro_batches, clip_norm, clip_value, policy, params, aux, loss, data_on_device, sync_batch_stats: as for `fit`.
        start: the first rate.
        end: the last rate.
        steps: updates in all; data are read again from the beginning where they are shorter, a short last batch is left out.
        smoothing: β of the running mean of the losses, from 0 (none) to below 1.
        diverge: the sweep ends where the running mean is so many times the best and above the first loss, or not finite.

    Returns:
        A `RateRange`: `.rates`, `.losses`, `.smoothed`, `.suggestion`, `.plot()`; shown with its curve in notebooks.  After
        Ctrl-C it holds the steps that were done.

    Raises:
        ValueError: rates or steps that cannot be, an optax instance (it keeps its own rate), a model without a loss value, a
            first loss that is not finite, and what `fit` raises about data.

    Example:
        >>> import jfit, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
        >>> found = jfit.lr_find(jfit.sym.SoftmaxOutput(net, name="softmax"), (x, x[:, 0] > 0), steps=40)
        >>> 0.001 < found.suggestion < 10
        True

    Source: Smith 2017, https://arxiv.org/abs/1506.01186.
    """
    _check(start, end, steps, smoothing, diverge)
    model, params, aux = split_trained(model, params, aux)
    if isinstance(model, Symbol) and isinstance(train_data, Mapping):
        model = lower_with_inputs(model, train_data)
    model, params, aux = model_and_values(model, loss, params, aux)
    settings = settings_of(devices=devices, batch_size=batch_size, eval_metric=None, policy=policy)
    climb = _exponential(start, end, steps)
    resolved = _optimizer(optimizer, optimizer_params, model, climb)
    data = data_of(model, train_data, batch_size, shuffle=shuffle, seed=seed)
    probe = first_batch(model, data, batch_size)
    state = init_state(
        model, resolved, probe, seed=seed, initializer=initializer, params=params, aux=aux, learning_rate=start, frozen=frozen
    )
    plan = checked_plan(model, data, probe)
    step = train_step(
        model,
        resolved,
        schedule=climb,
        frozen=frozen,
        micro_batches=micro_batches,
        clip_norm=clip_norm,
        clip_value=clip_value,
        policy=settings.policy,
        sync_batch_stats=sync_batch_stats,
    )
    spec = DispatchSpec(model, step, settings.devices, batch_size, micro_batches)
    dispatcher = make_dispatcher(data, spec, paddable=plan.paddable, on_device=data_on_device)
    try:
        found, stopped = _sweep(place(state, settings.devices), _calls(dispatcher, data, batch_size, steps), smoothing, diverge)
    finally:
        source: Any = train_data
        if is_mxnet_iter(source):
            source.reset()  # a fit that follows begins at its beginning
    _check_first(found, model)
    return RateRange(found[:, 1], found[:, 0], smoothing=smoothing, stopped=stopped)


def _exponential(start: float, end: float, steps: int) -> Schedule:
    """rate = base * (end / start)^((count - 1) / (steps - 1)); the base is the state's."""
    growth = math.log(end / start) / (steps - 1)
    return Schedule("lr_find", lambda count, base: base * jnp.exp(growth * (count - 1)), base_lr=start)


def _optimizer(optimizer: Any, given: Mapping[str, Any] | None, model: Model, climb: Schedule) -> Any:
    own = {k: v for k, v in (given or {}).items() if k != "learning_rate"}
    if not isinstance(optimizer, str) and not (isinstance(optimizer, Optimizer) and optimizer.takes_rate):
        raise ValueError(
            f"lr_find moves the learning rate, and the optimizer is {optimizer!r}, which keeps its own; pass the optimizer by "
            "name, as in optimizer='adam' (jfit's and optax's have one)"
        )
    return resolve_optimizer(optimizer, own, model, climb)


def _calls(dispatcher: Any, data: Any, batch_size: int, steps: int) -> Generator[Dispatch, None, None]:
    """`steps` calls, epoch after epoch, without the short last batch of arrays: it would be a second program."""
    whole = data.num_rows // batch_size if isinstance(data, ArrayData) else 0
    done = 0
    for epoch in itertools.count():
        with contextlib.closing(dispatcher.dispatches(epoch, 0, done, lambda step: 1)) as calls:
            try:
                for call in itertools.islice(calls, min(whole or steps, steps - done)):
                    yield call
                    done += 1
            except ValueError as error:
                error.add_note(f"jfit: lr_find did {done} of its {steps} steps; steps={max(done, 2)} needs no further batch")
                raise
        if done >= steps:
            return


def _sweep(
    state: TrainState, calls: Generator[Dispatch, None, None], smoothing: float, diverge: float
) -> tuple[np.ndarray, str]:
    """((steps, 2) loss and rate, why it ended); the host reads the reports of eight calls at a time, eight calls late."""
    window, reports = Window(), []
    seen, stopped = np.zeros((0, 2)), "end"
    with StopFlag().watching() as flag, counters.explained(), contextlib.closing(calls) as stream:
        for call in stream:
            state, report = call.run(state)
            reports.append(report)
            if window.push(report) is not None:
                seen = _read(seen, reports[len(seen) : len(reports) - 8])  # sync: every 8 steps, for those 8 back and before
                if _end(seen, smoothing, diverge) < len(seen):
                    break
            if flag.set:
                stopped = "interrupted"
                break
    seen = _read(seen, reports[len(seen) :])  # sync: the sweep is over
    last = _end(seen, smoothing, diverge)
    return (seen, stopped) if last >= len(seen) else (seen[: last + 1], "diverged")


def _read(seen: np.ndarray, reports: list[Any]) -> np.ndarray:
    return np.concatenate([seen, np.array(counters.read(reports), np.float64).reshape(-1, 2)])


def _end(seen: np.ndarray, smoothing: float, diverge: float) -> int:
    """The first step where the loss has left all bounds; the number of steps where there is none."""
    curve = smooth(seen[:, 0], smoothing)
    best = np.minimum.accumulate(np.where(np.isfinite(curve), curve, np.inf))
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(curve) | ((curve > best + (diverge - 1) * np.abs(best)) & (curve > curve[:1]))
    return int(np.argmax(bad)) if bad.any() else len(seen)


def _draw(seen: RateRange, axis: Any) -> None:
    shown = np.isfinite(seen.losses)
    axis.plot(seen.rates[shown], seen.losses[shown], color="0.8", linewidth=1, label="loss of the batch")
    kept = np.isfinite(seen.smoothed)
    axis.plot(seen.rates[kept], seen.smoothed[kept], label="smoothed")
    rate = _or_none(lambda: seen.suggestion)
    if rate is not None:
        height = float(np.interp(np.log(rate), np.log(seen.rates), seen.smoothed))
        axis.plot([rate], [height], "o", color="C3", label=f"suggestion {rate:.2g}")
    axis.set_xscale("log")
    top, low = float(np.max(seen.smoothed[kept][:1], initial=0)), float(np.min(seen.smoothed[kept], initial=np.inf))
    if np.isfinite(low) and top > low:  # what diverged would flatten the part that matters
        axis.set_ylim(low - 0.1 * (top - low), top + 0.5 * (top - low))
    axis.set_xlabel("learning rate")
    axis.set_ylabel("loss")
    axis.grid(alpha=0.3)
    axis.legend()


def _or_none(value: Callable[[], Any]) -> Any:
    try:
        return value()
    except ValueError:
        return None


def _check(start: float, end: float, steps: int, smoothing: float, diverge: float) -> None:
    if not 0 < start < end < math.inf:
        raise ValueError(f"lr_find: start is {start} and end {end}; rates climb from above 0 to a larger one that is finite.")
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 2:
        raise ValueError(f"lr_find: steps is {steps!r}; a sweep has at least 2 steps, 100 are usual.")
    if not 0 <= smoothing < 1:
        raise ValueError(f"lr_find: smoothing is {smoothing}; it needs to be from 0 (none) to below 1.")
    if not diverge > 1:
        raise ValueError(f"lr_find: diverge is {diverge}; it needs to be above 1, so many times the best loss end the sweep.")


def _check_first(seen: np.ndarray, model: Model) -> None:
    if len(seen) and not np.isfinite(seen[0, 0]):
        if all(out.loss is None for out in model.outputs):
            raise ValueError(
                f"lr_find watches the loss, and the heads {[o.name for o in model.outputs]} tell no loss value; end the "
                "network in SoftmaxOutput, a RegressionOutput or MakeLoss, or pass a function with loss="
            )
        raise ValueError(
            f"lr_find: the loss of the first step is {seen[0, 0]}, at a rate of {seen[0, 1]:.3g}; check the data for nan and "
            "the initial values"
        )
