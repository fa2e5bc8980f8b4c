"""Training, evaluation and prediction steps as pure functions.

train_step                                     gradients and update in one step
forward_step, gradient_step, update_step       the same as separate steps
eval_step, predict_step                        forward passes only
"""

from jfit import lazy as _lazy

_lazy.stub(__name__)
