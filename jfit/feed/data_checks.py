"""Checks of the data at the end of a pass over it.  Single values are checked before, by `jfit.step.batch_check`."""

from __future__ import annotations

from typing import Any

from jfit.feed.host_batches import HostBatches
from jfit.feed.train_data import ArrayWatch
from jfit.lowering.model import Model
from jfit.step.totals import Totals


class DataChecks:
    """Checks of the data during a training or an evaluation.

    Args:
        model: the `Model`.
        batches: the `HostBatches` that are read.
        data: the training data, which stays on the host; None: data that is not watched for changes.
    """

    def __init__(self, model: Model, batches: HostBatches, data: Any = None) -> None:
        self.model, self._batches, self._watch = model, batches, ArrayWatch(data)

    def check_epoch(self, totals: Totals, epoch: int | None = None) -> None:
        """Check what is known at the end of a pass over the data.

        Args:
            totals: running sums of the pass, on the host.
            epoch: number of the epoch; None for an evaluation.

        Raises:
            ValueError: the batches had row weights, and no row counted in the loss.
        """
        self._watch.check(epoch)
        if not self._batches.weighted or int(totals.first_bad_step) >= 0 or (totals.loss[0, 1] > 0).any():
            return
        if self.model.joint_loss is not None or any(o.loss is not None for o in self.model.outputs):
            what = "evaluation" if epoch is None else f"epoch {epoch}"
            raise ValueError(f"{what}: no row of the data has a weight above 0 in the loss, so the mean loss is undefined.")
