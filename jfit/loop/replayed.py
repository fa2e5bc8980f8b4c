"""`Replay`: what a training step computed, node by node, and the first node that is not finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jfit.graph.drawing import aligned

ROWS_SHOWN = 3  # of the rows that are not finite
SOURCE_SHOWN = 80  # characters of a line of code in the table


@dataclass(frozen=True)
class NodeValues:
    """Statistics of one array of a training step: the output of a node, an input, a parameter, or the losses of the rows.

    Attributes:
        name: name of the node.  In a function, the modules that it is in and the name of the JAX primitive.
        operator: operator or primitive; "" for variables.
        kind: "node", "input", "parameter", "auxiliary state", "constant" or "loss".
        inputs: names of the arrays that it was computed from.
        source: for functions, the line of code, such as "model.py:12 in forward: return jnp.log(x)"; "" for graphs.
        minimum, maximum, mean: of the finite values; nan if there are none.
        zeros: share of the values that are 0, from 0 to 1.
        nans, infinities: numbers of values.
        size: number of values, without those of padding rows.
        rows: numbers of the rows of the batch that have values which are not finite.
        gradient_norm: 2-norm of the gradient of the mean loss with respect to this array, of its finite values; None for
            variables.
        gradient_nonfinite: number of values of this gradient that are nan or infinite.

    Example:
        >>> NodeValues("log0", "log", minimum=-1.0, maximum=2.0, mean=0.5, infinities=3, size=8).nonfinite
        3
    """

    name: str
    operator: str = ""
    kind: str = "node"
    inputs: tuple[str, ...] = ()
    source: str = ""
    minimum: float = math.nan
    maximum: float = math.nan
    mean: float = math.nan
    zeros: float = 0.0
    nans: int = 0
    infinities: int = 0
    size: int = 0
    rows: tuple[int, ...] = ()
    gradient_norm: float | None = None
    gradient_nonfinite: int = 0

    @property
    def nonfinite(self) -> int:
        """Number of values that are nan or infinite."""
        return self.nans + self.infinities

    def __str__(self) -> str:
        if not self.nonfinite:
            zeros = f", {self.zeros:.0%} zeros" if self.zeros else ""
            span = f"{self.minimum:.4g}" if self.minimum == self.maximum else f"{self.minimum:.4g} to {self.maximum:.4g}"
            values = span + zeros
        elif self.nonfinite == self.size:
            values = f"all {self.size} values {'nan' if not self.infinities else 'infinite' if not self.nans else 'not finite'}"
        else:
            values = f"{self.minimum:.4g} to {self.maximum:.4g}, {_counted(self.nans, self.infinities)} of {self.size} values"
        return values if self.kind == "constant" else f"{self.name!r} {values}"


@dataclass(frozen=True)
class ParameterValues:
    """Statistics of one trainable parameter in a training step.

    Attributes:
        name: name of the parameter.
        shape: its shape.
        norm: 2-norm of its values before the step.
        gradient_norm: 2-norm of the gradient of the mean loss over the batch, with regularizers, before clipping; of its finite
            values.
        gradient_nonfinite: number of values of the gradient that are nan or infinite.
        update_norm: 2-norm of the change of the parameter in this step.
        ratio: `update_norm` / `norm`; nan if both are 0.
        nonfinite: number of values that are nan or infinite after the step.

    Example:
        >>> ParameterValues("w", (2,), 2.0, 0.5, 0, 0.01, 0.005, 0).ratio
        0.005
    """

    name: str
    shape: tuple[int, ...]
    norm: float
    gradient_norm: float
    gradient_nonfinite: int
    update_norm: float
    ratio: float
    nonfinite: int


@dataclass(frozen=True)
class FirstBad:
    """The first array of a step that is not finite and from which the loss, the gradients or the new state are not finite.

    Attributes:
        what: "forward" (a value), "backward" (the gradient that a node returns) or "update" (a parameter after the step).
        node: the node, variable or parameter.
        inputs: the arrays that the node was computed from.
        data_rows: for arrays as training data, the numbers of its bad rows in the data.

    Example:
        >>> node = NodeValues("log0", "log", inputs=("fc",), infinities=2, size=8, minimum=0.1, maximum=1.0)
        >>> print(FirstBad("forward", node, [NodeValues("fc", minimum=0.0, maximum=2.5, size=8, zeros=0.25)]))
        node 'log0' (log) is the first that is not finite: 2 infinite of 8 values; its input: 'fc' 0 to 2.5, 25% zeros
    """

    what: str
    node: NodeValues
    inputs: list[NodeValues] = field(default_factory=list)
    data_rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        node = self.node
        name = f"{node.kind} {node.name!r}"
        name += f" ({node.operator})" if node.operator and node.operator != node.name else ""
        if self.what == "update":
            counts = f": {node.nans} of {node.size} values; {node.source}" if node.size else ""
            return f"the update of {name} is not finite{counts}"
        counts = f"{_counted(node.nans, node.infinities)} of {node.size} values"
        if self.what == "backward":
            text = f"the backward pass of {name} is the first that is not finite: the gradient it gets is finite, and one it "
            text += "returns is not"
        elif node.kind == "node":
            text = f"{name} is the first that is not finite: {counts}{self._rows()}"
        elif node.kind in ("parameter", "auxiliary state"):
            return f"{name} is not finite before the step: {counts}; an earlier step made it so"
        else:
            return f"{name} is not finite: {counts}{self._rows()}"
        inputs = f"; its input{'s' * (len(self.inputs) > 1)}: {'; '.join(map(str, self.inputs[:4]))}" if self.inputs else ""
        return text + (f", at {node.source}" if node.source else "") + inputs

    def _rows(self) -> str:
        if not self.node.rows:
            return ""
        text = f", in {_listed('row', self.node.rows)} of the batch"
        return text + (f" ({_listed('row', self.data_rows)} of the data)" if self.data_rows else "")


@dataclass(frozen=True, repr=False)
class Replay:
    """Result of `Run.replay` and `jfit.replay`: one training step, node by node.  `print` shows it as tables.

    Attributes:
        step: number of the step, from 0: the number of updates before it.
        epoch, batch: numbers of its epoch, and of its batch within the epoch, from 0.
        start: the step of the state from which training was repeated up to this step.
        loss: mean loss of the batch.
        learning_rate: learning rate of the update; None if it is unknown.
        nodes: list of `NodeValues`: inputs, parameters, auxiliary states and constants, nodes in the order in which they are
            computed, and the losses of the rows.
        parameters: list of `ParameterValues` of the trainable parameters.
        first_bad: `FirstBad`; None if loss, gradients and the new state are finite.

    Example:
        >>> replay = Replay(7, 1, 3, 4, 0.25, 0.1, [NodeValues("fc", "FullyConnected", minimum=0.0, maximum=1.0)], [], None)
        >>> replay["fc"].maximum, replay.step
        (1.0, 7)
    """

    step: int
    epoch: int
    batch: int
    start: int
    loss: float
    learning_rate: float | None
    nodes: list[NodeValues]
    parameters: list[ParameterValues]
    first_bad: FirstBad | None

    def __getitem__(self, name: str) -> NodeValues:
        """Return the values of the node of this name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"step {self.step} has no node {name!r}; its names are in replay.nodes")

    @property
    def gradients(self) -> dict[str, float]:
        """Name of a parameter -> 2-norm of its gradient."""
        return {p.name: p.gradient_norm for p in self.parameters}

    @property
    def updates(self) -> dict[str, float]:
        """Name of a parameter -> 2-norm of its change in this step, divided by the 2-norm of its values."""
        return {p.name: p.ratio for p in self.parameters}

    @property
    def table(self) -> list[dict[str, Any]]:
        """The statistics of all nodes, one dict per node."""
        return [dataclasses.asdict(node) | {"nonfinite": node.nonfinite} for node in self.nodes]

    def to_pandas(self) -> Any:
        """Return the statistics of all nodes as a pandas DataFrame, which needs pandas.

        Returns:
            DataFrame with a row per node, and the names as its index.

        Example:
            >>> replay = Replay(7, 1, 3, 4, 0.25, 0.1, [NodeValues("fc", minimum=0.0, maximum=1.0)], [], None)
            >>> float(replay.to_pandas().loc["fc", "maximum"])
            1.0
        """
        import pandas

        return pandas.DataFrame(self.table, columns=None if self.table else ["name"]).set_index("name")

    def __repr__(self) -> str:
        bad = "" if self.first_bad is None else f", the first that is not finite: {self.first_bad.node.name!r}"
        return f"<Replay of step {self.step}: {len(self.nodes)} nodes, {len(self.parameters)} parameters{bad}>"

    def __str__(self) -> str:
        rate = "" if self.learning_rate is None else f", learning rate {self.learning_rate:.4g}"
        lines = [f"step {self.step} (epoch {self.epoch}, batch {self.batch}): loss {self.loss:.6g}{rate}"]
        lines.append("everything is finite" if self.first_bad is None else str(self.first_bad))
        shown = [node for node in self.nodes if node.kind in ("input", "node", "loss")]
        where = any(node.source for node in shown)
        head = ["node", "operator", "min", "max", "mean", "zeros", "non-finite", "gradient norm", *(["line"] * where)]
        lines += ["", *aligned([head, *(_node_row(node, where) for node in shown)])]
        head = ["parameter", "norm", "gradient norm", "update norm", "update / weight"]
        rows = [[p.name, *(f"{x:.4g}" for x in (p.norm, p.gradient_norm, p.update_norm, p.ratio))] for p in self.parameters]
        for row, p in zip(rows, self.parameters, strict=True):
            row[2] += f" + {p.gradient_nonfinite} non-finite" if p.gradient_nonfinite else ""
        return "\n".join([*lines, "", *aligned([head, *rows])])


