"""MXNet's Optimizer: learning rates, multipliers and update counts on the host; the update rules are those of `jfit.optim`.

A compiled update is specialized on `hyper_key()` only; rates, multipliers, counts and `rescale_grad` are its arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np

from jfit.mxnet.mutable import as_array, mutable_class, replace
from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.apply import new_state, rule_of, slot_names, state_to_mxnet, update_in_place, warn_of_precision
from jfit.mxnet.optimizer.shared import Shared
from jfit.ops import nearest
from jfit.optim.core import MASTER, copied, is_small, wide

Index = int | str
# what a subclass may override: update counts, learning rates, optimizer states, updates
_RATES = attrgetter("learning_rate", "rate", "count", "_update_count", "_get_lr", "_get_lrs", "_get_wd", "_get_wds")
_UPDATES = attrgetter("update", "update_lists", "update_multi_precision", "create_state", "create_state_multi_precision")
Hyper = tuple[tuple[str, Any], ...]
OptimizerClass = TypeVar("OptimizerClass", bound=type)


class Optimizer:
    """Base class of the optimizers.  A subclass defines `create_state` and `update`, or sets `rule` to a rule of `jfit.optim`.

    `update(index, weight, grad, state)` receives mutable arrays and assigns `weight[:] = ...`.  It calls
    `self._update_count(index)`, and reads the learning rate and weight decay with `self._get_lr(index)` and
    `self._get_wd(index)`.

    Args:
        rescale_grad: factor applied to gradients first, usually 1 / batch size.
        param_idx2name: dict of parameter names by index; only names ending in `_weight` or `_gamma` decay by default.
        wd: weight decay.
        clip_gradient: clip rescaled gradients to [-clip_gradient, clip_gradient]; None or 0 disables clipping.
        learning_rate: learning rate; None is 0.01, or the scheduler's rate.  With a scheduler it replaces the scheduler's
            `base_lr` and prints a warning (PolyScheduler, CosineScheduler and the end of a warm-up keep the original
            base, as in MXNet).
        lr_scheduler: callable update number -> learning rate.
        sym: symbol whose `__lr_mult__` and `__wd_mult__` attributes are used as multipliers.
        begin_num_update: number of updates done before, where the update counts start.
        multi_precision: keep a float32 master copy of 16-bit weights and update that.
        param_dict: parameters by index; their `lr_mult` and `wd_mult` take precedence over all other multipliers.

    Raises:
        AssertionError: param_idx2name is not a dict.

    Example:
        >>> plain = Optimizer(wd=0.1, param_idx2name={0: "fc_weight", 1: "fc_bias"})
        >>> plain.count([0, 1])
        >>> plain.num_update, plain.rate(), plain.multipliers([0, 1])[1].tolist()
        (1, 0.01, [1.0, 0.0])

    Source: Apache MXNet 1.9.1, `mxnet.optimizer.Optimizer`.
    """

    opt_registry: ClassVar[dict[str, type]] = {}
    # name of the rule in jfit.optim, and the attributes that are passed to it as hyperparameters
    rule: ClassVar[str | None] = None
    parameters: ClassVar[tuple[str, ...]] = ()
    # boolean hyperparameters that are passed to the rule only if they are False
    off_switches: ClassVar[tuple[str, ...]] = ()
    # whether a row_sparse gradient updates only its rows even if the weight is dense, see `updates_rows`
    rows_of_dense: ClassVar[bool] = True
    # attribute -> hyperparameter of the rule, if the names differ
    rule_names: ClassVar[Mapping[str, str]] = {}
    # MXNet stores a single slot as the array itself, not as a tuple of one array
    unwrap_single_slot: ClassVar[bool] = False
    # MXNet stores a 16-bit weight's state as (state, master) instead of (master, state)
    master_last: ClassVar[bool] = False
    # valid values of attributes in a `.states` file; attributes not listed need the type of their current value
    saved_needs: ClassVar[Mapping[str, saved.Need]] = {
        "lr": saved.OPTIONAL,
        "wd": saved.NUMBER,
        "clip_gradient": saved.LIMIT,
        "begin_num_update": saved.COUNT,
        # at least 0: update rules compute beta^t as exp(t * log(beta)), except for beta = 0
        "beta1": saved.FROM_0,
        "beta2": saved.FROM_0,
    }
    # slots that MXNet stores as attributes of the optimizer, not in the states
    hidden_slots: ClassVar[frozenset[str]] = frozenset()
    # number of parameters that MXNet updates in one call; 0: one
    aggregate_num: int = 0
    # within such a call, count and evaluate the learning rate per parameter, not once for all
    counts_one_by_one: ClassVar[bool] = False
    # the rule takes the learning rate without lr_mult, and lr_mult as a separate argument
    separate_lr_mult: ClassVar[bool] = False
    # evaluate the learning rate before the update is counted, so the scheduler sees the previous update number
    rate_before_count: ClassVar[bool] = False

    # weight decay applies by default only to parameters whose names end in one of these
    decayed_endings: ClassVar[tuple[str, ...]] = ("_weight", "_gamma")

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Make a constructor from the arguments of a class, `class NAG(Optimizer, momentum=0.0)`, and their default values.

        Arguments of `Optimizer` are passed to it.  All others become attributes, which are hyperparameters of the rule unless
        they are `off_switches`, or the class sets `parameters`.
        """
        super().__init_subclass__()
        if arguments:
            cls.__init__ = _constructor(cls, arguments)
            own = [name for name in arguments if name not in (*_base_arguments(), *cls.off_switches)]
            cls.parameters = vars(cls).get("parameters", tuple(own))

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Any, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: Any = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        names = param_idx2name or {}
        assert isinstance(names, Mapping), f"param_idx2name is {names!r}, expected a dict of parameter names by index."
        self.rescale_grad = rescale_grad
        self.lr_scheduler = lr_scheduler
        self.lr: Any = 0.01 if learning_rate is None and lr_scheduler is None else learning_rate
        if lr_scheduler is not None and learning_rate is not None and lr_scheduler.base_lr != learning_rate:
            base = lr_scheduler.base_lr
            print(f"Warning: the optimizer's learning_rate {learning_rate} replaces base_lr {base} of its lr_scheduler.")
            lr_scheduler.base_lr = learning_rate
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = begin_num_update
        self.set_counts({})
        self.idx2name: dict[Any, str] = dict(names)
        self.param_dict: dict[Any, Any] = dict(param_dict or {})
        self.sym_info: tuple[Any, ...] = () if sym is None else (sym.attr_dict(), sym.list_arguments())
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.shared = Shared(self.first_shared)
        self.hidden: dict[Any, dict[str, Any]] = {}
        self.set_lr_mult({})
        self.set_wd_mult({})

    def _set_up(self) -> None:
        """Hook at the end of a constructor made by `__init_subclass__`."""

    def __repr__(self) -> str:
        if self.rule is None:
            return super().__repr__()
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self.parameters, "wd", "clip_gradient"))
        return f"{type(self).__name__}({shown})"

    @staticmethod
    def register(klass: OptimizerClass) -> OptimizerClass:
        """Class decorator: register an optimizer class under its lower-case name, so that `create` finds it.

        Args:
            klass: subclass of `Optimizer`.

        Returns:
            The class.

        Example:
            >>> @Optimizer.register
            ... class Halve(Optimizer):
            ...     def update(self, index, weight, grad, state):
            ...         weight[:] = weight.value / 2
            >>> type(Optimizer.opt_registry.pop("halve")()).__name__
            'Halve'
        """
        name = klass.__name__.lower()
        old = Optimizer.opt_registry.get(name)
        if old is not None:
            warnings.warn(f"optimizer {name!r} was {old!r} and is now {klass!r}.", stacklevel=2)
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Any:
        """Create a registered optimizer by name.

        Args:
            name: name of the class, ignoring case: "sgd", "adam" ...
            **kwargs: arguments of the class.

        Returns:
            The optimizer object.

        Raises:
            ValueError: the name is not registered; the message lists similar names.

        Example:
            >>> Optimizer.create_optimizer("SGD", momentum=0.5).momentum
            0.5
        """
        klass = Optimizer.opt_registry.get(name.lower())
        if klass is None:
            near = nearest(name.lower(), Optimizer.opt_registry) or ", ".join(map(repr, Optimizer.opt_registry))
            raise ValueError(f"Cannot find optimizer {name}: the nearest names are {near}.")
        return klass(**kwargs)

    # ---- rates and multipliers

    @property
    def learning_rate(self) -> Any:
        """The current learning rate, before multipliers: the scheduler's for `num_update`, or `lr` without a scheduler."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def rate(self) -> float:
        """Return the learning rate of the most recently counted update."""
        return float(self.learning_rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate.

        Raises:
            UserWarning: the optimizer has a scheduler (raised, not warned, as in MXNet).
        """
        if self.lr_scheduler is not None:
            raise UserWarning("the learning rate comes from the optimizer's lr_scheduler; set the scheduler's base_lr instead.")
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Set learning rate multipliers by name or index; they override the symbol's `__lr_mult__` attributes.

        Multipliers set by an earlier call are dropped.
        """
        self.lr_mult = {**self._of_symbol("__lr_mult__"), **args_lr_mult}

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Set weight decay multipliers by name or index; they override the symbol's `__wd_mult__` attributes.

        The default is 0 for names ending in neither `_weight` nor `_gamma`.  Multipliers set by an earlier call are dropped.
        """
        plain = {name: 0.0 for name in self.idx2name.values() if not name.endswith(self.decayed_endings)}
        self.wd_mult = {**plain, **self._of_symbol("__wd_mult__"), **args_wd_mult}

    def multipliers(self, indices: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the learning rate and weight decay multipliers of the parameters `indices`, two float32 arrays (P,).

        A multiplier is that of `param_dict`, else the one set by index, else the one set by name, else 1.
        """
        lr_mult, wd_mult = [np.asarray(self._multipliers(kind, indices), np.float32) for kind in ("lr_mult", "wd_mult")]
        return lr_mult, wd_mult

    def _of_symbol(self, key: str) -> dict[Any, float]:
        if not self.sym_info:
            return {}
        attributes, names = self.sym_info
        return {name: float(attributes[name][key]) for name in names if key in attributes.get(name, {})}

    def _multiplier(self, kind: str, index: Any) -> float:
        if index in self.param_dict:
            return getattr(self.param_dict[index], kind)
        table = getattr(self, kind)
        return table[index] if index in table else table.get(self.idx2name.get(index), 1.0)

    def _multipliers(self, kind: str, indices: Sequence[Any]) -> list[float]:
        return [self._multiplier(kind, i) for i in indices]

    def _get_lrs(self, indices: Sequence[Any]) -> list[float]:
        lr = self.learning_rate
        return [lr * self._multiplier("lr_mult", i) for i in indices]

    def _get_lr(self, index: Any) -> float:
        return self._get_lrs([index])[0]

    def _get_wds(self, indices: Sequence[Any]) -> list[float]:
        return [self.wd * self._multiplier("wd_mult", i) for i in indices]

    def _get_wd(self, index: Any) -> float:
        return self._get_wds([index])[0]

    # ---- counts

    def count(self, indices: Any) -> None:
        """Increment the update counts of these indices on the current device, and `num_update`, the largest count."""
        counts, before, begin = self._index_update_count, self._counts_before, self.begin_num_update
        for index in indices if isinstance(indices, (list, tuple)) else (indices,):
            done = counts.get(index)
            counts[index] = now = 1 + (before.get(index, begin) if done is None else done)
            self.num_update = max(self.num_update, now)

    def _update_count(self, index: Any) -> None:
        self.count(index)

    def advance(self, indices: Sequence[Any], one_by_one: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Count one update of each index; return (update counts before this one, int32 (P,); learning rates, float32 (P,)).

        The learning rate is evaluated when MXNet does, once after each group that it updates in one call.  So a parameter
        with fewer updates than the others (it once had a stale gradient) gets the rate of `num_update` at that moment.
        """
        done, rates = np.empty(len(indices), np.int32), np.empty(len(indices), np.float32)
        together = self.aggregate_num and not (one_by_one or self.counts_one_by_one)
        size, rate, at = self.aggregate_num if together else 1, 0.0, None
        for start in range(0, len(indices), size):
            group = indices[start : start + size]
            if self.rate_before_count and at != self.num_update:
                rate, at = self.rate(), self.num_update
            # subclasses may override _update_count; MXNet passes it a bare index unless it updates lists
            self._update_count(list(group) if self.aggregate_num and not self.counts_one_by_one else group[0])
            if not self.rate_before_count and at != self.num_update:
                rate, at = self.rate(), self.num_update
            rates[start : start + size] = self._get_or("lr", group, rate)
            done[start : start + size] = [self._index_update_count[i] - 1 for i in group]
        return done, rates

    def rows(self, indices: Sequence[Any], one_by_one: bool = False) -> tuple[Any, ...]:
        """Count one update of each index; return (update counts before this one, (rates, decays, lr_mult)), of length P each.

        Rates already include lr_mult, and the last entry is `()`, unless the rule needs lr_mult as a separate argument
        (`separate_lr_mult`).
        """
        is_usual = self._keeps(_RATES) and type(self).multipliers is Optimizer.multipliers
        if is_usual and self.lr_scheduler is None:  # the rate does not depend on the counts
            self.count(indices)
            counts, mults = self._index_update_count, [self._multipliers(kind, indices) for kind in ("lr_mult", "wd_mult")]
            numbers = _scaled(float(self.lr), float(self.wd), self.separate_lr_mult, *map(tuple, mults))
            return [counts[i] - 1 for i in indices], numbers
        done, rates = self.advance(indices, one_by_one)
        lr_mult, wd_mult = self.multipliers(indices)
        decays = np.asarray(self._get_or("wd", indices, np.float32(self.wd) * wd_mult), np.float32)
        if self._overrides_get("lr"):
            lr_mult = ()
        elif not self.separate_lr_mult:
            rates, lr_mult = rates * lr_mult, ()
        return done, (tuple(rates), tuple(decays), tuple(lr_mult))

    def _overrides_get(self, kind: str) -> bool:
        names = (f"_get_{kind}s",) if self.aggregate_num else (f"_get_{kind}s", f"_get_{kind}")
        return any(getattr(type(self), name) is not getattr(Optimizer, name) for name in names)

    def _get_or(self, kind: str, indices: Sequence[Any], usual: Any) -> Any:
        """Return the result of a subclass's `_get_lr(s)` or `_get_wd(s)` for `indices`, called as MXNet calls them.

        kind: "lr" or "wd".  usual: returned if no subclass overrides the method.
        """
        if not self._overrides_get(kind):
            return usual
        if self.aggregate_num:
            return getattr(self, f"_get_{kind}s")(list(indices))
        return [getattr(self, f"_get_{kind}")(i) for i in indices]

    def _set_current_context(self, device_id: int) -> None:
        self._index_update_count = self._all_index_update_counts.setdefault(device_id, {})

    def counts(self) -> dict[Any, int]:
        """Return the number of updates of each index so far, the maximum over the devices."""
        largest = dict(self._counts_before)
        for table in self._all_index_update_counts.values():
            for index, done in table.items():
                largest[index] = max(done, largest.get(index, done))
        return largest

    def set_counts(self, counts: Mapping[Any, int], num_update: int | None = None) -> None:
        """Set the update counts of every device to `counts`; `num_update` defaults to the largest of them."""
        self._counts_before = {index: int(done) for index, done in counts.items()}
        self._all_index_update_counts: dict[int, dict[Any, int]] = {0: {}}
        self._index_update_count = self._all_index_update_counts[0]
        largest = max(self._counts_before.values(), default=self.begin_num_update)
        self.num_update = largest if num_update is None else int(num_update)

    # ---- what a compiled update depends on

    def hyper_key(self, extra: Hyper = ()) -> tuple[str, Hyper]:
        """Return (rule name, hyperparameters), the cache key of a compiled update; rates and multipliers are not part of it.

        Args:
            extra: result of `hyper_for_indices` or `hyper_for_names`, for rules that depend on the parameters' order.
        """
        assert self.rule is not None  # a class that updates in Python has no hyperparameters of a rule
        clip = self.clip_gradient
        hyper = [("wd", self.wd), ("clip_gradient", clip if clip and clip > 0 else None)]
        hyper += [(self.rule_names.get(name, name), getattr(self, name)) for name in self.parameters]
        hyper += [("multi_precision", True)] if self.multi_precision else []
        hyper += [(name, False) for name in self.off_switches if not getattr(self, name)]
        return self.rule, (*[(name, _plain(value)) for name, value in hyper], *extra)

    def hyper_for_indices(self, indices: Sequence[Any], one_by_one: bool) -> Hyper:
        """Return extra hyperparameters for rules that depend on the set and order of the updated parameters (LARS), else `()`.

        Args:
            indices: indices in update order.
            one_by_one: MXNet's key-value store updates one parameter per call, regardless of `aggregate_num`.
        """
        return ()

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the result of `hyper_for_indices` for a pytree of parameters by name, whose leaves are not in MXNet's order.

        Args:
            names: names of all parameters in MXNet's update order.
            one_by_one: as in `hyper_for_indices`.
            fixed: parameters that MXNet's optimizer updates and jfit's does not: BatchNorm gammas with fix_gamma.
        """
        return ()

    def transform(self, extra: Hyper = ()) -> Any:
        """Return the `jfit.optim` transformation with these hyperparameters, without multipliers; cached by `hyper_key`."""
        return rule_of(self.hyper_key(extra))

    def nested(self, slots: tuple[Any, ...]) -> Any:
        """Arrange the slots of one float32 parameter as MXNet's `create_state` does: None, an array, or a tuple."""
        if not slots:
            return None
        return slots[0] if self.unwrap_single_slot else slots

    def updates_rows(self, stype: str) -> bool:
        """Return whether a row_sparse gradient updates only its rows of a weight of storage type `stype`, if the rule is lazy.

        False for an optimizer without a rule: the methods of a user's class get NDArrays.
        """
        return self.rule is not None and (self.rows_of_dense or stype == "row_sparse")

    def shared_for(self, indices: Sequence[Any]) -> Mapping[str, Any]:
        """Return the shared scalars (by name) to pass to an update of these parameters."""
        return self.shared.values()

    def keep_shared(self, scalars: Mapping[str, Any]) -> None:
        """Store the shared scalars that an update returned."""
        self.shared.keep(scalars)

    def shared_of_mxnet(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the shared scalars from the attributes of an MXNet optimizer, as a `.states` file stores them."""
        return attributes

    def first_shared(self) -> Mapping[str, Any]:
        """Return the initial values of the shared scalars, by name; empty for most rules."""
        make = None if self.rule is None else rule_of(self.hyper_key()).state_spec.shared
        return {} if make is None else make()

    @property
    def is_pure(self) -> bool:
        """Return whether a compiled step can do the whole update: no subclass overrides updates, states, counts or rates."""
        return self.takes_lists and self._keeps(_RATES)

    @property
    def takes_lists(self) -> bool:
        """Return whether one call updates any number of parameters: no subclass overrides `update` or the states."""
        return self.rule is not None and self._keeps(_UPDATES)

    def _keeps(self, methods: Any) -> bool:
        return methods(type(self)) == methods(Optimizer)

    # ---- state and update, in place on `MutableArray`s

    def create_state(self, index: Index, weight: Any) -> Any:
        """Create the state of one parameter as mutable arrays in MXNet's nesting; None if the rule has no state.

        Args:
            index: index or name of the parameter.
            weight: `MutableArray` (NDArray) or array; the state has its class and device.
        """
        if self.rule is None:
            return None
        make = mutable_class(weight)
        slots = zip(slot_names(self), new_state(self, as_array(weight)), strict=True)
        return state_to_mxnet(self, tuple(None if name == MASTER or slot is None else make(slot) for name, slot in slots))

    def create_state_multi_precision(self, index: Index, weight: Any) -> Any:
        """Create the state of one parameter, as `create_state`, and for a 16-bit weight a float32 master copy.

        The master copy requires the option `multi_precision`.

        Returns:
            The state of a float32 weight; (master, state) of a 16-bit one, or (state, master) for SGD, NAG and LARS.  Without
            `multi_precision` a 16-bit weight causes a warning.
        """
        value = as_array(weight)
        warn_of_precision(self, value)
        if not (self.multi_precision and is_small(value)):
            return self.create_state(index, weight)
        master = mutable_class(weight)(copied(value))
        state = self.create_state(index, master)
        return (state, master) if self.master_last else (master, state)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one parameter, or a list of them in one dispatch, in place.

        Args:
            index: index or name, or a list of them.
            weight: `MutableArray` (NDArray), or a list.
            grad: array or mutable array of the weight's shape, or a list.
            state: result of `create_state`, or a list.

        Raises:
            NotImplementedError: the subclass has no rule and does not define `update`.
        """
        if self.rule is None:
            raise NotImplementedError(f"{type(self).__name__} has no update; define update(self, index, weight, grad, state).")
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self.update_lists(index, weight, grad, state)

    def update_lists(
        self, index: Sequence[Any], weight: Sequence[Any], grad: Sequence[Any], state: Sequence[Any], one_by_one: bool = False
    ) -> None:
        """Update lists of parameters in one dispatch; float32 master copies in the states are updated too.

        Args:
            index: indices or names.
            weight: mutable arrays.
            grad: arrays or mutable arrays.
            state: results of `create_state_multi_precision`.
            one_by_one: as in `apply_update`.
        """
        update_in_place(self, index, weight, grad, state, one_by_one)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update parameters in place, as `update`, with states of `create_state_multi_precision`.

        An overridden `update` receives the float32 master copy of a 16-bit weight.
        """
        several = isinstance(index, (list, tuple))
        if self.takes_lists or several or not (self.multi_precision and is_small(as_array(weight))):
            self.update(index, weight, grad, state)
            return
        master, state = state[::-1] if self.master_last else state
        self.update(index, master, type(master)(wide(jnp.asarray(as_array(grad)))), state)
        replace(weight, master.value.astype(as_array(weight).dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "param_dict"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, param_dict={})


def _base_arguments() -> Collection[str]:
    return inspect.signature(Optimizer).parameters


def _constructor(klass: type[Optimizer], arguments: Mapping[str, Any]) -> Any:
    kinds = inspect.Parameter
    named = [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=value) for name, value in arguments.items()]
    parameters = [kinds("self", kinds.POSITIONAL_ONLY), *named, kinds("kwargs", kinds.VAR_KEYWORD)]
    signature = inspect.Signature(parameters)

    def __init__(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        self, others, base = values.pop("self"), values.pop("kwargs"), _base_arguments()
        super(klass, self).__init__(**{name: value for name, value in values.items() if name in base}, **others)
        vars(self).update({name: value for name, value in values.items() if name not in base})
        self._set_up()

    setattr(__init__, "__signature__", signature)  # noqa: B010 (pyright: functions have no such attribute)
    return __init__


@functools.lru_cache(maxsize=64)
def _scaled(lr: float, wd: float, separate: bool, lr_mult: tuple[float, ...], wd_mult: tuple[float, ...]) -> tuple[Any, ...]:
    """Return the second result of `Optimizer.rows` for an optimizer whose learning rate is `lr`."""
    mults = np.asarray(lr_mult, np.float32)
    decays = tuple(np.float32(wd) * np.asarray(wd_mult, np.float32))
    rates = np.full(len(lr_mult), lr, np.float32)
    return (tuple(rates), decays, tuple(mults)) if separate else (tuple(rates * mults), decays, ())


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str)) else float(value)


def group_size(default: int) -> int:
    """Return the number of parameters MXNet updates in one call: MXNET_OPTIMIZER_AGGREGATION_SIZE if set, else `default`."""
    return int(os.getenv("MXNET_OPTIMIZER_AGGREGATION_SIZE", str(default)))
