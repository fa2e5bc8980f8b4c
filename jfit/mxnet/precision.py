"""Mixed precision: which operators compute with 16-bit floats, as MXNet's `contrib.amp` decides by lists of operator names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from jfit.graph.nodes import Entry, Node, topological
from jfit.graph.symbol import Symbol
from jfit.ops import REGISTRY, Attrs, Op, lookup
from jfit.platforms import platform_of

LOW, FULL, WIDEST, EITHER = "low", "full", "widest", "either"

_SAME_DTYPE = """
    Correlation _contrib_MultiProposal _contrib_PSROIPooling _contrib_Proposal _contrib_ROIAlign _contrib_box_iou
    _contrib_box_nms _equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor _maximum
    _minimum _mod _not_equal _random_pdf_dirichlet _random_pdf_exponential _random_pdf_gamma
    _random_pdf_generalized_negative_binomial _random_pdf_negative_binomial _random_pdf_normal _random_pdf_poisson
    _random_pdf_uniform _scatter_elemwise_div add_n batch_dot broadcast_add broadcast_div broadcast_equal broadcast_greater
    broadcast_greater_equal broadcast_lesser broadcast_lesser_equal broadcast_logical_and broadcast_logical_or
    broadcast_logical_xor broadcast_maximum broadcast_minimum broadcast_mod broadcast_mul broadcast_not_equal broadcast_sub dot
    elemwise_add elemwise_div elemwise_mul elemwise_sub stack where
"""
_LARGE_RANGE = """
    CTCLoss Convolution_v1 Custom GroupNorm IdentityAttachKLSparseReg InstanceNorm L2Normalization LRN LayerNorm
    LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput MakeLoss SVMOutput SoftmaxActivation SoftmaxOutput
    _contrib_DeformableConvolution _contrib_DeformablePSROIPooling _contrib_MultiBoxDetection _contrib_MultiBoxPrior
    _contrib_MultiBoxTarget _contrib_SyncBatchNorm _contrib_count_sketch _contrib_fft _contrib_hawkesll _hypot _hypot_scalar
    _power _power_scalar _rdiv_scalar _rpower_scalar _square_sum arccos arcsin arctanh argsort broadcast_hypot broadcast_power
    cosh erfinv exp expm1 gamma gammaln khatri_rao log log10 log1p log2 log_softmax make_loss mean moments nanprod nansum norm
    prod rcbrt reciprocal rsqrt sinh smooth_l1 softmax softmax_cross_entropy softmin square sum tan topk
