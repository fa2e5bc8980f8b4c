"""What modules with the same parameters share: one TrainState, one optimizer, one way to reduce gradients over devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.mxnet.keys import next_key
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer import Optimizer
from jfit.optim import Optimizer as PureOptimizer
from jfit.optim import OptState
from jfit.parallel import place, place_split
from jfit.step.reduce import Reduce, all_reduce
from jfit.step.state import TrainState
from jfit.step.totals import zero_totals
from jfit.train.interrupts import defer_interrupts

SLICED = 16  # multipliers of more parameters are arguments of their own: XLA on CPU compiles each slice of a vector anew
EVALUATIONS = 1 << 30  # numbers from here on belong to evaluations, which some operators draw random numbers in too
Index = int | str  # how an optimizer knows a parameter


class Parameters:
    """Parameters, auxiliary states and optimizer state on the devices, and who updates them.

    Attributes:
        devices: where the arrays live.
        state: the TrainState; None before parameters are set.
        optimizer: the stateful optimizer, or None.
        names: parameters in the order that gives them their index.
        cell: class of the writable arrays that an optimizer class of the user's gets.
        learns: those of the names that the optimizer updates.
        gammas: those of a BatchNorm with fix_gamma: they stay 1, but count as updated, as MXNet updates and overwrites them.
        reduce: how the devices' gradients become one.
        passes: training passes since the last update; each draws its own random numbers.
    """

    def __init__(self, devices: Sequence[Any], names: Sequence[str] = (), cell: Callable[[Any], Any] = MutableArray) -> None:
        self.devices, self.names, self.cell = list(devices), list(names), cell
        self.state: TrainState | None = None
        self.optimizer: Optimizer | None = None
        self.kvstore: Any = None
        self.update_on_kvstore = False
        self.updater: Any = None  # of an optimizer that is a user's Python class
        self.learns: list[str] = []
        self.gammas: list[str] = []
        self.reduce: Reduce = all_reduce()
        self.passes = self.evaluations = 0
        self.waiting: weakref.WeakSet[Any] = weakref.WeakSet()  # passes whose outputs may not be computed yet
        self._rate: Any = None
        self._multipliers: Any = None
        self._known_indices: Any = None

    def numbered(self, train: bool) -> int:
        """The number of a pass that begins: among training passes since the last update, or among all evaluations."""
        if train:
            self.passes += 1
            return self.passes - 1
        self.evaluations += 1
        return EVALUATIONS + self.evaluations % EVALUATIONS

    def draw_like(self, other: Parameters) -> None:
        """The next training pass draws the random numbers of the last one of `other`."""
        assert self.state is not None and other.state is not None
        step, key = place((other.state.step, other.state.key), self.devices)  # copies: an update gives up the originals
        self.state, self.passes = self.state._replace(step=step, key=key), other.passes - 1

    # -------------------------------------------------------------------------------- parameters
    @property
    def split(self) -> bool:
        """True where each device has parameters of its own."""
        return not self.reduce.shared and len(self.devices) > 1

    def set_arrays(self, params: Mapping[str, Any], aux: Mapping[str, Any]) -> None:
        """Replace parameters and auxiliary states; those that are not given, optimizer state and counters are unchanged."""
        self.hold()
        if self.state is not None and not set(self.state.params) <= set(params):
            old, old_aux = self.arrays()
            params, aux = {**old, **params}, {**old_aux, **aux}
        placed, moved = place(dict(params), self.devices), place(dict(aux), self.devices)
        if self.split:
            placed = self.stacked(params)
        if self.state is None:
            key = jax.random.key_data(next_key())
            state = TrainState(jnp.zeros((), jnp.int32), {}, {}, (), zero_totals(), jnp.zeros(()), key)
            self.state = place(state, self.devices)
        assert self.state is not None
        self.state = self.state._replace(params=placed, aux=moved)

    def stacked(self, tree: Any) -> Any:
        """A copy for each device, along a leading device axis."""
        host = counters.read(tree)  # sync: once an epoch at most, and only where devices hold arrays of their own
        return place_split(jax.tree.map(lambda x: np.stack([np.asarray(x)] * len(self.devices)), host), self.devices)

    def arrays(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Copies of (parameters, auxiliary states) on the first device; the mean where devices have their own."""
        assert self.state is not None
        return _copies(self.state.params, self.split, self.devices), _copies(self.state.aux, False, self.devices)

    def replace_params(self, fresh: Mapping[str, Any]) -> None:
        """Write new values of some parameters."""
        assert self.state is not None
        self.state = self.state._replace(params={**self.state.params, **place(dict(fresh), self.devices)})

    # -------------------------------------------------------------------------------- optimizer
    def set_optimizer(self, optimizer: Optimizer, learns: Sequence[str], gammas: Sequence[str], reduce: Reduce) -> None:
        """Fresh optimizer state for the parameters in `learns`, counted from where the optimizer's own counts are."""
        assert self.state is not None
        params, _ = self.arrays()
        if self.optimizer is not None:
            self.optimizer.shared.detach(self)
        self.optimizer, self.learns, self.gammas, self.reduce = optimizer, list(learns), list(gammas), reduce
        own = {k: params[k] for k in sorted(self.learns)}
        opt_state = self._fresh(own) if optimizer.is_pure else ()
        local = reduce.init(own)
        count = len(self.devices)
        if local is not None and count > 1:
            local = self.stacked(local)
        opt_state = self.stacked(opt_state) if self.split else place(opt_state, self.devices)
        # devices may have had parameters of their own before, and may have them from now on
        placed = self.stacked(params) if self.split else place(params, self.devices)
        self.state = self.state._replace(params=placed)
        begin = place(jnp.int32(optimizer.begin_num_update), self.devices)
        self.state = self.state._replace(opt_state=opt_state, local=local, step=begin)
        self._rate = self._multipliers = None
        if optimizer.is_pure:
            optimizer.shared.attach(self)
        self.sync_multipliers()

    def _fresh(self, params: Mapping[str, Array]) -> OptState:
        """First state; all parameters count alike until some of them are left out of an update."""
        assert self.optimizer is not None
        for weight in params.values():
            self.optimizer.check_weight(weight)
        state = self.optimizer.transform(self.turns(self.gammas)).init(dict(params))
        # an optimizer object that was used before goes on counting, as in MXNet
        done, begin = self.optimizer.counts(), self.optimizer.begin_num_update
        begin = jnp.int32(max((done.get(i, begin) for i in self.indices()), default=begin))
        shared = state.shared and {**state.shared, **self.optimizer.shared.values()}
        return state._replace(count=None if state.count is None else begin, lr_mult=None, wd_mult=None, shared=shared)

    def shared_scalars(self) -> dict[str, Array]:
        """The scalars that the parameters share in the optimizer state, on the devices."""
        state = self.state
        shared = state.opt_state.shared if state is not None and isinstance(state.opt_state, OptState) else None
        return {name: value[0] if self.split else value for name, value in (shared or {}).items()}

    def set_shared_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Replace the scalars that the parameters share."""
        state = self.state
        assert state is not None
        if isinstance(state.opt_state, OptState) and state.opt_state.shared:
            fresh = {name: scalars[name] for name in state.opt_state.shared}
            fresh = self.stacked(fresh) if self.split else place(fresh, self.devices)
            self.state = state._replace(opt_state=state.opt_state._replace(shared=fresh))

    def turns(self, gammas: Sequence[str]) -> Any:
        """What the optimizer's rule needs to know of the order in which MXNet updates the parameters of a graph."""
        assert self.optimizer is not None
        return self.optimizer.hyper_for_names(self.names, self.update_on_kvstore, gammas)

    def resolved(self, gammas: Sequence[str]) -> PureOptimizer:
        """The pure optimizer for the train step of a graph; its rate is `state.base_lr`."""
        assert self.optimizer is not None
        return self.optimizer.transform(self.turns(gammas))

    def index(self, name: str) -> Index:
        """How the optimizer knows a parameter: by name where the key-value store updates, else by number."""
        return name if self.update_on_kvstore else self.names.index(name) * len(self.devices)

    def begin_update(self, learns: Sequence[str], counted: Sequence[str]) -> None:
        """Host counters of one update of `learns`; writes learning rate and multipliers into the state where they changed.

        Args:
            learns: parameters of the graph at hand that are updated.
            counted: those, and the gammas with fix_gamma.
        """
        state = self.state
        assert state is not None
        rate = self._counted(learns, counted)
        if not np.array_equal(rate, self._rate):
            self._rate = rate
            self.state = state._replace(base_lr=place(rate, self.devices))
        self.sync_multipliers()
        self.passes = 0

    def begin_updates(self, count: int, learns: Sequence[str], counted: Sequence[str]) -> np.ndarray:
        """`begin_update` for `count` updates in a row; the rate of each, (count,) or (count, parameters)."""
        rates = np.stack([self._counted(learns, counted) for _ in range(count)])
        if rates.ndim > 1 and self.state is not None and not np.array_equal(rates[0], self._rate):
            self.state = self.state._replace(base_lr=place(rates[0], self.devices))  # as a loop takes it
        self.sync_multipliers()
        self._rate, self.passes = rates[-1], 0
        return rates

    def _counted(self, learns: Sequence[str], counted: Sequence[str]) -> np.ndarray:
        """Counts one update; its rate, or one for each of `learns` where MXNet's order of asking makes them differ."""
        optimizer, indices = self.optimizer, self.indices(counted)
        assert optimizer is not None
        if not (optimizer.rate_before_count and optimizer.lr_scheduler is not None and optimizer.is_pure):
            optimizer.count(indices)
            return np.float32(optimizer.rate())  # type: ignore[return-value]
        of_name = dict(zip(sorted(counted), indices, strict=True))
        order = sorted(of_name, key={name: i for i, name in enumerate(self.names)}.__getitem__)
        _, asked = optimizer.advance([of_name[name] for name in order], one_by_one=True)
        rates = dict(zip(order, asked, strict=True))
        return np.asarray([rates[name] for name in sorted(learns)], np.float32)

    def indices(self, learns: Sequence[str] | None = None) -> list[Index]:
        """How the optimizer knows parameters, in the order of their sorted names."""
        names = self.learns if learns is None else learns
        known = self._known_indices
        if known is None or known[0] is not names or known[1:3] != (self.update_on_kvstore, self.names):
            number = {name: i for i, name in enumerate(self.names)}
            found = [n if self.update_on_kvstore else number[n] * len(self.devices) for n in sorted(names)]
            self._known_indices = known = (names, self.update_on_kvstore, list(self.names), found)
        return known[3]

    def sync_multipliers(self) -> None:
        """Write the multipliers of the optimizer into the state, if they changed."""
        optimizer = self.optimizer
        assert optimizer is not None and self.state is not None
        if not optimizer.is_pure:
            return
        if optimizer.param_dict or (optimizer.lr_mult, optimizer.wd_mult) != self._multipliers:
            self._multipliers = dict(optimizer.lr_mult), dict(optimizer.wd_mult)
            lr, wd = optimizer.multipliers(self.indices())
            old = self.state.opt_state
            lr, wd = self._multiplier(lr, old.lr_mult), self._multiplier(wd, old.wd_mult, apart=len(wd) > SLICED)
            self.state = self.state._replace(opt_state=old._replace(lr_mult=lr, wd_mult=wd))

    def _multiplier(self, values: np.ndarray, old: Any, apart: bool = False) -> Any:
        """On the devices, in leaf order (sorted names); None while all are 1, so that they cost nothing."""
        if old is None and (np.asarray(values) == 1).all():
            return None
        given: Any = np.asarray(values, np.float32)
        given = tuple(given) if apart else given
        return self.stacked(given) if self.split else place(given, self.devices)

    # -------------------------------------------------------------------------------- a part of the parameters
    def view(self, params: Sequence[str], aux: Sequence[str], learns: Sequence[str]) -> TrainState:
        """The state of one graph among several that share parameters; the whole state where it uses all of them."""
        state = self.state
        assert state is not None
        if self._whole(state, params, aux, learns):
            return state
        state = self.count_each()
        part = state._replace(params={k: state.params[k] for k in params}, aux={k: state.aux[k] for k in aux})
        if isinstance(state.opt_state, OptState):
            part = part._replace(opt_state=self._part(state.opt_state, learns))
        local = state.local and {k: v for k, v in state.local.items() if k in set(learns)}
        return part._replace(local=local)

    def _whole(self, state: TrainState, params: Collection[str], aux: Collection[str], learns: Collection[str]) -> bool:
        """Whether a graph uses all parameters, and learns all that the optimizer knows."""
        same = len(params) == len(state.params) and len(aux) == len(state.aux)
        return same and (state.opt_state == () or len(learns) == len(self.learns))

    def run(self, passes: Any, program: Callable[..., Any], *given: Any, count: int = 1) -> Any:
        """Dispatch `program(state, *given, rescale)`, which takes the state's buffers, and keep the state it returns.

        An interrupt waits until the new state is kept: between the two the module would have none.  Where the dispatch
        fails, the host's counters are set back.

        Returns:
            What the program returned beside the state.
        """
        optimizer = self.optimizer
        assert optimizer is not None
        with defer_interrupts(), counters.explained():
            try:
                found = program(passes.view(), *given, np.float32(optimizer.rescale_grad))
            except BaseException:
                done = optimizer.counts()
                before = {i: done[i] - count for i in self.indices(passes.counted) if i in done}
                optimizer.set_counts({**done, **before}, optimizer.num_update - count)
                raise
            new, reported = (found, None) if isinstance(found, TrainState) else found
            self.commit(new, passes.learns)
        return reported

    def hold(self, but: Any = None) -> None:
        """Compute the pending outputs of all passes but one before the arrays change: outputs use the arrays at `forward`."""
        for passes in list(self.waiting):
            if passes is not but:
                passes.hold_outputs()

    def count_each(self) -> TrainState:
        """Keep an update count for each parameter from now on: graphs that use only some of the parameters need that."""
        state = self.state
        assert state is not None
        if not isinstance(state.opt_state, OptState) or state.opt_state.count is None:
            return state
        count, size = jnp.asarray(state.opt_state.count), len(self.learns)
        if count.ndim == int(self.split):
            count = np.full(size, np.asarray(counters.read(count)).max(), np.int32)
            count = self.stacked(count) if self.split else place(count, self.devices)
            self.state = state = state._replace(opt_state=state.opt_state._replace(count=count))
        return state

    def _part(self, whole: OptState, learns: Sequence[str]) -> OptState:
        at = self._positions(learns)

        def pick(v: Any) -> Any:
            return tuple(v[i] for i in at) if isinstance(v, tuple) else None if v is None else v[..., at]

        slots = {slot: {k: tree[k] for k in sorted(learns)} for slot, tree in whole.slots.items()}
        return OptState(pick(whole.count), slots, pick(whole.lr_mult), pick(whole.wd_mult), whole.shared)

    def _positions(self, learns: Sequence[str]) -> np.ndarray:
        order = {name: i for i, name in enumerate(sorted(self.learns))}
        return np.asarray([order[n] for n in sorted(learns)], np.int32)

    def commit(self, new: TrainState, learns: Sequence[str]) -> None:
        """Write the result of a step on a `view` back into the whole state."""
        whole = self.state
        assert whole is not None
        if self._whole(whole, new.params, new.aux, learns):
            self.state = new
            return
        opt_state = whole.opt_state
        if isinstance(new.opt_state, OptState):
            at, old = self._positions(learns), opt_state
            count = None if old.count is None else old.count.at[..., at].set(new.opt_state.count)
            slots = {slot: {**tree, **new.opt_state.slots[slot]} for slot, tree in old.slots.items()}
            opt_state = old._replace(count=count, slots=slots, shared=new.opt_state.shared)
        local = whole.local and {**whole.local, **new.local}
        params, aux = {**whole.params, **new.params}, {**whole.aux, **new.aux}
        self.state = new._replace(params=params, aux=aux, opt_state=opt_state, local=local)


@jax.jit
def _mean(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0).astype(x.dtype), tree)


def _copies(tree: dict[str, Array], split: bool, devices: Sequence[Any]) -> dict[str, Array]:
    """Own buffers on the first device."""
    found = _mean(tree) if split else tree
    if len(devices) > 1:
        found = {k: v.addressable_data(0) for k, v in found.items()}
    return jax.tree.map(lambda x: jax.device_put(x, devices[0], may_alias=False), found)
