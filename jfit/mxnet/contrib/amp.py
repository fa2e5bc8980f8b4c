"""`mx.contrib.amp`: automatic mixed precision with float16 or bfloat16.

`init` makes the operators of `mx.nd`, `mx.sym` and gluon cast their inputs; `convert_symbol`, `convert_model` and
`convert_hybrid_block` put the casts into a graph.  Which operators compute in 16 bits is decided in `jfit.mxnet.precision`.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
>>> mx.contrib.amp.convert_symbol(net, "bfloat16").get_internals().list_outputs()[1]
'data_amp_cast_bfloat16_output'
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jfit.graph.nodes import Entry, Node, replace_nodes
from jfit.mxnet.context import cpu
from jfit.mxnet.gluon.hybrid import HybridBlock, SymbolBlock
from jfit.mxnet.ndarray.invoke import invoke
from jfit.mxnet.precision import CONDITIONAL, EITHER, FULL, LOSSES, LOW, WIDEST, Policy, active, cast_entry, default_lists
from jfit.mxnet.symbol import Symbol

_LOG = logging.getLogger(__name__)


def _name(target_dtype: Any) -> str:
    """Return "float16" or "bfloat16" for a dtype or its name."""
    name = target_dtype if isinstance(target_dtype, str) else np.dtype(target_dtype).name
    assert name in ("float16", "bfloat16"), f"target_dtype is {name!r}, expected 'float16' or 'bfloat16'"
    return name


# ------------------------------------------------------------------------------------------------ training
class LossScaler:
    """The factor of the loss: 2^16, halved after a step with infinite gradients, doubled after 2000 steps without.

    Example:
        >>> LossScaler().loss_scale
        65536.0

    Source: Micikevicius and others, Mixed Precision Training, 2018; Apache MXNet 1.9.1, `contrib.amp.loss_scaler`.
    """

    MOST, STEPS = 2.0**24, 2000

    def __init__(self) -> None:
        self.loss_scale = self._next = 2.0**16
        self._good_steps = 0

    def has_overflow(self, params: Sequence[Any]) -> bool:
        """Return whether a gradient of the parameters is infinite or nan; the scale changes one step later, as in MXNet."""
        grads = [p.list_grad()[0] for p in params if p.grad_req != "null"]
        finite = invoke("multi_all_finite", grads, {"num_arrays": len(grads)}) if grads else np.ones(1)
        overflow = not np.asarray(finite).all()  # sync: the host decides whether to update
        self.loss_scale, self._good_steps = self._next, 0 if overflow else self._good_steps + 1
        if overflow:
            self._next = self.loss_scale / 2
            _LOG.info("AMP: the loss scale decreases to %g", self._next)
        elif self._good_steps == self.STEPS:
            self._next, self._good_steps = min(self.MOST, self.loss_scale * 2), 0
            _LOG.info("AMP: the loss scale increases to %g", self._next)
        return overflow


def init(
    target_dtype: Any = "float16", target_precision_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Sequence[tuple[str, str, list[str]]] | None = None, fp32_ops: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Make operators cast their inputs, for the rest of the process; call it before the network is made.

    As in MXNet, arrays on a CPU are cast to bfloat16 but not to float16; graphs are cast to both.  Later calls do nothing.

    Args:
        target_dtype: "float16" or "bfloat16".
        target_precision_ops: names of the operators that compute with it; default `list_lp16_ops`.
        conditional_fp32_ops: (name, attribute, values at which it computes with float32); default `list_conditional_fp32_ops`.
        fp32_ops: names of the operators that compute with float32; default `list_fp32_ops`.

    Raises:
        AssertionError: another dtype.

    Example:
        >>> import jfit.mx as mx
        >>> init("bfloat16")
        >>> mx.nd.FullyConnected(mx.nd.ones((1, 3)), mx.nd.ones((2, 3)), num_hidden=2, no_bias=True).dtype.__name__
        'bfloat16'
        >>> active.policy = None  # undo it for the other examples
    """
    if active.policy is None:
        _LOG.info("Using AMP")
        active.policy = _policy(target_dtype, target_precision_ops, fp32_ops, conditional_fp32_ops)


def _policy(dtype: Any, low: Any, full: Any, conditional: Any) -> Policy:
    lists = (list_lp16_ops(dtype) if low is None else low, list_fp32_ops(dtype) if full is None else full)
    return Policy.of(_name(dtype), *lists, CONDITIONAL if conditional is None else conditional)


