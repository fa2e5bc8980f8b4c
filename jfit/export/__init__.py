"""Models for other programs: StableHLO (one compiled program), safetensors (parameters), ONNX (node by node).

    stablehlo(net, specs, params)    -> Program: call it, write it, `read` it without the graph
    safetensors(path, params, aux)   -> a file of parameters
    onnx(net, specs, params, aux)    -> onnx.ModelProto, and a file

What a name needs is imported when it is first used, so that `import jfit` costs nothing more.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jfit.export.archive import safetensors
    from jfit.export.onnx_model import converters, onnx
    from jfit.export.program import Program, read, stablehlo
    from jfit.export.source import ExportError

__all__ = ["ExportError", "Program", "converters", "onnx", "read", "safetensors", "stablehlo"]
_HOMES = {
    "ExportError": "source",
    "Program": "program",
    "converters": "onnx_model",
    "onnx": "onnx_model",
    "read": "program",
    "safetensors": "archive",
    "stablehlo": "program",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jfit.export' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = getattr(importlib.import_module(f"jfit.export.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
