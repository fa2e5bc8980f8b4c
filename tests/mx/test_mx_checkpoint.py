"""`mx.mod.Module` resumes from MXNet's checkpoints and writes the same files again."""

import json

import pytest
from golden_mx import GOLDEN, arrays_of, assert_close, flat, host, manifest, under

import jfit.mx as mx
from jfit.formats.mxnet_arrays import load_arrays
from jfit.formats.mxnet_states import load_states

FOLDER = GOLDEN / "checkpoint"
CASES = {
    name: case for name, case in manifest("checkpoint", "manifest.json").items() if isinstance(case, dict) and "npz" in case
}
named = pytest.mark.parametrize("name", CASES)


def graph(text):
    """Nodes of a symbol.json as (operator, name, attributes, inputs), and its heads."""
    found = json.loads(text)
    nodes = [(n["op"], n["name"], n.get("attrs", {}), [i[:2] for i in n["inputs"]]) for n in found["nodes"]]
    return nodes, [h[:2] for h in found["heads"]], found["arg_nodes"]


def resumed(name, **extra):
    """The module of a checkpoint of MXNet after its second epoch, and its data."""
    case = CASES[name]
    arrays = arrays_of("checkpoint", case["npz"])
    data = mx.io.NDArrayIter(arrays["X"], arrays["Y"], case["batch_size"])
    module = mx.mod.Module.load(str(FOLDER / name), 2, load_optimizer_states=True)
    module.bind(data.provide_data, data.provide_label)
    module.init_optimizer(optimizer=case["optimizer"], optimizer_params={**case["params"], **extra})
    return module, data, arrays


@named
def test_graph_and_arrays_of_a_checkpoint_are_read_bit_for_bit(name):
    want = under(arrays_of("checkpoint", CASES[name]["npz"]), "epoch2/")
    symbol, args, aux = mx.model.load_checkpoint(str(FOLDER / name), 2)
    got = {**args, **aux}
    assert set(got) == {key.split("/", 1)[-1] for key in want}
    for key, value in want.items():
        loaded = host(got[key.split("/", 1)[-1]])
        assert loaded.dtype == value.dtype and (loaded == value).all()
    assert graph(symbol.tojson()) == graph((FOLDER / f"{name}-symbol.json").read_text())


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("way", ["as MXNet resumes", "with the count it lost"])
@named
def test_one_more_epoch_from_mxnets_checkpoint_gives_mxnets_parameters(name, way):
    """MXNet's `.states` lack update counts (decided.state_counts): `begin_num_update` says how many there were."""
    lost = way == "as MXNet resumes"
    module, data, arrays = resumed(name, **({} if lost else {"begin_num_update": 4}))
    for batch in data:
        module.forward_backward(batch)
        module.update()
    params, aux = module.get_params()
    prefix = "mxnet_resume_epoch3/" if lost or CASES[name]["optimizer"] != "adam" else "resumed_epoch3/"
    for key, want in under(arrays, prefix).items():
        if prefix + key not in CASES[name].get("skip_compare", ()):
            assert_close(key, {**params, **aux}[key.split("/", 1)[-1]], want, 2e-4, 1e-2)


@named
def test_the_files_are_written_again_with_the_same_content(name, tmp_path):
    module, _, _ = resumed(name)
    module.save_checkpoint(str(tmp_path / name), 2, save_optimizer_states=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(CASES[name]["files"])
    assert (tmp_path / f"{name}-0002.params").read_bytes() == (FOLDER / f"{name}-0002.params").read_bytes()
    assert graph((tmp_path / f"{name}-symbol.json").read_text()) == graph((FOLDER / f"{name}-symbol.json").read_text())
    got, want = (load_states(str(folder / f"{name}-0002.states")).states for folder in (tmp_path, FOLDER))
    assert set(got) == set(want)
    for index in want:
        pairs = list(zip(flat(got[index]), flat(want[index]), strict=True))
        assert all(a.dtype == b.dtype and (a == b).all() for a, b in pairs)


@pytest.mark.parametrize("file", ["dtypes_dict.params", "list.params", "sparse.params", "legacy_ndarray.v0"])
def test_every_kind_of_array_file_is_read(file):
    want = arrays_of("checkpoint", file.split(".")[0] + ".npz")
    got = mx.nd.load(str(FOLDER / file))
    got = got if isinstance(got, dict) else dict(zip(want, got, strict=True))
    assert set(got) == set(want)
    for key, value in want.items():
        loaded = host(got[key])
        assert loaded.dtype == value.dtype and loaded.shape == value.shape and (loaded == value).all()
    if file == "sparse.params":
        assert (got["rsp"].stype, got["csr"].stype) == ("row_sparse", "csr")


def test_scalars_and_empty_arrays_of_numpy_shapes_are_read():
    shapes = mx.util.np_shape(True)
    for _ in range(2):  # the context manager may be entered again
        with shapes, shapes:
            assert mx.util.is_np_shape()
        assert not mx.util.is_np_shape()
    with shapes:
        got = mx.nd.load(str(FOLDER / "npshape_v3.params"))
        assert got["scalar"].shape == () and float(host(got["scalar"])) == 2.5
        assert tuple(got["zero"].shape) == (0, 3)


def test_one_np_shape_object_is_used_several_times():
    on = mx.util.np_shape()
    for _ in range(2):
        with on, on:
            assert mx.util.is_np_shape()
        assert on(mx.util.is_np_shape)() and not mx.util.is_np_shape()


def test_a_parameter_file_without_prefixes_raises(tmp_path):
    module, _, _ = resumed("sgd")
    mx.nd.save(str(tmp_path / "bad.params"), {"fc1_weight": mx.nd.ones((1,))})
    with pytest.raises(ValueError, match="Invalid param file"):
        module.load_params(str(tmp_path / "bad.params"))
    assert load_arrays(str(tmp_path / "bad.params"))
