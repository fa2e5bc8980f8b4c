"""load: a model with its parameters from files that any MXNet or jfit wrote, in one line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jfit.formats import FormatError, load_arrays, load_tensors
from jfit.graph import GraphError, Symbol
from jfit.graph import load as load_symbol
from jfit.graph import load_json as symbol_of
from jfit.graph.infer import infer_shape
from jfit.lowering.build import as_model, lower, lower_feeding, usual_inputs
from jfit.lowering.model import Aux, Model, Params, Trained, count_parameters
from jfit.ops import nearest
from jfit.train.evaluate import Placed

# Slots that parameters fill: a variable there that the file lacks is missing, anywhere else it is an input.
_PARAMETER_SLOTS = {"weight", "bias", "gamma", "beta", "alpha", "parameters", "moving_mean", "moving_var", "moving_avg"}
_EPOCH = re.compile(r"-(\d{4,})\.params$")


class Loaded(Trained):
    """A model with its parameters; unpacks as `model, params, aux`, and `fit`, `score` and `predict` take it as a model.

    Values that are assigned, as in `loaded.params["fc_bias"] = value`, are used from the next call on.

    Attributes:
        model: the model.
        params: parameters by name.  jax arrays are placed on the devices once, numpy arrays at every call.
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
        """The graph, or None."""
        return self.model.symbol

    def predict(self, data: Any, **given: Any) -> Any:
        """Outputs for every row of `data`, without labels; see `jfit.predict`.  Programs are kept for the next call."""
        return self._placed(given).predict(data)

    def score(self, data: Any, eval_metric: Any = "acc", **given: Any) -> dict[str, float]:
        """Loss and metrics over a data set; see `jfit.score`."""
        return self._placed(given).score(data, "acc" if eval_metric is None else eval_metric)

    def onto(self, net: Any, drop: bool = False) -> Loaded:
        """The same parameters for another network, such as one with a new last layer; `fit` draws what they lack.

        Args:
            net: the network.
            drop: leave out parameters that the network does not have.

        Raises:
            ValueError: the network does not have all parameters, and `drop` is not set.

        Example:
            >>> import jfit, numpy as np
            >>> body = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
            >>> params = {"fc_weight": np.eye(2, dtype="float32"), "fc_bias": np.zeros(2, "float32")}
            >>> old = jfit.Loaded(jfit.lower(jfit.sym.FullyConnected(body, num_hidden=9, name="top")), params, {})
            >>> top = jfit.sym.FullyConnected(old.symbol.get_internals()["fc_output"], num_hidden=3, name="new")
            >>> old.onto(jfit.sym.SoftmaxOutput(top, name="softmax")).params.keys() == params.keys()
            True
        """
        model = lower_feeding(net, (*self.model.inputs, *self.model.labels)) if isinstance(net, Symbol) else as_model(net)
        if model.symbol is None:
            raise ValueError("onto needs a network of a graph: the parameters of a function have no names in it; pass a Symbol")
        known = set(model.symbol.list_inputs())
        extra = [name for name in (*self.params, *self.aux) if name not in known]
        if extra and not drop:
            raise ValueError(
                f"the network has no variable {_named(extra)}, which these parameters are for{_near(extra[0], known)}; pass "
                "drop=True to leave them out"
            )
        kept = [{k: v for k, v in part.items() if k in known} for part in (self.params, self.aux)]
        return Loaded(model, *kept)

    def _placed(self, given: Mapping[str, Any]) -> Placed:
        """The values on the devices; they are placed again where they have changed."""
        known: dict[str, tuple[Placed, Any]] = self.__dict__.setdefault("_known", {})
        key, values = repr(sorted(given.items())), jax.tree.flatten((self.params, self.aux))
        if key not in known:
            known[key] = Placed(self, None, None, **{"eval_metric": None, **given}), values
            return known[key][0]
        placed, before = known[key]
        if not _same(before, values):
            placed.place(self.params, self.aux)
            known[key] = placed, values
        return placed

    def __repr__(self) -> str:
        return f"<Loaded {self.symbol!r}: {count_parameters(self.params):,} parameters, inputs {list(self.model.inputs)}>"


