"""`cost`: what a training step costs before any array is allocated: operations, memory, communication, time.

Memory and traffic are the compiler's (`memory_analysis`, `cost_analysis`).  Operations are counted in the jaxpr by
`jfit.graph.costs`, as those of graphs: XLA counts one iteration of a loop, and in float32, not exactly for large batches.
"""

from __future__ import annotations

import dataclasses
import functools
import timeit
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.checks import positive, positive_integer
from jfit.data.batch import Batch, check_batch, rows
from jfit.graph import Symbol, html
from jfit.graph.costs import bodies, flops_of
from jfit.graph.drawing import aligned
from jfit.graph.infer import infer_shape
from jfit.lowering.build import model_and_values, split_trained
from jfit.lowering.frameworks.dispatch import adapter_of
from jfit.lowering.model import Model, count_parameters
from jfit.lowering.summary import input_specs, is_shape, num_bytes, spec_of
from jfit.parallel.communication import collectives
from jfit.parallel.contexts import resolve
from jfit.parallel.data_parallel import OUT_AXES
from jfit.parallel.devices import STATE_AXES
from jfit.parallel.spmd import compile_spmd
from jfit.prepare import FitOptions
from jfit.prepare.options import shared_options
from jfit.prepare.problem import check_heads, choose_optimizer, make_step, run_settings
from jfit.step.reduce import get as get_reduce
from jfit.step.regularizers import by_exact_name
from jfit.step.state import TrainState, init_state, split_params

_MAX_BYTES = 1 << 62  # that one program writes: XLA counts bytes in signed 64-bit integers
# further arguments that mean the same in `fit`
_SHARED = ("optimizer_params", "devices", "schedule", "schedule_params", "frozen", "micro_batches", "clip_norm", "clip_value")
_SHARED += ("policy", "params", "aux", "loss", "loss_weights", "loss_per_batch", "gather_outputs", "row_axes", "reduce", "nan")
_SHARED += ("sync_batch_stats", "ema", "regularizers", "remat")
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
        flops_forward: floating-point operations of the forward pass as JAX traces it, per device (`jfit.graph.costs.flops_of`).
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
        return "\n".join([*aligned(self.rows(), right=[1]), *self.notes])

    def _repr_html_(self) -> str:
        return html.table([*self.rows(), *([note] for note in self.notes)])


def cost(
    model: Any,
    inputs: Any,
    batch_size: int | None = None,
    optimizer: Any = "sgd",
    *,
    memory: float | None = None,
    measure: bool = True,
    **settings: Any,
) -> Cost:
    """Compute what a training step costs, from its compiled program: nothing is trained, and only shapes are used.

    Compiling takes as long as before the first step of `fit`.  The program is that of one step without metrics.  `fit` needs
    more memory if it keeps the data set on the device.

    Args:
        model: a `Symbol`, a `jfit.Model`, a `Run`, a function with `loss` and `params`, or a module with `loss`, as for `fit`.
        inputs: one batch or its shapes, as for `jfit.summary`; labels are in `(x, y)`, or in a dict by input name.  Labels of a
            `Symbol` are inferred if they are left out.  A shape is a tuple of integers (float32), or a jax.ShapeDtypeStruct.
        batch_size: number of rows of a step over all devices, which replaces that of `inputs`.  Default: that of `inputs`.
        optimizer: as for `fit`.
        memory: bytes of each device, for `largest_batch`; default: what the device reports.  If it reports nothing (CPU),
            `largest_batch` is None.  With a limit, up to four programs are compiled.
        measure: whether to measure the rate of a matrix product and the bandwidth of the device, once per process, for
            `seconds`.
        **settings: further arguments as for `fit`: optimizer_params, schedule, schedule_params, ema, frozen, micro_batches,
            clip_norm, clip_value, loss, loss_weights, loss_per_batch, gather_outputs, row_axes, regularizers, sync_batch_stats,
            policy, nan, remat; devices, but not "auto"; reduce, but no rules that split the state; params and aux, which may
            also be pytrees of jax.ShapeDtypeStruct.

    Returns:
        `Cost`.

    Raises:
        ValueError: the batch size is not a multiple of devices x micro_batches, the inputs do not fit the model, the rule of
            `reduce` is not supported, or `fit` would raise for an option.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=10)
        >>> cost = jfit.cost(jfit.sym.SoftmaxOutput(net, name="softmax"), (32, 100), 64, "adam", measure=False)
        >>> cost.batch_size, cost.flops_forward >= 2 * 64 * 100 * 10, cost.memory.optimizer > 2 * cost.memory.parameters
        (64, True, True)
    """
    if batch_size is not None:
        positive_integer(batch_size=batch_size)
    positive(none="the limit of the device", memory=memory)
    options = shared_options("cost", _SHARED, settings, optimizer=optimizer, eval_metric=None, progress=False)
    rule = get_reduce(options.reduce)
    if rule.sharded or rule.slices is not None:
        raise ValueError(f"cost: reduce={options.reduce!r} is not supported; use jfit.data_parallel(step).lower(state, batch)")
    step = _Step(model, inputs, options)
    size, device = int(batch_size or step.rows), step.devices[0]
    if size < 1 or size % step.multiple:
        raise ValueError(
            f"cost: batch_size is {size}; expected a positive multiple of {step.multiple} (devices, micro_batches)"
        )
    program, notes = step.program(size), []
    traffic = (program.compiled.cost_analysis() or {}).get("bytes accessed")
    if program.memory.activations is None:
        notes.append(f"memory: the backend {device.platform!r} has no analysis of the memory of programs.")
    if traffic is None:
        notes.append(f"bytes read and written: the backend {device.platform!r} does not report them.")
    elif program.loops:
        traffic = None
        notes.append("bytes read and written: the step has loops, of which the compiler counts one iteration.")
    if "while" in program.loops:
        notes.append("FLOPs: loops whose number of iterations depends on the data are counted with one iteration.")
    sent = 0.0
    if len(step.devices) > 1:
        try:
            sent = collectives(program.compiled).total.wire_bytes
        except ValueError as error:
            sent = None
            notes.append(f"bytes sent: {error}.")
    largest, reason = _largest(step, program, memory)
    seconds = None
    if measure:
        rate, bandwidth = _rates(device, step.settings.policy.compute if step.settings.policy else "float32")
        seconds = max(program.flops / rate, (traffic or 0) / bandwidth)
    flops, memory_used = (program.forward, max(program.flops - program.forward, 0)), program.memory
    notes += reason
    return Cost(size, len(step.devices), program.values, *flops, memory_used, traffic, sent, seconds, largest, tuple(notes))


