"""Training, evaluation and prediction steps as pure functions.

train_step                                     gradients and update in one step
forward_step, gradient_step, update_step       the same as separate steps
eval_step, predict_step                        forward passes only
BatchCheck                                     the search for invalid values in batches
"""

from jfit.lowering.model import plan_of
from jfit.step.batch_check import BatchCheck
from jfit.step.gradients import forward_step, gradient_step
from jfit.step.observe import eval_step, predict_step
from jfit.step.slices import Shared, part_key, unrolls
from jfit.step.train import Step, StepOut, train_step, update_step

__all__ = [
    "BatchCheck",
    "Shared",
    "Step",
    "StepOut",
    "eval_step",
    "forward_step",
    "gradient_step",
    "part_key",
    "plan_of",
    "predict_step",
    "train_step",
    "unrolls",
    "update_step",
]
