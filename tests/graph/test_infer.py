"""Shape and dtype inference of graphs: parameters, unknown sizes, forward and backward, contradictions."""

import numpy as np
import pytest

from jfit import sym
from jfit.graph import GraphError
from jfit.graph.compose import apply_op

V = sym.Variable


def shapes(net, **given):
    """Everything that can be known, by name."""
    arguments, outputs, aux = net.infer_shape_partial(**given)
    names = [*net.list_arguments(), *net.list_outputs(), *net.list_auxiliary_states()]
    return dict(zip(names, [*arguments, *outputs, *aux], strict=True))


# ------------------------------------------------------------------------------------------ forward


def test_a_shape_declared_on_a_variable_is_used():
    assert sym.relu(V("x", shape=(2, 3))).infer_shape()[1] == [(2, 3)]
    assert sym.relu(V("x", shape=(0, 3))).infer_shape(x=(4, 0))[1] == [(4, 3)]


# ------------------------------------------------------------------------------------------ unknown sizes


def test_nothing_is_inferred_from_no_shapes():
    net = V("a") + V("b")
    assert net.infer_shape() == (None, None, None)
    assert net.infer_shape_partial() == ([(), ()], [()], [])
    assert net.infer_shape(a=(), b=None) == (None, None, None)


# ------------------------------------------------------------------------------------------ contradictions
@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (
            lambda: sym.FullyConnected(V("data"), num_hidden=5, name="f"),
            {"data": (2, 3), "f_weight": (5, 4)},
            r"f: 'f_weight' has shape \(5, 4\), FullyConnected needs \(5, 3\) because of input 'data'",
        ),
        (lambda: V("a", shape=(2, 3)) * 1, {"a": (2, 4)}, r"'a' has shape \(2, 3\), in contradiction to \(2, 4\)"),
        (
            lambda: sym.elemwise_add(V("a"), V("b"), name="p"),
            {"a": (2, 3), "b": (3, 2)},
            r"p: elemwise_add cannot take .*: shapes \(2, 3\) and \(3, 2\) differ",
        ),
        (lambda: sym.broadcast_add(V("a"), V("b"), name="p"), {"a": (2, 3), "b": (3, 2)}, r"p: .*\(2, 3\).*\(3, 2\)"),
        (lambda: sym.Reshape(V("a"), shape=(5,), name="r"), {"a": (2, 3)}, r"r: Reshape cannot take data=\(2, 3\)"),
        (lambda: sym.Convolution(V("a"), kernel=(3, 3), num_filter=2, name="c"), {"a": (2, 3)}, r"c: "),
        (lambda: sym.relu(V("data")), {"dat": (2, 3)}, "got a shape for 'dat'.*did you mean 'data'"),
        (lambda: sym.relu(V("x", attr={"__shape__": "(2,"})), {}, r"'x': .*__shape__ is '\(2,'"),
    ],
)
def test_contradictory_shapes_raise_with_the_node_and_both_shapes(make, given, message):
    with pytest.raises(GraphError, match=message):
        make().infer_shape(**given)


def test_shapes_are_given_by_position_or_by_name():
    with pytest.raises(TypeError, match="by position or by name, not both"):
        (V("a") + V("b")).infer_shape((2,), b=(2,))
    with pytest.raises(GraphError, match="got 3 values for 2 arguments"):
        (V("a") + V("b")).infer_shape((2,), (2,), (2,))


# ------------------------------------------------------------------------------------------ dtypes
def dtypes(net, **given):
    arguments, outputs, aux = net.infer_type(**given)
    names = [*net.list_arguments(), *net.list_outputs(), *net.list_auxiliary_states()]
    return {n: np.dtype(t).name for n, t in zip(names, [*arguments, *outputs, *aux], strict=True)}


