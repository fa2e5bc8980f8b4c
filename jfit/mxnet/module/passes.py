"""Forward, backward and update of one bound graph, recorded as `jfit.mxnet.deferred` describes.

`forward` and `backward` only record the call.  If no result is read before `update`, all three run as one program,
`jfit.step.train_step`.  If outputs are read before `backward`, a forward program runs first (with the same random numbers);
if gradients are read before `update`, a backward program and an update program run.  The results are the same in all cases.

The functions are those of `jfit.step`; `Programs` compiles and caches them: forward pass, gradients, update, and whole training
steps.  Who owns what: `Parameters` the arrays, the optimizer and its state; `Passes` the recorded passes and their gradients,
of which parameters know nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters, interrupts
from jfit.data.batch import Batch
from jfit.lowering.model import Model
from jfit.mxnet.deferred import Deferred
from jfit.mxnet.errors import MissingGradient
from jfit.mxnet.module.binding import Binding
from jfit.mxnet.module.groups import Replicas, update_by_device
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.module.slices import dense_rows, drop_rows, merge_slices, slices_of, split_slices
from jfit.mxnet.monitor.capture import capture_gradients, capture_outputs
from jfit.mxnet.mutable import MutableArray
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.optim.rows import is_rows, stored_rows
from jfit.parallel import Window, compile_spmd, place, place_split, sharding
from jfit.programs import Made
from jfit.step import StepOut, forward_step, gradient_step, train_step, update_step
from jfit.step.reduce import Reduce
from jfit.step.state import TrainState

Program = Callable[..., Any]
# gradients that were summed before the program
_SUMMED = Reduce(lambda gradients: None, lambda gradients, sums, local, axis_name: (gradients, sums, local))


class Programs:
    """The compiled programs of a model, cached and compiled at first use.

    Args:
        model: the lowered graph.
        parameters: the parameters and optimizer.
        fixed_gammas: names of BatchNorm gammas that are always 1.
        replicas: the models of a graph whose `ctx_group`s are on different devices, one for each context; else None.
    """

    def __init__(
        self, model: Model, parameters: Parameters, fixed_gammas: Sequence[str] = (), replicas: Replicas | None = None
    ) -> None:
        self.model, self.parameters, self.fixed_gammas, self.replicas = model, parameters, list(fixed_gammas), replicas
        self._made: dict[Any, Program] = {}

    def axes(self) -> tuple[int | None, TrainState]:
        """Return the axes of (parameters, TrainState) as for vmap: 0 for a leading device axis, None for replicated arrays."""
        axis = 0 if self.parameters.split else None
        return axis, TrainState(None, axis, None, axis, None, None, None, 0)  # type: ignore[arg-type]

    def _once(self, key: Any, make: Callable[[], Program]) -> Program:
        """Return `make()`, made at the first use of `key`."""
        key = (key, self.parameters.split)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def compiled(self, key: Any, make: Callable[[], tuple[Any, ...]], name: str, donate: tuple[int, ...] = ()) -> Program:
        """Return the program of `key`; at its first use it is compiled from `make()`, (function, in_axes, out_axes).

        name: name of the program.  donate: indices of the arguments whose buffers it may reuse.
        """

        def compiled() -> Program:
            fn, in_axes, out_axes = make()
            how: Any = {"donate": donate, "name": name, "recomputes": "recomputed" in self.model.traits}
            return compile_spmd(fn, self.parameters.devices, in_axes, out_axes, **how)

        return self._once(key, compiled)

    def of_pass(self, key: Any, fn: Callable[[], Any], out_axes: Any, name: str, heads: int = 0) -> Program:
        """Return the program (params, aux, batch, key, step, number, *head gradients) of the function `fn()`.

        heads: number of its last arguments, 0 or 1.
        """
        return self.compiled(key, lambda: (fn(), (self.axes()[0], None, 0, None, None, None, *[0] * heads), out_axes), name)

    def forward(self, train: bool) -> Program:
        """Return the program (params, aux, batch, key, step, number) -> outputs with a leading device axis."""
        key, replicas = ("forward", train), self.replicas
        if replicas is not None:
            return self._once(key, lambda: replicas.forward(train, self.parameters.split))
        return self.of_pass(key, lambda: forward_step(self.model, train=train), 0, "forward")

    def gradients(self, wrt: tuple[str, ...], heads: bool) -> Program:
        """Return the program (params, aux, batch, key, step, number[, head gradients]) -> (outputs, gradients, new aux).

        wrt: names to differentiate with respect to.  heads: whether it takes head gradients (those of the outputs).
        """
        key, replicas = ("gradients", wrt, heads), self.replicas
        if replicas is not None:
            return self._once(key, lambda: replicas.gradients(wrt, self.parameters.split))
        return self.of_pass(key, lambda: gradient_step(self.model, wrt, by_rows=True), (0, 0, None), "gradients", int(heads))

    def step(self) -> Program:
        """Return the program (state, batch, rescale) -> (state, StepOut), one whole training step; it donates the state."""

        def make():
            train = self.raw_step(outputs=True, gradients=True)

            def fn(state: TrainState, batch: Any, rescale: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
                # The barrier makes results bitwise equal to those of EpochRunner's programs, which need one, too.
                state, batch = lax.optimization_barrier((state, batch))
                return train(rescale=rescale)(state, batch, axis_name=axis_name)

            axes = self.axes()[1]
            return Made(fn, "step", train), (axes, 0, None), (axes, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]

        return self.compiled(("step", self.setting()), make, "module_step", donate=(0,))

    def raw_step(self, **options: Any) -> Callable[..., Any]:
        """Return `jfit.step.train_step`, not compiled, with the module's optimizer and gradient reduction; pass `rescale=`.

        It refers neither to the module nor to its arrays: programs with equal ones are the same, see `jfit.programs.key_of`.
        """
        optimizer, reduce = self.parameters.resolved(self.fixed_gammas), self.parameters.reduce
        return functools.partial(train_step, self.model, optimizer, reduce=reduce, **options)

    def update(self, summed: bool = False) -> Program:
        """Return the program (state, gradients, rescale) -> state; it donates the state.

        summed: whether the gradients are sums over all devices, from `Workers`; otherwise they have a leading device axis, if
            there are several devices.
        """
        several = len(self.parameters.devices) > 1 and not self.parameters.grouped

        def make():
            optimizer, reduce = self.parameters.resolved(self.fixed_gammas), self.parameters.reduce
            reduce = _SUMMED if summed else reduce
            table_names = frozenset(self.model.tables)

            def fn(state: TrainState, gradients: Any, rescale: Any, *, axis_name: str | None = None) -> TrainState:
                if summed and several:
                    gradients = gradients[0]
                step = update_step(optimizer, rescale=rescale, reduce=reduce)
                # Gradients of embedding tables that were read or written are dense; convert them back to their nonzero rows.
                tables = {k: stored_rows(g) for k, g in gradients.items() if k in table_names and not is_rows(g)}
                return step(state, {**gradients, **tables}, axis_name=axis_name)

            axes = self.axes()[1]
            split: Any = (None, 0) if several else None  # pmap needs an argument with a device axis
            keyed = Made(fn, "update", optimizer, "summed" if summed else reduce, table_names, several)
            return keyed, (axes, split if summed else 0, None), axes

        key = ("update", summed, self.setting())
        if self.parameters.grouped:
            return self._once(key, lambda: self._update_by_device(make()[0], summed))
        return self.compiled(key, make, "module_update", donate=(0,))

    def _update_by_device(self, update: Program, summed: bool) -> Program:
        parameters = self.parameters
        together = bool(parameters.turns(self.fixed_gammas)) or bool(parameters.state.opt_state.shared)
        contexts = 1 if summed else len(parameters.devices)
        return update_by_device(update, parameters.placement, together, contexts, parameters.split)

    def setting(self) -> Any:
        """Return the hyperparameters that are constants of the compiled update; part of its cache key."""
        optimizer = self.parameters.optimizer
        return optimizer.hyper_key(self.parameters.turns(self.fixed_gammas)), self.parameters.reduce


class Pass(NamedTuple):
    """A recorded forward pass.

    Attributes:
        batch: the batch; with several devices, arrays have a leading device axis.
        counts: number of rows of each device, without padding.
        train: whether it is in training mode.
        number: number of the pass within its step, from which its random key is derived.
    """

    batch: Batch
    counts: tuple[int, ...]
    train: bool
    number: int

    @property
    def specs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of each input on one device, for the largest slice."""
        split, inputs = int(len(self.counts) > 1), self.batch.inputs
        return {n: jax.ShapeDtypeStruct(x.shape[split:], jax.dtypes.canonicalize_dtype(x.dtype)) for n, x in inputs.items()}


