"""Lazy evaluation of separate forward, backward and update calls, in as few compiled programs as possible.

`forward` and `backward` only record the call.  If no result is read before `update`, all three run as one program,
`jfit.step.train_step`.  If outputs are read before `backward`, a forward program runs first (with the same random numbers);
if gradients are read before `update`, a backward program and an update program run.  The results are the same in all cases.

The functions are those of `jfit.step`; `Programs` compiles and caches them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters, interrupts
from jfit.data import Batch
from jfit.lowering.model import Model, Plan
from jfit.mxnet.module.binding import Binding
from jfit.mxnet.module.ordered import check_not_ordered, ordered_groups, padded_batch, slice_rows
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.module.programs import Programs
from jfit.mxnet.module.slices import dense_rows, device_shapes, drop_rows, merge_slices, slices_of, split_slices
from jfit.mxnet.monitor.capture import capture_gradients, capture_outputs
from jfit.mxnet.mutable import MutableArray
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.optim.rows import is_rows
from jfit.parallel import Window, place_split, sharding
from jfit.step.state import TrainState


class Pass(NamedTuple):
    """A recorded forward pass.

    Attributes:
        batch: the batch; with several devices, arrays have a leading device axis.
        counts: number of rows of each device, without padding.
        train: whether it is in training mode.
        number: number of the pass within its step, from which its random key is derived.
        plan: which axis of each output is the row axis.
        ordered: whether it is a training pass with reduce="ordered".  `batch` is then the whole batch, padded; `counts` and
            `plan` are those of its virtual slices, and outputs have a leading slice axis.
    """

    batch: Batch
    counts: tuple[int, ...]
    train: bool
    number: int
    plan: Plan
    ordered: bool = False


class Passes:
    """Forward, backward and update of one bound graph, whose parameters other graphs may share.

    Args:
        bound: the graph, with its names and gradient requests.
        parameters: the parameter arrays and the optimizer.
    """

    def __init__(self, bound: Binding, parameters: Parameters) -> None:
        self.programs, self._bound = Programs(bound.model, parameters, bound.fixed_gammas, bound.replicas), bound
        self.params, self.aux, self.grad_reqs, self.trainable = bound.params, bound.aux, bound.grad_reqs, bound.trainable
        self.updated = [*bound.trainable, *bound.fixed_gammas]  # MXNet's optimizer counts updates of fixed gammas, too
        self.gradients: dict[str, Any] = {}  # with a leading device axis if there are several; SparseRows until read
        self._pass: Pass | None = None
        self._outputs: tuple[Array, ...] | None = None
        self._backward: Any = None  # pending backward pass: None if none, () without head gradients, else the head gradients
        self._window = Window()
        self._captures: dict[Any, Any] = {}

    @property
    def parameters(self) -> Parameters:
        """The parameters and optimizer, which several graphs may share."""
        return self.programs.parameters

    # -------------------------------------------------------------------------------- forward
    def forward(self, batch: Batch, counts: Sequence[int], train: bool) -> None:
        """Record a forward pass; a pending backward pass runs first."""
        self.flush()
        devices, parameters = len(self.parameters.devices), self.parameters
        axes = self.programs.model.batch_axes
        slices = parameters.slices if train else None
        if slices is not None and self.programs.replicas is not None:
            raise ordered_groups()
        counts = counts if slices is None else slice_rows(batch, slices, axes)
        plan = self.programs.plan(device_shapes(batch, counts, axes))
        if slices is not None:
            batch = padded_batch(batch, slices, axes, plan)
        elif len(set(counts)) > 1 and not plan.paddable:
            raise ValueError(f"slices of {list(counts)} rows must be padded to be equal, but {plan.reason}")
        else:
            batch = self._on_devices(split_slices(batch, counts, axes) if devices > 1 else batch)
        number = parameters.next_pass_number(train)
        self._pass = Pass(batch, tuple(counts), train, number, plan, ordered=slices is not None)
        self._outputs = self._backward = None
        parameters.waiting.add(self)

    def _on_devices(self, tree: Any) -> Any:
        """Return arrays that the programs can use: those committed to other devices, such as outputs of modules, are moved."""
        devices = self.parameters.devices
        where = sharding(devices if self.programs.replicas is None else devices[:1], split=True)
        return jax.tree.map(lambda x: jax.device_put(x, where) if isinstance(x, Array) and x.committed else x, tree)

    def outputs(self) -> tuple[Array, ...]:
        """Return the outputs of the last forward pass, with a leading device axis if there are several devices."""
        at = self._last_pass()
        if self._outputs is None and self._backward is not None:
            self.flush()
        if self._outputs is None:
            check_not_ordered(at, "outputs of a training pass are read before update()")
            state = self.view()
            run = self.programs.forward(at.train)
            outputs = run(state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number))
            self._limit_queue(outputs[0])
            self._outputs = outputs
        assert self._outputs is not None
        return self._outputs

    def materialize_outputs(self) -> None:
        """Compute pending gradients and outputs now, because the parameters are about to change."""
        self.flush()
        if self._pass is not None and self._outputs is None:
            if self._pass.ordered:
                self._pass = None  # a training pass without backward pass has no effect
            else:
                self.outputs()

    def _limit_queue(self, result: Array) -> None:
        """At every 8th dispatch, wait for the dispatch 8 before it, so that the host does not queue any number of programs.

        Args:
            result: an output of the new dispatch.
        """
        fence = self._window.push(result)
        if fence is not None:
            counters.wait(fence)  # sync: the host waits for the dispatch 8 before this one

    def merged(self, without: int = 0) -> list[Array]:
        """Return the outputs for the whole batch, without its last `without` rows."""
        outputs, last, rows = self.outputs(), self._last_pass(), self._rows()
        several = len(last.counts) > 1 or last.ordered
        whole = list(merge_slices(outputs, rows, last.counts)) if several else list(outputs)
        return [drop_rows(out, where, sum(last.counts), without) for out, where in zip(whole, rows, strict=True)]

    def whole_inputs(self) -> dict[str, Any]:
        """Return the inputs of the last forward pass for the whole batch by name, without padding rows."""
        if self._pass is None:
            return {}
        axes, counts, inputs = self.programs.model.batch_axes, self._pass.counts, self._pass.batch.inputs
        if self._pass.ordered:
            return {k: v[(*(slice(None),) * axes.get(k, 0), slice(sum(counts)))] for k, v in inputs.items()}
        if len(counts) == 1:
            return dict(inputs)
        cut = {
            k: [np.take(p, np.arange(c), axes.get(k, 0)) for p, c in zip(v, counts, strict=True)]
            for k, v in counters.read(inputs).items()  # sync: a monitor reads the whole batch
        }
        return {k: np.concatenate(parts, axes.get(k, 0)) for k, parts in cut.items()}

    def captured(self, kind: str, monitor: Any, heads: Sequence[Any]) -> list[dict[str, Array]]:
        """Compute the internal arrays of the current pass that a monitor needs: one dict by name for each device.

        Args:
            kind: "outputs" (of a training pass), "eval_outputs", or "gradients".
            monitor: a Monitor, whose `pattern` and `monitor_all` select the arrays.
            heads: [head gradients], or [].
        """
        at, state, bound = self._last_pass(), self.view(), self._bound
        check_not_ordered(at, "a monitor reads the internal arrays of each device")
        key = ("monitor", kind, bool(heads), monitor.pattern, monitor.monitor_all)
        if key not in self._captures:
            inputs = [n for n in (*bound.data_names, *bound.label_names, *bound.state_names) if n in bound.arguments]
            if kind == "gradients":
                self._captures[key] = capture_gradients(bound.symbol, inputs, monitor.pattern)
            else:
                train = kind == "outputs"
                self._captures[key] = capture_outputs(bound.symbol, inputs, monitor.pattern, monitor.monitor_all, train)
        capture = self._captures[key]
        if not capture.names:
            return []
        split = [tuple(self._split_head_gradient(g, w, at.counts) for g, w in zip(h, at.plan.rows, strict=True)) for h in heads]
        args = (state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number), *split)
        devices, run = len(self.parameters.devices), self.programs.captured(key, capture.raw, len(heads))
        arrays = run(*args)
        if not isinstance(arrays, list):
            arrays = [arrays] if devices == 1 else [{n: v[d] for n, v in arrays.items()} for d in range(devices)]
        return [{n: of_device[n] for n in capture.names if n in of_device} for of_device in arrays]

    def sliced(self) -> list[list[Array]]:
        """Return for each output a list with the slice of each device."""
        outputs, at = self.outputs(), self._last_pass()
        check_not_ordered(at, "get_outputs(merge_multi_context=False) reads the outputs of each context")
        if len(at.counts) == 1:
            return [[out] for out in outputs]
        return [self._per_device(out, where, at.counts) for out, where in zip(outputs, self._rows(), strict=True)]

    def _per_device(self, out: Array, where: MaybeLayout, counts: Sequence[int]) -> list[Array]:
        """Return the slice of each device without padding rows, placed on that device.

        where: `RowLayout` of the output: which of its axes has the batch rows.  counts: number of rows of each device.
        """
        pieces = slices_of(out, where, counts)
        return [jax.device_put(piece, device) for piece, device in zip(pieces, self.parameters.devices, strict=True)]

    def _rows(self) -> tuple[MaybeLayout, ...]:
        # None instead of LOST (no axis holds the batch rows): the outputs of several devices are then concatenated along
        # axis 0, as MXNet does with all outputs.
        return tuple(None if r is LOST else r for r in self._last_pass().plan.rows)

    def _last_pass(self) -> Pass:
        if self._pass is None:
            raise RuntimeError("the module has no outputs yet; call forward(batch) first")
        return self._pass

    # -------------------------------------------------------------------------------- backward
    def backward(self, out_grads: Sequence[Any] | None) -> None:
        """Record the backward pass of the last forward pass."""
        at = self._last_pass()
        if not at.train:
            raise RuntimeError("backward() needs a forward pass in training mode; call forward(batch, is_train=True) first")
        if out_grads is not None:
            check_not_ordered(at, "backward(out_grads) takes the gradients of the outputs, which were computed before")
        self.flush()  # every backward pass has effects: it adds to gradients ("add") and updates moving statistics
        model = self.programs.model
        if out_grads is None:
            plain = [o.name for i, o in enumerate(model.outputs) if o.kind == "plain" and not _blocked(model, i)]
            if plain:
                raise ValueError(f"backward(): output {plain[0]!r} is not a loss, so its gradient is unknown; pass out_grads")
            self._backward = ()
            return
        if len(out_grads) != len(model.outputs):
            names = [o.name for o in model.outputs]
            raise ValueError(f"out_grads has {len(out_grads)} arrays, expected one for each output: {names}")
        split = tuple(self._split_head_gradient(g, where, at.counts) for g, where in zip(out_grads, at.plan.rows, strict=True))
        self._backward = self._on_devices(split)

    def _split_head_gradient(self, gradient: Any, where: MaybeLayout, counts: tuple[int, ...]) -> Any:
        """Split the gradient of an output over devices: (rows, ...) -> (devices, n, ...), unchanged for one device.

        n is the largest number of rows of a device; devices with fewer rows have padding rows with gradient 0.

        Args:
            gradient: gradient of the loss with respect to the output of the whole batch.
            where: row layout of the output; None or LOST if no axis holds the batch rows.
            counts: number of rows of each device.

        Raises:
            ValueError: there are several devices, and the output does not have the rows in order along one axis.
        """
        value = jnp.asarray(gradient)
        if len(counts) == 1:
            return value
        if not isinstance(where, RowLayout) or where.before != 1:
            problem = "the output does not have the rows of the batch in order along one axis"
            raise ValueError(f"out_grads of shape {value.shape} cannot be split over {len(counts)} devices: {problem}")
        batch = Batch({"gradient": value})
        scaled = [c * where.after for c in counts]
        split = split_slices(batch, scaled, {"gradient": where.axis})
        slices = split.inputs["gradient"]
        if split.weight is None:
            return slices
        shape = (*split.weight.shape[:1], *(split.weight.shape[1] if k == where.axis else 1 for k in range(slices.ndim - 1)))
        return jnp.where(split.weight.reshape(shape) > 0, slices, 0)

    def flush(self) -> None:
        """Run the pending backward pass, if any."""
        if self._backward is None:
            return
        at, heads, state = self._last_pass(), self._backward, self.view()
        self._backward = None
        check_not_ordered(at, "gradients are read, or another pass or new parameters follow backward() without update()")
        wrt = tuple(sorted(self.grad_reqs))
        run = self.programs.gradients(wrt, bool(heads))
        args = (state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number))
        outputs, gradients, aux = run(*args, heads) if heads else run(*args)
        if self.programs.replicas is not None and not self.parameters.grouped:  # only other graphs have no groups
            gradients, aux = place_split(gradients, self.parameters.devices), self.parameters.place(aux)
        self._limit_queue(outputs[0])
        if self._outputs is None:  # outputs that were read before are kept, even if the parameters have changed since
            self._outputs = outputs
        whole = self.parameters.state
        self.parameters.state = whole._replace(aux={**whole.aux, **aux})
        for name, gradient in gradients.items():
            old = self.read_gradients().get(name) if self.grad_reqs[name] == "add" else None
            gradient = gradient if old is None else dense_gradient(self.parameters, name, gradient)
            self.gradients[name] = gradient if old is None or old.shape != gradient.shape else _add(old, gradient)

    def read_gradients(self) -> dict[str, Array]:
        """Return the gradients by name as dense arrays, after running a pending backward pass."""
        self.flush()
        check_not_ordered(self._pass, "gradients are read, which it does not keep")
        self.gradients.update({n: dense_gradient(self.parameters, n, g) for n, g in self.gradients.items()})
        return self.gradients

    def discard_results(self) -> None:
        """Drop outputs and gradients, because EpochRunner runs further steps without keeping their outputs and gradients."""
        self._pass, self._outputs, self._backward = None, None, None
        self.gradients.clear()

    def gradient_slices(self, name: str) -> list[Array]:
        """Return the gradient of a parameter on each device, a list; zeros before the first backward pass."""
        gradients = self.read_gradients()
        devices = len(self.parameters.devices)
        if name not in gradients:
            state = self.view()
            param = state.params[name]
            zero = jnp.zeros(param.shape[1:] if self.parameters.split else param.shape, param.dtype)
            return [zero] * devices
        return [gradients[name]] if devices == 1 else list(gradients[name])

    def input_gradient(self, name: str) -> list[Array]:
        """Return the gradient of an input on each device, a list, without padding rows."""
        gradient, at = self._input_gradient(name)
        return [gradient] if len(at.counts) == 1 else self._per_device(gradient, self._input_rows(name), at.counts)

    def whole_input_gradient(self, name: str) -> Array:
        """Return the gradient of an input for the whole batch, without copying it to the host."""
        gradient, at = self._input_gradient(name)
        return gradient if len(at.counts) == 1 else merge_slices((gradient,), (self._input_rows(name),), at.counts)[0]

    def _input_gradient(self, name: str) -> tuple[Array, Pass]:
        gradients, at = self.read_gradients(), self._last_pass()
        if name not in gradients:
            raise RuntimeError(f"there is no gradient of input {name!r} yet; call forward(batch, is_train=True) and backward()")
        return gradients[name], at

    def _input_rows(self, name: str) -> RowLayout:
        return RowLayout(self.programs.model.batch_axes.get(name, 0), 1, max(self._last_pass().counts), 1)

    def set_gradient(self, name: str, slices: Sequence[Any]) -> None:
        """Replace the gradient of a parameter by `slices`, one array for each device."""
        self.flush()
        values = [jnp.asarray(s) for s in slices]
        if len(values) == 1:
            self.gradients[name] = values[0]
        else:
            self.gradients.update(self.parameters.place_slices({name: np.stack(counters.read(values))}))

    # -------------------------------------------------------------------------------- update
    @property
    def is_one_program(self) -> bool:
        """Whether a whole training step can be one program, which returns no gradients of inputs and adds up none."""
        optimizer, reqs = self.parameters.optimizer, self.grad_reqs
        return (
            optimizer is not None
            and optimizer.is_pure
            and self.programs.replicas is None
            and self.parameters.workers is None  # which sum gradients between two programs
            and set(reqs) == set(self.trainable)
            and "add" not in reqs.values()
        )

    def update(self) -> None:
        """Update the parameters: in one program with pending forward and backward passes, or from gradients computed before."""
        self.parameters.materialize_pending(except_for=self)
        if not self.trainable:
            self.flush()
            return
        nothing_read = self._backward == () and self._outputs is None and self._last_pass().number == 0
        if nothing_read and self.is_one_program:
            self._step()
        else:
            self._update_from_gradients()

    def _update_from_gradients(self) -> None:
        """Update the parameters with the gradients of the last backward pass, which runs first if it is pending."""
        parameters, workers = self.parameters, self.parameters.workers
        check_not_ordered(self._pass, "there is no new backward pass, or grad_req='add', or inputs_need_grad=True")
        self.materialize_outputs()
        missing = [n for n in self.trainable if n not in self.gradients]
        if missing:
            raise RuntimeError(f"update() has no gradient for {missing[:1]}: call forward(batch, is_train=True) and backward()")
        gradients: Any = {n: self.gradients[n] for n in self.trainable}
        if workers is not None:
            gradients = workers.reduced(parameters, gradients, self.aux)
        if not parameters.optimizer.is_pure:
            self._update_in_python(gradients, several=len(parameters.devices) > 1 and workers is None)
            return
        if workers is not None:
            gradients = workers.arguments(gradients, parameters.grouped)
        with interrupts.defer_interrupts():  # the host's update counts and the state change together
            parameters.begin_update(self.trainable, self.updated)
            parameters.run(self, self.programs.update(summed=workers is not None), gradients)

    def _step(self) -> None:
        parameters, at = self.parameters, self._last_pass()
        self._backward = None  # before running: a step that fails must not be retried with the next batch
        with interrupts.defer_interrupts():  # the host's update counts and the state change together
            parameters.begin_update(self.trainable, self.updated)
            out = parameters.run(self, self.programs.ordered() if at.ordered else self.programs.step(), at.batch)
            self._outputs = out.outputs
            self.gradients.update(out.gradients or {})
        self._limit_queue(out.fence)

    def _update_in_python(self, gradients: Mapping[str, Array], several: bool) -> None:
        """Run a user-defined optimizer's `update(index, weight, grad, state)` on the host; fixed gammas always stay 1.

        several: whether gradients have a leading device axis.
        """
        parameters = self.parameters
        if parameters.split:
            raise NotImplementedError("a user-defined optimizer class does not support kvstore=None on several devices")
        if parameters.state.local is not None:
            raise NotImplementedError("a user-defined optimizer class does not support gradient compression")
        gradients = {n: dense_gradient(parameters, n, g, several) for n, g in gradients.items()}
        params, _ = parameters.arrays()
        new: dict[str, Any] = {}
        number = {name: i for i, name in enumerate(parameters.names)}
        for name in sorted(self.updated, key=number.__getitem__):
            gradient = gradients.get(name, jnp.zeros_like(params[name]))
            if parameters.grouped:
                gradient = jax.device_put(gradient, parameters.devices[0])
            if several and name in gradients:
                gradient = jnp.sum(jax.device_put(gradient, parameters.devices[0]), axis=0)
            weight = parameters.mutable(params[name])
            parameters.updater(parameters.index(name), parameters.mutable(gradient), weight)
            if name in gradients:
                new[name] = weight.value if isinstance(weight, MutableArray) else weight
        parameters.replace_params(new)
        parameters.passes = 0

    def view(self) -> TrainState:
        """Return the part of the shared TrainState that this graph uses."""
        return self.parameters.view(self.params, self.aux, self.trainable)


@jax.jit
def _add(a: Array, b: Array) -> Array:
    return a + b


def _blocked(model: Model, index: int) -> bool:
    """Return whether output `index` blocks gradients (BlockGrad), so that it needs no head gradient."""
    symbol = model.symbol
    return symbol is not None and index < len(symbol.heads) and getattr(symbol.heads[index].node.op, "name", "") == "BlockGrad"


def dense_gradient(parameters: Parameters, name: str, gradient: Any, several: bool | None = None) -> Any:
    """Return a gradient as a dense array (it may be SparseRows).

    several: whether it has a leading device axis; None: if there are several devices.
    """
    if not is_rows(gradient):
        return gradient
    size = parameters.state.params[name].shape[int(parameters.split)]
    return dense_rows(gradient, size, several=len(parameters.devices) > 1 if several is None else several)
