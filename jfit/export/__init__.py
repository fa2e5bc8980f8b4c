"""Export models to other programs: StableHLO (one compiled program), safetensors (parameters), ONNX (node by node).

    stablehlo(net, specs, params)    -> Program, which can be called, written to a file, and `read` without the graph
    safetensors(path, params, aux)   -> a file of parameters
    onnx(net, specs, params, aux)    -> onnx.ModelProto, optionally written to a file

Submodules are imported on the first access to one of their names, so that `import jfit` stays fast.
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
_MODULES = {  # public name -> submodule that defines it
    "ExportError": "source",
    "Program": "program",
    "converters": "onnx_model",
    "onnx": "onnx_model",
    "read": "program",
    "safetensors": "archive",
    "stablehlo": "program",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jfit.export' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"jfit.export.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
