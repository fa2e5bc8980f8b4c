"""mx.viz prints and draws graphs exactly as MXNet does."""

import json
import sys
from pathlib import Path

import pytest
from cases.rnn_cells import pictures

import jfit.mx as mx

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rnn_cells.json").read_text())["pictures"]


@pytest.fixture(scope="module")
def drawings():
    pytest.importorskip("graphviz")
    with mx.name.NameManager():
        return pictures(mx)


@pytest.mark.parametrize("name", [n for n in GOLDEN if not n.startswith("drawing")])
def test_text_is_that_of_mxnet_line_by_line(drawings, name):
    assert drawings[name] == GOLDEN[name]


@pytest.mark.parametrize("name", [n for n in GOLDEN if n.startswith("drawing")])
def test_drawings_are_those_of_mxnet(drawings, name):
    def plain(lines):
        # versions of the graphviz package differ in quotes and in how they write a newline
        return [x for x in "\n".join(lines).replace('"', "").replace("\\n", "\n").splitlines() if x]

    assert plain(drawings[name]) == plain(GOLDEN[name])


def test_unknown_shapes_and_non_symbols_raise():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3)
    with pytest.raises(
        ValueError, match=r"the shapes \{\} do not determine all shapes of the network; pass those of all inputs"
    ):
        mx.viz.print_summary(net, {})
    with pytest.raises(mx.MXNetError, match="no such variable"):
        mx.viz.print_summary(net, {"dat": (2, 3)})


def test_drawing_without_graphviz_raises_with_install_instructions(monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match="pip install"):
        mx.viz.plot_network(mx.sym.Variable("x"))
