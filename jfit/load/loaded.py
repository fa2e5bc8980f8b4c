"""`load`: read a graph and its parameters from files written by MXNet or jfit, as one `Loaded` model."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jfit.evaluate.scorer import InferenceModel
from jfit.formats import FormatError, load_arrays, load_tensors
from jfit.graph import GraphError, Symbol
from jfit.graph import load as load_symbol
from jfit.graph import load_json as symbol_of
from jfit.graph.costs import parameter_nodes
from jfit.graph.infer import infer_shape
from jfit.lowering.build import as_model, default_inputs, lower, lower_with_inputs
from jfit.lowering.model import Aux, Model, Params, Trained, count_parameters
from jfit.ops import nearest

_EPOCH = re.compile(r"-(\d{4,})\.params$")


class Loaded(Trained):
    """A model with its parameters; a tuple (model, params, aux) that `fit`, `score` and `predict` accept as the model.

    `loaded.params[name] = value` changes the parameters that the next call uses.

    Attributes:
        model: the functions and metadata of the network, a `jfit.Model`.
        params: parameters by name.  Jax arrays are copied to the devices once, numpy arrays in every call, because they may
            have changed in place.
        aux: auxiliary states by name.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
        >>> jfit.Loaded(jfit.lower(net), params, {}).predict([[1.0, 2.0]]).tolist()
        [[1.0, 2.0]]
    """

    @property
    def symbol(self) -> Symbol | None:
        """`Symbol` (graph) of the model; None if the model is a function."""
        return self.model.symbol

    def predict(self, data: Any, **options: Any) -> Any:
        """Compute the outputs for every row of `data`; compiled programs are reused by the next call.

        Args:
            data: inputs, as in `jfit.predict`.
            options: further arguments of `jfit.predict`.

        Returns:
            NumPy array (rows, ...), or a tuple of arrays if the model has several outputs.
        """
        return self._placed(options).predict(data)

    def score(self, data: Any, eval_metric: Any = "auto", **options: Any) -> dict[str, float]:
        """Compute the loss and metrics over a data set; compiled programs are reused by the next call.

        Args:
            data: inputs and labels, as in `jfit.score`.
            eval_metric: metric, as in `jfit.score`.
            options: further arguments of `jfit.score`.

        Returns:
            Dict: metric name -> value.
        """
        return self._placed(options).score(data, "auto" if eval_metric is None else eval_metric)

    def onto(self, net: Any, drop: bool = False) -> Loaded:
        """Use the parameters in another network, such as one with a new last layer (transfer learning).

        Args:
            net: the other network, a `Symbol` or a `Model` of one; parameters are matched by name.  `fit` draws initial values
                for the parameters that only this network has.
            drop: leave out parameters that the other network does not have.

        Returns:
            A `Loaded` of the other network.

        Raises:
            ValueError: the other network lacks some of the parameters and `drop` is False, or it is not a graph.

        Example:
            >>> import jfit, numpy as np
            >>> body = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
            >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
            >>> old = jfit.Loaded(jfit.lower(jfit.sym.FullyConnected(body, num_hidden=9, name="top")), params, {})
            >>> top = jfit.sym.FullyConnected(old.symbol.get_internals()["fc_output"], num_hidden=3, name="new")
            >>> old.onto(jfit.sym.SoftmaxOutput(top, name="softmax")).params.keys() == params.keys()
            True
        """
        model = lower_with_inputs(net, (*self.model.inputs, *self.model.labels)) if isinstance(net, Symbol) else as_model(net)
        if model.symbol is None:
            raise ValueError("onto matches parameters to variables of a graph by name; this net is a function: pass a Symbol")
        variables = set(model.symbol.list_inputs())
        extra = [name for name in (*self.params, *self.aux) if name not in variables]
        if extra and not drop:
            names = f"{_named(extra)}{_near(extra[0], variables)}"
            raise ValueError(f"the network has no variable for {names}; drop=True leaves them out")
        matching = [{k: v for k, v in part.items() if k in variables} for part in (self.params, self.aux)]
        return Loaded(model, *matching)

    def _placed(self, options: Mapping[str, Any]) -> InferenceModel:
        """Return the cached `InferenceModel` (the model with its parameters on devices) for these options of `predict`.

        Parameter values that have changed since the last call are copied to the devices.
        """
        cache: dict[str, tuple[InferenceModel, Any]] = self.__dict__.setdefault("_cache", {})
        key, values = repr(sorted(options.items())), jax.tree.flatten((self.params, self.aux))
        if key not in cache:
            cache[key] = InferenceModel(self, None, None, **{"eval_metric": None, **options}), values
            return cache[key][0]
        placed, before = cache[key]
        if not _same(before, values):
            placed.set_params(self.params, self.aux)
            cache[key] = placed, values
        return placed

    def __repr__(self) -> str:
        return f"<Loaded {self.symbol!r}: {count_parameters(self.params):,} parameters, inputs {list(self.model.inputs)}>"


def _same(before: tuple[list[Any], Any], now: tuple[list[Any], Any]) -> bool:
    """Return whether two flattened pytrees have the same jax arrays; False for numpy arrays, which may change in place."""
    (old, structure), (new, structure_now) = before, now
    return structure == structure_now and all(a is b and isinstance(a, jax.Array) for a, b in zip(old, new, strict=True))


def load(
    prefix: str | os.PathLike[str],
    epoch: int | None = None,
    inputs: Sequence[str] | None = None,
    *,
    params: str | os.PathLike[str] | None = None,
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Loaded:
    """Load a model with its parameters from `prefix-symbol.json` and `prefix-0000.params`, written by MXNet or jfit.

    Args:
        prefix: the common path prefix of both files (`models/net`), or the path of the graph file (`models/net-symbol.json`),
            or of a file of `jfit.export.safetensors`, which contains both (`models/net.safetensors`).
        epoch: number in the name of the parameter file.  Default: the highest that exists, else `prefix.params`, else
            `prefix.safetensors`.
        inputs: names of the data and label variables.  Default: those without values in the parameter file.
        params: path of the parameter file (.params or .safetensors) if its name does not follow from `prefix`.
        allow_missing: accept parameters of the graph that have no values in the file; `fit` draws initial values for them.
        allow_extra: ignore arrays in the file that the graph has no variable for.

    Returns:
        A `Loaded`: `model, params, aux = jfit.load(...)`, `.predict(x)`, `.score(data)`, `jfit.fit(loaded, data)`.

    Raises:
        FormatError: a file is damaged, or the files do not match: an array is missing, unknown or has another shape.
        FileNotFoundError: a file does not exist.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> net.save("small-symbol.json")
        >>> arrays = {"arg:fc_weight": np.eye(2, dtype="float32"), "arg:fc_bias": np.zeros(2, "float32")}
        >>> _ = jfit.formats.save_arrays("small-0003.params", arrays)
        >>> jfit.load("small").predict(np.float32([[1, 2]])).tolist()
        [[1.0, 2.0]]
    """
    graph, path = _paths(os.fspath(prefix), epoch, params)
    arrays, text = _read(path)
    if graph is None and text is None:
        problem = "it contains no graph"
        raise FormatError(path, "header field 'symbol'", problem, "pass the path of the graph file, and this one as params=.")
    symbol = load_symbol(graph) if graph is not None else symbol_of(text or "")
    values, states = _split_arrays(path, symbol, arrays, allow_extra)
    model = lower(symbol, inputs=_inputs(symbol, values) if inputs is None else inputs)
    if not allow_missing:
        _check_missing(path, model, {*values, *states})
    _check_shapes(path, symbol, {**values, **states})
    return Loaded(model, _on_device(values), _on_device(states))


# ------------------------------------------------------------------------------------------------ files
def _paths(prefix: str, epoch: int | None, params: Any) -> tuple[str | None, str]:
    """Return (path of the graph file, path of the parameter file); the first is None if the parameter file contains the graph.

    Args:
        prefix: path prefix of both files, path of the graph file, or path of a .safetensors file with both.
        epoch: number in the name of the parameter file; None: the highest that exists.
        params: path of the parameter file; None: determined by `prefix` and `epoch`.
    """
    if prefix.endswith(".safetensors"):
        return None, prefix
    graph = prefix if prefix.endswith(".json") else f"{prefix}-symbol.json"
    if graph != prefix and not os.path.exists(graph) and os.path.exists(f"{prefix}.json"):
        graph = f"{prefix}.json"
    stem = graph.removesuffix(".json").removesuffix("-symbol")
    if params is not None:
        return graph, os.fspath(params)
    if epoch is not None:
        return graph, f"{stem}-{epoch:04d}.params"
    path = _latest_epoch(stem) or next((p for p in (f"{stem}.params", f"{stem}.safetensors") if os.path.exists(p)), None)
    if path is None:
        raise FileNotFoundError(f"there is no {stem}-0000.params (of any epoch), {stem}.params or {stem}.safetensors")
    return (graph if os.path.exists(graph) or not path.endswith(".safetensors") else None), path


def _latest_epoch(stem: str) -> str | None:
    paths = glob.glob(f"{glob.escape(stem)}-*.params")
    epochs = [(int(m[1]), path) for path in paths if (m := _EPOCH.fullmatch(path[len(stem) :]))]
    return max(epochs)[1] if epochs else None


def _read(path: str) -> tuple[dict[str, Any], str | None]:
    """Read a parameter file; returns (arrays by name, `arg:` and `aux:` before some of them; symbol.json text or None)."""
    if path.endswith(".safetensors"):
        arrays, header = load_tensors(path)
        try:
            states = set(json.loads(header.get("aux", "[]")))
        except (ValueError, TypeError, RecursionError):
            states = set()
        # jfit writes names as they are, also one that begins with "arg:"; others may have kept the prefixes of a .params file
        argument = "arg:" if header.get("format") == "jfit" else ""
        return {f"aux:{k}" if k in states else argument + k: v for k, v in arrays.items()}, header.get("symbol")
    arrays = load_arrays(path, sparse="dense")
    if isinstance(arrays, list):
        if arrays:
            raise FormatError(path, "names", f"the {len(arrays)} arrays have no names", "read such a list with load_arrays.")
        arrays = {}
    return {k: v for k, v in arrays.items() if v is not None}, None


def _on_device(arrays: Mapping[str, Any]) -> dict[str, jax.Array]:
    # One device_put for all arrays: hundreds of calls for small arrays would take longer than the transfer itself.
    return jax.device_put({k: v.astype(jax.dtypes.canonicalize_dtype(v.dtype), copy=False) for k, v in arrays.items()})


# ------------------------------------------------------------------------------------------------ arrays and variables
def _split_arrays(path: str, symbol: Symbol, arrays: Mapping[str, Any], allow_extra: bool) -> tuple[Params, Aux]:
    """Split arrays into (parameters, auxiliary states) as the graph uses them; prefixes `arg:` and `aux:` are ignored."""
    states, arguments = set(symbol.list_auxiliary_states()), set(symbol.list_arguments())
    named = {(k[4:] if k[:4] in ("arg:", "aux:") else k): v for k, v in arrays.items()}
    extra = [name for name in named if name not in states and name not in arguments]
    if extra and not allow_extra:
        problem = f"the graph has no variable {_named(extra)}{_near(extra[0], states | arguments)}"
        if any(re.search(r"(^|\.)\d+\.", name) for name in extra):
            problem += " (gluon's save_parameters writes names such as '0.weight', which no graph has; use its export)"
        remedy = "check that the files belong together, or pass allow_extra=True."
        raise FormatError(path, f"array {extra[0][:80]!r}", problem, remedy)
    return {k: v for k, v in named.items() if k in arguments}, {k: v for k, v in named.items() if k in states}


def _inputs(symbol: Symbol, values: Mapping[str, Any]) -> list[str]:
    """Return the names of the data and label variables of a graph.

    These are the variables without values in the file, except those that an operator uses as a parameter (such as weight) and
    that are not inputs by default (see `default_inputs`).

    Args:
        symbol: the `Symbol` of the network.
        values: parameters in the file, by name.
    """
    defaults, order = default_inputs(symbol), symbol.nodes()
    parameters = parameter_nodes(order)
    variables = [n for n in order if n.op is None and n.name not in values]
    return [n.name for n in variables if n.name in defaults or id(n) not in parameters]


def _check_missing(path: str, model: Model, loaded: set[str]) -> None:
    assert model.symbol is not None
    inputs = {*model.inputs, *model.labels}
    missing = [n for n in dict.fromkeys(model.symbol.list_inputs()) if n not in loaded and n not in inputs]
    if missing:
        problem = f"the graph needs {_named(missing)}, the file has {len(loaded)} other arrays{_near(missing[0], loaded)}"
        remedy = "if it is a data input, name it in inputs=; if fit shall draw initial values for it, pass allow_missing=True."
        raise FormatError(path, "names", problem, remedy)


def _check_shapes(path: str, symbol: Symbol, arrays: Mapping[str, Any]) -> None:
    """Check the shapes that the graph determines without data; the others are checked with the first batch."""
    try:
        infer_shape(symbol, partial=True, **{k: tuple(v.shape) for k, v in arrays.items() if 0 not in v.shape})
    except GraphError as error:
        name = next((k for k in arrays if re.search(rf"'{re.escape(k)}'", str(error))), "")
        where = f"array {name!r}" if name else "shapes"
        raise FormatError(path, where, str(error).rstrip("."), "check that the files belong together.") from None


def _named(names: Sequence[str]) -> str:
    text = ", ".join(repr(n[:80]) for n in names[:5])
    return text + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _near(name: str, candidates: set[str]) -> str:
    near = nearest(name, sorted(candidates), 1)
    return f" (did you mean {near}?)" if near else ""
