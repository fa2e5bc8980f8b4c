"""Learning-rate schedules as pure functions of the update number, which is 1 for the first update.

They return the values of MXNet 1.9.1's schedulers, but have no state: they can be called with any update number, in any order,
also a traced one.  The argument `base` replaces `base_lr` without recompiling.

A length (`step`, `max_update`, `warmup_steps`) is a number of updates, `epochs(n)` or `fraction(part)`; with `unit="epoch"` or
`unit="fraction"`, plain numbers are epochs or fractions of the run.  `fit` converts lengths to updates; elsewhere call
`.over(updates, updates_per_epoch)`.

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
>>> adam = optax.adam(as_optax("cosine", max_update=100, base_lr=0.1))  # an optax optimizer with a jfit schedule
>>> round(float(as_schedule(optax.cosine_decay_schedule(0.1, 100))(51)), 3)  # an optax schedule as a jfit schedule
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

from jfit.checks import at_least_0, name_hint, one_of, parameters_of
from jfit.programs import keyed

Rate = float | Array
Length = Any  # number of updates or `Span`; inside the factories below always a number of updates
# (update number, base rate) -> rate after the warm-up
RateRule = Callable[[Any, Rate], Rate]


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function: `schedule(count, base=None)`, where `count` is the number of the update, from 1.

    Attributes:
        name: name of the schedule, for messages.
        rule: `(count, base) -> rate` after the warm-up; count: number of the update, from 1; base: base learning rate.
        base_lr: base learning rate, used if the call passes no `base`.
        warmup_steps: updates with a number below this are the warm-up; 0: no warm-up.
        warmup_begin_lr: learning rate at update 0.
        warmup_mode: "linear" grows from `warmup_begin_lr` to the base rate, "constant" stays at `warmup_begin_lr`.
        absolute: whether the rule ignores `base` (optax schedules do).
        pending: `(updates, updates_per_epoch) -> Schedule`, converts lengths in epochs or fractions of the run to updates;
            None if all lengths are numbers of updates.

    Example:
        >>> drop = Schedule("drop", lambda count, base: base * 0.5 ** (count // 10), base_lr=0.1)
        >>> [round(float(drop(n)), 3) for n in (9, 10)]
        [0.1, 0.05]
    """

    name: str
    rule: RateRule
    base_lr: float | None = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"
    absolute: bool = False
    pending: Callable[[int | None, int | None], Schedule] | None = None

    def __post_init__(self) -> None:
        one_of(("linear", "constant"), **{f"schedule {self.name}: warmup_mode": self.warmup_mode})

    def __call__(self, count: Any, base: Rate | None = None) -> Array:
        """Return the learning rate of update number `count`.

        Args:
            count: number of the update, 1 for the first; int or integer scalar array, may be traced.
            base: base learning rate in place of `base_lr`; float or float32 scalar array, may be traced.  None: `base_lr`.

        Returns:
            float32 scalar.
        """
        start = self.base_lr if base is None else base
        start = jnp.asarray(0.0 if start is None else start, jnp.float32)
        rate = jnp.asarray(self.rule(count, start), jnp.float32)
        if not self.warmup_steps:
            return rate
        steps = operand(self.warmup_steps)
        climb = self.warmup_begin_lr + (start - self.warmup_begin_lr) * count / steps
        warm = climb if self.warmup_mode == "linear" else self.warmup_begin_lr
        return jnp.where(count < steps, warm, rate).astype(jnp.float32)

    def over(self, updates: int | None = None, updates_per_epoch: int | None = None) -> Schedule:
        """Convert all lengths to updates, for a run of the given length; `fit` calls this.

        Args:
            updates: number of updates of the run, or None if unknown.
            updates_per_epoch: number of updates per epoch, or None if unknown.

        Returns:
            `Schedule`.

        Raises:
            ValueError: a length is in epochs or fractions of the run, and the argument needed to convert it is None, or the
                resulting number of updates is invalid.

        Example:
            >>> half = multifactor([0.5], factor=0.1, base_lr=1.0).over(updates=10)
            >>> [round(float(half(n)), 2) for n in (5, 6)]
            [1.0, 0.1]
        """
        return self if self.pending is None else self.pending(updates, updates_per_epoch)


