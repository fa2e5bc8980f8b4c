"""The settings of an optimizer as plain data, for files: rate, decay, parameters of the rule, the scheduler's progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jfit.mxnet.optimizer.lr_scheduler import from_settings

if TYPE_CHECKING:
    from jfit.mxnet.optimizer.base import Optimizer

_SETTINGS = ("lr", "wd", "clip_gradient", "begin_num_update")
_TABLES = ("lr_mult", "wd_mult", "idx2name")
_DAMAGED = "the states say {0} is {1}; {2} is needed there: the file is damaged, load another one."


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Class, rate, decay, multipliers, parameters of the rule, scalars that parameters share, scheduler, as plain data.

    Example:
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> settings_of(SGD(momentum=0.5))["momentum"]
        0.5
    """
    kept = {name: getattr(optimizer, name) for name in (*_SETTINGS, *optimizer.parameters)}
    scheduler = optimizer.lr_scheduler
    if hasattr(scheduler, "__dict__"):
        kept["lr_scheduler"] = {**_numbers(vars(scheduler)), "class": type(scheduler).__name__}
    tables = {name: _table(getattr(optimizer, name)) for name in _TABLES}
    return {**_numbers(kept), **tables, **progress_of(optimizer), "class": type(optimizer).__name__}


def progress_of(optimizer: Optimizer) -> dict[str, Any]:
    """What a training needs beside states and counts to go on: the scalars that parameters share; nothing without them."""
    shared = optimizer.shared.plain()
    return {"shared": shared} if shared else {}


def restore_settings(optimizer: Optimizer, settings: Mapping[str, Any]) -> None:
    """Take over what `settings_of` or `progress_of` gave for an optimizer of the same class, or the attributes of one of MXNet.

    Raises:
        ValueError: another class, or a value of another kind.
    """
    if "class" in settings:
        _same_class(optimizer, settings)
    scheduler = settings.get("lr_scheduler")
    if scheduler is not None and not isinstance(scheduler, Mapping):
        raise ValueError(_DAMAGED.format("lr_scheduler", str(scheduler)[:60], "the settings of a scheduler"))
    if scheduler is not None and optimizer.lr_scheduler is None:
        optimizer.lr_scheduler = from_settings(scheduler)
    elif scheduler is not None:
        _same_class(optimizer.lr_scheduler, scheduler)
        known = vars(optimizer.lr_scheduler)
        known.update(_numbers({k: v for k, v in scheduler.items() if k in known}))
    names = (*_SETTINGS, *optimizer.parameters)
    fresh = _numbers({name: settings[name] for name in names if name in settings})
    for name, value in fresh.items():
        _same_kind(name, value, getattr(optimizer, name))
    vars(optimizer).update(fresh)
    for name in _TABLES:
        if isinstance(settings.get(name), Mapping):
            table = _table(settings[name])
            setattr(optimizer, name, {k: v for k, v in table.items() if isinstance(v, str) == (name == "idx2name")})
    shared = settings.get("shared")
    optimizer.shared.restore(shared if isinstance(shared, Mapping) else optimizer.shared_of_mxnet(settings))


def _same_kind(name: str, found: Any, now: Any) -> None:
    """Refuse text where a number is needed and the other way round; None, for none, is for what may be left out."""
    kinds: tuple[type, ...] = (str,) if isinstance(now, str) else (bool, int, float)
    if not isinstance(found, kinds) and (found is not None or name == "wd"):
        raise ValueError(_DAMAGED.format(name, str(found)[:60], "text" if kinds == (str,) else "a number"))


def _table(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Names and multipliers by index and name."""
    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {k: v for k, v in values.items() if type(k) in (int, str) and type(v) in (bool, int, float, str)}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that a file may hold: numbers, text, None, and lists and dicts of them."""

    def plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        return value is None or type(value) in (bool, int, float, str) or isinstance(value, dict)

    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {key: value for key, value in values.items() if plain(value)}


def _same_class(mine: Any, settings: Mapping[str, Any]) -> None:
    found, needed = str(settings.get("class")), type(mine).__name__
    if found.lower() != needed.lower():
        raise ValueError(f"the states were saved with {found}, here is {needed}; load them into one of the same class.")
