"""Trainer: apply an optimizer to Parameters with gradients, or to any pytree.

    gradients per device --(key-value store: sum)--> gradient --(optimizer)--> parameters per device

All parameters of a device are updated in one dispatch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

from jfit.formats.atomic import atomic_write, read_file
from jfit.mxnet.gluon.parameter import Parameter, device_of
from jfit.mxnet.gluon.parameter_dict import ParameterDict
from jfit.mxnet.gluon.tree import PytreeParams
from jfit.mxnet.job import join_job
from jfit.mxnet.kvstore.store import KVStore, KVStoreBase, check_spans_job, create, select
from jfit.mxnet.mutable import MutableRowSparse, as_array
from jfit.mxnet.optimizer import Optimizer, Updater
from jfit.mxnet.optimizer import create as create_optimizer
from jfit.parallel import check_entry


class Trainer:
    """Update parameters: w <- optimizer(w, rescale_grad * Σ gradients of the devices), rescale_grad = scale / batch_size.

    For gradients of storage type row_sparse only the nonzero rows are updated; all rows by an optimizer with
    `lazy_update=False`, and by Ftrl if the parameter's own storage type is not row_sparse.
    Multipliers are the parameters' `lr_mult` and `wd_mult`; unlike in Module names have no effect, so biases decay too.

    Args:
        params: `ParameterDict`, dict or list of `Parameter` (dicts in the order of sorted names), updated in place; or any
            pytree of arrays: `step(batch_size, grads=...)` then returns the new pytree, which the next step starts from;
            the arrays that were passed are not changed.
        optimizer: name of an optimizer, or an `Optimizer`; its rescale_grad is used as `scale`.
        optimizer_params: arguments of the optimizer, if it is given by name.
        kvstore: type name, store or None.  There is no store for one context (unless the type is a `dist` one) and for a
            pytree.  In a job of several processes "dist_sync" or "dist_device_sync": gradients are summed over all processes,
            and parameters begin with the values of rank 0; or None: each process trains alone.
        compression_params: see `KVStore.set_gradient_compression`; no effect without a store.
        update_on_kvstore: whether the store updates the parameters; None: as `jfit.mxnet.kvstore.select` chooses.

    Raises:
        ValueError: `params` is neither Parameters nor a pytree of arrays, or a mix; or the store sums over the devices of this
            process only, but the job has several processes.
        AssertionError: optimizer_params with an `Optimizer` object, or parameters on different contexts.

    Example:
        >>> import jax.numpy as jnp
        >>> weights = {"w": jnp.ones(2)}
        >>> trainer = Trainer(weights, "sgd", {"learning_rate": 0.5})
        >>> trainer.step(2, grads={"w": jnp.array([2.0, 4.0])})["w"].tolist()
        [0.5, 0.0]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.Trainer`.
    """

    _accepts_pytrees = True  # whether `params` may be a pytree of arrays
    _updater_class: ClassVar[type[Updater]] = Updater
    _store_class: ClassVar[type[KVStore]] = KVStore

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: Any = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        check_entry("Trainer", several=True)
        self._compression_params, self._kvstore_args = compression_params, (kvstore, update_on_kvstore)
        parameters = _parameters(params, self._accepts_pytrees)
        self._params: list[Parameter] = parameters or []
        for param in self._params:
            param._set_trainer(self)
        self._tree = None
        if parameters is None:
            self._tree = PytreeParams(params, compression_params, _distributes_tree(kvstore, update_on_kvstore))
        self._index = {p.name: i for i, p in enumerate(self._params)}
        self._contexts = self._shared_contexts()
        self._optimizer = self._resolved_optimizer(optimizer, dict(optimizer_params or {}))
        self._updaters = [self._updater_class(self._optimizer) for _ in self._contexts]
        self._scale = self._optimizer.rescale_grad
        self._amp_loss_scaler: Any = None  # set by `mx.contrib.amp.init_trainer`
        self._amp_original_scale = self._scale
        self._kvstore: Any = None
        self._reset_kvstore()

    learning_rate = property(attrgetter("_optimizer.learning_rate"), doc="The optimizer's current learning rate.")
    optimizer = property(attrgetter("_optimizer"), doc="The optimizer.")

    @property
    def params(self) -> Any:
        """The parameters: a list of `Parameter`, or the current pytree."""
        return list(self._params) if self._tree is None else self._tree.params

    def set_learning_rate(self, lr: float) -> None:
        """Set the optimizer's learning rate.

        Raises:
            UserWarning: the optimizer has a scheduler (raised, not warned, as in MXNet).
        """
        self._optimizer.set_learning_rate(lr)

    def step(self, batch_size: float, ignore_stale_grad: bool = False, grads: Any = None) -> Any:
        """Sum the gradients over devices and processes, and update the parameters once.

        Args:
            batch_size: gradients are divided by it; 1 if the loss is already a mean.  In a job of several processes the sum is
                over all of them, so it is the number of rows of all processes, as in MXNet.
            ignore_stale_grad: skip parameters whose gradient was not written since the last step, instead of raising.
            grads: pytree of gradients, if the parameters are a pytree; a leaf None is a stale gradient.

        Returns:
            None; the new pytree if the parameters are a pytree.

        Raises:
            UserWarning: a gradient is stale (raised before anything is written); or batch_size has changed, and the
                optimizer is in a distributed store, which does not see the change.
        """
        if self._tree is not None:
            if self._tree.distributed and grads is not None:
                grads = self._tree.sum_over_devices([grads])
            return self.update(batch_size, ignore_stale_grad, grads)
        self._rescale(batch_size)
        self._prepare(grads)
        self._check_fresh(ignore_stale_grad)
        self._allreduce()
        self._update(ignore_stale_grad)
        return None

    def allreduce_grads(self, grads: Any = None) -> Any:
        """Sum the gradients over devices, without an update; call `update` afterwards, for example after gradient clipping.

        Args:
            grads: if the parameters are a pytree: list of gradient pytrees, one per device.

        Returns:
            None; if the parameters are a pytree, the summed pytree on the device of the first.

        Raises:
            AssertionError: the store updates the parameters.
        """
        if self._tree is not None:
            return self._tree.sum_over_devices(grads)
        self._prepare(grads)
        self._check_not_on_kvstore("allreduce_grads")
        self._allreduce()
        return None

    def update(self, batch_size: float, ignore_stale_grad: bool = False, grads: Any = None) -> Any:
        """Update the parameters from gradients that are already summed over devices (see `allreduce_grads`).

        Args:
            batch_size, ignore_stale_grad, grads: as in `step`.

        Returns:
            As in `step`.

        Raises:
            AssertionError: the store updates the parameters.
            UserWarning: a gradient is stale.
        """
        if self._tree is not None:
            batch = self._tree.updates(grads, ignore_stale_grad)
            self._rescale(batch_size)
            _run(self._updaters[0], batch)
            return self._tree.params
        self._prepare(grads)
        self._check_not_on_kvstore("update")
        self._rescale(batch_size)
        self._check_fresh(ignore_stale_grad)
        self._update(ignore_stale_grad)
        return None

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Write the optimizer's states, update counts and settings to a file.

        The multipliers, which belong to the parameters, are not included.  If several devices update without a store, the
        states are those of the first device.

        Args:
            fname: path of the file.

        """
        self._prepare()
        if self._update_on_kvstore:
            self._kvstore.save_optimizer_states(os.fspath(fname), dump_optimizer=True)
        else:
            atomic_write(fname, self._updaters[0].get_states(dump_optimizer=True))

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Load the optimizer's states, update counts, learning rate, scheduler and other settings.

        Args:
            fname: path of a file written by `save_states` or by MXNet's Trainer.

        Raises:
            FormatError: the file is damaged.
        """
        self._prepare()
        if self._update_on_kvstore:
            self._kvstore.load_optimizer_states(os.fspath(fname))
            return
        states = read_file(fname)
        for updater in self._updaters:
            updater.set_states(states, fname)

    # ---- called by the parameters

    def _on_data_set(self, param: Parameter) -> None:
        """Recreate the store, because its copy of the parameter is stale now; MXNet does the same."""
        if self._ready and self._update_on_kvstore and param not in self._waiting:
            self._reset_kvstore()

    def _row_sparse_pull(self, param: Parameter, row_id: Any) -> Any:
        self._prepare()
        return as_array(self._kvstore.row_sparse_pull(self._index[param.name], row_ids=row_id))

    # ---- construction

    def _shared_contexts(self) -> list[Any]:
        first = self._params[0].list_ctx() if self._params else []
        for param in self._params:
            contexts = param.list_ctx()
            same = [device_of(c) for c in contexts] == [device_of(c) for c in first]
            assert same, f"parameter {param.name!r} is on {contexts}, others on {first}; use the same contexts."
        return first if self._tree is None else [None]

    def _resolved_optimizer(self, optimizer: Any, params: dict[str, Any]) -> Any:
        by_index = dict(enumerate(self._params))
        if not isinstance(optimizer, Optimizer):
            return create_optimizer(optimizer, param_dict=by_index, **params)
        assert not params, "optimizer_params are for an optimizer given by name; pass them to the object's constructor."
        optimizer.param_dict = by_index
        return optimizer

    # ---- the store

    def _reset_kvstore(self) -> None:
        if self._kvstore is not None and self._distributed:
            raise RuntimeError("the store of this trainer is distributed, so it cannot be recreated; set data before step().")
        self._ready = self._tree is not None  # a pytree has no store
        self._kvstore, self._update_on_kvstore, self._distributed = None, False, False
        self._waiting = list(self._params)

    def _prepare(self, grads: Any = None) -> None:
        """Make the store at the first call; `grads` are those that were passed to a method, which only a pytree has."""
        if grads is not None:
            raise ValueError("grads= is only for a trainer over a pytree; set the gradients of Parameters with set_grad().")
        if not self._ready:
            self._make_store()
        if self._kvstore is not None:
            dense: list[Any] = []
            for param in self._waiting:
                key, cells = self._index[param.name], param._cells(param._data)
                if param.stype != "default":
                    self._kvstore.init(key, cells[0])
                else:
                    dense.append((key, cells[0], cells))
            together = dense and isinstance(self._kvstore, KVStore)  # in a job one collective for all keys
            calls: list[Any] = [map(list, zip(*dense, strict=True))] if together else dense
            for each in calls:
                self._kvstore.broadcast(*each)
        self._waiting = []

    def _make_store(self) -> None:
        store, update = self._chosen_store()
        self._distributed = store is not None and "dist" in store.type
        if store is not None:
            if self._compression_params:
                store.set_gradient_compression(self._compression_params)
            if update:
                store.set_optimizer(self._optimizer)
        self._kvstore, self._update_on_kvstore, self._ready = store, None if store is None else update, True

    def _created(self, name: str) -> KVStoreBase:
        return create(name, self._store_class)

    def _chosen_store(self) -> tuple[Any, bool]:
        kvstore, forced = self._kvstore_args
        by_rows = any(p.stype != "default" for p in self._params)
        sparse = any(p.grad_stype != "default" for p in self._params)
        if by_rows:
            store, update = self._created(kvstore) if isinstance(kvstore, str) else kvstore, True
        else:
            store, update = select(kvstore, len(self._contexts), {p.name: p for p in self._params}, self._created)
        distributed = store is not None and "dist" in store.type
        update = distributed if sparse and not by_rows else update
        update = update if forced is None else forced
        if by_rows or (sparse and store is not None):
            must_update = by_rows or distributed  # the store, for it has only rows of the gradients
            if not isinstance(store, KVStore) or (must_update and not update):
                problem = f"kvstore is {kvstore!r} and update_on_kvstore {forced}"
                needed = "a KVStore" + " that updates them" * must_update
                raise ValueError(f"{problem}; row_sparse parameters and gradients need {needed}.")
        if update and (store is None or not store.is_capable(KVStoreBase.OPTIMIZER)):
            why = "there is no store" if store is None else f"the {type(store).__name__} does not support it"
            raise ValueError(f"update_on_kvstore is True, but {why}; set it to False.")
        return store, update

    # ---- one step

    def _rescale(self, batch_size: float) -> None:
        scale = self._scale / batch_size
        if self._update_on_kvstore and self._distributed and self._optimizer.rescale_grad != scale:
            problem = "Possible change in the `batch_size` from previous `step` detected"
            raise UserWarning(f"{problem}, which a distributed store does not see; use one, or update_on_kvstore=False.")
        self._optimizer.rescale_grad = scale

    def _trainable(self) -> list[tuple[int, Parameter]]:
        return [(i, p) for i, p in enumerate(self._params) if p._grad_req != "null"]

    def _check_fresh(self, ignore_stale_grad: bool) -> None:
        for _, param in [] if ignore_stale_grad else self._trainable():
            for cell, ctx in zip(param._cells(param._data), self._contexts, strict=True):
                if not getattr(cell, "_fresh_grad", False):
                    problem = f"the gradient of parameter {param.name!r} on {ctx} is stale since the last step"
                    raise UserWarning(f"{problem}: run a backward pass, or pass ignore_stale_grad=True to skip it.")

    def _check_not_on_kvstore(self, method: str) -> None:
        hint = "the store updates the parameters; pass update_on_kvstore=False to Trainer"
        assert not self._update_on_kvstore, f"{method}(): {hint}."

    def _allreduce(self) -> None:
        if self._kvstore is None or not (trainable := self._trainable()):
            return
        keys = [i for i, _ in trainable]
        cells = [p._cells(p._with_grad()) for _, p in trainable]
        outs = [p._cells(p._data) for _, p in trainable] if self._update_on_kvstore else cells
        grads = [[self._stored(p, c) for c in each] for (_, p), each in zip(trainable, cells, strict=True)]
        if isinstance(self._kvstore, KVStore):
            self._kvstore.pushpull(keys, grads, outs)
            return
        for i, grad, out in zip(keys, grads, outs, strict=True):
            self._kvstore.pushpull(i, grad, out=out, priority=-i)

    def _update(self, ignore_stale_grad: bool) -> None:
        overflow = self._amp_loss_scaler is not None and self._amp_loss_scaler.has_overflow(self._params)
        if overflow or self._update_on_kvstore:
            return
        for device, updater in enumerate(self._updaters):
            batch = []
            for i, param in self._trainable():
                cell = param._cells(param._data)[device]
                if not ignore_stale_grad or getattr(cell, "_fresh_grad", False):
                    batch.append((i, self._stored(param, param._cells(param._with_grad())[device]), cell))
            _run(updater, batch)
            for _, _, cell in batch:  # after the update: if it raises, the gradients stay fresh
                cell._fresh_grad = False

    def _stored(self, param: Parameter, gradient: Any) -> Any:
        """Return the gradient, as a `MutableRowSparse` if only its rows are to be updated."""
        by_rows = param._grad_stype == "row_sparse" and self._optimizer.updates_rows(param._stype)
        return MutableRowSparse(as_array(gradient)) if by_rows else gradient


def _run(updater: Any, batch: list[tuple[int, Any, Any]]) -> None:
    """Update all (index, gradient, MutableArray) of `batch` in one dispatch."""
    if batch:
        updater(*map(list, zip(*batch, strict=True)))


def _parameters(params: Any, trees: bool) -> list[Parameter] | None:
    """Return the Parameters of a list, or of a dict in the order of sorted names; None for a pytree of arrays.

    trees: whether a pytree is allowed; if not, it raises ValueError.
    """
    if isinstance(params, Mapping):
        values = [params[name] for name in sorted(params.keys())]
    else:
        values = list(params) if isinstance(params, (list, tuple)) else []
    count = sum(isinstance(p, Parameter) for p in values)
    if count == 0 and trees and not (isinstance(params, ParameterDict) and not values):
        return None
    if count < len(values) or not isinstance(params, (Mapping, list, tuple)):
        kinds = sorted({type(p).__name__ for p in values if not isinstance(p, Parameter)} or {type(params).__name__})
        raise ValueError(f"the first argument of a Trainer is a dict or list of Parameters; found {', '.join(kinds)} in it.")
    return values


def _distributes_tree(kvstore: Any, update_on_kvstore: bool | None) -> bool:
    """Return whether the gradients of a pytree are summed over the processes of the job.

    Raises ValueError for arguments that need a key-value store, because a pytree is updated without one.  The types "device",
    "local" and None are ignored in a job of one process.
    """
    job = kvstore if isinstance(kvstore, str) and "dist" in kvstore and "sync" in kvstore else None
    if update_on_kvstore or not (job or kvstore in (None, "device", "local")):
        arguments = f"kvstore={kvstore!r}, update_on_kvstore={update_on_kvstore}"
        raise ValueError(f"{arguments} needs Parameters; a pytree is updated without a store: omit them.")
    if job:
        join_job(job)
    else:
        check_spans_job(None, kvstore)
    return job is not None
