"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.lowering.model import plan_of as plan_of
from jfit.step.gradients import forward_step as forward_step, gradient_step as gradient_step
from jfit.step.observe import eval_step as eval_step, predict_step as predict_step
from jfit.step.slices import Shared as Shared, part_key as part_key, unrolls as unrolls
from jfit.step.train import Step as Step, StepOut as StepOut, train_step as train_step, update_step as update_step
