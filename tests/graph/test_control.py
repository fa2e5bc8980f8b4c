"""Loops and branches in graphs: MXNet's files, values and gradients; row weights, devices, random numbers and errors."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.control_nets import NETS
from jax.test_util import check_grads

import jfit
import jfit.mx as mx
from jfit import sym
from jfit.graph import scopes
from jfit.graph.nodes import GraphError

GOLDEN = Path(__file__).parents[1] / "golden"
ABOUT = json.loads((GOLDEN / "control.json").read_text())
ARRAYS = dict(np.load(GOLDEN / "control.npz"))
every_net = pytest.mark.parametrize("name", NETS)


def part(name, kind):
    return {k.split("/", 2)[2]: v for k, v in ARRAYS.items() if k.startswith(f"{name}/{kind}/")}


def run(symbol, name):
    """(outputs, gradients) of a net for the recorded arrays and head gradients."""
    args, heads = part(name, "in"), list(part(name, "head").values())
    model = jfit.lower(symbol, inputs=[])
    params = {k: jnp.asarray(v) for k, v in args.items()}
    train = bool(part(name, "grad"))  # without gradients MXNet runs a body as in evaluation

    @jax.jit
    def both(params):
        outs, pull = jax.vjp(lambda p: model.apply(p, {}, {}, train=train)[0], params)
        return outs, pull(tuple(map(jnp.asarray, heads)) if heads else tuple(map(jnp.ones_like, outs)))[0]

    return both(params)


def compose(name):
    scopes._local.__dict__.pop("bodies", None)
    with sym.NameManager():
        return NETS[name](mx)[0]


@every_net
def test_the_file_is_what_mxnet_writes(name):
    assert json.loads(compose(name).tojson()) == ABOUT[name]["symbol"]


@pytest.mark.repetitions(8)
@every_net
def test_a_file_of_mxnet_gives_its_numbers_and_gradients(name):
    symbol = jfit.sym.load_json(json.dumps(ABOUT[name]["symbol"]))
    assert symbol.list_arguments() == ABOUT[name]["arguments"]
    assert symbol.list_outputs() == ABOUT[name]["outputs"]
    assert json.loads(symbol.tojson()) == ABOUT[name]["symbol"]
    outs, grads = run(symbol, name)
    for key, wanted in part(name, "out").items():
        np.testing.assert_allclose(outs[int(key)], wanted, rtol=1e-4, atol=1e-5, err_msg=key)
    for key, wanted in part(name, "grad").items():
        np.testing.assert_allclose(grads[key], wanted, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NETS if not part(n, "grad")])
def test_gradients_missing_in_mxnet_agree_with_finite_differences(name):
    args = part(name, "in")
    model = jfit.lower(compose(name), inputs=[])
    moved = [n for n in args if n not in ("i", "limit") and "moving" not in n]  # not what decides how many steps there are

    def total(values):
        outs = model.apply({k: jnp.asarray(v) for k, v in {**args, **values}.items()}, {}, {}, train=True)[0]
        return sum(jnp.sum(jnp.sin(o)) for o in outs)

    check_grads(total, ({n: args[n] for n in moved},), order=1, modes=("rev",), rtol=3e-2, atol=3e-2)


@every_net
def test_shapes_are_inferred_through_the_bodies(name):
    symbol, (_, shapes) = compose(name), NETS[name](mx)
    given, outs, _ = symbol.infer_shape(**shapes)
    assert dict(zip(symbol.list_arguments(), given, strict=True)) == {k: v.shape for k, v in part(name, "in").items()}
    assert outs == [o.shape for o in run(symbol, name)[0]]
    assert symbol.infer_shape_partial() is not None


def test_shapes_of_parameters_and_states_are_inferred_from_the_body():
    outs, states = sym.contrib.foreach(lambda x, s: (x + s, s), sym.Variable("data"), sym.Variable("s"))
    both = sym.Group([outs, states])
    assert both.infer_shape_partial(data=(4, 2))[0] == [(4, 2), (2,)]
    assert both.infer_shape_partial(s=(2,))[0] == [(0, 2), (2,)]


def test_dtypes_are_inferred_through_the_bodies():
    outs, states = sym.contrib.foreach(lambda x, s: (x + s, x * s), sym.Variable("data"), sym.Variable("s"))
    args, found, _ = sym.Group([outs, states]).infer_type(data="float16")
    assert [str(t) for t in (*args, *found)] == ["float16"] * 4
    model = jfit.lower(sym.Group([outs, states]), inputs=[])
    for dtype in ("float16", "bfloat16"):
        made = model.apply({"data": jnp.ones((3, 2), dtype), "s": jnp.ones(2, dtype)}, {}, {})[0]
        assert {str(o.dtype) for o in made} == {dtype}


def test_eager_loops_give_the_same_numbers():
    data, s = mx.nd.array([[1, 2], [3, 4], [5, 6]]), mx.nd.ones(2)
    outs, states = mx.nd.contrib.foreach(lambda x, s: (x * 2 + s[0], [s[0] + x]), data, [s])
    np.testing.assert_array_equal(outs.asnumpy(), [[3, 5], [8, 11], [15, 19]])
    np.testing.assert_array_equal(states[0].asnumpy(), [10, 13])
    outs, last = mx.nd.contrib.while_loop(lambda i, a: i < 2, lambda i, a: ([a], [i + 1, a * 2]), [mx.nd.zeros(1), s], 3)
    np.testing.assert_array_equal(outs[0].asnumpy(), [[1, 1], [2, 2], [0, 0]])
    assert last[0].item() == 2
    assert mx.nd.contrib.while_loop(lambda i: i < 0, lambda i: (i, i), s[:1], max_iterations=2)[0] == []
    assert mx.nd.contrib.cond(s[:1] > 5, lambda: s, lambda: [s, s])[1] is s
    with pytest.raises(ValueError, match="max_iterations"):
        mx.nd.contrib.while_loop(lambda i: i, lambda i: (i, i), s)


def cell_net():
    def body(x, states):
        h = sym.FullyConnected(x, num_hidden=4, name="i2h") + sym.FullyConnected(states, num_hidden=4, no_bias=True, name="h2h")
        h = sym.Activation(h, act_type="tanh")
        return h, h

    data = sym.SwapAxis(sym.Variable("data"), dim1=0, dim2=1)
    start = sym.zeros_like(sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="size"))
    outs, last = sym.contrib.foreach(body, data, start)
    net = sym.FullyConnected(last + sym.mean(outs, axis=0), num_hidden=3, name="fc")
    return sym.SoftmaxOutput(net, name="softmax")


@pytest.mark.slow
def test_zero_weight_rows_have_no_effect(rng):
    model = jfit.lower(cell_net())
    data, label = rng.normal(size=(5, 3, 2)).astype("float32"), np.arange(5) % 3
    specs = {"data": jax.ShapeDtypeStruct((5, 3, 2), "float32"), "softmax_label": jax.ShapeDtypeStruct((5,), "float32")}
    assert model.plan(specs).paddable
    params, aux = model.init(jax.random.key(0), specs)
    weight = jnp.asarray([1.0, 1, 0, 1, 0])

    def gradient(data):
        def total(params):
            outs, _ = model.apply(params, aux, {"data": data, "softmax_label": label}, train=True, weight=weight)
            return jnp.sum(outs[0])

        return jax.grad(total)(params)

    first = gradient(data)
    data[2] = 99
    data[4] = -7
    for name, value in gradient(data).items():
        np.testing.assert_array_equal(value, first[name], err_msg=name)


@pytest.mark.slow
def test_a_loop_trains_with_fit_on_one_and_on_two_devices(rng):
    data = {"data": rng.normal(size=(24, 3, 2)).astype("float32"), "softmax_label": (np.arange(24) % 3).astype("float32")}
    runs = [
        jfit.fit(cell_net(), data, batch_size=12, num_epoch=2, seed=1, devices=[jfit.cpu(i) for i in range(n)], progress=False)
        for n in (1, 2)
    ]
    for name, value in runs[0].state.params.items():
        np.testing.assert_allclose(runs[1].state.params[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_each_step_draws_its_own_random_numbers():
    outs, _ = sym.contrib.foreach(lambda x, s: (sym.Dropout(x, p=0.5), s * 1), sym.Variable("data"), sym.Variable("s"))
    model = jfit.lower(outs, inputs=[])
    params = {"data": jnp.ones((6, 50)), "s": jnp.ones(1)}
    drawn = np.asarray(model.apply(params, {}, {}, train=True, key=jax.random.key(3))[0][0])
    assert len({row.tobytes() for row in drawn}) == 6
    np.testing.assert_array_equal(model.apply(params, {}, {}, train=False)[0][0], np.ones((6, 50)))


def test_steps_that_do_not_run_cause_no_nan():
    def func(a):
        return [], [a - 1]

    _, states = sym.contrib.while_loop(
        lambda a: a > 1, lambda a: ([], [sym.sqrt(a - 1)]), [sym.Variable("a")], max_iterations=9
    )
    model = jfit.lower(states[0], inputs=[])
    value, grad = jax.value_and_grad(lambda a: model.apply({"a": a}, {}, {})[0][0][0])(jnp.asarray([3.0]))
    np.testing.assert_allclose(
        [value, grad[0]], [np.sqrt(np.sqrt(2) - 1), 1 / (4 * np.sqrt(2) * np.sqrt(np.sqrt(2) - 1))], rtol=1e-5
    )


def test_a_loop_that_never_runs_gives_zeros_and_its_first_values():
    outs, states = sym.contrib.while_loop(lambda i: i < 0, lambda i: (i * 2, [i + 1]), [sym.Variable("i")], max_iterations=2)
    model = jfit.lower(sym.Group([outs, *states]), inputs=[])
    made = model.apply({"i": jnp.asarray([5.0])}, {}, {})[0]
    np.testing.assert_array_equal(made[0], [[0], [0]])
    np.testing.assert_array_equal(made[1], [5])


def test_errors_describe_the_problem():
    x, s = sym.Variable("x"), sym.Variable("s")
    with pytest.raises(GraphError, match="nested lists of another structure"):
        sym.contrib.foreach(lambda x, s: (x, [s[0], s[0]]), x, [s])
    with pytest.raises(GraphError, match=r"does not use <Symbol s>"):
        sym.contrib.foreach(lambda x, s: (x, [x]), x, [s])
    with pytest.raises(TypeError, match="symbols and nested lists"):
        sym.contrib.foreach(lambda x, s: (1, s), x, [s])
    with pytest.raises(GraphError, match="takes 1 loop variables and returns 2"):
        sym.contrib.while_loop(lambda i: i, lambda i: (i, [i, i]), [x], 3)
    with pytest.raises(ValueError, match="max_iterations >= 0; it is -2"):
        sym.contrib.while_loop(lambda i: i, lambda i: (i, [i]), [x], -2)
    with pytest.raises(ValueError, match="needs a loop variable"):
        sym.contrib.while_loop(lambda: x, lambda: ([], []), [], 2)
    with pytest.raises(GraphError, match="the condition is 2 symbols, expected one"):
        sym.contrib.while_loop(lambda i: [i, i], lambda i: (i, [i]), [x], 2)
    with pytest.raises(GraphError, match="the condition is 0 symbols, expected one"):
        sym.contrib.cond([], lambda: x, lambda: x)
    with pytest.raises(GraphError, match="then_func returns 1 outputs, else_func 2"):
        sym.contrib.cond(x, lambda: x, lambda: [x, x])
    with pytest.raises(GraphError, match="same name"):
        sym.contrib.foreach(lambda x, s: (x + sym.Variable("w") + sym.Variable("w"), s * 1), x, s)
    outs, _ = sym.contrib.foreach(lambda x, s: (x, sym.concat(s, x, dim=0)), x, s)
    with pytest.raises(GraphError, match="state 0 has shape"):
        jfit.lower(outs, inputs=[]).apply({"x": jnp.ones((2, 2)), "s": jnp.ones(2)}, {}, {})
    both = sym.contrib.cond(sym.sum(x) < 1, lambda: x, lambda: sym.sum(x))
    with pytest.raises(GraphError, match="cond branches must have equal output types"):
        jfit.lower(both, inputs=[]).apply({"x": jnp.ones((2, 2))}, {}, {})
    chosen = sym.contrib.cond(x, lambda: x, lambda: x * 2)
    with pytest.raises(GraphError, match="cannot reshape"):
        jfit.lower(chosen, inputs=[]).apply({"x": jnp.ones((2, 2))}, {}, {})


def test_files_with_invalid_bodies_raise():
    graph = ABOUT["accumulate"]["symbol"]
    at = next(i for i, n in enumerate(graph["nodes"]) if n["op"] == "_foreach")

    def refused(change, match):
        broken = json.loads(json.dumps(graph))
        change(broken["nodes"][at])
        with pytest.raises(GraphError, match=match):
            sym.load_json(json.dumps(broken)).infer_shape(data=(4, 3))

    refused(lambda n: n.pop("subgraphs"), "expected a list of 1 graphs, found 0")
    refused(lambda n: n["subgraphs"].append(n["subgraphs"][0]), "expected a list of 1 graphs, found 2")
    refused(lambda n: n.update(subgraphs=[7]), "body >> top level: expected an object")
    refused(lambda n: n["subgraphs"][0].update(heads=[]), "body >> field 'heads': it is empty")
    refused(lambda n: n["subgraphs"][0]["nodes"][0].update(op="nonsense"), "body >> node 0.*unknown operator")
    refused(lambda n: n["attrs"].update(in_data_locs="[9]"), "its attributes do not fit the bodies.*in_data_locs")
    refused(lambda n: n["attrs"].update(remain_locs="[0]"), "its attributes do not fit the bodies.*in_data_locs")
    refused(
        lambda n: n["attrs"].update(num_out_data="9"), "its attributes do not fit the bodies, which have 2 inputs and 2 outputs"
    )

    def deep(node):
        inner = node["subgraphs"]
        for _ in range(30):
            inner = [{**graph, "nodes": [*graph["nodes"][:at], {**node, "subgraphs": inner}]}]
        node["subgraphs"] = inner

    refused(deep, "nested more than")


def test_module_and_feedforward_run_loops(rng):
    net = NETS["classifier"](mx)[0]
    module = mx.mod.Module(net, data_names=["data", "h0"])
    data = mx.io.NDArrayIter(
        {"data": rng.normal(size=(10, 3, 2)).astype("float32"), "h0": np.zeros((10, 4), "float32")}, np.arange(10) % 3, 5
    )
    module.fit(data, num_epoch=2, optimizer_params={"learning_rate": 0.1})
    assert module.predict(data).shape == (10, 3)


def test_loops_raise_for_unsupported_arguments():
    i = mx.sym.Variable("i")
    with pytest.raises(TypeError, match="symbols and nested lists of them, not 1; convert"):
        mx.sym.contrib.while_loop(lambda i: 1, lambda i: (i, i), i, max_iterations=3)
    with pytest.raises(ValueError, match="foreach needs data with at least one step"):
        mx.nd.contrib.foreach(lambda d, s: (d, s), mx.nd.array(np.zeros((0, 3))), mx.nd.ones(3))
    with pytest.raises(ValueError, match="returned 1 loop variables, expected 2"):
        mx.nd.contrib.while_loop(lambda *_: True, lambda a, b: (a, [a]), [mx.nd.ones(1)] * 2, max_iterations=1)
