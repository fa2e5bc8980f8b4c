"""Optimizers by name: jfit's own, any of optax, or a transformation handed in.

>>> from jfit.optim import get
>>> get("sgd", momentum=0.9).learning_rate
0.01
>>> get("lion").takes_rate  # of optax, with the rate fed in
True
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import Array

from jfit.ops.registry import nearest
from jfit.optim import langevin, large_batch, leader, moments, momentum, rms
from jfit.optim.core import Optimizer, rate_at

# the rate of an optax optimizer that declares none
OPTAX_RATE = 1e-3
# of optax: those that find their rate themselves, and whole ones among the names of parts
_RATELESS = ("polyak_sgd",)
_WHOLE = ("schedule_free_adamw", "schedule_free_sgd")
# and those that a train step cannot serve
_UNSERVED = {
    "sophia": "asks for the loss as a function inside the update, and the train step offers gradients and the value only",
    "dpsgd": "needs the gradient of every example apart, and the train step sums them",
}
# what MXNet's optimizers take, and where it is here
_BELONGS = {
    "rescale_grad": " Gradients arrive rescaled: rescale= of the train step says by what, fit divides by the batch; MXNet's "
    "classes (jfit.mx.optimizer) have it.",
    "lr_scheduler": " A schedule is learning_rate= here, or schedule= of fit and of the train step; MXNet's classes "
    "(jfit.mx.optimizer) take a scheduler.",
    "lazy_update": " Only sgd and adam have a choice there; gradients by rows are lazy for adagrad and group_adagrad always.",
    "begin_num_update": " The number of updates is part of the optimizer's state: set its count.",
    "param_idx2name": " Parameters have names here, so nothing is numbered.",
}


class Named(NamedTuple):
    """A registered optimizer: its factory and the rate it has when none is given."""

    make: Callable[..., Optimizer]
    default_learning_rate: float


OPTIMIZERS: dict[str, Named] = {}


def register(name: str, make: Callable[..., Any], *aliases: str) -> None:
    """Enters an optimizer under lower-case names; its default rate is the default of `learning_rate`.

    Args:
        name: lower-case name.
        make: function whose parameters include `learning_rate` with a default.
        *aliases: other names.

    Example:
        >>> register("plain", lambda learning_rate=0.5: momentum.sgd(learning_rate))
        >>> get("plain").learning_rate
        0.5
        >>> OPTIMIZERS.pop("plain").default_learning_rate
        0.5
    """
    rate = float(inspect.signature(make).parameters["learning_rate"].default)
    for each in (name, *aliases):
        OPTIMIZERS[each] = Named(make, rate)


register("sgd", momentum.sgd, "ccsgd")
register("nag", momentum.nag)
register("signum", momentum.signum)
register("dcasgd", momentum.dcasgd)
register("test", momentum.adding)
register("adam", moments.adam)
register("adamw", moments.adamw)
register("adamax", moments.adamax)
register("nadam", moments.nadam)
register("rmsprop", rms.rmsprop)
register("adagrad", rms.adagrad)
register("groupadagrad", rms.group_adagrad, "group_adagrad")
register("adadelta", rms.adadelta)
register("ftrl", leader.ftrl)
register("ftml", leader.ftml)
register("lamb", large_batch.lamb)
register("lars", large_batch.lars)
register("lbsgd", large_batch.lbsgd)
register("sgld", langevin.sgld)


def get(spec: Any, **params: Any) -> Optimizer:
    """The optimizer that `spec` means.

    Args:
        spec: a name, case ignored: one of jfit's (`OPTIMIZERS`), else one of optax's or optax.contrib's; or a transformation
            with `init` and `update`; an `Optimizer`, such as one of jfit's, is returned unchanged.  A name that both have
            means jfit's; optax's goes in as an instance: `optax.lamb(...)`.
        **params: parameters of a named optimizer; `learning_rate` may be a number or a schedule.

    Returns:
        The `Optimizer`; its `update` takes and ignores extra arguments that the transformation has no use for.

    Raises:
        ValueError: unknown name or parameter, parameters with an instance, or a line search.
        TypeError: `spec` is none of the above.

    Example:
        >>> get(optax.sgd(0.1)).takes_rate
        False
        >>> get(momentum.sgd(0.1)).learning_rate
        0.1
    """
    if isinstance(spec, str):
        return _named(spec, params)
    if not (callable(getattr(spec, "init", None)) and callable(getattr(spec, "update", None))):
        raise TypeError(f"an optimizer is a name or an optax transformation (init, update); found {spec!r}.")
    if params:
        raise ValueError(
            f"the optimizer is an instance already, so its parameters ({', '.join(params)}) cannot change; "
            "pass them to its own constructor, or pass the optimizer by name."
        )
    if isinstance(spec, Optimizer):
        return spec
    name = type(spec).__name__
    shape = _tiny_state(spec, name)
    rate = None
    if _find_hyper(shape) is not None:
        found = injected_rate(spec.init(_tiny()))
        rate = None if found is None else float(found)
    return _of_transformation(spec, base_rate=rate, name=name)


def _of_transformation(transform: Any, **known: Any) -> Optimizer:
    """An optax transformation as an Optimizer; those that take no extra arguments get none."""
    # MultiSteps hands extra arguments on, though it is no transformation with extra arguments
    with_extra = transform if isinstance(transform, optax.MultiSteps) else optax.with_extra_args_support(transform)
    return Optimizer(transform.init, with_extra.update, **known)


def injected_rate(opt_state: Any) -> Array | None:
    """The learning rate inside a state made by `optax.inject_hyperparams`, else None.

    Args:
        opt_state: any optimizer state.

    Returns:
        Scalar array or None.

    Example:
        >>> opt = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
        >>> float(injected_rate(opt.init({"w": jnp.ones(1)})))
        0.25
    """
    hyper = _find_hyper(opt_state)
    return None if hyper is None else hyper["learning_rate"]


def used_rate(optimizer: Optimizer, fed: Array | None, before: Any, after: Any) -> Array | None:
    """The learning rate that an update used.

    Args:
        optimizer: the optimizer.
        fed: the rate the update was given; None where the optimizer keeps its own.
        before: optimizer state that the update got.
        after: optimizer state that it returned.

    Returns:
        float32 scalar, or None where it cannot be known.

    Example:
        >>> used_rate(get("sgd"), jnp.float32(0.5), (), ()).item()
        0.5
    """
    if optimizer.takes_rate and fed is not None:
        return fed
    if optimizer.state_spec is not None and optimizer.base_rate is not None:
        return jnp.asarray(rate_at(optimizer.base_rate, before.count), jnp.float32)
    return injected_rate(after)


def _named(name: str, params: dict[str, Any]) -> Optimizer:
    entry = OPTIMIZERS.get(name.lower())
    if entry is not None:
        _check_params(name, entry.make, params)
        made = entry.make(**params)
        if not isinstance(made, Optimizer):  # a factory that a user registered may give any optax transformation
            rate = params.get("learning_rate", entry.default_learning_rate)
            return _of_transformation(made, takes_rate=True, base_rate=rate, name=name.lower())
        fields = {"base_rate": made.base_rate, "state_spec": made.state_spec, "for_graph": made.for_graph}
        return Optimizer(*made, takes_rate=made.takes_rate, name=name.lower(), **fields)
    if _of_optax_by(name.lower()) is None:
        known = [*OPTIMIZERS, *optax_names()]
        near = nearest(name, known) or ", ".join(map(repr, OPTIMIZERS))
        raise ValueError(f"unknown optimizer {name!r}: the nearest names are {near}.")
    return _of_optax(name.lower(), params)


def optax_names() -> list[str]:
    """The names of the installed optax and optax.contrib that `get` takes, without those that mean jfit's own.

    Example:
        >>> {"lion", "muon"} <= set(optax_names()), "adam" in optax_names()
        (True, False)
    """
    found = {*vars(optax), *vars(optax.contrib)} - set(OPTIMIZERS)
    return sorted(name for name in found - {"lbfgs", *_UNSERVED} if _of_optax_by(name) is not None)


def _of_optax_by(name: str) -> Callable[..., Any] | None:
    """The optimizer's factory in optax, else in optax.contrib: what takes a learning rate, and is no part of one."""
    if name.startswith(("_", "scale", "schedule_free")) and name not in _WHOLE:
        return None
    make = vars(optax).get(name) or vars(optax.contrib).get(name)  # not getattr, which answers to names of the past
    if not (inspect.isfunction(make) or isinstance(make, functools.partial)):
        return None
    return cast(Any, make) if name in _RATELESS or "learning_rate" in inspect.signature(make).parameters else None


