"""The settings of an optimizer as plain data, for files: rate, decay, parameters of the rule, the scheduler's progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.saved_schedulers import from_settings, progress_from

if TYPE_CHECKING:
    from jfit.mxnet.optimizer.base import Optimizer

_SETTINGS = ("lr", "wd", "clip_gradient", "begin_num_update")
_TABLES = ("lr_mult", "wd_mult", "idx2name")


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


def restore_settings(
    optimizer: Optimizer, settings: Mapping[str, Any], path: saved.Path = "settings", updates: int = 0
) -> None:
    """Take over what `settings_of` or `progress_of` gave for an optimizer of the same class, or the attributes of one of MXNet.

    Args:
        optimizer: who takes them; it stays as it is where one is refused, except where a shared scalar is.
        settings: the settings.
        path: the file that they are from, for messages.
        updates: how many updates the file tells of.

    Raises:
        ValueError: another class.
        FormatError: a value is not what it needs to be.
    """
    if "class" in settings:
        _same_class(optimizer, settings)
    where, names = f"optimizer {type(optimizer).__name__}", (*_SETTINGS, *optimizer.parameters)
    fresh = {
        name: saved.checked(path, where, name, settings[name], optimizer.saved_needs.get(name) or saved.need_like(now))
        for name, now in ((name, getattr(optimizer, name)) for name in names)
        if name in settings
    }
    tables = {name: _checked_table(path, where, name, settings[name]) for name in _TABLES if name in settings}
    scheduler, progress = _scheduler_after(optimizer, settings, path, max(updates, fresh.get("begin_num_update", 0)))
    shared = settings.get("shared")
    if not isinstance(shared, (Mapping, type(None))):
        saved.refuse(path, f"{where}, 'shared'", shared, "a dict of the scalars that all parameters share")
    if scheduler is None and fresh.get("lr", 0) is None:
        saved.refuse(path, f"{where}, attribute 'lr'", None, f"{saved.NUMBER.words}, because there is no lr_scheduler")
    vars(optimizer).update(fresh, lr_scheduler=scheduler, **tables)
    if progress:
        vars(scheduler).update(progress)
    optimizer.shared.restore(optimizer.shared_of_mxnet(settings) if shared is None else shared, path)


def _scheduler_after(optimizer: Optimizer, settings: Mapping[str, Any], path: saved.Path, updates: int) -> tuple[Any, Any]:
    """(the scheduler that the optimizer is to have, the attributes that it is to take over)."""
    mine, found = optimizer.lr_scheduler, settings.get("lr_scheduler")
    if found is None:
        return mine, None
    if not isinstance(found, Mapping):
        saved.refuse(path, "optimizer, attribute 'lr_scheduler'", found, "the attributes of a scheduler")
    if mine is None:
        return from_settings(found, path, updates), None
    _same_class(mine, found)
    return mine, progress_from(mine, found, path, updates)


def _checked_table(path: saved.Path, where: str, name: str, table: Any) -> dict[Any, Any]:
    """Names or multipliers by index and name."""
    if not isinstance(table, Mapping):
        saved.refuse(path, f"{where}, attribute {name!r}", table, "a dict by index or name")
    need = saved.TEXT if name == "idx2name" else saved.MULTIPLIER
    kept = {saved.as_plain(key): saved.checked(path, f"{where}, {name}", key, value, need) for key, value in table.items()}
    for key in kept:
        if type(key) not in (int, str):
            saved.refuse(path, f"{where}, attribute {name!r}", key, "an index or a name")
    return kept


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
    found, needed = saved.class_of(settings), type(mine).__name__
    if found.lower() != needed.lower():
        raise ValueError(f"the states were saved with {found}, here is {needed}; load them into one of the same class.")
