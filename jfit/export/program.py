"""Export to StableHLO: a forward pass or a training step as one program in a file, for any batch size.

File format: b"JFITPROG", length of the header (8 bytes, little endian), header (JSON), the serialized jax.export.Exported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jfit.distributed import is_main
from jfit.export.source import ExportError, Source, batch_rows, check_parameters, shapes, source_of, specs_with
from jfit.formats import FormatError, atomic_write
from jfit.formats.atomic import read_file
from jfit.lazy import optional
from jfit.lowering.model import flatten_names, named
from jfit.platforms import exported_for
from jfit.step import train_step
from jfit.step.state import TrainState, init_state

MAGIC = b"JFITPROG"
PLATFORMS = ("cpu", "cuda", "tpu")
_REMEDY = "the file is damaged, or was not written by jfit.export.Program.write: write it again."
# Functions outside of the program whose arguments XLA checks before it calls them (typed functions, …_ffi, of LAPACK, cuBLAS,
# cuSOLVER and others), and names that XLA replaces by its own code.  Other functions are called with whatever the file says.
_CHECKED_CALLS = re.compile(
    r"(lapack|cu|hip)\w*_ffi|(cu|hip)_lu_pivots_to_permutation|mhlo\.\w+|shape_assertion|Sharding|SPMD\w+|"
    r"Eigh|Qr|LuDecomposition|ProductOfElementaryHouseholderReflectors|ApproxTopK|PartialReduce|TopK"
)
_CALL = re.compile(r"custom_call\s+@(?:\"([^\"]*)\"|([\w.$-]+))")
_ARGUMENTS = {"forward": ("params", "aux", "inputs"), "baked": ("inputs",), "train": ("state", "batch")}


class Program:
    """An exported program: a callable with named arguments and outputs that needs neither the graph nor the model's code.

    Made by `stablehlo` and `read`.

    Attributes:
        kind: `forward` (called with params, aux, inputs), `baked` (called with inputs) or `train` (called with state, batch).
        arguments: name of each argument -> {name of each array: jax.ShapeDtypeStruct}; a dynamic batch size is symbolic.
        outputs: names of the outputs; for `train`, the names in its second result.
        platforms: platforms that the program is compiled for: "cpu", "cuda", "tpu".
        exported: the underlying jax.export.Exported.

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
        positional, _ = jax.tree.unflatten(exported.in_tree, leaves)
        self.arguments: dict[str, dict[str, Any]] = dict(zip(_ARGUMENTS[kind], positional, strict=True))
        self.platforms = tuple(exported.platforms)
        self._call = jax.jit(exported.call)

    def __call__(self, *arguments: Mapping[str, Any]) -> Any:
        """Run the program.

        Args:
            arguments: one dict name -> array for each entry of `self.arguments`, in that order; the state of a training step
                may be a `TrainState`.

        Returns:
            A forward pass: the outputs, in the order of `self.outputs`. A training step: (state, out), two dicts name -> array.

        Raises:
            ExportError: the number of dicts is wrong, an array is missing, or an input is unknown.
        """
        if len(arguments) != len(self.arguments):
            expected = ", ".join(self.arguments)
            raise ExportError(f"the program takes the dicts {expected}, but {len(arguments)} arguments were passed")
        return self._call(*(self._named(k, arrays) for k, arrays in zip(self.arguments, arguments, strict=True)))

    def _named(self, kind: str, values: Any) -> dict[str, Any]:
        if isinstance(values, TrainState):
            values = flatten_names(values)[0]
        else:
            values = named(values) if kind in ("params", "aux") else dict(values)
        specs = self.arguments[kind]
        missing, unknown = [n for n in specs if n not in values], [n for n in values if n not in specs]
        if missing or (unknown and kind in ("inputs", "batch")):
            problem = f"missing: {missing[:5]}" if missing else f"unexpected: {unknown[:5]}"
            raise ExportError(f"{kind}: the program expects {sorted(specs)[:20]}; {problem}")
        return {n: x if isinstance(x := values[n], jax.Array) else np.asarray(x, s.dtype) for n, s in specs.items()}

    def to_bytes(self) -> bytes:
        """Serialize the program; `read` accepts the result."""
        _check_flatbuffers()
        content = bytes(self.exported.serialize())
        record = {"kind": self.kind, "outputs": list(self.outputs), "sha256": _digest(self.kind, self.outputs, content)}
        header = json.dumps(record).encode()
        return MAGIC + struct.pack("<Q", len(header)) + header + content

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the program to a file, atomically, and return its path.  In a job of several processes, rank 0 writes."""
        return atomic_write(path, self.to_bytes()) if is_main() else Path(path)

    def __repr__(self) -> str:
        return f"<Program {self.kind} -> {', '.join(self.outputs)} on {', '.join(self.platforms)}>"


def _digest(kind: str, outputs: Sequence[str], content: bytes) -> str:
    """SHA-256 of a program, checked before XLA reads it: damaged bytes would crash the process."""
    return hashlib.sha256(json.dumps([kind, *outputs]).encode() + content).hexdigest()


def read(source: str | os.PathLike[str] | bytes, *, trust: bool = False) -> Program:
    """Load a program written by `Program.write`; neither the graph nor the model's code is needed.

    Args:
        source: path of the file, or its contents as bytes.
        trust: whether to accept a program that calls any function of the process by name (a custom call), that was exported
            with safety checks of jax.export switched off, or that has no checksum. Such a program can crash the process. So can
            one that somebody forged, with a right checksum, which is not noticed.

    Returns:
        The `Program`.

    Raises:
        FormatError: the contents are not a program, or are damaged, or need `trust=True`.
        ImportError: the package flatbuffers is not installed.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.relu(jfit.sym.Variable("data"), name="r")
        >>> path = jfit.export.stablehlo(net, {"data": (2, 3)}, {}, platforms=("cpu",)).write("r.program")
        >>> jfit.export.read(path)({}, {}, {"data": np.ones((1, 3), "float32")})[0].tolist()
        [[1.0, 1.0, 1.0]]
    """
    _check_flatbuffers()
    data, name = (source, "bytes") if isinstance(source, bytes) else (read_file(source), os.fspath(source))
    start, place = len(MAGIC) + 8, "header"
    try:
        (length,) = struct.unpack_from("<Q", data, len(MAGIC))
        header, content = json.loads(data[start : start + length]), data[start + length :]
        kind, outputs, digest = header["kind"], [str(o) for o in header["outputs"]], header.get("sha256")
        if not data.startswith(MAGIC) or digest not in (None, _digest(kind, outputs, content)):
            raise ValueError("its first bytes or its checksum are others")
        place = f"byte {start + length}"
        program = Program(export.deserialize(bytearray(content)), kind, outputs)
        unsafe = "" if trust else _unsafe(program.exported, digest)
    except Exception as error:  # a damaged header or flatbuffer can raise any exception
        raise FormatError(name, place, f"not a program of jfit.export ({type(error).__name__}: {error})", _REMEDY) from None
    if unsafe:
        raise FormatError(name, place, unsafe, "pass trust=True if you know who wrote the file.")
    return program


def _unsafe(exported: export.Exported, digest: str | None) -> str:
    """What in the program may crash the process, as a part of a sentence; "" if nothing was found."""
    if digest is None:
        return "the program has no checksum"
    if exported.disabled_safety_checks:
        return f"the program was exported without the safety checks {[str(c) for c in exported.disabled_safety_checks][:5]}"
    calls = {quoted or plain for quoted, plain in _CALL.findall(exported.mlir_module())}
    unchecked = sorted(call for call in calls if not _CHECKED_CALLS.fullmatch(call))
    return f"the program calls {unchecked[:5]}, functions whose arguments are not checked" if unchecked else ""


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
    """Export a forward pass in evaluation mode, or a training step, as a StableHLO program (jax.export).

    Args:
        net: a Symbol, Model, Run or loaded model.
        specs: input name -> shape (or array), including the batch axis; labels only if `train`.
        params: parameters by name; default: those of `net`, if it is a Run or loaded model.
        aux: auxiliary states by name; default: those of `net`, if it is a Run or loaded model.
        batch: name of the dynamic batch dimension; None fixes the batch size to the one in `specs`.
        bake: make the parameters constants of the program instead of arguments.
        train: export the training step (state, batch) -> (state, out) instead of the forward pass.
        optimizer: the optimizer of the training step, as for `jfit.train_step`.
        state: a state with the shapes of the training step's; default: `init_state` with `optimizer` and `params`.
        platforms: the platforms to compile for; any of "cpu", "cuda", "tpu".
        settings: further arguments of `jfit.train_step`, such as metrics or schedule; only if `train`.

    Returns:
        The `Program`.

    Raises:
        ExportError: parameters are missing, or a node (named in the message) does not support a dynamic batch size.
        TypeError: `settings` are passed without `train`.
        ImportError: the package flatbuffers is not installed.

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
    _check_flatbuffers()  # before the export, not only when the program is written
    source = source_of(net, specs, params, aux)
    rows = None if batch is None else export.symbolic_shape(batch)[0]
    inputs = specs_with(source.model, specs, rows)
    if train:
        kind, fn, arguments = _step(source, optimizer, settings, state or _start(source, optimizer, settings, specs), inputs)
    elif settings:
        raise TypeError(f"stablehlo got {sorted(settings)}, which only apply to a training step; pass train=True or drop them")
    else:
        check_parameters(source)
        kind, fn, arguments = _forward(source, inputs, bake)
    outputs: list[str] = []
    traced = jax.jit(lambda *args: fn(outputs, *args))
    try:
        with exported_for("cpu" if "cpu" in platforms else platforms[0]):
            exported = export.export(traced, platforms=list(platforms))(*arguments)
    except Exception as error:
        if batch is None:
            raise
        # if tracing with a fixed batch size fails too, raise that error: the dynamic batch size is not the cause
        jax.eval_shape(lambda *args: fn([], *args), *arguments[:-1], specs_with(source.model, specs))
        where = [n for n in getattr(error, "__notes__", ()) if n.startswith("node ")] or ["the graph"]
        problem = f"{where[0]} cannot be traced with a dynamic batch size ({str(error).splitlines()[0]})"
        rows = batch_rows(source.model, specs)
        raise ExportError(f"{problem}; pass batch=None to export for the {rows} rows of specs") from error
    return Program(exported, kind, outputs)


