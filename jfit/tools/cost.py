"""`cost`: what a training step costs before any array is allocated: operations, memory, communication, time."""

from __future__ import annotations

import functools
import html
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.data import Batch
from jfit.graph import Symbol
from jfit.graph.infer import infer_shape
from jfit.lowering.build import as_model, model_and_values, split_trained
from jfit.lowering.frameworks.dispatch import adapter_of
from jfit.lowering.model import Model, Policy, specs_of
from jfit.lowering.summary import input_specs, is_shape
from jfit.parallel.communication import collectives
from jfit.parallel.contexts import resolve
from jfit.parallel.data_parallel import OUT_AXES
from jfit.parallel.devices import STATE_AXES
from jfit.parallel.spmd import compile_spmd
from jfit.prepare.checks import check_heads
from jfit.prepare.optimizer import resolve_optimizer
from jfit.step import train_step
from jfit.step.reduce import get as get_reduce
from jfit.step.state import TrainState, init_state, split_params
from jfit.tools.flops import Flops, bodies, count_flops

_MAX_BYTES = 1 << 62  # that one program writes: XLA counts bytes in signed 64-bit integers
Specs = dict[str, jax.ShapeDtypeStruct]


class Memory(NamedTuple):
    """Bytes on each device while a step runs, by kind; their sum is that of the compiled program.

    Attributes:
        parameters: parameters and auxiliary states (moving statistics).
        gradients: gradients of the trainable parameters, at most what the program has for temporary arrays.
        optimizer: optimizer state, and the other arrays of the `TrainState`.
        activations: everything else: activations, workspaces; None if the backend does not analyze programs.
        data: the batch.

    Example:
        >>> Memory(400, 400, 800, 1000, 200).total
        2800
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int | None
    data: int

    @property
    def total(self) -> int | None:
        """Bytes of the arguments, results and temporary arrays; donated arguments count once.  None if not known."""
        return None if self.activations is None else sum(v for v in self if v is not None)


class Cost(NamedTuple):
    """What a training step costs; made by `jfit.cost`.  `print(cost)` shows a table.

    Attributes:
        batch_size: number of rows of a step, over all devices.
        devices: number of devices.
        parameters: number of values of the parameters.
        flops_forward: floating-point operations of the forward pass, per device.
        flops_backward: those of the loss, the backward pass and the update, per device.
        memory: `Memory`, bytes per device by kind.
        traffic: bytes per device that the program reads and writes, by the compiler's analysis; None if not known.
        reduced_bytes: bytes that a device sends per step (`jfit.parallel.collectives`); None if not known.
        seconds: expected time of a step: the larger of operations / rate and traffic / bandwidth, both measured; without the
            time of communication.  None with measure=False.
        largest_batch: largest batch size that fits into the memory, a multiple of the number of devices; 0 if none does; None
            if not known.
        notes: what is not known and why, sentences.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3)
        >>> cost = jfit.cost(jfit.sym.LinearRegressionOutput(net, name="out"), (8, 4), measure=False)
        >>> cost.parameters, cost.memory.parameters
        (15, 60)
    """

    batch_size: int
    devices: int
    parameters: int
    flops_forward: int
    flops_backward: int
    memory: Memory
    traffic: float | None
    reduced_bytes: float | None
    seconds: float | None
    largest_batch: int | None
    notes: tuple[str, ...]

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity: operations per byte of `traffic`; None if that is not known."""
        return (self.flops_forward + self.flops_backward) / self.traffic if self.traffic else None

    def rows(self) -> list[tuple[str, str]]:
        """The table: pairs (name, value)."""
        parts = [(f"memory: {kind}", _bytes(value)) for kind, value in self.memory._asdict().items()]
        return [
            ("batch size, devices", f"{self.batch_size}, {self.devices}"),
            ("parameters", f"{self.parameters:,}"),
            ("FLOPs forward", f"{self.flops_forward:,}"),
            ("FLOPs backward, update", f"{self.flops_backward:,}"),
            *parts,
            ("memory: total", _bytes(self.memory.total)),
            ("bytes read and written", _bytes(self.traffic)),
            ("bytes sent per device", _bytes(self.reduced_bytes)),
            ("FLOPs per byte", _or_unknown(self.intensity, "{:.3g}")),
            ("expected time of a step", _or_unknown(self.seconds, "{:.3g} s")),
            ("largest batch", _or_unknown(self.largest_batch, "{}")),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        left, right = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join([*(f"{a:<{left}}  {b:>{right}}" for a, b in rows), *self.notes])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in self.rows())
        return f"<table>{rows}</table>" + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)


