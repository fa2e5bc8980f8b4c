"""Stage 3: one update, one evaluation, one prediction, as pure functions.

train_step                                     gradients and update in one
forward_step, gradient_step, update_step       the same, taken apart
mean_gradients, full_gradients                 the gradient of a batch, of a data set, for loops that need several
eval_step, predict_step                        nothing learns
"""

from jfit.step.apart import forward_step, gradient_step
from jfit.step.mean import full_gradients, mean_gradients
from jfit.step.observe import eval_step, predict_step
from jfit.step.slices import Shared, part_key, plan_of, unrolls
from jfit.step.train import Step, StepOut, train_step, update_step

__all__ = [
    "Shared",
    "Step",
    "StepOut",
    "eval_step",
    "forward_step",
    "full_gradients",
    "gradient_step",
    "mean_gradients",
    "part_key",
    "plan_of",
    "predict_step",
    "train_step",
    "unrolls",
    "update_step",
]
