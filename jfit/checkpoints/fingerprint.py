"""The fingerprint of a run: all that decides its results, saved in checkpoints and compared when a run is resumed.

A resumed run has the results of the uninterrupted one only with the same model, optimizer, settings and data.  Differences in
these raise an error, unless the user allows them.  Other versions, devices, CPU cores and compiler flags are logged; they raise
an error only if reduce="ordered" promised the same bits.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import json
import logging
import os
import platform
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from importlib import metadata
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.data import ArrayData, StreamData
from jfit.distributed import num_processes
from jfit.lowering.model import Model
from jfit.parallel.mesh import MeshDevices
from jfit.platforms import threads
from jfit.programs import ByIdentity, Constants

SUMS = ("psum", "sharded", "sharded_parameters")  # values of reduce= with the same sums up to rounding
SAMPLE_ROWS, SAMPLE_BYTES = 64, 4 << 20  # of each array of the data; arrays of at most SAMPLE_BYTES are compared whole
MOST_BYTES = 64 << 20  # of an array that a function uses; of larger ones a sample is compared
_MAX_DEPTH = 40
_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "jfit")
ENVIRONMENT = ("versions", "devices", "processes", "cores", "flags")
# settings of jax with which equal programs, or the same function, can give other numbers, and their defaults
_CONFIG: dict[str, Any] = {"enable_x64": False, "default_matmul_precision": None, "threefry_partitionable": True}
_CONFIG |= {"default_prng_impl": "threefry2x32", "random_seed_offset": 0, "numpy_dtype_promotion": "standard"}
_CONFIG |= {"disable_jit": False, "disable_most_optimizations": False, "optimization_level": "UNKNOWN"}
_CONFIG |= {"exec_time_optimization_effort": 0.0, "softmax_custom_jvp": False, "use_shardy_partitioner": True}
_CONFIG |= {"high_dynamic_range_gumbel": False}
_VARIABLES = ("JFIT_ROLL", "JFIT_CONV_FORMS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
# parts of names of XLA's flags without effect on bits
_NO_EFFECT = ("dump", "host_platform_device_count", "_log", "split_count", "parallelism", "profile", "timeout")


# ------------------------------------------------------------------------------------------------ what is compared
def fingerprint(
    model: Model, data: ArrayData | StreamData, state: tuple[Any, Any], inputs: Any, devices: Sequence[Any], settings: Any
) -> dict[str, Any]:
    """Return the fingerprint of a run, JSON-serializable.

    Args:
        model: the model that is trained.
        data: the training data.
        state: (parameters, auxiliary states), pytrees of `jax.ShapeDtypeStruct`.
        inputs: shapes and dtypes of the first batch, by input name.
        devices: the devices of the run.
        settings: dict of the arguments of `fit` that decide what is learned, or their descriptions.
    """
    optimizer = settings["optimizer"]
    described = {name: describe(value) for name, value in settings.items() if name != "optimizer"}
    rate = described.pop("learning_rate", None)
    if isinstance(described.get("frozen"), list) and all(isinstance(name, str) for name in described["frozen"]):
        described["frozen"] = sorted(set(described["frozen"]))  # names, in any order
    for name in ("optimizer_params", "schedule_params"):  # the learning rate may change, see `Run.resume_from`
        rates = ("learning_rate", "base_lr")
        described[name] = {k: v for k, v in (described.get(name) or {}).items() if k not in rates}
    return {
        "model": _model(model, state, inputs),
        "optimizer": optimizer if isinstance(optimizer, str) else describe_optimizer(optimizer),
        **described,
        **describe_data(data, inputs),
        "learning_rate": rate,
        "versions": {name: metadata.version(name) for name in _LIBRARIES} | {"python": platform.python_version()},
        "devices": f"{devices.mesh.size if isinstance(devices, MeshDevices) else len(devices)} x {devices[0].device_kind}",
        "processes": num_processes(),
        "cores": threads(),
        "flags": _flags(),
    }


def _flags() -> dict[str, Any]:
    """The flags of XLA, settings of jax other than the defaults, and environment variables that can change bits, by name."""
    flags = [flag.partition("=") for flag in os.environ.get("XLA_FLAGS", "").split()]
    values = {name: value or "true" for name, _, value in flags if not any(part in name for part in _NO_EFFECT)}
    values |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    settings = {f"jax_{name}": default for name, default in _CONFIG.items()}
    settings = {name: (getattr(jax.config, name, default), default) for name, default in settings.items()}
    return values | {name: describe(value) for name, (value, default) in settings.items() if value != default}


def describe_optimizer(optimizer: Any) -> str:
    """Name and digest; of an optax transformation a second digest without its numbers, one of which is the learning rate."""
    if optimizer.takes_rate:
        return f"{optimizer.name} {digest(optimizer)}"
    return f"optax {digest(optimizer)} {digest(optimizer, numbers=False)}"


def _model(model: Model, state: tuple[Any, Any], inputs: Any) -> str:
    """The digest of the graph, or of the jaxpr of a function with its constants."""
    if model.symbol is not None:
        return "graph " + digest(model.symbol.tojson(remove_amp_cast=False))
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        closed = jax.make_jaxpr(lambda *a: model.apply(*a[:3], key=a[3], train=True))(*state, dict(inputs), key)
    except Exception:  # for example because it reads the axis of the devices: then it is not compared
        return "function"
    # functions among the parameters of equations are printed with their addresses, which differ from process to process
    text = re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr))
    return "function " + digest([text, [describe(x) for x in closed.consts]])


def describe_data(data: ArrayData | StreamData, inputs: Any = None) -> dict[str, Any]:
    """Describe a data set as JSON: of arrays rows, dtypes and digests; of a stream the dtypes of `inputs`, its first batch."""
    if not isinstance(data, ArrayData):
        # batches may have different lengths, and an iterator cannot be read twice
        return {"data": "an iterable" if inputs is None else {name: str(spec.dtype) for name, spec in inputs.items()}}
    arrays = dict(data.arrays) | ({} if data.weight is None else {"weight": data.weight})
    return {"rows": data.num_rows, "data": {name: sample(array) for name, array in arrays.items()}}


def sample(array: Any) -> str:
    """Return dtype and shape of the rows of an array, and a digest of at most 64 of them."""
    array = np.atleast_1d(array)
    rows = len(array)
    row_bytes = max(int(np.prod(array.shape[1:])) * array.dtype.itemsize, 1)
    sampled = max(2, min(SAMPLE_ROWS, SAMPLE_BYTES // row_bytes))
    count = rows if rows * row_bytes <= SAMPLE_BYTES else min(rows, sampled)
    chosen = np.ascontiguousarray(np.asarray(array[np.unique(np.linspace(0, rows - 1, count).astype(int))]))
    return f"{array.dtype} {tuple(array.shape[1:])}, sample {digest(chosen)}"


# ------------------------------------------------------------------------------------------------ the comparison
def check(earlier: Mapping[str, Any], now: Mapping[str, Any], allowed: str | Iterable[str], directory: Any) -> None:
    """Compare the fingerprint in a checkpoint with that of the run that continues it.

    Args:
        earlier: the fingerprint in the checkpoint.
        now: that of this run.
        allowed: the argument `resume_with` of `fit`.
        directory: the folder of the checkpoint, for messages.

    Raises:
        ValueError: a setting differs that decides what is learned; or reduce="ordered" cannot keep its promise.
    """
    allowed = allowed_names(allowed, now)
    changes = changes_of(earlier, now)
    is_ordered = "ordered" in (str(now.get("reduce")), str(earlier.get("reduce")))
    refused, logged = [], []
    for name, text in changes:
        is_logged = name == "learning_rate" or (name in ENVIRONMENT and not (is_ordered and _changes_bits(name, earlier, now)))
        is_logged |= name == "reduce" and {earlier[name], now[name]} <= set(SUMS)
        is_logged |= name == "optimizer" and _differs_in_numbers(earlier[name], now[name])
        (logged if is_logged or "any" in allowed or name in allowed else refused).append((name, text))
    if logged:
        logging.getLogger("jfit").warning(
            "resume: the run in %s continues with differences: %s", directory, "; ".join(text for _, text in logged)
        )
    if refused:
        names = sorted({name for name, _ in refused})
        texts = "; ".join(text for _, text in refused[:4]) + (f"; and {len(refused) - 4} more" if len(refused) > 4 else "")
        reason = "reduce='ordered' could not keep the bits" if set(names) <= {*ENVIRONMENT} else "it would learn something else"
        raise ValueError(
            f"resume: the run in {directory} was trained with other settings, so {reason}: {texts}. Pass the earlier values, "
            f"or allow the change with resume_with={names!r}"
        )


def allowed_names(allowed: str | Iterable[str], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in the argument `resume_with` of `fit`; raise a ValueError for one that is not in the fingerprint."""
    allowed = (allowed,) if isinstance(allowed, str) else tuple(allowed)
    if unknown := [name for name in allowed if name not in now and name not in ("any", "optimizer_params")]:
        raise ValueError(f"resume_with has {unknown[0]!r}; expected 'any', or names of these: {', '.join(now)}")
    return allowed