def cost(
    model: Any,
    inputs: Any,
    batch_size: int | None = None,
    optimizer: Any = "sgd",
    *,
    devices: Any = None,
    optimizer_params: Mapping[str, Any] | None = None,
    loss: Any = None,
    params: Any = None,
    aux: Any = None,
    frozen: Sequence[str] = (),
    micro_batches: int = 1,
    policy: Any = None,
    reduce: Any = None,
    memory: int | None = None,
    measure: bool = True,
) -> Cost:
    """Compute what a training step costs, from its compiled program: nothing is trained, and only shapes are used.

    Compiling takes as long as before the first step of `fit`.  The program is that of one step without metrics.  `fit` needs
    more memory if it keeps the data set on the device.

    Args:
        model: a `Symbol`, a `jfit.Model`, a `Run`, a function with `loss` and `params`, or a module with `loss`, as for `fit`.
        inputs: one batch or its shapes, as for `jfit.summary`; labels are in `(x, y)`, or in a dict by input name.  Labels of a
            `Symbol` are inferred if they are left out.  A shape is a tuple of integers (float32), or a jax.ShapeDtypeStruct.
        batch_size: number of rows of a step over all devices, which replaces that of `inputs`.  Default: that of `inputs`.
        optimizer: name, `jfit.optim` optimizer or optax transformation.
        devices: as for `fit`, but not "auto".
        optimizer_params: dict of the parameters of a named optimizer.
        loss: loss of a function or module.
        params: pytree of the parameters of a function, arrays or jax.ShapeDtypeStruct; default: those of the module.
        aux: auxiliary states, likewise.
        frozen: names or glob patterns of parameters that are not trained.
        micro_batches: number of parts of a batch whose gradients are summed.
        policy: mixed precision, as for `fit`.
        reduce: how gradients are reduced over devices, as for `fit`; rules that split the state are not supported.
        memory: bytes of each device, for `largest_batch`; default: what the device reports.  If it reports nothing (CPU),
            `largest_batch` is None.  With a limit, up to four programs are compiled.
        measure: whether to measure the rate of a matrix product and the bandwidth of the device, once per process, for
            `seconds`.

    Returns:
        `Cost`.

    Raises:
        ValueError: the batch size is not a multiple of devices x micro_batches, the inputs do not fit the model, or the rule
            of `reduce` is not supported.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=10)
        >>> cost = jfit.cost(jfit.sym.SoftmaxOutput(net, name="softmax"), (32, 100), 64, "adam", measure=False)
        >>> cost.batch_size, cost.flops_forward >= 2 * 64 * 100 * 10, cost.memory.optimizer > 2 * cost.memory.parameters
        (64, True, True)
    """
    chosen, rule = resolve(devices), get_reduce(reduce)
    _check_positive(batch_size=batch_size, micro_batches=micro_batches)
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int | float | np.number) or not memory > 0):
        raise ValueError(f"cost: memory is {memory!r}; expected the bytes of each device, such as 16 << 30 for 16 GiB")
    if rule.sharded or rule.slices is not None:
        raise ValueError(
            f"cost: reduce={reduce!r} is not supported: its step is several programs, or splits the state over the devices; "
            "leave out reduce=, and compile the step with jfit.data_parallel(step).lower(state, batch)"
        )
    policy = Policy(policy) if isinstance(policy, str) else policy
    options = {"frozen": frozen, "micro_batches": micro_batches, "policy": policy, "reduce": rule}
    problem = _Problem(split_trained(model, params, aux), loss, optimizer, optimizer_params, inputs, chosen, options)
    size = int(problem.rows if batch_size is None else batch_size)
    if size < 1 or size % problem.multiple:
        raise ValueError(
            f"cost: the batch size is {size}, expected a positive multiple of {problem.multiple}, devices x micro_batches, so "
            "that every device has as many rows"
        )
    program = problem.program(size)
    traffic, notes = program.traffic(), []
    if program.memory.activations is None:
        notes.append(
            f"memory: the backend {chosen[0].platform!r} has no analysis of the memory of programs, so activations are unknown."
        )
    if traffic is None:
        notes.append(f"bytes read and written: the backend {chosen[0].platform!r} does not report them.")
    elif program.flops.loops:
        traffic = None
        notes.append("bytes read and written: the step has loops, of which the compiler counts one iteration.")
    if program.flops.unbounded:
        notes.append("FLOPs: loops whose number of iterations depends on the data are counted with one iteration.")
    sent, note = _sent(program.compiled, len(chosen))
    largest, reason = _largest(problem, program, memory, chosen[0])
    seconds = None
    if measure:
        rate, bandwidth = _rates(chosen[0], policy.compute if policy else "float32")
        seconds = max(program.flops.count / rate, (traffic or 0) / bandwidth)
    return Cost(
        size,
        len(chosen),
        program.values,
        program.forward.count,
        max(program.flops.count - program.forward.count, 0),
        program.memory,
        traffic,
        sent,
        seconds,
        largest,
        (*notes, *note, *reason),
    )


