"""Training over epochs: `fit`, the `Run` that it returns, callbacks, evaluation, prediction and checkpoints."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
