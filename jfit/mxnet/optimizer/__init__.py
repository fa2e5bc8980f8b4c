"""MXNet's Optimizer classes.  Update counts, learning rates and multipliers are host attributes; `jfit.optim` does the math.

base         Optimizer: update counts, learning rate and multipliers per parameter index, update of mutable arrays
named        registry of optimizers by name (sgd, adam ...); the classes are in momentum, moments, rms and large_batch
apply        one compiled update of many parameters; conversion between slots and MXNet's nested states
updater      Updater: optimizer states by parameter index
shared       scalars shared by all parameters, such as Nadam's m_schedule
settings     optimizer <-> plain data for `.states` files; saved: validation of such data
lr_scheduler MXNet's stateful learning-rate schedulers
"""

from jfit import lazy as _lazy
from jfit.mxnet.optimizer import named as _named  # noqa: F401  registers the classes

_lazy.stub(__name__)
