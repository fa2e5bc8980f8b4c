"""Rates, multipliers and update counts of an optimizer object, on the host and in MXNet's order of asking and counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np


class Rates:
    """What an `Optimizer` says of an index: how often it was updated, its rate, its decay.

    Example:
        >>> from jfit.mxnet.optimizer.named import SGD
        >>> plain = SGD(learning_rate=0.5)
        >>> plain.count([0, 1])
        >>> plain.counts(), plain.rate()
        ({0: 1, 1: 1}, 0.5)
    """

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

    lr: Any
    wd: float
    lr_scheduler: Any
    lr_mult: dict[Any, float]
    wd_mult: dict[Any, float]
    param_dict: dict[Any, Any]
    idx2name: dict[Any, str]
    sym_info: tuple[Any, ...]
    begin_num_update: int
    num_update: int
    _all_index_update_counts: dict[int, dict[Any, int]]
    _index_update_count: dict[Any, int]
    _counts_before: dict[Any, int]

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
        return any(getattr(type(self), name) is not getattr(Rates, name) for name in names)

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
