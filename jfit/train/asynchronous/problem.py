"""What the actors of asynchronous training share: model, optimizer and metrics, in a form that can be sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jfit.graph import Symbol
from jfit.lowering.build import lower_with_inputs
from jfit.lowering.model import Model
from jfit.optim import Optimizer
from jfit.step.fitting import paired


class Problem(NamedTuple):
    """What is trained, and how; every actor makes its own programs from it.

    Attributes:
        graph: the `Symbol`, which is lowered again by each actor; or the `Model` of a function.
        probe: inputs of the first batch by name, NumPy arrays.
        optimizer: from `jfit.train.fit.resolve_optimizer`.
        schedule: learning-rate schedule, or None.
        metrics: metrics of training.
        frozen: names or patterns of parameters that are not trained.
        clip_norm, clip_value: limits of the mean gradient, or None.
        policy: mixed precision, or None.
        batch_size: number of rows of a gradient.
        paddable: whether incomplete batches are padded.
        reason: why not, see `jfit.lowering.model.Plan.coupled`.
        seed: of the order of the rows.
    """

    graph: Symbol | Model
    probe: dict[str, Any]
    optimizer: Optimizer
    schedule: Any
    metrics: tuple[Any, ...]
    frozen: Sequence[str]
    clip_norm: float | None
    clip_value: float | None
    policy: Any
    batch_size: int
    paddable: bool
    reason: str
    seed: int

    def model(self) -> Model:
        """The `Model`, bound to a batch."""
        model = lower_with_inputs(self.graph, self.probe) if isinstance(self.graph, Symbol) else self.graph
        return paired(model.bound(self.probe), self.metrics, self.probe)