def init_trainer(optimizer_or_trainer: Any) -> None:
    """Give a Trainer a loss scale that adapts itself; its steps with infinite gradients change no parameter.

    Args:
        optimizer_or_trainer: a gluon Trainer.

    Raises:
        AssertionError: `init` has not been called.

    Example:
        >>> init_trainer(None)
        Traceback (most recent call last):
        ...
        AssertionError: amp.init_trainer needs amp.init(), called before the network is made
    """
    assert active.policy is not None, "amp.init_trainer needs amp.init(), called before the network is made"
    optimizer_or_trainer._amp_loss_scaler = LossScaler()
    optimizer_or_trainer._amp_original_scale = optimizer_or_trainer._scale


@contextlib.contextmanager
def scale_loss(loss: Any, optimizer_or_trainer: Any) -> Iterator[Any]:
    """Context manager that yields the loss, or list of losses, times the loss scale; the next step divides by it.

    Args:
        loss: NDArray or list of NDArrays.
        optimizer_or_trainer: a Trainer after `init_trainer`.

    Raises:
        AssertionError: `init_trainer` has not been called.

    Example:
        >>> with scale_loss(loss, trainer) as scaled:  # doctest: +SKIP
        ...     scaled.backward()
    """
    scaler = getattr(optimizer_or_trainer, "_amp_loss_scaler", None)
    assert scaler is not None, "the trainer has no loss scale: call amp.init_trainer(trainer) first"
    optimizer_or_trainer._scale = optimizer_or_trainer._amp_original_scale / scaler.loss_scale
    yield [each * scaler.loss_scale for each in loss] if isinstance(loss, (list, tuple)) else loss * scaler.loss_scale


def unscale(optimizer_or_trainer: Any) -> None:
    """Divide the gradients by the loss scale now, for example to clip them; the next step then does not.

    Args:
        optimizer_or_trainer: a Trainer after `init_trainer`.

    Example:
        >>> unscale(trainer)  # doctest: +SKIP
    """
    for param in optimizer_or_trainer._params:
        for grad in param.list_grad() if param.grad_req != "null" else ():
            grad[:] = grad * optimizer_or_trainer._scale
    optimizer_or_trainer._scale = 1.0


