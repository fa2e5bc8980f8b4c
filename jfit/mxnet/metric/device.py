"""DeviceMetric: metrics with running sums on the device; `update` does not block, reading a value does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from jfit import counters
from jfit.metrics import METRICS, Metric
from jfit.mxnet.metric.base import EvalMetric, Names, register
from jfit.programs import made


class _Assigned(NamedTuple):
    """Running sums that the user assigned, as in `metric.sum_metric += 1`."""

    total: Any
    count: Any


def _sum(which: int, part: str, doc: str) -> Any:
    """Create the property of one part of the running sums, "total" or "count"; which: 0 for the local sums, 1 for the global.

    doc: its docstring.
    """
    return property(
        lambda self: getattr(self._counts(which), part), lambda self, value: self._assign(which, **{part: value}), doc=doc
    )


class DeviceMetric(EvalMetric):
    """EvalMetric around a pure metric of `jfit.metrics`; its sums are on the device, and only reading a value blocks.

    A subclass names the pure metric's constructor, and its own arguments with their defaults, which are those of the pure
    metric, and attributes: `class Accuracy(DeviceMetric, rule=metrics.accuracy, axis=1, name="accuracy")`.  As in MXNet, those
    before `name` are in `get_config`; those after it follow `output_names` and `label_names`.

    Args:
        settings: arguments of that constructor.
        name: name of the metric, for logs.
        output_names: as in `EvalMetric`.
        label_names: as in `EvalMetric`.
        **config: settings included in `get_config`.
    """

    rule: ClassVar[Callable[..., Metric]]

    def __init_subclass__(cls, rule: Callable[..., Metric] | None = None, **arguments: Any) -> None:
        super().__init_subclass__()
        if arguments:
            cls.__init__ = _constructor(arguments)
        if rule is not None:
            cls.rule = staticmethod(rule)
            # in MXNet names with a hyphen are printed only; `create` accepts the ones without
            register(cls, *(name for name, make in METRICS.items() if make is rule and "-" not in name))

    def __init__(
        self, settings: Mapping[str, Any], name: str, output_names: Names = None, label_names: Names = None, **config: Any
    ) -> None:
        self._settings = tuple(sorted(settings.items()))
        super().__init__(name, output_names, label_names, has_global_stats=True, **config)

    @property
    def pure(self) -> Metric | None:
        """The pure metric of `jfit.metrics`; None if a subclass overrides `update` or `update_dict` in Python."""
        inherited = type(self).update is DeviceMetric.update and type(self).update_dict is EvalMetric.update_dict
        return self._pure() if inherited else None

    def _pure(self) -> Metric:
        return _made(self.rule, self._settings)

    def reset(self) -> None:
        """Reset the local and the global sums."""
        self._sums: tuple[Any, Any] = (None, None)
        self._host: tuple[Any, Any] | None = None

    def reset_local(self) -> None:
        """Reset the local sums; the global sums are unchanged."""
        self._sums = (None, self._sums[1])
        self._host = None if self._host is None else (None, self._host[1])

    def update(self, labels: Any, preds: Any) -> None:
        """Accumulate one batch, lists of label and output arrays, with one dispatch; it does not block."""
        self.fold(labels, preds)

    def get(self) -> tuple[Any, Any]:
        """Return (name, value) since the last `reset_local`; nan if there was no batch.  It blocks."""
        return self.name, self._value(0)

    def get_global(self) -> tuple[Any, Any]:
        """Return (name, value) since the last `reset`; nan if there was no batch.  It blocks."""
        return self.name, self._value(1)

    def running(self) -> tuple[Any, Any]:
        """Return the (local, global) running sums, in the structure of `pure.init()`; None for each before the first batch."""
        rule = self._pure()
        return _form(rule, self._sums[0], True), _form(rule, self._sums[1], True)

    def set_sums(self, sums: Any, global_sums: Any) -> None:
        """Replace the running sums, for example by those of a train step that accumulated the pure metric itself.

        Args:
            sums: local sums, as returned by the `update` of the pure metric.
            global_sums: global sums in the same form.  The arrays are stored without a copy, so do not donate them.
        """
        self._sums, self._host = (sums, global_sums), None

    def _value(self, which: int) -> Any:
        rule, sums = self._pure(), read([self])[0][which]
        if sums is None:
            return float("nan")
        with np.errstate(all="ignore"):  # a perplexity may overflow
            value = np.asarray(next(iter(rule.compute(_form(rule, sums, False)).values())))
        return float(value) if not value.ndim else value

    def _counts(self, which: int) -> _Assigned:
        sums = read([self])[0][which]
        if sums is None:
            return _Assigned(0.0, 0)
        if isinstance(sums, _Assigned):
            return _Assigned(float(sums.total), int(sums.count))
        # The sums of some metrics are one array, such as a confusion matrix: return a sum for which sum / count is the value.
        if isinstance(sums, np.ndarray):
            count = self._number(which, sums)
            return _Assigned(self._value(which) * count if count else 0.0, count)
        return _Assigned(float(sums[0] - sums[1] if len(sums) == 3 else sums[0]), int(sums[-1]))

    def _number(self, which: int, sums: np.ndarray) -> int:
        """Return the `num_inst` of a metric whose running sums are one array of counts: their sum.

        which: 0 for the local sums, 1 for the global ones.
        """
        return int(sums.sum())

    def _assign(self, which: int, **part: Any) -> None:
        written = self._counts(which)._replace(**part)
        self._sums = (written, self._sums[1]) if which == 0 else (self._sums[0], written)
        self._host = None

    sum_metric = _sum(0, "total", "The local sum; reading it blocks.")
    num_inst = _sum(0, "count", "Number of instances in the local sum; reading it blocks.")
    global_sum_metric = _sum(1, "total", "The global sum; reading it blocks.")
    global_num_inst = _sum(1, "count", "Number of instances in the global sum; reading it blocks.")


class UpdatesMetric(DeviceMetric):
    """A DeviceMetric that counts updates: `num_inst` is their number if the sums are one array, not a (sum, count) pair."""

    _parts = 1  # increment of num_inst per update

    def reset(self) -> None:
        """Reset the local and the global sums."""
        super().reset()
        self._updates = (0, 0)

    def reset_local(self) -> None:
        """Reset the local sums; the global sums are unchanged."""
        super().reset_local()
        self._updates = (0, self._updates[1])

    def set_sums(self, sums: Any, global_sums: Any) -> None:
        """Replace the running sums, and count an update."""
        super().set_sums(sums, global_sums)
        self._updates = (self._updates[0] + self._parts, self._updates[1] + self._parts)

    def _number(self, which: int, sums: np.ndarray) -> int:
        return self._updates[which]


# ------------------------------------------------------------------------------------------------ helpers
def _constructor(arguments: Mapping[str, Any]) -> Any:
    """Return the `__init__` of a `DeviceMetric` with these arguments."""
    at = [*arguments].index("name") + 1
    names = [*[*arguments][:at], "output_names", "label_names", *[*arguments][at:]]
    parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=arguments.get(n)) for n in names]
    signature = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *parameters])

    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self, *values = bound.arguments.values()
        given = dict(zip(names, values, strict=True))
        settings = {name: given[name] for name in arguments if name != "name"}
        vars(self).update(settings)
        usual = (given[name] for name in ("name", "output_names", "label_names"))
        DeviceMetric.__init__(self, settings, *usual, **{name: given[name] for name in names[: at - 1]})

    setattr(__init__, "__signature__", signature)  # noqa: B010 (pyright: functions have no such attribute)
    return __init__


@functools.lru_cache(maxsize=512)
@made
def _made(make: Callable[..., Metric], settings: tuple[tuple[str, Any], ...]) -> Metric:
    """Create the pure metric; cached, because compiled programs are cached by the identity of the metric object."""
    return make(**dict(settings))


def _form(rule: Metric, sums: Any, cast: bool) -> Any:
    """Convert sums that the user assigned to the structure of `rule.init()`; return other sums unchanged.

    cast: also cast them to the dtypes of `rule.init()`.
    """
    if not isinstance(sums, _Assigned):
        return sums
    zero: Any = jax.eval_shape(rule.init)
    parts = (sums.total, 0.0, sums.count) if len(zero) == 3 else sums
    return tuple(np.asarray(p, z.dtype if cast else None) for p, z in zip(parts, zero, strict=True))


def read(metrics: Sequence[EvalMetric]) -> list[tuple[Any, Any]]:
    """Return the (local, global) sums of the device metrics among `metrics`, as NumPy arrays.

    It blocks once for all of them, or not at all if they were read before.
    """
    device = [m for m in metrics if isinstance(m, DeviceMetric)]
    unread = [m for m in device if m._host is None]
    values: list[Any] = [m._sums for m in unread]
    if any(isinstance(x, jax.Array) for x in jax.tree.leaves(values)):
        values = counters.read(values)  # sync: the caller reads a value
    for metric, value in zip(unread, values, strict=True):
        metric._host = value
    return [m._host or (None, None) for m in device]