def _check_positive(**values: Any) -> None:
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise ValueError(f"cost: {name} is {value!r}; expected an integer of at least 1")


class _Program(NamedTuple):
    """The compiled step for one batch size."""

    size: int
    compiled: Any
    memory: Memory
    values: int
    forward: Flops
    flops: Flops

    def traffic(self) -> float | None:
        """Bytes that the program reads and writes, or None."""
        analysis: Any = self.compiled.cost_analysis()
        analysis = analysis[0] if isinstance(analysis, list) and analysis else analysis
        return (analysis or {}).get("bytes accessed")


class _Problem:
    """The arguments of `cost`; models are made of shapes while JAX traces, so that parameters are not copied."""

    def __init__(
        self,
        model: tuple[Any, Any, Any],
        loss: Any,
        optimizer: Any,
        optimizer_params: Any,
        inputs: Any,
        devices: Sequence[Any],
        options: dict[str, Any],
    ) -> None:
        self.model, params, aux = model
        self.values = jax.tree.map(_spec, (params, aux)) if self._is_function() else (None, None)
        if self._is_function():
            self.loss = loss
        else:
            self.model, self.loss = as_model(self.model, loss=loss, params=params, aux=aux), None
        self.optimizer, self.optimizer_params, self.inputs = optimizer, optimizer_params, inputs
        self.devices, self.options = devices, options
        self.multiple = len(devices) * options["micro_batches"]
        found: list[int] = []

        def inspect(model: Model) -> None:
            check_heads(model)
            found.append(_rows(_batch_specs(model, inputs), model.batch_axes))

        self._traced(inspect)
        self.rows = found[0]

    def _is_function(self) -> bool:
        return callable(self.model) and not isinstance(self.model, Model | Symbol) and adapter_of(self.model) is None

    def _made(self, params: Any, aux: Any) -> Model:
        """The `Model`, of traced values."""
        return model_and_values(self.model, self.loss, params, aux)[0] if self._is_function() else self.model

    def _traced(self, use: Any) -> Any:
        return jax.eval_shape(lambda values: use(self._made(*values)), self.values)

    def _step(self, state: TrainState, batch: Batch, axis_name: Any = None) -> Any:
        model = self._made(*jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.values))
        optimizer = resolve_optimizer(self.optimizer, self.optimizer_params, model)
        return train_step(model, optimizer, **self.options)(state, batch, axis_name=axis_name)

    def _forward(self, state: TrainState, batch: Batch) -> Any:
        model = self._made(*jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.values)).bound(batch.inputs)
        key, policy = jax.random.key(0), self.options["policy"]
        return model.apply(state.params, state.aux, dict(batch.inputs), key=key, train=True, policy=policy)[0]

    def _state(self, model: Model, specs: Specs) -> TrainState:
        optimizer = resolve_optimizer(self.optimizer, self.optimizer_params, model)
        state = init_state(model, optimizer, specs, frozen=self.options["frozen"])
        trainable, _ = split_params(model, state.params, self.options["frozen"])
        self.trainable = _size(trainable)
        return state._replace(local=self.options["reduce"].init(trainable))

    def program(self, size: int) -> _Program:
        """Compile the step for `size` rows over all devices."""
        count, axes, whole = len(self.devices), {}, {}

        def state_of(model: Model) -> TrainState:
            axes.update(model.batch_axes)
            whole.update(_resized(_batch_specs(model, self.inputs), size, axes))
            return self._state(model, dict(whole))

        state = self._traced(state_of)
        part = Batch(_resized(whole, size // count, axes))
        split, placed = part, state
        if count > 1:
            split, local = _stacked((part, state.local), count)
            placed = state._replace(local=local)
        run = compile_spmd(self._step, self.devices, (STATE_AXES, 0), OUT_AXES, donate=(0,), name="cost")
        with warnings.catch_warnings():  # more than 2**31 rows: JAX's indices are int32, but this program is only analyzed
            warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
            jaxprs = [jax.make_jaxpr(f)(state, part) for f in (self._forward, self._step)]
            if (written := _size(part) + _written(jaxprs[1])) > _MAX_BYTES:
                raise ValueError(
                    f"cost: with a batch of {size:,} rows, a step writes {written:,} bytes on each device, and XLA "
                    f"counts to {_MAX_BYTES:,}; pass a smaller batch_size: memory and operations grow in proportion to it"
                )
            compiled = run.lower(placed, split).compile()
        forward, flops = map(count_flops, jaxprs)
        values = sum(math.prod(x.shape) for x in state.params.values())
        return _Program(size, compiled, self._memory(compiled, state, part), values, forward, flops)

    def _memory(self, compiled: Any, state: TrainState, batch: Batch) -> Memory:
        parameters, data = _size((state.params, state.aux)), _size(batch)
        optimizer, analysis = _size(state) - parameters, compiled.memory_analysis()
        if analysis is None:
            return Memory(parameters, self.trainable, optimizer, None, data)
        arguments, results = analysis.argument_size_in_bytes, analysis.output_size_in_bytes
        total = arguments + results + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
        rest = max(total - parameters - optimizer - data, 0)
        gradients = min(self.trainable, rest)
        return Memory(parameters, gradients, optimizer, rest - gradients, data)


def _batch_specs(model: Model, inputs: Any) -> Specs:
    """Shapes of the inputs and labels by name."""
    labels = None
    if isinstance(inputs, tuple) and not is_shape(inputs) and not hasattr(inputs, "_fields"):
        inputs, labels = inputs[0], inputs[1] if len(inputs) > 1 else None
    specs = input_specs(inputs, model.inputs, "cost")
    if labels is not None:
        specs |= input_specs(labels, model.labels, "cost")
    if not specs or (model.symbol is not None and any(n not in specs for n in model.inputs)):
        raise ValueError(
            f"cost: inputs has {list(specs)}, but the model has the inputs {list(model.inputs)}; pass one array or shape, "
            "such as (32, 20), or a dict by input name"
        )
    if labels is None and model.symbol is not None and (missing := [n for n in model.labels if n not in specs]):
        known = {n: s.shape for n, s in specs.items() if n in model.symbol.list_arguments()}
        shapes = dict(zip(model.symbol.list_arguments(), infer_shape(model.symbol, partial=True, **known)[0], strict=True))
        if unknown := [n for n in missing if not shapes[n] or 0 in shapes[n]]:
            raise ValueError(
                f"cost: the shape of the label {unknown[0]!r} cannot be inferred from those of the inputs {list(specs)}; pass "
                "(x, y), or a dict of arrays or shapes by input name"
            )
        specs |= {n: jax.ShapeDtypeStruct(shapes[n], np.float32) for n in missing}
    return specs_of(specs)


def _rows(specs: Specs, axes: Mapping[str, int]) -> int:
    if short := [name for name, spec in specs.items() if len(spec.shape) <= axes.get(name, 0)]:
        raise ValueError(f"cost: {short[0]!r} has the shape {specs[short[0]].shape}, which has no axis for the rows of a batch")
    rows = {name: spec.shape[axes.get(name, 0)] for name, spec in specs.items()}
    if len({*rows.values()}) > 1:
        raise ValueError(f"cost: inputs and labels have different numbers of rows, {rows}; pass those of one batch")
    return next(iter(rows.values()))


def _resized(specs: Specs, rows: int, axes: Mapping[str, int]) -> Specs:
    """The specs with another number of rows."""

    def resized(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        return (*shape[:axis], rows, *shape[axis + 1 :])

    return {n: jax.ShapeDtypeStruct(resized(s.shape, axes.get(n, 0)), s.dtype) for n, s in specs.items()}


def _stacked(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), tree)


def _spec(x: Any) -> jax.ShapeDtypeStruct:
    x = x if hasattr(x, "shape") and hasattr(x, "dtype") else np.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _size(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _written(jaxpr: Any) -> int:
    """Bytes of the results of all equations."""
    equations = getattr(jaxpr, "jaxpr", jaxpr).eqns
    results = [v.aval for equation in equations for v in equation.outvars if hasattr(v.aval, "shape")]
    return _size(results) + sum(_written(body) for equation in equations for body in bodies(equation.params))


def _sent(compiled: Any, devices: int) -> tuple[float | None, list[str]]:
    """(Bytes that a device sends, notes.)"""
    if devices == 1:
        return 0.0, []
    try:
        return collectives(compiled).total.wire_bytes, []
    except ValueError as error:
        return None, [f"bytes sent: {error}."]


def _largest(problem: _Problem, program: _Program, limit: int | None, device: Any) -> tuple[int | None, list[str]]:
    """(Largest batch size that fits, notes): a line through two sizes, checked by compiling the size that it gives."""
    if limit is None:
        limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    used = program.memory.total
    if used is None:
        return None, []
    if limit is None:
        return None, [f"largest batch: the device {device.device_kind!r} reports no memory limit; pass memory=, in bytes."]
    double = problem.program(2 * program.size)
    points = [(program.size, used), (double.size, double.memory.total or 0)]
    for _ in range(2):
        (low, below), (high, above) = points
        slope = (above - below) / (high - low)
        if slope <= 0:
            return None, ["largest batch: the memory of the program does not grow with the batch."]
        size = int((limit - below) / slope + low) // problem.multiple * problem.multiple
        if size < 1:
            return 0, []
        check = problem.program(size).memory.total or 0
        if check <= limit:
            return size, []
        points = sorted([points[0], (size, check)]) if size != points[0][0] else points
    return None, [f"largest batch: about {size}, but its program needs {check:,} bytes; the memory does not grow linearly."]


@functools.cache
def _rates(device: Any, dtype: str) -> tuple[float, float]:
    """Measured (operations per second of a matrix product, bytes per second of reading and writing an array)."""
    n = 512 if device.platform == "cpu" else 4096
    x = jax.device_put(np.ones((n, n), jnp.dtype(dtype)), device)
    y = jax.device_put(np.ones(4 * n * n, np.float32), device)
    return 2 * n**3 / _fastest(jax.jit(lambda a: a @ a), x), 2 * y.nbytes / _fastest(jax.jit(lambda a: a + 1), y)


def _fastest(program: Any, x: Any) -> float:
    """Seconds of the fastest of five calls, after one that compiles."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        counters.wait(program(x))  # sync: measures the device, once per process
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _bytes(value: float | None) -> str:
    return _or_unknown(value, "{:,.0f} B")


def _or_unknown(value: Any, form: str) -> str:
    return "not known" if value is None else form.format(value)