# ------------------------------------------------------------------------------------------------ graphs
def convert_symbol(
    sym: Symbol, target_dtype: Any = "float16", target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None, conditional_fp32_ops: Sequence[Any] | None = None,
    excluded_sym_names: Sequence[str] | None = None, data_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> Symbol:  # fmt: skip
    """Return a graph with casts before the inputs of its operators, and after 16-bit outputs, which are float32 again.

    Args:
        sym: the graph.
        target_dtype: "float16" or "bfloat16".
        target_dtype_ops: names of the operators that compute with it; default `list_lp16_ops`.
        fp32_ops: names of the operators that compute with float32; default `list_fp32_ops`.
        conditional_fp32_ops: (name, attribute, values at which it computes with float32); default `list_conditional_fp32_ops`.
        excluded_sym_names: names of nodes whose inputs are not cast.
        data_names: accepted and ignored: all variables keep their dtypes.
        cast_optional_params: accepted and ignored: parameters stay float32, and the graph casts them.

    Returns:
        Symbol.

    Raises:
        AssertionError: `sym` is no Symbol, another dtype, or an operator in two lists.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.exp(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc"), name="e")
        >>> convert_symbol(net, fp32_ops=["exp"]).get_internals().list_outputs()[-2:]
        ['fc_amp_cast_float32_output', 'e_output']
    """
    assert isinstance(sym, Symbol), f"the first argument is a Symbol, got {type(sym).__name__}"
    names = [*(target_dtype_ops or ()), *(fp32_ops or ()), *(c[0] for c in conditional_fp32_ops or ())]
    assert len(names) == len(set(names)), f"an operator is in two lists: {sorted({n for n in names if names.count(n) > 1})}"
    policy = _policy(target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops)
    excluded = set(excluded_sym_names or ())
    casts: dict[Any, Entry] = {}

    def swap(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        return None if node.op is None or node.name in excluded else policy.cast_node(node.rebuilt(inputs), casts)

    full, pairs = policy.full_nodes(sym.heads), zip(sym.heads, replace_nodes(sym.heads, swap), strict=True)
    is_full = lambda node: id(node) in full or node.name in excluded  # noqa: E731
    return type(sym)([new if is_full(old.node) else cast_entry(new, "float32", casts) for old, new in pairs])


def convert_model(
    sym: Symbol, arg_params: dict[str, Any], aux_params: dict[str, Any], target_dtype: Any = "float16", **options: Any
) -> tuple[Symbol, dict[str, Any], dict[str, Any]]:
    """Convert a graph as `convert_symbol` does; its parameters stay as they are.

    Args:
        sym: the graph.
        arg_params: parameters, NDArrays by name.
        aux_params: auxiliary states, NDArrays by name.
        target_dtype: "float16" or "bfloat16".
        options: further arguments of `convert_symbol`.

    Returns:
        (symbol, parameters, auxiliary states).

    Raises:
        AssertionError: an argument of another type, see also `convert_symbol`.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.exp(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc"), name="e")
        >>> convert_model(net, {"fc_weight": mx.nd.ones((2, 3))}, {})[0].list_arguments()
        ['data', 'fc_weight']
    """
    for params in (arg_params, aux_params):
        assert isinstance(params, dict), f"parameters are a dict by name, got {type(params).__name__}"
    return convert_symbol(sym, target_dtype, **options), dict(arg_params), dict(aux_params)


def convert_hybrid_block(block: HybridBlock, target_dtype: Any = "float16", *, ctx: Any = None, **options: Any) -> SymbolBlock:
    """Convert a hybridized block to a SymbolBlock with casts, for predictions.

    Args:
        block: a HybridBlock that was hybridized and called.
        target_dtype: "float16" or "bfloat16".
        ctx: where the parameters of the new block are; default: the CPU.
        options: further arguments of `convert_symbol`.

    Raises:
        RuntimeError: the block has not been hybridized and called.

    Returns:
        SymbolBlock.

    Example:
        >>> import jfit.mx as mx
        >>> net = mx.sym.exp(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc"), name="e")
        >>> block = mx.gluon.SymbolBlock(net, mx.sym.Variable("data"))
        >>> block.initialize()
        >>> _ = block(mx.nd.zeros((1, 3)))
        >>> convert_hybrid_block(block)(mx.nd.zeros((1, 3))).asnumpy().tolist()
        [[1.0, 1.0]]
    """
    if not block._cached_graph:
        raise RuntimeError("convert_hybrid_block needs the block's graph: call block.hybridize(), and the block once, first.")
    inputs, sym = block._cached_graph
    result = SymbolBlock(convert_symbol(sym, target_dtype, **options), inputs)
    values = {n: p._reduce() for n, p in block.collect_params().items()}
    for name, param in result.collect_params().items():
        param.cast(values[name].dtype)
    result.collect_params().load_dict(values, ctx=cpu() if ctx is None else ctx)
    return result


# ------------------------------------------------------------------------------------------------ lists
def _of_kind(kind: str, target_dtype: Any) -> list[str]:
    return default_lists(_name(target_dtype) == "bfloat16")[kind]


def list_lp16_ops(target_dtype: Any) -> list[str]:
    """List the operators that compute in 16 bits.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        List of operator names.

    Example:
        >>> list_lp16_ops("bfloat16")
        ['Convolution', 'FullyConnected']
    """
    return _of_kind(LOW, target_dtype)


def list_fp32_ops(target_dtype: Any) -> list[str]:
    """List the operators that compute with float32.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        List of operator names.

    Example:
        >>> "softmax" in list_fp32_ops("float16")
        True
    """
    return _of_kind(FULL, target_dtype)


def list_lp16_fp32_ops(target_dtype: Any) -> list[str]:
    """List the operators that compute in the dtype of their inputs.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        List of operator names.

    Example:
        >>> "relu" in list_lp16_fp32_ops("float16")
        True
    """
    return _of_kind(EITHER, target_dtype)


def list_widest_type_cast(target_dtype: Any) -> list[str]:
    """List the operators whose inputs are cast to the widest of their dtypes.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        List of operator names.

    Example:
        >>> "add_n" in list_widest_type_cast("float16")
        True
    """
    return _of_kind(WIDEST, target_dtype)


def list_conditional_fp32_ops(target_dtype: Any) -> list[tuple[str, str, list[str]]]:
    """List the operators that compute with float32 for some values of an attribute.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        List of (operator, attribute, these values).

    Example:
        >>> list_conditional_fp32_ops("float16")[0]
        ('Activation', 'act_type', ['softrelu'])
    """
    _name(target_dtype)  # which checks it
    return CONDITIONAL


def list_loss_output_functions(target_dtype: Any) -> list[str]:
    """List the output heads.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        List of operator names.

    Example:
        >>> list_loss_output_functions("float16")[0]
        'SoftmaxOutput'
    """
    _name(target_dtype)  # which checks it
    return LOSSES


def list_lp16_use_fp32_params(target_dtype: Any) -> dict[str, list[str]] | None:
    """List the float32 parameters of operators that read 16-bit data.

    Args:
        target_dtype: "float16" or "bfloat16".

    Returns:
        For bfloat16 a dict by operator, for float16 None.

    Example:
        >>> list_lp16_use_fp32_params("bfloat16")["BatchNorm"]
        ['', 'gamma', 'beta', 'moving_mean', 'moving_var']
    """
    names = ["", "gamma", "beta", "moving_mean", "moving_var"]
    return {"BatchNorm": names, "BatchNormWithReLU": names} if _name(target_dtype) == "bfloat16" else None
