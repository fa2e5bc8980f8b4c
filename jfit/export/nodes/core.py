"""Base of all ONNX converters: their registry, the graph under construction, and the node being converted.

A converter is a function of the graph, the node and the names of the node's input tensors. It adds ONNX nodes to the graph and
returns the name of its output (or a tuple of names). Nothing here imports onnx.

    @converts("relu")
    def relu(graph, node, data):
        return graph.add("Relu", data)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.ops import Attrs

INT64 = np.dtype(np.int64)
FARTHEST = 2**62  # a bound beyond the end of any axis, for Slice
TYPES = {  # dtype name -> its number in ONNX's TensorProto.DataType
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip


class Unsupported(Exception):
    """A node cannot be expressed in ONNX; the message is the reason, without the node's name."""


class Size(NamedTuple):
    """A size that depends on the batch size: times * rows + plus."""

    times: int
    plus: int = 0


Dim = int | Size
Dims = tuple[Dim, ...]


class Entry(NamedTuple):
    """Shape and dtype of one tensor."""

    shape: Dims
    dtype: np.dtype


class Step(NamedTuple):
    """One ONNX node: operator type, names of the input and output tensors, attributes."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]


class At(NamedTuple):
    """The MXNet node being converted, passed to its converter."""

    name: str
    attrs: Attrs
    ins: tuple[Entry | None, ...]  # shape and dtype of each input; None: an optional input without a value
    outs: tuple[Entry, ...]
    used: frozenset[int]  # indices of the outputs that are used
    constant: Callable[[int], np.ndarray | None]  # value of an input that depends only on parameters, else None

    @property
    def shape(self) -> Dims:
        """Shape of the first input."""
        return self.of(0).shape

    @property
    def ndim(self) -> int:
        """Number of axes of the first input."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the first input."""
        return self.of(0).dtype

    def of(self, index: int) -> Entry:
        """Return the shape and dtype of input `index`, which must have a value."""
        entry = self.ins[index]
        if entry is None:
            raise Unsupported(f"its input {index} has no value")
        return entry

    def axis(self, axis: int, extra: int = 0) -> int:
        """Convert a possibly negative axis of the first input (after adding `extra` axes to its rank) to a non-negative one."""
        return axis % (self.ndim + extra)

    def sizes(self, first: int = 0, end: int | None = None) -> list[int]:
        """Return the sizes of the axes [first, end) of the first input; Unsupported if one depends on the batch size."""
        return [fixed(d) for d in self.shape[first:end]]


def fixed(size: Dim) -> int:
    """Return a size as an int; raise Unsupported if it depends on the batch size."""
    if isinstance(size, Size):
        raise Unsupported("it requires a fixed size where the size depends on the batch; export with batch=None")
    return size


