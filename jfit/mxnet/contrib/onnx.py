"""`mx.onnx` and `mx.contrib.onnx`: ONNX files of graphs, by `jfit.export.onnx`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.export import converters
from jfit.export import onnx as export
from jfit.mxnet.contrib.onnx_import import get_model_metadata as get_model_metadata
from jfit.mxnet.contrib.onnx_import import import_model as import_model
from jfit.mxnet.contrib.onnx_import import import_to_gluon as import_to_gluon
from jfit.mxnet.ndarray.create import load as load_arrays
from jfit.mxnet.symbol import load


def export_model(
    sym: Any, params: Any, in_shapes: Sequence[Any] | None = None, in_types: Any = np.float32,
    onnx_file_path: str = "model.onnx", verbose: bool = False, dynamic: bool = False, dynamic_input_shapes: Any = None,
    run_shape_inference: bool = False, input_type: Any = None, input_shape: Sequence[Any] | None = None,
) -> str:  # fmt: skip
    """Write a graph and its parameters as an ONNX file.

    Args:
        sym: the Symbol, or the path of its JSON file.
        params: NDArrays by name, also with "arg:" and "aux:" before the names, or the path of a file of them.
        in_shapes: the shapes of the inputs, in the order of the graph's arguments.
        in_types: their dtypes: one, or one for each input.
        onnx_file_path: the file to write.
        verbose: not used.
        dynamic: whether the size of the batch is free.
        dynamic_input_shapes: not used: only the batch axis can be free.
        run_shape_inference: not used: the file has all shapes.
        input_type: an older name of `in_types`.
        input_shape: an older name of `in_shapes`.

    Returns:
        `onnx_file_path`.

    Raises:
        ImportError: the package onnx is not installed.
        ExportError: an operator has no ONNX form.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
        >>> export_model(net, {"fc_weight": mx.nd.ones((2, 3))}, [(1, 3)], onnx_file_path="net.onnx")  # doctest: +SKIP
        'net.onnx'
    """
    sym = load(sym) if isinstance(sym, str) else sym
    arrays = params if isinstance(params, Mapping) else load_arrays(params)
    values = {name.removeprefix("arg:").removeprefix("aux:"): array.asnumpy() for name, array in arrays.items()}
    inputs = [n for n in sym.list_arguments() if n not in values]
    shapes, types = in_shapes or input_shape or (), in_types if input_type is None else input_type
    types = types if isinstance(types, (list, tuple)) else [types] * len(shapes)
    specs = {n: np.zeros(s, t) for n, s, t in zip(inputs, shapes, types, strict=False)}
    states = set(sym.list_auxiliary_states())
    aux = {n: v for n, v in values.items() if n in states}
    args = {n: v for n, v in values.items() if n not in states}
    export(sym, specs, args, aux, path=onnx_file_path, batch="batch" if dynamic else None)
    return onnx_file_path


def get_operator_support(opset_version: int | None = None) -> list[str]:
    """Return the names of MXNet's operators that `export_model` can write.

    Args:
        opset_version: not used: files have opset 17.

    Returns:
        Names, sorted.

    Example:
        >>> "Convolution" in get_operator_support()
        True
    """
    return converters()
