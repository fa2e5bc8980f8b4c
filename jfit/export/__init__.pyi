"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.export.archive import safetensors as safetensors
from jfit.export.onnx_model import converters as converters, onnx as onnx
from jfit.export.program import Program as Program, read as read, stablehlo as stablehlo
from jfit.export.source import ExportError as ExportError
