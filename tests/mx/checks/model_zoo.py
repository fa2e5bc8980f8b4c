"""Checks of gluon.model_zoo.vision: structures, names and shapes of every net, outputs of small ones."""

import hashlib
import os
import tempfile

import numpy as np
from recorded_checks import raised

FAMILIES = {
    "resnet": [f"resnet{n}_v{v}" for v in (1, 2) for n in (18, 34, 50, 101, 152)],
    "vgg": [f"vgg{n}{end}" for n in (11, 13, 16, 19) for end in ("", "_bn")],
    "densenet": [f"densenet{n}" for n in (121, 161, 169, 201)],
    "mobilenet": [f"mobilenet{v}{m}" for v in ("", "v2_") for m in ("1.0", "0.75", "0.5", "0.25")],
    "other": ["alexnet", "squeezenet1.0", "squeezenet1.1", "inceptionv3"],
}


def digest(value):
    """Return a short hash of nested lists and text."""
    return hashlib.sha1(repr(value).encode()).hexdigest()[:12]


def structure(mx, family):
    """Return what nets show without computing: names, unknown shapes and order of parameters, names in files, reprs."""
    result = {}
    for name in FAMILIES[family]:
        net = mx.gluon.model_zoo.vision.get_model(name, prefix="net_")
        params = net.collect_params()
        result |= {
            f"{name} class": type(net).__name__,
            f"{name} number": len(list(params)),
            f"{name} first names": list(params)[:6],
            f"{name} names": digest(list(params)),
            f"{name} shapes": digest([(p.name, tuple(p.shape), p.grad_req) for p in params.values()]),
            f"{name} names in files": digest(sorted(net._collect_params_with_prefix())),
            f"{name} repr": digest(repr(net)),
        }
    return result


def check_resnet_structure(mx):
    return structure(mx, "resnet")


def check_vgg_structure(mx):
    return structure(mx, "vgg")


def check_densenet_structure(mx):
    return structure(mx, "densenet")


def check_mobilenet_structure(mx):
    return structure(mx, "mobilenet")


def check_other_structure(mx):
    return structure(mx, "other")


def check_inferred_shapes(mx):
    result = {}
    cases = {"alexnet": 224, "squeezenet1.1": 224, "vgg11_bn": 224, "densenet121": 224, "mobilenet0.25": 64}
    cases |= {"mobilenetv2_0.5": 64, "resnet18_v1": 64, "resnet50_v2": 64, "inceptionv3": 299}
    for name, size in cases.items():
        with mx.name.NameManager():
            symbol = mx.gluon.model_zoo.vision.get_model(name, prefix="net_", classes=7)(mx.sym.var("data"))
        result[f"{name} nodes"] = digest(symbol.get_internals().list_outputs())
        arguments, outputs, states = symbol.infer_shape(data=(2, 3, size, size))
        by_name = dict(zip(symbol.list_arguments(), arguments, strict=True))
        by_name |= dict(zip(symbol.list_auxiliary_states(), states, strict=True))
        by_name.pop("data")
        result[f"{name} output"] = list(outputs[0])
        result[f"{name} number"] = int(sum(np.prod(s) for s in by_name.values()))
        result[f"{name} shapes"] = digest(sorted((n, tuple(s)) for n, s in by_name.items()))
    return result


def fill(mx, net):
    """Give the parameters of a net deterministic values that keep the size of its activations."""
    for i, param in enumerate(net.collect_params().values()):
        value = np.cos(1.7 * np.arange(int(np.prod(param.shape))) ** 1.1 + i).reshape(param.shape)
        value = 1 + 0.1 * value if param.name.endswith(("gamma", "var")) else value * np.sqrt(2 / max(1, value[0].size))
        param.set_data(mx.nd.array(value))


def output(mx, net, size):
    x = mx.nd.array(np.cos(0.3 * np.arange(3 * size**2)).reshape(1, 3, size, size))
    net.initialize()
    net.hybridize()
    net(x)
    fill(mx, net)
    return net(x)


def check_resnet_output(mx):
    vision = mx.gluon.model_zoo.vision
    return {"value": output(mx, vision.ResNetV1(vision.BasicBlockV1, [1, 2], [8, 8, 16], thumbnail=True, classes=4), 16)}


def check_resnet_v2_output(mx):
    vision = mx.gluon.model_zoo.vision
    return {"value": output(mx, vision.ResNetV2(vision.BottleneckV2, [1, 1], [8, 8, 16], classes=4), 32)}


def check_mobilenet_output(mx):
    return {"value": output(mx, mx.gluon.model_zoo.vision.mobilenet_v2_0_25().features[:6], 8)}


def check_classes(mx):
    vision = mx.gluon.model_zoo.vision
    dense = vision.DenseNet(8, 4, [1, 2], bn_size=2, dropout=0.1, classes=3, prefix="d_")
    small = vision.ResNetV1(vision.BottleneckV1, [1, 2], [8, 8, 16], classes=3, thumbnail=True, prefix="r_")
    plain = vision.VGG([1, 1], [4, 8], classes=3, batch_norm=True, prefix="v_")
    return {
        "dense": [list(dense.collect_params()), digest(repr(dense))],
        "resnet": [list(small.collect_params()), repr(small)],
        "resnet v2": repr(vision.ResNetV2(vision.BottleneckV2, [1], [8, 16], prefix="s_")),
        "basic": repr(vision.BasicBlockV1(8, 2, downsample=True, in_channels=4)),
        "basic v2": repr(vision.BasicBlockV2(8, 1)),
        "vgg": repr(plain),
        "mobilenet": digest(repr(vision.get_mobilenet(0.25, classes=3))),
        "mobilenet v2": digest(repr(vision.get_mobilenet_v2(1.5, classes=3))),
        "squeezenet": digest(repr(vision.SqueezeNet("1.1", classes=3))),
        "classes": vision.alexnet(classes=3).output.weight.shape,
        "inception": vision.inception_v3(classes=3).output.weight.shape,
        "vgg output": repr(vision.get_vgg(11, classes=3).output),
        "upper case": type(vision.get_model("ResNet18_v1")).__name__,
        "unknown": raised(vision.get_model, "resnet19"),
        "layers": raised(vision.get_resnet, 1, 19),
        "version": raised(vision.get_resnet, 3, 18),
        "squeezenet version": raised(vision.SqueezeNet, "2.0"),
        "lengths": raised(vision.ResNetV1, vision.BasicBlockV1, [1], [8]),
        "argument": raised(vision.alexnet, unknown=1),
    }


def check_saved(mx):
    vision = mx.gluon.model_zoo.vision
    net, other = (vision.ResNetV1(vision.BasicBlockV1, [1], [4, 8], classes=2, thumbnail=True) for _ in range(2))
    x = mx.nd.ones((1, 3, 8, 8))
    net.initialize()
    net(x)
    fill(mx, net)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "small.params")
        net.save_parameters(path)
        other.load_parameters(path)
        return {"names": sorted(mx.nd.load(path)), "output": other(x)}
