"""Convert an optimizer's settings to plain data for `.states` files, and restore them, with the scheduler's progress."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from jfit.formats import FormatError
from jfit.mxnet.optimizer import lr_scheduler, saved

_SETTINGS = ("lr", "wd", "rescale_grad", "clip_gradient", "begin_num_update")
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
    """Return (scheduler to set on the optimizer, saved attributes to restore on it), from the settings of a file."""
    current, attributes = optimizer.lr_scheduler, settings.get("lr_scheduler")
    if attributes is None:
        return current, {}
    if not isinstance(attributes, Mapping):
        saved.reject(path, "optimizer, attribute 'lr_scheduler'", attributes, "the attributes of a scheduler")
    if current is None:
        current = _new_scheduler(attributes, path)
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
    plain = {key: saved.as_plain(value) for key, value in values.items()}
    return {k: v for k, v in plain.items() if type(k) in (int, str) and type(v) in (bool, int, float, str)}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries that a file may contain: numbers, text, None, and lists and dicts of them."""
    return {key: saved.as_plain(value) for key, value in values.items() if saved.is_plain(value)}


def _same_class(current: Any, settings: Mapping[str, Any]) -> None:
    actual, expected = saved.class_of(settings), type(current).__name__
    if actual.lower() != expected.lower():
        raise ValueError(f"the states were saved with {actual}, expected {expected}; load them into an object of that class.")


# ------------------------------------------------------------------------------------------------ schedulers

# Attributes are checked before they are used: a step of 0 would make a scheduler loop forever, and text in place of a number
# would fail during an update.

# Largest number of decays that a restored scheduler may have to apply at once; each takes about a microsecond.
_MOST_DECAYS = 1_000_000


def _is_steps(value: Any) -> bool:
    if not isinstance(value, list) or not value or not all(map(saved.is_length, value)):
        return False
    return all(earlier < later for earlier, later in itertools.pairwise(value))


_TO_THE_END = {
    "base_lr_orig": saved.NUMBER,
    "max_update": saved.WHOLE_FROM_1,
    "final_lr": saved.NUMBER,
    "max_steps": saved.Need("max_update - warmup_steps", lambda value: type(value) is int),
}
_NEEDS: dict[type, Mapping[str, saved.Need]] = {
    lr_scheduler.LRScheduler: {
        "base_lr": saved.NUMBER,
        "warmup_steps": saved.WHOLE,
        "warmup_begin_lr": saved.NUMBER,
        "warmup_final_lr": saved.NUMBER,
        "warmup_mode": saved.Need("'linear' or 'constant'", lambda value: value in ("linear", "constant")),
    },
    lr_scheduler.FactorScheduler: {
        "step": saved.LENGTH,
        "factor": saved.UP_TO_1,
        "stop_factor_lr": saved.NUMBER,
        "count": saved.DONE,
    },
    lr_scheduler.MultiFactorScheduler: {
        "step": saved.Need("an increasing list of finite numbers of at least 1", _is_steps),
        "cur_step_ind": saved.WHOLE,
        "factor": saved.UP_TO_1,
        "count": saved.DONE,
    },
    lr_scheduler.PolyScheduler: {**_TO_THE_END, "power": saved.FROM_0},
    lr_scheduler.CosineScheduler: _TO_THE_END,
}


def _new_scheduler(attributes: Mapping[str, Any], path: saved.Path) -> lr_scheduler.LRScheduler:
    """Create a scheduler of the saved class, which is one of MXNet's; the file `path` needs to have all its attributes."""
    kinds = (lr_scheduler.FactorScheduler(1), lr_scheduler.MultiFactorScheduler([1]))
    kinds += (lr_scheduler.PolyScheduler(1), lr_scheduler.CosineScheduler(1))
    scheduler = {type(each).__name__: each for each in kinds}.get(saved.class_of(attributes))
    if scheduler is None or not vars(scheduler).keys() <= attributes.keys():
        names = ", ".join(map(str, attributes))[:200]
        found = f"found class {saved.class_of(attributes)} with {names}; it cannot be created from these"
        raise FormatError(path, "lr_scheduler", found, "pass a scheduler of that class to the optimizer before loading.")
    return scheduler


def progress_from(
    scheduler: Any, settings: Mapping[str, Any], path: saved.Path = "settings", updates: int = 0
) -> dict[str, Any]:
    """Return those saved attributes that the scheduler has, after checking them.

    Args:
        scheduler: a scheduler of the saved class; for user-defined classes only the types of attributes are checked.
        settings: the attributes, and the class name under "class".
        path: the file they were read from, for error messages.
        updates: number of updates that the file records.

    Raises:
        FormatError: a value has the wrong type or range.

    Example:
        >>> progress_from(lr_scheduler.FactorScheduler(1), {"step": 5, "other": 1})
        {'step': 5}
        >>> progress_from(lr_scheduler.FactorScheduler(1), {"step": 0}, "a.states")
        Traceback (most recent call last):
        jfit.formats.atomic.FormatError: a.states: lr_scheduler FactorScheduler, attribute 'step': found 0, expected a ...
    """
    where, now = f"lr_scheduler {type(scheduler).__name__}", getattr(scheduler, "__dict__", {})
    needs = {name: need for kind in reversed(type(scheduler).__mro__) for name, need in _NEEDS.get(kind, {}).items()}
    fresh = {}
    for name, value in now.items():
        if name in settings and (name in needs or saved.is_plain(settings[name])):
            fresh[name] = saved.checked(path, where, name, settings[name], needs.get(name) or saved.same_kind(value))
    conflict = _conflict(scheduler, after := {**now, **fresh}, updates)
    if conflict is not None:
        name, expected = conflict
        saved.reject(path, f"{where}, attribute {name!r}", after[name], expected)
    return fresh


def _conflict(scheduler: Any, attributes: Mapping[str, Any], updates: int) -> tuple[str, str] | None:
    """Return (name of an attribute that contradicts others or the number of updates of the file, what was expected)."""
    if isinstance(scheduler, lr_scheduler.FactorScheduler):
        step = attributes["step"]
        if (updates - attributes["count"]) / step > _MOST_DECAYS:
            return "count", f"a count at most {_MOST_DECAYS} steps of {step} behind the {updates} updates of the file"
    if isinstance(scheduler, lr_scheduler.PolyScheduler | lr_scheduler.CosineScheduler):
        length = attributes["max_update"] - attributes["warmup_steps"]
        if not length or attributes["max_steps"] != length:
            return "max_steps", f"max_update - warmup_steps ({length}), by which rates divide, so not 0"
    return None
