"""`lr_find`: find a learning rate by a range test, a short run whose learning rate increases exponentially from step to step.

The run trains copies of the parameters, which are discarded.  The learning rate is an input of the compiled step and not a
constant, so the whole run needs one compilation; losses are read from the devices for eight steps at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.checks import below_1, positive, positive_integer
from jfit.data import ArrayData, Rows
from jfit.data.batch import is_mxnet_iter
from jfit.data.stream import is_endless
from jfit.history.plots import new_axes, save_figure
from jfit.interrupts import StopFlag, Stopped
from jfit.loop.dispatch import Dispatch, dispatcher_of
from jfit.lowering.model import Model
from jfit.optim import Optimizer, Schedule
from jfit.parallel import Window, check_entry, place
from jfit.prepare import prepare
from jfit.prepare.options import shared_options
from jfit.step.state import TrainState

Dispatches = Generator[Dispatch, None, None]
# further arguments that mean the same in `fit`
_SHARED = ("initializer", "devices", "shuffle", "seed", "frozen", "micro_batches", "clip_norm", "clip_value", "policy")
_SHARED += ("params", "aux", "loss", "loss_weights", "loss_per_batch", "gather_outputs", "row_axes", "data_on_device")
_SHARED += ("sync_batch_stats", "label", "sample_weight", "class_weight", "regularizers", "remat")


class RateRange:
    """Result of `lr_find`: learning rate and loss of each step.

    Attributes:
        rates: learning rates, (steps,) float64, increasing.
        losses: loss of each batch before its update, (steps,) float64; the last may be infinite if the run diverged.
        smoothed: `smooth(losses, smoothing)`, a running mean of the losses, (steps,) float64.
        smoothing: decay β of the running mean.
        stopped: why the run ended: "end" (all steps done), "diverged" (see `diverge` of `lr_find`) or "interrupted" (Ctrl-C).

    Example:
        >>> result = RateRange(np.geomspace(1e-4, 1, 9), np.array([3, 3, 3, 2.5, 1.5, 1, 1, 2, 9.0]), smoothing=0.0)
        >>> round(result.suggestion, 3), round(result.minimum, 3)
        (0.006, 0.032)
    """

    def __init__(self, rates: Any, losses: Any, *, smoothing: float = 0.9, stopped: str = "end") -> None:
        self.rates, self.losses = np.asarray(rates, np.float64), np.asarray(losses, np.float64)
        self.smoothed, self.smoothing, self.stopped = smooth(self.losses, smoothing), smoothing, stopped

    def __len__(self) -> int:
        return len(self.rates)

    @property
    def suggestion(self) -> float:
        """A learning rate to start with: the one at which the loss decreases fastest over log(rate).

        It is the middle of the interval of β / (1 − β) steps, before the minimum, in which the smoothed loss decreases most,
        moved back by the lag of the running mean, which is also β / (1 − β) steps.  An interval of several steps averages out
        the noise of single batches.

        It is rather too small than too large: in experiments (dense and convolutional networks, classification and
        regression, SGD, momentum, Adam and Lion, four epochs) the best learning rate of a grid was between 0.5 and 40 times
        the suggestion, near 0.5 for Lion and near 40 for SGD in regression.  Another rule of thumb is a tenth of `minimum`:
        it was closer to the best one in most of these experiments, but too large for Lion with small batches.  Look at the
        curve (`plot`), and try both.

        Raises:
            ValueError: the loss never decreased.
        """
        low, logs = self._lowest(), np.log(self.rates)
        span = int(np.clip(round(self.smoothing / (1 - self.smoothing)), 1, max(1, low // 2)))
        falls = self.smoothed[: low + 1 - span] - self.smoothed[span : low + 1]
        first = min(span, len(falls) - 1)  # skip the first moving averages of the loss: each is over fewer than `span` batches
        last = span + first + int(np.argmax(falls[first:]))
        middle = last - span / 2 - _lag(last + 1, self.smoothing)
        return float(np.exp(np.interp(middle, np.arange(len(logs)), logs)))

    @property
    def minimum(self) -> float:
        """The learning rate with the lowest smoothed loss; too large to train with, because the loss increases from there.

        Raises:
            ValueError: the loss never decreased.
        """
        return float(self.rates[self._lowest()])

    def _lowest(self) -> int:
        curve = np.where(np.isfinite(self.smoothed), self.smoothed, np.inf)
        low = int(np.argmin(curve)) if len(curve) else 0
        if low < 1:
            rates = f"{len(self)} steps, with rates from {self._rate_text(0)} to {self._rate_text(-1)}"
            raise ValueError(f"lr_find: the loss never decreased in {rates}; pass a smaller start=, and check the labels")
        return low

    def _rate_text(self, i: int) -> str:
        return f"{self.rates[i]:.3g}" if len(self) else "-"

    def plot(self, path: str | Path | None = None, axes: Any = None) -> Any:
        """Plot the losses and the smoothed loss over the learning rate (log scale) and mark the suggestion.

        Args:
            path: image file to write in addition, or None; with a path no display is needed.
            axes: matplotlib axes to draw into.  None: new ones.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there are no steps.

        Example:
            >>> import tempfile
            >>> result = RateRange([0.1, 1.0, 10.0], [2.0, 1.0, 3.0])
            >>> len(result.plot(tempfile.mkdtemp() + "/rates.png").axes)
            1
        """
        if not len(self):
            raise ValueError("lr_find: nothing to plot, because the run was interrupted before its first step.")
        figure, (axis, *_) = new_axes("lr_find", 1, path, axes)
        finite = np.isfinite(self.losses)
        axis.plot(self.rates[finite], self.losses[finite], color="0.8", linewidth=1, label="loss of the batch")
        finite = np.isfinite(self.smoothed)
        axis.plot(self.rates[finite], self.smoothed[finite], label="smoothed")
        rate = _or_none(lambda: self.suggestion)
        if rate is not None:
            height = float(np.interp(np.log(rate), np.log(self.rates), self.smoothed))
            axis.plot([rate], [height], "o", color="C3", label=f"suggestion {rate:.2g}")
        axis.set(xscale="log", xlabel="learning rate", ylabel="loss")
        top, low = float(np.max(self.smoothed[finite][:1], initial=0)), float(np.min(self.smoothed[finite], initial=np.inf))
        if np.isfinite(low) and top > low:  # a diverged loss would otherwise determine the scale and flatten the curve
            axis.set_ylim(low - 0.1 * (top - low), top + 0.5 * (top - low))
        axis.grid(alpha=0.3)
        axis.legend()
        save_figure(figure, path)
        return figure

    def __repr__(self) -> str:
        best = _or_none(lambda: f"{self.suggestion:.3g}") or "none, the loss never decreased"
        end = {"end": "", "diverged": ", diverged there"}.get(self.stopped, f", {self.stopped}")
        return f"<lr_find: {len(self)} steps, rates {self._rate_text(0)} to {self._rate_text(-1)}{end}; suggestion: {best}>"


def smooth(losses: Any, beta: float) -> np.ndarray:
    """Exponential moving average with bias correction: s_n / (1 - beta^n), s_n = beta s_{n-1} + (1 - beta) loss_n, s_0 = 0.

    Args:
        losses: array of shape (steps,).
        beta: decay, from 0 (no smoothing) to below 1.

    Returns:
        Array of shape (steps,), float64.

    Example:
        >>> smooth([4.0, 4.0, 0.0], 0.5).round(3).tolist()
        [4.0, 4.0, 1.714]
    """
    means, total = [], 0.0
    for n, loss in enumerate(np.asarray(losses, np.float64), 1):
        total = beta * total + (1 - beta) * float(loss)
        means.append(total / (1 - beta**n))
    return np.array(means, np.float64)


def _lag(count: int, beta: float) -> float:
    """Lag of the moving average of `count` losses with decay β (`beta`): their mean age in steps; it tends to β / (1 − β)."""
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
    **settings: Any,
) -> RateRange:
    """Learning-rate range test: record the loss of step i of n with learning rate start · (end / start)^(i / (n − 1)).

    The trained values are discarded: `model`, `params` and `aux` are not modified.

    Args:
        model, train_data, batch_size, optimizer, optimizer_params: as for `fit`.  A "learning_rate" in optimizer_params is
            ignored.
        start: learning rate of the first step.
        end: learning rate of the last step.
        steps: number of updates.  Data with fewer batches is read several times; a short last batch of arrays is skipped.
            Data may be endless.
        smoothing: decay β of the moving average of the losses, from 0 (no smoothing) to below 1.
        diverge: the run ends early if the moving average is not finite, or both above `diverge` times its minimum and above the
            first loss.
        **settings: further arguments as for `fit`: initializer, devices, shuffle, seed, frozen, micro_batches, clip_norm,
            clip_value, policy, params, aux, loss, loss_weights, loss_per_batch, gather_outputs, row_axes, data_on_device,
            sync_batch_stats, label, sample_weight, class_weight, regularizers, remat.  Gradients of several devices are
            summed (reduce="psum").

    Returns:
        A `RateRange` with `rates`, `losses`, `smoothed`, `suggestion`, `minimum` and `plot()`.  After
        Ctrl-C it contains the steps done so far.

    Raises:
        ValueError: start, end, steps, smoothing or diverge is out of range; the optimizer is an optax transformation (whose
            learning rate cannot be set); the model has no loss value; the first loss is not finite; `fit` would raise for the
            data.

    Example:
        >>> import jfit, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
        >>> result = jfit.lr_find(jfit.sym.SoftmaxOutput(net, name="softmax"), (x, x[:, 0] > 0), steps=40)
        >>> 0.001 < result.suggestion < 10
        True

    Source: Smith, "Cyclical Learning Rates for Training Neural Networks", 2017, https://arxiv.org/abs/1506.01186.
    """
    check_entry("jfit.lr_find")
    positive(start=start, end=end)
    positive_integer(steps=steps)
    below_1(smoothing=smoothing)
    if not (start < end and steps >= 2 and diverge > 1):
        found = f"start is {start}, end is {end}, steps is {steps} and diverge is {diverge}"
        raise ValueError(f"lr_find: {found}; expected start < end, at least 2 steps, and diverge above 1")
    if not isinstance(optimizer, str | Mapping) and not (isinstance(optimizer, Optimizer) and optimizer.takes_rate):
        raise ValueError(f"lr_find: the optimizer {optimizer!r} contains its learning rate; pass it by name, such as 'adam'")
    source = train_data.source if isinstance(train_data, Rows) else train_data
    others = {"batch_size": batch_size, "optimizer": optimizer, "schedule": _exponential(start, end, steps)}
    others |= {"optimizer_params": {k: v for k, v in (optimizer_params or {}).items() if k != "learning_rate"}}
    others |= {"eval_metric": None, "steps_per_call": 1, "progress": False}
    others |= {"steps_per_epoch": steps} if is_endless(source) else {}
    problem = prepare(model, train_data, None, shared_options("lr_find", _SHARED, settings, **others))
    dispatcher, state = dispatcher_of(problem), problem.take_state()._replace(base_lr=jnp.array(start, jnp.float32))
    try:
        dispatches = _dispatches(dispatcher, problem.data, batch_size, steps)
        trace, stopped = _train(place(state, problem.settings.devices), dispatches, smoothing, diverge)
    finally:
        if is_mxnet_iter(source):
            source.reset()  # so that a following `fit` begins at the first batch
    _check_first(trace, problem.model)
    return RateRange(trace[:, 1], trace[:, 0], smoothing=smoothing, stopped=stopped)


def _exponential(start: float, end: float, steps: int) -> Schedule:
    """Make the schedule: rate = base learning rate * (end / start)^((count - 1) / (steps - 1)), count = 1 .. steps."""
    growth = math.log(end / start) / (steps - 1)
    return Schedule("lr_find", lambda count, base: base * jnp.exp(growth * (count - 1)), base_lr=start)


def _dispatches(dispatcher: Any, data: Any, batch_size: int, steps: int) -> Dispatches:
    """Yield `steps` dispatches (calls of the compiled program) of one step each, over as many epochs as needed.

    An incomplete last batch of arrays is skipped, because it would need a second program.
    """
    full_batches = data.num_rows // batch_size if isinstance(data, ArrayData) else 0
    done = 0
    for epoch in itertools.count():
        with contextlib.closing(dispatcher.dispatches(epoch, 0, done, lambda step: 1)) as dispatches:
            try:
                for dispatch in itertools.islice(dispatches, min(full_batches or steps, steps - done)):
                    yield dispatch
                    done += 1
            except ValueError as error:
                error.add_note(f"jfit: lr_find did {done} of its {steps} steps; steps={max(done, 2)} needs no more batches")
                raise
        if done >= steps:
            return


def _train(state: TrainState, dispatches: Dispatches, smoothing: float, diverge: float) -> tuple[np.ndarray, str]:
    """Return an array (steps, 2) of loss and learning rate, and the value of `RateRange.stopped`.

    Each dispatch returns a report, an array (loss, learning rate).  The host reads the reports of eight steps at a time, eight
    steps late, so that it does not wait for the devices.
    """
    window, reports, trace = Window(), [], np.zeros((0, 2))
    flag, closing = StopFlag(), contextlib.closing(dispatches)
    with flag.watching(), counters.explained(), contextlib.suppress(Stopped), closing as stream:
        for dispatch in stream:
            state, report = dispatch.run(state)
            reports.append(report)
            if window.push(report) is not None:
                trace = _read(trace, reports[len(trace) : len(reports) - 8])  # sync: every 8 steps, for all but the last 8
                if _divergence(trace, smoothing, diverge) < len(trace):
                    break
            if flag:
                break
    trace, stopped = _read(trace, reports[len(trace) :]), "interrupted" if flag else "end"  # sync: training is over
    last = _divergence(trace, smoothing, diverge)
    return (trace, stopped) if last >= len(trace) else (trace[: last + 1], "diverged")


def _read(trace: np.ndarray, reports: list[Any]) -> np.ndarray:
    return np.concatenate([trace, np.array(counters.read(reports), np.float64).reshape(-1, 2)])


def _divergence(trace: np.ndarray, smoothing: float, diverge: float) -> int:
    """Index of the first step at which the smoothed loss diverges (see `diverge` of `lr_find`); len(trace) if none does."""
    curve = smooth(trace[:, 0], smoothing)
    best = np.minimum.accumulate(np.where(np.isfinite(curve), curve, np.inf))
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(curve) | ((curve > best + (diverge - 1) * np.abs(best)) & (curve > curve[:1]))
    return int(np.argmax(bad)) if bad.any() else len(trace)


def _or_none(fn: Callable[[], Any]) -> Any:
    """Return fn(), or None if it raises ValueError."""
    try:
        return fn()
    except ValueError:
        return None


def _check_first(trace: np.ndarray, model: Model) -> None:
    if len(trace) and not np.isfinite(trace[0, 0]):
        if model.joint_loss is None and all(out.loss is None for out in model.outputs):
            heads = [o.name for o in model.outputs]
            raise ValueError(f"lr_find: the heads {heads} have no loss value; end the network in SoftmaxOutput or MakeLoss")
        raise ValueError(f"lr_find: the loss of the first step is {trace[0, 0]}, with rate {trace[0, 1]:.3g}; see the data")
