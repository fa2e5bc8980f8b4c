"""What every converter uses: the registry, the graph that grows, and the node at hand.  Nothing here imports onnx.

A converter is one function per operator: it takes the graph, the node, and the names of its input tensors, adds ONNX nodes,
and returns the names of its outputs.

    @converts("relu")
    def relu(graph, node, data):
        return graph.add("Relu", data)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.ops import Attrs, lookup

INT64 = np.dtype(np.int64)
FARTHEST = 2**62  # beyond the end of any axis
TYPES = {  # numbers of the dtypes in ONNX's TensorProto
    name: number
    for number, name in {
        1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
        11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    }.items()
}  # fmt: skip


class Unsupported(Exception):
    """A node that has no ONNX form; the message is the reason, without the node's name."""


class Size(NamedTuple):
    """A size that grows with the batch: times * rows + plus."""

    times: int
    plus: int = 0


Dim = int | Size
Dims = tuple[Dim, ...]


class Entry(NamedTuple):
    """What is known of one tensor."""

    shape: Dims
    dtype: np.dtype


class Step(NamedTuple):
    """One ONNX node."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]


class At(NamedTuple):
    """The node that is converted: attributes, what is known of its inputs and outputs, which outputs are used."""

    name: str
    attrs: Attrs
    ins: tuple[Entry | None, ...]
    outs: tuple[Entry, ...]
    used: frozenset[int]
    constant: Callable[[int], np.ndarray | None]  # the value of an input that only depends on parameters

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
        """What is known of an input that is there."""
        found = self.ins[index]
        if found is None:
            raise Unsupported(f"its input {index} is not fed")
        return found

    def axis(self, axis: int, extra: int = 0) -> int:
        """An axis of the first input, counted from the front."""
        return axis % (self.ndim + extra)

    def sizes(self, first: int = 0, end: int | None = None) -> list[int]:
        """Sizes of these axes of the first input, which must not grow with the batch."""
        return [fixed(d) for d in self.shape[first:end]]


def fixed(size: Dim) -> int:
    """A size as a number.

    Raises:
        Unsupported: it grows with the batch.
    """
    if isinstance(size, Size):
        raise Unsupported("it needs a size to be fixed that grows with the batch; export with batch=None")
    return size


Converter = Callable[..., Any]
CONVERTERS: dict[str, Converter] = {}


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Register a converter under the canonical names of operators."""

    def add(fn: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(names, fn))
        return fn

    return add


def aliased(name: str) -> Converter | None:
    """The converter of an operator by any of its names, or None."""
    return CONVERTERS.get(lookup(name).name)


