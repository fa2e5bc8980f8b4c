"""Lowered graphs as pure functions: jit/grad/vmap, labels, auxiliary states, precision, integer inputs, captured outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import sym
from jfit.graph import GraphError
from jfit.lowering import interpret

V = sym.Variable
KEY = jax.random.key(7)


def mlp():
    net = sym.relu(sym.FullyConnected(V("data"), num_hidden=5, name="f1"))
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="f2"), name="softmax")


def started(net, inputs, **options):
    model = jfit.lower(net, **options)
    return model, *model.init(KEY, jfit.lowering.model.specs_of(inputs), jfit.init.get("uniform"))


def gradients(model, params, aux, inputs, **options):
    def total(p):
        outputs, moved = model.apply(p, aux, inputs, train=True, key=KEY, **options)
        return jfit.lowering.model.objective(model, outputs, inputs, options.get("weight")), (outputs, moved)

    return jax.jit(jax.grad(total, has_aux=True))(params)


@pytest.fixture
def batch(rng):
    return {"data": rng.normal(size=(6, 4)).astype("float32"), "softmax_label": rng.integers(0, 3, 6).astype("float32")}


# ------------------------------------------------------------------------------------------ pure
def test_a_model_lists_its_inputs_outputs_and_parameters(batch):
    model, params, aux = started(mlp(), batch)
    assert (model.inputs, model.labels, model.optional) == (("data",), ("softmax_label",), frozenset())
    assert {k: v.shape for k, v in params.items()} == {
        "f1_weight": (5, 4),
        "f1_bias": (5,),
        "f2_weight": (3, 5),
        "f2_bias": (3,),
    }
    (out,) = model.outputs
    assert (out.name, out.kind, out.label, out.class_axis) == ("softmax_output", "head", "softmax_label", 1)
    assert aux == {}


def test_jit_grad_and_vmap_apply(batch):
    model, params, aux = started(mlp(), batch)
    run = lambda p, x: model.apply(p, aux, {"data": x})[0][0]  # noqa: E731
    plain = run(params, batch["data"])
    np.testing.assert_allclose(jax.jit(run)(params, batch["data"]), plain, rtol=1e-5)
    twice = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), params)
    np.testing.assert_allclose(jax.jit(jax.vmap(run, in_axes=(0, None)))(twice, batch["data"])[0], plain, rtol=1e-5)
    data = jnp.stack([batch["data"], -batch["data"]])
    np.testing.assert_allclose(jax.jit(jax.vmap(run, in_axes=(None, 0)))(params, data)[0], plain, rtol=1e-5)
    grad = jax.jit(lambda p: gradients(model, p, aux, batch)[0]["f1_weight"])
    np.testing.assert_allclose(jax.jit(jax.vmap(grad))(twice)[0], grad(params), rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------ what must be fed
def test_evaluation_needs_no_label_and_training_without_one_raises(batch):
    model, params, aux = started(mlp(), batch)
    with_label = model.apply(params, aux, batch)[0][0]
    np.testing.assert_array_equal(model.apply(params, aux, {"data": batch["data"]})[0][0], with_label)
    with pytest.raises(GraphError, match="softmax: label 'softmax_label' is missing, and training needs it"):
        model.apply(params, aux, {"data": batch["data"]}, train=True)


def test_a_label_that_is_reshaped_in_the_graph_may_be_absent_too(batch):
    label = sym.Reshape(V("softmax_label"), shape=(-1,), name="flat")
    net = sym.SoftmaxOutput(sym.FullyConnected(V("data"), num_hidden=3, name="f"), label, name="softmax")
    model, params, aux = started(net, {**batch, "softmax_label": batch["softmax_label"].reshape(3, 2)})
    assert (model.outputs[0].label, model.labels) == ("softmax_label", ("softmax_label",))
    assert model.apply(params, aux, {"data": batch["data"]})[0][0].shape == (6, 3)
    with pytest.raises(GraphError, match="label 'softmax_label' is missing"):
        model.apply(params, aux, {"data": batch["data"]}, train=True)
    losses, _ = model.outputs[0].loss(jnp.full((6, 3), 1 / 3), {"softmax_label": batch["softmax_label"].reshape(3, 2)})
    assert losses.shape == (6,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, x: (p, {"dat": x["data"]}), r"f1: input 'data' is missing; pass it in inputs \(found \['dat'\]\)"),
        (lambda p, x: ({k: v for k, v in p.items() if k != "f1_bias"}, x), "parameter 'f1_bias' is missing; did you mean"),
        (
            lambda p, x: (p, {**x, "data": x["data"][:, :3]}),
            r"f1: FullyConnected cannot take data float32\[6, 3\], weight float32\[5, 4\]",
        ),
        (
            lambda p, x: (p, {**x, "softmax_label": x["softmax_label"][:4]}),
            r"softmax: .*label has shape \(4,\), expected \(6,\)",
        ),
    ],
)
def test_mismatched_shapes_raise_with_the_node(batch, change, message):
    model, params, aux = started(mlp(), batch)
    with pytest.raises(GraphError, match=message):
        model.apply(*change(params, batch)[:1], aux, change(params, batch)[1], train=True)


def test_invalid_arguments_raise(batch):
    with pytest.raises(GraphError, match="input 'dta' is not a variable of the graph; did you mean 'data'"):
        jfit.lower(mlp(), inputs=["dta"])
    with pytest.raises(GraphError, match="capture='none' matches no internal output; the first ones are"):
        jfit.lower(mlp(), capture="none")
    with pytest.raises(GraphError, match=r"shape of 'f1_weight' cannot be inferred from \{\}"):
        jfit.lower(mlp()).init(KEY, {})
    model, params, aux = started(mlp(), batch)
    for shape in ((5,), (1,), (6, 1), ()):
        with pytest.raises(GraphError, match=r"weight has shape \(.*\), expected \(6,\)"):
            model.apply(params, aux, batch, weight=jnp.ones(shape))
    with pytest.raises(GraphError, match=r"the batch has the inputs \['x'\], the model needs \['data', 'softmax_label'\]"):
        model.plan({"x": jax.ShapeDtypeStruct((2,), "float32")})
    dropped = jfit.lower(sym.Dropout(V("data"), name="drop"))
    with pytest.raises(GraphError, match=r"drop: .*pass key= to apply"):
        dropped.apply({}, {}, {"data": batch["data"]}, train=True)


# ------------------------------------------------------------------------------------------ states
def test_batch_norm_returns_new_statistics_and_freezes_a_fixed_gamma(rng):
    x = {"data": rng.normal(size=(8, 3)).astype("float32")}
    model, params, aux = started(sym.BatchNorm(V("data"), momentum=0.5, name="b"), x)
    assert model.frozen == {"b_gamma"}
    _, moved = model.apply(params, aux, x, train=True)
    np.testing.assert_allclose(moved["b_moving_mean"], 0.5 * x["data"].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moved["b_moving_var"], 0.5 + 0.5 * x["data"].var(0), rtol=1e-4)
    assert np.array_equal(aux["b_moving_mean"], np.zeros(3)), "the given states stay"
    _, same = model.apply(params, aux, x, train=False)
    assert all(np.array_equal(same[k], aux[k]) for k in aux)
    assert jfit.lower(sym.BatchNorm(V("data"), fix_gamma=False)).frozen == frozenset()


def test_shared_statistics_are_updated_once_per_use(rng):
    mean, var = V("m", init='["zero", {}]'), V("v", init='["one", {}]')
    norm = lambda x, name: sym.BatchNorm(x, moving_mean=mean, moving_var=var, momentum=0.5, name=name)  # noqa: E731
    net = sym.Group([norm(V("a_data"), "one"), norm(V("b_data"), "two")])
    x = {k: rng.normal(size=(5, 2)).astype("float32") for k in ("a_data", "b_data")}
    model, params, aux = started(net, x)
    _, moved = model.apply(params, aux, x, train=True)
    want = 0.25 * x["a_data"].mean(0) + 0.5 * x["b_data"].mean(0)
    np.testing.assert_allclose(moved["m"], want, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------ recurrent
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_begin_states_default_to_zero(rng, mode):
    x = rng.normal(size=(5, 2, 4)).astype("float32")
    model, params, aux = started(
        sym.RNN(V("data", layout="TNC"), V("r_weight"), state_size=3, num_layers=1, mode=mode, name="r"), {"data": x}
    )
    states = {"r_state", "r_state_cell"} if mode == "lstm" else {"r_state"}
    assert model.optional == states
    assert {model.batch_axes[s] for s in states} == {1} and model.batch_axes["data"] == 1
    zeros = {s: np.zeros((1, 2, 3), "float32") for s in states}
    (fed,), _ = model.apply(params, aux, {"data": x, **zeros})
    (absent,), _ = model.apply(params, aux, {"data": x})
    np.testing.assert_array_equal(fed, absent)
    assert model.plan(jfit.lowering.model.specs_of({"data": x})).rows[0] == jfit.ops.rows.RowLayout(1, 1, 2, 1)


def test_begin_states_of_unknown_batch_size_get_it_from_the_data(rng):
    state = sym._zeros(shape=(0, 4), name="s")
    net = sym.FullyConnected(V("data"), num_hidden=4, name="i") + sym.FullyConnected(state, num_hidden=4, name="h")
    x = {"data": rng.normal(size=(5, 3)).astype("float32")}
    model, params, aux = started(net, x)
    (out,), _ = model.apply(params, aux, x)
    np.testing.assert_allclose(out, x["data"] @ params["i_weight"].T, rtol=1e-4, atol=1e-6)
    with pytest.raises(GraphError, match=r"s: shape \(0, 4\) has an unknown size"):
        jfit.lower(state * 1).apply({}, {}, {})


# ------------------------------------------------------------------------------------------ kinds of output


def test_an_autoencoder_uses_its_data_as_label(rng):
    x = {"data": rng.normal(size=(6, 4)).astype("float32")}
    data = V("data")
    code = sym.FullyConnected(data, num_hidden=2, name="code")
    net = sym.LinearRegressionOutput(sym.FullyConnected(code, num_hidden=4, name="back"), data, name="out")
    model, params, aux = started(net, x)
    assert (model.inputs, model.labels, model.outputs[0].label) == (("data",), (), "data")
    grads, ((out,), _) = gradients(model, params, aux, x)
    np.testing.assert_allclose(grads["back_bias"], (out - x["data"]).sum(0) / 4, rtol=1e-4, atol=1e-6)
    losses, _ = model.outputs[0].loss(out, x)
    assert losses.shape == (6,)
    half, _ = gradients(model, params, aux, x, policy=jfit.Policy("bfloat16"))
    np.testing.assert_allclose(half["back_bias"], grads["back_bias"], rtol=0.05, atol=0.02)


def test_internals_are_captured_by_pattern(batch):
    model, params, aux = started(mlp(), batch, capture="f._output")
    assert [(o.name, o.kind) for o in model.outputs] == [
        ("softmax_output", "head"),
        ("f1_output", "plain"),
        ("f2_output", "plain"),
    ]
    (_, f1, f2), _ = model.apply(params, aux, {"data": batch["data"]})
    np.testing.assert_allclose(f1, batch["data"] @ params["f1_weight"].T, rtol=1e-4, atol=1e-5)
    assert f2.shape == (6, 3)
    plain, _ = gradients(started(mlp(), batch)[0], params, aux, batch)
    np.testing.assert_allclose(gradients(model, params, aux, batch)[0]["f1_weight"], plain["f1_weight"], rtol=1e-5)


# ------------------------------------------------------------------------------------------ precision and integers
def test_mixed_precision_computes_in_bfloat16_and_the_loss_in_float32(batch):
    net = sym.FullyConnected(V("data"), num_hidden=300, name="f")
    net = sym.SoftmaxOutput(net, name="softmax")
    inputs = {**batch, "softmax_label": np.array([257, 255, 299, 1, 2, 3], "float32")}
    model, params, aux = started(net, inputs, capture="f_output")
    policy = jfit.Policy("bfloat16")
    grads, ((prob, inner), _) = gradients(model, params, aux, inputs, policy=policy)
    assert (prob.dtype, inner.dtype, grads["f_weight"].dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    exact, _ = gradients(model, params, aux, inputs)
    assert np.argmin(grads["f_bias"]) == np.argmin(exact["f_bias"])
    np.testing.assert_allclose(grads["f_bias"], exact["f_bias"], atol=0.02)  # 257 is no bfloat16: the label was not cast


def test_data_that_is_its_own_label_keeps_its_precision():
    net = sym.LinearRegressionOutput(sym.FullyConnected(V("data"), num_hidden=1, name="f"), V("data"))
    model = jfit.lower(net)
    x, params = {"data": np.full((2, 1), 257, "float32")}, {"f_weight": jnp.zeros((1, 1)), "f_bias": jnp.full(1, 256.0)}
    grads, _ = gradients(model, params, {}, x, policy=jfit.Policy("bfloat16"))
    assert grads["f_bias"].tolist() == [-2], "257 is no bfloat16"


def test_a_label_inside_a_loss_keeps_its_precision():
    picked = sym.pick(sym.log_softmax(V("data")), V("my_label"), axis=1)
    model = jfit.lower(sym.MakeLoss(-1 * picked))
    assert model.labels == ("my_label",)
    x = {"data": np.eye(300, dtype="float32")[[257]] * 9, "my_label": np.array([257.0], "float32")}
    (loss,), _ = model.apply({}, {}, x, policy=jfit.Policy("bfloat16"))
    assert loss[0] < 1


def test_uint8_data_is_cast_to_float_and_ids_stay_integers(rng):
    image = rng.integers(0, 255, (4, 1, 6, 6)).astype("uint8")
    net = sym.FullyConnected(sym.Convolution(V("data"), kernel=(3, 3), num_filter=2, name="c"), num_hidden=2, name="f")
    model, params, aux = started(net, {"data": image})
    assert {v.dtype for v in params.values()} == {np.dtype("float32")}
    (out,), _ = model.apply(params, aux, {"data": image})
    np.testing.assert_allclose(out, model.apply(params, aux, {"data": image.astype("float32")})[0][0], rtol=1e-5)
    (half,), _ = model.apply(params, aux, {"data": image}, policy=jfit.Policy("bfloat16"))
    assert half.dtype == jnp.bfloat16
    ids = {"data": np.array([[0, 16_777_217]], "int32")}
    big = jfit.lower(V("data") + 0)
    assert big.apply({}, {}, ids)[0][0].dtype == jnp.int32, "floats could not hold this id"


@pytest.mark.parametrize(
    "make", [lambda x: sym.FullyConnected(x, num_hidden=2, name="n"), lambda x: sym.BatchNorm(x, name="n")]
)
def test_integer_data_never_casts_weights_to_integers(rng, make):
    x = rng.integers(0, 9, (6, 3)).astype("int32")
    model, params, aux = started(make(V("data")), {"data": x})
    params = {k: v + 0.5 for k, v in params.items()}
    for train in (False, True):
        (got,), _ = model.apply(params, aux, {"data": x}, train=train)
        (want,), _ = model.apply(params, aux, {"data": x.astype("float32")}, train=train)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_integer_labels_and_ids_have_no_gradient(rng):
    net = sym.Embedding(V("data"), input_dim=9, output_dim=4, name="e")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="f"), name="softmax")
    x = {"data": rng.integers(0, 9, (6, 2)).astype("int32"), "softmax_label": rng.integers(0, 3, 6).astype("int32")}
    model, params, aux = started(net, x)
    grads, _ = gradients(model, params, aux, x)
    asfloat, _ = gradients(model, params, aux, {k: v.astype("float32") for k, v in x.items()})
    np.testing.assert_allclose(grads["e_weight"], asfloat["e_weight"], rtol=1e-5, atol=1e-6)
    assert set(grads) == {"e_weight", "f_weight", "f_bias"}


# ------------------------------------------------------------------------------------------ layout
def conv(x, name, **more):
    return sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=4, name=name, **more)


def residual(x):
    y = sym.relu(sym.BatchNorm(conv(x, "c1"), fix_gamma=False, name="b1"))
    return sym.Flatten(sym.BatchNorm(conv(y, "c2"), name="b2") + conv(x, "short"))


NETS = {
    "plain": lambda x: sym.Flatten(sym.Pooling(sym.relu(conv(x, "c")), kernel=(2, 2), stride=(2, 2), pool_type="max")),
    "residual": residual,
    "concat": lambda x: sym.Pooling(
        sym.Concat(conv(x, "a"), conv(x, "b"), dim=1), global_pool=True, kernel=(1, 1), pool_type="avg"
    ),
    "reshape": lambda x: sym.Reshape(conv(x, "c"), shape=(0, -1)),
    "leaky": lambda x: sym.mean(sym.LeakyReLU(conv(x, "c"), act_type="prelu", name="p"), axis=(2, 3)),
    "scaled": lambda x: sym.Flatten(sym.broadcast_mul(conv(x, "c"), V("s_weight", shape=(1, 4, 1, 1))) * 2),
    "deconvolution": lambda x: sym.Deconvolution(conv(x, "c"), kernel=(2, 2), stride=(2, 2), num_filter=2, name="d"),
    "transpose": lambda x: sym.transpose(conv(x, "c"), axes=(0, 2, 3, 1)),
    "split": lambda x: sym.SliceChannel(conv(x, "c"), num_outputs=2)[1],
    "softmax": lambda x: sym.softmax(conv(x, "c"), axis=1),
    "norm": lambda x: sym.LayerNorm(conv(x, "c"), name="l"),
}


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("name", NETS)
def test_channels_last_arrays_give_the_same_result(name, rng, monkeypatch):
    x = {"data": rng.normal(size=(4, 3, 8, 8)).astype("float32")}
    model, params, aux = started(sym.MakeLoss(sym.square(NETS[name](V("data")))), x)
    run = lambda: gradients(model, params, aux, x, weight=jnp.array([1.0, 0.0, 2.0, 1.0]))  # noqa: E731
    fast, ((out,), moved) = run()
    monkeypatch.setattr(interpret, "_runs_channels_last", lambda *_: False)
    slow, ((want,), still) = run()
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    for got, expected in ((fast, slow), (moved, still)):
        for k in expected:
            np.testing.assert_allclose(got[k], expected[k], rtol=1e-3, atol=1e-3, err_msg=k)


@pytest.mark.slow
def test_pooling_after_normalization_has_the_same_gradient_with_and_without_jit(rng):
    x = {"data": rng.normal(size=(6, 1, 28, 28)).astype("float32")}
    net = V("data")
    for i in range(2):
        net = sym.Activation(sym.Convolution(net, kernel=(5, 5), num_filter=5, name=f"c{i}"), act_type="tanh")
        net = sym.Pooling(sym.BatchNorm(net, name=f"b{i}"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    model, params, aux = started(sym.MakeLoss(sym.FullyConnected(net, num_hidden=3, name="f")), x)
    with jax.disable_jit():
        plain = gradients(model, params, aux, x)[0]
    jax.config.update("jax_disable_most_optimizations", False)  # the order of fusions is what goes wrong
    compiled = gradients(model, params, aux, x)[0]
    for k in plain:
        np.testing.assert_allclose(compiled[k], plain[k], rtol=1e-3, atol=1e-3 * np.abs(plain[k]).max() + 1e-4, err_msg=k)
