"""Learning-rate schedules as pure functions: the rate of update number `count`, which is 1 for the first update.

MXNet 1.9.1's schedulers give the same values here, but keep no state: any update number may be asked for, in any order,
and the number may be traced.  `base` replaces `base_lr` without a second compile.

Every length (`step`, `max_update`, `warmup_steps`) is a number of updates, `epochs(n)` or `fraction(part)` (see
`jfit.optim.spans`); `unit="epoch"` or `unit="fraction"` says what plain numbers count.  `fit` knows how long the run is;
elsewhere `.over(updates, updates_per_epoch)` tells the schedule.

>>> from jfit.optim.schedules import cosine, factor
>>> drop = factor(step=5, factor=0.5, base_lr=0.1)
>>> [round(float(drop(n)), 4) for n in (1, 5, 6, 11)]
[0.1, 0.1, 0.05, 0.025]
>>> round(float(drop(6, base=1.0)), 4)
0.5
>>> one_cycle = cosine(1.0, base_lr=0.4, warmup_steps=0.3, unit="fraction").over(updates=100)
>>> [round(float(one_cycle(n)), 4) for n in (15, 30, 65, 100)]
[0.2, 0.4, 0.2, 0.0]

>>> import optax
>>> adam = optax.adam(as_optax("cosine", max_update=100, base_lr=0.1))  # an optax optimizer with a schedule of jfit
>>> round(float(as_schedule(optax.cosine_decay_schedule(0.1, 100))(51)), 3)  # and the other way round
0.05
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import jax.numpy as jnp
from jax import Array

from jfit.ops.registry import nearest
from jfit.optim.spans import Span, check_unit, fraction, has_spans, in_updates, measured, operand, unit_length

Rate = float | Array
Length = Any  # a number of updates, or a `Span`, which is one by the time that the body of a factory sees it
# (update number, base rate) -> rate after the warm-up
RateRule = Callable[[Any, Rate], Rate]


@dataclass(frozen=True)
class Schedule:
    """rate = schedule(count, base=None), count = number of the update, from 1.

    Attributes:
        name: the name it is known by.
        rule: `(count, base) -> rate` after the warm-up.
        base_lr: the base rate where the call gives none.
        warmup_steps: updates with a smaller number than this are warm-up.
        warmup_begin_lr: rate at update 0.
        warmup_mode: "linear" climbs from begin to base, "constant" stays at begin.
        absolute: the rule ignores `base` (a schedule of optax).
        follows_base: in MXNet, `learning_rate` of the optimizer moves the base of this scheduler.
        warmup_final_lr: where the warm-up ends if not at the base.
        pending: `(updates, updates_per_epoch) -> Schedule` where lengths are still in epochs or parts of the run.
    """

    name: str
    rule: RateRule
    base_lr: float | None = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"
    absolute: bool = False
    follows_base: bool = True
    warmup_final_lr: float | None = None
    pending: Callable[[int | None, int | None], Schedule] | None = None

    def __post_init__(self) -> None:
        if self.warmup_mode not in ("linear", "constant"):
            raise ValueError(f"schedule {self.name}: warmup_mode is {self.warmup_mode!r}, 'linear' or 'constant' is needed.")
        if isinstance(self.warmup_steps, Span) or self.warmup_steps < 0 or self.warmup_steps != int(self.warmup_steps):
            raise ValueError(f"schedule {self.name}: warmup_steps is {self.warmup_steps}, a whole number from 0 on is needed.")
        top = self.base_lr if self.warmup_final_lr is None else self.warmup_final_lr
        if top is not None and top < self.warmup_begin_lr:
            raise ValueError(
                f"schedule {self.name}: base_lr {top} is below warmup_begin_lr {self.warmup_begin_lr}; "
                "a warm-up climbs, so base_lr needs to be the larger one."
            )

    def __call__(self, count: Any, base: Rate | None = None) -> Array:
        """The rate of update number `count`.

        Args:
            count: number of the update, 1 for the first; a Python int or an integer scalar, traced or not.
            base: replaces `base_lr`; a number or a float32 scalar, traced or not.

        Returns:
            float32 scalar.
        """
        start = self.base_lr if base is None else base
        start = jnp.asarray(0.0 if start is None else start, jnp.float32)
        rate = jnp.asarray(self.rule(count, start), jnp.float32)
        if not self.warmup_steps:
            return rate
        goal = start if self.warmup_final_lr is None else self.warmup_final_lr
        steps = operand(self.warmup_steps)
        climb = self.warmup_begin_lr + (goal - self.warmup_begin_lr) * count / steps
        warm = climb if self.warmup_mode == "linear" else self.warmup_begin_lr
        return jnp.where(count < steps, warm, rate).astype(jnp.float32)

    def over(self, updates: int | None = None, updates_per_epoch: int | None = None) -> Schedule:
        """The schedule for a run of this length, all lengths in updates; `fit` asks for it.

        Args:
            updates: updates of the run; None where it is not known.
            updates_per_epoch: updates of an epoch; None where it is not known.

        Raises:
            ValueError: a length is in epochs or parts of the run, and that is not known, or the updates it becomes do not suit.

        Example:
            >>> half = multifactor([0.5], factor=0.1, base_lr=1.0).over(updates=10)
            >>> [round(float(half(n)), 2) for n in (5, 6)]
            [1.0, 0.1]
        """
        return self if self.pending is None else self.pending(updates, updates_per_epoch)

    def overridden(self, learning_rate: float) -> Schedule:
        """The schedule that MXNet follows when an optimizer gets both `lr_scheduler` and `learning_rate`.

        Factor and MultiFactor start from the new rate though their warm-up still ends at the old one; Poly and Cosine
        ignore it.

        Example:
            >>> round(float(poly(max_update=20, base_lr=0.1).overridden(0.5)(1)), 5)
            0.09025
        """
        if not self.follows_base or self.pending is not None:
            return self
        return replace(self, base_lr=learning_rate, warmup_final_lr=self.base_lr, warmup_begin_lr=self.warmup_begin_lr)


Make = TypeVar("Make", bound=Callable[..., Schedule])


def _in_any_unit(make: Make) -> Make:
    """Lets every length be a number of updates, `epochs(n)` or `fraction(part)`; `unit=` is what plain numbers count."""
    signature, name = inspect.signature(make), make.__name__

    @functools.wraps(make)
    def made(*args: Any, unit: str = "step", **params: Any) -> Schedule:
        bound = signature.bind(*args, **params).arguments
        warmup = bound.pop("warmup", {})
        given = measured({**bound, **warmup}, unit)
        return _waiting(name, make, given) if has_spans(given) else make(**given)

    return cast(Make, made)


def _waiting(name: str, make: Callable[..., Schedule], given: dict[str, Any]) -> Schedule:
    """A schedule that can be asked once it knows how long the run is."""

    def over(updates: int | None, updates_per_epoch: int | None) -> Schedule:
        try:
            return make(**in_updates(given, updates, updates_per_epoch))
        except ValueError as error:
            lengths = ", ".join(f"{k}={v!r}" for k, v in given.items() if has_spans({k: v}))
            raise ValueError(f"{error} ({name} with {lengths}; updates: {updates}, in an epoch: {updates_per_epoch})") from None

    return Schedule(name, unasked(name), given.get("base_lr", 0.01), pending=over)


def unasked(name: str) -> RateRule:
    """The rule of a schedule that does not know yet how long the run is: a sentence."""

    def rule(count: Any, base: Rate) -> Rate:
        raise ValueError(
            f"schedule {name} counts in epochs or parts of a run, whose length is not known; give it to "
            "jfit.fit, or call .over(updates=..., updates_per_epoch=...) first."
        )

    return rule


@_in_any_unit
def factor(step: Length, factor: float = 1.0, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """rate = max(base * factor^floor((count - 1) / step), stop_factor_lr).

    Args:
        step: updates (or epochs, or part of the run) between two decays.
        factor: what each decay multiplies by, at most 1.
        stop_factor_lr: the rate never decays below.
        base_lr: rate at the start.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit` of the lengths.

    Returns:
        A `Schedule`.

    Raises:
        ValueError: step below 1 or factor above 1.

    Example:
        >>> round(float(factor(step=3, factor=0.1, base_lr=1.0)(4)), 4)
        0.1

    Source: Apache MXNet 1.9.1, `FactorScheduler`.
    """
    if step < 1:
        raise ValueError(f"schedule factor: step is {step}, at least 1 update between decays is needed.")
    _check_factor("factor", factor)
    decay = factor

    def rule(count: Any, base: Rate) -> Array:
        times = jnp.maximum((count - 1) // operand(step), 0)
        return jnp.where(times == 0, base, jnp.maximum(base * decay**times, stop_factor_lr))

    return Schedule("factor", rule, base_lr, **warmup)


@_in_any_unit
def multifactor(step: Sequence[Length], factor: float = 1.0, base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """rate = base * factor^(how many of the steps lie below count).

    Args:
        step: update numbers (or epochs, or parts of the run) after which the rate decays, strictly increasing.
        factor: what each decay multiplies by, at most 1.
        base_lr: rate at the start.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit` of the lengths.

    Returns:
        A `Schedule`.

    Raises:
        ValueError: steps below 1 or not increasing, factor above 1.

    Example:
        >>> round(float(multifactor([4, 9], 0.1, base_lr=0.3)(5)), 4)
        0.03

    Source: Apache MXNet 1.9.1, `MultiFactorScheduler`.
    """
    steps = tuple(step)
    if not steps or any(s < 1 for s in steps) or any(b <= a for a, b in itertools.pairwise(steps)):
        raise ValueError(f"schedule multifactor: step is {list(steps)}, an increasing list of numbers from 1 on is needed.")
    _check_factor("multifactor", factor)
    decay = factor

    def rule(count: Any, base: Rate) -> Array:
        passed = sum((jnp.asarray(count > operand(s), jnp.int32) for s in steps), jnp.int32(0))
        return base * decay**passed

    return Schedule("multifactor", rule, base_lr, **warmup)


@_in_any_unit
def poly(max_update: Length, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0.0, **warmup: Any) -> Schedule:
    """rate = final + (base - final) * (1 - (count - warm) / (max_update - warm))^pwr, final from max_update on.

    Args:
        max_update: the update that reaches `final_lr`; `fraction(1.0)` is the last.
        base_lr: rate at the start.
        pwr: exponent.
        final_lr: rate at the end.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit` of the lengths.

    Returns:
        A `Schedule`.

    Raises:
        ValueError: max_update below 1 or not after the warm-up.

    Example:
        >>> round(float(poly(max_update=20, base_lr=0.4)(10)), 4)
        0.1

    Source: Apache MXNet 1.9.1, `PolyScheduler`.
    """
    left = _part_left("poly", max_update, warmup)

    def rule(count: Any, base: Rate) -> Rate:
        return final_lr + (base - final_lr) * left(count) ** pwr

    return Schedule("poly", rule, base_lr, follows_base=False, **warmup)


@_in_any_unit
def cosine(max_update: Length, base_lr: float = 0.01, final_lr: float = 0.0, **warmup: Any) -> Schedule:
    """rate = final + (base - final) * (1 + cos(pi * (count - warm) / (max_update - warm))) / 2, final from max_update on.

    Args:
        max_update: the update that reaches `final_lr`; `fraction(1.0)` is the last.
        base_lr: rate at the start.
        final_lr: rate at the end.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit` of the lengths.

    Returns:
        A `Schedule`.

    Raises:
        ValueError: max_update below 1 or not after the warm-up.

    Example:
        >>> round(float(cosine(max_update=20, base_lr=0.4)(10)), 4)
        0.2

    Source: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983; Apache MXNet 1.9.1, `CosineScheduler`.
    """
    left = _part_left("cosine", max_update, warmup)

    def rule(count: Any, base: Rate) -> Rate:
        return final_lr + (base - final_lr) * (1 + jnp.cos(math.pi * (1 - left(count)))) / 2

    return Schedule("cosine", rule, base_lr, follows_base=False, **warmup)


@_in_any_unit
def constant(base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """rate = base.

    Example:
        >>> round(float(constant(0.5)(100)), 4)
        0.5
    """
    return Schedule("constant", lambda count, base: base, base_lr, **warmup)


@_in_any_unit
def warmup_linear(warmup_steps: Length, base_lr: float = 0.01, warmup_begin_lr: float = 0.0) -> Schedule:
    """rate = begin + (base - begin) * min(count / warmup_steps, 1).

    Example:
        >>> round(float(warmup_linear(10, base_lr=1.0)(5)), 4)
        0.5
    """
    return replace(constant(base_lr, warmup_steps=warmup_steps, warmup_begin_lr=warmup_begin_lr), name="warmup_linear")


def _check_factor(name: str, value: float) -> None:
    if value > 1:
        raise ValueError(f"schedule {name}: factor is {value}, it needs to be at most 1 so that the rate never grows.")


def _part_left(name: str, max_update: int, warmup: dict[str, Any]) -> Callable[[Any], Array]:
    warm = warmup.get("warmup_steps", 0)
    if max_update < 1 or max_update <= warm:
        raise ValueError(f"schedule {name}: max_update is {max_update}, more than warmup_steps ({warm}) is needed.")
    return lambda count: jnp.clip(1.0 - (count - operand(warm)) / operand(max_update - warm), 0.0, 1.0)


# ------------------------------------------------------------------------------------------------ by name, from functions
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    fn.__name__: fn for fn in (factor, multifactor, poly, cosine, constant, warmup_linear)
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
        return constant(float(spec))
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
    """The schedule of a run, all lengths in updates; a named one starts at `base_lr` and runs to the end by default.

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
