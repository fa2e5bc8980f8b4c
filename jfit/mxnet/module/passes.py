"""forward, backward and update called one by one, computed as late and in as few programs as possible.

`forward` and `backward` only record what is wanted.  If nothing is read before `update`, all three run as ONE program, the
train step of the engine; outputs read before `backward` cost a forward program (with the same random numbers), gradients read
before `update` a backward program and an update program.  The numbers are the same in all cases.

The functions are those of `jfit.step`; `Programs` compiles them for the devices, once per setting, and keeps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfit import counters
from jfit.data import Batch
from jfit.data.batch import rows
from jfit.lowering.model import Model, Plan
from jfit.mxnet.module.binding import Binding
from jfit.mxnet.module.parameters import Parameters
from jfit.mxnet.module.slices import merge_slices, slices_of, split_slices
from jfit.mxnet.monitor.capture import capture_gradients, capture_outputs
from jfit.mxnet.mutable import MutableArray
from jfit.ops.rows import LOST, MaybeLayout, RowLayout
from jfit.optim.rows import is_rows, stored_rows
from jfit.parallel import Window, compile_spmd, place_split, sharding
from jfit.step import StepOut, forward_step, gradient_step, train_step, update_step
from jfit.step.state import TrainState


class Pass(NamedTuple):
    """One forward pass that was asked for.

    Attributes:
        batch: split over the devices.
        counts: rows of each device.
        train: training mode.
        number: which pass of this step it is, for its random numbers.
        plan: where the rows of the outputs are.
    """

    batch: Batch
    counts: tuple[int, ...]
    train: bool
    number: int
    plan: Plan


class Passes:
    """The passes of one bound graph over parameters that other graphs may share.

    Args:
        bound: the graph, with its names and the gradients that are asked for.
        parameters: the arrays, and the optimizer.
    """

    def __init__(self, bound: Binding, parameters: Parameters) -> None:
        self.programs, self._bound = Programs(bound.model, parameters, bound.gammas), bound
        self.params, self.aux, self.requests, self.learns = bound.params, bound.aux, bound.requests, bound.learns
        self.counted = [*bound.learns, *bound.gammas]  # what MXNet's optimizer updates
        self.gradients: dict[str, Any] = {}  # with several devices, a leading device axis; of tables by rows until read
        self._pass: Pass | None = None
        self._outputs: tuple[Array, ...] | None = None
        self._backward: Any = None  # None: not asked for; (): without head gradients; else the head gradients
        self._window = Window()
        self._captures: dict[Any, Any] = {}

    @property
    def parameters(self) -> Parameters:
        """The shared arrays."""
        return self.programs.parameters

    # -------------------------------------------------------------------------------- forward
    def forward(self, batch: Batch, counts: Sequence[int], train: bool) -> None:
        """Record a forward pass; a pending backward pass runs first."""
        self.flush()
        devices, parameters = len(self.parameters.devices), self.parameters
        axes = self.programs.model.batch_axes
        plan = self.programs.plan(per_device_of(batch, counts, axes))
        if len(set(counts)) > 1 and not plan.paddable:
            raise ValueError(
                f"a batch of {sum(counts)} rows splits into slices of {list(counts)} rows, which are padded to one length, but "
                f"{plan.reason}"
            )
        split = split_slices(batch, counts, axes) if devices > 1 else batch
        self._pass = Pass(_at_home(split, parameters.devices), tuple(counts), train, parameters.numbered(train), plan)
        parameters.waiting.add(self)
        self._outputs, self._backward = None, None

    def outputs(self) -> tuple[Array, ...]:
        """Outputs of the last pass; with several devices, a leading device axis."""
        at = self._asked()
        if self._outputs is None and self._backward is not None:
            self.flush()
        if self._outputs is None:
            state = self.view()
            run = self.programs.forward(at.train)
            found = run(state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number))
            self._dispatched(found[0])
            self._outputs = found
        assert self._outputs is not None
        return self._outputs

    def hold_outputs(self) -> None:
        """Compute pending gradients and outputs before the parameters change: outputs use the parameters at `forward`."""
        self.flush()
        if self._pass is not None and self._outputs is None:
            self.outputs()

    def _dispatched(self, result: Array) -> None:
        """Keep the host from running too far ahead of the devices."""
        fence = self._window.push(result)
        if fence is not None:
            counters.wait(fence)  # sync: host waits for the call 8 back

    def merged(self, without: int = 0) -> list[Array]:
        """Outputs of the whole batch, except for its last `without` rows."""
        found, at, rows = self.outputs(), self._asked(), self._rows()
        whole = list(merge_slices(found, rows, at.counts)) if len(at.counts) > 1 else list(found)
        return [_cut_rows(out, where, sum(at.counts), without) for out, where in zip(whole, rows, strict=True)]

    def whole_inputs(self) -> dict[str, Any]:
        """Inputs of the last pass, slices of several devices side by side."""
        if self._pass is None:
            return {}
        axes, counts, given = self.programs.model.batch_axes, self._pass.counts, self._pass.batch.inputs
        if len(counts) == 1:
            return dict(given)
        cut = {
            k: [np.take(p, np.arange(c), axes.get(k, 0)) for p, c in zip(v, counts, strict=True)]
            for k, v in counters.read(given).items()  # sync: a monitor looks at the whole batch
        }
        return {k: np.concatenate(parts, axes.get(k, 0)) for k, parts in cut.items()}

    def captured(self, kind: str, monitor: Any, heads: Sequence[Any]) -> list[dict[str, Array]]:
        """Named arrays of the pass at hand, for each device.

        Args:
            kind: "outputs" of a training pass, "eval_outputs", or "gradients".
            monitor: its `pattern` and `monitor_all` say which.
            heads: [gradients of the outputs], or [].
        """
        at, state, bound = self._asked(), self.view(), self._bound
        key = ("monitor", kind, bool(heads), monitor.pattern, monitor.monitor_all)
        if key not in self._captures:
            fed = [n for n in (*bound.data_names, *bound.label_names, *bound.state_names) if n in bound.arguments]
            if kind == "gradients":
                self._captures[key] = capture_gradients(bound.symbol, fed, monitor.pattern)
            else:
                train = kind == "outputs"
                self._captures[key] = capture_outputs(bound.symbol, fed, monitor.pattern, monitor.monitor_all, train)
        capture = self._captures[key]
        if not capture.names:
            return []
        split = [tuple(self._cut(g, w, at.counts) for g, w in zip(h, at.plan.rows, strict=True)) for h in heads]
        axes = (self.programs.axes()[0], None, 0, None, None, None, *[0 for _ in heads])
        run = self.programs.compiled(key, lambda: (capture.raw, axes, 0), "monitor")
        found = run(state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number), *split)
        ordered = {n: found[n] for n in capture.names if n in found}
        devices = len(self.parameters.devices)
        return [ordered] if devices == 1 else [{n: v[d] for n, v in ordered.items()} for d in range(devices)]

    def sliced(self) -> list[list[Array]]:
        """For each output, what each device computed."""
        found, at = self.outputs(), self._asked()
        if len(at.counts) == 1:
            return [[out] for out in found]
        return [self._apart(out, where, at.counts) for out, where in zip(found, self._rows(), strict=True)]

    def _apart(self, out: Array, where: MaybeLayout, counts: Sequence[int]) -> list[Array]:
        """What each device computed, on that device."""
        pieces = slices_of(out, where, counts)
        return [jax.device_put(piece, device) for piece, device in zip(pieces, self.parameters.devices, strict=True)]

    def _rows(self) -> tuple[MaybeLayout, ...]:
        # rows that lie at LOST places stand side by side, as MXNet concatenates whatever a device gives
        return tuple(None if r is LOST else r for r in self._asked().plan.rows)

    def _asked(self) -> Pass:
        if self._pass is None:
            raise RuntimeError("there are no outputs yet; call forward(batch) first")
        return self._pass

    # -------------------------------------------------------------------------------- backward
    def backward(self, out_grads: Sequence[Any] | None) -> None:
        """Record a backward pass over the last forward pass."""
        at = self._asked()
        if not at.train:
            raise RuntimeError("backward() follows a forward pass in training mode; call forward(batch, is_train=True)")
        self.flush()  # each backward pass counts: gradients add up, statistics move
        model = self.programs.model
        if out_grads is None:
            plain = [o.name for i, o in enumerate(model.outputs) if o.kind == "plain" and not _blocked(model, i)]
            if plain:
                raise ValueError(
                    f"backward() without out_grads, but output {plain[0]!r} is no loss: nothing says what its gradient is; "
                    "pass out_grads (one array for each output), or end the network in a loss head such as SoftmaxOutput"
                )
            self._backward = ()
            return
        if len(out_grads) != len(model.outputs):
            raise ValueError(
                f"out_grads holds {len(out_grads)} arrays, needed one for each output: {[o.name for o in model.outputs]}"
            )
        cut = tuple(self._cut(g, where, at.counts) for g, where in zip(out_grads, at.plan.rows, strict=True))
        self._backward = _at_home(cut, self.parameters.devices)

    def _cut(self, gradient: Any, where: MaybeLayout, counts: tuple[int, ...]) -> Any:
        """A head gradient of the whole batch as one slice for each device; padded rows repeat real ones (their weight is 0)."""
        value = jnp.asarray(gradient)
        if len(counts) == 1:
            return value
        if not isinstance(where, RowLayout) or where.before != 1:
            raise ValueError(
                f"out_grads of shape {value.shape} cannot be divided over {len(counts)} devices: the output does not hold the "
                "rows of the batch in order; bind on one device"
            )
        batch = Batch({"gradient": value})
        scaled = [c * where.after for c in counts]
        cut = split_slices(batch, scaled, {"gradient": where.axis})
        own = cut.inputs["gradient"]
        if cut.weight is None:
            return own
        shape = (*cut.weight.shape[:1], *(cut.weight.shape[1] if k == where.axis else 1 for k in range(own.ndim - 1)))
        return jnp.where(cut.weight.reshape(shape) > 0, own, 0)

    def flush(self) -> None:
        """Run the pending backward pass, if there is one."""
        if self._backward is None:
            return
        at, heads, state = self._asked(), self._backward, self.view()
        self._backward = None
        wrt = tuple(sorted(self.requests))
        run = self.programs.gradients(wrt, bool(heads))
        given = (state.params, state.aux, at.batch, state.key, state.step, np.int32(at.number))
        outputs, found, aux = run(*given, heads) if heads else run(*given)
        self._dispatched(outputs[0])
        if self._outputs is None:  # those of the forward pass stay, whatever the parameters are now
            self._outputs = outputs
        whole = self.parameters.state
        assert whole is not None
        self.parameters.state = whole._replace(aux={**whole.aux, **aux})
        for name, gradient in found.items():
            old = self.read_gradients().get(name) if self.requests[name] == "add" else None
            gradient = gradient if old is None else whole_table(self.parameters, name, gradient)
            self.gradients[name] = gradient if old is None or old.shape != gradient.shape else _add(old, gradient)

    def read_gradients(self) -> dict[str, Array]:
        """The gradients by name, those of tables with all rows; a pending backward pass runs first."""
        self.flush()
        self.gradients.update({n: whole_table(self.parameters, n, g) for n, g in self.gradients.items()})
        return self.gradients

    def forget(self) -> None:
        """Drop outputs and gradients: steps that another program makes replace them as the last ones."""
        self._pass, self._outputs, self._backward = None, None, None
        self.gradients.clear()

    def gradient_slices(self, name: str) -> list[Array]:
        """The gradient that each device has for a parameter (zeros before the first backward pass)."""
        found = self.read_gradients()
        devices = len(self.parameters.devices)
        if name not in found:
            state = self.view()
            own = state.params[name]
            zero = jnp.zeros(own.shape[1:] if self.parameters.split else own.shape, own.dtype)
            return [zero] * devices
        return [found[name]] if devices == 1 else list(found[name])

    def input_gradient(self, name: str) -> list[Array]:
        """The gradient of an input on each device, the rows that it repeated cut off."""
        found, at = self._input_gradient(name)
        return [found] if len(at.counts) == 1 else self._apart(found, self._input_rows(name), at.counts)

    def whole_input_gradient(self, name: str) -> Array:
        """The gradient of an input for the whole batch; it stays on the devices."""
        found, at = self._input_gradient(name)
        return found if len(at.counts) == 1 else merge_slices((found,), (self._input_rows(name),), at.counts)[0]

    def _input_gradient(self, name: str) -> tuple[Array, Pass]:
        found, at = self.read_gradients(), self._asked()
        if name not in found:
            raise RuntimeError(f"there is no gradient of input {name!r} yet; call forward(batch, is_train=True) and backward()")
        return found[name], at

    def _input_rows(self, name: str) -> RowLayout:
        return RowLayout(self.programs.model.batch_axes.get(name, 0), 1, max(self._asked().counts), 1)

    def set_gradient(self, name: str, slices: Sequence[Any]) -> None:
        """Replace a gradient: one array for each device."""
        self.flush()
        values = [jnp.asarray(s) for s in slices]
        devices = self.parameters.devices
        self.gradients[name] = values[0] if len(devices) == 1 else place_split(np.stack(counters.read(values)), devices)

    # -------------------------------------------------------------------------------- update
    def update(self) -> None:
        """One update: one program with the pending forward and backward pass, or from gradients that are computed already."""
        parameters = self.parameters
        optimizer = parameters.optimizer
        assert optimizer is not None
        parameters.hold(but=self)
        if not self.learns:
            self.flush()
            return
        waits = self._backward == () and self._outputs is None
        fusible = waits and optimizer.is_pure and set(self.requests) == set(self.learns)
        if fusible and "add" not in self.requests.values() and self._asked().number == 0:
            self._step()
            return
        self.hold_outputs()
        missing = [n for n in self.learns if n not in self.gradients]
        if missing:
            raise RuntimeError(
                f"update() has no gradient for {missing[:1]}: call forward(batch, is_train=True) and backward() before it"
            )
        gradients = {n: self.gradients[n] for n in self.learns}
        if not optimizer.is_pure:
            self._update_in_python({n: whole_table(parameters, n, g) for n, g in gradients.items()})
            return
        parameters.begin_update(self.learns, self.counted)
        parameters.run(self, self.programs.update(), gradients)

    def _step(self) -> None:
        parameters, at = self.parameters, self._asked()
        self._backward = None  # a step that fails must not be tried again with the next batch
        parameters.begin_update(self.learns, self.counted)
        out = parameters.run(self, self.programs.step(), at.batch)
        self._outputs = out.outputs
        self.gradients.update(out.gradients)
        self._dispatched(out.fence)

    def _update_in_python(self, gradients: Mapping[str, Array]) -> None:
        """The user's own `update(index, weight, grad, state)`; fixed gammas have gradients of 0 and stay 1 whatever it does."""
        parameters = self.parameters
        assert parameters.state is not None
        if parameters.split:
            raise NotImplementedError(
                "an optimizer class of your own and kvstore=None on several devices do not go together: pass kvstore='device', "
                "or use an optimizer by name"
            )
        if parameters.state.local is not None:
            raise NotImplementedError("gradient compression needs an optimizer by name, not a class of your own")
        params, _ = parameters.arrays()
        fresh, several = {}, len(parameters.devices) > 1
        number = {name: i for i, name in enumerate(parameters.names)}
        for name in sorted(self.counted, key=number.__getitem__):
            gradient = gradients.get(name, jnp.zeros_like(params[name]))
            if several and name in gradients:
                gradient = jnp.sum(jax.device_put(gradient, parameters.devices[0]), axis=0)
            weight = parameters.cell(params[name])
            parameters.updater(parameters.index(name), parameters.cell(gradient), weight)
            if name in gradients:
                fresh[name] = weight.value if isinstance(weight, MutableArray) else weight
        parameters.replace_params(fresh)
        parameters.passes = 0

    def view(self) -> TrainState:
        """The part of the state that this graph uses."""
        return self.parameters.view(self.params, self.aux, self.learns)