def changes_of(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of each difference; names that one of the two does not have are not compared."""
    versions = [fields.get("versions", {}) for fields in (earlier, now)]
    same_python = versions[0].get("python", "").rsplit(".", 1)[0] == versions[1].get("python", "").rsplit(".", 1)[0]
    same_jax = all(versions[0].get(name) == versions[1].get(name) for name in ("jax", "optax", "jfit"))
    changes = []
    new_rate = earlier.get("learning_rate") != now.get("learning_rate")
    for name in now:
        if name not in earlier or earlier[name] == now[name] or name in ("optimizer_params", "schedule_params"):
            continue
        old, new = earlier[name], now[name]
        if name == "data" and [*old.values()] == [*new.values()]:
            continue  # other names of the arguments of a function
        if name == "model" and not old.startswith("graph") and not same_jax:
            continue  # other versions of jax write other jaxprs
        if name in ("optimizer", "schedule", "loss", "regularizers") and _is_digest_only(old, new):
            if not (same_python and same_jax) or (new_rate and name in ("optimizer", "schedule")):
                continue  # other versions have other code; a new learning rate may be in the code
            changes += _parameters(name, earlier, now)
        elif isinstance(old, dict) and isinstance(new, dict):
            missing = "not set" if name in ("flags", "row_axes") else None
            keys = [key for key in {**old, **new} if old.get(key, missing) != new.get(key, missing)]
            changes += [(name, f"{name}: {key} was {old.get(key, missing)} and is {new.get(key, missing)}") for key in keys]
        else:
            changes.append((name, f"{name} was {short(old)} and is {short(new)}"))
    if earlier.get("schedule") == now.get("schedule"):
        changes += [] if earlier.get("schedule_params") == now.get("schedule_params") else _parameters("schedule", earlier, now)
    return changes


def _parameters(name: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The differences of an optimizer or schedule by parameter, if they are in its dict of parameters."""
    old, new = earlier.get(f"{name}_params") or {}, now.get(f"{name}_params") or {}
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    texts = [f"{key} of the {name} was {old.get(key)} and is {new.get(key)}" for key in keys]
    return [(name, text) for text in texts or [f"{name} was {short(earlier[name])} and is {short(now[name])}"]]


def _is_digest_only(old: Any, new: Any) -> bool:
    """Whether two descriptions 'name digest' differ in the digest only."""
    return isinstance(old, str) and isinstance(new, str) and " " in old and old.split(" ")[0] == new.split(" ")[0]


def _differs_in_numbers(old: str, new: str) -> bool:
    """Whether two optax transformations may differ in the learning rate only, which is a number in their functions."""
    old_parts, new_parts = old.split(" "), new.split(" ")
    return len(old_parts) == len(new_parts) == 3 and old_parts[::2] == new_parts[::2]


def _changes_bits(name: str, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a difference of versions, devices, cores or flags changes the bits of a run with reduce="ordered"."""
    if name == "flags":
        return True
    if name == "versions":
        return any(earlier[name].get(library) != now[name].get(library) for library in ("jax", "jaxlib"))
    if name == "processes":
        return False
    old, new = (fields["devices"].partition(" x ")[2] for fields in (earlier, now))
    return old != new or (name == "cores" and "cpu" in new.lower())


def named_leaves(values: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the values in nested dicts; a name joins the keys on the way to a value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}{separator}{inner}", leaf) for inner, leaf in named_leaves(value, separator))
        else:
            yield name, value


def short(value: Any, most: int = 80) -> str:
    """Return a value as JSON, or a string as it is, in at most `most` characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."


# ------------------------------------------------------------------------------------------------ descriptions of values
def describe(value: Any) -> Any:
    """Describe a setting as JSON: numbers, strings and containers as they are, others by name and a digest.

    Example:
        >>> describe({"momentum": np.float32(0.5), "nesterov": True})
        {'momentum': 0.5, 'nesterov': True}
        >>> describe(lambda x: x + 1) == describe(lambda x: x + 1), describe(lambda x: x + 1) == describe(lambda x: x + 2)
        (True, False)
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [describe(item) for item in value]
    name = getattr(value, "__name__", None) or getattr(value, "name", None) or type(value).__name__
    return f"{str(name).replace(' ', '_')} {digest(value)}"


def digest(value: Any, numbers: bool = True) -> str:
    """Return 12 hexadecimal digits of a value: of the code of functions and all that they close over, of arrays the bytes.

    Equal digests of two processes mean equal values, unless a value has parts that Python cannot read, such as C code.  Of an
    array of more than `MOST_BYTES` only a sample of the elements is part of the digest.

    Args:
        value: any value.
        numbers: whether values of floats are part of it.
    """
    hasher = hashlib.sha256()
    _walk(value, hasher.update, {}, 0, numbers)
    return hasher.hexdigest()[:12]


def _walk(x: Any, add: Callable[[bytes], None], seen: dict[int, Any], depth: int, numbers: bool) -> None:
    if isinstance(x, float) and not numbers:
        add(b"float;")
        return
    if isinstance(x, (type(None), bool, int, float, complex, str, bytes, types.EllipsisType, np.dtype)):
        add(f"{type(x).__name__} {x!r};".encode())
        return
    add(f"{type(x).__module__}.{type(x).__qualname__}(".encode())
    if id(x) not in seen and depth < _MAX_DEPTH:
        parts = _parts(x)
        if not isinstance(x, tuple):
            seen[id(x)] = x  # alive, so that another object cannot get its id
        for part in parts:
            _walk(part, add, seen, depth + 1, numbers)
    add(b")")


def _parts(x: Any) -> list[Any]:
    """The values that decide what an object does."""
    if isinstance(x, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(counters.read(_sampled(counters.key_data(x))))  # sync: once per run
        return [str(array.dtype), x.shape, array.tobytes() if array.dtype != object else ""]
    if isinstance(x, (types.BuiltinFunctionType, type, types.ModuleType)):
        return [getattr(x, "__module__", ""), getattr(x, "__qualname__", x.__name__)]
    if isinstance(x, types.CodeType):
        return [x.co_code, list(x.co_consts), list(x.co_names)]
    if isinstance(x, types.FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or () if cell != types.CellType()]  # no empty ones
        return [x.__code__, x.__defaults__, x.__kwdefaults__, *cells, *_globals(x)]
    if isinstance(x, functools.partial):
        return [x.func, x.args, x.keywords]
    if isinstance(x, types.MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, Mapping):
        return [part for item in x.items() for part in item]
    if isinstance(x, Set):
        return sorted(digest(item) for item in x)
    if isinstance(x, (Constants, ByIdentity)):
        return [x.values if isinstance(x, Constants) else x.value]
    if hasattr(type(x), "program_key"):
        return [x.program_key]  # without the base learning rate
    if isinstance(x, (list, tuple)):
        return list(x)
    if dataclasses.is_dataclass(x):
        return [getattr(x, field.name) for field in dataclasses.fields(x) if field.name != "base_lr"]
    wrapped = getattr(x, "__wrapped__", None)
    return [wrapped if wrapped is not None else _attributes(x)]


def _attributes(x: Any) -> dict[str, Any]:
    """The attributes of an object, and its public `__slots__`, without what it has cached."""
    slots = [name for kind in type(x).__mro__ for name in np.atleast_1d(kind.__dict__.get("__slots__", ())).tolist()]
    values = {name: getattr(x, name) for name in slots if not str(name).startswith("_") and hasattr(x, name)}
    values |= getattr(x, "__dict__", {})
    # hashes of strings differ between processes
    is_cached = {n: n == "_hash" or isinstance(getattr(type(x), n, None), functools.cached_property) for n in values}
    return {name: value for name, value in values.items() if not is_cached[name]}


def _globals(fn: types.FunctionType) -> list[Any]:
    """Return the values of the global names that a function reads: numbers, strings, arrays, and functions of its module.

    All other values are left out, such as modules, other objects and functions of libraries.
    """
    values = [fn.__globals__[name] for name in _global_names(fn.__code__) if name in fn.__globals__]
    module = fn.__globals__.get("__name__")
    return [
        value
        for value in values
        if isinstance(value, (bool, int, float, str, np.ndarray, jax.Array))
        or (isinstance(value, types.FunctionType) and value.__module__ == module)
    ]


def _global_names(code: types.CodeType) -> list[str]:
    """The global names that code and the functions in it read; `co_names` has those of attributes, too."""
    names = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    for constant in code.co_consts:
        names += _global_names(constant) if isinstance(constant, types.CodeType) else []
    return list(dict.fromkeys(names))


def _sampled(x: Any) -> Any:
    """An array, or elements at equal distances of one that is too large to be read whole."""
    if x.nbytes <= MOST_BYTES:
        return x
    every = -(-x.nbytes // MOST_BYTES)
    return x.flat[::every] if isinstance(x, np.ndarray) else x.reshape(-1)[::every]
