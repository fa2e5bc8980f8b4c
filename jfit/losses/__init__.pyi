"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.lowering.losses import (
    ALIASES as ALIASES, LOSSES as LOSSES, Loss as Loss, binary_cross_entropy as binary_cross_entropy,
    cross_entropy as cross_entropy, get as get, hinge as hinge, huber as huber, known_loss as known_loss, l2 as l2,
    log_cosh as log_cosh, mae as mae, mse as mse, nll as nll, poisson as poisson,
)