def _of_optax(name: str, params: dict[str, Any]) -> Optimizer:
    if name in _UNSERVED:
        raise ValueError(f"optimizer {name!r} {_UNSERVED[name]}. Choose another, such as 'adam'.")
    make = cast(Any, _of_optax_by(name))
    _check_params(name, make, params)
    if name in _RATELESS:
        return _of_transformation(make(**params), name=name)
    declared = inspect.signature(make).parameters["learning_rate"].default
    rate = params.get("learning_rate", OPTAX_RATE if declared in (inspect.Parameter.empty, None) else declared)
    others = tuple(p for p in inspect.signature(make).parameters if p != "learning_rate")
    start = float(rate_at(rate, 0))
    _tiny_state(make(**{**params, "learning_rate": start}), name)
    # only the rate is data: the other parameters stay Python values, as the optimizer's own code expects
    injected = optax.inject_hyperparams(make, static_args=others)(**{**params, "learning_rate": start})
    inner = optax.with_extra_args_support(injected)

    def update(grads: Any, state: Any, params: Any = None, *, learning_rate: Any = None, **extra: Any) -> tuple[Any, Any]:
        fed = rate_at(rate, state.count) if learning_rate is None and callable(rate) else learning_rate
        if fed is not None:
            fed = jnp.asarray(fed, state.hyperparams["learning_rate"].dtype)
            state = state._replace(hyperparams={**state.hyperparams, "learning_rate": fed})
        return inner.update(grads, state, params, **extra)

    return Optimizer(inner.init, update, takes_rate=True, base_rate=rate, name=name)