class GatheredPass(Pass):
    """A pass of EpochRunner, whose programs gather their batch; the first field is a function that makes it again."""

    batch = property(lambda self: self[0]())  # type: ignore[assignment]


class Passes:
    """Forward, backward and update of one bound graph, whose parameters other graphs may share.

    Args:
        bound: the graph, with its names and gradient requests.
        parameters: the parameter arrays and the optimizer.
    """

    def __init__(self, bound: Binding, parameters: Parameters) -> None:
        self.programs, self._bound = Programs(bound.model, parameters, bound.fixed_gammas, bound.replicas), bound
        self.parameters, self.grad_reqs, self.trainable = parameters, bound.grad_reqs, bound.trainable
        self.updated = [*bound.trainable, *bound.fixed_gammas]  # MXNet's optimizer counts updates of fixed gammas, too
        self.gradients: dict[str, Any] = {}  # with a leading device axis if there are several; SparseRows until read
        self._pass: Pass | None = None
        self._deferred = Deferred(None)  # the computation of `_pass`
        self._window = Window()
        self._captures: dict[Any, Any] = {}

    # -------------------------------------------------------------------------------- forward
    def forward(self, batch: Batch, counts: Sequence[int], train: bool) -> None:
        """Record a forward pass; pending backward passes of all modules with these parameters run first."""
        parameters = self.parameters
        parameters.pending.settle()
        at = Pass(self.split(batch, counts), tuple(counts), train, 0)
        if len(set(counts)) > 1 and not (plan := self.programs.model.plan(at.specs)).paddable:
            raise ValueError(f"slices of {list(counts)} rows must be padded to be equal, but {plan.reason}")
        self._pass = at = at._replace(number=parameters.next_pass_number(train))
        self._deferred = Deferred(functools.partial(self._run_forward, at))
        parameters.pending.add(self._deferred)

    def split(self, batch: Batch, counts: Sequence[int]) -> Batch:
        """Return a batch as the programs take it: slices of `counts` rows, on the devices if it is committed to others."""
        return self._on_devices(split_slices(batch, counts, self.programs.model.batch_axes))

    def _on_devices(self, tree: Any) -> Any:
        """Return arrays that the programs can use: those committed to other devices, such as outputs of modules, are moved."""
        devices = self.parameters.devices
        where = sharding(devices if self.programs.replicas is None else devices[:1], split=True)
        return jax.tree.map(lambda x: jax.device_put(x, where) if isinstance(x, Array) and x.committed else x, tree)

    def _run_forward(self, at: Pass) -> tuple[Array, ...]:
        outputs = self.programs.forward(at.train)(*self._arguments(at))
        self.limit_queue(outputs[0])
        return outputs

    def _arguments(self, at: Pass) -> tuple[Any, ...]:
        """Return the arguments of the programs of a pass, see `jfit.step.forward_step`."""
        state = self.view()
        return state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number)

    def limit_queue(self, result: Array) -> None:
        """At every 8th dispatch, wait for the dispatch 8 before it, so that the host does not queue any number of programs.

        Args:
            result: an output of the new dispatch.
        """
        fence = self._window.push(result)
        if fence is not None:
            counters.wait(fence)  # sync: the host waits for the dispatch 8 before this one

    def _last_pass(self) -> Pass:
        if self._pass is None:
            raise RuntimeError("the module has no outputs yet; call forward(batch) first")
        return self._pass

    def keep(self, at: Pass, results: Callable[[], Any]) -> Deferred:
        """Keep a step that EpochRunner ran; `results()` returns its outputs and gradients when they are read."""

        def run() -> Any:
            outputs, gradients = results()
            self.gradients.update(gradients)
            return outputs

        self._pass, self._deferred = at, Deferred(None)
        self._deferred.backward(run)
        self.parameters.pending.add(self._deferred)
        return self._deferred

    def gather(self) -> None:
        """Make the batch of a kept pass now, so that the pass does not keep all rows of the data in memory."""
        if isinstance(self._pass, GatheredPass):
            self._pass = Pass(self._pass.batch, *self._pass[1:])

    def discard_results(self) -> None:
        """Drop outputs and gradients, because EpochRunner runs further steps without keeping their outputs and gradients."""
        self._pass, self._deferred = None, Deferred(None)
        self.gradients.clear()

    # -------------------------------------------------------------------------------- results
    def outputs(self) -> tuple[Array, ...]:
        """Return the outputs of the last forward pass, with a leading device axis if there are several devices."""
        self._last_pass()
        return self._deferred.outputs()

    def merged(self, without: int = 0) -> list[Array]:
        """Return the outputs for the whole batch, without its last `without` rows."""
        outputs, at = self.outputs(), self._last_pass()
        if not without and len(at.counts) == 1:
            return list(outputs)
        whole, rows, size = self._whole(outputs, self._rows()), self._rows(), sum(at.counts)
        return [drop_rows(out, where, size, without) for out, where in zip(whole, rows, strict=True)] if without else whole

    def sliced(self) -> list[list[Array]]:
        """Return for each output a list with the slice of each device."""
        return self._per_device(self.outputs(), self._rows())

    def input_gradients(self, names: Sequence[str], merge: bool) -> list[Any]:
        """Return the gradients of inputs without padding rows.

        merge: for the whole batch, without a copy to the host; otherwise for each input a list with those of each device.
        """
        gradients, counts, axes = self.read_gradients(), self._last_pass().counts, self.programs.model.batch_axes
        _check_computed(gradients, names)
        rows = tuple(RowLayout(axes.get(n, 0), 1, max(counts), 1) for n in names)
        return (self._whole if merge else self._per_device)([gradients[n] for n in names], rows)

    def _whole(self, arrays: Sequence[Array], rows: tuple[MaybeLayout, ...]) -> list[Array]:
        """Return arrays for the whole batch; `rows` says which of their axes has the batch rows."""
        counts = self._last_pass().counts
        return list(merge_slices(tuple(arrays), rows, counts)) if len(counts) > 1 else list(arrays)

    def _per_device(self, arrays: Sequence[Array], rows: Sequence[MaybeLayout]) -> list[list[Array]]:
        """Return for each array the slice of each device without padding rows, on that device; arguments as for `_whole`."""
        counts = self._last_pass().counts
        if len(counts) == 1:
            return [[array] for array in arrays]
        slices = [slices_of(array, where, counts) for array, where in zip(arrays, rows, strict=True)]
        return [[jax.device_put(x, d) for x, d in zip(each, self.parameters.devices, strict=True)] for each in slices]

    def _rows(self) -> tuple[MaybeLayout, ...]:
        # None instead of LOST (no axis holds the batch rows): the outputs of several devices are then concatenated along
        # axis 0, as MXNet does with all outputs.
        return tuple(None if r is LOST else r for r in self.programs.model.plan(self._last_pass().specs).rows)

    def captured(self, kind: str, monitor: Any, heads: Sequence[Any] | None = None) -> list[dict[str, Array]]:
        """Compute the internal arrays of the current pass that a monitor needs: one dict by name for each device.

        Args:
            kind: "outputs" (of a training pass), "eval_outputs", or "gradients".
            monitor: a Monitor, whose `pattern` and `monitor_all` select the arrays.
            heads: head gradients, if they were passed to `backward`.
        """
        at, bound = self._last_pass(), self._bound
        key = ("monitor", kind, heads is not None, monitor.pattern, monitor.monitor_all)
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
        more = () if heads is None else (self._split_head_gradients(heads),)
        params, aux, *rest = self._arguments(at)
        devices = self.parameters.devices
        if self.parameters.grouped:  # without groups, so that one program has all arrays
            params = place_split(params, devices) if self.parameters.split else place(params, devices)
            aux, rest[0] = place(aux, devices), jax.device_put(rest[0], sharding(devices, split=True))
        program = self.programs.of_pass(key, lambda: capture.raw, 0, "monitor", len(more))
        whole = program(params, aux, *rest, *more)
        arrays = [whole] if len(devices) == 1 else [{n: v[d] for n, v in whole.items()} for d in range(len(devices))]
        return [{n: of_device[n] for n in capture.names if n in of_device} for of_device in arrays]

    # -------------------------------------------------------------------------------- backward
    def backward(self, out_grads: Sequence[Any] | None) -> None:
        """Record the backward pass of the last forward pass."""
        at, model = self._last_pass(), self.programs.model
        if not at.train:
            raise RuntimeError("backward() needs a forward pass in training mode; call forward(batch, is_train=True) first")
        if out_grads is None:
            plain = [o.name for i, o in enumerate(model.outputs) if o.kind == "plain" and not _blocked(model, i)]
            if plain:
                raise MissingGradient(f"backward(): output {plain[0]!r} is not a loss, its gradient is unknown; pass out_grads")
            heads = ()
        elif len(out_grads) != len(model.outputs):
            names = [o.name for o in model.outputs]
            raise ValueError(f"out_grads has {len(out_grads)} arrays, expected one for each output: {names}")
        else:
            heads = (self._on_devices(self._split_head_gradients(out_grads)),)
        run = functools.partial(self._run_backward, at, heads)
        self._deferred.backward(run, part_of_step=not heads and at.number == 0)

    def _split_head_gradients(self, gradients: Sequence[Any]) -> tuple[Array, ...]:
        """Split the gradients of the outputs over devices: (rows, ...) -> (devices, n, ...), unchanged for one device.

        n is the largest number of rows of a device; devices with fewer rows have padding rows with gradient 0.

        Raises:
            ValueError: there are several devices, and an output does not have the rows in order along one axis.
        """
        at = self._last_pass()
        values = [jnp.asarray(gradient) for gradient in gradients]
        if len(at.counts) == 1:
            return tuple(values)
        rows = self.programs.model.plan(at.specs).rows
        return tuple(_split_head_gradient(v, where, at.counts) for v, where in zip(values, rows, strict=True))

    def _run_backward(self, at: Pass, heads: tuple[Any, ...]) -> tuple[Array, ...]:
        """Run both passes, store the gradients and the new auxiliary states, and return the outputs."""
        run, parameters = self.programs.gradients(tuple(sorted(self.grad_reqs)), bool(heads)), self.parameters
        outputs, gradients, aux = run(*self._arguments(at), *heads)
        if self.programs.replicas is not None and not parameters.grouped:  # only other graphs have no groups
            gradients, aux = place_split(gradients, parameters.devices), parameters.place(aux)
        self.limit_queue(outputs[0])
        if aux:
            parameters.pending.forward(except_for=self._deferred)
        parameters.state = parameters.state._replace(aux={**parameters.state.aux, **aux})
        for name, gradient in gradients.items():
            old = self._dense(name, self.gradients.get(name)) if self.grad_reqs[name] == "add" else None
            if old is not None:
                gradient = self._dense(name, gradient)
                gradient = _add(old, gradient) if old.shape == gradient.shape else gradient
            self.gradients[name] = gradient
        return outputs

    def settle(self) -> None:
        """Run the pending backward pass, if any."""
        self._deferred.settle()

    def read_gradients(self) -> dict[str, Array]:
        """Return the gradients by name as dense arrays, after running a pending backward pass."""
        self.settle()
        self.gradients.update({n: self._dense(n, g) for n, g in self.gradients.items()})
        return self.gradients

    def gradient_slices(self, name: str) -> list[Array]:
        """Return the gradient of a parameter on each device, a list; zeros before the first backward pass."""
        gradients, devices = self.read_gradients(), len(self.parameters.devices)
        if name not in gradients:
            param = self.parameters.state.params[name]
            return [jnp.zeros(param.shape[int(self.parameters.split) :], param.dtype)] * devices
        return [gradients[name]] if devices == 1 else list(gradients[name])

    def start_gradients(self) -> None:
        """Set all gradients to 0 if there was no pass yet, as MXNet's are after `bind`."""
        for name in self.trainable if self._pass is None else ():
            self.set_gradient(name, self.gradient_slices(name))

    def set_gradient(self, name: str, slices: Sequence[Any]) -> None:
        """Replace the gradient of a parameter by `slices`, one array for each device."""
        self.settle()
        values = [jnp.asarray(s) for s in slices]
        if len(values) == 1:
            self.gradients[name] = values[0]
        else:
            self.gradients.update(self.parameters.place_slices({name: np.stack(counters.read(values))}))

    def _dense(self, name: str, gradient: Any, several: bool | None = None) -> Any:
        """Return a gradient as a dense array (it may be SparseRows).

        several: whether it has a leading device axis; None: if there are several devices.
        """
        if not is_rows(gradient):
            return gradient
        parameters = self.parameters
        size = parameters.state.params[name].shape[int(parameters.split)]
        return dense_rows(gradient, size, several=len(parameters.devices) > 1 if several is None else several)

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
        self.parameters.pending.materialize(except_for=self._deferred)
        if not self.trainable:
            self.settle()
        elif self.is_one_program and self._deferred.take():
            self._step()
        else:
            self._update_from_gradients()

    def _step(self) -> None:
        out = self._advance(self.programs.step(), self._last_pass().batch)
        self._deferred.finish(out.outputs)
        self.gradients.update(out.gradients or {})
        self.limit_queue(out.fence)

    def _update_from_gradients(self) -> None:
        """Update the parameters with the gradients of the last backward pass, which runs first if it is pending."""
        parameters, workers = self.parameters, self.parameters.workers
        self._deferred.materialize()
        _check_computed(self.gradients, self.trainable)
        gradients: Any = {n: self.gradients[n] for n in self.trainable}
        if workers is not None:
            gradients = workers.reduced(parameters, gradients, self._bound.aux)
        if not parameters.optimizer.is_pure:
            self._update_in_python(gradients, several=len(parameters.devices) > 1 and workers is None)
            return
        if workers is not None:
            gradients = workers.arguments(gradients, parameters.grouped)
        self._advance(self.programs.update(summed=workers is not None), gradients)

    def _advance(self, program: Callable[..., Any], *args: Any) -> Any:
        """Count an update and run its program."""
        with interrupts.defer_interrupts():  # the host's update counts and the state change together
            self.parameters.begin_update(self.trainable, self.updated)
            return self.run(program, *args)

    def run(self, program: Callable[..., Any], *args: Any, count: int = 1) -> Any:
        """Run `program(state, *args, rescale)`, which donates the state, and store the state it returns.

        Called in `defer_interrupts`, because the old state's buffers are gone before the new state is stored.  If the dispatch
        fails, the host's update counts are reset to those before its `count` updates.

        Returns:
            The program's second result, or None if it returns only the state.
        """
        with counters.explained():
            try:
                result = program(self.view(), *args, np.float32(self.parameters.optimizer.rescale_grad))
            except BaseException:
                self.parameters.undo_count(self.updated, count)
                raise
            new, out = (result, None) if isinstance(result, TrainState) else result
            self.parameters.commit(new, self.trainable)
        return out

    def _update_in_python(self, gradients: Mapping[str, Array], several: bool) -> None:
        """Run a user-defined optimizer's `update(index, weight, grad, state)` on the host; fixed gammas always stay 1.

        several: whether gradients have a leading device axis.
        """
        parameters = self.parameters
        if parameters.split or parameters.state.local is not None:
            unsupported = "neither kvstore=None on several devices nor gradient compression"
            raise NotImplementedError(f"a user-defined optimizer class supports {unsupported}")
        params, _ = parameters.arrays()
        new: dict[str, Any] = {}
        for name in sorted(self.updated, key=parameters.names.index):
            gradient = self._dense(name, gradients.get(name, jnp.zeros_like(params[name])), several)
            if parameters.grouped:
                gradient = jax.device_put(gradient, parameters.devices[0])
            if several and name in gradients:
                gradient = jnp.sum(jax.device_put(gradient, parameters.devices[0]), axis=0)
            weight = parameters.mutable(params[name])
            parameters.updater(parameters.index(name), parameters.mutable(gradient), weight)
            if name in gradients:
                new[name] = weight.value if isinstance(weight, MutableArray) else weight
        parameters.set_arrays(new, {})
        parameters.passes = 0

    def view(self) -> TrainState:
        """Return the part of the shared TrainState that this graph uses."""
        return self.parameters.view(self._bound.params, self._bound.aux, self.trainable)


