"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.init.core import (
    InitDesc as InitDesc, InitFn as InitFn, Initializer as Initializer, REGISTRY as REGISTRY, draw_all as draw_all, get as get,
    register as register,
)
from jfit.init.fused import FusedRNN as FusedRNN, fusedrnn as fusedrnn
from jfit.init.rules import (
    Bilinear as Bilinear, Constant as Constant, Default as Default, LSTMBias as LSTMBias, MSRAPrelu as MSRAPrelu,
    Mixed as Mixed, Normal as Normal, One as One, Orthogonal as Orthogonal, Uniform as Uniform, Xavier as Xavier, Zero as Zero,
    bilinear as bilinear, constant as constant, default as default, lstmbias as lstmbias, mixed as mixed,
    msraprelu as msraprelu, normal as normal, one as one, orthogonal as orthogonal, uniform as uniform, xavier as xavier,
    zero as zero,
)
from jfit.init.stored import Load as Load, load as load
