"""Nets of the model zoo read trained weights from local files; tests/mx/checks/model_zoo.py has names, shapes and outputs."""

import numpy as np
import pytest

import jfit.mx as mx

vision = mx.gluon.model_zoo.vision


def test_pretrained_weights_are_read_from_a_file_of_the_folder(tmp_path):
    net = vision.mobilenet0_25(prefix="trained_")
    net.infer_shape(mx.nd.zeros((1, 3, 32, 32)))
    net.initialize(mx.init.Constant(0.5))
    net.save_parameters(tmp_path / "mobilenet0.25-9f83e440.params")
    loaded = vision.get_model("mobilenet0.25", pretrained=True, root=tmp_path)
    params = loaded.collect_params()
    assert [p.removeprefix("trained_") for p in net.collect_params()] == [p.removeprefix(loaded.prefix) for p in params]
    weight = loaded.output.weight.data().asnumpy()
    np.testing.assert_array_equal(weight, np.full((1000, 256), 0.5, "float32"))


def test_pretrained_weights_that_are_missing_raise_and_are_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    with pytest.raises(mx.MXNetError, match=r"models has no file resnet18_v1-<hash>.params .* jfit downloads none"):
        vision.resnet18_v1(pretrained=True)


def test_a_file_of_a_net_with_batch_norm_is_not_that_of_the_net_without(tmp_path):
    (tmp_path / "vgg11_bn-ee79a809.params").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="no file vgg11-<hash>"):
        vision.vgg11(pretrained=True, root=tmp_path)
    with pytest.raises(mx.MXNetError, match=r"vgg11_bn-ee79a809.params"):
        vision.vgg11_bn(pretrained=True, root=tmp_path)


def test_functions_of_all_nets_are_there():
    names = "resnet152_v2 vgg19_bn densenet201 squeezenet1_1 inception_v3 mobilenet0_75 mobilenet_v2_0_5 alexnet get_resnet"
    assert set(names.split()) <= set(vision.__all__) and all(callable(getattr(vision, name)) for name in names.split())
