"""What the optimizers with a rule of `jfit.optim` have in common."""

from __future__ import annotations

import os

from jfit.mxnet.optimizer.base import Optimizer


class Ruled(Optimizer):
    """An optimizer whose arithmetic is a rule of `jfit.optim`; shows its parameters."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self.parameters, "wd", "clip_gradient"))
        return f"{type(self).__name__}({shown})"


def group_size(default: int) -> int:
    """How many parameters MXNet updates at once: MXNET_OPTIMIZER_AGGREGATION_SIZE, or the default."""
    return int(os.getenv("MXNET_OPTIMIZER_AGGREGATION_SIZE", str(default)))
