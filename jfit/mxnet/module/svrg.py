"""SVRGModule: a Module with variance-reduced gradients (SVRG), which has a second module with snapshot parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import checks
from jfit.mxnet.module.base import BaseModule, BindRequest, require
from jfit.mxnet.module.module import Module
from jfit.parallel import place, place_split


class SVRGModule(Module):
    """Module with variance-reduced gradients: g <- g_i(w) - g_i(w~) + mu is passed to the optimizer.

    w~ is a snapshot of the parameters, taken every `update_freq` epochs, and mu the full gradient there: the sum of all
    batches' gradients divided by the number of batches (the last one counted as the fraction of its rows that are not padding).
    As in MXNet, the previous mu is included: mu <- (mu + sum) / batches.

    Differences from MXNet 1.9.1, in addition to those of `Module`: parameters with "full" in their names are trained; if a
    key-value store updates, the first gradient is that of the parameters (in MXNet the devices have zeros then); `fit` with
    a begin_epoch that is not a multiple of update_freq computes the full gradient first (MXNet fails, or continues with
    mu = 0); fixed parameters are unchanged (MXNet fails); both modules use the same random numbers for a batch; `load`
    returns an SVRGModule if `update_freq` is passed (MXNet always returns a Module).

    Args:
        args, kwargs: those of `Module`; compression applies to the reduced gradients, not to mu.  group2ctxs is not supported.
        update_freq: number of epochs between full gradients, at least 1; a keyword, or the argument after compression_params.

    Raises:
        NotImplementedError: group2ctxs is passed.
        ValueError: update_freq is not an integer of at least 1.

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

    def __init__(self, *args: Any, update_freq: Any = None, **kwargs: Any) -> None:
        if len(args) > 10:  # the arguments of Module, then update_freq
            args, update_freq = args[:-1], args[-1]
        super().__init__(*args, **kwargs)
        if self.binding.groups:
            raise NotImplementedError("SVRGModule does not support group2ctxs; use Module")
        checks.positive_integer(update_freq=update_freq)
        self.update_freq = update_freq
        self._mod_aux = self._aux_class(*args, **kwargs)
        self._ctx_len = len(self.binding.devices)
        self._full: dict[str, Array] = {}  # mu by name; with a leading device axis if there are several devices
        self._up_to_date = False  # whether mu is the full gradient at the snapshot

    # -------------------------------------------------------------------------------- methods that call both modules
    def _bind(self, data_shapes: Any, label_shapes: Any, request: BindRequest) -> None:
        """Bind the module, and for training also the module with the snapshot parameters."""
        super()._bind(data_shapes, label_shapes, request)
        if request.for_training:
            shared = getattr(request.shared_module, "_mod_aux", None)
            shared = shared if shared is not None and shared.params_initialized else None
            self._mod_aux.bind(data_shapes, label_shapes, *request._replace(shared_module=shared))

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Reshape both modules, as `Module.reshape`."""
        super().reshape(data_shapes, label_shapes)
        if self._mod_aux.binded:
            self._mod_aux.reshape(data_shapes, label_shapes)

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Prepare this module and the module of the snapshot of the weights for the next batch, as `Module.prepare`."""
        super().prepare(data_batch, sparse_row_id_fn)
        if self._mod_aux.binded:
            self._mod_aux.prepare(data_batch, sparse_row_id_fn)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run the forward pass, as `Module.forward`; in training mode also that of the snapshot module."""
        super().forward(data_batch, is_train)
        aux = self._mod_aux
        if is_train:
            assert aux.params_initialized, "SVRG has no full gradient yet: call update_full_grads(train_data) before training"
        if aux.params_initialized and (self.for_training if is_train is None else is_train):
            aux._settle()
            aux.parameters.use_random_numbers_of(self.parameters)  # the variance cancels only with equal random numbers
            aux.forward(data_batch, is_train=True)

    def backward(self, out_grads: Any = None) -> None:
        """Run the backward pass of both modules, as `Module.backward`."""
        super().backward(out_grads)
        if self._mod_aux.params_initialized:
            self._mod_aux.backward(out_grads)

    # -------------------------------------------------------------------------------- optimizer
    def init_optimizer(self, *args: Any, **kwargs: Any) -> None:
        """Set the optimizer, as `Module.init_optimizer`, and reset the full gradient (mu in the formula of the class) to 0."""
        super().init_optimizer(*args, **kwargs)
        if self.parameters.workers is not None:
            raise NotImplementedError("SVRGModule does not sum its full gradients over the processes of a job; use Module")
        specs, devices, leading = self.binding.specs, self.binding.devices, (self._ctx_len,) * (self._ctx_len > 1)
        dtypes = {n: jnp.promote_types(specs[n].dtype, jnp.float32) for n in self.passes.trainable}
        zeros = {n: np.zeros((*leading, *specs[n].shape), dtype) for n, dtype in dtypes.items()}
        self._full = place_split(zeros, devices) if leading else place(zeros, devices)
        self._up_to_date = False

    # -------------------------------------------------------------------------------- the full gradient
    @property
    def _param_dict(self) -> list[dict[str, Any]]:
        """List with a dict of mu (the full gradient) by name for each device."""
        per_device = {n: [v] if self._ctx_len == 1 else list(v) for n, v in self._full.items()}
        return [{n: self.arrays.wrap(v[k]) for n, v in per_device.items()} for k in range(self._ctx_len)]

    def update_full_grads(self, train_data: Any) -> None:
        """Take the snapshot w~ of the parameters and compute the full gradient mu, in one pass over the data.

        Args:
            train_data: the iterator; it is reset first, and needs an attribute `batch_size`.

        Raises:
            ValueError: the iterator has no batches.
        """
        require(self, "update_full_grads", "binded", "params_initialized", "optimizer_initialized")
        aux, self._up_to_date = self._mod_aux, False
        aux.set_params(*self.get_params())
        train_data.reset()
        batches, pad, sums = 0, 0, self._full
        for batch in train_data:
            aux.forward(batch, is_train=True)
            aux.backward()
            sums = _added(sums, {n: aux.passes.read_gradients()[n] for n in sums})
            batches, pad = batches + 1, batch.pad or 0
            self._stop_if_asked()
        if not batches:
            raise ValueError("update_full_grads got no batches from train_data")
        self._full = _divided(sums, np.float32(batches - pad / train_data.batch_size))
        if self._kvstore is not None and self._ctx_len > 1:
            # 1 / devices of the sum on each device, so that the sum over devices is unchanged
            self._full = {n: jax.device_put(jnp.broadcast_to(v.mean(0), v.shape), v.sharding) for n, v in self._full.items()}
        self._up_to_date = True

    def _update_svrg_gradients(self) -> None:
        """Replace the gradients g of the last backward pass by g - g~ + mu, g~ those of the snapshot module."""
        gradients, at_snapshot = self.passes.read_gradients(), {}
        if self._mod_aux.params_initialized:
            at_snapshot = self._mod_aux.passes.read_gradients()
        both = [n for n in self._full if n in gradients and n in at_snapshot]
        gradients.update(_reduced(*[{n: tree[n] for n in both} for tree in (gradients, at_snapshot, self._full)]))

    def update(self) -> None:
        """Update all parameters with the variance-reduced gradients."""
        self._update_svrg_gradients()
        super().update()

    # -------------------------------------------------------------------------------- fit
    def _begin_epoch(self, train_data: Any, epoch: int) -> None:
        if epoch % self.update_freq == 0 or not self._up_to_date:
            self.update_full_grads(train_data)
        train_data.reset()

    def _end_epoch(self, train_data: Any) -> None:
        """Do nothing: the data is reset in `_begin_epoch` instead of here."""

    def _epoch_metrics(self, eval_metric: Any) -> list[tuple[str, float]]:
        return eval_metric.get_name_value()

    def _fit_epoch(self, *args: Any, **kwargs: Any) -> list[tuple[str, float]]:
        return BaseModule._fit_epoch(self, *args, **kwargs)

    # -------------------------------------------------------------------------------- files
    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Any:
        """Create a module from checkpoint files, as `Module.load`: an SVRGModule if `update_freq=` is passed, else a Module."""
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
def _reduced(gradients: dict[str, Array], at_snapshot: dict[str, Array], full: dict[str, Array]) -> dict[str, Array]:
    """Return g - g~ + mu, where g~ is the gradient of the batch of g at the snapshot, and mu the full gradient there."""

    def reduced(g: Array, at_snapshot: Array, full: Array) -> Array:
        wide = jnp.promote_types(g.dtype, jnp.float32)
        return (g.astype(wide) - at_snapshot.astype(wide) + full.astype(wide)).astype(g.dtype)

    return jax.tree.map(reduced, gradients, at_snapshot, full)
