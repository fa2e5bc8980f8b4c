"""Models for other programs: StableHLO (one compiled program), safetensors (parameters), ONNX (node by node).

stablehlo(net, specs, params)    -> Program: call it, write it, `read` it without the graph
safetensors(path, params, aux)   -> a file of parameters
onnx(net, specs, params, aux)    -> onnx.ModelProto, and a file
"""

from jfit.export.archive import safetensors
from jfit.export.onnx_model import converters, onnx
from jfit.export.program import Program, read, stablehlo
from jfit.export.source import ExportError

__all__ = ["ExportError", "Program", "converters", "onnx", "read", "safetensors", "stablehlo"]