def _same(before: tuple[list[Any], Any], now: tuple[list[Any], Any]) -> bool:
    """Whether flattened values are the same; the contents of a numpy array may have changed in place."""
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
    """A model with its parameters from `prefix-symbol.json` and `prefix-0000.params`, written by any MXNet or by jfit.

    Args:
        prefix: path and beginning of the names; or the graph's own file (`net-symbol.json`); or one `net.safetensors` of
            `jfit.export.safetensors`, which holds both.
        epoch: number in the name of the parameter file; default: the highest there is, else `prefix.params`, else
            `prefix.safetensors`.
        inputs: names of the variables that are fed (data and labels), where they cannot be told: by default those without
            parameters in the file.
        params: the file of parameters, where its name is another one: .params (with or without `arg:` and `aux:`) or
            .safetensors.
        allow_missing: parameters may lack in the file; `fit` draws them.
        allow_extra: leave out arrays that the graph does not have.

    Returns:
        A `Loaded`: `model, params, aux = jfit.load(...)`, `.predict(x)`, `.score(data)`, `jfit.fit(loaded, data)`.

    Raises:
        FormatError: a file is damaged, or does not belong to the graph: missing, unknown or wrongly shaped arrays by name.
        FileNotFoundError: there is no such file.

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
        problem = "it holds no graph"
        raise FormatError(path, "header field 'symbol'", problem, "pass the graph's file, and this one as params=.")
    symbol = load_symbol(graph) if graph is not None else symbol_of(text or "")
    given, states = _sorted_out(path, symbol, arrays, allow_extra)
    model = lower(symbol, inputs=_inputs(symbol, given) if inputs is None else inputs)
    if not allow_missing:
        _refuse_missing(path, model, {*given, *states})
    _check_shapes(path, symbol, {**given, **states})
    return Loaded(model, _on_device(given), _on_device(states))


# ------------------------------------------------------------------------------------------------ files
def _paths(prefix: str, epoch: int | None, params: Any) -> tuple[str | None, str]:
    """(file of the graph or None, file of the parameters)."""
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
    found = _newest(stem) or next((p for p in (f"{stem}.params", f"{stem}.safetensors") if os.path.exists(p)), None)
    if found is None:
        raise FileNotFoundError(f"there is no {stem}-0000.params (of any epoch), {stem}.params or {stem}.safetensors")
    return (graph if os.path.exists(graph) or not found.endswith(".safetensors") else None), found


def _newest(stem: str) -> str | None:
    folder, name = os.path.split(stem)
    names = (
        [entry for entry in os.listdir(folder or ".") if entry.startswith(f"{name}-")] if os.path.isdir(folder or ".") else []
    )
    epochs = [(int(m[1]), entry) for entry in names if (m := _EPOCH.fullmatch(entry[len(name) :]))]
    return os.path.join(folder, max(epochs)[1]) if epochs else None


def _read(path: str) -> tuple[dict[str, Any], str | None]:
    """(arrays by name as the file has it, text of the graph where the file holds it)."""
    if path.endswith(".safetensors"):
        arrays, header = load_tensors(path)
        try:
            states = set(json.loads(header.get("aux", "[]")))
        except (ValueError, TypeError, RecursionError):
            states = set()
        return {f"aux:{k}" if k in states else k: v for k, v in arrays.items()}, header.get("symbol")
    found = load_arrays(path, sparse="dense")
    if isinstance(found, list):
        if found:
            raise FormatError(path, "names", f"the {len(found)} arrays have no names", "read such a list with load_arrays.")
        found = {}
    return {k: v for k, v in found.items() if v is not None}, None


def _on_device(arrays: Mapping[str, Any]) -> dict[str, jax.Array]:
    # One transfer for all: one by one, hundreds of small arrays take longer than the large ones.
    return jax.device_put({k: v.astype(jax.dtypes.canonicalize_dtype(v.dtype), copy=False) for k, v in arrays.items()})


# ------------------------------------------------------------------------------------------------ what belongs to the graph
def _sorted_out(path: str, symbol: Symbol, arrays: Mapping[str, Any], allow_extra: bool) -> tuple[Params, Aux]:
    """(parameters, auxiliary states) of the graph; the graph decides which is which, not the file."""
    states, arguments = set(symbol.list_auxiliary_states()), set(symbol.list_arguments())
    named = {(k[4:] if k[:4] in ("arg:", "aux:") else k): v for k, v in arrays.items()}
    extra = [name for name in named if name not in states and name not in arguments]
    if extra and not allow_extra:
        problem = f"the graph has no variable {_named(extra)}{_near(extra[0], states | arguments)}"
        if any(re.search(r"(^|\.)\d+\.", name) for name in extra):
            problem += " (names with numbers are gluon's for blocks within blocks, which no graph knows)"
        raise FormatError(
            path, f"array {extra[0][:80]!r}", problem, "check that the files belong together, or allow_extra=True."
        )
    return {k: v for k, v in named.items() if k in arguments}, {k: v for k, v in named.items() if k in states}


def _inputs(symbol: Symbol, given: Mapping[str, Any]) -> list[str]:
    """Variables that are fed: without values in the file, and either known as inputs or in no parameter's slot."""
    fed, states, slots = usual_inputs(symbol), set(symbol.list_auxiliary_states()), _parameter_slots(symbol)
    return [n for n in symbol.list_inputs() if n not in given and n not in states and (n in fed or n not in slots)]


def _parameter_slots(symbol: Symbol) -> set[str]:
    """Names of the variables that fill a parameter's slot of some operator."""
    found = set()
    for node in symbol.nodes():
        if node.op is not None:
            slots = zip(node.input_names(), node.inputs, strict=False)
            found.update(e.node.name for s, e in slots if e.node.op is None and s in _PARAMETER_SLOTS)
    return found


def _refuse_missing(path: str, model: Model, given: set[str]) -> None:
    assert model.symbol is not None
    fed = {*model.inputs, *model.labels}
    missing = [n for n in dict.fromkeys(model.symbol.list_inputs()) if n not in given and n not in fed]
    if missing:
        problem = f"the graph needs {_named(missing)}, the file has {len(given)} others{_near(missing[0], given)}"
        remedy = "name it in inputs= if it is fed; allow_missing=True leaves it to fit to draw it."
        raise FormatError(path, "names", problem, remedy)


def _check_shapes(path: str, symbol: Symbol, arrays: Mapping[str, Any]) -> None:
    """What the graph says about shapes without data; the rest is checked against the first batch."""
    try:
        infer_shape(symbol, partial=True, **{k: tuple(v.shape) for k, v in arrays.items() if 0 not in v.shape})
    except GraphError as error:
        name = next((k for k in arrays if re.search(rf"'{re.escape(k)}'", str(error))), "")
        where = f"array {name!r}" if name else "shapes"
        raise FormatError(path, where, str(error).rstrip("."), "check that the files belong together.") from None


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(repr(n[:80]) for n in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _near(name: str, known: set[str]) -> str:
    near = nearest(name, sorted(known), 1)
    return f" (did you mean {near}?)" if near else ""
