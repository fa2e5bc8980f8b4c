"""Small object detectors that MXNet and jfit.mx both build: outputs and parameters of trainings, and detections.

Each training is a dict: symbol(mx), inputs (data and labels of one step by name), data and label names, optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CLASSES = 4  # background and three kinds of objects
STEPS = 2
OPTIMIZER = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.0005}


def _conv(mx: Any, data: Any, name: str, filters: int, relu: bool = True, **attrs: Any) -> Any:
    out = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=name, **attrs)
    return mx.sym.Activation(out, act_type="relu", name=f"{name}_relu") if relu else out


def _pool(mx: Any, data: Any) -> Any:
    return mx.sym.Pooling(data, pool_type="max", kernel=(2, 2), stride=(2, 2))


# ------------------------------------------------------------------------------------------ single-shot detector
SIZES = [(0.2, 0.27), (0.4, 0.5), (0.7, 0.85)]
RATIOS = [(1, 2, 0.5), (1, 2, 0.5, 3), (1, 2)]


def _heads(mx: Any) -> tuple[Any, Any, Any]:
    """Offsets (batch, 4 * anchors), class scores (batch, classes, anchors), anchors, over three maps."""
    body = _pool(mx, _conv(mx, mx.sym.Variable("data"), "conv1", 8))
    body = _pool(mx, _conv(mx, body, "conv2", 12))
    offsets, scores, anchors = [], [], []
    for k, (sizes, ratios) in enumerate(zip(SIZES, RATIOS)):  # noqa: B905  (runs on MXNet's Python too)
        body = _conv(mx, body, f"scale{k}", 12)
        count = len(sizes) + len(ratios) - 1
        for found, entries, name in ((offsets, 4, "loc"), (scores, CLASSES, "cls")):
            out = _conv(mx, body, f"{name}{k}", count * entries, relu=False)
            found.append(mx.sym.Flatten(mx.sym.transpose(out, axes=(0, 2, 3, 1))))
        prior = mx.sym.contrib.MultiBoxPrior(body, sizes=sizes, ratios=ratios, clip=False, name=f"anchors{k}")
        anchors.append(mx.sym.Flatten(prior))
        body = _pool(mx, body)
    score = mx.sym.Reshape(mx.sym.Concat(*scores, dim=1), shape=(0, -1, CLASSES))
    boxes = mx.sym.Reshape(mx.sym.Concat(*anchors, dim=1), shape=(0, -1, 4), name="anchors")
    return mx.sym.Concat(*offsets, dim=1, name="loc_preds"), mx.sym.transpose(score, axes=(0, 2, 1), name="cls_preds"), boxes


def _detections(mx: Any, prob: Any, offsets: Any, anchors: Any) -> Any:
    return mx.sym.contrib.MultiBoxDetection(
        prob, offsets, anchors, nms_threshold=0.5, force_suppress=False, nms_topk=60, variances=(0.1, 0.1, 0.2, 0.2), name="det"
    )


def ssd_train(mx: Any) -> Any:
    """The training symbol of a single-shot detector: class probabilities, box loss, class targets, detections."""
    offsets, scores, anchors = _heads(mx)
    target = mx.sym.contrib.MultiBoxTarget(
        anchors,
        mx.sym.Variable("label"),
        scores,
        overlap_threshold=0.5,
        ignore_label=-1,
        negative_mining_ratio=3,
        negative_mining_thresh=0.5,
        minimum_negative_samples=0,
        variances=(0.1, 0.1, 0.2, 0.2),
        name="multibox_target",
    )
    prob = mx.sym.SoftmaxOutput(
        scores, target[2], ignore_label=-1, use_ignore=True, multi_output=True, normalization="valid", name="cls_prob"
    )
    away = mx.sym.smooth_l1(target[1] * (offsets - target[0]), scalar=1.0, name="loc_loss_")
    loss = mx.sym.MakeLoss(away, grad_scale=1.0, normalization="valid", name="loc_loss")
    kinds = mx.sym.MakeLoss(target[2], grad_scale=0, name="cls_label")
    found = mx.sym.MakeLoss(_detections(mx, prob, offsets, anchors), grad_scale=0, name="det_out")
    return mx.sym.Group([prob, loss, kinds, found])


def ssd_detect(mx: Any) -> Any:
    """The same detector without labels."""
    offsets, scores, anchors = _heads(mx)
    return _detections(mx, mx.sym.softmax(scores, axis=1, name="cls_prob"), offsets, anchors)


def _ssd_inputs(draw: np.random.RandomState) -> dict[str, np.ndarray]:
    label = np.full((4, 3, 5), -1.0)
    for image, count in enumerate((2, 3, 0, 1)):
        start = draw.uniform(0, 0.5, (count, 2))
        label[image, :count] = np.c_[draw.randint(0, CLASSES - 1, count), start, start + draw.uniform(0.2, 0.5, (count, 2))]
    return {"data": draw.randn(4, 3, 32, 32), "label": label}


# ------------------------------------------------------------------------------------------ region proposals
REGIONS = 8  # of each picture


def _region_net(pool: Callable[[Any, Any, Any], Any], proposal: str) -> Callable[[Any], Any]:
    """A two-stage detector: proposals of a first network, classified and moved by a second one on their part of the map."""

    def symbol(mx: Any) -> Any:
        body = _pool(mx, _conv(mx, mx.sym.Variable("data"), "conv1", 8))
        body = _conv(mx, _pool(mx, _conv(mx, body, "conv2", 8)), "conv3", 8)
        first = _conv(mx, body, "rpn", 8)
        score = mx.sym.Convolution(first, kernel=(1, 1), num_filter=8, name="rpn_cls")  # background, object of four anchors
        moves = mx.sym.Convolution(first, kernel=(1, 1), num_filter=16, name="rpn_bbox")
        pairs = mx.sym.Reshape(score, shape=(0, 2, -1, 0))
        rpn = mx.sym.SoftmaxOutput(
            pairs,
            mx.sym.Variable("rpn_label"),
            multi_output=True,
            use_ignore=True,
            ignore_label=-1,
            normalization="valid",
            name="rpn_prob",
        )
        prob = mx.sym.Reshape(mx.sym.softmax(pairs, axis=1), shape=(0, 8, -1, 0))
        attrs = {"feature_stride": 4, "scales": (2, 4), "ratios": (0.5, 2), "rpn_min_size": 4, "threshold": 0.6}
        rois = getattr(mx.sym.contrib, proposal)(
            prob, moves, mx.sym.Variable("im_info"), rpn_pre_nms_top_n=60, rpn_post_nms_top_n=REGIONS, name="rois", **attrs
        )
        hidden = mx.sym.FullyConnected(mx.sym.Flatten(pool(mx, body, rois)), num_hidden=16, name="fc")
        hidden = mx.sym.Activation(hidden, act_type="tanh")
        kinds = mx.sym.Reshape(mx.sym.Variable("label"), shape=(-1,))
        out = mx.sym.SoftmaxOutput(
            mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="cls"), kinds, normalization="batch", name="cls_prob"
        )
        goal = mx.sym.Reshape(mx.sym.Variable("bbox_target"), shape=(-1, 4))
        away = mx.sym.smooth_l1(mx.sym.FullyConnected(hidden, num_hidden=4, name="bbox") - goal, scalar=1.0)
        loss = mx.sym.MakeLoss(away, grad_scale=1.0 / REGIONS, name="bbox_loss")
        return mx.sym.Group([rpn, out, loss, mx.sym.BlockGrad(rois)])

    return symbol


def _region_inputs(draw: np.random.RandomState, images: int) -> dict[str, np.ndarray]:
    return {
        "data": draw.randn(images, 3, 32, 40),
        "im_info": np.tile([[32.0, 40.0, 1.0]], (images, 1)),
        "rpn_label": draw.randint(-1, 2, (images, 4 * 8 * 10)).reshape(images, 32, 10),
        "label": draw.randint(0, CLASSES, (images, REGIONS)),
        "bbox_target": draw.randn(images, REGIONS, 4),
    }


def _aligned(mx: Any, body: Any, rois: Any) -> Any:
    return mx.sym.contrib.ROIAlign(body, rois, pooled_size=(3, 3), spatial_scale=0.25, sample_ratio=2)


def _max_pooled(mx: Any, body: Any, rois: Any) -> Any:
    return mx.sym.ROIPooling(body, rois, pooled_size=(3, 3), spatial_scale=0.25)


def _voted(mx: Any, body: Any, rois: Any) -> Any:
    maps = mx.sym.Convolution(body, kernel=(1, 1), num_filter=12, name="votes")
    return mx.sym.contrib.ROIAlign(maps, rois, pooled_size=(2, 2), spatial_scale=0.25, position_sensitive=True, aligned=False)


TRAININGS: dict[str, dict[str, Any]] = {
    "ssd": {"symbol": ssd_train, "inputs": _ssd_inputs, "labels": ("label",)},
    "faster_rcnn": {
        "symbol": _region_net(_max_pooled, "Proposal"),
        "inputs": lambda draw: _region_inputs(draw, 1),
        "labels": ("rpn_label", "label", "bbox_target"),
    },
    "aligned": {
        "symbol": _region_net(_aligned, "MultiProposal"),
        "inputs": lambda draw: _region_inputs(draw, 2),
        "labels": ("rpn_label", "label", "bbox_target"),
    },
    "position_sensitive": {
        "symbol": _region_net(_voted, "MultiProposal"),
        "inputs": lambda draw: _region_inputs(draw, 2),
        "labels": ("rpn_label", "label", "bbox_target"),
    },
}


def inputs_of(name: str, step: int) -> dict[str, np.ndarray]:
    """Data and labels of one step, by name, float32."""
    made = TRAININGS[name]["inputs"](np.random.RandomState(100 + step))
    return {key: np.asarray(value, np.float32) for key, value in made.items()}


def params_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Where a training starts: weights of about 1 / √(inputs), small biases."""
    draw = np.random.RandomState(7)
    found = {}
    for name in sorted(shapes):
        spread = 1.4 / np.sqrt(np.prod(shapes[name][1:])) if len(shapes[name]) > 1 else 0.1
        found[name] = (draw.randn(*shapes[name]) * spread).astype(np.float32)
    return found


