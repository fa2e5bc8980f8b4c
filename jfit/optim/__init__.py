"""Optimizers shaped as optax transformations with MXNet 1.9.1's exact rules, and learning-rate schedules.

Every optimizer is `(init, update)`; `update(grads, state, params, learning_rate=None)` gives what is to be ADDED to the
parameters.  The rate is traced, so a schedule or a user may change it without a second compile; None means the one given at
construction.  It may be one for each leaf: (leaves,), or a tuple of scalars, which XLA compiles ten times faster on a CPU.
Gradients arrive rescaled; c(.) in the formulas clips to +-clip_gradient, and is absent unless that is positive.

Parameters that all of them share:
    wd: weight decay.  wd_mult: "mxnet" (default) decays what MXNet's Module decays, names that end in `_weight` or
        `_gamma`, or, where the parameters are no flat dict of such names, arrays of two or more dimensions; a dict by name
        overrides that; a function name -> float replaces it; None decays everything.
    lr_mult: dict by name (others 1) or function name -> float; None is 1 for all.
    multi_precision: parameters of 16 bits are kept in float32 as well (slot `master`), and that is what is updated.
Without it parameters of 16 bits are updated in float32 arithmetic, keep float32 state, and are rounded after every update.

A gradient may be a `SparseRows`, some rows of a table.  Lazy rules (sgd, adam, adagrad, group_adagrad) then update those
rows alone, at a cost that is theirs; `jfit.optim.apply_updates` adds the rows in place.  Other rules update the whole table.

>>> import jfit.optim
>>> jfit.optim.get("adam").learning_rate
0.001
"""

from jfit.optim.core import Optimizer, OptState, set_multipliers
from jfit.optim.langevin import sgld
from jfit.optim.large_batch import lamb, lars, lbsgd
from jfit.optim.leader import ftml, ftrl
from jfit.optim.moments import adam, adamax, adamw, nadam
from jfit.optim.momentum import adding, dcasgd, nag, sgd, signum
from jfit.optim.registry import OPTIMIZERS, get, injected_rate, register
from jfit.optim.rms import adadelta, adagrad, group_adagrad, rmsprop
from jfit.optim.rows import SparseRows, apply_updates
from jfit.optim.schedules import (
    SCHEDULES,
    Schedule,
    as_optax,
    as_schedule,
    constant,
    cosine,
    factor,
    multifactor,
    poly,
    run_schedule,
    warmup_linear,
)
from jfit.optim.spans import Span, epochs, fraction
from jfit.optim.svrg import SvrgState, svrg, svrg_snapshot, variance_reduced

Resolved = Optimizer  # its former name

Rows = SparseRows  # its earlier name

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "OptState",
    "Optimizer",
    "Resolved",
    "Schedule",
    "Span",
    "SparseRows",
    "SvrgState",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "adding",
    "apply_updates",
    "as_optax",
    "as_schedule",
    "constant",
    "cosine",
    "dcasgd",
    "epochs",
    "factor",
    "fraction",
    "ftml",
    "ftrl",
    "get",
    "group_adagrad",
    "injected_rate",
    "lamb",
    "lars",
    "lbsgd",
    "multifactor",
    "nadam",
    "nag",
    "poly",
    "register",
    "rmsprop",
    "run_schedule",
    "set_multipliers",
    "sgd",
    "sgld",
    "signum",
    "svrg",
    "svrg_snapshot",
    "variance_reduced",
    "warmup_linear",
]
