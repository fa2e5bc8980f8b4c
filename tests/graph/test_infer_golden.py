"""Shape and dtype inference against recorded results of MXNet, and sizes that stay unknown."""

import json
from pathlib import Path

import numpy as np
import pytest
from cases.infer_nets import NETS, SHAPES, TYPES, build

import jfit.mx as mx
from jfit.ops import lookup

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "infer.json").read_text())
every_net = pytest.mark.parametrize("name", NETS)
DIFFERENT = {  # case -> row of decided.md
    ("concat", 3): "concat_open_part",
    ("softmax", 3): "softmax_all_axes",
}


def shapes_of(symbol, given):
    return [[list(s or ()) for s in part] for part in symbol.infer_shape_partial(**given)]


def types_of(symbol, given):
    return [[None if t is None else np.dtype(t).name for t in part] for part in symbol.infer_type_partial(**given)]


def agrees(found, wanted):
    """What MXNet knows is so; what it leaves open may be known here."""
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], int):
        return len(found) == len(wanted) and all(b in (0, a) for a, b in zip(found, wanted, strict=True))
    return wanted in ([], None) or found == wanted


@every_net
def test_every_shape_mxnet_infers_is_inferred(name):
    symbol = build(mx, name)
    assert symbol.list_arguments() == GOLDEN[name]["arguments"]
    for number, (given, wanted) in enumerate(zip(SHAPES[name], GOLDEN[name]["shapes"], strict=True)):
        found = shapes_of(symbol, given)
        if (name, number) in DIFFERENT:
            assert found != wanted
        elif wanted != "error":  # MXNet gives up on some sizes of 0 that jfit takes for unknown ones
            pairs = [(a, b) for f, w in zip(found, wanted, strict=True) for a, b in zip(f, w, strict=True)]
            assert all(agrees(a, b) for a, b in pairs), (given, found, wanted)


# MXNet refuses all dtypes of some nets; there is nothing to know.
@pytest.mark.parametrize("name", [name for name in NETS if {*map(str, GOLDEN[name]["types"])} != {"error"}])
def test_every_dtype_mxnet_infers_is_inferred(name):
    symbol = build(mx, name)
    for given, wanted in zip(TYPES[name], GOLDEN[name]["types"], strict=True):
        found = types_of(symbol, given)
        if wanted != "error":
            pairs = [(a, b) for f, w in zip(found, wanted, strict=True) for a, b in zip(f, w, strict=True)]
            assert all(agrees(a, b) for a, b in pairs), (given, found, wanted)


def test_an_unknown_size_broadcast_with_1_stays_unknown():
    rule, params = lookup("broadcast_add").shapes, lookup("broadcast_add").parse({})
    for lhs, rhs, wanted in [
        ((0, 3), (1, 3), (0, 3)),
        ((0, 3), (2, 1), (2, 3)),
        ((0,), (2, 0), (2, 0)),
        ((3,), (2, 1), (2, 3)),
        ((0,), (1,), (0,)),
    ]:
        assert rule(params, [lhs, rhs], [None])[1] == [wanted]
    assert rule(params, [None, (2,)], [None])[1] == [None]
