"""What every update rule of jfit is made of: the state, the scalars a rule reads, and the transformation around it.

A rule is the arithmetic of ONE parameter, `(gradient, weight, slots, at) -> (what to add to the weight, new slots)`, all in
float32.  `transformation` makes an optax transformation of it: rates, multipliers, counts, float32 masters of 16-bit weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from jfit.optim.rows import SparseRows, in_rows
from jfit.optim.schedules import Schedule

LearningRate = float | Array | Callable[[Any], Any]
Slots = tuple[Any, ...]
MASTER = "master"  # the slot that holds a 16-bit weight in float32


class At(NamedTuple):
    """What a rule reads besides its arrays.

    Attributes:
        lr: rate of this parameter, its multiplier included.
        wd: decay, its multiplier included; the float 0.0 where nothing decays.
        t: number of this update, 1 for the first; None where the rule does not count.
        name: of the parameter, as `leaf_names` gives it.
        base: the rate before multipliers.
        shared: scalars that all parameters have in common.
    """

    lr: Any
    wd: Any
    t: Any
    name: str
    base: Any
    shared: Mapping[str, Array]


# (gradient, weight, slots, at) -> (what to add to the weight, new slots), all float32
Rule = Callable[[Array, Array, Slots, At], tuple[Array, Slots]]
# (shared scalars before the update, the `At` of each parameter in the order of updates) -> `at.shared` of each parameter
Turns = Callable[[Mapping[str, Array], Sequence[At]], Sequence[dict[str, Array]]]
# weight in float32 -> the first value of a slot
Start = Callable[[Array], Array]


class OptState(NamedTuple):
    """State of a jfit optimizer.

    Attributes:
        count: updates so far, int32: () for all parameters, (leaves,) or a tuple of scalars for each, in leaf order; None
            where the rule does not need it.
        slots: by name, one tree of float arrays in the parameters' structure (`momentum`, `mean`, `var`, ...); `master` holds
            16-bit weights in float32 and None for other parameters.
        lr_mult: float32 (leaves,) in leaf order, or a tuple of scalars; None when all are 1.
        wd_mult: the same for weight decay.
        shared: scalars that all parameters have in common (Nadam's schedule, a random key), or None.
    """

    count: Array | tuple[Array, ...] | None
    slots: dict[str, Any]
    lr_mult: Array | tuple[Array, ...] | None = None
    wd_mult: Array | tuple[Array, ...] | None = None
    shared: dict[str, Array] | None = None


class Common(NamedTuple):
    """The parameters that every factory has.

    Attributes:
        learning_rate: rate, or a schedule of the update count from 0.
        wd: weight decay.
        lr_mult: multipliers of the rate, by name.
        wd_mult: multipliers of the decay, by name.
        multi_precision: keep 16-bit parameters in float32 too (slot `master`) and update those.
    """

    learning_rate: LearningRate
    wd: float = 0.0
    lr_mult: Multiplier = None
    wd_mult: Multiplier | str = "mxnet"
    multi_precision: bool = False


class Recipe(NamedTuple):
    """How the state of one parameter starts, for those who keep states parameter by parameter.

    Attributes:
        slots: first value of each slot by name, in MXNet's order.
        counted: whether the rule needs the number of the update.
        shared: makes the scalars that all parameters have in common; None where there are none.
        lazy: of a gradient given as `SparseRows` only those rows are updated; other rules take it as the table it stands for.
    """

    slots: dict[str, Start]
    counted: bool
    shared: Callable[[], dict[str, Array]] | None
    lazy: bool = False


class Optimizer(optax.GradientTransformationExtraArgs):
    """An optimizer as a train step takes it: optax's pair (init, update), and what else the step must know.

    It is a tuple of two, because `optax.chain` and others unpack it; it goes wherever an optax transformation does.

    Attributes:
        init: `init(params) -> state`.
        update: `update(gradients, state, params, *, learning_rate=None, **extra) -> (what to add to the parameters, state)`.
        takes_rate: `update` accepts `learning_rate=`, traced.
        base_rate: the rate given at construction, a number or a schedule; None where it cannot be known.
        recipe: how the state of one parameter starts; None for optimizers of optax.
        for_graph: `(names of a graph's arguments, names of its fixed gammas) -> Optimizer` that updates the parameters in this
            order, as MXNet does, unless the factory got an order; None for rules that do not depend on it.
        name: for messages.

    Example:
        >>> import jfit
        >>> opt = jfit.optim.sgd(0.5)
        >>> opt.takes_rate, opt.base_rate, opt.learning_rate
        (True, 0.5, 0.5)
        >>> init, update = opt
    """

    takes_rate: bool = False
    base_rate: LearningRate | None = None
    recipe: Recipe | None = None
    for_graph: Callable[[Sequence[str], Sequence[str]], Optimizer] | None = None
    name: str = "optax"

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        *,
        takes_rate: bool = False,
        base_rate: LearningRate | None = None,
        recipe: Recipe | None = None,
        for_graph: Callable[[Sequence[str], Sequence[str]], Optimizer] | None = None,
        name: str = "optax",
    ) -> Optimizer:
        self = super().__new__(cls, cast(Any, init), cast(Any, update))
        self.takes_rate, self.base_rate, self.recipe, self.name = takes_rate, base_rate, recipe, name
        self.for_graph = for_graph
        return self

    @property
    def learning_rate(self) -> float | None:
        """The base rate as a number; None where it is a schedule or not known."""
        return None if self.base_rate is None or callable(self.base_rate) else float(self.base_rate)

    @property
    def transform(self) -> Optimizer:
        """The optimizer itself, which is an optax transformation."""
        return self


def zeros(w: Array) -> Array:
    """Zeros in the shape of a weight."""
    return jnp.zeros(w.shape, jnp.promote_types(w.dtype, jnp.float32))


def copied(w: Array) -> Array:
    """The weight itself, in float32 and in a buffer of its own."""
    return jnp.array(w, jnp.promote_types(w.dtype, jnp.float32))


def transformation(
    rule: Rule,
    slots: Sequence[str] | Mapping[str, Start],
    common: Common,
    *,
    counted: bool = False,
    shared: Callable[[], dict[str, Array]] | None = None,
    turns: Turns | None = None,
    order: Sequence[str] | None = None,
    fixed: Sequence[str] | None = None,
    lazy: bool = False,
) -> Optimizer:
    """The optax transformation of a rule.

    Args:
        rule: the arithmetic of one parameter.
        slots: names of what is kept for each parameter, zeros at first; or a dict name -> first value as a function of the
            weight (float32).
        common: what all factories take.
        counted: the rule reads `at.t`.
        shared: makes the scalars that all parameters have in common.
        turns: for rules in which the update of one parameter changes the shared scalars that the next one reads, as in MXNet:
            computes those of all parameters before any rule runs.  Passed from rule to rule, they would be compiled into each.
        order: names of parameters in the order of updates; others follow in leaf order.
        fixed: names that advance the shared scalars but get no update: MXNet updates the gamma of a BatchNorm with fix_gamma
            like any other parameter, and BatchNorm overwrites it with 1.
        lazy: rows without a gradient are unchanged: where a gradient is a `SparseRows` the rule sees only those rows of weight
            and slots.  A rule that needs a whole parameter, such as for its norm, cannot be lazy.

    Returns:
        `(init, update)`; `update(grads, state, params, learning_rate=None)` gives what is to be ADDED to the parameters, as
        `SparseRows` where the gradient is and the rule is lazy.
    """
    base, wd, lr_mult, wd_mult, multi_precision = common
    counted = counted or callable(base)
    starts: dict[str, Start] = dict(slots) if isinstance(slots, Mapping) else dict.fromkeys(slots, zeros)
    if multi_precision:
        starts[MASTER] = cast(Any, _master)
    recipe = Recipe(starts, counted, shared, lazy)

    def init(params: Any) -> OptState:
        return OptState(
            count=jnp.zeros((), jnp.int32) if counted else None,
            slots={name: jax.tree.map(start, params) for name, start in starts.items()},
            lr_mult=multipliers(params, lr_mult),
            wd_mult=multipliers(params, wd_mult, "mxnet") if wd else None,
            shared=None if shared is None else shared(),
        )

    def update(
        grads: Any, state: OptState, params: Any = None, *, learning_rate: Any = None, **extra: Any
    ) -> tuple[Any, OptState]:
        if params is None:
            raise ValueError("the update of a jfit optimizer needs the parameters; call update(grads, state, params).")
        leaves, tree = jax.tree.flatten(params)
        names, gradients = leaf_names(params), tree.flatten_up_to(grads)
        rate = rate_at(base, state.count) if learning_rate is None else learning_rate
        t = jax.tree.map(lambda c: c + 1, state.count)
        kept = [tree.flatten_up_to(state.slots[name]) for name in starts]
        lr = rate if state.lr_mult is None else _times(rate, state.lr_mult, len(leaves))
        decay = wd if state.wd_mult is None or not wd else jax.tree.map(lambda m: wd * m, state.wd_mult)
        lr, decay, t_of, base_of = (_each(x, len(leaves)) for x in (lr, decay, t, rate))
        scalars, added = dict(state.shared or {}), cast(list[Any], [None] * len(leaves))
        after: list[list[Any]] = [[None] * len(leaves) for _ in starts]
        ats = [At(lr[i], decay[i], t_of[i], names[i], base_of[i], scalars) for i in range(len(leaves))]
        if turns is not None and ats:
            ats, scalars = _in_turn(ats, [name for name in fixed or () if name not in names], turns, order)
        for i, at in enumerate(ats):
            slots_i = tuple(column[i] for column in kept)
            added[i], new = _updated(rule, gradients[i], leaves[i], slots_i, at, multi_precision, lazy)
            for column, value in zip(after, new, strict=True):
                column[i] = value
        columns = {name: tree.unflatten(column) for name, column in zip(starts, after, strict=True)}
        return tree.unflatten(added), state._replace(count=t, slots=columns, shared=scalars if state.shared else state.shared)

    def for_graph(names: Sequence[str], fixed_names: Sequence[str]) -> Optimizer:
        return transformation(
            rule,
            slots,
            common,
            counted=counted,
            shared=shared,
            turns=turns,
            order=names if order is None else order,
            fixed=fixed_names if fixed is None else fixed,
            lazy=lazy,
        )

    by_graph = None if turns is None else for_graph
    return Optimizer(init, update, takes_rate=True, base_rate=base, recipe=recipe, for_graph=by_graph, name="jfit.optim")


def _updated(
    rule: Rule, g: Array | SparseRows, w: Array, slots: Slots, at: At, multi_precision: bool, lazy: bool
) -> tuple[Array | SparseRows, Slots]:
    """(what to add to one parameter, its new slots)."""
    if isinstance(g, SparseRows):
        if lazy:
            return in_rows(lambda g, w, slots: _updated(rule, g, w, slots, at, multi_precision, lazy), g, w, slots)
        g = g.dense(len(w))
    if not multi_precision:
        delta, slots = rule(wide(g), wide(w), slots, at)
        return delta.astype(w.dtype), slots
    *rest, master = slots
    exact = w if master is None else master
    delta, slots = rule(wide(g), wide(exact), tuple(rest), at)
    if master is None:
        return delta.astype(w.dtype), (*slots, None)
    master = master + delta
    # in float32, so that weight + update rounds to the master's own rounding
    old, new = wide(w), wide(master.astype(w.dtype))
    # a weight beyond the largest of its type is inf, as in MXNet; inf - inf would make it NaN in the next update
    return jnp.where(new == old, 0.0, new - old), (*slots, master)


def set_multipliers(state: OptState, params: Any, lr_mult: Multiplier = None, wd_mult: Multiplier | str = "mxnet") -> OptState:
    """The state with other multipliers; a state that has them already keeps its structure, so nothing compiles again.

    Args:
        state: of an optimizer of this module.
        params: the tree it was made for.
        lr_mult, wd_mult: see the module.

    Returns:
        A new state; slots and count are shared with the old one.

    Example:
        >>> import jfit
        >>> w = {"a_weight": jnp.ones(2), "b_bias": jnp.ones(2)}
        >>> set_multipliers(jfit.optim.sgd(0.1).init(w), w, lr_mult={"b_bias": 2.0}).lr_mult.tolist()
        [1.0, 2.0]
    """
    lr = multipliers(params, lr_mult, keep=state.lr_mult is not None)
    return state._replace(lr_mult=lr, wd_mult=multipliers(params, wd_mult, "mxnet", keep=state.wd_mult is not None))


def rate_at(base: LearningRate, count: Any) -> Any:
    """The rate after `count` updates: jfit's schedules number the coming update from 1, optax's from 0."""
    if isinstance(base, Schedule):
        return base(count + 1)
    return base(count) if callable(base) else base


# ------------------------------------------------------------------------------------------------ for the rules
def clipper(bound: float | None) -> Callable[[Array], Array]:
    """x -> x clipped to +-bound; x itself where the bound is None, 0 or negative (MXNet's kernels call -1 none)."""
    return (lambda x: jnp.clip(x, -bound, bound)) if bound is not None and bound > 0 else (lambda x: x)


def decayed(g: Array, wd: Any, w: Array) -> Array:
    """g + wd * w."""
    # w may hold inf where nothing decays it, so 0 * w is not written at all
    return g if isinstance(wd, int | float) and wd == 0 else g + wd * w


def moments(g: Array, slots: Slots, beta1: float, beta2: float) -> tuple[Array, Array]:
    """Running means of g and of g^2."""
    return beta1 * slots[0] + (1 - beta1) * g, beta2 * slots[1] + (1 - beta2) * g * g


def one_minus_power(beta: float, t: Array) -> Any:
    """1 - beta^t, float32."""
    # 1 - 0.999 in float32 is off by 1e-5; expm1 keeps all digits
    return -jnp.expm1(t.astype(jnp.float32) * math.log(beta)) if beta else 1.0


def wide(x: Array) -> Array:
    """The array in float32, or wider if it is."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def is_small(x: Any) -> bool:
    """Whether an array holds floats of 16 bits."""
    return jnp.issubdtype(x.dtype, jnp.floating) and np.dtype(x.dtype).itemsize == 2


def _master(w: Array) -> Array | None:
    return copied(w) if is_small(w) else None


def _each(x: Any, n: int) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x[i] for i in range(n)] if np.ndim(x) else [x] * n


def _times(rate: Any, multiplier: Any, n: int) -> Any:
    if not isinstance(multiplier, tuple):
        return rate * multiplier
    return tuple(r * m for r, m in zip(_each(rate, n), multiplier, strict=True))


def _in_turn(
    ats: Sequence[At], fixed: Sequence[str], turns: Turns, order: Sequence[str] | None
) -> tuple[list[At], dict[str, Array]]:
    """(the `At` of each parameter with its shared scalars, the scalars after the whole update, `fixed` included)."""
    known = {name: i for i, name in enumerate(order or ())}
    names = [*(at.name for at in ats), *fixed]
    places = sorted(range(len(names)), key=lambda i: known.get(names[i], len(known)))
    backwards: list[At] = []
    after = next(ats[i] for i in reversed(places) if i < len(ats))
    for i in reversed(places):
        # a fixed gamma is updated as often as the beta after it
        after = ats[i] if i < len(ats) else after._replace(name=names[i])
        backwards.append(after)
    at_turn = dict(zip(places, turns(ats[0].shared, backwards[::-1]), strict=True))
    last = at_turn[places[-1]]
    return [at._replace(shared=at_turn[i]) for i, at in enumerate(ats)], {name: last[name] for name in ats[0].shared}


# ------------------------------------------------------------------------------------------------ multipliers
Multiplier = Mapping[str, float] | Callable[[str], float] | None

# which names decay, by the name of the rule
DECAYED = {"mxnet": ("_weight", "_gamma"), "lars": ("_weight",)}
_MXNET_ENDINGS = ("_weight", "_gamma", "_bias", "_beta")


def leaf_names(params: Any) -> list[str]:
    """Name of each leaf, in leaf order: a key of a flat dict, or `a/b/0`.

    Example:
        >>> leaf_names({"b": [1.0, 2.0], "a": 3.0})
        ['a', 'b/0', 'b/1']
    """
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def multipliers(
    params: Any, given: Multiplier | str | tuple[str, Mapping[str, float]], default: str | None = None, keep: bool = False
) -> Array | None:
    """The multiplier of each leaf, float32 (leaves,); None where all are 1, unless `keep`.

    Args:
        params: the parameters.
        given: dict by name, function of the name, None (1 for all), "mxnet" (the decay rule of MXNet's Module) or "lars"
            (that of its LARS, which spares gammas too), or a pair (rule, dict).
        default: the rule, "mxnet" or "lars", that names which a dict does not list follow instead of being 1.
        keep: return an array even if all are 1.

    Raises:
        ValueError: another string.

    Example:
        >>> multipliers({"a_weight": jnp.ones(2), "b_bias": jnp.ones(2)}, "mxnet").tolist()
        [1.0, 0.0]
    """
    if given is None and not keep:
        return None
    if isinstance(given, tuple):
        default, given = given
    if isinstance(given, str) and given not in DECAYED:
        raise ValueError(
            f"wd_mult is {given!r}; it needs to be 'mxnet', 'lars', a dict by name, a function of the name, or None."
        )
    names = leaf_names(params)
    if callable(given):
        values = np.asarray([given(name) for name in names], np.float32)
    else:
        rule = given if isinstance(given, str) else default if given is not None else None
        base = _decays(names, [np.ndim(leaf) for leaf in jax.tree.leaves(params)], rule) if rule else [1.0] * len(names)
        own = given if isinstance(given, Mapping) else {}
        values = np.asarray([own.get(name, value) for name, value in zip(names, base, strict=True)], np.float32)
    return None if np.all(values == 1) and not keep else jnp.asarray(values)


def _decays(names: list[str], ndims: list[int], rule: str) -> list[float]:
    if any(name.endswith(_MXNET_ENDINGS) and "/" not in name for name in names):
        return [float(name.endswith(DECAYED[rule])) for name in names]
    return [float(ndim >= 2) for ndim in ndims]