Make = TypeVar("Make", bound=Callable[..., Schedule])


def _in_any_unit(make: Make) -> Make:
    """Decorate a schedule factory whose lengths are numbers of updates, to accept `epochs(n)`, `fraction(part)` and `unit=`."""
    signature, name = inspect.signature(make), make.__name__

    @functools.wraps(make)
    def wrapped(*args: Any, unit: str = "step", **params: Any) -> Schedule:
        one_of(UNITS, unit=unit)
        bound = signature.bind(*args, **params).arguments
        warmup = bound.pop("warmup", {})
        arguments = _each_length({**bound, **warmup}, lambda length: _measured(length, unit))

        def over(updates: int | None, updates_per_epoch: int | None) -> Schedule:
            def counted(length: Any) -> Any:
                return length.updates(updates, updates_per_epoch) if isinstance(length, Span) else length

            settings = _each_length(arguments, counted)
            schedule = make(**settings)
            # the base learning rate is an argument of the rule, so it is not part of the key
            return replace(schedule, rule=keyed(schedule.rule, make, {k: v for k, v in settings.items() if k != "base_lr"}))

        values = [v for value in arguments.values() for v in (value if isinstance(value, list) else [value])]
        if not any(isinstance(v, Span) for v in values):
            return over(None, None)
        return Schedule(name, unknown_length(name), arguments.get("base_lr", 0.01), pending=over)

    return cast(Make, wrapped)


def unknown_length(name: str) -> RateRule:
    """Return a rule `(count, base) -> rate` that raises the error for lengths which are not converted to updates yet."""

    def rule(count: Any, base: Rate) -> Rate:
        problem = f"schedule {name} has lengths in epochs or fractions of a run of unknown length"
        raise ValueError(f"{problem}; pass the schedule to jfit.fit, or call .over(updates=..., updates_per_epoch=...) first.")

    return rule


