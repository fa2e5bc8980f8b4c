"""The `Symbol` class: a `Graph` with operators, composition, shape inference, files and drawings."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from jfit.checks import name_hint
from jfit.graph import costs, drawing, html, infer, serial
from jfit.graph.compose import apply_op, function, reserved_by
from jfit.graph.names import RawName
from jfit.graph.nodes import Entry, Graph, Node, preview, replace_nodes, topological
from jfit.ops import ALIASES


def _operator(binary: str | None, scalar: str) -> Any:
    """Make a method such as `__add__`: it creates a node of operator `binary` for two symbols, of `scalar` for a number."""

    def apply(self: Symbol, other: Any) -> Any:
        if isinstance(other, Symbol):
            assert binary is not None
            return apply_op(binary, (self, other), {}, cls=type(self))
        if isinstance(other, numbers.Number) or (hasattr(other, "__float__") and np.ndim(other) == 0):
            return apply_op(scalar, (self,), {"scalar": other}, cls=type(self))
        if hasattr(other, "shape"):
            raise TypeError(f"cannot combine {self!r} with an array of shape {tuple(other.shape)}; use a Variable for it")
        return NotImplemented

    return apply


class Symbol(Graph):
    """A network, or part of one: a tuple of outputs of an immutable graph.

    The functions `jfit.sym.<operator>`, `jfit.sym.Variable` and Python's arithmetic operators create symbols.

    Attributes:
        heads: the outputs, a tuple of `jfit.graph.nodes.Entry` (node, output index).

    Example:
        >>> import jfit
        >>> x = jfit.sym.Variable("data")
        >>> y = jfit.sym.FullyConnected(x, num_hidden=10, name="fc1")
        >>> y.list_arguments(), y.list_outputs()
        (['data', 'fc1_weight', 'fc1_bias'], ['fc1_output'])
    """

    __slots__ = ()
    __array_ufunc__ = None  # makes numpy return NotImplemented in `np.float32(2) * symbol`, so that Python calls __rmul__

    # -------------------------------------------------------------------------------- composition
    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Self:
        """Compose: replace variables of this graph by other symbols.

        Args:
            args: replacements by position, in the order of `list_inputs`.
            name: new name of the output node.
            kwargs: replacements by variable name; each is a symbol with one output.

        Returns:
            A new symbol; this one is unchanged.

        Raises:
            TypeError: positional and named arguments are mixed, there are too many, or one is not a symbol with one output.
            ValueError: no variable has the name, or `name` is passed and the outputs are of several nodes.

        Example:
            >>> import jfit
            >>> net = jfit.sym.relu(jfit.sym.Variable("x"), name="r")
            >>> net(x=jfit.sym.tanh(jfit.sym.Variable("y"), name="t")).get_internals().list_outputs()
            ['y', 't_output', 'r_output']
        """
        if args and kwargs:
            raise TypeError("compose with positional symbols or with named ones, not both at once")
        replacements = self._replacements(args, kwargs)
        heads_before = self.raw_heads
        top = {id(h.node) for h in heads_before}

        def swap(node: Node, inputs: tuple[Entry, ...]) -> Entry | None:
            if node.op is None:
                return replacements[node.raw_name].raw_heads[0] if node.raw_name in replacements else None
            return Entry(node.rebuilt(inputs, name), 0) if name and id(node) in top else None

        if name and len(top) != 1:
            raise ValueError(f"name={name!r} needs a symbol with outputs of one node; {self!r} has outputs of {len(top)}")
        heads = replace_nodes(heads_before, swap)
        reserved = reserved_by((self, *replacements.values()))
        ends = [Entry(h.node, o.index) if name and o.node.op else h for h, o in zip(heads, heads_before, strict=True)]
        return type(self)(ends, reserved)

    def _replacements(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[RawName, Symbol]:
        """Check the arguments of `__call__`; returns a dict: name of a variable -> symbol that replaces it."""
        raw_names = [n.raw_name for n in topological(self.raw_heads) if n.op is None]
        if len(args) > len(raw_names):
            raise TypeError(f"got {len(args)} symbols for {len(raw_names)} variables: {preview(self).list_inputs()}")
        names: list[Any] = list(raw_names)
        if not all(key in raw_names for key in kwargs):  # a key may be an automatic name, so the graph has to be numbered
            names = self.list_inputs()
            raw_names = [n.raw_name for n in topological(self.raw_heads) if n.op is None]
        for key, value in (*zip(names, args, strict=False), *kwargs.items()):
            if key not in names:
                raise ValueError(f"no variable is named {key!r}: {name_hint(str(key), self.list_inputs())}")
            if not isinstance(value, Symbol) or len(value) != 1:
                name = preview(self).list_inputs()[names.index(key)]
                raise TypeError(f"variable {name!r} needs a symbol with one output, got {value!r}")
        by_name = {raw_names[names.index(key)]: value for key, value in kwargs.items()}
        return dict(zip(raw_names, args, strict=False)) if args else by_name

    def __bool__(self) -> bool:
        raise TypeError(f"the truth value of {self!r} is unknown until the graph runs; use sym.where, or compare with `is`")

    def __getattr__(self, key: str) -> Any:
        # Fluent form: x.reshape(shape=(0, -1)) is sym.reshape(x, shape=(0, -1)).
        if key.startswith("_") or key not in ALIASES:
            raise AttributeError(f"Symbol has no attribute {key!r}, and no operator has this name")
        op = function(key, type(self))
        return lambda *args, **kwargs: op(self, *args, **kwargs)

    # -------------------------------------------------------------------------------- arithmetic, one node each
    def __hash__(self) -> int:
        return id(self)

    __add__ = __radd__ = _operator("_Plus", "_PlusScalar")
    __mul__ = __rmul__ = _operator("_Mul", "_MulScalar")
    __sub__ = _operator("_Minus", "_MinusScalar")
    __rsub__ = _operator(None, "_RMinusScalar")
    __truediv__ = _operator("_Div", "_DivScalar")
    __rtruediv__ = _operator(None, "_RDivScalar")
    __mod__ = _operator("_Mod", "_ModScalar")
    __rmod__ = _operator(None, "_RModScalar")
    __pow__ = _operator("_Power", "_PowerScalar")
    __rpow__ = _operator(None, "_rpower_scalar")
    __eq__ = _operator("_Equal", "_equal_scalar")
    __ne__ = _operator("_Not_Equal", "_not_equal_scalar")
    __gt__ = _operator("_Greater", "_greater_scalar")
    __ge__ = _operator("_Greater_Equal", "_greater_equal_scalar")
    __lt__ = _operator("_Lesser", "_lesser_scalar")
    __le__ = _operator("_Lesser_Equal", "_lesser_equal_scalar")

    def __neg__(self) -> Self:
        return self * -1.0

    def __abs__(self) -> Self:
        return apply_op("abs", (self,), {}, cls=type(self))

    # -------------------------------------------------------------------------------- inference, files
    def infer_shape(self, *args: Any, **kwargs: Any):
        """Infer the shapes of all arguments, outputs and auxiliary states from those of some variables.

        Args:
            args: shapes by position in the order of `list_arguments()`; None or () if unknown.
            kwargs: shapes by variable name; 0 for an unknown size.

        Returns:
            (argument shapes, output shapes, auxiliary shapes), three lists of tuples; (None, None, None) if one cannot be
            inferred.

        Raises:
            GraphError: shapes contradict each other; the message has the node and both shapes.
        """
        return infer.infer_shape(self, *args, **kwargs)

    def infer_shape_partial(self, *args: Any, **kwargs: Any):
        """`infer_shape`, but return () for an unknown shape and 0 for an unknown size instead of (None, None, None)."""
        return infer.infer_shape(self, *args, partial=True, **kwargs)

    def infer_type(self, *args: Any, **kwargs: Any):
        """Infer the dtypes of all arguments, outputs and auxiliary states from those of some variables.

        Args:
            args: dtypes by position in the order of `list_arguments()`; None if unknown.
            kwargs: dtypes by variable name.

        Returns:
            (argument dtypes, output dtypes, auxiliary dtypes), three lists of numpy dtypes; float32 by default.

        Raises:
            GraphError: an unknown name or dtype.
        """
        return infer.infer_type(self, *args, **kwargs)

    def infer_type_partial(self, *args: Any, **kwargs: Any):
        """`infer_type`, but return None for an unknown dtype instead of float32."""
        return infer.infer_type(self, *args, partial=True, **kwargs)

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """Serialize the graph to symbol.json text of MXNet 1.9.

        Args:
            remove_amp_cast: remove `amp_cast` and `amp_multicast` nodes, which MXNet's mixed precision inserts.

        Returns:
            The JSON text; `jfit.sym.load_json` reads it.
        """
        return serial.to_json(self, remove_amp_cast)

    def save(self, path: str, remove_amp_cast: bool = True) -> None:
        """Write `tojson()` to a file, which is replaced atomically; `jfit.sym.load` reads it.

        Args:
            path: path of the file, usually `<name>-symbol.json`.
            remove_amp_cast: as in `tojson`.
        """
        serial.save(self, path, remove_amp_cast)

    def __reduce__(self):
        return serial.load_json, (self.tojson(remove_amp_cast=False), type(self))

    # -------------------------------------------------------------------------------- views
    def counts(self, **shapes: Sequence[int]) -> dict[str, costs.Count]:
        """Count the parameters, MACs and FLOPs of a forward pass for each operator node; see `jfit.graph.costs.counts`.

        Args:
            shapes: shapes by variable name.

        Returns:
            Dict: node name -> `Count(parameters, macs, flops)`, for the whole batch.

        Example:
            >>> import jfit
            >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc")
            >>> net.counts(data=(2, 5))["fc"].parameters
            18
        """
        return costs.counts(self, shapes)

    def summary(self, **shapes: Sequence[int]) -> str:
        """Tabulate the nodes with operator, output shape, parameters, MACs and FLOPs.

        Args:
            shapes: shapes by variable name.

        Returns:
            The table as text; `jfit.graph.drawing.summary` has an example.
        """
        return drawing.summary(self, shapes)

    def mermaid(self, **shapes: Sequence[int]) -> str:
        """Draw the graph as the text of a mermaid flowchart, without parameters.

        Args:
            shapes: shapes by variable name, for the labels of the edges; default: no labels.

        Returns:
            The mermaid text.
        """
        return drawing.mermaid(self, shapes)

    def graphviz(self, **shapes: Sequence[int]):
        """Draw the graph as a `graphviz.Digraph`, without parameters.

        Args:
            shapes: shapes by variable name, for the labels of the edges; default: no labels.

        Returns:
            The `graphviz.Digraph`.

        Raises:
            ImportError: the graphviz package is not installed.
        """
        return drawing.graphviz(self, shapes)

    def debug_str(self) -> str:
        """Return a text with the inputs and attributes of every node, in MXNet's format."""
        return drawing.listing(self)

    def _repr_html_(self) -> str:
        return html.graph_html(preview(self))