"""
_MULTIBOX = ["_contrib_MultiBoxDetection", "_contrib_MultiBoxPrior", "_contrib_MultiBoxTarget"]
_BOTH = "BatchNorm _contrib_BatchNormWithReLU Concat LRN Pooling _shuffle abs clip relu sqrt square tanh"
_NEITHER = ("Activation", "LeakyReLU", "amp_cast", "amp_multicast")  # casts, and those of which some variants overflow
LOSSES = ["SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"]
CONDITIONAL = [("Activation", "act_type", ["softrelu"]), ("LeakyReLU", "act_type", ["elu", "selu"])]


def default_lists(bfloat16: bool) -> dict[str, list[str]]:
    """Return the names of the operators of each kind: "low", "full", "widest" and "either".

    bfloat16: of bfloat16, which few operators of MXNet compute with, instead of float16.
    """
    widest, linalg = _SAME_DTYPE.split(), [n for n in REGISTRY if n.startswith("_linalg")]
    if bfloat16:
        lists = {LOW: ["Convolution", "FullyConnected"], WIDEST: widest + _MULTIBOX, EITHER: _BOTH.split()}
        rest = FULL
    else:
        lists = {LOW: ["Convolution", "Deconvolution", "FullyConnected", "RNN"], FULL: _LARGE_RANGE.split() + linalg}
        lists[WIDEST] = ["Concat", *widest, *(n for n in REGISTRY if n.startswith("_contrib_interleaved_matmul"))]
        rest = EITHER
    taken = {*_NEITHER, *(n for names in lists.values() for n in names)}
    return {**lists, rest: [n for n in REGISTRY if n not in taken]}


class Policy(NamedTuple):
    """Casts of the inputs of operators.

    Attributes:
        dtype: "float16" or "bfloat16".
        kinds: operator name -> "low" (inputs are cast to `dtype`), "full" (to float32) or "widest" (to the widest of them).
        conditional: (operator name, attribute, values at which it is "full").

    Example:
        >>> Policy.of("float16", ["Convolution"], ["exp"], []).kind(lookup("Convolution"), Attrs({}))
        'low'
    """

    dtype: str
    kinds: dict[str, str]
    conditional: Sequence[tuple[str, str, Sequence[str]]]

    @classmethod
    def of(cls, dtype: str, low: Sequence[str], full: Sequence[str], conditional: Sequence[Any]) -> Policy:
        """Make a policy of lists of operator names; names that jfit has no operator for have no effect."""
        lists = {WIDEST: default_lists(dtype == "bfloat16")[WIDEST], FULL: full, LOW: low}
        return cls(dtype, {_canonical(n): kind for kind, names in lists.items() for n in names}, conditional)

    def kind(self, op: Op, params: Attrs) -> str | None:
        """Return what happens to the inputs of an operator with these attributes; None: nothing."""
        if any(_canonical(name) == op.name and params.get(key) in values for name, key, values in self.conditional):
            return FULL
        return self.kinds.get(op.name)

    def dtypes(self, op: Op, params: Attrs, count: int) -> list[str | None]:
        """Return the dtype that each of `count` inputs of a "low" or "full" operator is cast to; None: it is not cast."""
        target = {LOW: self.dtype, FULL: "float32"}.get(self.kind(op, params) or "")
        return [target if i < count - len(op.aux) else None for i in range(count)]

    # -------------------------------------------------------------------------------- arrays
    def cast_arrays(self, op: Op, params: Attrs, arrays: Sequence[Any], invoke: Callable[..., Any]) -> Sequence[Any]:
        """Return the inputs of an operator with their casts, each computed by `invoke(operator name, arrays, attributes)`."""
        places = (a.value if (entry := getattr(a, "_entry", None)) is None else entry[0].places[entry[1]] for a in arrays)
        if op.name in _NEITHER[2:] or (self.dtype == "float16" and platform_of(*places) == "cpu"):  # as MXNet
            return arrays
        targets = self.dtypes(op, params, len(arrays))
        if self.kind(op, params) == WIDEST:
            has_full = any(a.dtype == np.float32 for a in arrays)
            targets = ["float32" if has_full else None] * len(arrays)
        pairs = zip(arrays, targets, strict=True)
        return [invoke("amp_cast", [a], {"dtype": t}) if t is not None and _is_other_float(a, t) else a for a, t in pairs]

    # -------------------------------------------------------------------------------- graphs
    def cast_node(self, node: Node, casts: dict[Any, Entry] | None = None) -> Node:
        """Return a node with casts before its inputs; `casts`: those of other nodes, which are used again."""
        op, casts = node.op, {} if casts is None else casts
        if op is None or op.name in _NEITHER[2:]:
            return node
        if self.kind(op, node.params) == WIDEST and len(node.inputs) > 1:
            attrs = {"num_outputs": str(len(node.inputs))}
            cast = Node(lookup("amp_multicast"), f"{node.text_name}_amp_multicast", attrs, node.inputs)
            return node.rebuilt(tuple(Entry(cast, i) for i in range(len(node.inputs))))
        targets = self.dtypes(op, node.params, len(node.inputs))
        return node.rebuilt(tuple(cast_entry(e, t, casts) for e, t in zip(node.inputs, targets, strict=True)))

    def full_nodes(self, heads: Sequence[Entry]) -> set[int]:
        """Return the ids of the nodes that compute float32 because they, or the nodes before them, are "full"."""
        found: set[int] = set()
        for node in topological(heads):
            kind = self.kind(node.op, node.params) if node.op else LOW
            full = [id(e.node) in found for e in node.inputs if e.node.op]
            if kind == FULL or (kind == WIDEST and any(full)) or (kind is None and full and all(full)):
                found.add(id(node))
        return found

    def cast_symbol(self, symbol: Symbol) -> Symbol:
        """Return a graph of one new operator with casts before its inputs, see `jfit.mxnet.symbol.operator`."""
        nodes = {id(head.node): head.node for head in symbol.raw_heads}
        casts = {key: self.cast_node(node) for key, node in nodes.items()}
        if all(casts[key] is node for key, node in nodes.items()):
            return symbol
        return type(symbol)([Entry(casts[id(head.node)], head.index) for head in symbol.raw_heads], symbol.reserved)


def _canonical(name: str) -> str:
    try:
        return lookup(name).name
    except LookupError:
        return name


def _is_other_float(array: Any, dtype: str) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating) and np.dtype(array.dtype).name != dtype


def cast_entry(entry: Entry, dtype: str | None, casts: dict[Any, Entry]) -> Entry:
    """Return the entry, or its cast; variables are float32 already."""
    if dtype is None or (dtype == "float32" and entry.node.op is None):
        return entry
    key = id(entry.node), entry.index, dtype
    if key not in casts:
        name = f"{entry.node.text_name}{entry.index or ''}_amp_cast_{dtype}"
        casts[key] = Entry(Node(lookup("amp_cast"), name, {"dtype": dtype}, (entry,)), 0)
    return casts[key]


class _Active:
    """`policy`: that of `amp.init`, which `mx.nd`, `mx.sym` and gluon follow; None before it is called."""

    policy: Policy | None = None


active = _Active()