def _at_home(tree: Any, devices: Sequence[Any]) -> Any:
    """Arrays that lie elsewhere, such as the outputs of another module, where the programs take them."""
    where = sharding(devices, split=True)
    return jax.tree.map(lambda x: jax.device_put(x, where) if isinstance(x, Array) and x.committed else x, tree)


@jax.jit
def _add(a: Array, b: Array) -> Array:
    return a + b


def per_device_of(batch: Batch, counts: Sequence[int], axes: Mapping[str, int]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the longest slice."""
    size, longest, found = rows(batch, axes), max(counts), {}
    for name, value in batch.inputs.items():
        shape, axis = list(np.shape(value)), axes.get(name, 0)
        if shape[axis : axis + 1] == [size]:
            shape[axis] = longest
        found[name] = jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.canonicalize_dtype(value.dtype))
    return found


def _cut_rows(out: Array, where: MaybeLayout, rows: int, without: int) -> Array:
    """An output without its last rows of the batch."""
    if not without or not out.ndim:
        return out
    if isinstance(where, RowLayout) and where.before == 1:
        return jax.lax.slice_in_dim(out, 0, (rows - without) * where.after, axis=where.axis)
    return out[: out.shape[0] - without]


def _blocked(model: Model, index: int) -> bool:
    """True for an output that lets no gradient through, so that none is missing."""
    symbol = model.symbol
    return symbol is not None and index < len(symbol.heads) and getattr(symbol.heads[index].node.op, "name", "") == "BlockGrad"


def whole_table(parameters: Parameters, name: str, gradient: Any) -> Any:
    """The gradient of a parameter with all its rows, and a leading device axis where there are several devices."""
    if not is_rows(gradient):
        return gradient
    assert parameters.state is not None
    size = parameters.state.params[name].shape[int(parameters.split)]
    return (_dense if len(parameters.devices) == 1 else _dense_each)(gradient, size)


@functools.partial(jax.jit, static_argnums=1)
def _dense(rows: Any, size: int) -> Array:
    return rows.dense(size)


@functools.partial(jax.jit, static_argnums=1)
def _dense_each(rows: Any, size: int) -> Array:
    return jax.vmap(lambda each: each.dense(size))(rows)


# ------------------------------------------------------------------------------------------------ compiled programs
Program = Callable[..., Any]


class Programs:
    """Programs over a model and its parameters, each compiled when it is first asked for; `gammas`: parameters that stay 1."""

    def __init__(self, model: Model, parameters: Parameters, gammas: Sequence[str] = ()) -> None:
        self.model, self.parameters, self.gammas = model, parameters, list(gammas)
        self._made: dict[Any, Program] = {}
        self._plans: dict[Any, Plan] = {}

    def axes(self) -> tuple[int | None, TrainState]:
        """(axis of the parameters, axes of the state): a leading device axis where each device has its own."""
        own = 0 if self.parameters.split else None
        return own, TrainState(None, own, None, own, None, None, None, 0)  # type: ignore[arg-type]

    def compiled(self, key: Any, make: Callable[[], tuple[Any, ...]], name: str, donate: tuple[int, ...] = ()) -> Program:
        """The program of a key: `make() -> (function, in_axes, out_axes)` is compiled when it is first asked for."""
        key = (key, self.parameters.split)
        if key not in self._made:
            fn, in_axes, out_axes = make()
            self._made[key] = compile_spmd(fn, self.parameters.devices, in_axes, out_axes, donate=donate, name=name)
        return self._made[key]

    def forward(self, train: bool) -> Program:
        """(params, aux, batch, key, step, number) -> outputs of each device."""

        def make():
            return forward_step(self.model, train=train), (self.axes()[0], None, 0, None, None, None), 0

        return self.compiled(("forward", train), make, "forward")

    def gradients(self, wrt: Sequence[str], heads: bool) -> Program:
        """(params, aux, batch, key, step, number[, head gradients]) -> (outputs, gradients, new aux)."""

        def make():
            own = self.axes()[0]
            fn, axes = gradient_step(self.model, wrt, by_rows=True), (own, None, 0, None, None, None)
            return fn, (*axes, 0) if heads else axes, (0, 0, None)

        return self.compiled(("gradients", tuple(wrt), heads), make, "gradients")

    def step(self) -> Program:
        """(state, batch, rescale) -> (state, out with outputs and gradients): the whole update, one dispatch; donates."""

        def make():
            def fn(state: TrainState, batch: Any, rescale: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
                # behind the barrier the step is compiled, and rounded, as in the programs that run many steps
                state, batch = lax.optimization_barrier((state, batch))
                step = self.raw_step(rescale, outputs=True, gradients=True)
                return step(state, batch, axis_name=axis_name)

            axes = self.axes()[1]
            return fn, (axes, 0, None), (axes, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]

        return self.compiled(("step", self.setting()), make, "module_step", donate=(0,))

    def raw_step(self, rescale: Any, **how: Any) -> Any:
        """The pure train step with the parameters' optimizer and reduction."""
        optimizer, reduce = self.parameters.resolved(self.gammas), self.parameters.reduce
        return train_step(self.model, optimizer, rescale=rescale, reduce=reduce, **how)

    def update(self) -> Program:
        """(state, gradients of each device, rescale) -> state; the state is donated."""

        def make():
            def fn(state: TrainState, gradients: Any, rescale: Any, *, axis_name: str | None = None) -> TrainState:
                step = update_step(self.parameters.resolved(self.gammas), rescale=rescale, reduce=self.parameters.reduce)
                # gradients of tables that were read or written on the way hold all rows; those of zeros are not stored
                tables = {k: stored_rows(g) for k, g in gradients.items() if k in self.model.tables and not is_rows(g)}
                return step(state, {**gradients, **tables}, axis_name=axis_name)

            axes = self.axes()[1]
            return fn, (axes, 0, None), axes

        return self.compiled(("update", self.setting()), make, "module_update", donate=(0,))

    def setting(self) -> Any:
        """The part of a program's key that an update depends on: other settings are another program."""
        optimizer = self.parameters.optimizer
        assert optimizer is not None
        return optimizer.hyper_key(self.parameters.turns(self.gammas)), self.parameters.reduce

    def plan(self, inputs: dict[str, Any]) -> Plan:
        """Where the rows of the outputs are, for inputs of one device of these shapes."""
        key = tuple((k, tuple(v.shape), str(v.dtype)) for k, v in inputs.items())
        if key not in self._plans:
            self._plans[key] = self.model.plan(inputs)
        return self._plans[key]
