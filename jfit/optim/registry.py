"""Optimizers by name: jfit's own and optax's; `get` also accepts optax transformations.

`in_structure` is for models whose parameters are a pytree of the user, but flat dicts by name inside jfit.

>>> from jfit.optim import get
>>> get("sgd", momentum=0.9).learning_rate
0.01
>>> get("lion").takes_rate  # an optax optimizer; jfit passes the learning rate
True
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax import Array

from jfit.checks import name_hint
from jfit.lowering.model import flatten_names
from jfit.lowering.structure import Structure, Tree
from jfit.optim import rules
from jfit.optim.core import Optimizer, check_numbers, copied, is_small, rate_at, rounded, unchecked, wide
from jfit.programs import Constants, is_argument

# learning rate of optax optimizers without a default
OPTAX_RATE = 1e-3
# optax optimizers that compute their own learning rate; complete optimizers whose names look like those of building blocks
_RATELESS = ("polyak_sgd",)
_WHOLE = ("schedule_free_adamw", "schedule_free_sgd")
# name of an optax optimizer that a training step does not support -> why (end of an error message)
_UNSERVED = {
    "sophia": "needs the loss function inside the update, but the train step passes only its value and the gradients",
    "dpsgd": "needs per-example gradients, but the train step sums them",
}
# parameter of MXNet's optimizers that jfit's do not have -> what to use instead
_BELONGS = {
    "rescale_grad": " The train step rescales gradients (rescale=), and fit divides by the batch size; MXNet's "
    "optimizer classes (jfit.mx.optimizer) have rescale_grad.",
    "lr_scheduler": " Pass a schedule as learning_rate=, or as schedule= of fit or train_step; MXNet's optimizer classes "
    "(jfit.mx.optimizer) have lr_scheduler.",
    "lazy_update": " Only sgd, adam and ftrl have it; adagrad and group_adagrad always update row-sparse gradients lazily.",
    "begin_num_update": " Set `count` in the optimizer state instead.",
    "param_idx2name": " jfit's parameters have names, not numbers.",
}


# For functions and modules, names that jfit and optax share mean optax's.  Their updates are proportional to the learning rate,
# so that learning rates have multipliers, and they have these parameters besides optax's.
_EXTRA = ("lr_mult", "multi_precision")
_RATES = {"adadelta": 1.0}  # default learning rates where that of MXNet, which has another formula, makes no sense
# numbers that optax adds or multiplies as they are
_TRACED = ("momentum", "eps", "eps_root", "weight_decay", "trust_coefficient")
# parameter of MXNet's optimizer -> of optax's
_RENAMED: dict[Any, str] = {"beta1": "b1", "beta2": "b2", "epsilon": "eps", "wd": "weight_decay", "eta": "trust_coefficient"}
_RENAMED |= {"wd_mult": "mask", ("rmsprop", "gamma1"): "decay", ("signum", "momentum"): "beta"}


class Named(NamedTuple):
    """A registered optimizer: its factory and its default learning rate."""

    make: Callable[..., Optimizer]
    default_learning_rate: float


OPTIMIZERS: dict[str, Named] = {}


def register(name: str, make: Callable[..., Any], *aliases: str) -> None:
    """Register an optimizer factory under one or more names.

    Args:
        name: lower-case name.
        make: factory whose parameters include `learning_rate` with a default value.
        *aliases: other lower-case names.

    Example:
        >>> register("plain", lambda learning_rate=0.5: rules.sgd(learning_rate))
        >>> get("plain").learning_rate
        0.5
        >>> OPTIMIZERS.pop("plain").default_learning_rate
        0.5
    """
    rate = float(inspect.signature(make).parameters["learning_rate"].default)
    OPTIMIZERS.update(dict.fromkeys((name, *aliases), Named(make, rate)))


_OWN = (rules.sgd, rules.nag, rules.signum, rules.dcasgd, rules.adam, rules.adamw, rules.adamax, rules.nadam, rules.rmsprop)
_OWN += (rules.adagrad, rules.adadelta, rules.ftrl, rules.ftml, rules.lamb, rules.lars, rules.lbsgd, rules.sgld)
for _make in _OWN:
    register(_make.__name__, _make, *(("ccsgd",) if _make is rules.sgd else ()))
register("test", rules.adding)
register("groupadagrad", rules.group_adagrad, "group_adagrad")


def get(spec: Any, **params: Any) -> Optimizer:
    """Create or convert an optimizer.

    Args:
        spec: case-insensitive name of one of jfit's optimizers (`OPTIMIZERS`) or of one in optax or optax.contrib, or an optax
            transformation.  If jfit and optax share a name, it means jfit's, with the arithmetic of MXNet; pass optax's as an
            instance: `optax.lamb(...)`.  (`fit`, `init_state` and `train_step` know the model, and use optax's for functions.)
        **params: parameters of a named optimizer; `learning_rate` may be a number or a schedule.

    Returns:
        `Optimizer`; one that is passed in is returned unchanged.  Its `update` ignores unknown keyword arguments.

    Raises:
        ValueError: unknown name or parameter, a number out of range (see `jfit.optim`), parameters for an optimizer that is
            not passed by name, or an optimizer with a line search.
        TypeError: `spec` is neither a name nor an optax transformation.

    Example:
        >>> get(optax.sgd(0.1)).takes_rate
        False
        >>> get(rules.sgd(0.1)).learning_rate
        0.1
    """
    if isinstance(spec, str):
        return by_name(spec, params)
    if not (callable(getattr(spec, "init", None)) and callable(getattr(spec, "update", None))):
        kind = type(spec)  # not its repr: that of nnx.Optimizer has the whole state
        remedy = "; pass the optax transformation it was made with, such as optax.adam(0.001)" if hasattr(spec, "tx") else ""
        remedy = "; call it, as in optax.adam(0.001)" if callable(spec) and not remedy else remedy
        found = f"an object of type {kind.__module__}.{kind.__qualname__}{remedy}"
        raise TypeError(f"an optimizer must be a name or an optax transformation (init, update), but got {found}.")
    if params:
        raise ValueError(f"the optimizer is an instance, so its parameters ({', '.join(params)}) cannot be changed")
    if isinstance(spec, Optimizer):
        return spec
    name = type(spec).__name__
    has_rate = _find_hyper(_tiny_state(spec, name)) is not None
    rate = injected_rate(spec.init(_tiny())) if has_rate else None
    return _of_transformation(spec, base_lr=None if rate is None else float(rate), name=name)


def get_for(is_graph: bool, spec: Any, **params: Any) -> Optimizer:
    """Create or convert an optimizer for a model: as `get`, but for functions and modules names mean optax's optimizers.

    Names that only MXNet has, such as "nag", mean MXNet's also for functions.

    Args:
        is_graph: whether the model was lowered from a graph.
        spec, **params: as for `get`.  Names that jfit and optax share have optax's parameters, `lr_mult` and `multi_precision`.

    Example:
        >>> get_for(False, "adam", b1=0.8).learning_rate
        0.001
        >>> get_for(False, "adam", beta1=0.8)
        Traceback (most recent call last):
        ValueError: optimizer 'adam' has no parameter 'beta1'; ... it is optax.adam, which calls it 'b1'.
    """
    if not is_graph and isinstance(spec, str) and _of_optax_by(spec.lower()) is not None:
        entry = OPTIMIZERS.get(spec.lower())
        if entry is None or entry.make in _OWN:  # not one that the user registered
            return _of_optax(spec.lower(), params)
    return get(spec, **params)


def _of_transformation(transform: Any, **fields: Any) -> Optimizer:
    """Convert an optax transformation to an `Optimizer`, whose `update` accepts and ignores unknown keyword arguments.

    Args:
        transform: the optax transformation.
        **fields: fields of `Optimizer`.
    """
    # MultiSteps accepts extra arguments without being a GradientTransformationExtraArgs.
    with_extra = transform if isinstance(transform, optax.MultiSteps) else optax.with_extra_args_support(transform)
    return Optimizer(transform.init, with_extra.update, **fields)


def injected_rate(opt_state: Any) -> Array | None:
    """Return the learning rate in an optimizer state of `optax.inject_hyperparams`, wherever it is within the state.

    Args:
        opt_state: any optimizer state, such as that of `optax.chain`, `optax.masked` or `optax.partition`.

    Returns:
        Scalar array; None if the state has no learning rate, or several.

    Example:
        >>> opt = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
        >>> float(injected_rate(opt.init({"w": jnp.ones(1)})))
        0.25
    """
    hyper = _find_hyper(opt_state)
    return None if hyper is None else hyper["learning_rate"]


def own_rate(optimizer: Optimizer, before: Any, after: Any) -> Array | None:
    """Return the learning rate that an update used to which none was passed.

    Args:
        optimizer: the `Optimizer` that made the update.
        before: optimizer state before the update.
        after: optimizer state after the update.

    Returns:
        float32 scalar; None if it is unknown, because the optimizer has its own learning rate and does not store it.

    Example:
        >>> sgd = get(rules.sgd(0.5))
        >>> own_rate(sgd, sgd.init({"w": jnp.ones(1)}), ()).item()
        0.5
    """
    if optimizer.takes_rate and optimizer.base_lr is not None:
        own = before.inner if hasattr(before, "ema_params") else before  # `ema` wraps an optimizer: the state of that one
        return jnp.asarray(rate_at(optimizer.base_lr, getattr(own, "count", None)), jnp.float32)
    return injected_rate(after)


def by_name(name: str, params: dict[str, Any], checks: bool = True) -> Optimizer:
    """Create an optimizer as `get` does; without `checks`, its numbers may be negative or infinite, as those of MXNet may."""
    entry = OPTIMIZERS.get(name.lower())
    if entry is not None:
        _check_params(name, entry.make, params)
        made = (entry.make if checks else unchecked(entry.make))(**params)
        if not isinstance(made, Optimizer):  # factories registered by users may return any optax transformation
            rate = params.get("learning_rate", entry.default_learning_rate)
            return _of_transformation(made, takes_rate=True, base_lr=rate, name=name.lower())
        return Optimizer(*made, **vars(made) | {"name": name.lower()})
    if _of_optax_by(name.lower()) is None:
        raise ValueError(f"unknown optimizer {name!r}; {name_hint(name, (*OPTIMIZERS, *optax_names()))}")
    return _of_optax(name.lower(), params)


def optax_names() -> list[str]:
    """Names of the optimizers in the installed optax and optax.contrib that `get` accepts, except those that mean jfit's.

    Returns:
        Sorted list of names.

    Example:
        >>> {"lion", "muon"} <= set(optax_names()), "adam" in optax_names()
        (True, False)
    """
    names = {*vars(optax), *vars(optax.contrib)} - set(OPTIMIZERS)
    return sorted(name for name in names - {"lbfgs", *_UNSERVED} if _of_optax_by(name) is not None)


def _of_optax_by(name: str) -> Callable[..., Any] | None:
    """Return the factory of an optax or optax.contrib optimizer.

    None for other names, such as those of building blocks (`scale_by_adam`).
    """
    if name.startswith(("_", "scale", "schedule_free")) and name not in _WHOLE:
        return None
    make = vars(optax).get(name) or vars(optax.contrib).get(name)  # getattr would also return deprecated names
    if not (inspect.isfunction(make) or isinstance(make, functools.partial)):
        return None
    return cast(Any, make) if name in _RATELESS or "learning_rate" in inspect.signature(make).parameters else None


class NamedState(NamedTuple):
    """State of an optax optimizer that was passed by name.

    Attributes:
        inner: the state of the optax transformation.
        count: number of updates so far, int32 scalar, if the learning rate is a schedule; else None.
        master: with `multi_precision`, a pytree like the parameters: the float32 copy of a 16-bit parameter, and
            `optax.MaskedNode()` for other parameters; else None.

    Example:
        >>> state = get_for(False, "adam").init({"w": jnp.ones(2)})
        >>> state.inner[0].mu["w"].tolist(), state.count
        ([0.0, 0.0], None)
    """

    inner: Any
    count: Array | None = None
    master: Any = None


def optax_parameters(name: str) -> tuple[str, ...]:
    """Names of the parameters of an optimizer of optax; none if optax has no optimizer of this name."""
    make = _of_optax_by(name.lower())
    return () if make is None else tuple(inspect.signature(make).parameters)


def _of_optax(name: str, params: Mapping[str, Any]) -> Optimizer:
    """Make the optimizer of a factory of optax, which is called in every traced update with the learning rate of the update."""
    if name in _UNSERVED:
        raise ValueError(f"optimizer {name!r} {_UNSERVED[name]}. Use another one, such as 'adam'.")
    make, is_shared = cast(Any, _of_optax_by(name)), name in OPTIMIZERS
    _check_params(name, make, params, _EXTRA if is_shared else ())
    check_numbers(params)
    own = {key: value for key, value in params.items() if key not in (*_EXTRA, "learning_rate")}
    if name in _RATELESS:
        return _of_transformation(make(**own), name=name)
    lr_mult, masters = params.get("lr_mult"), bool(params.get("multi_precision"))
    declared = inspect.signature(make).parameters["learning_rate"].default
    default = OPTAX_RATE if declared in (inspect.Parameter.empty, None) else declared
    rate = params.get("learning_rate", _RATES.get(name, OPTIMIZERS[name].default_learning_rate) if is_shared else default)
    start = float(rate_at(rate, 0))
    _tiny_state(make(**own, learning_rate=start), name)
    numbers = Constants(**{key: own[key] for key in _TRACED if is_shared and is_argument(own.get(key))})

    def init(params: Any) -> NamedState:
        master = jax.tree.map(lambda w: copied(w) if is_small(w) else optax.MaskedNode(), params) if masters else None
        inner = make(**own, learning_rate=start).init(_masters(params, master))
        return NamedState(inner, jnp.zeros((), jnp.int32) if callable(rate) else None, master)

    def update(grads: Any, state: NamedState, params: Any = None, *, learning_rate: Any = None, **extra: Any) -> Any:
        current = rate_at(rate, state.count) if learning_rate is None else learning_rate
        traced = {key: _weak(getattr(numbers, key)) for key in numbers.values}
        transform = optax.with_extra_args_support(make(**own | traced, learning_rate=_weak(current)))
        gradients = grads if state.master is None else jax.tree.map(wide, grads)
        updates, inner = transform.update(gradients, state.inner, _masters(params, state.master), **extra)
        updates, master = _multiplied(updates, lr_mult), state.master
        if master is not None:
            leaves, tree = jax.tree.flatten(updates)
            pairs = [_of_master(*each) for each in zip(leaves, *map(tree.flatten_up_to, (params, master)), strict=True)]
            updates, master = (tree.unflatten(part) for part in zip(*pairs, strict=True))
        return updates, NamedState(inner, None if state.count is None else state.count + 1, master)

    listed = {"lr_mult": tuple(lr_mult)} if isinstance(lr_mult, Mapping) else {}
    fields = {"takes_rate": True, "base_lr": rate, "name": name, "multi_precision": masters, "multiplied": listed}
    optimizer = Optimizer(init, update, **fields)
    if not is_shared:  # `init` may depend on the learning rate, which keys do not have
        return optimizer
    settings = {key: value for key, value in params.items() if key not in (*numbers.values, "learning_rate")}
    return optimizer.keyed(make, settings, rate if callable(rate) else None, numbers=(numbers,))


def _weak(x: Any) -> Array:
    """A scalar with the weak type of Python numbers, with which 16-bit arrays stay in 16 bits."""
    from jax.extend.core.primitives import convert_element_type_p  # takes 20 ms, which `jfit.fit` does not have to wait for

    x = jnp.asarray(x, float)
    return convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def _multiplied(updates: Any, lr_mult: Any) -> Any:
    """The updates of optimizers whose updates are proportional to the learning rate, with other learning rates by name."""
    if lr_mult is None:
        return updates
    flat, tree = flatten_names(updates)
    factors: list[Any] = [lr_mult(name) if callable(lr_mult) else lr_mult.get(name, 1.0) for name in flat]
    return jax.tree.unflatten(tree, [u if m == 1 else u * float(m) for u, m in zip(flat.values(), factors, strict=True)])


def _masters(params: Any, master: Any) -> Any:
    if master is None:
        return params
    return jax.tree.map(lambda w, m: w if isinstance(m, optax.MaskedNode) else m, params, master)


def _of_master(update: Array, w: Array, master: Any) -> tuple[Array, Any]:
    return (update, master) if isinstance(master, optax.MaskedNode) else rounded(w, master, update)


def _check_params(name: str, make: Callable[..., Any], params: Mapping[str, Any], extra: Sequence[str] = ()) -> None:
    known = [*inspect.signature(make).parameters, *extra]
    for key in params:
        if key not in known:
            hint = _BELONGS.get(key, "")
            other, entry = _of_optax_by(name), OPTIMIZERS.get(name)
            if make is other:
                renamed, theirs = _RENAMED.get((name, key)) or _RENAMED.get(key), "wd" if key == "weight_decay" else key
                if renamed in known:
                    hint = f" For functions and modules it is optax.{name}, which calls it {renamed!r}."
                elif entry is not None and theirs in inspect.signature(entry.make).parameters:
                    hint = f" For functions and modules it is optax.{name}; MXNet's is jfit.optim.{name}(..., {theirs}=...)."
            elif key in optax_parameters(name):
                hint = f" optax's {name} has it: pass optax.{name}(...) instead of the name."
            raise ValueError(f"optimizer {name!r} has no parameter {key!r}; {name_hint(key, known)}{hint}")


def _tiny() -> dict[str, Array]:
    return {"w_weight": jnp.asarray(np.ones((2, 2), np.float32))}  # jnp.ones would compile a program


def _tiny_state(transform: Any, name: str) -> Any:
    """Return shapes and dtypes of the optimizer state for a small parameter tree, or None if `init` fails for that tree.

    Raises:
        ValueError: the optimizer has a line search.
    """
    try:
        state = jax.eval_shape(transform.init, _tiny())
    except Exception:  # masks and labels may need the user's parameter tree: then the state is unknown
        return None

    def searches(part: Any) -> bool:
        return any(word in type(part).__name__.lower() for word in ("linesearch", "backtracking", "zoom"))

    for part in filter(searches, jax.tree.leaves(state, is_leaf=searches)):
        problem = f"optimizer {name!r} has a line search ({type(part).__name__}), which needs the loss function in the update"
        raise ValueError(f"{problem}; use another one, such as 'adam', or linesearch=None if it allows that.")
    return state


def _find_hyper(state: Any) -> Mapping[str, Any] | None:
    def has_rate(part: Any) -> bool:
        hyper = getattr(part, "hyperparams", None)
        return isinstance(hyper, Mapping) and "learning_rate" in hyper

    parts = [part.hyperparams for part in jax.tree.leaves(state, is_leaf=has_rate) if has_rate(part)]
    return parts[0] if len(parts) == 1 else None  # with several, no rate is that of all parameters


# ------------------------------------------------------------------------------------------------ parameters that are a pytree
# An optax transformation sees the pytree of the user: masks, labels and other options may depend on it.  jfit's own optimizers
# update each parameter separately, by name; those that depend on the order of the parameters get the leaf order.
def in_structure(optimizer: Optimizer, structure: Structure) -> Optimizer:
    """Wrap an optimizer for parameters that are flat dicts by name, but have a tree structure for the user.

    Args:
        optimizer: one of jfit's, or of optax's converted by `jfit.optim.get`.
        structure: `Model.structure` of a model that is made of a function.

    Returns:
        `Optimizer` with the same attributes, whose `init` and `update` take and return dicts by name.  In its state, every tree
        with the structure of the parameters (such as the moments of Adam) is a dict by name too.  An optax transformation sees
        `optax.MaskedNode()` in place of parameters that are not trained.

    Example:
        >>> import jax.numpy as jnp, jfit, optax
        >>> model = jfit.Model.from_function(
        ...     lambda params, x: x * params["layers"][0], loss=jnp.subtract, params={"layers": [jnp.ones(2), jnp.ones(2)]}
        ... )
        >>> only_first = optax.masked(optax.sgd(0.1, momentum=0.9), {"layers": [True, False]})
        >>> opt = in_structure(jfit.optim.get(only_first), model.structure)
        >>> opt.init({"layers/0": jnp.ones(2), "layers/1": jnp.ones(2)}).inner_state[0].trace["layers/1"]
        MaskedNode()
    """
    if optimizer.state_spec is not None:
        return optimizer if optimizer.for_graph is None else _in_leaf_order(optimizer, structure)

    def init(params: Mapping[str, Array]) -> Any:
        tree = structure.known("params")
        return _named_state(optimizer.init(tree.unflatten(params, missing=optax.MaskedNode())), tree)

    def update(grads: Mapping[str, Array], state: Any, params: Any = None, **extra: Any) -> tuple[dict[str, Array], Any]:
        tree = structure.known("params")
        as_tree = lambda leaves: tree.unflatten(leaves, missing=optax.MaskedNode())  # noqa: E731
        updates, state = optimizer.update(as_tree(grads), _tree_state(state, tree), params and as_tree(params), **extra)
        by_name = tree.flatten(updates)
        return {name: by_name[name] for name in grads}, _named_state(state, tree)

    return Optimizer(init, update, **vars(optimizer)).keyed(in_structure, optimizer, structure)


def _in_leaf_order(optimizer: Optimizer, structure: Structure) -> Optimizer:
    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        assert optimizer.for_graph is not None
        return optimizer.for_graph(structure.known("params").names, ()).update(grads, state, params, **extra)

    return Optimizer(optimizer.init, update, **vars(optimizer))


# The state of an optimizer contains trees like the parameters.  They are stored as dicts by name, as the parameters are: jit
# flattens dicts faster than user-defined pytree nodes, at every dispatch, and checkpoints do not depend on the user's classes.
def _named_state(state: Any, tree: Tree) -> Any:
    """Replace each subtree with the structure of the parameters by a dict by name."""
    if jax.tree_util.treedef_is_leaf(tree.treedef):
        return state  # the parameters are one array, and so would be every leaf of the state
    leaves_of = lambda part: _leaves(part, tree)  # noqa: E731
    return jax.tree.map(lambda part: leaves_of(part) or part, state, is_leaf=lambda part: leaves_of(part) is not None)


def _tree_state(state: Any, tree: Tree) -> Any:
    """Inverse of `_named_state`."""
    if jax.tree_util.treedef_is_leaf(tree.treedef):
        return state

    def named(part: Any) -> bool:
        return isinstance(part, dict) and bool(part) and part.keys() == set(tree.names) and all(map(_is_leaf, part.values()))

    return jax.tree.map(lambda part: tree.unflatten(part) if named(part) else part, state, is_leaf=named)


def _leaves(part: Any, tree: Tree) -> dict[str, Any] | None:
    try:
        leaves = tree.flatten(part)
    except (ValueError, TypeError):
        return None
    return leaves if leaves and all(map(_is_leaf, leaves.values())) else None


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, optax.MaskedNode))