def _check_params(name: str, make: Callable[..., Any], params: Mapping[str, Any]) -> None:
    known = list(inspect.signature(make).parameters)
    for key in params:
        if key not in known:
            near = nearest(key, known) or ", ".join(map(repr, known))
            hint = _BELONGS.get(key, "")
            other = _of_optax_by(name)
            if other not in (None, make) and key in inspect.signature(cast(Any, other)).parameters:
                hint = f" That is a parameter of optax's: pass optax.{name}(...) instead of the name."
            raise ValueError(f"optimizer {name!r} has no parameter {key!r}; the nearest it has: {near}.{hint}")


def _tiny() -> dict[str, Array]:
    return {"w_weight": jnp.ones((2, 2), jnp.float32)}


def _tiny_state(transform: Any, name: str) -> Any:
    """The shape of a state, or None if it cannot be made for a stand-in tree; refuses line searches."""
    try:
        state = jax.eval_shape(transform.init, _tiny())
    except Exception:  # masks and labels may need the user's own tree: nothing can be said then
        return None
    for part in _parts(state):
        kind = type(part).__name__.lower()
        if any(word in kind for word in ("linesearch", "backtracking", "zoom")):
            raise ValueError(
                f"optimizer {name!r} runs a line search ({type(part).__name__}), which needs the loss as a function inside "
                "the update; the train step offers gradients and the value only. Choose one without, such as 'adam', or "
                "switch the line search off (linesearch=None) where the optimizer allows it."
            )
    return state


def _find_hyper(state: Any) -> Mapping[str, Any] | None:
    for part in _parts(state):
        hyper = getattr(part, "hyperparams", None)
        if isinstance(hyper, Mapping) and "learning_rate" in hyper:
            return hyper
    return None


def _parts(state: Any) -> Iterator[Any]:
    yield state
    if isinstance(state, Mapping):
        for part in state.values():
            yield from _parts(part)
    elif isinstance(state, tuple | list):
        for part in state:
            yield from _parts(part)
