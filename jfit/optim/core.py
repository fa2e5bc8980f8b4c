"""The base of jfit's optimizers: state, scalars of an update, and `transformation`, which makes an optimizer of an update rule.

An update rule is the arithmetic of ONE parameter, `(gradient, weight, slots, ctx) -> (update, new slots)`, in float32, where
the update is added to the weight, slots are the per-parameter state (such as the momentum) and ctx is a `RuleContext`.
`transformation` makes an optax transformation of it and adds learning rates, multipliers, update counts and float32 master
copies of 16-bit weights.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from jfit.checks import at_least_0, below_1, name_hint
from jfit.optim.rows import SparseRows, add_rows, in_rows
from jfit.optim.schedules import Schedule
from jfit.programs import Constants, collected, depends_on_more, is_argument, keyed

LearningRate = float | Array | Callable[[Any], Any]
Slots = tuple[Any, ...]
F = TypeVar("F", bound=Callable[..., Any])
MASTER = "master"  # slot of the float32 master copy of a 16-bit weight
# parameters of optimizers of jfit and optax: factors of moving averages, and rates
_BELOW_1 = frozenset({"momentum", "beta1", "beta2", "b1", "b2", "rho", "decay", "gamma1", "gamma2"})
_AT_LEAST_0 = frozenset({"learning_rate", "wd", "weight_decay", "wd_lh", "eps", "epsilon", "beta", "schedule_decay"})
_AT_LEAST_0 |= {"lamda", "lamda1", "eta"}


class RuleContext(NamedTuple):
    """The scalars that an update rule reads when it updates one parameter.

    Attributes:
        lr: learning rate times the learning rate multiplier of this parameter.
        wd: weight decay times the weight decay multiplier of this parameter; the Python float 0.0 if there is no weight decay.
        t: number of this update, counted from 1; None if the rule does not use it (see `transformation`, `counted`).
        name: name of the parameter, see `leaf_names`.
        base: learning rate before the multiplier of this parameter.
        shared: scalars shared by all parameters, by name.
    """

    lr: Any
    wd: Any
    t: Any
    name: str
    base: Any
    shared: Mapping[str, Array]


# (gradient, weight, slots, ctx) -> (update to add to the weight, new slots), all float32
Rule = Callable[[Array, Array, Slots, RuleContext], tuple[Array, Slots]]
# (shared scalars before the update, contexts of all parameters in update order) -> the shared scalars that each rule reads
AdvanceShared = Callable[[Mapping[str, Array], Sequence[RuleContext]], Sequence[dict[str, Array]]]
# float32 weight -> initial value of a slot
Start = Callable[[Array], Array]


class OptState(NamedTuple):
    """State of a jfit optimizer.

    Attributes:
        count: number of updates so far, int32: one for all parameters, or one per parameter in leaf order, as an array of
            shape (leaves,) or a tuple of scalars; None if the update rule does not use it.
        slots: per-parameter state, slot name -> pytree of float arrays with the structure of the parameters (`momentum`,
            `mean`, `var`, ...).  The slot `master` is the float32 copy of a 16-bit weight and None for other parameters.
        lr_mult: learning rate multipliers in leaf order, float32 (leaves,) or a tuple of scalars; None if all are 1.
        wd_mult: weight decay multipliers, likewise; None if all are 1.
        shared: scalars shared by all parameters (Nadam's momentum product, a PRNG key), or None.

    Example:
        >>> import jfit
        >>> state = jfit.optim.adam().init({"w": jnp.ones(2)})
        >>> int(state.count), sorted(state.slots)
        (0, ['mean', 'var'])
    """

    count: Array | tuple[Array, ...] | None
    slots: dict[str, Any]
    lr_mult: Array | tuple[Array, ...] | None = None
    wd_mult: Array | tuple[Array, ...] | None = None
    shared: dict[str, Array] | None = None


class Common(TypedDict, total=False):
    """The arguments that all optimizers share, see `jfit.optim`."""

    wd: float
    clip_gradient: float | None
    lr_mult: Multiplier
    wd_mult: Multiplier | str | tuple[str, Any]
    multi_precision: bool


class StateSpec(NamedTuple):
    """Description of the state that an optimizer keeps for one parameter, for MXNet's classes, which store states one by one.

    Attributes:
        slots: slot name -> function of the float32 weight that makes the initial value, in MXNet's order.
        counted: whether the update rule uses the number of the update (`RuleContext.t`).
        shared: function that returns the initial scalars shared by all parameters, by name; None if there are none.
        lazy: whether a `SparseRows` gradient updates only its rows; other rules convert it to a dense gradient.
    """

    slots: dict[str, Start]
    counted: bool
    shared: Callable[[], dict[str, Array]] | None
    lazy: bool = False


class Optimizer(optax.GradientTransformationExtraArgs):
    """An optax transformation with the properties that a training step uses.

    It unpacks to (init, update) like every optax transformation, and can be used wherever one is expected (`optax.chain`).

    Attributes:
        init: `init(params) -> state`.
        update: `update(gradients, state, params, *, learning_rate=None, **extra) -> (updates, state)`; the updates are added
            to the parameters.
        takes_rate: whether `update` accepts `learning_rate=`, which may be traced.
        base_lr: learning rate passed at construction, a number or a schedule; None if it is unknown.
        state_spec: description of the state that the optimizer keeps for one parameter; None for optax's optimizers.
        for_graph: for rules that depend on the order of the parameters: `for_graph(argument names of a graph, names of its
            BatchNorm gammas with fix_gamma) -> Optimizer` in that order, which is MXNet's; otherwise None.
        name: name of the optimizer in error messages.
        multiplied: "lr_mult" and "wd_mult" -> names of the parameters in these dicts; `init_state` raises for unknown ones.
        multi_precision: whether an optimizer of optax, made by name, has float32 master copies of 16-bit parameters.

    Example:
        >>> import jfit
        >>> opt = jfit.optim.sgd(0.5)
        >>> opt.takes_rate, opt.base_lr, opt.learning_rate
        (True, 0.5, 0.5)
        >>> init, update = opt
    """

    takes_rate: bool = False
    base_lr: LearningRate | None = None
    state_spec: StateSpec | None = None
    for_graph: Callable[[Sequence[str], Sequence[str]], Optimizer] | None = None
    name: str = "optax"
    multiplied: Mapping[str, Sequence[str]] = {}
    multi_precision: bool = False

    def __new__(cls, init: Callable[..., Any], update: Callable[..., Any], **fields: Any) -> Optimizer:
        self = super().__new__(cls, cast(Any, init), cast(Any, update))
        if unknown := fields.keys() - Optimizer.__annotations__.keys():
            raise TypeError(f"Optimizer has no field {min(unknown)!r}; {name_hint(min(unknown), Optimizer.__annotations__)}")
        vars(self).update(fields)
        return self

    @property
    def learning_rate(self) -> float | None:
        """The base learning rate as a number; None if it is a schedule or unknown."""
        return None if self.base_lr is None or callable(self.base_lr) else float(self.base_lr)

    @property
    def program_key(self) -> Any:
        """What `init` and `update` depend on; a base learning rate that is a number is in the state, see `rate_at`."""
        spec = self.state_spec and (self.state_spec.lazy,)  # which a step asks for; the functions have their own keys
        return *self, self.takes_rate, spec, self.base_lr if callable(self.base_lr) else self.base_lr is None

    def keyed(self, *parts: Any, numbers: Sequence[Constants] = ()) -> Optimizer:
        """This optimizer, whose functions have a key of these parts, see `jfit.programs.keyed`; `init` reads no numbers."""
        for_graph = None if self.for_graph is None else keyed(self.for_graph, "for_graph", *parts, numbers)
        init, update = keyed(self.init, "init", *parts), keyed(self.update, "update", *parts, numbers)
        return Optimizer(init, update, **vars(self) | {"for_graph": for_graph})

    def in_order(self, names: Sequence[str], fixed: Sequence[str]) -> Optimizer:
        """The optimizer that `for_graph` makes, with a key."""
        assert self.for_graph is not None
        return self.for_graph(names, fixed).keyed(self.for_graph, tuple(names), tuple(fixed))


def check_numbers(params: Mapping[str, Any]) -> None:
    """Raise a ValueError for a number with which no training makes sense: negative, not finite, or a factor of 1 and more.

    Args:
        params: parameters of an optimizer by name; schedules and arrays of JAX are not checked.  Numbers other than the
            learning rate may be None.
    """
    for name, value in params.items():
        is_given = value is not None or name == "learning_rate"
        if name in _BELOW_1 | _AT_LEAST_0 and is_given and not callable(value):
            (below_1 if name in _BELOW_1 else at_least_0)(**{name: value})


def optimizer(**defaults: Any) -> Callable[[F], F]:
    """Decorate the factory of an optimizer: add the parameters `Common`, and check the numbers (`check_numbers`).

    The factory and its settings are the key of the optimizer (see `jfit.programs.keyed`), with its `Constants` in place of
    parameters of type float: the update rule has to read them from these.

    `inspect.signature` of the result lists all parameters: those of `Common` that the factory does not have follow its
    positional ones.

    Args:
        **defaults: default values of parameters of `Common` that are not those of most optimizers.
    """
    values = {"wd": 0.0, "clip_gradient": None, "lr_mult": None, "wd_mult": "mxnet", "multi_precision": False} | defaults

    def decorate(make: F) -> F:
        own = {name: p for name, p in inspect.signature(make).parameters.items() if p.kind != p.VAR_KEYWORD}
        kind, types = inspect.Parameter.POSITIONAL_OR_KEYWORD, {k: v.__forward_arg__ for k, v in Common.__annotations__.items()}
        common = [inspect.Parameter(k, kind, default=v, annotation=types[k]) for k, v in values.items() if k not in own]
        last = [p.replace(kind=kind) for p in own.values() if p.kind == p.KEYWORD_ONLY]
        first = [p for p in own.values() if p.kind == kind]
        signature = inspect.Signature(first + common + last, return_annotation="Optimizer")
        floats = {name for name, p in signature.parameters.items() if "float" in str(p.annotation)}

        def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments

        def made(given: dict[str, Any]) -> Optimizer:
            with collected() as numbers:
                result = make(**given)
            rate = given.get("learning_rate")
            settings = {k: v for k, v in given.items() if k != "learning_rate" and not (k in floats and is_argument(v))}
            return result.keyed(make, settings, rate if callable(rate) else None, numbers=tuple(numbers))

        @functools.wraps(make)
        def with_check(*args: Any, **kwargs: Any) -> Any:
            given = arguments(*args, **kwargs)
            check_numbers(given)
            return made(given)

        attributes: Any = with_check
        attributes.__signature__ = signature
        attributes.unchecked = lambda *args, **kwargs: made(arguments(*args, **kwargs))
        return attributes

    return decorate


def unchecked(make: F) -> F:
    """The optimizer without the check of its numbers, for MXNet's classes, which take any; other functions are unchanged."""
    return getattr(make, "unchecked", make)


def zeros(w: Array) -> Array:
    """Zeros in the shape of the weight, float32 or wider: the initial value of most slots."""
    dtype = jnp.promote_types(w.dtype, jnp.float32)
    if isinstance(w, jax.core.Tracer):  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.zeros(w.shape, dtype)
    return jax.device_put(np.zeros(w.shape, dtype), may_alias=False)  # jnp.zeros would compile a program for each shape


def copied(w: Array) -> Array:
    """A copy of the weight, float32 or wider: an initial slot value in a buffer that can be donated separately."""
    return jnp.array(w, jnp.promote_types(w.dtype, jnp.float32))


def transformation(
    rule: Rule,
    slots: Sequence[str] | Mapping[str, Start],
    base: LearningRate,
    common: Common,
    *,
    counted: bool = False,
    shared: Callable[[], dict[str, Array]] | None = None,
    advance: AdvanceShared | None = None,
    order: Sequence[str] | None = None,
    fixed: Sequence[str] | None = None,
    lazy: bool = False,
    numbers: Constants | None = None,
) -> Optimizer:
    """Make an optimizer of an update rule.

    Args:
        rule: arithmetic of one parameter, `(gradient, weight, slots, ctx) -> (update, new slots)`, float32; the update is added
            to the weight, ctx is a `RuleContext`.
        slots: names of the per-parameter state, initially zeros; or a dict slot name -> function of the float32 weight that
            makes the initial value.
        base: learning rate: number, or schedule of the update count, which starts at 0.
        common: the arguments that all optimizers share.
        counted: whether the rule reads `ctx.t`, the number of the update.
        shared: function that returns the initial scalars shared by all parameters, by name; None if there are none.
        advance: for rules in which, as in MXNet, the update of one parameter changes the shared scalars that the next
            parameter reads: computes the scalars of all parameters before any rule runs.  (A chain from rule to rule would
            be compiled into every rule.)
        order: parameter names in update order; parameters that are not listed follow in leaf order.  None: leaf order.
        fixed: names of parameters that advance the shared scalars but are not updated: MXNet updates the gamma of a BatchNorm
            with fix_gamma like any parameter, and BatchNorm then overwrites it with 1.  None: no names.
        lazy: whether a `SparseRows` gradient updates only the weight rows and slot rows at its indices.  Rules that need the
            whole parameter, such as its norm, cannot be lazy.
        numbers: the weight decay as `Constants`, if another optimizer shares it; None: that of `common`.

    Returns:
        `Optimizer`.  The updates are added to the parameters; an update is a `SparseRows` if its gradient is one and the rule
        is lazy.
    """
    decay_rate, lr_mult, wd_mult = common.get("wd", 0.0), common.get("lr_mult"), common.get("wd_mult")
    multi_precision = common.get("multi_precision", False)
    counted = counted or callable(base)
    starts: dict[str, Start] = dict(slots) if isinstance(slots, Mapping) else dict.fromkeys(slots, zeros)
    if multi_precision:
        starts[MASTER] = cast(Any, _master)
    state_spec = StateSpec(starts, counted, shared, lazy)
    decays, numbers = bool(decay_rate), numbers or Constants(wd=decay_rate)

    def init(params: Any) -> OptState:
        return OptState(
            count=jax.device_put(np.int32(0), may_alias=False) if counted else None,
            slots={name: jax.tree.map(start, params) for name, start in starts.items()},
            lr_mult=multipliers(params, lr_mult),
            wd_mult=multipliers(params, wd_mult, "mxnet") if decays else None,
            shared=None if shared is None else shared(),
        )

    def update(
        grads: Any, state: OptState, params: Any = None, *, learning_rate: Any = None, **extra: Any
    ) -> tuple[Any, OptState]:
        if params is None:
            raise ValueError("jfit optimizers need the parameters to compute an update; call update(grads, state, params).")
        leaves, tree = jax.tree.flatten(params)
        names, gradients = leaf_names(params), tree.flatten_up_to(grads)
        rate = rate_at(base, state.count) if learning_rate is None else learning_rate
        t = jax.tree.map(lambda c: c + 1, state.count)
        old_slots = [tree.flatten_up_to(state.slots[name]) for name in starts]
        lr = rate if state.lr_mult is None else _times(rate, state.lr_mult, len(leaves))
        wd = numbers.wd
        decay = wd if state.wd_mult is None or not decays else jax.tree.map(lambda m: wd * m, state.wd_mult)
        lr, decay, t_of, base_of = (_each(x, len(leaves)) for x in (lr, decay, t, rate))
        scalars, updates = dict(state.shared or {}), cast(list[Any], [None] * len(leaves))
        new_slots: list[list[Any]] = [[None] * len(leaves) for _ in starts]
        contexts = [RuleContext(lr[i], decay[i], t_of[i], names[i], base_of[i], scalars) for i in range(len(leaves))]
        if advance is not None and contexts:
            contexts, scalars = _in_turn(contexts, [name for name in fixed or () if name not in names], advance, order)
        for i, ctx in enumerate(contexts):
            slots_i = tuple(column[i] for column in old_slots)
            updates[i], new = _updated(rule, gradients[i], leaves[i], slots_i, ctx, multi_precision, lazy)
            for column, value in zip(new_slots, new, strict=True):
                column[i] = value
        columns = {name: tree.unflatten(column) for name, column in zip(starts, new_slots, strict=True)}
        return tree.unflatten(updates), state._replace(count=t, slots=columns, shared=scalars if state.shared else state.shared)

    def for_graph(names: Sequence[str], fixed_names: Sequence[str]) -> Optimizer:
        graph = {"order": names if order is None else order, "fixed": fixed_names if fixed is None else fixed}
        others = {"counted": counted, "shared": shared, "advance": advance, "lazy": lazy, "numbers": numbers}
        return transformation(rule, slots, base, common, **graph, **others)

    return Optimizer(
        init,
        update,
        takes_rate=True,
        base_lr=base,
        state_spec=state_spec,
        for_graph=None if advance is None else for_graph,
        name="jfit.optim",
        multiplied={"lr_mult": _listed(lr_mult), "wd_mult": _listed(wd_mult)},
    )


def _updated(
    rule: Rule, g: Array | SparseRows, w: Array, slots: Slots, ctx: RuleContext, multi_precision: bool, lazy: bool
) -> tuple[Array | SparseRows, Slots]:
    """Return (update to add to the weight, new slots) for one parameter.

    Args:
        rule: the update rule.
        g: gradient.
        w: weight.
        slots: per-parameter optimizer state; with `multi_precision`, the last one is the float32 master copy of a 16-bit
            weight, or None for other weights.
        ctx: scalars of the update.
        multi_precision: whether 16-bit weights have a float32 master copy, which is updated.
        lazy: whether a `SparseRows` gradient updates only its rows.
    """
    if isinstance(g, SparseRows):
        if lazy:
            return in_rows(lambda g, w, slots: _updated(rule, g, w, slots, ctx, multi_precision, lazy), g, w, slots)
        g = g.dense(len(w))
    if not multi_precision:
        delta, slots = rule(wide(g), wide(w), slots, ctx)
        return delta.astype(w.dtype), slots
    *rest, master = slots
    exact = w if master is None else master
    delta, slots = rule(wide(g), wide(exact), tuple(rest), ctx)
    if master is None:
        return delta.astype(w.dtype), (*slots, None)
    update, master = rounded(w, master, delta)
    return update, (*slots, master)


def rounded(w: Array, master: Array, delta: Array) -> tuple[Array, Array]:
    """Return (float32 update of a 16-bit weight after which it is its rounded master copy, the new master copy)."""
    master = master + delta
    # The difference in float32: adding it to the 16-bit weight gives the rounded master exactly.
    old, new = wide(w), wide(master.astype(w.dtype))
    # A weight that overflows its type becomes inf, as in MXNet; inf - inf would turn it into NaN at the next update.
    return jnp.where(new == old, 0.0, new - old), master


def rate_at(base: LearningRate, count: Any) -> Any:
    """Return the learning rate of the next update.

    Args:
        base: number, jfit schedule (function of the number of the update, from 1) or optax schedule (function of the number of
            updates done).
        count: number of updates done.
    """
    if isinstance(base, Schedule):
        return base(count + 1)
    if callable(base):
        return base(count)
    depends_on_more()  # keys of programs have no learning rates that are numbers
    return base


# ------------------------------------------------------------------------------------------------ building blocks of rules
def clipper(bound: float | None) -> Callable[[Array], Array]:
    """Return x -> clip(x, -bound, bound), or the identity if the bound is None, 0 or negative (MXNet disables it with -1)."""
    if bound is None or not bound > 0:
        return lambda x: x
    numbers = Constants(bound=bound)
    return lambda x: jnp.clip(x, -numbers.bound, numbers.bound)


def decayed(g: Array, wd: Any, w: Array) -> Array:
    """Add weight decay to the gradient: g + wd * w."""
    # Without weight decay, 0 * w is left out, because w may contain inf.
    return g if isinstance(wd, int | float) and wd == 0 else g + wd * w


def decay_rates(beta1: float, beta2: float, *, corrects_mean: bool = True, **others: Any) -> Constants:
    """The numbers of moving averages with decay rates beta1 and beta2: `rest1` is 1 - beta1, `log1` log(beta1), None for 0.

    Args:
        beta1, beta2: decay rates.
        corrects_mean: whether the rule uses `log1`; if not, it is None, and beta1 may be negative.
        **others: further numbers.
    """
    log1, log2 = _log(beta1) if corrects_mean else None, _log(beta2)
    return Constants(
        **{"beta1": beta1, "beta2": beta2, "rest1": 1 - beta1, "rest2": 1 - beta2, "log1": log1, "log2": log2} | others
    )


def _log(beta: Any) -> Any:
    """Return log(beta); None for 0."""
    if isinstance(beta, jax.Array):
        return jnp.log(beta)
    return math.log(beta) if beta else None


def moments(g: Array, slots: Slots, numbers: Constants) -> tuple[Array, Array]:
    """Return the new moving averages of g and g^2 with the numbers of `decay_rates`; slots[0] and slots[1] are the old ones."""
    return numbers.beta1 * slots[0] + numbers.rest1 * g, numbers.beta2 * slots[1] + numbers.rest2 * g * g


def one_minus_power(log_of_beta: Any, t: Array) -> Any:
    """Compute 1 - beta^t in float32 (bias correction) from log(beta), which is None for beta = 0."""
    # 1 - 0.999 has a relative error of 1e-5 in float32; expm1 is exact to rounding.
    return 1.0 if log_of_beta is None else -jnp.expm1(t.astype(jnp.float32) * log_of_beta)


def wide(x: Array) -> Array:
    """Convert an array to float32; arrays of wider dtypes are unchanged."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def is_small(x: Any) -> bool:
    """Return whether the dtype of x is a 16-bit float."""
    return x.dtype.itemsize == 2 and jnp.issubdtype(x.dtype, jnp.floating)


def _master(w: Array) -> Array | None:
    return copied(w) if is_small(w) else None


def _each(x: Any, n: int) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x[i] for i in range(n)] if np.ndim(x) else [x] * n


def _times(rate: Any, multiplier: Any, n: int) -> Any:
    if not isinstance(multiplier, tuple):
        return rate * multiplier
    return tuple(r * m for r, m in zip(_each(rate, n), multiplier, strict=True))


def _in_turn(
    contexts: Sequence[RuleContext], fixed: Sequence[str], advance: AdvanceShared, order: Sequence[str] | None
) -> tuple[list[RuleContext], dict[str, Array]]:
    """Compute the shared scalars that each parameter reads if the update of one parameter changes them for the next.

    Args:
        contexts: scalars of each parameter, in leaf order.
        fixed: names of parameters that change the shared scalars, but are not updated.
        advance: computes the shared scalars of all parameters in update order.
        order: parameter names in update order; None: leaf order.

    Returns:
        (contexts with `shared` filled in, the shared scalars after the whole update).
    """
    rank = {name: i for i, name in enumerate(order or ())}
    names = [*(ctx.name for ctx in contexts), *fixed]
    places = sorted(range(len(names)), key=lambda i: rank.get(names[i], len(rank)))
    backwards: list[RuleContext] = []
    after = next(contexts[i] for i in reversed(places) if i < len(contexts))
    for i in reversed(places):
        # MXNet updates a fixed gamma as often as the parameter after it, the beta of its BatchNorm, so they have one count.
        after = contexts[i] if i < len(contexts) else after._replace(name=names[i])
        backwards.append(after)
    at_turn = dict(zip(places, advance(contexts[0].shared, backwards[::-1]), strict=True))
    last = at_turn[places[-1]]
    return [ctx._replace(shared=at_turn[i]) for i, ctx in enumerate(contexts)], {
        name: last[name] for name in contexts[0].shared
    }


# ------------------------------------------------------------------------------------------------ multipliers
Multiplier = Mapping[str, float] | Callable[[str], float] | None

# weight decay rule -> endings of the parameter names that decay
DECAYED = {"mxnet": ("_weight", "_gamma"), "lars": ("_weight",)}
_MXNET_ENDINGS = ("_weight", "_gamma", "_bias", "_beta")


def leaf_names(params: Any) -> list[str]:
    """Return the names of the leaves of a pytree, in leaf order: the keys of a flat dict, or paths such as `a/b/0`.

    Args:
        params: pytree.

    Returns:
        One string per leaf.

    Example:
        >>> leaf_names({"b": [1.0, 2.0], "a": 3.0})
        ['a', 'b/0', 'b/1']
    """
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def multipliers(
    params: Any, spec: Multiplier | str | tuple[str, Mapping[str, float]], default: str | None = None
) -> Array | None:
    """Compute the learning rate or weight decay multiplier of each parameter.

    Args:
        params: pytree of parameters.
        spec: dict by parameter name, function of the name, None (1 for all), "mxnet" (weight decay of MXNet's Module:
            only names ending in `_weight` or `_gamma` decay), "lars" (only `_weight`), or a pair ("mxnet" or "lars", dict).
        default: "mxnet" or "lars": the rule for names that a dict does not list; without it their multiplier is 1.

    Returns:
        float32 array of shape (leaves,) in leaf order; None if all are 1.

    Raises:
        ValueError: an unknown rule.

    Example:
        >>> multipliers({"a_weight": jnp.ones(2), "b_bias": jnp.ones(2)}, "mxnet").tolist()
        [1.0, 0.0]
    """
    if spec is None:
        return None
    if isinstance(spec, tuple):
        default, spec = spec
    if isinstance(spec, str) and spec not in DECAYED:
        raise ValueError(f"wd_mult is {spec!r}; expected 'mxnet', 'lars', a dict by name, a function of the name, or None")
    names = leaf_names(params)
    if callable(spec):
        values = np.asarray([spec(name) for name in names], np.float32)
    else:
        rule = spec if isinstance(spec, str) else default
        base = _decays(names, [np.ndim(leaf) for leaf in jax.tree.leaves(params)], rule) if rule else [1.0] * len(names)
        by_name = spec if isinstance(spec, Mapping) else {}
        values = np.asarray([by_name.get(name, value) for name, value in zip(names, base, strict=True)], np.float32)
    return None if np.all(values == 1) else jnp.asarray(values)


def _listed(spec: Any) -> tuple[str, ...]:
    """The parameter names of multipliers that are a dict, or a pair with a dict."""
    spec = spec[1] if isinstance(spec, tuple) else spec
    return tuple(spec) if isinstance(spec, Mapping) else ()


def _decays(names: list[str], ndims: list[int], rule: str) -> list[float]:
    if any(name.endswith(_MXNET_ENDINGS) and "/" not in name for name in names):
        return [float(name.endswith(DECAYED[rule])) for name in names]
    return [float(ndim >= 2) for ndim in ndims]


def apply_updates(params: Any, updates: Any) -> Any:
    """params + updates, as `optax.apply_updates`, with row-sparse updates written to their rows only.

    If the parameters are donated, the rows are written in place.

    Args:
        params: pytree of arrays.
        updates: pytree of the same structure, of arrays and `SparseRows`.

    Returns:
        The new parameters, in the dtypes of `params`.

    Example:
        >>> apply_updates({"w": jnp.ones(3)}, {"w": SparseRows(jnp.array([1, 1]), jnp.array([1.0, 2.0]))})["w"].tolist()
        [1.0, 4.0, 1.0]
    """

    def add(weight: Any, update: Any) -> Any:
        return add_rows(weight, update) if isinstance(update, SparseRows) else optax.apply_updates(weight, update)

    return jax.tree.map(add, params, updates)