class Graph:
    """ONNX nodes and constants, in order.

    Attributes:
        steps: the nodes so far.
        constants: name -> value of every initializer.
        rows: name of the input and its axis that say how many rows the batch has, or None where the batch is fixed.
    """

    def __init__(self, rows: tuple[str, int] | None = None) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, np.ndarray] = {}
        self.rows = rows
        self.at = "graph"  # the node that is converted: names of new tensors begin with it
        self._taken: set[str] = set()
        self._known: dict[Any, str] = {}

    def name(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where a tensor has that name already."""
        found, number = wanted, 1
        while found in self._taken:
            number += 1
            found = f"{wanted}_{number}"
        self._taken.add(found)
        return found

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """Add a node; the name of its output, or a tuple of names where it has several."""
        made = tuple(self.name(f"{self.at}/{kind}") for _ in range(outputs))
        while inputs and inputs[-1] == "":
            inputs = inputs[:-1]
        self.steps.append(Step(kind, inputs, made, {k: v for k, v in attrs.items() if v is not None}))
        return made[0] if outputs == 1 else made

    def rename(self, old: str, new: str, start: int) -> None:
        """Rename a tensor that one of the nodes from `start` on made."""
        swap = lambda names: tuple(new if n == old else n for n in names)  # noqa: E731
        self.steps[start:] = [s._replace(inputs=swap(s.inputs), outputs=swap(s.outputs)) for s in self.steps[start:]]

    # -------------------------------------------------------------------------------- constants
    def const(self, value: Any, dtype: Any = None) -> str:
        """A constant; equal ones are kept once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self.name("constant" if array.size != 1 else f"value_{array.reshape(-1)[0]}")
            self.constants[self._known[key]] = array
        return self._known[key]

    def ints(self, values: Sequence[int]) -> str:
        """A vector of int64, as shapes and axes are given."""
        return self.const(list(values), INT64)

    # -------------------------------------------------------------------------------- sizes
    def dims(self, shape: Dims) -> str:
        """A shape as a vector of int64, computed from the rows of the batch where it depends on them."""
        if all(isinstance(d, int) for d in shape):
            return self.ints([fixed(d) for d in shape])
        return self.add("Concat", *(self._size(d) for d in shape), axis=0)

    def _size(self, size: Dim) -> str:
        """One size as a vector of one int64."""
        if isinstance(size, int):
            return self.ints([size])
        if self.rows is None:
            raise Unsupported("it needs the number of rows, and no input tells it")
        if size not in self._known:
            name, axis = self.rows
            found = self.add("Slice", self.add("Shape", name), self.ints([axis]), self.ints([axis + 1]), self.ints([0]))
            if size.times != 1:
                found = self.add("Mul", found, self.ints([size.times]))
            self._known[size] = self.add("Add", found, self.ints([size.plus])) if size.plus else found
        return self._known[size]

    def reshape(self, data: str, shape: Dims) -> str:
        """Reshape; one size that grows with the batch is left to -1."""
        grows = [isinstance(d, Size) for d in shape]
        if sum(grows) == 1 and 0 not in shape:
            return self.add("Reshape", data, self.ints([-1 if g else fixed(d) for d, g in zip(shape, grows, strict=True)]))
        return self.add("Reshape", data, self.dims(shape))

    # -------------------------------------------------------------------------------- common phrases
    def cast(self, data: str, dtype: Any, have: Any = None) -> str:
        """The tensor in a dtype; nothing happens where it is known to have it."""
        dtype = np.dtype(dtype)
        return data if have is not None and np.dtype(have) == dtype else self.add("Cast", data, to=TYPES[dtype.name])

    def binary(self, kind: str, data: str, value: Any, dtype: Any) -> str:
        """kind(data, value) with a number."""
        return self.add(kind, data, self.const(value, dtype))

    def transpose(self, data: str, order: Sequence[int]) -> str:
        """Axes in another order; nothing happens where it is the same."""
        return data if list(order) == list(range(len(order))) else self.add("Transpose", data, perm=list(order))

    def unsqueeze(self, data: str, axes: Sequence[int]) -> str:
        """New axes of size 1 at these places of the result."""
        return self.add("Unsqueeze", data, self.ints(axes)) if axes else data

    def squeeze(self, data: str, axes: Sequence[int]) -> str:
        """Without these axes of size 1."""
        return self.add("Squeeze", data, self.ints(axes)) if axes else data

    def total(self, data: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """Sum over axes."""
        return self.add("ReduceSum", data, self.ints(axes), keepdims=int(keepdims))

    def slice(self, data: str, axis: int, begin: int, end: int, step: int = 1) -> str:
        """data[begin:end:step] along an axis."""
        return self.add("Slice", data, *(self.ints([v]) for v in (begin, end, axis, step)))

    def along(self, vector: str, axis: int, ndim: int) -> str:
        """A vector shaped to broadcast along an axis."""
        return self.unsqueeze(vector, [a for a in range(ndim) if a != axis])

    def full(self, shape: Dims, value: Any, dtype: Any) -> str:
        """A constant everywhere: stored where it is small and fixed, else made when the graph runs."""
        if all(isinstance(d, int) for d in shape) and math.prod(fixed(d) for d in shape) <= 4096:
            return self.const(np.full([fixed(d) for d in shape], value), dtype)
        return self.add("Expand", self.const(value, dtype), self.dims(shape))
