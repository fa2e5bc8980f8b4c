"""The arguments of `fit` for each member of a sweep, from the arguments that all share and those that are swept."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jfit import optim
from jfit.ops import nearest
from jfit.optim.core import check_numbers
from jfit.prepare import FitOptions
from jfit.step.train import check_limits

# arguments of `fit` that `sweep` accepts, as keyword arguments for all members or as names in over= for each member
FIT = (
    *("batch_size", "num_epoch", "optimizer", "optimizer_params", "eval_metric", "initializer", "label", "sample_weight"),
    *("class_weight", "steps_per_epoch", "validation_split", "eval_every", "shuffle", "seed", "steps_per_call", "schedule"),
    *("schedule_params", "frozen", "micro_batches", "clip_norm", "clip_value", "policy", "params", "aux", "loss"),
    *("loss_weights", "loss_per_batch", "eval_batch_size", "ema", "regularizers"),
)
# other arguments of `fit` -> what to do instead
_INSTEAD = {
    "callbacks": "the members train inside one program; use patience= or halving= of sweep to end members early",
    "checkpoint": "checkpoints of sweeps are not supported; save members afterwards, as in result.best.run.save(folder)",
    "resume": "checkpoints of sweeps are not supported",
    "devices": "pass devices= to sweep, not in over=: it splits the members over the devices",
    "reduce": "a member trains on one device and reduces no gradients",
    "gather_outputs": "a member trains on one device",
    "sync_batch_stats": "a member trains on one device, whose batch statistics are those of the batch",
    "log_every": "values are recorded once per epoch",
    "data_on_device": "sweeps keep the data on the devices",
}
# settings that are data of the program, not part of it
PER_MEMBER = frozenset({"seed", "initializer", "params", "aux", "optimizer_params", "clip_norm", "clip_value"})


class MemberSettings(NamedTuple):
    """What one member trains.

    Attributes:
        number: index of the member in the table.
        values: the swept settings by name, as in the table, with "fold" if there are folds.
        model: the argument `model` of `fit`; a result of the factory, if there is one.
        options: the arguments of `fit`.
        fold: index of the fold, or None.
    """

    number: int
    values: dict[str, Any]
    model: Any
    options: FitOptions
    fold: int | None


def member_settings(
    model: Any, members: Sequence[Mapping[str, Any]], common: Mapping[str, Any], folds: int
) -> list[MemberSettings]:
    """Combine the arguments that all members share with those of each member.

    Args:
        model: the argument of `sweep`: a model of `fit`, or a factory of such models.
        members: the swept settings of each member.
        common: arguments of `fit` that all members share.
        folds: number of folds; 0: none.

    Raises:
        ValueError: a name is neither an argument of `fit` that sweeps support, nor one of the optimizer or factory; or a rate,
            a decay or a limit of gradients of a member is a number that no training needs.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(FitOptions)}
    for name in common:
        if name not in FIT:
            raise ValueError(f"sweep: found {_unknown(name, defaults)}")
    made: dict[Any, Any] = {}
    result = []
    for values in members:
        names = [name for name in values if name not in FIT and name in _parameters(model)]
        net, extra = _made(model, {name: values[name] for name in names}, made) if names else (model, {})
        arguments = dict(common) | extra
        arguments |= {name: value for name, value in values.items() if name in FIT}
        params = dict(common.get("optimizer_params") or {}) | dict(values.get("optimizer_params") or {})
        rest = [name for name in values if name not in FIT and name not in names]
        accepted = _optimizer_parameters(arguments.get("optimizer", "sgd"))
        for name in rest:
            params[_accepted_name(name, accepted, arguments.get("optimizer", "sgd"), defaults)] = values[name]
        arguments["optimizer_params"] = params or None
        options = FitOptions(**arguments, progress=False)
        _check_numbers(len(result), values, options)
        for fold in range(folds) if folds else (None,):
            shown = dict(values) if fold is None else {**values, "fold": fold}
            result.append(MemberSettings(len(result), shown, net, options, fold))
    return result


def _check_numbers(member: int, values: Mapping[str, Any], options: FitOptions) -> None:
    """Raise a ValueError that names the member if a limit of gradients or a number of its optimizer is out of range."""
    try:
        check_limits(clip_norm=options.clip_norm, clip_value=options.clip_value)
        check_numbers(options.optimizer_params or {})
    except ValueError as error:
        settings = ", ".join(f"{k}={v}" for k, v in values.items())
        raise ValueError(
            f"sweep: member {member} ({settings}): {error}. Change the values in over=, or the range of the distribution."
        ) from None


def _parameters(model: Any) -> Sequence[str]:
    if not callable(model) or hasattr(model, "list_arguments"):
        return ()
    try:
        return tuple(inspect.signature(model).parameters)
    except (TypeError, ValueError):
        return ()


def _made(factory: Callable[..., Any], values: dict[str, Any], made: dict[Any, Any]) -> tuple[Any, dict[str, Any]]:
    """Return (model, further arguments of `fit`) of a factory; equal values get the same model."""
    key = tuple((name, token(value)) for name, value in values.items())
    if key not in made:
        model = factory(**values)
        pair = isinstance(model, tuple) and len(model) == 2 and callable(model[0])
        made[key] = (model[0], {"params": model[1]}) if pair else (model, {})
    return made[key]


def _optimizer_parameters(optimizer: Any) -> Sequence[str] | None:
    """Names of the parameters of a named optimizer, () for an instance; None for an optimizer of optax, which checks them."""
    if not isinstance(optimizer, str):
        return ()
    entry = optim.OPTIMIZERS.get(optimizer.lower())
    return None if entry is None else tuple(inspect.signature(entry.make).parameters)


def _accepted_name(name: str, accepted: Sequence[str] | None, optimizer: Any, defaults: Mapping[str, Any]) -> str:
    """Return the name of an optimizer parameter; raise a ValueError if there is none."""
    if name in defaults:
        raise ValueError(f"sweep: over has the name {_unknown(name, defaults)}")
    if accepted is None or name in accepted:
        return name
    if name == "weight_decay" and "wd" in accepted:
        return "wd"  # the name of weight decay in MXNet's optimizers
    if not isinstance(optimizer, str):
        raise ValueError(
            f"sweep: over has {name!r}, but the optimizer is an instance, whose numbers cannot be changed; pass the optimizer "
            'by name, such as optimizer="adam", or a list of instances: over={"optimizer": [...]}'
        )
    near = nearest(name, [*FIT, *accepted])
    hint = f"; the nearest names are {near}" if near else ""
    raise ValueError(
        f"sweep: over has {name!r}, which is neither an argument of fit, nor a parameter of the optimizer {optimizer!r}, nor "
        f"of a function model=lambda {name}: ... that makes the model{hint}"
    )


def _unknown(name: str, defaults: Mapping[str, Any]) -> str:
    """Return the end of an error message: the name, and why it is not in `FIT`; `defaults` has all arguments of `fit`."""
    if name not in defaults:
        near = nearest(name, FIT)
        return f"{name!r}, which is no argument of fit; " + (f"the nearest names are {near}" if near else f"they are {FIT}")
    return f"{name!r}, an argument of fit that sweeps do not support: {_INSTEAD.get(name, 'train single runs with fit for it')}"


def token(value: Any) -> Any:
    """A hashable value that is equal for equal settings: numbers and texts by value, other objects by identity."""
    if value is None or isinstance(value, bool | int | float | str):
        return type(value).__name__, value
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(token, value))
    if isinstance(value, Mapping):
        return "dict", tuple((name, token(v)) for name, v in value.items())
    return "object", id(value)
