"""Export models to other programs: StableHLO (one compiled program), safetensors (parameters), ONNX (node by node).

    stablehlo(net, specs, params)    -> Program, which can be called, written to a file, and `read` without the graph
    safetensors(path, params, aux)   -> a file of parameters
    onnx(net, specs, params, aux)    -> onnx.ModelProto, optionally written to a file

Submodules are imported on the first access to one of their names, so that `import jfit` stays fast.
"""

from jfit import lazy as _lazy

_lazy.stub(__name__)
