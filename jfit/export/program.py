"""StableHLO: a forward pass or a train step as one compiled program in a file, for any batch size.

file = b"JFITPROG", length of the header (8 bytes, little endian), header (JSON), the program as jax.export writes it
"""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jfit.export.source import ExportError, Source, batch_rows, check_parameters, source_of, specs_with
from jfit.formats import FormatError, atomic_write
from jfit.lowering.model import flatten_names
from jfit.step import train_step
from jfit.step.state import TrainState, init_state

MAGIC = b"JFITPROG"
PLATFORMS = ("cpu", "cuda", "tpu")
_REMEDY = "the file is damaged or no program of jfit.export: write it again."
_ARGUMENTS = {"forward": ("params", "aux", "inputs"), "baked": ("inputs",), "train": ("state", "batch")}


class Program:
    """A program that needs no graph any more: call it, write it, look at its names and shapes.

    Attributes:
        kind: `forward` (called with params, aux, inputs), `baked` (called with inputs) or `train` (with state, batch).
        arguments: for each argument, name -> jax.ShapeDtypeStruct; a symbol stands for the batch.
        outputs: names of the outputs; for `train` those of the second result.
        platforms: where it runs.
        exported: the jax.export.Exported itself.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.relu(jfit.sym.Variable("data"), name="r")
        >>> program = jfit.export.stablehlo(net, {"data": (2, 3)}, {}, platforms=("cpu",))
        >>> program.outputs, program.arguments["inputs"]["data"].shape
        (('r_output',), (b, 3))
        >>> program({}, {}, {"data": -np.ones((5, 3), "float32")})[0].shape
        (5, 3)
    """

    def __init__(self, exported: export.Exported, kind: str, outputs: Sequence[str]) -> None:
        self.exported, self.kind, self.outputs = exported, kind, tuple(outputs)
        leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
        given, _ = jax.tree.unflatten(exported.in_tree, leaves)
        self.arguments: dict[str, dict[str, Any]] = dict(zip(_ARGUMENTS[kind], given, strict=True))
        self.platforms = tuple(exported.platforms)
        self._call = jax.jit(exported.call)

    def __call__(self, *given: Mapping[str, Any]) -> Any:
        """Run it: outputs in order for a forward pass, (state, out) by name for a train step."""
        if len(given) != len(self.arguments):
            raise ExportError(
                f"the program takes {len(self.arguments)} dicts ({', '.join(self.arguments)}), {len(given)} were given"
            )
        return self._call(*(self._named(k, arrays) for k, arrays in zip(self.arguments, given, strict=True)))

    def _named(self, kind: str, given: Any) -> dict[str, Any]:
        given = flatten_names(given)[0] if isinstance(given, TrainState) else dict(given)
        wanted = self.arguments[kind]
        missing, unknown = [n for n in wanted if n not in given], [n for n in given if n not in wanted]
        if missing or (unknown and kind in ("inputs", "batch")):
            raise ExportError(
                f"{kind}: the program needs {sorted(wanted)[:20]}"
                + (f"; missing are {missing[:5]}" if missing else f"; {unknown[:5]} it does not know")
            )
        return {n: np.asarray(given[n], s.dtype) if _is_plain(given[n]) else given[n] for n, s in wanted.items()}

    def to_bytes(self) -> bytes:
        """The program with its names, as `read` takes it."""
        _check_flatbuffers()
        header = json.dumps({"kind": self.kind, "outputs": list(self.outputs)}).encode()
        return MAGIC + struct.pack("<Q", len(header)) + header + bytes(self.exported.serialize())

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, atomically."""
        return atomic_write(path, self.to_bytes())

    def __repr__(self) -> str:
        return f"<Program {self.kind} -> {', '.join(self.outputs)} on {', '.join(self.platforms)}>"


def _is_plain(value: Any) -> bool:
    return not isinstance(value, jax.Array)


def read(source: str | os.PathLike[str] | bytes) -> Program:
    """A program from a file or from its bytes; neither the graph nor the model's code is needed.

    Args:
        source: the file, or the bytes.

    Raises:
        FormatError: the bytes are no program.
        ImportError: the package flatbuffers is missing.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.relu(jfit.sym.Variable("data"), name="r")
        >>> path = jfit.export.stablehlo(net, {"data": (2, 3)}, {}, platforms=("cpu",)).write("r.program")
        >>> jfit.export.read(path)({}, {}, {"data": np.ones((1, 3), "float32")})[0].tolist()
        [[1.0, 1.0, 1.0]]
    """
    _check_flatbuffers()
    data, name = (source, "bytes") if isinstance(source, bytes) else (Path(source).read_bytes(), os.fspath(source))
    if data[: len(MAGIC)] != MAGIC or len(data) < len(MAGIC) + 8:
        raise FormatError(name, "byte 0", f"found {data[:8]!r}, needed {MAGIC!r}", _REMEDY)
    (length,) = struct.unpack_from("<Q", data, len(MAGIC))
    start = len(MAGIC) + 8
    if length > len(data) - start:
        raise FormatError(name, "byte 8", f"the header claims {length} bytes, {len(data) - start} are left", _REMEDY)
    try:
        header = json.loads(data[start : start + length])
        kind, outputs = header["kind"], [str(o) for o in header["outputs"]]
        if kind not in _ARGUMENTS:
            raise ValueError(f"kind is {kind!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(name, "header", f"it says no kind and outputs ({error})", _REMEDY) from None
    try:
        return Program(export.deserialize(bytearray(data[start + length :])), kind, outputs)
    except Exception as error:  # whatever a damaged flatbuffer makes the reader stumble over
        raise FormatError(
            name, f"byte {start + length}", f"no program of jax.export ({type(error).__name__})", _REMEDY
        ) from None


def stablehlo(
    net: Any,
    specs: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    aux: Mapping[str, Any] | None = None,
    *,
    batch: str | None = "b",
    bake: bool = False,
    train: bool = False,
    optimizer: Any = "sgd",
    state: TrainState | None = None,
    platforms: Sequence[str] = PLATFORMS,
    **settings: Any,
) -> Program:
    """A forward pass in evaluation, or a train step, as a program that needs no graph any more.

    Args:
        net: Symbol, Model, Run or loaded model.
        specs: name -> shape (or array) of the inputs; labels only for `train`.
        params: parameters by name, where `net` does not hold them.
        aux: auxiliary states by name.
        batch: name of the open batch size; None fixes the batch at the rows of `specs`.
        bake: parameters become constants of the program; else they are arguments.
        train: the step (state, batch) -> (state, out) instead of the forward pass.
        optimizer: as for `train_step`.
        state: where a train step's state has its shapes from; default: `init_state` with `optimizer` and `params`.
        platforms: where the program will run.
        settings: further arguments of `train_step`, such as metrics or schedule.

    Returns:
        The `Program`.

    Raises:
        ExportError: parameters are missing, or a node cannot be traced with an open batch size (it is named).
        ImportError: the package flatbuffers is missing.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
        >>> specs = {"data": (8, 4), "softmax_label": (8,)}
        >>> step = jfit.export.stablehlo(net, specs, train=True, optimizer="sgd", platforms=("cpu",))
        >>> state = jfit.init_state(jfit.lower(net), "sgd", {"data": np.ones((8, 4), "float32")})
        >>> state, out = step(state, {"data": np.ones((5, 4), "float32"), "softmax_label": np.zeros(5, "float32")})
        >>> int(state["step"]), out["loss"].shape
        (1, ())
    """
    _check_flatbuffers()  # before the work and not when its result is written
    source = source_of(net, specs, params, aux)
    rows = None if batch is None else export.symbolic_shape(batch)[0]
    inputs = specs_with(source.model, specs, rows)
    if train:
        kind, fn, arguments = _step(source, optimizer, settings, state or _start(source, optimizer, settings, specs), inputs)
    elif settings:
        raise TypeError(f"stablehlo got {sorted(settings)}, which only a train step has; pass train=True or leave them out")
    else:
        check_parameters(source)
        kind, fn, arguments = _forward(source, inputs, bake)
    outputs: list[str] = []
    try:
        exported = export.export(jax.jit(lambda *given: fn(outputs, *given)), platforms=list(platforms))(*arguments)
    except Exception as error:
        if batch is None:
            raise
        jax.eval_shape(lambda *given: fn([], *given), *arguments[:-1], specs_with(source.model, specs))  # or it never works
        where = [n for n in getattr(error, "__notes__", ()) if n.startswith("node ")] or ["the graph"]
        raise ExportError(
            f"{where[0]} cannot be traced with an open batch size ({str(error).splitlines()[0]}); "
            f"pass batch=None to export for the {batch_rows(source.model, specs)} rows of specs"
        ) from error
    return Program(exported, kind, outputs)


def _check_flatbuffers() -> None:
    """Refuse to go on without the package that jax.export writes and reads programs with; jax does not ask for it."""
    try:
        importlib.import_module("flatbuffers")
    except ImportError as error:
        raise ImportError("StableHLO programs need the package flatbuffers; pip install 'jfit[export]'") from error


def _forward(source: Source, inputs: Any, bake: bool) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    model = source.model

    def run(outputs: list[str], params: Any, aux: Any, inputs: Any) -> Any:
        outputs[:] = [o.name for o in model.outputs]
        return model.apply(params, aux, inputs, train=False)[0]

    if bake:
        return "baked", lambda outputs, given: run(outputs, source.params, source.aux, given), (inputs,)
    return "forward", run, (_shapes(source.params), _shapes(source.aux), inputs)


def _start(source: Source, optimizer: Any, settings: Mapping[str, Any], specs: Mapping[str, Any]) -> TrainState:
    """A state whose shapes are those that the step takes."""
    given = {k: settings[k] for k in ("metrics", "frozen") if k in settings}
    fixed = specs_with(source.model, specs)
    return init_state(source.model, optimizer, fixed, params=source.params or None, aux=source.aux or None, **given)


def _step(
    source: Source, optimizer: Any, settings: Any, state: TrainState, inputs: Any
) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    step = train_step(source.model, optimizer, **settings)
    flat, structure = flatten_names(state)
    names = list(flat)

    def run(outputs: list[str], given: Any, batch: Any) -> Any:
        new, out = step(jax.tree.unflatten(structure, [given[n] for n in names]), dict(batch))
        told = {k: v for k, v in flatten_names(out._asdict())[0].items() if k != "fence"}
        outputs[:] = list(told)
        return flatten_names(new)[0], told

    return "train", run, (_shapes(flat), inputs)


def _shapes(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    return {k: jax.ShapeDtypeStruct(np.shape(v), jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in arrays.items()}