# ------------------------------------------------------------------------------------------------ text
def _counted(nans: int, infinities: int) -> str:
    return " and ".join([f"{nans} nan"] * (nans > 0) + [f"{infinities} infinite"] * (infinities > 0)) or "0"


def _listed(what: str, numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:ROWS_SHOWN]))
    more = f" and {len(numbers) - ROWS_SHOWN} more" if len(numbers) > ROWS_SHOWN else ""
    return f"{what}{'s' * (len(numbers) > 1)} {text}{more}"


def _node_row(node: NodeValues, where: bool) -> list[str]:
    values = [f"{x:.4g}" for x in (node.minimum, node.maximum, node.mean)]
    gradient = "" if node.gradient_norm is None else f"{node.gradient_norm:.4g}"
    gradient += f" + {node.gradient_nonfinite} non-finite" if node.gradient_nonfinite else ""
    row = [node.name, node.operator or node.kind, *values, f"{node.zeros:.0%}", str(node.nonfinite or ""), gradient]
    source = node.source if len(node.source) <= SOURCE_SHOWN else f"{node.source[: SOURCE_SHOWN - 3]}..."
    return [*row, *([source] * where)]


# ------------------------------------------------------------------------------------------------ the first bad node
def find_first_bad(
    nodes: Sequence[NodeValues], parameters: Sequence[ParameterValues], aux: Sequence[str] = ()
) -> FirstBad | None:
    """Find the array from which loss, gradients or the new state are not finite.

    From a loss, or from the backward pass, the search follows inputs that are not finite.  Infinities that come from constants,
    such as those of a mask, are not followed.

    Args:
        nodes: of the step, in the order in which they are computed.
        parameters: the trainable parameters.
        aux: names of the auxiliary states that are not finite after the step.

    Returns:
        `FirstBad`, or None.

    Example:
        >>> log, exp = NodeValues("log", inputs=("x",), nans=1), NodeValues("exp", inputs=("log",), nans=1)
        >>> find_first_bad([log, exp, NodeValues("loss", kind="loss", inputs=("exp",), nans=1)], []).node.name
        'log'
    """
    by_name = {node.name: node for node in nodes}
    masks: set[str] = set()  # infinite values that come from constants only
    for node in nodes:
        bad = [n for n in node.inputs if n in by_name and by_name[n].nonfinite]
        is_constant = node.kind == "constant" or (node.kind == "node" and not node.inputs)
        if node.infinities and not node.nans and (is_constant or (bad and masks.issuperset(bad))):
            masks.add(node.name)

    def first(what: str, node: NodeValues) -> FirstBad:
        return FirstBad(what, node, [by_name[n] for n in node.inputs if n in by_name])

    def from_value(node: NodeValues) -> FirstBad:
        while earlier := [n for n in nodes if n.name in node.inputs and n.nonfinite and n.name not in masks]:
            node = earlier[0]
        return first("forward", node)

    def from_gradients(names: set[str]) -> FirstBad:
        bad = [node for node in nodes if node.gradient_nonfinite or node.name in names]
        if not bad:
            return first("backward", NodeValues(min(names), kind="parameter"))
        readers = [node for node in nodes if bad[-1].name in node.inputs and node.kind == "node"]
        node = readers[-1] if readers else bad[-1]
        return from_value(node) if node.nonfinite and node.name not in masks else first("backward", node)

    losses = [node for node in nodes if node.kind == "loss" and node.nonfinite]
    gradients = {p.name for p in parameters if p.gradient_nonfinite}
    updated = [p for p in parameters if p.nonfinite]
    if losses:
        return from_value(losses[0])
    if gradients:
        return from_gradients(gradients)
    if updated:
        p = updated[0]
        norms = f"before it, the norm is {p.norm:.4g}, and that of the gradient {p.gradient_norm:.4g}"
        return FirstBad("update", NodeValues(p.name, kind="parameter", size=math.prod(p.shape), source=norms, nans=p.nonfinite))
    return FirstBad("update", NodeValues(aux[0], kind="auxiliary state")) if aux else None
