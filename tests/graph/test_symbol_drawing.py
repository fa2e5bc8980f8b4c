"""Summaries and drawings of a graph: numbers of parameters and FLOPs, the table, mermaid, graphviz, MXNet's listing."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jfit
from jfit import sym
from jfit.graph.costs import Flops, flops_of, total

V = sym.Variable


def conv(x, filters, kernel, stride=1, pad=0, bias=True):
    return sym.Convolution(
        x, num_filter=filters, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), no_bias=not bias
    )


def pool(x, kernel, stride, pad=0):
    return sym.Pooling(x, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), pool_type="max")


def resnet50():
    def normed(x, *args):
        return sym.BatchNorm(conv(x, *args, bias=False), fix_gamma=False)

    x = pool(sym.relu(normed(V("data"), 64, 7, 2, 3)), 3, 2, 1)
    for stage, (filters, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for unit in range(count):
            stride = 2 if stage and not unit else 1
            y = sym.relu(normed(sym.relu(normed(x, filters, 1)), filters, 3, stride, 1))
            x = sym.relu(normed(y, 4 * filters, 1) + (x if unit else normed(x, 4 * filters, 1, stride)))
    x = sym.Flatten(sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(7, 7)))
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=1000), name="softmax")


def test_a_known_network_has_its_published_costs():
    whole = total(resnet50(), {"data": (1, 3, 224, 224)})
    assert whole.parameters == 25_557_032 + 53_120  # parameters, moving means and variances
    assert round(whole.macs / 1e9, 3) == 4.089
    assert 2 * whole.macs < whole.flops < 2.02 * whole.macs


def test_counts_are_those_of_each_node():
    net = sym.Activation(conv(V("data"), 4, 3), act_type="relu", name="r")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    found = net.counts(data=(2, 3, 8, 8))
    first = next(iter(found))
    assert found[first] == (4 * 3 * 9 + 4, 2 * 4 * 36 * 27, 2 * 2 * 4 * 36 * 27 + 2 * 4 * 36)
    assert found["r"] == (0, 0, 2 * 4 * 36)
    assert found["fc"] == (3 * 145, 2 * 3 * 144, 2 * 2 * 3 * 144 + 2 * 3)
    assert found["softmax"].macs == 0
    assert net.counts(data=(2, 3, 8, 8))["fc"].parameters == 3 * 145


def test_flops_of_grouped_and_transposed_convolutions_are_exact():
    grouped = sym.Convolution(V("data"), num_filter=4, kernel=(3, 3), num_group=2, no_bias=True, name="c")
    assert grouped.counts(data=(1, 4, 5, 5))["c"].macs == 4 * 9 * 2 * 9
    up = sym.Deconvolution(V("data"), num_filter=2, kernel=(2, 2), stride=(2, 2), no_bias=True, name="d")
    assert up.counts(data=(1, 3, 4, 4))["d"].macs == 3 * 16 * 4 * 2  # each input meets each weight of its channel once

    def conv(kernel):
        return lax.conv_general_dilated(jnp.ones((2, 4, 5, 5)), kernel, (1, 1), "VALID", feature_group_count=2)

    kernel = jnp.ones((4, 2, 3, 3))
    assert flops_of(jax.make_jaxpr(conv)(kernel)).macs == 2 * 4 * 9 * 2 * 9
    assert flops_of(jax.make_jaxpr(lambda g: jax.linear_transpose(conv, kernel)(g))(conv(kernel))).macs == 2 * 4 * 9 * 2 * 9


def test_loops_count_each_iteration():
    net = sym.RNN(V("data"), state_size=4, num_layers=1, mode="lstm", name="rnn")
    assert net.counts(data=(7, 2, 3))["rnn"].macs == 7 * 2 * 16 * (3 + 4)

    def twice(x):
        return lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

    x = jnp.ones(5)
    assert flops_of(jax.make_jaxpr(twice)(x)) == Flops(5, 0)
    assert flops_of(jax.make_jaxpr(lambda x: lax.cond(x[0] > 0, lambda x: x + x * x, lambda x: x, x))(x)) == Flops(10, 0)
    assert flops_of(jax.make_jaxpr(lambda x: jnp.sum(x.astype(jnp.int32)))(x)) == Flops(0, 0)
    assert flops_of(jax.make_jaxpr(lambda x: jnp.sum(x) + x[0])(x)) == Flops(6, 0)
    assert flops_of(jax.make_jaxpr(lambda x: x.at[jnp.array([1, 2])].add(1.0))(x)) == Flops(2, 0)


def test_begin_states_of_unknown_batch_size_use_the_inferred_size():
    data = V("data")
    start = sym._zeros(shape=(0, 4), name="start")
    net = sym.FullyConnected(data, num_hidden=4, name="fc") + start
    assert net.counts(data=(3, 2))["start"].macs == 0


def test_counts_of_unknown_shapes_raise():
    with pytest.raises(jfit.sym.GraphError, match=r"data: its shape is unknown .* pass the shapes of all inputs"):
        sym.FullyConnected(V("data"), num_hidden=3, name="fc").counts()


def test_parameters_shared_by_nodes_count_once_in_the_total():
    w = V("w_weight")
    first = sym.FullyConnected(V("data"), weight=w, num_hidden=4, no_bias=True)
    net = sym.FullyConnected(first, weight=w, num_hidden=4, no_bias=True)
    assert total(net, {"data": (2, 4)}) == (16, 64, 128)


def test_summary_and_drawing_name_every_node():
    net = sym.SoftmaxOutput(sym.FullyConnected(V("data"), num_hidden=3, name="fc"), name="softmax")
    assert "total parameters: 18, MACs: 30," in net.summary(data=(2, 5))
    text = net.mermaid(data=(2, 5))
    assert "fc<br/>FullyConnected num_hidden 3" in text and "|2x5|" in text
    pytest.importorskip("graphviz")
    assert "FullyConnected" in net.graphviz(data=(2, 5)).source


def test_the_listing_equals_mxnets():
    assert V("a").debug_str() == "Variable:a\n"
    a = V("a")
    parts = sym.SliceChannel(a, num_outputs=3, name="s")
    net = sym.BatchNorm(parts[1], name="bn") + parts[0]
    lines = net.debug_str().splitlines()
    assert lines[:8] == [
        *("Symbol Outputs:", f"\toutput[0]={net.name}(0)", "Variable:a", "-" * 20),
        *("Op:SliceChannel, Name=s", "Inputs:", "\targ[0]=a(0) version=0", "Attrs:"),
    ]
    assert "\targ[3]=bn_moving_mean(0) version=1" in lines and "\targ[0]=s(1)" in lines
    assert sym.Group([a, sym.relu(a, name="r")]).debug_str().splitlines()[1:3] == ["\toutput[0]=a(0)", "\toutput[1]=r(0)"]


def test_loops_and_branches_cost_as_much_as_their_bodies():
    w = V("w")

    def step(x, states):
        h = sym.FullyConnected(x, w, num_hidden=4, no_bias=True) + states[0]
        return h, [h]

    def more(x):
        return sym.sum(x) < 9

    def double(x):
        return x, [x * 2]

    out, _ = sym.contrib.foreach(step, V("data"), [V("s")])
    found = next(iter(out.counts(data=(5, 2, 3), s=(2, 4), w=(4, 3)).values()))
    assert found == (0, 5 * 2 * 4 * 3, 5 * (2 * 2 * 4 * 3 + 2 * 4))
    either = sym.contrib.cond(sym.sum(V("p")) > 0, lambda: sym.dot(V("a"), V("b")), lambda: V("a") * V("b"))
    assert total(either, {"p": (1,), "a": (3, 3), "b": (3, 3)}).macs == 27
    looped, _ = sym.contrib.while_loop(more, double, [V("x")], max_iterations=7)
    assert total(looped, {"x": (1,)}).flops > 0
