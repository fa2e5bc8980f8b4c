"""SVRGModule: a Module whose gradients are variance-reduced, with a second module at the snapshot of the parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.mxnet.module.base import BaseModule, require
from jfit.mxnet.module.module import Module
from jfit.mxnet.mutable import as_array
from jfit.mxnet.optimizer.svrg import FULL, _SVRGOptimizer
from jfit.optim import variance_reduced
from jfit.parallel import place, place_split


class SVRGModule(Module):
    """g <- g_i(w) - g_i(w~) + mu, then the optimizer: w~ are the parameters every `update_freq` epochs, mu their full gradient.

    mu is the sum of all batches' gradients over the number of batches (the rows that the last one wraps around count as the
    part of a batch that they are).  As in MXNet it is added to the mu before: mu <- (mu + sum) / batches; and multipliers in
    the symbol's attributes do not reach the optimizer.

    Args:
        symbol, data_names, label_names, logger, context, work_load_list: as for `Module`.
        fixed_param_names, state_names, group2ctxs, compression_params: as for `Module`; compression applies to the reduced
            gradients, not to mu.
        update_freq: epochs between two full gradients, 1 or more.

    Where it differs from MXNet 1.9.1, besides `Module`'s differences: parameters with "full" in their names learn; where a
    key-value store updates, the first gradient is taken at the parameters (MXNet's devices hold zeros by then); `fit` with a
    begin_epoch that is no multiple of update_freq takes the full gradient first (MXNet fails, or a second time goes on
    with mu 0); parameters that are fixed are
    left alone (MXNet fails); both modules draw the same random numbers for a batch; `load` needs `update_freq`, without it
    it gives a Module, which is what MXNet gives.

    Raises:
        TypeError: update_freq is no int.
        ValueError: update_freq is below 1.

    Example:
        >>> import jfit, numpy as np
        >>> from jfit.mxnet.module.svrg import SVRGModule
        >>> x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
        >>> train = jfit.NDArrayIter(x, x @ np.array([1, 2, 3], "float32"), batch_size=8, label_name="label")
        >>> out = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=1)
        >>> net = jfit.sym.LinearRegressionOutput(out, jfit.sym.Variable("label"))
        >>> module = SVRGModule(net, label_names=["label"], update_freq=2)
        >>> module.fit(train, eval_metric="mse", num_epoch=30, optimizer_params={"learning_rate": 0.1})
        >>> module.score(train, "mse")[0][1] < 1e-6
        True

    Source: Apache MXNet 1.9.1, `mxnet.contrib.svrg_optimization`; Johnson and Zhang 2013.
    """

    _aux_class: type[Module] = Module

    def __init__(
        self,
        symbol: Any,
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Any = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Any = None,
        compression_params: Mapping[str, Any] | None = None,
        update_freq: Any = None,
    ) -> None:
        given = (symbol, data_names, label_names, logger, context, work_load_list, fixed_param_names, state_names)
        super().__init__(*given, group2ctxs, compression_params)
        if not isinstance(update_freq, int) or isinstance(update_freq, bool):
            raise TypeError(
                f"update_freq in SVRGModule is {update_freq!r}; it must be an integer, the epochs between full gradients"
            )
        if update_freq <= 0:
            raise ValueError(f"update_freq in SVRGModule is {update_freq}; a full gradient every 1 or more epochs is needed")
        self.update_freq = update_freq
        self._mod_aux = self._aux_class(*given, group2ctxs, compression_params)
        self._ctx_len = len(self.binding.devices)
        self._full: dict[str, Array] = {}  # mu by name; with several devices, a leading device axis
        self._taken = False  # whether mu is that of the snapshot
        self._svrg: _SVRGOptimizer | None = None
        self._keyed: Any = None  # the key-value store that has the keys of full gradients

    # -------------------------------------------------------------------------------- both modules alike
    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: Any = "write",
    ) -> None:
        """As `Module.bind`; the module at the snapshot is bound alike, if for training."""
        super().bind(data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, shared_module, grad_req)
        if for_training:
            shared = getattr(shared_module, "_mod_aux", None)
            shared = shared if shared is not None and shared.params_initialized else None
            self._mod_aux.bind(data_shapes, label_shapes, True, inputs_need_grad, force_rebind, shared, grad_req)

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """As `Module.reshape`, of both modules."""
        super().reshape(data_shapes, label_shapes)
        if self._mod_aux.binded:
            self._mod_aux.reshape(data_shapes, label_shapes)

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """As `Module.prepare`, of both modules."""
        super().prepare(data_batch, sparse_row_id_fn)
        if self._mod_aux.binded:
            self._mod_aux.prepare(data_batch, sparse_row_id_fn)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """As `Module.forward`; in training, a pass of the module at the snapshot too."""
        super().forward(data_batch, is_train)
        aux = self._mod_aux
        if is_train:
            assert aux.params_initialized, "SVRG has no full gradient yet: call update_full_grads(train_data) before training"
        if aux.params_initialized and (self.for_training if is_train is None else is_train):
            aux._settle()
            aux.parameters.draw_like(self.parameters)  # the same random numbers at the snapshot: otherwise nothing would cancel
            aux.forward(data_batch, is_train=True)

    def backward(self, out_grads: Any = None) -> None:
        """As `Module.backward`, of both modules."""
        super().backward(out_grads)
        if self._mod_aux.params_initialized:
            self._mod_aux.backward(out_grads)

    # -------------------------------------------------------------------------------- optimizer
    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """As `Module.init_optimizer`; the optimizer gets the reduced gradients, and mu starts from 0."""
        super().init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self._full = {n: self._slices_of([self._zero(n)] * self._ctx_len) for n in self.passes.learns}
        self._taken = False
        store = self._kvstore
        if store is not None and store is not self._keyed:
            for name in self.passes.learns:
                store.init(name + FULL, self._zero(name))
            self._keyed = store

    def _zero(self, name: str) -> np.ndarray:
        spec = self.binding.specs[name]
        return np.zeros(spec.shape, jnp.promote_types(spec.dtype, jnp.float32))

    def _slices_of(self, slices: Sequence[Any]) -> Array:
        """One array for each device, as gradients lie."""
        host = [np.asarray(s) for s in counters.read(list(slices))]  # sync: once a full gradient
        return place(host[0], self.binding.devices) if self._ctx_len == 1 else place_split(np.stack(host), self.binding.devices)

    def _make_optimizer(self, optimizer: Any, params: dict[str, Any], rows: int, on_store: bool) -> Any:
        count, names = self._ctx_len, self.binding.params
        ways = 1 if on_store else count
        idx2name = {i * ways + k: n for i, n in enumerate(names) for k in range(ways)}
        idx2name |= {len(names) * ways + i: n + FULL for i, n in enumerate(names)}
        self._svrg = _SVRGOptimizer(optimizer, **{"rescale_grad": 1.0 / rows, **params, "param_idx2name": idx2name})
        return self._svrg.default_opt

    @property
    def _optimizer(self) -> Any:
        return super()._optimizer if self._svrg is None else self._svrg

    # -------------------------------------------------------------------------------- the full gradient
    @property
    def _param_dict(self) -> list[dict[str, Any]]:
        """mu of each device, by name."""
        apart = {n: [v] if self._ctx_len == 1 else list(v) for n, v in self._full.items()}
        return [{n: self.arrays.wrap(v[k]) for n, v in apart.items()} for k in range(self._ctx_len)]

    def update_full_grads(self, train_data: Any) -> None:
        """Takes the snapshot w~ and goes through the data once for mu.

        Args:
            train_data: the iterator; it is rewound first, and its `batch_size` weighs the rows that it wraps around.

        Raises:
            ValueError: the iterator has no batch.
        """
        require(self, "update_full_grads", "binded", "params_initialized", "optimizer_initialized")
        aux, self._taken = self._mod_aux, False
        aux.set_params(*self.get_params())
        train_data.reset()
        batches, pad, sums = 0, 0, self._full
        for batch in train_data:
            aux.forward(batch, is_train=True)
            aux.backward()
            sums = _added(sums, {n: aux.passes.read_gradients()[n] for n in sums})
            batches, pad = batches + 1, batch.pad or 0
            self._stop_if(self._flag)
        if not batches:
            raise ValueError("update_full_grads found no batch in train_data: nothing says what the full gradient is")
        self._full = _divided(sums, np.float32(batches - pad / train_data.batch_size))
        if self._kvstore is not None:
            for name in self._full:
                self._accumulate_kvstore(name, [part[name] for part in self._param_dict])
        self._taken = True

    def _accumulate_kvstore(self, key: str, value: Sequence[Any]) -> None:
        """Add up what the devices give for a full gradient in the store, and share the sum out again."""
        self._kvstore.push(key + FULL, list(value))
        self._kvstore._barrier()
        if hasattr(value[0], "value"):
            self._kvstore.pull(key + FULL, list(value))
        else:
            value = [self._kvstore.pull(key + FULL)] * len(value)
        self._allocate_gradients(key, value)

    def _allocate_gradients(self, key: str, value: Sequence[Any]) -> None:
        """Each device's part of a full gradient is 1 / devices of it: the sum over the devices is mu."""
        self._full = {**self._full, key: self._slices_of([as_array(v) / self._ctx_len for v in value[: self._ctx_len]])}

    def _update_svrg_gradients(self) -> None:
        """g <- g - g~ + mu, for the gradients of the last backward pass of both modules."""
        mine, other = self.passes.read_gradients(), {}
        if self._mod_aux.params_initialized:
            other = self._mod_aux.passes.read_gradients()
        both = [n for n in self._full if n in mine and n in other]
        mine.update(_reduced(*[{n: tree[n] for n in both} for tree in (mine, other, self._full)]))

    def update(self) -> None:
        """One update of all parameters with the reduced gradients."""
        self._update_svrg_gradients()
        super().update()

    # -------------------------------------------------------------------------------- fit
    def _begin_epoch(self, train_data: Any, epoch: int) -> None:
        if epoch % self.update_freq == 0 or not self._taken:
            self.update_full_grads(train_data)
        train_data.reset()

    def _end_epoch(self, train_data: Any) -> None:
        """The next epoch rewinds the data itself."""

    def _logged(self, eval_metric: Any) -> list[tuple[str, float]]:
        return eval_metric.get_name_value()

    def _fit_epoch(self, *args: Any, **kwargs: Any) -> list[tuple[str, float]]:
        return BaseModule._fit_epoch(self, *args, **kwargs)

    # -------------------------------------------------------------------------------- files
    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Any:
        """As `Module.load`: with `update_freq=` an SVRGModule, without it a Module, as in MXNet."""
        if "update_freq" not in kwargs:
            return cls._aux_class.load(prefix, epoch, load_optimizer_states, **kwargs)
        return super().load(prefix, epoch, load_optimizer_states, **kwargs)


@jax.jit
def _added(sums: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
    return jax.tree.map(lambda total, g: total + g.astype(total.dtype), sums, gradients)


@jax.jit
def _divided(sums: dict[str, Array], count: Any) -> dict[str, Array]:
    return jax.tree.map(lambda total: total / count.astype(total.dtype), sums)


@jax.jit
def _reduced(mine: dict[str, Array], other: dict[str, Array], full: dict[str, Array]) -> dict[str, Array]:
    return jax.tree.map(variance_reduced, mine, other, full)
