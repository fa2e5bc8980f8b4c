"""`jfit.load`: read a model from files, predict, score and train it; mismatched files raise with the names."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import jfit
from jfit import sym
from jfit.formats import FormatError, save_arrays

CHECKPOINT = Path(__file__).parents[1] / "golden" / "checkpoint"
V = sym.Variable


def network(classes=3, name="fc"):
    net = sym.BatchNorm(sym.FullyConnected(V("data"), num_hidden=4, name="body"), name="bn")
    net = sym.FullyConnected(sym.Activation(net, act_type="relu", name="act"), num_hidden=classes, name=name)
    return sym.SoftmaxOutput(net, name="softmax")


@pytest.fixture(scope="module")
def trained():
    x = np.random.default_rng(0).normal(size=(16, 5)).astype("float32")
    y = np.arange(16) % 3
    return jfit.fit(network(), (x, y), num_epoch=1, batch_size=8, progress=False), x, y


def named(run):
    return {f"arg:{k}": v for k, v in run.params.items()} | {f"aux:{k}": v for k, v in run.aux.items()}


@pytest.fixture
def files(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, x, _ = trained
    run.symbol.save("net-symbol.json")
    save_arrays("net-0002.params", {k: np.asarray(v) * 0 for k, v in named(run).items()})
    save_arrays("net-0010.params", named(run))
    return run, x


def test_load_returns_a_model_that_predicts_scores_and_unpacks(files, trained):
    run, x = files
    loaded = jfit.load("net")  # the newest epoch
    model, params, aux = loaded
    assert loaded.model is model and set(params) == set(run.params) and set(aux) == {"bn_moving_mean", "bn_moving_var"}
    assert model.inputs == ("data",) and model.labels == ("softmax_label",)
    np.testing.assert_array_equal(loaded.predict(x), run.predict(x))
    assert loaded.score((x, trained[2]))["accuracy"] == run.score((x, trained[2]))["accuracy"]
    np.testing.assert_array_equal(jfit.predict(loaded, x), run.predict(x))
    assert "parameters, inputs ['data']" in repr(loaded)
    assert not np.asarray(jfit.load("net", 2).params["fc_weight"]).any()


def test_a_second_call_compiles_nothing(files):
    loaded = jfit.load("net", 10)
    loaded.predict(files[1])
    with jfit.counters.counted() as counts:
        loaded.predict(files[1])
    assert not counts["compiles"]


def test_assigned_parameters_are_used_by_the_next_call(files, trained):
    x, y = files[1], trained[2]
    loaded = jfit.load("net", 10)
    loaded.predict(x)
    with jfit.counters.counted() as counts:
        for name, value in (("fc_bias", jax.numpy.float32([0, 0, 50])), ("fc_bias", np.float32([0, 60, 0]))):
            loaded.params[name] = value
            assert (loaded.predict(x).argmax(1) == int(value.argmax())).all()
        loaded.params["fc_bias"][:] = (70, 0, 0)  # a numpy array, changed in place
        assert not loaded.predict(x).argmax(1).any()
        loaded.aux["bn_moving_mean"] = np.full(4, np.nan, np.float32)
        assert np.isnan(loaded.predict(x)).all()
    assert not counts["traces"]
    assert np.isnan(loaded.score((x, y))["loss"])
    loaded.params["fc_bias"] = np.zeros(7, np.float32)
    with pytest.raises(ValueError, match=r"fc_bias has shape \(7,\), expected \(3,\)"):
        loaded.predict(x)


@pytest.mark.parametrize("name", ["adam", "sgd", "sgd_nomom"])
def test_checkpoints_of_mxnet_load_by_prefix(name):
    loaded = jfit.load(CHECKPOINT / name)
    want = np.load(CHECKPOINT / f"{name}.npz")
    for key, value in (loaded.params | loaded.aux).items():
        np.testing.assert_array_equal(value, want[f"epoch2/{key}"])
    assert loaded.model.labels == ("softmax_label",)


def test_files_with_other_names_are_loaded(files, tmp_path):
    run, x = files
    want = run.predict(x)
    shutil.copy("net-0010.params", "other.params")
    jfit.export.safetensors("one.safetensors", run)
    shutil.copy("net-symbol.json", "pair.json")
    shutil.copy("net-0010.params", "pair.params")
    shutil.copy("one.safetensors", "both.safetensors")
    shutil.copy("net-symbol.json", "both-symbol.json")
    for loaded in (
        jfit.load("net-symbol.json", params="other.params"),
        jfit.load("pair"),
        jfit.load("one.safetensors"),
        jfit.load("one"),
        jfit.load("both"),
        jfit.load(tmp_path / "net", 10),
    ):
        np.testing.assert_array_equal(loaded.predict(x), want)


def test_names_without_prefixes_and_half_precision_are_loaded(files):
    run, x = files
    save_arrays("half.params", {k[4:]: np.asarray(v).astype("float16") for k, v in named(run).items()})
    loaded = jfit.load("net-symbol.json", params="half.params")
    assert loaded.params["fc_weight"].dtype == np.float16 and set(loaded.aux) == set(run.aux)
    np.testing.assert_allclose(loaded.predict(x), run.predict(x), atol=2e-3)


def test_training_continues_from_the_loaded_parameters(files, trained):
    run, x = files
    on = jfit.fit(jfit.load("net"), (x, trained[2]), num_epoch=1, optimizer_params={"learning_rate": 0.0}, progress=False)
    np.testing.assert_array_equal(on.params["fc_weight"], run.params["fc_weight"])
    own = jfit.fit(jfit.load("net"), (x, trained[2]), num_epoch=1, params={"fc_bias": np.ones(3)}, progress=False)
    assert not np.array_equal(own.params["body_weight"], run.params["body_weight"])  # given ones take the place of all


def test_a_new_last_layer_on_pretrained_parameters_is_trained(files):
    run, x = files
    loaded = jfit.load("net")
    top = sym.FullyConnected(loaded.symbol.get_internals()["act_output"], num_hidden=5, name="new")
    net = sym.SoftmaxOutput(top, name="softmax")
    with pytest.raises(
        ValueError, match=r"the network has no variable for 'fc_bias', 'fc_weight' .*; drop=True leaves them out"
    ):
        loaded.onto(net)
    tuned = jfit.fit(
        loaded.onto(net, drop=True), (x, np.arange(16) % 5), num_epoch=1, frozen=["body_*", "bn_*"], progress=False
    )
    assert tuned.params["new_weight"].shape == (5, 4)
    np.testing.assert_array_equal(tuned.params["body_weight"], run.params["body_weight"])
    with pytest.raises(ValueError, match="this net is a function"):
        loaded.onto(jfit.Model.from_function(lambda params, x: x, loss=lambda a, b: a - b, params={"w": np.ones(1)}))


def change(run, **changes):
    arrays = named(run)
    for key, value in changes.items():
        key = key.replace("__", ":")
        if value is None:
            del arrays[key]
        else:
            arrays[key] = value
    save_arrays("bad.params", arrays)


def test_mismatched_graph_and_parameters_raise_with_the_names(files):
    run, x = files

    def load(**given):
        return jfit.load("net-symbol.json", params="bad.params", **given)

    change(run, arg__fc_weight=None, aux__bn_moving_var=None)
    with pytest.raises(FormatError, match=r"bad\.params: names: the graph needs 'bn_moving_var', 'fc_weight', the file has"):
        load()
    assert "fc_weight" not in load(allow_missing=True).params
    assert jfit.fit(load(allow_missing=True), (x, np.arange(16) % 3), num_epoch=1, progress=False).params["fc_weight"].any()
    change(run, arg__fd_weight=np.ones(2))
    with pytest.raises(FormatError, match=r"array 'fd_weight': the graph has no .*'fd_weight' \(did you mean 'fc_weight'"):
        load()
    np.testing.assert_array_equal(load(allow_extra=True).predict(x), run.predict(x))
    save_arrays("bad.params", {"features.0.weight": np.ones(2)})
    with pytest.raises(FormatError, match="gluon's save_parameters"):
        load()
    save_arrays("bad.params", [np.ones(2)])
    with pytest.raises(FormatError, match="names: the 1 arrays have no names"):
        load()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("arg__fc_bias", (4,)), ("arg__fc_weight", (3, 7)), ("aux__bn_moving_mean", (1,)), ("arg__bn_gamma", (1,))],
)
def test_a_wrong_shape_raises_before_any_computation(files, name, shape):
    run, x = files
    change(run, **{name: np.ones(shape, "float32")})
    short = name.partition("__")[2]
    with pytest.raises(ValueError, match=rf"{short}.*has shape \({shape[0]},"):
        jfit.load("net-symbol.json", params="bad.params").predict(x)


def test_variables_without_values_in_no_parameters_slot_are_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = sym.broadcast_mul(sym.FullyConnected(V("x"), num_hidden=2, name="fc"), V("im_info"), name="out")
    net.save("odd-symbol.json")
    save_arrays("odd.params", {"arg:fc_weight": np.eye(2, dtype="float32"), "arg:fc_bias": np.zeros(2, "float32")})
    loaded = jfit.load("odd")
    assert set(loaded.model.inputs) == {"x", "im_info"}
    given = {"x": np.float32([[1, 2]]), "im_info": np.float32([[3, 4]])}
    assert loaded.predict(given).tolist() == [[3, 8]]
    assert jfit.load("odd", inputs=["x", "im_info"]).predict(given).tolist() == [[3, 8]]


def test_training_initializes_no_loaded_parameter_and_keeps_the_graphs_inputs(tmp_path):
    own = V("w", init='["fusedrnn", {"num_hidden": 2}]')  # rules may be of any kind in files
    body = sym.FullyConnected(sym.concat(V("data"), V("len"), dim=1), own, no_bias=True, num_hidden=2, name="body")
    sym.SoftmaxOutput(sym.broadcast_mul(body, V("scale", shape=(1, 2))), name="softmax").save(tmp_path / "net-symbol.json")
    save_arrays(tmp_path / "net-0000.params", {"arg:w": np.ones((2, 3), "float32"), "arg:scale": np.ones((1, 2), "float32")})
    loaded = jfit.load(tmp_path / "net")
    x = {"data": np.ones((4, 2), "float32"), "len": np.ones((4, 1), "float32")}
    run = jfit.fit(loaded, {**x, "softmax_label": np.arange(4) % 2}, num_epoch=1, batch_size=4, progress=False)
    assert set(run.params) == {"w", "scale"}
    top = sym.FullyConnected(loaded.symbol.get_internals()["body_output"], num_hidden=3, name="new")
    tuned = loaded.onto(sym.SoftmaxOutput(top, name="other"), drop=True)
    assert tuned.model.inputs == ("data", "len") and set(tuned.params) == {"w"}
    run = jfit.fit(tuned, {**x, "other_label": np.arange(4) % 3}, num_epoch=1, batch_size=4, frozen=["w"], progress=False)
    np.testing.assert_array_equal(run.params["w"], np.ones((2, 3)))
    assert run.params["new_weight"].any()  # drawn


def test_a_label_that_the_outputs_depend_on_is_an_input_of_predict(tmp_path):
    label = V("softmax_label")
    score = sym.FullyConnected(V("data"), num_hidden=3, no_bias=True, name="fc")
    net = sym.SoftmaxOutput(score - sym.one_hot(label, depth=3) * 2, label, name="softmax")  # a margin at the label's class
    net.save(tmp_path / "net-symbol.json")
    save_arrays(tmp_path / "net-0000.params", {"arg:fc_weight": np.eye(3, dtype="float32")})
    loaded, x, y = jfit.load(tmp_path / "net"), np.ones((5, 3), "float32"), np.array([0, 1, 2, 0, 1])
    assert loaded.model.labels == loaded.model.evaluation_labels == ("softmax_label",)
    want = np.exp(x - 2 * np.eye(3)[y])
    for data in ({"data": x, "softmax_label": y}, (x, y)):
        got = loaded.predict(data, batch_size=2)  # the last batch is short
        np.testing.assert_allclose(got, want / want.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(ValueError, match=r"input 'softmax_label' is missing; pass it in inputs"):
        loaded.predict(x)
    assert not jfit.lower(network()).evaluation_labels


def test_missing_files_raise_with_their_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nope-0000\.params \(of any epoch\), .*nope\.params"):
        jfit.load(tmp_path / "nope")
    with pytest.raises(FileNotFoundError, match=r"nope-0003\.params"):
        jfit.load(tmp_path / "nope", 3)
    jfit.formats.save_tensors(tmp_path / "bare.safetensors", {"w": np.ones(1)})
    with pytest.raises(FormatError, match="it contains no graph; pass the path of the graph file"):
        jfit.load(tmp_path / "bare.safetensors")


def test_the_weight_of_bilinear_upsampling_is_no_data_input(tmp_path):
    sym.UpSampling(V("data"), num_args=2, scale=2, sample_type="bilinear", num_filter=2, name="up").save(
        tmp_path / "n-symbol.json"
    )
    save_arrays(tmp_path / "n-0000.params", {})
    with pytest.raises(FormatError, match="the graph needs 'up_weight'"):
        jfit.load(tmp_path / "n")


def test_an_epoch_may_be_an_integer_of_numpy(files):
    assert jfit.load("net", np.int64(2)).params["fc_weight"].sum() == 0


def test_names_that_begin_as_the_prefixes_of_mxnet_load_from_both_formats(tmp_path):
    net = sym.FullyConnected(V("data"), weight=V("arg:w"), bias=V("w"), num_hidden=2, name="fc")
    net = sym.BatchNorm(net, moving_mean=V("arg:mean"), moving_var=V("aux:arg:var"), name="bn")
    values = {"arg:w": np.ones((2, 3), "float32"), "w": np.full(2, 3, "float32"), "bn_gamma": np.ones(2), "bn_beta": np.ones(2)}
    states = {"arg:mean": np.full(2, 5, "float32"), "aux:arg:var": np.full(2, 6, "float32")}
    jfit.export.safetensors(tmp_path / "net.safetensors", values, states, symbol=net)
    arrays = {f"arg:{k}": v for k, v in values.items()} | {f"aux:{k}": v for k, v in states.items()}
    save_arrays(tmp_path / "b.params", arrays)
    net.save(str(tmp_path / "b-symbol.json"))
    for path in (tmp_path / "net.safetensors", tmp_path / "b"):
        loaded = jfit.load(path)
        assert {k: v[0].tolist() for k, v in loaded.aux.items()} == {"arg:mean": 5, "aux:arg:var": 6}
        assert loaded.params["w"].tolist() == [3, 3] and loaded.params["arg:w"].shape == (2, 3)
    foreign = {"format": "pt", "symbol": net.tojson(), "aux": "[]"}
    jfit.formats.save_tensors(tmp_path / "c.safetensors", {k: v for k, v in arrays.items() if "bn" in k}, foreign)
    assert sorted(jfit.load(tmp_path / "c.safetensors", allow_missing=True).params) == ["bn_beta", "bn_gamma"]
