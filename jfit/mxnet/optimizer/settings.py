"""Convert an optimizer's settings to plain data for `.states` files, and restore them, with the scheduler's progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.saved_schedulers import from_settings, progress_from

_SETTINGS = ("lr", "wd", "clip_gradient", "begin_num_update")
_TABLES = ("lr_mult", "wd_mult", "idx2name")


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Return the optimizer as plain data: class, learning rate, decay, multipliers, hyperparameters, shared scalars, scheduler.

    Example:
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> settings_of(SGD(momentum=0.5))["momentum"]
        0.5
    """
    values = {name: getattr(optimizer, name) for name in (*_SETTINGS, *optimizer.parameters)}
    scheduler = optimizer.lr_scheduler
    if hasattr(scheduler, "__dict__"):
        values["lr_scheduler"] = {**_numbers(vars(scheduler)), "class": type(scheduler).__name__}
    tables = {name: _table(getattr(optimizer, name)) for name in _TABLES}
    return {**_numbers(values), **tables, **progress_of(optimizer), "class": type(optimizer).__name__}


def progress_of(optimizer: Any) -> dict[str, Any]:
    """Return what resuming needs in addition to states and counts: the shared scalars, if any."""
    shared = optimizer.shared.plain()
    return {"shared": shared} if shared else {}


def restore_settings(optimizer: Any, settings: Mapping[str, Any], path: saved.Path = "settings", updates: int = 0) -> None:
    """Restore an optimizer from `settings_of` or `progress_of`, or from the attributes of an MXNet optimizer.

    Args:
        optimizer: the optimizer to change; unchanged if an error is raised, unless the error is in a shared scalar.
        settings: the settings of an optimizer of the same class.
        path: the file they were read from, for error messages.
        updates: number of updates that the file records.

    Raises:
        ValueError: the settings are of another class.
        FormatError: a value has the wrong type or range.
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
        saved.reject(path, f"{where}, 'shared'", shared, "a dict of scalars by name")
    if scheduler is None and fresh.get("lr", 0) is None:
        saved.reject(path, f"{where}, attribute 'lr'", None, f"{saved.NUMBER.words}, because there is no lr_scheduler")
    vars(optimizer).update(fresh, lr_scheduler=scheduler, **tables)
    if progress:
        vars(scheduler).update(progress)
    optimizer.shared.restore(optimizer.shared_of_mxnet(settings) if shared is None else shared, path)


def _scheduler_after(optimizer: Any, settings: Mapping[str, Any], path: saved.Path, updates: int) -> tuple[Any, Any]:
    """Return (scheduler to set on the optimizer, saved attributes to restore on it or None), from the settings of a file."""
    current, attributes = optimizer.lr_scheduler, settings.get("lr_scheduler")
    if attributes is None:
        return current, None
    if not isinstance(attributes, Mapping):
        saved.reject(path, "optimizer, attribute 'lr_scheduler'", attributes, "the attributes of a scheduler")
    if current is None:
        return from_settings(attributes, path, updates), None
    _same_class(current, attributes)
    return current, progress_from(current, attributes, path, updates)


def _checked_table(path: saved.Path, where: str, name: str, table: Any) -> dict[Any, Any]:
    """Return names or multipliers by index or name, as read from a file, after checking them."""
    if not isinstance(table, Mapping):
        saved.reject(path, f"{where}, attribute {name!r}", table, "a dict by index or name")
    need = saved.TEXT if name == "idx2name" else saved.MULTIPLIER
    table = {saved.as_plain(key): saved.checked(path, f"{where}, {name}", key, value, need) for key, value in table.items()}
    for key in table:
        if type(key) not in (int, str):
            saved.reject(path, f"{where}, attribute {name!r}", key, "an index or a name")
    return table


def _table(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the entries of a table of names or multipliers that can be saved: int or str -> bool, number or str."""
    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {k: v for k, v in values.items() if type(k) in (int, str) and type(v) in (bool, int, float, str)}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries that a file may contain: numbers, text, None, and lists and dicts of them."""

    def plain(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        return value is None or type(value) in (bool, int, float, str) or isinstance(value, dict)

    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {key: value for key, value in values.items() if plain(value)}


def _same_class(current: Any, settings: Mapping[str, Any]) -> None:
    actual, expected = saved.class_of(settings), type(current).__name__
    if actual.lower() != expected.lower():
        raise ValueError(f"the states were saved with {actual}, expected {expected}; load them into an object of that class.")
