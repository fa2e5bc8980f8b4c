"""The arguments of `fit` for each member of a sweep, from the arguments that all share and those that are swept."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jfit import optim
from jfit.callbacks.intervals import Every
from jfit.checks import name_hint, positive
from jfit.graph import Symbol
from jfit.optim.core import check_numbers
from jfit.optim.registry import optax_parameters
from jfit.prepare import FitOptions

_NO_CHECKPOINTS = "checkpoints of sweeps are not supported; save members afterwards, as in result.best.run.save(folder)"
_ONE_DEVICE = "a member trains on one device"
_ALONE = "train single runs with fit for it"
# arguments of `fit` that sweeps do not support -> what to do instead
_INSTEAD = {
    **dict.fromkeys(("checkpoint", "checkpoint_every", "checkpoint_best", "resume", "resume_with"), _NO_CHECKPOINTS),
    **dict.fromkeys(("reduce", "gather_outputs", "sync_batch_stats", "mesh", "shard"), _ONE_DEVICE),
    **dict.fromkeys(("directory", "progress", "nan", "data_timeout", "updates"), _ALONE),
    "callbacks": "the members train inside one program; use patience= or halving= of sweep to end members early",
    "devices": "pass devices= to sweep, not in over=: it splits the members over the devices",
    "log_every": "values are recorded once per epoch",
    "num_steps": "members train whole epochs; pass num_epoch",
    "data_on_device": "sweeps keep the data on the devices",
}
# arguments of `fit` that `sweep` accepts, as keyword arguments for all members or as names in over= for each member
FIT = [field.name for field in dataclasses.fields(FitOptions) if field.name not in _INSTEAD]
# settings that are data of the program, not part of it
PER_MEMBER = frozenset({"seed", "initializer", "params", "aux", "optimizer_params", "clip_norm", "clip_value"})


class MemberSettings(NamedTuple):
    """What one member trains.

    Attributes:
        number: index of the member in the table.
        values: the swept settings by name, as in the table, with "fold" if there are folds.
        model: the argument `model` of `fit`; a result of the factory, if there is one.
        options: the arguments of `fit`, checked.
        fold: index of the fold, or None.
    """

    number: int
    values: dict[str, Any]
    model: Any
    options: FitOptions
    fold: int | None

    @property
    def shared_key(self) -> Any:
        """A hashable key, equal for members of a sweep that share the model, the data and the sizes of its batches."""
        return id(self.model), tuple((name, token(getattr(self.options, name))) for name in FIT if name not in PER_MEMBER)


def member_settings(
    model: Any, members: Sequence[Mapping[str, Any]], common: Mapping[str, Any], folds: int, eval_data: Any = None
) -> list[MemberSettings]:
    """Combine the arguments that all members share with those of each member.

    Args:
        model: the argument of `sweep`: a model of `fit`, or a factory of such models.
        members: the swept settings of each member.
        common: arguments of `fit` that all members share.
        folds: number of folds; 0: none.
        eval_data: the argument of `sweep`.

    Raises:
        ValueError: a name is an argument of `fit` that sweeps do not support, or none; or an argument of a member is out of
            range.
    """
    for name in common:
        _check_supported(name)
        if name not in FIT:
            raise ValueError(f"sweep: found {name!r}, which is no argument of fit; {name_hint(name, FIT)}")
    made: dict[Any, Any] = {}
    result = []
    for values in members:
        of_fit = {name: value for name, value in values.items() if name in FIT}
        of_model = {name: values[name] for name in values if name not in FIT and name in _parameters(model)}
        net, extra = _made(model, of_model, made) if of_model else (model, {})
        arguments = dict(common) | extra | of_fit
        params = dict(common.get("optimizer_params") or {}) | dict(values.get("optimizer_params") or {})
        for name in [name for name in values if name not in of_fit and name not in of_model]:
            _check_supported(name)
            params[_of_optimizer(name, arguments.get("optimizer", "sgd"), model, net)] = values[name]
        options = FitOptions(**arguments | {"optimizer_params": params or None, "progress": False})
        try:  # before anything is compiled
            options = options.checked(eval_data)
            positive(none="no limit", clip_norm=options.clip_norm, clip_value=options.clip_value)
            check_numbers(params)
            if options.eval_every.epochs is None:
                raise ValueError(
                    f"eval_every is {options.eval_every}, but members are evaluated after epochs; pass every(epochs=)"
                )
        except ValueError as error:
            shown = ", ".join(f"{k}={v}" for k, v in values.items())
            raise ValueError(f"sweep: member {len(result)} ({shown}): {error}") from None
        for fold in range(folds) if folds else (None,):
            shown = dict(values) if fold is None else {**values, "fold": fold}
            result.append(MemberSettings(len(result), shown, net, options, fold))
    return result


def _check_supported(name: str) -> None:
    if name in _INSTEAD:
        raise ValueError(f"sweep: found {name!r}, an argument of fit that sweeps do not support: {_INSTEAD[name]}")


def _parameters(model: Any) -> Mapping[str, Any]:
    is_function = callable(model) and not hasattr(model, "list_arguments")
    return inspect.signature(model).parameters if is_function else {}


def _made(factory: Callable[..., Any], values: dict[str, Any], made: dict[Any, Any]) -> tuple[Any, dict[str, Any]]:
    """Return (model, further arguments of `fit`) of a factory; equal values get the same model."""
    key = tuple((name, token(value)) for name, value in values.items())
    if key not in made:
        model = factory(**values)
        pair = isinstance(model, tuple) and len(model) == 2 and callable(model[0])
        made[key] = (model[0], {"params": model[1]}) if pair else (model, {})
    return made[key]


def _of_optimizer(name: str, optimizer: Any, model: Any, net: Any) -> str:
    """Return the name of a parameter of the optimizer: MXNet's optimizers, those of graphs, call the weight decay "wd"."""
    is_graph = isinstance(net, Symbol) or getattr(net, "symbol", None) is not None
    entry = optim.OPTIMIZERS.get(optimizer.lower()) if isinstance(optimizer, str) else None
    accepted = () if entry is None else inspect.signature(entry.make).parameters
    if entry is None or name in accepted or (not is_graph and name in optax_parameters(optimizer)):
        return name  # the other optimizers are checked when they are made
    if name == "weight_decay" and "wd" in accepted:
        return "wd"
    hint = name_hint(name, [*FIT, *accepted, *_parameters(model)])
    raise ValueError(f"sweep: over has {name!r}, which is no argument of fit, the model or of optimizer {optimizer!r}; {hint}")


def token(value: Any) -> Any:
    """A hashable value that is equal for equal settings: numbers and texts by value, other objects by identity."""
    if value is None or isinstance(value, bool | int | float | str | Every):
        return type(value).__name__, value
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(token, value))
    if isinstance(value, Mapping):
        return "dict", tuple((name, token(v)) for name, v in value.items())
    return "object", id(value)