class _Program(NamedTuple):
    """The compiled step for a batch of `size` rows."""

    size: int
    compiled: Any
    memory: Memory
    values: int  # of the parameters
    forward: int  # FLOPs of the forward pass
    flops: int  # FLOPs of the step
    loops: frozenset[str]  # primitives of its loops: "scan", "while"


class _Step:
    """The training step of `fit` for shapes, to compile it for batches of several sizes."""

    def __init__(self, model: Any, inputs: Any, options: FitOptions) -> None:
        self.options, self.settings, self.devices = options, run_settings(options), resolve(options.devices)
        self.multiple = len(self.devices) * options.micro_batches
        model, params, aux = split_trained(model, options.params, options.aux)
        if callable(model) and not isinstance(model, Model | Symbol) and adapter_of(model) is None:
            params, aux = jax.tree.map(spec_of, (params, aux))  # so that the parameters of a function are not copied
        of_losses = {name: getattr(options, name) for name in ("loss_weights", "loss_per_batch", "gather_outputs", "row_axes")}
        model = model_and_values(model, options.loss, params, aux, **of_losses)[0]
        self.specs = _batch_specs(model, inputs)
        self.rows = rows(check_batch(Batch(self.specs), model.batch_axes), model.batch_axes)
        self.model = model.bound(self.specs)
        check_heads(self.model)
        self.chosen = choose_optimizer(options, self.model, 1)

    def program(self, size: int) -> _Program:
        """Compile the step for `size` rows over all devices."""
        model, options, count, axes = self.model, self.options, len(self.devices), self.model.batch_axes
        whole, part = _resized(self.specs, size, axes), Batch(_resized(self.specs, size // count, axes))

        def initial() -> tuple[TrainState, dict[str, Any]]:
            state = init_state(model, self.chosen.optimizer, whole, frozen=options.frozen, policy=options.policy)
            trainable, _ = split_params(model, state.params, options.frozen)
            return state._replace(local=get_reduce(options.reduce).init(trainable)), trainable

        def forward(state: TrainState, batch: Batch) -> Any:
            key, policy = jax.random.key(0), self.settings.policy
            return model.apply(state.params, state.aux, dict(batch.inputs), key=key, train=True, policy=policy)[0]

        state, trainable = jax.eval_shape(initial)
        regularizers = by_exact_name(options.regularizers, model, trainable)
        step = make_step(options, model, self.chosen, dataclasses.replace(self.settings, regularizers=regularizers))
        with warnings.catch_warnings():  # more than 2**31 rows: JAX's indices are int32, but this program is only analyzed
            warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
            jaxprs = [jax.make_jaxpr(f)(state, part) for f in (forward, step)]
            equations = list(_equations(jaxprs[1]))
            written = num_bytes(part) + num_bytes([v.aval for e in equations for v in e.outvars if hasattr(v.aval, "shape")])
            if written > _MAX_BYTES:
                raise ValueError(
                    f"cost: a step of {size:,} rows writes {written:,} bytes, more than XLA counts; pass a smaller batch"
                )
            split, local = (part, state.local) if count == 1 else _stacked((part, state.local), count)
            run = compile_spmd(
                step, self.devices, (STATE_AXES, 0), OUT_AXES, donate=(0,), name="cost", recomputes=step.recomputes
            )
            compiled = run.lower(state._replace(local=local), split).compile()
        loops = frozenset(e.primitive.name for e in equations if e.primitive.name == "while" or e.params.get("length", 1) > 1)
        forward_flops, flops = (flops_of(jaxpr).flops for jaxpr in jaxprs)
        memory = _memory(compiled, state, part, num_bytes(trainable))
        return _Program(size, compiled, memory, count_parameters(state.params), forward_flops, flops, loops)


def _memory(compiled: Any, state: TrainState, batch: Batch, trainable: int) -> Memory:
    parameters, data = num_bytes((state.params, state.aux)), num_bytes(batch)
    optimizer, analysis = num_bytes(state) - parameters, compiled.memory_analysis()
    if analysis is None:
        return Memory(parameters, trainable, optimizer, None, data)
    arguments, results = analysis.argument_size_in_bytes, analysis.output_size_in_bytes
    total = arguments + results + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
    rest = max(total - parameters - optimizer - data, 0)
    gradients = min(trainable, rest)
    return Memory(parameters, gradients, optimizer, rest - gradients, data)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of the bodies in them."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for body in bodies(equation):
            yield from _equations(body)


def _batch_specs(model: Model, inputs: Any) -> Specs:
    """Shapes of the inputs and labels by name."""
    labels = None
    if isinstance(inputs, tuple) and not is_shape(inputs) and not hasattr(inputs, "_fields"):
        inputs, labels = inputs[0], inputs[1] if len(inputs) > 1 else None
    specs = input_specs(inputs, model.inputs, "cost")
    if labels is not None:
        specs |= input_specs(labels, model.labels, "cost")
    if not specs or (model.symbol is not None and any(n not in specs for n in model.inputs)):
        raise ValueError(f"cost: inputs has {list(specs)}, but the model has the inputs {list(model.inputs)}; pass those")
    if labels is None and model.symbol is not None and (missing := [n for n in model.labels if n not in specs]):
        known = {n: s.shape for n, s in specs.items() if n in model.symbol.list_arguments()}
        shapes = dict(zip(model.symbol.list_arguments(), infer_shape(model.symbol, partial=True, **known)[0], strict=True))
        if unknown := [n for n in missing if not shapes[n] or 0 in shapes[n]]:
            raise ValueError(
                f"cost: the shape of label {unknown[0]!r} cannot be inferred from {list(specs)}; pass (x, y), or a dict"
            )
        specs |= {n: jax.ShapeDtypeStruct(shapes[n], np.float32) for n in missing}
    return specs


def _resized(specs: Specs, count: int, axes: Mapping[str, int]) -> Specs:
    """The specs with another number of rows."""

    def resized(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
        return shape if axis is None else (*shape[:axis], count, *shape[axis + 1 :])

    return {n: jax.ShapeDtypeStruct(resized(s.shape, axes.get(n, 0)), s.dtype) for n, s in specs.items()}


def _stacked(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), tree)


def _largest(step: _Step, program: _Program, limit: float | None) -> tuple[int | None, list[str]]:
    """(Largest batch size that fits, notes): a line through two sizes, checked by compiling the size that it gives."""
    device, used, size = step.devices[0], program.memory.total, 0
    if limit is None and device.platform != "cpu":
        limit = (device.memory_stats() or {}).get("bytes_limit")
    if used is None:
        return None, []
    if limit is None:
        return None, [f"largest batch: the device {device.device_kind!r} reports no memory limit; pass memory=, in bytes."]
    points = [(program.size, used), (2 * program.size, step.program(2 * program.size).memory.total or 0)]
    for _ in range(2):
        (low, below), (high, above) = points
        slope = (above - below) / (high - low)
        if slope <= 0:
            return None, ["largest batch: the memory of the program does not grow with the batch."]
        size = int((limit - below) / slope + low) // step.multiple * step.multiple
        if size < 1:
            return 0, []
        used = step.program(size).memory.total or 0
        if used <= limit:
            return size, []
        points = sorted([points[0], (size, used)]) if size != points[0][0] else points
    return None, [f"largest batch: about {size}, but its program needs {used:,} bytes; the memory does not grow linearly."]


@functools.cache
def _rates(device: Any, dtype: str) -> tuple[float, float]:
    """Measured (operations per second of a matrix product, bytes per second of reading and writing an array)."""
    n = 512 if device.platform == "cpu" else 4096
    x = jax.device_put(np.ones((n, n), jnp.dtype(dtype)), device)
    y = jax.device_put(np.ones(4 * n * n, np.float32), device)
    return 2 * n**3 / _fastest(jax.jit(lambda a: a @ a), x), 2 * y.nbytes / _fastest(jax.jit(lambda a: a + 1), y)


def _fastest(program: Any, x: Any) -> float:
    """Seconds of the fastest of five calls, after one that compiles."""
    return min(timeit.repeat(lambda: counters.wait(program(x)), number=1, repeat=6)[1:])  # sync: once per process


def _bytes(value: float | None) -> str:
    return _or_unknown(value, "{:,.0f} B")


def _or_unknown(value: Any, form: str) -> str:
    return "not known" if value is None else form.format(value)
