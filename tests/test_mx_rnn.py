"""Recurrent cells: graphs, numbers and packed weights equal to MXNet's; what it refuses; a language model over buckets."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import jfit.mx as mx
from cases.rnn_cells import CASES, NUMBERS, flat
from record_rnn import PACKED, graph, named, numbers, packing

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rnn_cells.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_that_of_mxnet_node_by_node(name):
    found, wanted = graph(named(mx, CASES[name])), GOLDEN["graphs"][name]
    for have, want in zip(found["nodes"], wanted["nodes"], strict=True):
        assert have == want
    assert found["heads"] == wanted["heads"]


@pytest.mark.parametrize("name", NUMBERS)
def test_outputs_and_gradients_are_those_of_mxnet(name):
    found, wanted = numbers(mx, named(mx, CASES[name]), NUMBERS[name]), GOLDEN["numbers"][name]
    for have, want in zip(found["outputs"], wanted["outputs"], strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    assert found["grads"].keys() == wanted["grads"].keys()
    for key, want in wanted["grads"].items():
        np.testing.assert_allclose(found["grads"][key], want, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", PACKED)
def test_weights_are_packed_and_unpacked_as_in_mxnet(name):
    assert packing(mx, *PACKED[name]) == GOLDEN["packing"][name]
