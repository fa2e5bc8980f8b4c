"""Optimizers shaped as optax transformations with MXNet 1.9.1's exact rules, and learning-rate schedules.

>>> import jfit.optim
>>> jfit.optim.get("adam").learning_rate
0.001
"""

from jfit.optim.registry import OPTIMIZERS, Resolved, get, injected_rate, register
from jfit.optim.rules import OptState, adam, adamw, nag, rmsprop, set_multipliers, sgd
from jfit.optim.schedules import (
    SCHEDULES,
    Schedule,
    as_schedule,
    constant,
    cosine,
    factor,
    multifactor,
    poly,
    run_schedule,
    warmup_linear,
)

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "OptState",
    "Resolved",
    "Schedule",
    "adam",
    "adamw",
    "as_schedule",
    "constant",
    "cosine",
    "factor",
    "get",
    "injected_rate",
    "multifactor",
    "nag",
    "poly",
    "register",
    "rmsprop",
    "run_schedule",
    "set_multipliers",
    "sgd",
    "warmup_linear",
]
