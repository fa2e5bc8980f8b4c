"""Schedules by name and from functions; a run's schedule; schedules for optax.

>>> import optax
>>> adam = optax.adam(as_optax("cosine", max_update=100, base_lr=0.1))  # an optax optimizer with a schedule of jfit
>>> round(float(as_schedule(optax.cosine_decay_schedule(0.1, 100))(51)), 3)  # and the other way round
0.05
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jax import Array

from jfit.ops.registry import nearest
from jfit.optim import schedules
from jfit.optim.schedules import Schedule, unasked
from jfit.optim.spans import check_unit, fraction, unit_length

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    name: getattr(schedules, name) for name in ("factor", "multifactor", "poly", "cosine", "constant", "warmup_linear")
}


def as_schedule(spec: Any, **params: Any) -> Schedule:
    """The schedule that `spec` means.

    Args:
        spec: a `Schedule`, a name with `params`, a number (constant rate), a function `(count, base) -> rate` with count
            from 1, or an optax schedule: a function of one argument, which gets count - 1 and knows no base.
        **params: parameters of a named schedule; for a function `unit="epoch"` or "fraction": it gets so much of the run as
            is done before the update, a float, instead of its number.

    Returns:
        A `Schedule`.

    Raises:
        ValueError: unknown name or parameter, or a parameter missing.
        TypeError: `spec` is none of the above.

    Example:
        >>> import optax
        >>> half = as_schedule(optax.exponential_decay(1.0, 1, 0.5))
        >>> half.absolute, float(half(1)), float(half(2))
        (True, 1.0, 0.5)
        >>> by_epoch = as_schedule(lambda epoch: 0.5 / (1 + epoch), unit="epoch").over(updates_per_epoch=10)
        >>> float(by_epoch(1)), float(by_epoch(11))
        (0.5, 0.25)
    """
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, str):
        return _named(spec, params)
    if isinstance(spec, int | float) and not isinstance(spec, bool):
        return schedules.constant(float(spec))
    if callable(spec):
        return _of_function(spec, **params)
    raise TypeError(f"a schedule is a name, a number, a Schedule or a function of the update number; found {spec!r}.")


def run_schedule(
    schedule: Any,
    given: Mapping[str, Any] | None = None,
    base_lr: float | None = None,
    updates: int | None = None,
    updates_per_epoch: int | None = None,
) -> Schedule | None:
    """The schedule of a run, all lengths in updates; a named one starts at `base_lr` and runs to the end unless told otherwise.

    Args:
        schedule: as for `as_schedule`; None for none.
        given: parameters of a named schedule, or `unit` of a function.
        base_lr: the optimizer's learning rate.
        updates: number of updates of the run, None where it is not known.
        updates_per_epoch: number of updates of an epoch, None where it is not known.

    Raises:
        ValueError: an unknown name or parameter, or a number of updates is needed and not known.

    Example:
        >>> float(run_schedule("cosine", base_lr=0.2, updates=10)(10))
        0.0
        >>> drop = run_schedule("factor", {"step": 2, "factor": 0.1, "unit": "epoch"}, 1.0, updates_per_epoch=100)
        >>> [round(float(drop(n)), 2) for n in (200, 201)]
        [1.0, 0.1]
    """
    if schedule is None:
        return None
    if not isinstance(schedule, str):
        if given and (isinstance(schedule, Schedule) or not callable(schedule) or set(given) != {"unit"}):
            raise ValueError("schedule_params= goes with a schedule by name; give the parameters to the schedule itself")
        return as_schedule(schedule, **(given or {})).over(updates, updates_per_epoch)
    params = dict(given or {})
    make = SCHEDULES.get(schedule.lower())
    wanted = inspect.signature(make).parameters if make else {}
    if "base_lr" in wanted and isinstance(base_lr, int | float):
        params.setdefault("base_lr", base_lr)
    if "max_update" in wanted and "max_update" not in params:
        if updates is None:
            raise ValueError(
                f"schedule {schedule!r} needs the number of updates, and this data does not tell its length; "
                "pass schedule_params={'max_update': ...}"
            )
        params["max_update"] = fraction(1.0)
    return as_schedule(schedule, **params).over(updates, updates_per_epoch)


def as_optax(schedule: Any, **params: Any) -> Callable[[Any], Array]:
    """The schedule as a function for optax, which counts updates from 0.

    Args:
        schedule: as for `as_schedule`.
        **params: parameters of a named schedule.

    Returns:
        `count -> rate`, count = updates done before, an int or an integer scalar, traced or not.

    Raises:
        ValueError: lengths in epochs or parts of the run: call `.over(...)` of the schedule first.

    Example:
        >>> rate = as_optax("factor", step=2, factor=0.5, base_lr=1.0)
        >>> [float(rate(n)) for n in range(4)]
        [1.0, 1.0, 0.5, 0.5]
    """
    found = as_schedule(schedule, **params)
    if found.pending is not None:
        found(1)  # says what is missing
    return lambda count: found(count + 1)


def _of_function(rate: Callable[..., Any], unit: str = "step") -> Schedule:
    name = getattr(rate, "__name__", type(rate).__name__)
    two = _positional(rate) >= 2

    def in_units_of(length: int) -> Schedule:
        if two:
            return Schedule(name, lambda count, base: rate((count - 1) / length, base))
        return Schedule(name, lambda count, base: rate((count - 1) / length), base_lr=None, absolute=True)

    def over(updates: int | None, updates_per_epoch: int | None) -> Schedule:
        return in_units_of(unit_length(unit, updates, updates_per_epoch, f"schedule {name}"))

    if check_unit(unit) != "step":
        return replace(in_units_of(1), rule=unasked(name), pending=over)
    if two:
        return Schedule(name, rate)
    return Schedule(name, lambda count, base: rate(count - 1), base_lr=None, absolute=True)


def _named(name: str, params: dict[str, Any]) -> Schedule:
    make = SCHEDULES.get(name.lower())
    if make is None:
        near = nearest(name, SCHEDULES) or ", ".join(map(repr, SCHEDULES))
        raise ValueError(f"unknown schedule {name!r}: the nearest names are {near}.")
    try:
        return make(**params)
    except TypeError as error:
        wanted = ", ".join(inspect.signature(make).parameters)
        raise ValueError(f"schedule {name!r} cannot be made ({error}); its parameters are {wanted}.") from None


def _positional(fn: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
