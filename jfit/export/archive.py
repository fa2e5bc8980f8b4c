"""Export parameters as one safetensors file, with the graph in its header."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jfit.distributed import is_main
from jfit.export.source import ExportError
from jfit.formats import save_tensors
from jfit.lowering.model import named, values_of


def safetensors(
    path: str | os.PathLike[str],
    params: Any,
    aux: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    symbol: Any = None,
) -> Path:
    """Write parameters and auxiliary states to a safetensors file, each under its name.

    The metadata in the header also has the graph as the text of symbol.json (key `symbol`) and the names of the auxiliary
    states (key `aux`, a JSON list). Any reader of the safetensors format can load the file.

    Args:
        path: the file to write; in a job of several processes, rank 0 writes it.
        params: arrays by parameter name, or any pytree of arrays, named by their paths; or a Run or loaded model, whose
            parameters, auxiliary states and graph are used.
        aux: arrays by name of the auxiliary state; default: none, or those of the Run or loaded model.
        metadata: further entries for the header, text -> text; the keys `format`, `aux` and `symbol` are jfit's.
        symbol: the graph to store; default: none, or that of the Run or loaded model.

    Returns:
        The path of the file.

    Raises:
        ExportError: a name is both a parameter and an auxiliary state.

    Example:
        >>> import jfit, numpy as np
        >>> path = jfit.export.safetensors("net.safetensors", {"w": np.ones((2, 3))}, symbol=jfit.sym.Variable("data"))
        >>> from safetensors.numpy import load_file
        >>> load_file(path)["w"].shape
        (2, 3)
    """
    if all(hasattr(params, field) for field in ("model", "params", "aux")):
        model, params, aux = values_of(params, None, aux)
        symbol = model.symbol if symbol is None else symbol
    params, aux = (named(tree) for tree in (params, {} if aux is None else aux))
    if twice := sorted(set(params) & set(aux)):
        raise ExportError(f"{twice[0]!r} is both a parameter and an auxiliary state, but names must be unique; rename one")
    header = {"format": "jfit", "aux": json.dumps(sorted(aux))}
    if symbol is not None:
        header["symbol"] = symbol.tojson(remove_amp_cast=False)
    if not is_main():
        return Path(path)
    return save_tensors(path, {**params, **aux}, {**(metadata or {}), **header})
