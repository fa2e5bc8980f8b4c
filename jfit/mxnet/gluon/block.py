"""gluon's Block: a layer or model with named parameters and children, called on NDArrays."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from jfit.formats.mxnet_arrays import load_arrays
from jfit.graph.scopes import NameManager, Prefix
from jfit.mxnet.errors import translated
from jfit.mxnet.gluon.nesting import leaves_of
from jfit.mxnet.gluon.parameter_dict import brief, load_value, save_values
from jfit.mxnet.gluon.utils import HookHandle
from jfit.mxnet.ndarray_classes import Parameter, ParameterDict

_local = threading.local()


class _BlockScope:
    """The `with` block of `Block.name_scope()`: it gives the blocks created in it their prefixes and shared parameters."""

    def __init__(self, block: Block) -> None:
        self._block, self._names = block, NameManager()
        self._entered: list[tuple[Any, Any]] = []  # (scope outside, the Prefix of this scope)

    @staticmethod
    def create(prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
        """Return prefix and parameters of a new block; the default prefix is `<hint><number>_`."""
        scope: Any = getattr(_local, "scope", None)
        if prefix is None:
            names = NameManager.current() if scope is None else scope._names
            prefix = f"{names.get(None, hint)}_"
        full = prefix if scope is None else scope._block.prefix + prefix
        if params is not None:
            return full, ParameterDict(params.prefix, params)
        outer = scope and scope._block.params
        return full, ParameterDict(full) if outer is None else ParameterDict(outer.prefix + prefix, outer._shared)

    def __enter__(self) -> _BlockScope:
        if not self._block._empty_prefix:
            self._entered.append((getattr(_local, "scope", None), Prefix(self._block.prefix)))
            _local.scope = self
            self._entered[-1][1].__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._block._empty_prefix:
            _local.scope, names = self._entered.pop()
            names.__exit__(*exc)


class Block:
    """A layer or model: parameters and children, which are registered when they are assigned to attributes, and `forward`.

    A block that is created in `with parent.name_scope():` has the prefix `<prefix of the parent><class><number>_`, and the
    names of its parameters begin with it.

    Args:
        prefix: prefix of the names; None: a number is found, "": no prefix, and names like those outside of the block.
        params: the ParameterDict of another block, whose parameters this one shares.

    Attributes:
        prefix: prefix of the names of parameters and children.
        name: the prefix without the "_" at its end.
        params: the block's own parameters, without those of its children.

    Example:
        >>> import jfit.mx as mx
        >>> class Scale(mx.gluon.Block):
        ...     def __init__(self, **kwargs):
        ...         super().__init__(**kwargs)
        ...         self.factor = self.params.get("factor", shape=(1,), init="ones")
        ...     def forward(self, x):
        ...         return x * self.factor.data()
        >>> scale = Scale(prefix="scale_")
        >>> scale.initialize()
        >>> list(scale.collect_params()), scale(mx.nd.ones(2)).asnumpy().tolist()
        (['scale_factor'], [1.0, 1.0])

    Source: Apache MXNet 1.9.1, `mxnet.gluon.Block`.
    """

    _in_summary = True  # whether `summary` has a row for blocks of this class

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        self._empty_prefix = prefix == ""
        self._prefix, self._params = _BlockScope.create(prefix, params, self._alias())
        self._name = self._prefix.removesuffix("_")
        self._scope = _BlockScope(self)
        self._children: dict[str, Any] = {}
        self._reg_params: dict[str, Any] = {}  # by name of the attribute
        self._forward_hooks: dict[int, Any] = {}
        self._forward_pre_hooks: dict[int, Any] = {}

    def __repr__(self) -> str:
        blocks = {key: value for key, value in vars(self).items() if isinstance(value, Block)}
        return f"{type(self).__name__}(\n{rows(blocks)}\n)"

    def __setattr__(self, name: str, value: Any) -> None:
        existing = getattr(self, name, None)
        if isinstance(existing, (Parameter, Block)) and not isinstance(value, type(existing)):
            found, expected = type(value).__name__, type(existing).__name__
            raise TypeError(f"attribute {name!r} of {self.name} is a {expected}; it cannot become a {found}")
        if isinstance(value, Block):
            self.register_child(value, name)
        elif isinstance(value, Parameter):
            hint = "to share parameters, pass params= to the constructor"
            assert name not in self._reg_params, f"{self.name} already has a parameter {name!r}; {hint}."
            self._reg_params[name] = value
        super().__setattr__(name, value)

    def _alias(self) -> str:
        return type(self).__name__.lower()

    prefix = property(attrgetter("_prefix"), doc="Prefix of the names of parameters and children.")
    name = property(attrgetter("_name"), doc='The prefix without the "_" at its end.')
    params = property(attrgetter("_params"), doc="The block's own parameters, a ParameterDict, without those of its children.")

    def name_scope(self) -> _BlockScope:
        """Return the context manager in which children and parameters get names that begin with the prefix of this block."""
        return self._scope

    def collect_params(self, select: str | None = None) -> Any:
        """Return the parameters of the block and all its descendants.

        Args:
            select: regular expression that the beginning of a name matches; None: all parameters.

        Returns:
            ParameterDict.
        """
        self._check_containers()
        chosen = ParameterDict(self._params.prefix)
        chosen.update({n: p for n, p in self.params.items() if not select or re.match(select, n)})
        for child in self._children.values():
            chosen.update(child.collect_params(select=select))
        return chosen

    def _check_containers(self) -> None:
        """Warn of lists, tuples and dicts with blocks that are not children."""
        children = {id(child) for child in self._children.values()}
        for name, value in vars(self).items():
            inside = leaves_of(value) if isinstance(value, (list, tuple, dict)) and name != "_children" else ()
            if any(isinstance(v, Block) and id(v) not in children for v in inside):
                message = f"{type(self).__name__}.{name} contains blocks that are not registered as children"
                warnings.warn(f"{message}; use register_child(), Sequential or HybridSequential.", stacklevel=3)

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Any]:
        """Return the parameters by structural name, such as `0.weight`: names of attributes from the block to the parameter."""
        start = prefix and f"{prefix}."
        found = {start + name: param for name, param in self._reg_params.items()}
        for name, child in self._children.items():
            found.update(child._collect_params_with_prefix(start + name))
        return found

    # -------------------------------------------------------------------------------- files
    def save_parameters(self, filename: Any, deduplicate: bool = False) -> None:
        """Write the values (mean over contexts) to a .params file by structural name, such as `0.weight`.

        Args:
            filename: path of the file.
            deduplicate: write a parameter that several blocks share once, under its last name.
        """
        params = self._collect_params_with_prefix()
        if deduplicate:
            last = {param: name for name, param in params.items()}
            params = {name: param for param, name in last.items()}
        save_values(filename, params)

    def load_parameters(
        self,
        filename: Any,
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Load values from a file of `save_parameters`, or of `collect_params().save`.

        Args:
            filename: path of the file.
            ctx: contexts for parameters that are not initialized; None is the current context.
            allow_missing: whether parameters may be missing in the file; they keep their values.
            ignore_extra: whether the file may have other arrays; they are ignored.
            cast_dtype: whether to cast if the dtypes of parameter and file differ.
            dtype_source: dtype to cast to: "current" is the parameter's, "saved" the file's.

        Raises:
            AssertionError: a parameter is missing in the file, or shapes, dtypes or contexts do not match.
            ValueError: the file has an array that is not a parameter.
        """
        with translated():
            arrays = load_arrays(filename)
        params, where = self._collect_params_with_prefix(), os.fspath(filename)
        if not arrays and not params:
            return
        if not isinstance(arrays, dict) or not any("." in name for name in arrays):
            return self.collect_params().load(filename, ctx, allow_missing, ignore_extra, self.prefix, cast_dtype, dtype_source)
        found = {param for name, param in params.items() if name in arrays}  # under any of its names
        for name, param in () if allow_missing else params.items():
            problem = f"parameter {name!r} is missing in {where}, which has {brief(arrays)}"
            assert param in found, f"{problem}; pass allow_missing=True to keep its values."
        for name, value in arrays.items():
            if name in params:
                load_value(params[name], value, where, ctx, cast_dtype, dtype_source)
            elif not ignore_extra:
                problem = f"{where} has {name!r}, which is not a parameter of {self.name}; it has {brief(params)}"
                raise ValueError(f"{problem}. Pass ignore_extra=True to ignore it.")

    def save_params(self, filename: Any) -> None:
        """Write the parameters to a file, by their names without the block's prefix; deprecated: use `save_parameters`."""
        warnings.warn("save_params is deprecated; use save_parameters, or export for a SymbolBlock.", stacklevel=2)
        self.collect_params().save(filename, strip_prefix=self.prefix)

    def load_params(self, filename: Any, ctx: Any = None, allow_missing: bool = False, ignore_extra: bool = False) -> None:
        """Load values as `load_parameters` does; deprecated: use that."""
        warnings.warn("load_params is deprecated; use load_parameters.", stacklevel=2)
        self.load_parameters(filename, ctx, allow_missing, ignore_extra)

    # -------------------------------------------------------------------------------- children, hooks, modes
    def register_child(self, block: Any, name: str | None = None) -> None:
        """Add a child under the name of an attribute; None: its number."""
        self._children[str(len(self._children)) if name is None else name] = block

    def register_forward_pre_hook(self, hook: Callable[[Any, Any], None]) -> HookHandle:
        """Call `hook(block, inputs)` before each `forward`.

        Returns:
            `mx.gluon.utils.HookHandle`, whose `detach` removes the hook.
        """
        return HookHandle().attach(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[[Any, Any, Any], None]) -> HookHandle:
        """Call `hook(block, inputs, output)` after each `forward`.

        Returns:
            `mx.gluon.utils.HookHandle`, whose `detach` removes the hook.
        """
        return HookHandle().attach(self._forward_hooks, hook)

    def register_op_hook(self, callback: Callable[[bytes, bytes, Any], None], monitor_all: bool = False) -> None:
        """Call `callback(name, operator, array)` for the output of every operator of hybridized blocks in this one."""
        for child in self._children.values():
            child.register_op_hook(callback, monitor_all)

    def apply(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(block)` for all descendants, children first, then for the block itself, and return the block."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def initialize(self, init: Any = "uniform", ctx: Any = None, verbose: bool = False, force_reinit: bool = False) -> None:
        """Initialize all parameters; those of unknown shape when the first input is known.

        Args:
            init: initializer of parameters whose `init` is None; "uniform" is `Uniform(0.07)`.
            ctx: context, device or list of them; None is the current context.
            verbose: accepted and ignored.
            force_reinit: also initialize parameters that already have values.
        """
        self.collect_params().initialize(init, ctx, verbose, force_reinit)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize the children that are HybridBlocks; arguments as for `HybridBlock.hybridize`."""
        for child in self._children.values():
            child.hybridize(active, **kwargs)

    def cast(self, dtype: Any) -> None:
        """Cast parameters and gradients of the block and all its descendants to a dtype."""
        for child in self._children.values():
            child.cast(dtype)
        for param in self.params.values():
            param.cast(dtype)

    # -------------------------------------------------------------------------------- calls
    def __call__(self, *args: Any) -> Any:
        """Call the hooks and `forward`."""
        for hook in self._forward_pre_hooks.values():
            hook(self, args)
        out = self.forward(*args)
        for hook in self._forward_hooks.values():
            hook(self, args, out)
        return out

    def forward(self, *args: Any) -> Any:
        """Compute the output; a subclass overrides it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(); a subclass of Block defines it")

    def summary(self, *inputs: Any) -> None:
        """Print a table of the layers, their output shapes and their numbers of parameters, for one call with `inputs`.

        Raises:
            AssertionError: the block, or one in it, is hybridized.
        """
        table = [("Input", _shape_text(inputs), 0)]
        used: list[Any] = []  # the parameters of all rows, repeated if shared
        handles = []

        def add(block: Any, _: Any, out: Any) -> None:
            used.extend(block.params.values())
            table.append((f"{type(block).__name__}-{len(table)}", _shape_text(out), _size(block.params.values())))

        def watch(block: Any) -> None:
            assert not getattr(block, "_active", False), f"{block.name} is hybridized; call hybridize(False) before summary()."
            if block._in_summary:
                handles.append(block.register_forward_hook(add))

        try:
            self.apply(watch)
            self(*inputs)
        finally:
            for handle in handles:
                handle.detach()
        line = "{:>20}  {:>42} {:>15}".format
        thick, rows = "=" * 80, [line(*row) for row in table]
        total, trainable, unique = _size(used), _size(p for p in used if p.grad_req != "null"), _size({*used})
        text = f"""{line("Layer (type)", "Output Shape", "Param #")}
{thick}
{chr(10).join(rows)}
{thick}
Parameters in forward computation graph, duplicate included
   Total params: {total}
   Trainable params: {trainable}
   Non-trainable params: {total - trainable}
Shared params in forward computation graph: {total - unique}
Unique parameters in model: {unique}"""
        print("-" * 80, text, "-" * 80, sep="\n")


def rows(blocks: dict[str, Any]) -> str:
    """Return the lines `(name): block` of a repr."""
    return "\n".join(f"  ({name}): " + repr(block).replace("\n", "\n  ") for name, block in blocks.items())


def _size(params: Iterable[Any]) -> int:
    return sum(param.data().size for param in params)


def _shape_text(arrays: Any) -> str:
    """Return the shape of an array, or those of arrays in nested lists."""
    if isinstance(arrays, (list, tuple)):
        return ", ".join(f"[{_shape_text(v)}]" if isinstance(v, (list, tuple)) else _shape_text(v) for v in arrays)
    return str(getattr(arrays, "shape", arrays))
