"""Export to ONNX: every converter against recorded MXNet cases in ONNX Runtime, dynamic batch sizes, unsupported operators.

What is exported is also read again by `mx.contrib.onnx`.
"""

import io
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from docs_scripts import docs_script
from golden_ops import GOLDEN, assert_near, case_id, load_cases, spread_out
from recorded_models import RECORDED, loaded, near

import jfit
import jfit.mx as mx
from jfit.export import ExportError
from jfit.export.nodes import CONVERTERS
from jfit.graph.nodes import Entry, Node
from jfit.graph.symbol import Symbol
from jfit.ops import lookup

WHY = "pip install 'jfit[test]': exported models are checked by the package onnx and run in ONNX Runtime"
onnx = pytest.importorskip("onnx", reason=WHY)
runtime = pytest.importorskip("onnxruntime", reason=WHY)
runtime.set_default_logger_severity(3)

PARAMETERS = ("weight", "bias", "gamma", "beta", "parameters")
DATA = jfit.sym.Variable("data")


def run(made, inputs):
    """Outputs of an exported model in ONNX Runtime, after onnx's own check of shapes and dtypes."""
    onnx.checker.check_model(made, full_check=True)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})


def run_again(made, inputs):
    """Outputs of an exported model that `mx.contrib.onnx` has read."""
    symbol, args, aux = mx.contrib.onnx.import_model(io.BytesIO(made.SerializeToString()))
    feeds = {k: mx.nd.array(v, dtype=v.dtype) for k, v in inputs.items() if k in symbol.list_arguments()}
    return [o.asnumpy() for o in symbol.bind(mx.cpu(), {**args, **feeds}, aux_states=aux).forward()]


# ------------------------------------------------------------------------------------------ recorded cases
# Settings of operators that have no ONNX form.
REFUSED = {("_contrib_ROIAlign", "position_sensitive", "True"), ("pick", "axis", "None"), ("Dropout", "mode", "always")}

NAN_OPEN = ("argmax", "argmin", "sign")  # ONNX does not say what they make of NaN


def _exportable(case, arrays):
    if any((case["op"], *item) in REFUSED for item in case["attrs"].items()):
        return False
    if case["op"] in NAN_OPEN and any(np.isnan(v).any() for k, v in arrays.items() if k == "in/data"):
        return False
    bytes_fed = any(v.dtype == np.uint8 for k, v in arrays.items() if k.startswith("in/"))  # a graph feeds bytes as floats
    return lookup(case["op"]).name in CONVERTERS and not bytes_fed


CASES = [pair for pair in load_cases(*sorted(p.stem for p in GOLDEN.glob("*.json"))) if _exportable(*pair)]


def as_graph(case):
    """(symbol, input names in the order of the operator, their slots) of one recorded case."""
    op = lookup(case["op"])
    given = [i["name"] for i in case["inputs"] if i["name"] not in case["list_auxiliary_states"]]
    attrs = ({op.variadic: str(len(given))} if op.variadic else {}) | case["attrs"]
    slots = op.input_names(op.parse(attrs))
    order = slots if set(slots) == set(given) else given
    variables = [Node(None, name, {}) for name in (*order, *case["list_auxiliary_states"])]
    node = Node(op, "op0", attrs, tuple(Entry(v, 0) for v in variables))
    return Symbol([Entry(node, i) for i in range(case["n_outputs"])]), list(order), list(slots)


