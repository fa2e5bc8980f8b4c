"""What MXNet's Optimizer remembers on the host: rates, multipliers and update counts.  The arithmetic is `jfit.optim`'s.

A compiled update depends on `hyper_key()` alone; rates, multipliers, counts and `rescale_grad` reach it as data.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np

from jfit.mxnet.mutable import as_array, mutable_class, replace
from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.apply import (
    apply_update,
    gradient_of,
    keep_hidden,
    made_states,
    new_state,
    parts,
    rule_of,
    slot_names,
    state_to_mxnet,
    warn_of_precision,
)
from jfit.mxnet.optimizer.settings import restore_settings, settings_of
from jfit.mxnet.optimizer.shared import Shared
from jfit.ops import nearest
from jfit.optim.core import MASTER, copied, is_small, wide

Index = int | str
Hyper = tuple[tuple[str, Any], ...]
OptimizerClass = TypeVar("OptimizerClass", bound=type)


class Optimizer:
    """Base of the optimizers; a subclass of yours writes `create_state` and `update`, or names a rule of `jfit.optim`.

    `update(index, weight, grad, state)` gets Boxes and writes `weight[:] = ...`; `_update_count`, `_get_lr` and `_get_wd` tell
    it the count, the rate and the decay of an index.

    Args:
        rescale_grad: gradients are multiplied by this first.
        param_idx2name: parameter name by index; names decide which parameters decay.
        wd: weight decay.
        clip_gradient: clip gradients to +-clip_gradient; None or 0 is off.
        learning_rate: rate, 0.01 where no scheduler gives it.  With a scheduler it replaces the scheduler's `base_lr`, and
            says so by print (Poly and Cosine keep their own base, and a warm-up its end, as in MXNet).
        lr_scheduler: called with the number of the update.
        sym: symbol whose `__lr_mult__` and `__wd_mult__` attributes count.
        begin_num_update: number of updates that were done before.
        multi_precision: 16-bit weights have float32 masters, which are what is updated.
        param_dict: parameters by index; their `lr_mult` and `wd_mult` go before all other multipliers.

    Raises:
        AssertionError: param_idx2name is no dict.

    Example:
        >>> plain = Optimizer(wd=0.1, param_idx2name={0: "fc_weight", 1: "fc_bias"})
        >>> plain.count([0, 1])
        >>> plain.num_update, plain.rate(), plain.multipliers([0, 1])[1].tolist()
        (1, 0.01, [1.0, 0.0])

    Source: Apache MXNet 1.9.1, `mxnet.optimizer.Optimizer`.
    """

    opt_registry: ClassVar[dict[str, type]] = {}
    # the rule in jfit.optim, and which attributes of the object are its parameters
    rule: ClassVar[str | None] = None
    parameters: ClassVar[tuple[str, ...]] = ()
    # parameters of the rule that it is told only where they are off
    switches: ClassVar[tuple[str, ...]] = ()
    # attribute -> parameter of the rule, where the names differ
    renamed: ClassVar[Mapping[str, str]] = {}
    # MXNet's state of one array is the array itself, not a tuple of one
    lone_state: ClassVar[bool] = False
    # the master of a 16-bit weight: (state, master) instead of (master, state)
    master_last: ClassVar[bool] = False
    # what saved attributes need to be; of other parameters, the kind they have now
    saved_needs: ClassVar[Mapping[str, saved.Need]] = {
        "lr": saved.OPTIONAL,
        "wd": saved.NUMBER,
        "clip_gradient": saved.LIMIT,
        "begin_num_update": saved.COUNT,
        # the logarithm of these is taken
        "beta1": saved.FROM_0,
        "beta2": saved.FROM_0,
    }
    # slots that MXNet keeps in the optimizer instead of in the states
    hidden_slots: ClassVar[tuple[str, ...]] = ()
    # how many parameters MXNet updates at once; 0: one by one
    aggregate_num: int = 0
    # within those, each index is counted and asked for its rate alone
    counts_apart: ClassVar[bool] = False
    # the rule looks at rates before multipliers
    rates_apart: ClassVar[bool] = False
    # the rate of an index is asked for before its update is counted
    rate_first: ClassVar[bool] = False

    # parameters whose names end so decay
    decayed_endings: ClassVar[tuple[str, ...]] = ("_weight", "_gamma")

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
        if param_idx2name is not None and not isinstance(param_idx2name, Mapping):
            raise AssertionError(f"param_idx2name is {param_idx2name!r}, a dict of parameter names by index is needed.")
        self.rescale_grad = rescale_grad
        self.lr_scheduler = lr_scheduler
        self.lr = 0.01 if learning_rate is None and lr_scheduler is None else learning_rate
        if lr_scheduler is not None and learning_rate is not None and lr_scheduler.base_lr != learning_rate:
            print(
                f"Warning: learning_rate {learning_rate} of the optimizer replaces base_lr {lr_scheduler.base_lr} of its "
                "lr_scheduler."
            )
            lr_scheduler.base_lr = learning_rate
        self.wd = wd
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = begin_num_update
        self.num_update = begin_num_update
        self._all_index_update_counts: dict[int, dict[Any, int]] = {0: {}}
        self._index_update_count = self._all_index_update_counts[0]
        self._counts_before: dict[Any, int] = {}
        self.idx2name: dict[Any, str] = dict(param_idx2name or {})
        self.param_dict: dict[Any, Any] = dict(param_dict or {})
        self.sym_info: tuple[Any, ...] = () if sym is None else (sym.attr_dict(), sym.list_arguments())
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.shared = Shared(self.first_shared)
        self.hidden: dict[Any, dict[str, Any]] = {}
        self.set_lr_mult({})
        self.set_wd_mult({})

    def __repr__(self) -> str:
        if self.rule is None:
            return super().__repr__()
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self.parameters, "wd", "clip_gradient"))
        return f"{type(self).__name__}({shown})"

    @staticmethod
    def register(klass: OptimizerClass) -> OptimizerClass:
        """Enter a class under its lower-case name, for `create`; use it as a decorator."""
        name = klass.__name__.lower()
        old = Optimizer.opt_registry.get(name)
        if old is not None:
            warnings.warn(f"optimizer {name!r} was {old!r} and is {klass!r} from now on.", stacklevel=2)
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> Any:
        """The registered optimizer of a name, case ignored.

        Raises:
            ValueError: no such name; the nearest are listed.
        """
        found = Optimizer.opt_registry.get(name.lower())
        if found is None:
            near = nearest(name.lower(), Optimizer.opt_registry) or ", ".join(map(repr, Optimizer.opt_registry))
            raise ValueError(f"Cannot find optimizer {name}: the nearest names are {near}.")
        return found(**kwargs)

    def settings(self) -> dict[str, Any]:
        """Class, rate, decay, parameters of the rule and the scheduler, as plain data."""
        return settings_of(self)

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Take over what `settings` of an optimizer of the same class gave, with its scheduler's progress.

        Raises:
            ValueError: another class.
        """
        restore_settings(self, settings)

    # ---- rates and multipliers

    @property
    def learning_rate(self) -> Any:
        """The rate now: the scheduler's for `num_update`, or `lr`."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def rate(self) -> float:
        """The rate of the update that was counted last."""
        return float(self.learning_rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set the rate.

        Raises:
            UserWarning: the optimizer has a scheduler (raised, not warned, as in MXNet).
        """
        if self.lr_scheduler is not None:
            raise UserWarning(
                f"the learning rate comes from the optimizer's lr_scheduler ({type(self.lr_scheduler).__name__}), so {lr} "
                "would have no effect; change the scheduler's base_lr, or make the optimizer without a scheduler."
            )
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Rate multipliers by name or index: those of the symbol's `__lr_mult__` attributes, then these; earlier ones go."""
        self.lr_mult = {**self._of_symbol("__lr_mult__"), **args_lr_mult}

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Decay multipliers: 0 for names ending neither `_weight` nor `_gamma`, the symbol's `__wd_mult__`, then these."""
        plain = {name: 0.0 for name in self.idx2name.values() if not name.endswith(self.decayed_endings)}
        self.wd_mult = {**plain, **self._of_symbol("__wd_mult__"), **args_wd_mult}

    def multipliers(self, indices: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """(rate, decay) multipliers of the indices, float32 (P,): `param_dict`, else by index, else by name, else 1."""
        return self._multipliers("lr_mult", indices), self._multipliers("wd_mult", indices)

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

    def _multipliers(self, kind: str, indices: Sequence[Any]) -> np.ndarray:
        if not self.param_dict and not getattr(self, kind):
            return np.ones(len(indices), np.float32)
        return np.asarray([self._multiplier(kind, i) for i in indices], np.float32)

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
        """One more update of these indices, on the current device; `num_update` is the largest count there has been."""
        counts, before, begin = self._index_update_count, self._counts_before, self.begin_num_update
        for index in indices if isinstance(indices, (list, tuple)) else (indices,):
            done = counts.get(index)
            counts[index] = now = 1 + (before.get(index, begin) if done is None else done)
            self.num_update = max(self.num_update, now)

    def _update_count(self, index: Any) -> None:
        self.count(index)

    def advance(self, indices: Sequence[Any], apart: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Counts the indices: (updates of each before this one, int32 (P,); the rate of each, float32 (P,)).

        Rates are asked for as MXNet asks: after each group that it updates at once, so that an index which lags behind
        (its gradient was stale once) sees the `num_update` of that moment.
        """
        done, rates = np.empty(len(indices), np.int32), np.empty(len(indices), np.float32)
        together = self.aggregate_num and not (apart or self.counts_apart)
        size, rate, at = self.aggregate_num if together else 1, 0.0, None
        for start in range(0, len(indices), size):
            group = indices[start : start + size]
            if self.rate_first and at != self.num_update:
                rate, at = self.rate(), self.num_update
            # MXNet's rules of one parameter at a time hand over the index itself
            self._update_count(list(group) if self.aggregate_num and not self.counts_apart else group[0])
            if not self.rate_first and at != self.num_update:
                rate, at = self.rate(), self.num_update
            rates[start : start + size] = self._own("lr", group, rate)
            done[start : start + size] = [self._index_update_count[i] - 1 for i in group]
        return done, rates

    def rows(self, indices: Sequence[Any], apart: bool = False) -> tuple[Any, ...]:
        """Counts the indices: (rate, decay, updates before this one, rate multipliers) of each, (P,) each.

        The rates have their multipliers in them already and the last is empty, except where the rule wants them apart.
        """
        done, rates = self.advance(indices, apart)
        lr_mult, wd_mult = self.multipliers(indices)
        decays = np.asarray(self._own("wd", indices, np.float32(self.wd) * wd_mult), np.float32)
        if self._hook("lr"):
            return rates, decays, done, ()
        return (rates, decays, done, lr_mult) if self.rates_apart else (rates * lr_mult, decays, done, ())

    def _hook(self, kind: str) -> bool:
        names = (f"_get_{kind}s",) if self.aggregate_num else (f"_get_{kind}s", f"_get_{kind}")
        return any(getattr(type(self), name) is not getattr(Optimizer, name) for name in names)

    def _own(self, kind: str, indices: Sequence[Any], usual: Any) -> Any:
        """What a subclass's own `_get_lr(s)` or `_get_wd(s)` says, asked as MXNet asks; else the usual."""
        if not self._hook(kind):
            return usual
        if self.aggregate_num:
            return getattr(self, f"_get_{kind}s")(list(indices))
        return [getattr(self, f"_get_{kind}")(i) for i in indices]

    def _set_current_context(self, device_id: int) -> None:
        self._index_update_count = self._all_index_update_counts.setdefault(device_id, {})

    def counts(self) -> dict[Any, int]:
        """Updates of each index so far, the largest over the devices."""
        found = dict(self._counts_before)
        for table in self._all_index_update_counts.values():
            for index, done in table.items():
                found[index] = max(done, found.get(index, done))
        return found

    def set_counts(self, counts: Mapping[Any, int], num_update: int | None = None) -> None:
        """Continue from these counts, on every device; `num_update` is their largest unless given."""
        self._counts_before = {index: int(done) for index, done in counts.items()}
        self._all_index_update_counts = {0: {}}
        self._index_update_count = self._all_index_update_counts[0]
        largest = max(self._counts_before.values(), default=self.begin_num_update)
        self.num_update = largest if num_update is None else int(num_update)

    # ---- what a compiled update depends on

    def hyper_key(self, turns: Hyper = ()) -> tuple[str, Hyper]:
        """(rule, its parameters): changes exactly when a compiled update must; rates, multipliers and rescale_grad are data.

        Args:
            turns: what `turns` says of the parameters at hand, for rules in which their order or names count.

        Raises:
            TypeError: the class has no rule of `jfit.optim`, only Python code of its own.
        """
        if self.rule is None:
            raise TypeError(
                f"{type(self).__name__} updates in Python, so it has no pure transformation; call its update(index, weight, "
                "grad, state), or set `rule` to the name of an optimizer of jfit.optim."
            )
        clip = self.clip_gradient
        hyper = {"wd": self.wd, "clip_gradient": clip if clip and clip > 0 else None}
        hyper |= {self.renamed.get(name, name): getattr(self, name) for name in self.parameters}
        hyper |= {"multi_precision": True} if self.multi_precision else {}
        hyper |= {name: False for name in self.switches if not getattr(self, name)}
        return self.rule, (*((name, _plain(value)) for name, value in hyper.items()), *turns)

    def turns(self, indices: Sequence[Any], apart: bool) -> Hyper:
        """Parameters of the rule that depend on which parameters there are, and in which order they are updated.

        Args:
            indices: in the order of their updates.
            apart: one by one, as in MXNet's key-value store, whatever `aggregate_num` is.
        """
        return ()

    def turns_by_name(self, names: Sequence[str], apart: bool, fixed: Sequence[str] = ()) -> Hyper:
        """`turns` for an update that knows its parameters by name, in any order; `names` are in MXNet's.

        Args:
            names: of all parameters.
            apart: as in `turns`.
            fixed: those of them that MXNet's optimizer updates and jfit's does not: gammas with fix_gamma.
        """
        return ()

    def transform(self, turns: Hyper = ()) -> Any:
        """The optax transformation of `jfit.optim` with these hyperparameters and no multipliers; cached."""
        return rule_of(self.hyper_key(turns))

    def check_weight(self, weight: Any) -> None:
        """Refuse a weight that the rule cannot update."""

    def nested(self, slots: tuple[Any, ...]) -> Any:
        """The slots of one float32 parameter, in the nesting of MXNet's `create_state`."""
        if not slots:
            return None
        return slots[0] if self.lone_state else slots

    def shared_for(self, indices: Sequence[Any]) -> Mapping[str, Any]:
        """The scalars that parameters share, for an update of these."""
        return self.shared.given()

    def keep_shared(self, scalars: Mapping[str, Any]) -> None:
        """Take the shared scalars that an update gave."""
        self.shared.keep(scalars)

    def shared_of_mxnet(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The shared scalars that attributes of one of MXNet's optimizers hold."""
        return attributes

    def first_shared(self) -> Mapping[str, Any]:
        """The first values of the scalars that parameters share."""
        make = None if self.rule is None else rule_of(self.hyper_key()).state_spec.shared
        return {} if make is None else make()

    @property
    def is_pure(self) -> bool:
        """A compiled step may do all the work: no subclass wrote an update, a state, a count, a rate or a decay of its own."""
        own = ("learning_rate", "rate", "count", "_update_count", "_get_lr", "_get_lrs", "_get_wd", "_get_wds")
        return self.takes_lists and self._untouched(own)

    @property
    def takes_lists(self) -> bool:
        """`update` and the states are the rule's, so one call updates any number of parameters."""
        own = ("update", "update_lists", "update_multi_precision", "create_state", "create_state_multi_precision")
        return self.rule is not None and self._untouched(own)

    def _untouched(self, names: Sequence[str]) -> bool:
        return all(getattr(type(self), name) is getattr(Optimizer, name) for name in names)

    # ---- state and update, in place on Boxes

    def create_state(self, index: Index, weight: Any) -> Any:
        """State of one parameter in MXNet's nesting, of the weight's own kind of MutableArray; None where there is none."""
        if self.rule is None:
            return None
        make = mutable_class(weight)
        slots = zip(slot_names(self), new_state(self, as_array(weight)), strict=True)
        return state_to_mxnet(self, tuple(None if name == MASTER or slot is None else make(slot) for name, slot in slots))

    def create_state_multi_precision(self, index: Index, weight: Any) -> Any:
        """`create_state`, with a float32 master of a 16-bit weight under `multi_precision`: (state, master) or (master, state).

        Without `multi_precision` a 16-bit weight draws a warning.
        """
        value = as_array(weight)
        warn_of_precision(self, value)
        if not (self.multi_precision and is_small(value)):
            return self.create_state(index, weight)
        master = mutable_class(weight)(copied(value))
        state = self.create_state(index, master)
        return (state, master) if self.master_last else (master, state)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one parameter, or a list of them in one dispatch, in place on Boxes.

        Args:
            index: index or name, or a list.
            weight: MutableArray, or a list.
            grad: array or MutableArray, or a list.
            state: what `create_state` gave, or a list.

        Raises:
            NotImplementedError: the class has neither a rule nor an `update` of its own.
        """
        if self.rule is None:
            raise NotImplementedError(f"{type(self).__name__} has no update: write update(self, index, weight, grad, state).")
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self.update_lists(index, weight, grad, state)

    def update_lists(
        self, index: Sequence[Any], weight: Sequence[Any], grad: Sequence[Any], state: Sequence[Any], apart: bool = False
    ) -> None:
        """`update` of lists in one dispatch; masters of 16-bit weights are updated where states hold them."""
        weights = [as_array(w) for w in weight]
        slots = made_states(self, index, state, weights)
        new, after = apply_update(self, index, weights, [gradient_of(g) for g in grad], slots, apart)
        keep_hidden(self, index, after)
        for i, box, value, old, columns in zip(index, weight, new, state, after, strict=True):
            replace(box, value, f"the weight of {i!r}")
            for part, column in zip(parts(old), parts(state_to_mxnet(self, columns)), strict=False):
                replace(part, column, f"the state of {i!r}")

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """`update` of what `create_state_multi_precision` made; a class with an `update` of its own gets the master."""
        several = isinstance(index, (list, tuple))
        if self.takes_lists or several or not (self.multi_precision and is_small(as_array(weight))):
            self.update(index, weight, grad, state)
            return
        master, own = state[::-1] if self.master_last else state
        self.update(index, master, type(master)(wide(jnp.asarray(as_array(grad)))), own)
        replace(weight, master.value.astype(as_array(weight).dtype), f"the weight of {index!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "param_dict"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, param_dict={})


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str)) else float(value)


def group_size(default: int) -> int:
    """How many parameters MXNet updates at once: MXNET_OPTIMIZER_AGGREGATION_SIZE, or the default."""
    return int(os.getenv("MXNET_OPTIMIZER_AGGREGATION_SIZE", str(default)))
