"""Parameters as one safetensors file, with the graph in its header."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jfit.export.source import ExportError
from jfit.formats import save_tensors


def safetensors(
    path: str | os.PathLike[str],
    params: Any,
    aux: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    symbol: Any = None,
) -> Path:
    """Write parameters and auxiliary states under their own names to a safetensors file, which any reader of the format reads.

    The header keeps the graph as symbol.json text (`symbol`) and the names of the auxiliary states (`aux`, a JSON list).

    Args:
        path: the file.
        params: parameters by name, or a Run or loaded model, which holds all of them.
        aux: auxiliary states by name.
        metadata: further text -> text for the header.
        symbol: the graph; default: that of the Run or loaded model.

    Returns:
        The path.

    Raises:
        ExportError: a name is both a parameter and an auxiliary state, or metadata uses a name of ours.

    Example:
        >>> import jfit, numpy as np
        >>> path = jfit.export.safetensors("net.safetensors", {"w": np.ones((2, 3))}, symbol=jfit.sym.Variable("data"))
        >>> from safetensors.numpy import load_file
        >>> load_file(path)["w"].shape
        (2, 3)
    """
    if all(hasattr(params, field) for field in ("model", "params", "aux")):
        held = params
        params, aux = held.params, held.aux if aux is None else aux
        symbol = held.model.symbol if symbol is None else symbol
    aux = aux or {}
    if twice := sorted(set(params) & set(aux)):
        raise ExportError(f"{twice[0]!r} is a parameter and an auxiliary state, a file holds one of a name; rename one")
    ours = {"format": "jfit", "aux": json.dumps(sorted(aux))}
    if symbol is not None:
        ours["symbol"] = symbol.tojson(remove_amp_cast=False)
    if taken := sorted(set(ours) & set(metadata or {})):
        raise ExportError(f"metadata has {taken[0]!r}, which jfit writes itself; use another name")
    return save_tensors(path, {**params, **aux}, {**ours, **(metadata or {})})
