"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.optim.averaging import EmaState as EmaState, ema as ema, ema_params as ema_params
from jfit.optim.core import OptState as OptState, Optimizer as Optimizer, apply_updates as apply_updates
from jfit.optim.registry import OPTIMIZERS as OPTIMIZERS, get as get, injected_rate as injected_rate, register as register
from jfit.optim.rows import SparseRows as SparseRows
from jfit.optim.rules import (
    adadelta as adadelta, adagrad as adagrad, adam as adam, adamax as adamax, adamw as adamw, adding as adding, dcasgd as
    dcasgd, ftml as ftml, ftrl as ftrl, group_adagrad as group_adagrad, lamb as lamb, lars as lars, lbsgd as lbsgd, nadam as
    nadam, nag as nag, rmsprop as rmsprop, sgd as sgd, sgld as sgld, signum as signum,
)
from jfit.optim.schedules import (
    SCHEDULES as SCHEDULES, Schedule as Schedule, Span as Span, as_optax as as_optax, as_schedule as as_schedule,
    constant as constant, cosine as cosine, epochs as epochs, factor as factor, fraction as fraction,
    multifactor as multifactor, one_cycle as one_cycle, poly as poly, run_schedule as run_schedule,
    warmup_linear as warmup_linear,
)