_add = jax.jit(jnp.add)


def _check_computed(gradients: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name not in gradients:
            raise RuntimeError(f"there is no gradient of {name!r} yet; call forward(batch, is_train=True) and backward()")


def _blocked(model: Model, index: int) -> bool:
    """Return whether output `index` blocks gradients (BlockGrad), so that it needs no head gradient."""
    symbol = model.symbol
    return symbol is not None and index < len(symbol.heads) and getattr(symbol.heads[index].node.op, "name", "") == "BlockGrad"


def _split_head_gradient(value: Array, where: MaybeLayout, counts: tuple[int, ...]) -> Any:
    """Split one head gradient over several devices; `where` is the row layout of the output."""
    if not isinstance(where, RowLayout) or where.before != 1:
        problem = "the output has no axis of the rows of the batch, in order"
        raise ValueError(f"out_grads of shape {value.shape} cannot be split over {len(counts)} devices: {problem}")
    split = split_slices(Batch({"gradient": value}), [c * where.after for c in counts], {"gradient": where.axis})
    slices = split.inputs["gradient"]
    if split.weight is None:
        return slices
    shape = (*split.weight.shape[:1], *(split.weight.shape[1] if k == where.axis else 1 for k in range(slices.ndim - 1)))
    return jnp.where(split.weight.reshape(shape) > 0, slices, 0)
