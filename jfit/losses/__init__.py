"""Losses for models of functions; a short name for `jfit.lowering.losses`."""

from jfit.lowering.losses import (
    ALIASES,
    LOSSES,
    Loss,
    binary_cross_entropy,
    cross_entropy,
    get,
    hinge,
    huber,
    known_loss,
    l2,
    log_cosh,
    mae,
    mse,
    nll,
    poisson,
)

__all__ = [
    "ALIASES",
    "LOSSES",
    "Loss",
    "binary_cross_entropy",
    "cross_entropy",
    "get",
    "hinge",
    "huber",
    "known_loss",
    "l2",
    "log_cosh",
    "mae",
    "mse",
    "nll",
    "poisson",
]