@_in_any_unit
def factor(step: Length, factor: float = 1.0, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """rate = max(base * factor^floor((count - 1) / step), stop_factor_lr).

    count: number of the update, from 1.  base: the second argument of the call, else `base_lr`.

    Args:
        step: number of updates between two decays, `epochs(n)` or `fraction(part)`.
        factor: each decay multiplies the rate by this, at most 1.
        stop_factor_lr: lower bound of the rate.
        base_lr: base learning rate.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit`: unit of plain
            numbers, "step" (updates, the default), "epoch" or "fraction" (of the run).

    Returns:
        A `Schedule`.

    Raises:
        ValueError: step below 1.

    Example:
        >>> round(float(factor(step=3, factor=0.1, base_lr=1.0)(4)), 4)
        0.1

    Source: Apache MXNet 1.9.1, `FactorScheduler`.
    """
    if step < 1:
        raise ValueError(f"schedule factor: step is {step}; it must be at least 1 update.")
    decay = factor

    def rule(count: Any, base: Rate) -> Array:
        times = jnp.maximum((count - 1) // operand(step), 0)
        return jnp.where(times == 0, base, jnp.maximum(base * decay**times, stop_factor_lr))

    return Schedule("factor", rule, base_lr, **warmup)


@_in_any_unit
def multifactor(step: Sequence[Length], factor: float = 1.0, base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """rate = base * factor^n, where n is the number of entries of `step` below count.

    count: number of the update, from 1.  base: the second argument of the call, else `base_lr`.

    Args:
        step: positions after which the rate decays, strictly increasing: update numbers, `epochs(n)` or `fraction(part)`.
        factor: each decay multiplies the rate by this, at most 1.
        base_lr: base learning rate.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit`: unit of plain
            numbers, "step" (updates, the default), "epoch" or "fraction" (of the run).

    Returns:
        A `Schedule`.

    Raises:
        ValueError: steps below 1 or not increasing.

    Example:
        >>> round(float(multifactor([4, 9], 0.1, base_lr=0.3)(5)), 4)
        0.03

    Source: Apache MXNet 1.9.1, `MultiFactorScheduler`.
    """
    steps = tuple(step)
    if not steps or any(s < 1 for s in steps) or any(b <= a for a, b in itertools.pairwise(steps)):
        raise ValueError(f"schedule multifactor: step is {list(steps)}; it must be a strictly increasing list, from 1")
    decay = factor

    def rule(count: Any, base: Rate) -> Array:
        passed = sum((jnp.asarray(count > operand(s), jnp.int32) for s in steps), jnp.int32(0))
        return base * decay**passed

    return Schedule("multifactor", rule, base_lr, **warmup)


@_in_any_unit
def poly(max_update: Length, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0.0, **warmup: Any) -> Schedule:
    """rate = final + (base - final) * (1 - (count - warm) / (max_update - warm))^pwr, final from max_update on.

    count: number of the update, from 1; base, final and warm: `base_lr`, `final_lr` and `warmup_steps`.

    Args:
        max_update: number of the update that reaches `final_lr`; `fraction(1.0)` is the end of the run.
        base_lr: base learning rate.
        pwr: exponent.
        final_lr: learning rate at the end.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit`: unit of plain
            numbers, "step" (updates, the default), "epoch" or "fraction" (of the run).

    Returns:
        A `Schedule`.

    Raises:
        ValueError: max_update is below 1 or not after the warm-up.

    Example:
        >>> round(float(poly(max_update=20, base_lr=0.4)(10)), 4)
        0.1

    Source: Apache MXNet 1.9.1, `PolyScheduler`.
    """
    left = _part_left("poly", max_update, warmup)

    def rule(count: Any, base: Rate) -> Rate:
        return final_lr + (base - final_lr) * left(count) ** pwr

    return Schedule("poly", rule, base_lr, **warmup)


@_in_any_unit
def cosine(max_update: Length, base_lr: float = 0.01, final_lr: float = 0.0, **warmup: Any) -> Schedule:
    """rate = final + (base - final) * (1 + cos(pi * (count - warm) / (max_update - warm))) / 2, final from max_update on.

    count: number of the update, from 1; base, final and warm: `base_lr`, `final_lr` and `warmup_steps`.

    Args:
        max_update: number of the update that reaches `final_lr`; `fraction(1.0)` is the end of the run.
        base_lr: base learning rate.
        final_lr: learning rate at the end.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit`: unit of plain
            numbers, "step" (updates, the default), "epoch" or "fraction" (of the run).

    Returns:
        A `Schedule`.

    Raises:
        ValueError: max_update is below 1 or not after the warm-up.

    Example:
        >>> round(float(cosine(max_update=20, base_lr=0.4)(10)), 4)
        0.2

    Source: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983; Apache MXNet 1.9.1, `CosineScheduler`.
    """
    left = _part_left("cosine", max_update, warmup)

    def rule(count: Any, base: Rate) -> Rate:
        return final_lr + (base - final_lr) * (1 + jnp.cos(math.pi * (1 - left(count)))) / 2

    return Schedule("cosine", rule, base_lr, **warmup)


@_in_any_unit
def constant(base_lr: float = 0.01, **warmup: Any) -> Schedule:
    """rate = base, the base learning rate, for every update.

    Args:
        base_lr: base learning rate.
        **warmup: `warmup_steps`, `warmup_begin_lr`, `warmup_mode`, see `Schedule`; `unit`: unit of plain
            numbers, "step" (updates, the default), "epoch" or "fraction" (of the run).

    Returns:
        A `Schedule`.

    Example:
        >>> round(float(constant(0.5)(100)), 4)
        0.5
    """
    return Schedule("constant", lambda count, base: base, base_lr, **warmup)


@_in_any_unit
def warmup_linear(warmup_steps: Length, base_lr: float = 0.01, warmup_begin_lr: float = 0.0) -> Schedule:
    """rate = begin + (base - begin) * min(count / warmup_steps, 1).

    count: number of the update, from 1; base and begin: `base_lr` and `warmup_begin_lr`.

    Args:
        warmup_steps: length of the warm-up in updates, `epochs(n)` or `fraction(part)`.
        base_lr: base learning rate, reached at the end of the warm-up.
        warmup_begin_lr: learning rate at update 0.

    Returns:
        A `Schedule`.

    Example:
        >>> round(float(warmup_linear(10, base_lr=1.0)(5)), 4)
        0.5
    """
    return replace(constant(base_lr, warmup_steps=warmup_steps, warmup_begin_lr=warmup_begin_lr), name="warmup_linear")


@_in_any_unit
def one_cycle(
    max_update: Length,
    base_lr: float = 0.01,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    anneal: str = "cosine",
    pct_final: float = 0.85,
) -> Schedule:
    """The rate grows from base / div_factor to base, and falls to base / (div_factor * final_div_factor): the one-cycle policy.

    With n = count - 1, count the number of the update, from 1: the rate is base / div_factor at n = 0, base at n = pct_start *
    max_update, and base / (div_factor * final_div_factor) from n = max_update on.  "linear" is base / div_factor again at n =
    pct_final * max_update.  The rates of the first and last update of a run of max_update updates are those of n = 0 and n =
    max_update - 1.

    Args:
        max_update: number of updates of the cycle; `fraction(1.0)` is the whole run.
        base_lr: base learning rate, the maximum of the cycle.
        pct_start: fraction of the cycle in which the rate grows.
        div_factor: the first rate is the base rate divided by this.
        final_div_factor: the last rate is the first rate divided by this.
        anneal: "cosine" (half a cosine wave up and another one down) or "linear".
        pct_final: fraction of the cycle at which "linear" reaches the first rate again; not used by "cosine".

    Returns:
        A `Schedule`.

    Raises:
        ValueError: `anneal` is another value, or a phase of the cycle has no update.

    Example:
        >>> cycle = one_cycle(100, base_lr=1.0, anneal="linear")
        >>> [round(float(cycle(n + 1)), 3) for n in (0, 15, 30, 85)]
        [0.04, 0.52, 1.0, 0.04]

    Source: Smith and Topin 2018, https://arxiv.org/abs/1708.07120; the values are those of `optax.cosine_onecycle_schedule` and
    `optax.linear_onecycle_schedule`.  The momentum is not changed.
    """
    one_of(("cosine", "linear"), **{"schedule one_cycle: anneal": anneal})
    first, last = 1 / div_factor, 1 / (div_factor * final_div_factor)
    middle = [(int(pct_final * max_update), first)] if anneal == "linear" else []
    knots = [(0, first), (int(pct_start * max_update), 1.0), *middle, (int(max_update), last)]
    if any(b[0] <= a[0] for a, b in itertools.pairwise(knots)):
        places = [n for n, _ in knots]
        raise ValueError(f"schedule one_cycle: the rate changes direction at the updates {places}; they must increase.")

    def rule(count: Any, base: Rate) -> Array:
        rate = jnp.asarray(base * last)
        for (low, start), (high, end) in reversed(list(itertools.pairwise(knots))):
            part = (count - 1 - operand(low)) / operand(high - low)
            part = (1 - jnp.cos(jnp.pi * part)) / 2 if anneal == "cosine" else part
            rate = jnp.where(count - 1 < operand(high), base * (start + (end - start) * part), rate)
        return rate

    return Schedule("one_cycle", rule, base_lr)


def _part_left(name: str, max_update: int, warmup: dict[str, Any]) -> Callable[[Any], Array]:
    warm = warmup.get("warmup_steps", 0)
    if max_update < 1 or max_update <= warm:
        raise ValueError(f"schedule {name}: max_update is {max_update}; it must be at least 1 and above warmup_steps ({warm})")
    return lambda count: jnp.clip(1.0 - (count - operand(warm)) / operand(max_update - warm), 0.0, 1.0)


# ------------------------------------------------------------------------------------------------ by name, from functions
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    fn.__name__: fn for fn in (factor, multifactor, poly, cosine, constant, warmup_linear, one_cycle)
}


def as_schedule(spec: Any, **params: Any) -> Schedule:
    """Convert `spec` to a `Schedule`.

    Args:
        spec: a `Schedule`, a name with `params`, a number (constant rate), a function `(count, base) -> rate` with count
            from 1, or an optax schedule: a function of one argument, called with count - 1.
        **params: parameters of a named schedule.  For a function, `unit="epoch"` or "fraction": it is called with the number
            of epochs, or the fraction of the run, done before the update (a float) instead of the update number.

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
    raise TypeError(f"a schedule must be a name, a number, a Schedule or a function of the update number, but got {spec!r}.")


def run_schedule(
    schedule: Any,
    params: Mapping[str, Any] | None = None,
    base_lr: float | None = None,
    updates: int | None = None,
    updates_per_epoch: int | None = None,
) -> Schedule | None:
    """Create the schedule of a run, with all lengths in updates.

    Unless `params` has them, a named schedule gets `base_lr` as base learning rate and, if it has the parameter `max_update`,
    `updates` as its end.

    Args:
        schedule: see `as_schedule`; None for no schedule.
        params: dict of the parameters of a named schedule, or of `unit` for a function; None: {}.
        base_lr: learning rate of the optimizer; None: the default of the schedule.
        updates: number of updates of the run, or None if unknown.
        updates_per_epoch: number of updates per epoch, or None if unknown.

    Returns:
        `Schedule`, or None if `schedule` is None.

    Raises:
        ValueError: unknown name or parameter, or `updates` or `updates_per_epoch` is needed but None.

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
        if params and (isinstance(schedule, Schedule) or not callable(schedule) or set(params) != {"unit"}):
            raise ValueError("schedule_params= needs a schedule by name; pass the parameters to the schedule itself")
        return as_schedule(schedule, **(params or {})).over(updates, updates_per_epoch)
    settings = dict(params or {})
    make = SCHEDULES.get(schedule.lower())
    accepted = inspect.signature(make).parameters if make else {}
    if "base_lr" in accepted and isinstance(base_lr, int | float):
        settings.setdefault("base_lr", base_lr)
    if "max_update" in accepted:
        settings.setdefault("max_update", fraction(1.0))
    return as_schedule(schedule, **settings).over(updates, updates_per_epoch)


def as_optax(schedule: Any, **params: Any) -> Callable[[Any], Array]:
    """Convert a schedule to an optax schedule, a function of the number of updates done (from 0).

    Args:
        schedule: as for `as_schedule`.
        **params: parameters of a named schedule.

    Returns:
        `count -> rate`, where count is the number of updates done: int or integer scalar array, may be traced.  It raises a
        ValueError if the schedule has lengths in epochs or fractions of the run; call the schedule's `.over(...)` first.

    Example:
        >>> rate = as_optax("factor", step=2, factor=0.5, base_lr=1.0)
        >>> [float(rate(n)) for n in range(4)]
        [1.0, 1.0, 0.5, 0.5]
    """
    pure = as_schedule(schedule, **params)
    return lambda count: pure(count + 1)


def _of_function(rate: Callable[..., Any], unit: str = "step") -> Schedule:
    name = getattr(rate, "__name__", type(rate).__name__)
    positional = [p for p in parameters_of(rate).values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_base = len(positional) >= 2

    def called_with(argument: Callable[[Any], Any]) -> Schedule:
        if takes_base:
            return Schedule(name, lambda count, base: rate(argument(count), base))
        return Schedule(name, lambda count, base: rate(argument(count)), base_lr=None, absolute=True)

    def over(updates: int | None, updates_per_epoch: int | None) -> Schedule:
        length = unit_length(unit, updates, updates_per_epoch, f"schedule {name}")
        return called_with(lambda count: (count - 1) / length)

    one_of(UNITS, unit=unit)
    if unit == "step":  # jfit counts updates from 1, optax from 0
        return called_with(lambda count: count if takes_base else count - 1)
    return replace(called_with(lambda count: count), rule=unknown_length(name), pending=over)


def _named(name: str, params: dict[str, Any]) -> Schedule:
    make = SCHEDULES.get(name.lower())
    if make is None:
        raise ValueError(f"unknown schedule {name!r}; {name_hint(name, SCHEDULES)}")
    try:
        return make(**params)
    except TypeError as error:
        names = ", ".join(inspect.signature(make).parameters)
        raise ValueError(f"schedule {name!r} could not be created ({error}); its parameters are {names}.") from None


UNITS = ("step", "epoch", "fraction")
# names of the schedule parameters that are lengths
LENGTHS = ("step", "max_update", "warmup_steps")


@dataclass(frozen=True)
class Span:
    """A length in epochs or as a fraction of the run; create it with `epochs` or `fraction`.

    Attributes:
        amount: number of epochs, or fraction of the run from 0 to 1.
        unit: "epoch" or "fraction".

    Example:
        >>> Span(2, "epoch")
        epochs(2)
    """

    amount: float
    unit: str

    def __post_init__(self) -> None:
        at_least_0(**{repr(self): self.amount})
        if self.unit == "fraction" and self.amount > 1:
            raise ValueError(f"{self!r}: a fraction of the run must be at most 1; use epochs(n) for epochs")

    def __repr__(self) -> str:
        return f"{'epochs' if self.unit == 'epoch' else 'fraction'}({self.amount!r})"

    def updates(self, total: int | None = None, per_epoch: int | None = None) -> int:
        """Convert this length to a number of updates, rounded to the nearest integer.

        Args:
            total: number of updates of the run, or None if unknown.
            per_epoch: number of updates per epoch, or None if unknown.

        Returns:
            int.

        Raises:
            ValueError: `per_epoch` (for epochs) or `total` (for a fraction of the run) is None.
        """
        return math.floor(self.amount * unit_length(self.unit, total, per_epoch, repr(self)) + 0.5)


def epochs(count: float) -> Span:
    """A schedule length in epochs, as in `cosine(epochs(90), warmup_steps=epochs(5))`.

    Args:
        count: number of epochs.

    Returns:
        `Span`.

    Example:
        >>> epochs(1.5).updates(per_epoch=100)
        150
    """
    return Span(count, "epoch")


def fraction(part: float) -> Span:
    """A schedule length as a fraction of the run, as in `multifactor([fraction(0.5), fraction(0.75)], 0.1)`.

    Args:
        part: number from 0 to 1.

    Returns:
        `Span`.

    Example:
        >>> fraction(0.25).updates(total=1000)
        250
    """
    return Span(part, "fraction")


def unit_length(unit: str, total: int | None, per_epoch: int | None, who: str) -> int:
    """Number of updates per unit: 1 for "step", `per_epoch` for "epoch", `total` for "fraction".

    Raises:
        ValueError: `per_epoch` or `total` is needed but None; `who` (such as "epochs(3)") is the start of the message.

    Example:
        >>> unit_length("epoch", 100, 10, "epochs(3)")
        10
    """
    updates = {"step": 1, "epoch": per_epoch, "fraction": total}[unit]
    if updates is None:
        what = "an epoch" if unit == "epoch" else "the run"
        problem = f"{who}: the number of updates of {what} is unknown, because the training data has no length"
        raise ValueError(f"{problem}; give the schedule numbers of updates, or train on data with a length.")
    return updates


def operand(length: float) -> float:
    """Convert a length to a float if it overflows int32, the dtype of update counts, so that it can be compared with them.

    Example:
        >>> operand(5), operand(10**10)
        (5, 10000000000.0)
    """
    return float(length) if abs(length) >= 2**31 else length


def _measured(value: Any, unit: str) -> Any:
    """Convert a length of a schedule to a `Span`; a number of updates is returned unchanged."""
    if isinstance(value, Span | bool) or not isinstance(value, int | float):
        return value
    if unit != "step":
        return Span(value, unit)
    return Span(value, "fraction") if isinstance(value, float) and 0 < value < 1 else value


def _each_length(params: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply a function to the lengths among the parameters of a schedule, also in lists."""

    def changed(value: Any) -> Any:
        return [change(v) for v in value] if isinstance(value, list | tuple) else change(value)

    return {name: changed(value) if name in LENGTHS else value for name, value in params.items()}