def _check_flatbuffers() -> None:
    """Raise ImportError if the package flatbuffers is missing, which jax.export needs but JAX does not depend on."""
    optional("flatbuffers", "StableHLO programs require the package flatbuffers; pip install 'jfit[export]'")


def _forward(source: Source, inputs: Any, bake: bool) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    """Return (kind, function, shapes of its arguments) for the export of a forward pass.

    The function takes (an empty list, which tracing fills with the output names, *arguments) and returns the outputs.
    """
    model = source.model

    def run(outputs: list[str], params: Any, aux: Any, inputs: Any) -> Any:
        outputs[:] = [o.name for o in model.bound(inputs).outputs]
        return model.apply(params, aux, inputs, train=False)[0]

    if bake:
        return "baked", lambda outputs, inputs: run(outputs, source.params, source.aux, inputs), (inputs,)
    return "forward", run, (shapes(source.params), shapes(source.aux), inputs)


def _start(source: Source, optimizer: Any, settings: Mapping[str, Any], specs: Mapping[str, Any]) -> TrainState:
    """Return an initial training state, used only for its shapes and dtypes."""
    options = {k: settings[k] for k in ("metrics", "frozen", "log", "policy") if k in settings}
    fixed = specs_with(source.model, specs)
    return init_state(source.model, optimizer, fixed, params=source.params or None, aux=source.aux or None, **options)


def _step(
    source: Source, optimizer: Any, settings: Any, state: TrainState, inputs: Any
) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    """Return (kind, function, shapes of its arguments), as `_forward` does, for a training step whose state is a flat dict."""
    step = train_step(source.model, optimizer, **settings)
    flat, structure = flatten_names(state)
    names = list(flat)

    def run(outputs: list[str], state: Any, batch: Any) -> Any:
        new, out = step(jax.tree.unflatten(structure, [state[n] for n in names]), dict(batch))
        report = {k: v for k, v in flatten_names(out._asdict())[0].items() if k != "fence"}
        outputs[:] = list(report)
        return flatten_names(new)[0], report

    return "train", run, (shapes(flat), inputs)