@pytest.mark.parametrize("runs", [run, pytest.param(run_again, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("case", "arrays"), spread_out(CASES, each=1), ids=case_id)
def test_a_recorded_operator_gives_the_same_in_onnx_runtime(case, arrays, runs):
    symbol, order, slots = as_graph(case)
    label = lookup(case["op"]).label
    kinds = dict(zip(order, slots, strict=True))
    fed = {n: arrays[f"in/{n}"] for n in order if kinds[n] not in PARAMETERS and kinds[n] != label}
    params = {n: arrays[f"in/{n}"] for n in order if kinds[n] in PARAMETERS}
    aux = {n: arrays[f"aux/{n}"] for n in case["list_auxiliary_states"]}
    model = jfit.lower(symbol, inputs=[n for n in order if kinds[n] not in PARAMETERS])
    made = jfit.export.onnx(model, fed, params, aux, batch=None)
    outs = runs(made, {k: v.astype(jax.dtypes.canonicalize_dtype(v.dtype)) for k, v in fed.items()})
    for i, out in enumerate(outs):
        if f"eval/{i}" not in (case.get("skip_compare") or ()):
            assert_near(f"{case['id']} {i}", out, arrays[f"eval/{i}"])


@pytest.mark.repetitions(4, slow=5)
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_model_gives_the_same_in_onnx_runtime(name):
    about, model, params, aux, inputs, arrays = loaded(name)
    data = {k: np.asarray(v) for k, v in inputs.items() if k in model.inputs}
    made = jfit.export.onnx(model, data, params, aux)
    for outs in (run(made, data), run_again(made, data)):
        for i, out in enumerate(outs):
            near(f"eval/{i}", out, arrays[f"eval/{i}"], max(1e-4, 10 * about.get("eval_f32_vs_f64", 1e-5)))


# ------------------------------------------------------------------------------------------ open batch sizes
def agree(symbol, specs, rows=(1, 4), inputs=None, axes=None):
    """The exported graph and jfit give the same, for several batch sizes, with parameters drawn at random."""
    model = jfit.lower(symbol, inputs=inputs, batch_axes=axes)
    rng = np.random.default_rng(0)
    shapes, _, aux_shapes = symbol.infer_shape(**specs)
    drawn = {k: rng.uniform(0.2, 1, s).astype("float32") for k, s in zip(symbol.list_arguments(), shapes, strict=True)}
    params = {k: jnp.asarray(v) for k, v in drawn.items() if k not in (*model.inputs, *model.labels)}
    names = zip(symbol.list_auxiliary_states(), aux_shapes, strict=True)
    aux = {k: jnp.asarray(rng.uniform(0.1, 0.5, s), jnp.float32) for k, s in names}
    made = jfit.export.onnx(model, specs, params, aux)
    for count in rows:
        sizes = {k: list(s) for k, s in specs.items()}
        for k, size in sizes.items():
            size[model.batch_axes.get(k, 0)] = count
        data = {k: rng.uniform(-1, 1, s).astype("float32") for k, s in sizes.items()}
        want = model.apply(params, aux, data)[0]
        got = run(made, data)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype, (count, g.shape, w.shape)
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
    for g, w in zip(run_again(made, data), want, strict=True):
        np.testing.assert_allclose(g, np.reshape(w, g.shape), rtol=1e-5, atol=1e-5)
    return made


S = jfit.sym
IMAGE, ROWS = (2, 4, 6, 6), (2, 6)
NETS = {
    "group_norm": (lambda: S.GroupNorm(DATA, num_groups=2), IMAGE),
    "group_norm_statistics": (lambda: S.GroupNorm(DATA, num_groups=2, output_mean_var=True), IMAGE),
    "instance_norm": (lambda: S.InstanceNorm(DATA), IMAGE),
    "l2_instance": (lambda: S.L2Normalization(DATA), IMAGE),
    "l2_channel": (lambda: S.L2Normalization(DATA, mode="channel"), IMAGE),
    "l2_spatial": (lambda: S.L2Normalization(DATA, mode="spatial"), IMAGE),
    "lrn": (lambda: S.LRN(DATA, nsize=3, alpha=0.5, beta=0.7), IMAGE),
    "batch_norm_relu": (lambda: S._contrib_BatchNormWithReLU(DATA, fix_gamma=False), IMAGE),
    "batch_norm_v1": (lambda: S.BatchNorm_v1(DATA, output_mean_var=True), IMAGE),
    "batch_norm_last": (lambda: S.BatchNorm(DATA, axis=-1, fix_gamma=False, output_mean_var=True), IMAGE),
    "layer_norm_statistics": (lambda: S.LayerNorm(DATA, axis=1, output_mean_var=True), IMAGE),
    "up_nearest": (lambda: S.UpSampling(DATA, scale=2, sample_type="nearest", num_args=1), IMAGE),
    "up_two": (
        lambda: S.UpSampling(DATA, S.Pooling(DATA, kernel=(2, 2), stride=(2, 2)), scale=2, sample_type="nearest", num_args=2),
        IMAGE,
    ),
    "up_bilinear": (lambda: S.UpSampling(DATA, S.Variable("up_weight"), scale=3, sample_type="bilinear", num_args=2), IMAGE),
    "crop": (lambda: S.Crop(DATA, h_w=(3, 2), offset=(1, 2), num_args=1), IMAGE),
    "crop_centre": (lambda: S.Crop(DATA, h_w=(3, 2), center_crop=True, num_args=1), IMAGE),
    "adaptive": (lambda: S._contrib_AdaptiveAvgPooling2D(DATA, output_size=(4, 3)), IMAGE),
    "bilinear": (lambda: S._contrib_BilinearResize2D(DATA, height=9, width=4), IMAGE),
    "bilinear_borders": (lambda: S._contrib_BilinearResize2D(DATA, height=9, width=4, align_corners=False), IMAGE),
    "bilinear_one": (lambda: S._contrib_BilinearResize2D(DATA, height=1, width=2), IMAGE),
    "channels_last": (lambda: S.Convolution(DATA, kernel=(3, 3), num_filter=5, layout="NHWC"), IMAGE),
    "reshape_codes": (lambda: S.Reshape(DATA, shape=(0, -4, 2, 2, -3)), IMAGE),
    "rows_merged": (lambda: S.Reshape(DATA, shape=(-3, -2)), IMAGE),
    "rows_split": (lambda: S.Reshape(S.Reshape(DATA, shape=(-3, -2)), shape=(-4, -1, 4, -2)), IMAGE),
    "rows_turned": (lambda: S.transpose(DATA) * 2, IMAGE),
    "rows_joined": (lambda: S.Concat(DATA, DATA, dim=0), ROWS),
    "rows_cut": (lambda: S.slice_axis(S.Concat(DATA, DATA, dim=0), axis=0, begin=1, end=-1), ROWS),
    "rows_reversed": (lambda: S.reverse(DATA, axis=0), ROWS),
    "rows_summed": (lambda: S.broadcast_div(DATA, S.sum(S.abs(DATA), axis=0, keepdims=True)), ROWS),
    "rows_counted": (lambda: S._contrib_arange_like(DATA, axis=0, start=1.0, step=0.5), ROWS),
    "like": (lambda: S.ones_like(DATA) + S.zeros_like(DATA), ROWS),
    "broadcast_like": (lambda: S.broadcast_like(S.sum(DATA, axis=1, keepdims=True), DATA), ROWS),
    "slice_like": (lambda: S.slice_like(S.Concat(DATA, DATA, dim=0), DATA), ROWS),
    "dense_axes": (lambda: S.FullyConnected(DATA, num_hidden=3, flatten=False), (2, 3, 4)),
    "square_sum": (lambda: S._square_sum(DATA, axis=1), ROWS),
    "everything_summed": (lambda: S.sum(DATA), ROWS),
    "twice": (lambda: S.Group([DATA, S.relu(DATA, name="r"), S.relu(DATA, name="r")]), ROWS),
    "svm": (lambda: S.SVMOutput(DATA, name="svm"), ROWS),
    "sparse_penalty": (lambda: S.IdentityAttachKLSparseReg(DATA), ROWS),
    "batch_norm_synced": (lambda: S._contrib_SyncBatchNorm(DATA, fix_gamma=False, key="bn"), IMAGE),
    "anchors": (lambda: S._contrib_MultiBoxPrior(DATA, sizes=(0.5, 0.2), ratios=(1, 2)), IMAGE),
    "dropout": (lambda: S.Dropout(DATA, p=0.5), ROWS),
    "copies": (lambda: S._copyto(S._CrossDeviceCopy(DATA)), ROWS),
    "constants": (lambda: S.broadcast_add(S._zeros_without_dtype(shape=(1, 6)), DATA), ROWS),
}


@pytest.mark.repetitions(3, slow=22)
@pytest.mark.parametrize("name", NETS)
def test_a_graph_gives_the_same_for_any_batch_size(name):
    with jfit.sym.NameManager():
        build, shape = NETS[name]
        symbol = build()
    agree(symbol, {"data": shape})


@pytest.mark.slow
@pytest.mark.repetitions(2)
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_relu", "rnn_tanh"])
@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_layer_exports_initial_and_last_states(mode, both):
    own = {"mode": mode, "state_size": 3, "num_layers": 2, "bidirectional": both, "state_outputs": True, "name": "rnn"}
    states = {"state": S.Variable("h")} | ({"state_cell": S.Variable("c")} if mode == "lstm" else {})
    symbol = S.RNN(DATA, S.Variable("rnn_parameters"), **states, **own)
    state = (4 if both else 2, 2, 3)
    names = ["data", *(s.name for s in states.values())]
    agree(symbol, {"data": (5, 2, 4), **{s.name: state for s in states.values()}}, inputs=names, axes={"data": 1})
    made = agree(symbol, {"data": (5, 2, 4)}, inputs=names, axes={"data": 1})
    assert [i.name for i in made.graph.input] == ["data"]


@pytest.mark.slow
def test_weights_concatenated_in_the_graph_become_constants_of_the_recurrent_layer():
    shapes = {"i2h": (6, 4), "h2h": (6, 6), "b": (12,)}
    parts = [S.reshape(S.Variable(k, shape=s), shape=(-1,)) for k, s in shapes.items()]
    joined = S._rnn_param_concat(*parts, dim=0)
    symbol = S.RNN(DATA, joined, S.Variable("state"), mode="rnn_tanh", state_size=6, num_layers=1, name="rnn")
    made = agree(symbol, {"data": (3, 2, 4)}, inputs=["data", "state"], axes={"data": 1})
    assert not {n.op_type for n in made.graph.node} & {"Concat", "Reshape"}


# ------------------------------------------------------------------------------------------ what a file looks like
def classifier():
    net = S.FullyConnected(S.BatchNorm(DATA, name="bn"), num_hidden=3, name="fc")
    return S.SoftmaxOutput(net, name="softmax")


def drawn(symbol, **shapes):
    model = jfit.lower(symbol)
    return model.init(jax.random.key(1), {k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()})


def test_names_are_kept_labels_are_dropped_and_the_batch_size_is_dynamic(tmp_path):
    symbol = classifier()
    params, aux = drawn(symbol, data=(2, 4))
    made = jfit.export.onnx(symbol, {"data": (None, 4)}, params, aux, path=tmp_path / "net.onnx", batch="n", name="net")
    assert [i.name for i in made.graph.input] == ["data"]
    assert [o.name for o in made.graph.output] == ["softmax_output"]
    assert [d.dim_param or d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == ["n", 4]
    names = {i.name for i in made.graph.initializer}
    assert {"fc_weight", "bn_beta", "bn_moving_mean"} <= names and "bn_gamma" not in names, "a fixed gamma is 1"
    assert made.opset_import[0].version == 17 and made.graph.name == "net"
    assert onnx.load(tmp_path / "net.onnx") == made


def test_a_fixed_batch_has_numbers_only():
    made = jfit.export.onnx(S.relu(DATA), {"data": (3, 4)}, {}, batch=None)
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [3, 4]


def test_a_run_exports_its_own_parameters():
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    run_ = jfit.fit(classifier(), (x, np.arange(8) % 3), num_epoch=1, batch_size=4, progress=False)
    np.testing.assert_allclose(run(jfit.export.onnx(run_, {"data": x}), {"data": x})[0], run_.predict(x), rtol=1e-5, atol=1e-6)


def test_a_loaded_model_can_be_exported(tmp_path):
    symbol = classifier()
    params, aux = drawn(symbol, data=(2, 4))
    found = jfit.Loaded(jfit.lower(symbol), params, aux)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    made = jfit.export.onnx(found, {"data": (None, 4)}, path=tmp_path / "net.onnx")
    np.testing.assert_allclose(run(made, {"data": x})[0], found.predict(x), rtol=1e-5, atol=1e-6)


def test_a_model_larger_than_the_file_limit_raises(monkeypatch):
    monkeypatch.setattr("jfit.export.onnx_model.MOST_BYTES", 10)
    params, aux = drawn(classifier(), data=(2, 4))
    with pytest.raises(ExportError, match=r"have \d+ bytes.*float16"):
        jfit.export.onnx(classifier(), {"data": (2, 4)}, params, aux)


def test_half_precision_parameters_stay_half():
    symbol = S.FullyConnected(DATA, num_hidden=3, name="fc")
    params, _ = drawn(symbol, data=(2, 4))
    params = {k: v.astype("float16") for k, v in params.items()}
    x = np.linspace(-1, 1, 8, dtype="float16").reshape(2, 4)
    made = jfit.export.onnx(symbol, {"data": x}, params)
    out = run(made, {"data": x})[0]
    assert out.dtype == np.float16 and {i.data_type for i in made.graph.initializer} == {onnx.TensorProto.FLOAT16}
    want = jfit.lower(symbol).apply(params, {}, {"data": jnp.asarray(x)})[0][0]
    np.testing.assert_allclose(out, want, rtol=3e-3, atol=3e-3)


def test_half_precision_data_and_float32_states_are_promoted_as_in_jfit():
    symbol = S.RNN(DATA, S.Variable("rnn_parameters"), S.Variable("h"), mode="rnn_tanh", state_size=3, num_layers=1, name="rnn")
    model = jfit.lower(symbol, inputs=["data", "h"], batch_axes={"data": 1})
    params = {"rnn_parameters": jnp.linspace(-1, 1, 27, dtype="float16")}
    x = {"data": np.linspace(-1, 1, 16, dtype="float16").reshape(2, 2, 4), "h": np.ones((1, 2, 3), "float32")}
    want = model.apply(params, {}, {k: jnp.asarray(v) for k, v in x.items()})[0][0]
    got = run(jfit.export.onnx(model, x, params), x)[0]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_uint8_inputs_stay_uint8():
    made = jfit.export.onnx(DATA * 0.5, {"data": jax.ShapeDtypeStruct((2, 3), "uint8")}, {})
    assert run(made, {"data": np.full((4, 3), 7, "uint8")})[0].tolist() == [[3.5] * 3] * 4


# ------------------------------------------------------------------------------------------ what cannot be
def test_all_nodes_without_a_converter_are_listed_before_anything_is_written(tmp_path):
    net = S.gamma(DATA, name="first") + S.relu(S.erfinv(DATA, name="second")) + S.Dropout(DATA, mode="always", name="third")
    with pytest.raises(
        ExportError, match=r"3 nodes have no ONNX form: 'first' \(gamma\).*'second' \(erfinv\).*'third' \(Dropout\).*stablehlo"
    ):
        jfit.export.onnx(net, {"data": (2, 3)}, {}, path=tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_an_lstm_with_projection_or_clipping_raises():
    for extra in ({"projection_size": 2}, {"lstm_state_clip_min": -1, "lstm_state_clip_max": 1}):
        symbol = S.RNN(DATA, mode="lstm", state_size=3, num_layers=1, name="rnn", **extra)
        params, _ = drawn(symbol, data=(2, 2, 4))
        with pytest.raises(ExportError, match=r"'rnn' \(RNN\): .* no ONNX form"):
            jfit.export.onnx(symbol, {"data": (2, 2, 4)}, params)


def test_a_graph_of_fixed_batch_size_raises():
    fixed = S.Reshape(DATA, shape=(2, 3, 2))
    with pytest.raises(ExportError, match="batch=None"):
        jfit.export.onnx(fixed, {"data": (2, 6)}, {})
    assert run(jfit.export.onnx(fixed, {"data": (2, 6)}, {}, batch=None), {"data": np.ones((2, 6), "float32")})[0].shape == (
        2,
        3,
        2,
    )
    outer = S.dot(S.Reshape(DATA, shape=(-1, 1)), S.Reshape(DATA, shape=(1, -1)))
    with pytest.raises(ExportError, match=r"not linear in them"):
        jfit.export.onnx(S.Reshape(outer, shape=(-1,)), {"data": (2, 1)}, {})


def test_missing_parameters_inputs_and_wrong_names_are_named():
    symbol = classifier()
    params, aux = drawn(symbol, data=(2, 4))
    with pytest.raises(ExportError, match="'fc_weight'"):
        jfit.export.onnx(symbol, {"data": (2, 4)}, {})
    with pytest.raises(ExportError, match=r"did you mean 'data'"):
        jfit.export.onnx(symbol, {"dota": (2, 4)}, params, aux)
    with pytest.raises(ExportError, match=r"inputs \['data'\]"):
        jfit.export.onnx(symbol, {"softmax_label": (2,)}, params, aux)
    with pytest.raises(ExportError, match="function, not a graph"):
        jfit.export.onnx(
            jfit.Model.from_function(lambda p, x: x * p["w"], loss=jnp.subtract, params={"w": jnp.ones(2)}), {"x": (2, 2)}
        )
    with pytest.raises(ExportError, match="net is a str"):
        jfit.export.onnx("net", {"data": (2, 4)})


@pytest.mark.slow
def test_importing_jfit_does_not_import_the_export_dependencies():
    code = """
        import sys, jfit
        late = [m for m in sys.modules if m.split(".")[0] in ("onnx", "onnxruntime") or m.startswith("jfit.export.")]
        assert not late, late
        jfit.export.converters()
        assert "onnx" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.slow
def test_the_documentation_lists_the_converters():
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    assert docs_script("tables").converters() in page, "put what `python docs/tables.py converters` prints into docs/export.md"
