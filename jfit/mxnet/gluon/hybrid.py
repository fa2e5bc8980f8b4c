"""HybridBlock: a Block that is also a graph, and SymbolBlock: a Block made of a graph."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit.graph.symbol import Symbol as Graph
from jfit.lowering.frameworks.adapted import call_of
from jfit.mxnet import ndarray, symbol
from jfit.mxnet.files import save_checkpoint
from jfit.mxnet.gluon.block import Block
from jfit.mxnet.gluon.model import adapt, as_loss, input_names
from jfit.mxnet.gluon.nesting import flatten, leaves_of, regroup
from jfit.mxnet.monitor.capture import named_entries
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.invoke import run
from jfit.mxnet.ndarray_classes import ParameterDict
from jfit.mxnet.numpy.symbols import as_numpy_symbol
from jfit.mxnet.recording.calls import graph_call
from jfit.ops.registry import REGISTRY


class HybridBlock(Block):
    """A `Block` whose computation is a function of arrays or symbols: `hybrid_forward(F, x, *args, **params)`.

    F is `mx.nd` for NDArrays and `mx.sym` for Symbols, and the parameters that were assigned to attributes are passed by the
    names of these.  After `hybridize()` the block is made into a graph, which is compiled and called as one program.

    Args:
        prefix, params: as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> class Scale(mx.gluon.HybridBlock):
        ...     def __init__(self, **kwargs):
        ...         super().__init__(**kwargs)
        ...         self.factor = self.params.get("factor", shape=(1,), init="ones")
        ...     def hybrid_forward(self, F, x, factor):
        ...         return F.broadcast_mul(x, factor, name="out")
        >>> scale = Scale(prefix="scale_")
        >>> scale.initialize()
        >>> scale.hybridize()
        >>> scale(mx.nd.ones(2)).asnumpy().tolist(), scale(mx.sym.Variable("x")).list_outputs()
        ([1.0, 1.0], ['scale_out_output'])

    Source: Apache MXNet 1.9.1, `mxnet.gluon.HybridBlock`.
    """

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix, params)
        self._active = False
        self._in_format: Any = None
        self._out_format: Any = None
        self._op_hook: Any = None  # (function, whether it also gets the inputs of operators)
        self._clear_cached_op()

    def register_child(self, block: Any, name: str | None = None) -> None:
        """Add a child, which must be a HybridBlock (else ValueError)."""
        if not isinstance(block, HybridBlock):
            problem = f"children of a HybridBlock are HybridBlocks, but {name or 'the child'} of {self.name} is a"
            raise ValueError(f"{problem} {type(block).__name__}; derive it from HybridBlock (HybridSequential for Sequential)")
        super().register_child(block, name)
        self._clear_cached_op()

    def hybridize(
        self, active: bool = True, backend: str | None = None, clear: bool = True, static_alloc: bool = False, **kwargs: Any
    ) -> None:
        """Compile the block and its descendants as one program per graph, or (`active=False`) run operator by operator again.

        Args:
            active: whether to compile.
            backend: must be None; XLA compiles all graphs.
            clear: make the graph anew at the next call.
            static_alloc: accepted and ignored, because XLA plans memory and fuses operators for every shape; so are the
                keyword arguments static_shape, inline_limit, forward_bulk_size and backward_bulk_size.

        Raises:
            ValueError: a backend is passed.
        """
        if backend:
            raise ValueError(f"hybridize(backend={backend!r}): XLA compiles all graphs, there is no other; leave it out")
        self._active = active
        if clear:
            self._clear_cached_op()
        if active and (self._forward_hooks or self._forward_pre_hooks):
            warnings.warn(f"{self.name} has hooks, which are not called when the block above it is hybridized", stacklevel=2)
        super().hybridize(active, static_alloc=static_alloc, **kwargs)

    def optimize_for(self, x: Any, *args: Any, backend: str | None = None, **kwargs: Any) -> None:
        """Raise ValueError: jfit has no backends for parts of a graph, because XLA compiles it all; use `hybridize`."""
        raise ValueError(f"optimize_for(backend={backend!r}) is not supported: XLA compiles the whole graph; call hybridize()")

    def cast(self, dtype: Any) -> None:
        """Cast parameters and gradients of the block and all its descendants to a dtype."""
        self._clear_cached_op()
        super().cast(dtype)

    def register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
        """Call `callback(name, operator, array)` for the output of every operator when the hybridized block is called.

        Args:
            callback: function of the name of the array, the name of the operator (both bytes, as in MXNet) and an NDArray.
            monitor_all: also call it for the inputs of the operators.
        """
        self._op_hook = callback, monitor_all
        super().register_op_hook(callback, monitor_all)

    # -------------------------------------------------------------------------------- calls
    def forward(self, x: Any, *args: Any) -> Any:
        """Call `hybrid_forward`, or the compiled graph, with the current values (or symbols) of the parameters.

        Args:
            x, args: NDArrays or Symbols (not both), also in nested lists and tuples.

        Raises:
            ValueError: the arguments mix NDArrays and Symbols, or contain neither; or the block is hybridized, and they are on
                several contexts, or nested differently from those of the first call.
        """
        arrays: Any = (x, *args)
        if not all([isinstance(v, NDArray) for v in arrays]):  # noqa: C419 (a list is faster)
            leaves = list(leaves_of(arrays))
            arrays, symbols = ([v for v in leaves if isinstance(v, kind)] for kind in (NDArray, Graph))
            if bool(arrays) == bool(symbols):
                found = "both NDArrays and Symbols" if arrays else "neither an NDArray nor a Symbol"
                raise ValueError(f"{self.name} was called with {found}; pass either NDArrays or Symbols")
            if symbols:
                return self._as_symbols(x, *args)
        if self._active:
            if len(arrays) > 1 and len(contexts := {v.ctx for v in arrays}) > 1:
                raise ValueError(f"{self.name} is hybridized, so its inputs must be on one context; found {contexts}")
            return self._call_cached_op(x, *args)
        ctx = arrays[0].ctx
        with ctx:
            return self.hybrid_forward(ndarray, x, *args, **self._values(self._reg_params, ctx, x, *args))

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the output with the operators of `F`; a subclass overrides it."""
        raise NotImplementedError(f"{type(self).__name__} has no hybrid_forward(F, x, ...), which a HybridBlock needs")

    def _as_symbols(self, *args: Any) -> Any:
        params = {name: param.var() for name, param in self._reg_params.items()}
        with self.name_scope():
            return self.hybrid_forward(symbol, *args, **params)

    def _get_graph(self, *args: Any) -> tuple[list[Any], Any]:
        """Return (inputs, graph), made at the first call for arguments of this structure."""
        if not self._cached_graph:
            flat, self._in_format = flatten(args, "inputs")
            count = sum(v is not None for v in flat)
            if not count:
                raise ValueError(f"{self.name} was called with {args}; at least one argument must be an array")
            is_numpy = any(isinstance(v, ndarray.np.ndarray) for v in flat)
            variables = (as_numpy_symbol(v) if is_numpy else v for v in map(symbol.var, input_names(count)))
            inputs = [None if v is None else next(variables) for v in flat]
            out, self._out_format = flatten(self._as_symbols(*regroup(inputs, self._in_format)), "outputs")
            self._cached_graph = [v for v in inputs if v is not None], symbol.Group(out)
        return self._cached_graph

    def _call_cached_op(self, *args: Any) -> Any:
        flat, form = flatten(args, "inputs")
        inputs = [v for v in flat if v is not None]
        if not self._sources:
            with inputs[0].ctx:
                self._build_cache(*args)
        if form != self._in_format:
            self._check_structure(form)
        arrays = []
        for source in self._sources:
            if isinstance(source, int):
                arrays.append(inputs[source])
                continue
            cells = source._data if source._stype == "default" else None
            arrays.append(cells[0] if cells is not None and len(cells) == 1 else source.data(inputs[0].ctx))
        call = self._watched if self._op_hook else _run_graph
        return regroup(call(self._cached_graph[1], arrays), self._out_format)

    def _watched(self, out: Any, arrays: list[Any]) -> list[Any]:
        """Call the graph with the arrays of all operators as further outputs, and the hook for each of them."""
        callback, monitor_all = self._op_hook
        inside: Any = list(named_entries(out, monitor_all))
        computed = [entry for _, _, entry in inside if entry.node.op is not None]
        named, watched = dict(zip(graph_call(out)[1], arrays, strict=True)), symbol.Symbol((*out.heads, *computed))
        values = _run_graph(watched, [named[name] for name in graph_call(watched)[1]])
        rest = iter(values[len(out) :])
        for node, name, entry in inside:
            callback(name.encode(), node.op.name.encode(), named[entry.node.name] if entry.node.op is None else next(rest))
        return values[: len(out)]

    def _build_cache(self, *args: Any) -> None:
        """Make the graph and its call, and infer the shapes of its parameters."""
        inputs, out = self._get_graph(*args)
        needed, params = out.list_inputs(), self.collect_params()
        names = [v.name for v in inputs]
        for name in needed:
            assert name in params or name in names, f"{name!r} in the graph of {self.name} is neither an input nor a parameter."
        unused = [f"input {i}" for i, n in enumerate(names) if n not in needed]
        unused += [f"parameter {n!r}" for n in params if n not in needed]
        if unused:
            warnings.warn(f"{', '.join(unused)} of {self.name}: not used in its output", stacklevel=5)
        self._values({n: params[n] for n in needed if n not in names}, None, *args)
        self._sources = [names.index(n) if n in names else params[n] for n in graph_call(out)[1]]

    def _values(self, params: dict[str, Any], ctx: Any, *args: Any) -> dict[str, Any]:
        """Return the arrays of parameters; those that wait for their shapes, which `args` determine, are initialized first."""
        waiting = [p for p in params.values() if p._deferred is not None]
        if waiting:
            self._deferred_infer_shape(*args)
        for param in waiting:
            param._finish_deferred_init()
        return {name: param.data(ctx) for name, param in params.items()}

    def _check_structure(self, form: list[Any]) -> None:
        """Raise ValueError if arguments are nested in another way than those of the graph, except for None at the end."""
        expected = self._in_format
        longer, shorter = sorted((form, expected), key=len, reverse=True)
        if longer[: len(shorter)] != shorter or any(f != -1 for f in longer[len(shorter) :]):
            problem = f"{self.name} was hybridized for inputs of structure {expected} (0: an array, -1: None, [...]: a list)"
            raise ValueError(f"{problem}, but called with {form}; call hybridize() again")

    def _clear_cached_op(self) -> None:
        self._cached_graph: Any = ()
        self._sources: Any = ()  # of each array that the graph takes: the number of an input, or a Parameter

    # -------------------------------------------------------------------------------- as a model of JAX
    _adapted, _as_loss = adapt, as_loss  # what `jfit.fit` takes as model and as loss

    def _lowered(self) -> tuple[Any, list[str]]:
        """Return (graph, names of its inputs) for `jfit.lower`."""
        names = input_names(len(self._call_arguments().inputs))
        return symbol.Group(flatten(self(*map(symbol.var, names)), "outputs")[0]), names

    def _call_arguments(self, inputs: Sequence[str] | None = None) -> Any:
        """Return the arguments of a call, without the parameters."""
        return call_of(self.hybrid_forward, inputs, reserved=self._reg_params, skip=1)

    # -------------------------------------------------------------------------------- shapes, files
    def infer_shape(self, *args: Any) -> None:
        """Infer the shapes of the parameters from inputs."""
        self._infer_attrs("infer_shape", "shape", *args)

    def infer_type(self, *args: Any) -> None:
        """Infer the dtypes of the parameters from inputs."""
        self._infer_attrs("infer_type", "dtype", *args)

    def _deferred_infer_shape(self, *args: Any) -> None:
        try:
            self.infer_shape(*args)
        except Exception as error:
            raise ValueError(f"parameters of {self.name} have unknown shapes, which its inputs do not show: {error}") from error

    def _infer_attrs(self, infer: str, attr: str, *args: Any) -> None:
        inputs, out = self._get_graph(*args)
        flat = [v for v in flatten(args, "inputs")[0] if v is not None]
        known = {v.name: getattr(array, attr) for v, array in zip(inputs, flat, strict=True)}
        found, _, aux = getattr(out, infer)(**known)
        if found is None:
            raise ValueError(f"{known} are not enough")
        values = dict(zip((*out.list_arguments(), *out.list_auxiliary_states()), (*found, *aux), strict=True))
        for name, param in self.collect_params().items():
            if name in values:
                setattr(param, attr, values[name])

    def export(self, path: str | os.PathLike[str], epoch: int = 0, remove_amp_cast: bool = True) -> None:
        """Write the graph to `path-symbol.json` and the parameters to `path-%04d.params`, for Module or `SymbolBlock.imports`.

        The input is named "data"; several are named "data0", "data1", ...

        Args:
            path: path and first part of the file names.
            epoch: number in the name of the parameter file.
            remove_amp_cast: omit the `amp_cast` nodes, which MXNet's automatic mixed precision inserts.

        Raises:
            RuntimeError: the block was not hybridized and called.
            NotImplementedError: the block calls functions of `mx.np`, or uses operators, indices or methods of its arrays.
        """
        if not self._cached_graph:
            raise RuntimeError(f"{self.name} has no graph to export yet; call hybridize(), then the block, then export()")
        out = self._cached_graph[1]
        # a custom operator has a record of its own, which `resolve` of the registered one makes
        is_known = lambda op: op is (known := REGISTRY.get(op.name)) or (known is not None and known.resolve)  # noqa: E731
        unknown = [n.name for n in out.nodes() if n.op is not None and not is_known(n.op)]
        if unknown:
            found = f"node {unknown[0]!r} is a function, an operator or a method of mx.np arrays, which graph files cannot hold"
            remedy = "use functions of mx.npx there, call the block without mx.npx.set_np(), or use save_parameters"
            raise NotImplementedError(f"{self.name} cannot be exported: {found}; {remedy}")
        params = self.collect_params()
        values = {name: params[name]._reduce() for name in out.list_inputs() if name in params}
        aux = {name: values.pop(name) for name in out.list_auxiliary_states() if name in values}
        save_checkpoint(os.fspath(path), epoch, out, values, aux, remove_amp_cast)