Converter = Callable[..., Any]
CONVERTERS: dict[str, Converter] = {}


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Decorator: register a converter under the canonical names of operators."""

    def add(fn: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(names, fn))
        return fn

    return add


class Graph:
    """An ONNX graph under construction.

    Attributes:
        steps: the nodes added so far, in topological order.
        constants: name -> value of every initializer.
        rows: (input, axis) whose size at run time is the number of rows; None if no input has it, or the batch is fixed.
    """

    def __init__(self, rows: tuple[str, int] | None = None) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, np.ndarray] = {}
        self.rows = rows
        self.at = "graph"  # name of the node being converted, the prefix of new tensor names
        self._taken: set[str] = set()
        self._cache: dict[Any, str] = {}  # a constant or `Size` -> its tensor

    def name(self, base: str) -> str:
        """Reserve a unique tensor name: `base`, or base_2, base_3, ... if it is taken."""
        unique, number = base, 1
        while unique in self._taken:
            number += 1
            unique = f"{base}_{number}"
        self._taken.add(unique)
        return unique

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """Add a node of type `kind` and return the name of its output, or a tuple of names if it has several outputs.

        An input '' is an omitted optional input; attributes that are None are left out.
        """
        names = tuple(self.name(f"{self.at}/{kind}") for _ in range(outputs))
        while inputs and inputs[-1] == "":
            inputs = inputs[:-1]
        self.steps.append(Step(kind, inputs, names, {k: v for k, v in attrs.items() if v is not None}))
        return names[0] if outputs == 1 else names

    def rename(self, old: str, new: str, start: int) -> None:
        """Rename a tensor, in place, in the nodes from index `start` on."""
        swap = lambda names: tuple(new if n == old else n for n in names)  # noqa: E731
        self.steps[start:] = [s._replace(inputs=swap(s.inputs), outputs=swap(s.outputs)) for s in self.steps[start:]]

    # -------------------------------------------------------------------------------- constants
    def const(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant tensor; equal constants are stored once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._cache:
            self._cache[key] = self.name("constant" if array.size != 1 else f"value_{array.reshape(-1)[0]}")
            self.constants[self._cache[key]] = array
        return self._cache[key]

    def ints(self, values: Sequence[int]) -> str:
        """Return the name of a constant int64 vector, ONNX's form of shapes and axes."""
        return self.const(list(values), INT64)

    # -------------------------------------------------------------------------------- sizes
    def dims(self, shape: Dims) -> str:
        """Return the name of a shape as an int64 vector; sizes that depend on the batch are computed when the model runs."""
        if all(isinstance(d, int) for d in shape):
            return self.ints([fixed(d) for d in shape])
        return self.add("Concat", *(self._size(d) for d in shape), axis=0)

    def _size(self, size: Dim) -> str:
        """Return the name of one size as an int64 vector of length 1."""
        if isinstance(size, int):
            return self.ints([size])
        if self.rows is None:
            raise Unsupported("it depends on the number of rows, but no input has an axis of that size")
        if size not in self._cache:
            name, axis = self.rows
            value = self.add("Slice", self.add("Shape", name), self.ints([axis]), self.ints([axis + 1]), self.ints([0]))
            if size.times != 1:
                value = self.add("Mul", value, self.ints([size.times]))
            self._cache[size] = self.add("Add", value, self.ints([size.plus])) if size.plus else value
        return self._cache[size]

    def reshape(self, data: str, shape: Dims) -> str:
        """Reshape a tensor; if only one size depends on the batch, it becomes -1 (inferred by ONNX)."""
        grows = [isinstance(d, Size) for d in shape]
        if sum(grows) == 1 and 0 not in shape:
            return self.add("Reshape", data, self.ints([-1 if g else fixed(d) for d, g in zip(shape, grows, strict=True)]))
        return self.add("Reshape", data, self.dims(shape))

    # -------------------------------------------------------------------------------- helpers for common nodes
    def cast(self, data: str, dtype: Any, current: Any = None) -> str:
        """Cast to a dtype; returns `data` itself if `current` is that dtype."""
        dtype = np.dtype(dtype)
        return data if current is not None and np.dtype(current) == dtype else self.add("Cast", data, to=TYPES[dtype.name])

    def binary(self, kind: str, data: str, value: Any, dtype: Any) -> str:
        """Add a binary node with a constant second operand, and return the name of its output kind(data, value)."""
        return self.add(kind, data, self.const(value, dtype))

    def transpose(self, data: str, order: Sequence[int]) -> str:
        """Permute the axes; returns `data` itself if the order does not change."""
        return data if list(order) == list(range(len(order))) else self.add("Transpose", data, perm=list(order))

    def unsqueeze(self, data: str, axes: Sequence[int]) -> str:
        """Insert axes of size 1 at these positions of the result."""
        return self.add("Unsqueeze", data, self.ints(axes)) if axes else data

    def squeeze(self, data: str, axes: Sequence[int]) -> str:
        """Remove these axes of size 1."""
        return self.add("Squeeze", data, self.ints(axes)) if axes else data

    def total(self, data: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """Sum a tensor over the axes."""
        return self.add("ReduceSum", data, self.ints(axes), keepdims=int(keepdims))

    def slice(self, data: str, axis: int, begin: int, end: int, step: int = 1) -> str:
        """Slice a tensor along one axis: data[begin:end:step]."""
        return self.add("Slice", data, *(self.ints([v]) for v in (begin, end, axis, step)))

    def clipped(self, ids: str, count: int) -> str:
        """Add a Clip node that limits int64 indices to those of `count` entries."""
        return self.add("Clip", ids, self.const(0, INT64), self.const(count - 1, INT64))

    def along(self, vector: str, axis: int, ndim: int) -> str:
        """Reshape a vector so that it broadcasts along `axis` of a tensor of `ndim` axes."""
        return self.unsqueeze(vector, [a for a in range(ndim) if a != axis])

    def full(self, shape: Dims, value: Any, dtype: Any) -> str:
        """Return a tensor filled with `value`: a stored constant if it is small and its shape fixed, else an Expand node."""
        if all(isinstance(d, int) for d in shape) and math.prod(fixed(d) for d in shape) <= 4096:
            return self.const(np.full([fixed(d) for d in shape], value), dtype)
        return self.add("Expand", self.const(value, dtype), self.dims(shape))
