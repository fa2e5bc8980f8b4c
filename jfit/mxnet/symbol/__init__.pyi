"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

import typing

from . import random as random
from jfit.graph.scopes import AttrScope as AttrScope, NameManager as NameManager, Prefix as Prefix
from jfit.mxnet.numpy.symbols import np as np
from jfit.mxnet.symbol.namespaces import (
    contrib as contrib, image as image, linalg as linalg, npx as npx, op as op, sparse as sparse,
)
from jfit.mxnet.symbol.symbol import (
    Group as Group, Symbol as Symbol, Variable as Variable, arange as arange, eye as eye, fromjson as fromjson, full as full,
    histogram as histogram, linspace as linspace, load as load, load_json as load_json, ones as ones, split_v2 as split_v2,
    var as var, zeros as zeros,
)

_internal: typing.Any

def __getattr__(name: str) -> typing.Any: ...  # the operators
