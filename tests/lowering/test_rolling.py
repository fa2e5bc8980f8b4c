"""Repeated blocks of graphs run as one `lax.scan`, with the results of the unrolled graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recurrent_nets import CELLS, decoder, random_net, reader, tagger, unrolled

import jfit
from jfit import mx
from jfit.graph.nodes import GraphError
from jfit.lowering import interpret
from jfit.lowering.rolling.blocks import Block
from jfit.lowering.rolling.find import schedule

sym = jfit.sym


def blocks_of(net, inputs=("data",)):
    """Return (steps, nodes per step) of each block that is found in a graph."""
    items = schedule(net.nodes(), inputs, set(), convolutions=False, heads=net.heads)
    return [(item.steps, len(item.packs)) for item in items if isinstance(item, Block)]


def batch(shapes, seed=0):
    rng = np.random.default_rng(seed)
    whole = lambda name, shape: name in ("data", "label", "tags_label") and len(shape) < 3  # noqa: E731
    return {k: (rng.integers(1, 4, s) if whole(k, s) else rng.normal(size=s)).astype(np.float32) for k, s in shapes.items()}


def results(model, values, x, weight=None, train=True):
    """Return (number of loops, outputs, gradients of a function of the outputs)."""

    def run(params):
        outs = model.apply(params, {}, x, train=train, key=jax.random.key(5), weight=weight)[0]
        return sum(jnp.sum(jnp.sin(o)) for o in outs), outs

    loops = sum(e.primitive.name == "scan" for e in jax.make_jaxpr(run)(values).eqns)
    (_, outs), grads = jax.jit(jax.value_and_grad(run, has_aux=True))(values)
    return loops, outs, grads


def check(net, shapes, loops=None, weight=None, train=True):
    """Compare a graph that is rolled up with the same graph that is not."""
    rolled, plain = (jfit.lower(net, inputs=list(shapes), roll=roll) for roll in (True, False))
    specs = {k: jax.ShapeDtypeStruct(s, np.float32) for k, s in shapes.items()}
    assert rolled.plan(specs) == plain.plan(specs)
    rng = np.random.default_rng(1)
    sizes = dict(zip(net.list_arguments(), net.infer_shape(**shapes)[0], strict=True))
    values = {k: rng.normal(0, 0.5, s).astype(np.float32) for k, s in sizes.items() if k not in shapes}
    x = batch(shapes)
    actual, expected = (results(m, values, x, weight, train) for m in (rolled, plain))
    assert expected[0] == 0
    if loops is not None:
        assert actual[0] == loops
    for a, e in zip(jax.tree.leaves(actual[1:]), jax.tree.leaves(expected[1:]), strict=True):
        np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5)


LOOPS = {"bidirectional": 2, "stack": 2}


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("name", CELLS)
def test_the_cells_of_mxnet_run_as_loops(name):
    check(unrolled(name, merge=name in ("lstm", "stack")), {"data": (2, 6, 4)}, loops=LOOPS.get(name, 1))


@pytest.mark.slow
def test_padding_rows_and_dropout_are_the_same_in_a_loop():
    check(unrolled("stack", True), {"data": (3, 6, 4)}, loops=2, weight=jnp.array([1.0, 0.5, 0.0]))


@pytest.mark.slow
def test_a_crf_a_decoder_and_an_ocr_network_run_as_loops():
    check(tagger(6), {"data": (2, 6), "tags_label": (2, 6)}, loops=3)
    check(decoder(6), {"data": (2,), "memory": (2, 3, 5)}, loops=1)
    check(reader(6), {"data": (2, 6, 4), "label": (2, 3)}, loops=2)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("seed", [1, 5, 6, 13, 21, 40])
def test_networks_with_random_wiring_compute_the_same_rolled_up(seed):
    check(*random_net(seed))


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_dropout_masks_are_the_same_bits_in_a_loop(generator):
    x = sym.Variable("data")
    state, outputs = sym.Variable("start"), []
    for t, step in enumerate(sym.SliceChannel(x, num_outputs=5, axis=1, squeeze_axis=True)):
        state = sym.tanh(sym.broadcast_mul(state, sym.Variable("scale", shape=(1, 3))) + sym.Dropout(step, p=0.5, name=f"d{t}"))
        outputs.append(state)
    net, ones = sym.stack(*outputs, axis=1), np.ones((2, 5, 3), np.float32)
    inputs = {"data": ones, "start": np.zeros((2, 3), np.float32)}
    rolled, plain = (jfit.lower(net, inputs=["data", "start"], roll=roll) for roll in (True, False))
    params, key = {"scale": np.zeros((1, 3), np.float32)}, jax.random.key(1, impl=generator)
    run = lambda m: m.apply(params, {}, inputs, train=True, key=key)[0][0]  # noqa: E731
    assert len(np.unique(run(plain))) == 2
    np.testing.assert_array_equal(np.asarray(run(rolled)) > 0, np.asarray(run(plain)) > 0)
    # For an array of keys, rbg draws other numbers than for each key alone: the steps then run one by one.
    assert ("scan" in str(jax.make_jaxpr(lambda: run(rolled))())) == (generator == "threefry2x32")


def recurrence(step, steps=6):
    """Return the last state of h = step(t, x_t, h)."""
    xs = sym.SliceChannel(sym.Variable("data"), num_outputs=steps, axis=1, squeeze_axis=True)
    state = sym.Variable("start")
    for t in range(steps):
        state = step(t, xs[t], state)
    return state


def dense(x, name, **attrs):
    return sym.FullyConnected(x, sym.Variable(f"{name}_weight"), num_hidden=4, no_bias=True, **attrs)


def test_steps_with_parameters_or_attributes_of_their_own_stay_unrolled():
    inputs = ("data", "start")
    same = recurrence(lambda t, x, h: sym.tanh(x + dense(h, "w")))
    assert blocks_of(same, inputs) == [(6, 3)]
    assert blocks_of(recurrence(lambda t, x, h: sym.tanh(x + dense(h, f"w{t}"))), inputs) == []
    assert blocks_of(recurrence(lambda t, x, h: sym.tanh((t + 1.5) * x + dense(h, "w") * (t + 1.5))), inputs) == []
    # only the steps after the one that differs are equal
    odd = recurrence(lambda t, x, h: sym.tanh(x + dense(h, "own" if t == 1 else "w")), steps=8)
    assert blocks_of(odd, inputs) == [(6, 3)]


def test_attributes_that_differ_in_the_sign_of_zero_are_not_equal():
    net = recurrence(lambda t, x, h: sym._mul_scalar(sym.tanh(x + dense(h, "w")), scalar=0.0 if t % 2 else -0.0))
    assert blocks_of(net, ("data", "start")) == []


def test_executors_follow_the_environment_variable(monkeypatch):
    found = []
    for roll in ("1", "0"):
        monkeypatch.setenv("JFIT_ROLL", roll)
        executor = unrolled("rnn", True).simple_bind(mx.cpu(), data=(2, 6, 4))
        run = executor._programs.model.apply
        args = {name: array.asnumpy() for name, array in executor.arg_dict.items()}
        found.append("scan" in str(jax.make_jaxpr(lambda run=run, args=args: run(args, {}, {}))()))
    assert found == [True, False]


def test_blocks_with_convolutions_or_auxiliary_states_stay_unrolled():
    convolved = recurrence(
        lambda t, x, h: sym.tanh(x + sym.Convolution(h, sym.Variable("k_weight"), num_filter=2, kernel=(1,), no_bias=True))
    )
    assert blocks_of(convolved, ("data", "start")) == []
    normed = recurrence(lambda t, x, h: sym.BatchNorm(sym.tanh(x + dense(h, "w")), name="norm"))
    assert blocks_of(normed, ("data", "start")) == []


def test_internal_outputs_are_computed_one_by_one():
    net = unrolled("lstm", True)
    assert blocks_of(net.get_internals()) == []
    model = jfit.lower(net, capture="state")
    params, _ = model.init(jax.random.key(0), {"data": jax.ShapeDtypeStruct((2, 6, 4), np.float32)})
    run = lambda: model.apply(params, {}, {"data": np.ones((2, 6, 4), np.float32)})[0]  # noqa: E731
    assert "scan" not in str(jax.make_jaxpr(run)())


def test_an_error_in_a_loop_names_the_node():
    net = recurrence(lambda t, x, h: sym.tanh(sym.dot(h, sym.Variable("w"), name=f"dot{t}") + x, name=f"new{t}"))
    model = jfit.lower(net, inputs=["data", "start"])
    with pytest.raises(GraphError, match="dot0"):
        model.apply({"w": np.ones((3, 4))}, {}, {"data": np.ones((2, 6, 4)), "start": np.ones((2, 4))})


@pytest.mark.slow
def test_convolutions_run_in_loops_on_accelerators(monkeypatch):
    monkeypatch.setattr(interpret, "platform_of", lambda: "gpu")
    cell = mx.rnn.ConvLSTMCell(input_shape=(2, 2, 4, 4), num_hidden=3, h2h_kernel=(3, 3), i2h_pad=(1, 1))
    outputs, _ = cell.unroll(5, sym.Variable("data"), merge_outputs=False)
    check(sym.Group(list(outputs)), {"data": (2, 5, 2, 4, 4)}, loops=1)


@pytest.mark.parametrize(("name", "saved"), [("lstm", 8), ("gru", 8)])
def test_a_loop_saves_few_arrays_for_the_backward_pass(name, saved):
    # Outputs and states, and one array for each sigmoid and tanh: products, sums and differences are computed again.
    net = unrolled(name, True)
    model = jfit.lower(net, inputs=["data"])
    sizes = dict(zip(net.list_arguments(), net.infer_shape(data=(2, 6, 4))[0], strict=True))
    values = {k: jnp.ones(s) for k, s in sizes.items() if k != "data"}

    def total(params):
        return sum(jnp.sum(o) for o in model.apply(params, {}, {"data": jnp.ones((2, 6, 4))}, train=True)[0])

    loops = [e for e in jax.make_jaxpr(jax.grad(total))(values).eqns if e.primitive.name == "scan"]
    forward = loops[0]
    assert len(forward.outvars) - forward.params["num_carry"] <= saved