def test_dtypes_are_declared_cast_and_inferred_backward():
    assert dtypes(sym.relu(V("x", dtype="bfloat16"), name="r"))["r_output"] == "bfloat16"
    assert dtypes(sym.Cast(V("x"), dtype="int32", name="c"))["c_output"] == "int32"
    ids = dtypes(sym.Embedding(V("data"), input_dim=3, output_dim=2, name="e"), data="int32")
    assert (ids["data"], ids["e_weight"], ids["e_output"]) == ("int32", "float32", "float32")
    assert dtypes(sym.relu(sym.tanh(sym.relu(V("a")))) + V("b"), b="float16")["a"] == "float16"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"dta": "float32"}, GraphError, "got a dtype for 'dta'.*'data'"),
        ({"data": "float17"}, TypeError, "'float17' not understood"),
    ],
)
def test_unknown_names_and_dtypes_raise(given, error, message):
    with pytest.raises(error, match=message):
        sym.relu(V("data")).infer_type(**given)
    with pytest.raises(GraphError, match="'x': __dtype__ is '99'"):
        sym.relu(V("x", attr={"__dtype__": "99"})).infer_type()


# ------------------------------------------------------------------------------------------ size


def test_placeholder_sizes_are_traced_again_when_the_inputs_become_known():
    a, b = sym.Variable("data"), sym.Variable("b")
    pooled = sym.Pooling(a, kernel=(1, 2), stride=(1, 10), name="p")
    cut = sym.slice_axis(a, axis=3, begin=0, end=5, name="s")
    _, (width, part, _), _ = sym.Group([pooled, cut, a + b]).infer_shape(data=(2, 3, 8, 0), b=(2, 3, 8, 3))
    assert (width, part) == ((2, 3, 8, 1), (2, 3, 8, 3))
    _, (width, *_), _ = sym.Group([pooled, a + b]).infer_shape(data=(2, 3, 8, 0), b=(2, 3, 8, 30))
    assert width == (2, 3, 8, 3)


@pytest.mark.parametrize(
    ("name", "attrs", "shapes", "found"),
    [
        ("Convolution", {"kernel": (1, 1), "num_filter": 2, "num_group": 0}, [(1, 2, 3, 3)], "ZeroDivisionError"),
        ("_contrib_DeformableConvolution", {"kernel": (1,), "num_filter": 2}, [(1, 2, 3, 3)], "IndexError"),
        ("LRN", {"nsize": -5}, [(2, 3, 4, 4)], "positive"),
        ("one_hot", {"depth": -2}, [(3,)], "-2"),
        ("_ones", {"shape": (-2,)}, [], "its attributes"),
    ],
)
def test_unexpected_attributes_raise_with_their_name(name, attrs, shapes, found):
    with pytest.raises(GraphError, match=f"odd.*{found}"):
        net = apply_op(name, [sym.Variable(f"x{i}") for i in range(len(shapes))], attrs, node_name="odd", cls=sym.Symbol)
        net.infer_shape(**{f"x{i}": s for i, s in enumerate(shapes)})


def test_weights_of_both_directions_are_sized_from_the_rest_of_the_vector():
    def net(*weights):
        flat = [sym.Reshape(w, shape=(-1,)) for w in (*weights, V("b", shape=(40,)))]
        packed = apply_op("_rnn_param_concat", flat, {"num_args": 3, "dim": 0}, cls=sym.Symbol)
        return sym.RNN(V("data"), packed, V("h"), state_size=5, num_layers=1, bidirectional=True, mode="rnn_tanh", name="r")

    alike = V("left", shape=(5, 0)), V("right", shape=(5, 0))  # 130 in all, 40 of them taken
    found = shapes(net(*alike), data=(2, 3, 6))
    assert found["left"] == found["right"] == (5, 9) and found["r_output"] == (2, 3, 10)
    assert shapes(net(V("left", shape=(5, 9)), alike[1]), data=(2, 3, 6))["right"] == (5, 9)


def test_results_of_one_output_are_not_used_for_several():
    a = sym.relu(sym.Variable("x"), name="a")
    pairs = [(a, sym.reshape(a, shape=shape, name="b")) for shape in ((-1,), (2, -1), (4, -1))]
    shapes = [sym.Group(list(pair)).infer_shape(x=(4, 2))[1] for pair in pairs]
    assert shapes == [[(4, 2), (8,)], [(4, 2), (2, 4)], [(4, 2), (4, 2)]]
    assert a.infer_shape(x=(4, 2))[1] == [(4, 2)]