def _run_graph(graph: Any, arrays: list[Any]) -> list[Any]:
    """Call a graph as one operation, which is recorded; the outputs are `mx.np` arrays if one of the inputs is."""
    return run(graph_call(graph)[0], arrays, next((a._kind for a in arrays if a._kind is not NDArray), NDArray))


class SymbolBlock(HybridBlock):
    """A block made of a graph, such as a part of a trained network.

    Args:
        outputs: the output symbol, or a list of symbols.
        inputs: the variables that are its inputs, a symbol or a list; the others become parameters.
        params: ParameterDict of parameters to share.

    Raises:
        AssertionError: an input is not a variable, or a parameter is row_sparse.

    Example:
        >>> import jfit.mx as mx
        >>> x = mx.sym.Variable("data")
        >>> net = mx.gluon.SymbolBlock(mx.sym.FullyConnected(x, num_hidden=2, name="fc"), x)
        >>> net.initialize(init="ones")
        >>> net(mx.nd.ones((1, 3))).asnumpy().tolist()
        [[4.0, 4.0]]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.SymbolBlock`.
    """

    def __init__(self, outputs: Any, inputs: Any, params: Any = None) -> None:
        super().__init__(prefix=None, params=None)
        self._prefix, self._params = "", ParameterDict("", params)
        inputs = [inputs] if isinstance(inputs, Graph) and len(inputs) == 1 else inputs
        outputs = outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs
        variables, self._in_format = flatten(inputs, "inputs")
        outs, self._out_format = flatten(outputs, "outputs")
        for v in variables:
            assert len(v.nodes()) == 1, f"input {v.name!r} of a SymbolBlock is the output of an operator; pass a variable."
        out = symbol.Group(outs)
        for name, attrs in out.attr_dict().items():
            sparse = attrs.get("__storage_type__") == "1"
            assert not sparse, f"parameter {name!r} is row_sparse, which a SymbolBlock does not support; make it dense."
        (args, _, aux), inputs = out.infer_type(), {v.name for v in variables}
        for name, dtype in zip(out.list_arguments(), args, strict=True):
            if name not in inputs:
                self.params.get(name, allow_deferred_init=True, dtype=dtype)
        for name, dtype in zip(out.list_auxiliary_states(), aux, strict=True):
            self.params.get(name, grad_req="null", allow_deferred_init=True, dtype=dtype)
        self._cached_graph = variables, out
        common = len(os.path.commonprefix(list(self.params)))  # noqa: RUF071, letters as in MXNet
        self._reg_params = {name[common:]: param for name, param in self.params.items()}

    @staticmethod
    def imports(
        symbol_file: Any,
        input_names: str | Sequence[str],
        param_file: Any = None,
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> SymbolBlock:
        """Make a block from the files that `HybridBlock.export` or `Module.save_checkpoint` wrote, in jfit or MXNet.

        Args:
            symbol_file: path of the symbol.json file.
            input_names: name of the input, or list of names.
            param_file: path of the .params file; None: the parameters get no values.
            ctx: context of the parameters, or a list.
            allow_missing: whether parameters may be missing from the file.
            ignore_extra: whether the file may have arrays that are not parameters of the block.

        Returns:
            SymbolBlock.
        """
        names = [input_names] if isinstance(input_names, str) else input_names
        dtype = "float32" if param_file is None else None
        block = SymbolBlock(symbol.load(symbol_file), [symbol.var(name, dtype=dtype) for name in names])
        if param_file is not None:
            block.collect_params().load(param_file, ctx, allow_missing, ignore_extra, cast_dtype=True, dtype_source="saved")
        return block

    def __repr__(self) -> str:
        inputs, out = self._cached_graph
        return f"{type(self).__name__}(\n{out!r} : {len(inputs)} -> {len(out)}\n)"

    def forward(self, x: Any, *args: Any) -> Any:
        """Call the compiled graph on NDArrays, or return it with symbols in place of its inputs."""
        if isinstance(x, NDArray):
            return self._call_cached_op(x, *args)
        assert isinstance(x, Graph), f"the first argument of a SymbolBlock is an NDArray or Symbol; found {type(x).__name__}."
        flat, form = flatten((x, *args), "inputs")
        self._check_structure(form)
        inputs, out = self._cached_graph
        return regroup(list(out(**{v.name: s for v, s in zip(inputs, flat, strict=True)})), self._out_format)

    def cast(self, dtype: Any) -> None:
        """Cast the parameters to a dtype; for float16, those of batch normalization stay float32."""
        super().cast(dtype)
        if np.dtype(dtype).name != "float16":
            return
        names = self._cached_graph[1].list_inputs()
        for kind in ("running", "moving"):
            for start in [n.removesuffix(f"{kind}_var") for n in names if n.endswith(f"{kind}_var")]:
                family = [start + end for end in (f"{kind}_var", f"{kind}_mean", "gamma", "beta")]
                for name in family if {*family} <= {*names} else ():
                    self.params[name].cast("float32")

    def reset_ctx(self, ctx: Any) -> None:
        """Move all parameters to a context, or to a list of them."""
        self.collect_params().reset_ctx(ctx)

    def _call_arguments(self, inputs: Sequence[str] | None = None) -> Any:
        return super()._call_arguments([v.name for v in self._cached_graph[0]] if inputs is None else inputs)

    def _clear_cached_op(self) -> None:
        graph = getattr(self, "_cached_graph", ())
        super()._clear_cached_op()
        self._cached_graph = graph
