"""Restore schedulers from the attributes in a file, each checked before it is used.

Unchecked, a step of 0 would make the scheduler loop forever, and text instead of a number would fail during an update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from jfit.formats import FormatError
from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    LRScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)
from jfit.mxnet.optimizer.saved import Need

# Largest number of decays that a restored scheduler may have to apply at once; each takes about a microsecond.
_MOST_DECAYS = 1_000_000

Conflict = tuple[str, str] | None


def _is_steps(value: Any) -> bool:
    if not isinstance(value, list) or not value or not all(map(saved.is_length, value)):
        return False
    return all(earlier < later for earlier, later in itertools.pairwise(value))


_TO_THE_END = {
    "base_lr_orig": saved.NUMBER,
    "max_update": saved.WHOLE_FROM_1,
    "final_lr": saved.NUMBER,
    "max_steps": Need("max_update - warmup_steps", lambda value: type(value) is int),
}
_NEEDS: dict[type, Mapping[str, Need]] = {
    LRScheduler: {
        "base_lr": saved.NUMBER,
        "warmup_steps": saved.WHOLE,
        "warmup_begin_lr": saved.NUMBER,
        "warmup_final_lr": saved.NUMBER,
        "warmup_mode": Need("'linear' or 'constant'", lambda value: value in ("linear", "constant")),
    },
    FactorScheduler: {
        "step": saved.LENGTH,
        "factor": saved.UP_TO_1,
        "stop_factor_lr": saved.NUMBER,
        "count": saved.DONE,
    },
    MultiFactorScheduler: {
        "step": Need("an increasing list of finite numbers of at least 1", _is_steps),
        "cur_step_ind": saved.WHOLE,
        "factor": saved.UP_TO_1,
        "count": saved.DONE,
    },
    PolyScheduler: {**_TO_THE_END, "power": saved.FROM_0},
    CosineScheduler: _TO_THE_END,
}


def from_settings(settings: Mapping[str, Any], path: saved.Path = "settings", updates: int = 0) -> LRScheduler:
    """Create a scheduler from saved attributes: `vars(scheduler)`, including its progress, and the name of its class.

    Args:
        settings: the attributes, and the class name under "class".
        path: the file they were read from, for error messages.
        updates: number of updates that the file records.

    Raises:
        FormatError: the class is not one of MXNet's, an attribute is missing, or a value has the wrong type or range.

    Example:
        >>> from_settings({**vars(PolyScheduler(20, base_lr=0.4)), "class": "PolyScheduler"})(10)
        0.1
    """
    kinds = {
        "FactorScheduler": FactorScheduler(1),
        "MultiFactorScheduler": MultiFactorScheduler([1]),
        "PolyScheduler": PolyScheduler(1),
        "CosineScheduler": CosineScheduler(1),
    }
    scheduler = kinds.get(saved.class_of(settings))
    if scheduler is None or not vars(scheduler).keys() <= settings.keys():
        names = ", ".join(map(str, settings))[:200]
        found = f"found class {saved.class_of(settings)} with {names}; it cannot be created from these"
        raise FormatError(path, "lr_scheduler", found, "pass a scheduler of that class to the optimizer before loading.")
    vars(scheduler).update(progress_from(scheduler, settings, path, updates))
    return scheduler


def progress_from(
    scheduler: Any, settings: Mapping[str, Any], path: saved.Path = "settings", updates: int = 0
) -> dict[str, Any]:
    """Return those saved attributes that the scheduler has, after checking them.

    Args:
        scheduler: a scheduler of the saved class; for user-defined classes only the types of attributes are checked.
        settings, path, updates: as in `from_settings`.

    Raises:
        FormatError: a value has the wrong type or range.

    Example:
        >>> progress_from(FactorScheduler(1), {"step": 5, "other": 1})
        {'step': 5}
        >>> progress_from(FactorScheduler(1), {"step": 0}, "a.states")
        Traceback (most recent call last):
        jfit.formats.atomic.FormatError: a.states: lr_scheduler FactorScheduler, attribute 'step': found 0, expected a ...
    """
    where, now = f"lr_scheduler {type(scheduler).__name__}", getattr(scheduler, "__dict__", {})
    needs = {name: need for kind in reversed(type(scheduler).__mro__) for name, need in _NEEDS.get(kind, {}).items()}
    fresh = {}
    for name, value in now.items():
        if name in settings and (name in needs or saved.is_plain(settings[name])):
            fresh[name] = saved.checked(path, where, name, settings[name], needs.get(name) or saved.same_kind(value))
    after = {**now, **fresh}
    for kind, conflict in _CONFLICTS.items():
        if isinstance(scheduler, kind) and (problem := conflict(after, updates)):
            saved.reject(path, f"{where}, attribute {problem[0]!r}", after[problem[0]], problem[1])
    return fresh


def _count_lags(attributes: Mapping[str, Any], updates: int) -> Conflict:
    step, count = attributes["step"], attributes["count"]
    if (updates - count) / step <= _MOST_DECAYS:
        return None
    return "count", f"a count at most {_MOST_DECAYS} steps of {step} behind the {updates} updates of the file"


def _past_the_steps(attributes: Mapping[str, Any], updates: int) -> Conflict:
    most = len(attributes["step"])
    return ("cur_step_ind", f"at most {most}, the number of steps") if attributes["cur_step_ind"] > most else None


def _no_length(attributes: Mapping[str, Any], updates: int) -> Conflict:
    length = attributes["max_update"] - attributes["warmup_steps"]
    if not length:
        return "max_update", f"not warmup_steps ({attributes['warmup_steps']}), because rates divide by the difference"
    return None if attributes["max_steps"] == length else ("max_steps", f"max_update - warmup_steps ({length})")


# scheduler class -> function (attributes by name, number of updates of the saved file) that checks the attributes against each
# other: returns (name of the wrong attribute, text of what was expected), or None if they are consistent
_CONFLICTS: dict[type, Callable[[Mapping[str, Any], int], Conflict]] = {
    FactorScheduler: _count_lags,
    MultiFactorScheduler: _past_the_steps,
    PolyScheduler: _no_length,
    CosineScheduler: _no_length,
}