def run(mx: Any, name: str, host: Callable[[Any], np.ndarray]) -> dict[str, np.ndarray]:
    """Train a few steps with Module: outputs of every step and the parameters at the end, by name."""
    case, found = TRAININGS[name], {}
    symbol, first = case["symbol"](mx), inputs_of(name, 0)
    data = [key for key in first if key not in case["labels"]]
    module = mx.mod.Module(symbol, data_names=data, label_names=list(case["labels"]), context=mx.cpu())
    shapes = {key: value.shape for key, value in first.items()}
    module.bind([(key, shapes[key]) for key in data], [(key, shapes[key]) for key in case["labels"]])
    inferred = dict(zip(symbol.list_arguments(), symbol.infer_shape(**shapes)[0]))  # noqa: B905
    start = params_of({key: shape for key, shape in inferred.items() if key not in shapes})
    module.init_params(arg_params={key: mx.nd.array(value) for key, value in start.items()}, aux_params={})
    module.init_optimizer(optimizer="sgd", optimizer_params=dict(OPTIMIZER))
    for step in range(STEPS):
        now = inputs_of(name, step)
        batch = mx.io.DataBatch([mx.nd.array(now[k]) for k in data], [mx.nd.array(now[k]) for k in case["labels"]])
        module.forward(batch, is_train=True)
        found.update({f"out/{step}/{k}": host(out) for k, out in enumerate(module.get_outputs())})
        module.backward()
        module.update()
    found.update({f"param/{key}": host(value) for key, value in module.get_params()[0].items()})
    return found


def detect(mx: Any, params: dict[str, np.ndarray], host: Callable[[Any], np.ndarray]) -> np.ndarray:
    """What the single-shot detector finds with these parameters, without labels."""
    data = inputs_of("ssd", 0)["data"]
    module = mx.mod.Module(ssd_detect(mx), label_names=None, context=mx.cpu())
    module.bind([("data", data.shape)], for_training=False)
    module.init_params(arg_params={key: mx.nd.array(value) for key, value in params.items()}, aux_params={})
    module.forward(mx.io.DataBatch([mx.nd.array(data)], []), is_train=False)
    return host(module.get_outputs()[0])


def recorded(mx: Any) -> dict[str, Any]:
    host = lambda array: array.asnumpy()  # noqa: E731
    files = {f"detection/{name}.npz": run(mx, name, host) for name in TRAININGS}
    ssd = files["detection/ssd.npz"]
    ssd["detected"] = detect(mx, {key[6:]: value for key, value in ssd.items() if key.startswith("param/")}, host)
    return files
