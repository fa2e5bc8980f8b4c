"""State that modules with the same parameters share: a TrainState, the optimizer, and the gradient reduction over devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.mxnet.deferred import Pending
from jfit.mxnet.keys import next_key
from jfit.mxnet.module.groups import Placement, part_of
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer import Optimizer
from jfit.optim import Optimizer as PureOptimizer
from jfit.optim import OptState
from jfit.parallel.devices import place_on, place_split
from jfit.step.reduce import Reduce, all_reduce
from jfit.step.state import TrainState

SLICED = 16  # more multipliers than this are separate arguments: XLA on CPU is slow to compile many slices of one vector
EVALUATIONS = 1 << 30  # pass numbers from here on are evaluations (random keys are derived from the pass number)
Index = int | str  # key of a parameter in MXNet's optimizers: its number, or (kvstore updates) its name


class Parameters:
    """Parameters, auxiliary states and optimizer state on the devices, with the optimizer that updates them.

    Attributes:
        devices: the JAX devices of the arrays.
        placement: the device of each array if `ctx_group`s are on different devices.
        grouped: whether they are.
        split: whether each device has separate parameters (kvstore=None), stored with a leading device axis.
        state: the TrainState; None before parameters are set.
        optimizer: the MXNet-style optimizer, or None.
        names: all parameters; the position of a name determines its optimizer index.
        mutable: class of the mutable arrays passed to user-defined optimizer classes.
        trainable: names of the parameters that the optimizer updates.
        fixed_gammas: gammas of BatchNorm with fix_gamma=True: always 1, but counted as updated, because MXNet updates them and
            overwrites the result.
        reduce: reduction of gradients over devices.
        pending: passes of the graphs that use the parameters, to materialize before the arrays change.
        workers: sums over the processes of the job, a `jfit.mxnet.module.workers.Workers`; None: this process trains alone.
        passes: number of training passes since the last update, from which their random keys are derived.
    """

    def __init__(
        self, devices: Sequence[Any], names: Sequence[str] = (), mutable: Any = MutableArray, placement: Placement | None = None
    ) -> None:
        self.devices, self.names, self.mutable = list(devices), list(names), mutable
        self.placement = placement or Placement(self.devices[0], {})
        self.grouped, self.split = bool(self.placement.by_name), False
        self.state: TrainState = None  # type: ignore[assignment]  # until `set_arrays`
        self.optimizer: Optimizer = None  # type: ignore[assignment]  # until `set_optimizer`
        self.kvstore: Any = None
        self.update_on_kvstore = False
        self.updater: Any = None  # only for user-defined optimizer classes
        self.trainable: list[str] = []
        self.fixed_gammas: list[str] = []
        self.reduce: Reduce = all_reduce()
        self.workers: Any = None
        self.passes = self.evaluations = 0
        self.pending = Pending()
        self._rate: Any = None
        self._multipliers: Any = None
        self._cached_indices: Any = None

    def next_pass_number(self, train: bool) -> int:
        """Return the number of a new pass, from which its random key is derived.

        Training passes are counted since the last update, evaluations since the module was created.
        """
        if train:
            self.passes += 1
            return self.passes - 1
        self.evaluations += 1
        return EVALUATIONS + self.evaluations % EVALUATIONS

    def use_random_numbers_of(self, other: Parameters) -> None:
        """Make the next training pass use the same random key as the last one of `other`."""
        step, key = place_on((other.state.step, other.state.key), self.devices)  # copies: an update donates the originals
        self.state, self.passes = self.state._replace(step=step, key=key), other.passes - 1

    def place(self, tree: Any) -> Any:
        """Copy arrays to the devices: replicated, or each to the device of its parameter if `grouped`."""
        return self.placement.place(tree) if self.grouped else place_on(tree, self.devices)

    # -------------------------------------------------------------------------------- parameters
    def set_arrays(self, params: Mapping[str, Any], aux: Mapping[str, Any]) -> None:
        """Replace the passed parameters and auxiliary states, after the recorded passes; everything else is unchanged."""
        self.pending.materialize()
        placed, placed_aux = self.put(dict(params)), self.place(dict(aux))
        if self.state is None:
            key = jax.random.key_data(next_key())
            state = TrainState(jnp.zeros((), jnp.int32), {}, {}, (), None, jnp.zeros(()), key)
            self.state = self.place(state)
        state = self.state
        self.state = state._replace(params={**state.params, **placed}, aux={**state.aux, **placed_aux})

    def put(self, tree: Any) -> Any:
        """Copy parameters or their optimizer state to the devices: a copy for each if `split`, else as `place`."""
        return self.stacked(tree) if self.split else self.place(tree)

    def stacked(self, tree: Any) -> Any:
        """Return the arrays repeated along a new leading device axis, as `place_slices` puts them on the devices."""
        host = counters.read(tree)  # sync: at most once an epoch, and only with kvstore=None
        return self.place_slices(jax.tree.map(lambda x: np.stack([np.asarray(x)] * len(self.devices)), host))

    def place_slices(self, tree: Any) -> Any:
        """Put arrays with a leading device axis on the devices: one slice each, or whole arrays as `place` if `grouped`."""
        return self.placement.place(tree) if self.grouped else place_split(tree, self.devices)

    def arrays(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return copies of (parameters, auxiliary states) on the first device; the mean if each device has separate ones."""
        params = self.state.params
        if self.split and self.grouped:  # one program computes the means
            params = jax.device_put(params, self.devices[0])
        return _copies(params, self.split, self.devices), _copies(self.state.aux, False, self.devices)

    # -------------------------------------------------------------------------------- optimizer
    def set_optimizer(
        self, optimizer: Optimizer, trainable: Sequence[str], fixed_gammas: Sequence[str], reduce: Reduce
    ) -> None:
        """Set the optimizer and initialize its state; update counts continue from those of the optimizer object."""
        params, _ = self.arrays()
        if self.optimizer is not None:
            self.optimizer.shared.detach(self)
        self.optimizer, self.trainable, self.fixed_gammas, self.reduce = optimizer, list(trainable), list(fixed_gammas), reduce
        self.split = not reduce.shared and len(self.devices) > 1
        updated = {k: params[k] for k in sorted(self.trainable)}
        opt_state = self._init_state(updated) if optimizer.is_pure else ()
        local = reduce.init(updated)
        if local is not None and len(self.devices) > 1:
            local = self.stacked(local)
        elif self.grouped:
            local = self.place(local)
        # parameters, too: `reduce` decides whether they are replicated or separate, and may have changed it
        placed, opt_state = self.put(params), self.put(opt_state)
        begin = self.place(jnp.int32(optimizer.begin_num_update))
        self.state = self.state._replace(params=placed, opt_state=opt_state, local=local, step=begin)
        self._rate = self._multipliers = None
        if optimizer.is_pure:
            optimizer.shared.attach(self)
        self.sync_multipliers()

    def _init_state(self, params: Mapping[str, Array]) -> OptState:
        """Return the initial optimizer state, with one update count for all parameters (see `count_per_parameter`)."""
        state = self.optimizer.transform(self.turns(self.fixed_gammas)).init(dict(params))
        # as in MXNet, an optimizer object that was used before continues its counts
        done, begin = self.optimizer.counts(), self.optimizer.begin_num_update
        begin = jnp.int32(max((done.get(i, begin) for i in self.indices()), default=begin))
        shared = state.shared and {**state.shared, **self.optimizer.shared.values()}
        return state._replace(count=None if state.count is None else begin, lr_mult=None, wd_mult=None, shared=shared)

    def shared_scalars(self) -> dict[str, Array]:
        """Return the optimizer state that all parameters share (such as Nadam's momentum schedule), scalars by name."""
        state = self.state
        shared = state.opt_state.shared if state is not None and isinstance(state.opt_state, OptState) else None
        return {name: value[0] if self.split else value for name, value in (shared or {}).items()}

    def set_shared_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Replace the shared scalars of the optimizer state."""
        state = self.state
        if isinstance(state.opt_state, OptState) and state.opt_state.shared:
            shared = {name: scalars[name] for name in state.opt_state.shared}
            self.state = state._replace(opt_state=state.opt_state._replace(shared=self.put(shared)))

    def turns(self, fixed_gammas: Sequence[str]) -> Any:
        """Return the order in which MXNet updates the parameters of a graph, as hyperparameters of the update rule.

        Empty for optimizers whose result does not depend on the order.
        """
        return self.optimizer.hyper_for_names(self.names, self.update_on_kvstore, fixed_gammas)

    def resolved(self, fixed_gammas: Sequence[str]) -> PureOptimizer:
        """Return the pure optimizer for the train step of a graph; its learning rate is `state.base_lr`."""
        return self.optimizer.transform(self.turns(fixed_gammas))

    def index(self, name: str) -> Index:
        """Return the optimizer index of a parameter: its name if the key-value store updates, else its number * devices."""
        return name if self.update_on_kvstore else self.names.index(name) * len(self.devices)

    def begin_update(self, trainable: Sequence[str], updated: Sequence[str]) -> None:
        """Advance the host's update counts by one, and write changed learning rates and multipliers into the state.

        Args:
            trainable: names of the parameters of the graph that are updated.
            updated: these and its fixed gammas.
        """
        state = self.state
        if state.metrics is not None:  # of an EpochRunner that two Ctrl-C ended
            self.state = state = state._replace(metrics=None)
        rate = self._count_update(trainable, updated)
        if not np.array_equal(rate, self._rate):
            self._rate = rate
            self.state = state._replace(base_lr=self.place(rate))
        self.sync_multipliers()
        self.passes = 0

    def begin_updates(self, count: int, trainable: Sequence[str], updated: Sequence[str]) -> np.ndarray:
        """Call `begin_update` for `count` updates in a row; return their learning rates, (count,) or (count, parameters)."""
        rates = np.stack([self._count_update(trainable, updated) for _ in range(count)])
        if rates.ndim > 1 and not np.array_equal(rates[0], self._rate):
            self.state = self.state._replace(base_lr=self.place(rates[0]))  # a loop's carry keeps its shape
        self.sync_multipliers()
        self._rate, self.passes = rates[-1], 0
        return rates

    def undo_count(self, updated: Sequence[str], count: int) -> None:
        """Reset the update counts to those before the last `count` updates, which failed; `updated` as in `begin_update`."""
        done = self.optimizer.counts()
        before = {i: done[i] - count for i in self.indices(updated) if i in done}
        self.optimizer.set_counts({**done, **before}, self.optimizer.num_update - count)

    def _count_update(self, trainable: Sequence[str], updated: Sequence[str]) -> np.ndarray:
        """Advance the update counts by one; return the learning rate of this update, or one per parameter if they differ."""
        optimizer, indices = self.optimizer, self.indices(updated)
        if not (optimizer.rate_before_count and optimizer.lr_scheduler is not None and optimizer.is_pure):
            optimizer.count(indices)
            return np.float32(optimizer.rate())  # type: ignore[return-value]
        of_name = dict(zip(sorted(updated), indices, strict=True))
        order = sorted(of_name, key={name: i for i, name in enumerate(self.names)}.__getitem__)
        _, in_order = optimizer.advance([of_name[name] for name in order], one_by_one=True)
        rates = dict(zip(order, in_order, strict=True))
        return np.asarray([rates[name] for name in sorted(trainable)], np.float32)

    def indices(self, trainable: Sequence[str] | None = None) -> list[Index]:
        """Return the optimizer indices of the parameters, in the order of their sorted names (cached)."""
        names = self.trainable if trainable is None else trainable
        cached = self._cached_indices
        if cached is None or cached[0] is not names or cached[1:3] != (self.update_on_kvstore, self.names):
            indices = [self.index(name) for name in sorted(names)]
            self._cached_indices = cached = (names, self.update_on_kvstore, list(self.names), indices)
        return cached[3]

    def sync_multipliers(self) -> None:
        """Write the optimizer's learning-rate and weight-decay multipliers into the state, if they changed."""
        optimizer = self.optimizer
        if not optimizer.is_pure:
            return
        if optimizer.param_dict or (optimizer.lr_mult, optimizer.wd_mult) != self._multipliers:
            self._multipliers = dict(optimizer.lr_mult), dict(optimizer.wd_mult)
            lr, wd = optimizer.multipliers(self.indices())
            old = self.state.opt_state
            lr, wd = self._multiplier(lr, old.lr_mult), self._multiplier(wd, old.wd_mult, separate=len(wd) > SLICED)
            self.state = self.state._replace(opt_state=old._replace(lr_mult=lr, wd_mult=wd))

    def _multiplier(self, values: np.ndarray, old: Any, separate: bool = False) -> Any:
        """Return multipliers on the devices, in the order of sorted names; None while all have always been 1 (no cost).

        old: the present multipliers.  separate: one array per parameter instead of one vector.
        """
        if old is None and (np.asarray(values) == 1).all():
            return None
        multipliers = np.asarray(values, np.float32)
        return self.put(tuple(multipliers) if separate else multipliers)

    # -------------------------------------------------------------------------------- a part of the parameters
    def view(self, params: Sequence[str], aux: Sequence[str], trainable: Sequence[str]) -> TrainState:
        """Return the part of the TrainState that one of several graphs uses; the whole state if it uses all parameters."""
        state = self.state
        if self._whole(state, params, aux, trainable):
            return state
        state = self.count_per_parameter()
        part = state._replace(params={k: state.params[k] for k in params}, aux={k: state.aux[k] for k in aux})
        if isinstance(state.opt_state, OptState):
            part = part._replace(opt_state=part_of(state.opt_state, sorted(trainable), self._positions(trainable), self.split))
        local = state.local and {k: v for k, v in state.local.items() if k in set(trainable)}
        return part._replace(local=local)

    def _whole(self, state: TrainState, params: Collection[str], aux: Collection[str], trainable: Collection[str]) -> bool:
        """Return whether a graph uses all parameters, and updates all that the optimizer has state for."""
        same = len(params) == len(state.params) and len(aux) == len(state.aux)
        return same and (state.opt_state == () or len(trainable) == len(self.trainable))

    def count_per_parameter(self) -> TrainState:
        """Replace a common update count in the state by one per parameter, and return the state.

        Graphs with only some of the parameters need this.
        """
        state = self.state
        if not isinstance(state.opt_state, OptState) or state.opt_state.count is None:
            return state
        count, size = jnp.asarray(state.opt_state.count), len(self.trainable)
        if count.ndim == int(self.split):
            count = np.full(size, np.asarray(counters.read(count)).max(), np.int32)
            self.state = state = state._replace(opt_state=state.opt_state._replace(count=self.put(count)))
        return state

    def _positions(self, trainable: Sequence[str]) -> list[int]:
        order = {name: i for i, name in enumerate(sorted(self.trainable))}
        return [order[n] for n in sorted(trainable)]

    def commit(self, new: TrainState, trainable: Sequence[str]) -> None:
        """Merge the new state of a `view` into the whole state."""
        whole = self.state
        if self._whole(whole, new.params, new.aux, trainable):
            self.state = new
            return
        opt_state = whole.opt_state
        if isinstance(new.opt_state, OptState):
            at, old = self._positions(trainable), opt_state
            count = None if old.count is None else old.count.at[..., np.asarray(at)].set(new.opt_state.count)
            slots = {slot: {**tree, **new.opt_state.slots[slot]} for slot, tree in old.slots.items()}
            opt_state = old._replace(count=count, slots=slots, shared=new.opt_state.shared)
        local = whole.local and {**whole.local, **new.local}
        params, aux = {**whole.params, **new.params}, {**whole.aux, **new.aux}
        self.state = new._replace(params=params, aux=aux, opt_state=opt_state, local=local)


@jax.jit
def _mean(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0).astype(x.dtype), tree)


def _copies(tree: dict[str, Array], split: bool, devices: Sequence[Any]) -> dict[str, Array]:
    """Return copies (new buffers) on the first device; the mean over devices if `split`."""
    arrays = _mean(tree) if split else tree
    if len(devices) > 1:
        arrays = {k: v.addressable_data(0) for k, v in arrays.items()}
    return jax.tree.map(lambda x: jax.device_put(x, devices[0], may_alias=False), arrays)
