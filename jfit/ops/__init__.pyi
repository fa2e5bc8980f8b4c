"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.ops.attributes import Attr as Attr, Attrs as Attrs, REQUIRED as REQUIRED
from jfit.ops.context import Ctx as Ctx
from jfit.ops.registry import (
    ALIASES as ALIASES, Op as Op, REGISTRY as REGISTRY, UnknownOperator as UnknownOperator, lookup as lookup,
    nearest as nearest, operator as operator, record_for as record_for, register as register,
)
from jfit.ops.rows import LOST as LOST, RowLayout as RowLayout
