"""MXNet 1.x spelling over jfit."""

from jfit.mx import attribute, base, context, executor, name, nd, random, symbol, util
from jfit.mx.attribute import AttrScope
from jfit.mx.base import MXNetError
from jfit.mx.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus, tpu

sym = symbol
ndarray = nd
