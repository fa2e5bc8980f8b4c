"""A single-shot detector of squares: anchors, matched targets, two losses, an iterator and a metric of its own."""

import logging

import mxnet as mx
import numpy as np

logging.basicConfig(level=logging.INFO)
rng = np.random.RandomState(1)


class SquaresIter(mx.io.DataIter):
    """Images with one bright square, and labels (class, left, top, right, bottom), -1 where there is none."""

    def __init__(self, count, batch_size):
        super().__init__(batch_size)
        self.images = rng.uniform(0, 0.2, (count, 3, 32, 32)).astype("float32")
        self.labels = -np.ones((count, 2, 5), "float32")
        for image, label in zip(self.images, self.labels):
            kind, (x, y), side = rng.randint(2), rng.randint(0, 16, 2), rng.randint(8, 16)
            image[kind, y : y + side, x : x + side] += 0.8
            label[0] = [kind, x / 32, y / 32, (x + side) / 32, (y + side) / 32]
        self.provide_data = [mx.io.DataDesc("data", (batch_size, 3, 32, 32))]
        self.provide_label = [mx.io.DataDesc("label", (batch_size, 2, 5))]
        self.reset()

    def reset(self):
        self.start = 0

    def next(self):
        if self.start + self.batch_size > len(self.images):
            raise StopIteration
        part = slice(self.start, self.start + self.batch_size)
        self.start = part.stop
        return mx.io.DataBatch([mx.nd.array(self.images[part])], [mx.nd.array(self.labels[part])], pad=0)


class MultiBoxMetric(mx.metric.EvalMetric):
    def __init__(self):
        super().__init__("MultiBox")

    def reset(self):
        self.total, self.count = np.zeros(2), 0

    reset_local = reset

    def update(self, labels, preds):
        probability, offsets, target = (p.asnumpy() for p in preds[:3])
        used = np.where(target.ravel() >= 0)[0]
        rows = probability.transpose(0, 2, 1).reshape(-1, probability.shape[1])
        self.total += [-np.log(rows[used, target.ravel()[used].astype(int)] + 1e-8).sum(), offsets.sum()]
        self.count += len(used)

    def get(self):
        return ["CrossEntropy", "SmoothL1"], [float(t) / max(self.count, 1) for t in self.total]


def detector(num_classes):
    body, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    for i, filters in enumerate((8, 16)):
        body = mx.sym.Convolution(body, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"conv{i}")
        body = mx.sym.Pooling(mx.sym.Activation(body, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    anchors = mx.sym.contrib.MultiBoxPrior(body, sizes=(0.3, 0.45), ratios=(1, 2), clip=True, name="anchors")
    classes = mx.sym.Convolution(body, kernel=(3, 3), pad=(1, 1), num_filter=3 * (num_classes + 1), name="cls")
    classes = mx.sym.Reshape(mx.sym.transpose(classes, axes=(0, 2, 3, 1)), shape=(0, -1, num_classes + 1))
    classes = mx.sym.transpose(classes, axes=(0, 2, 1))
    boxes = mx.sym.Convolution(body, kernel=(3, 3), pad=(1, 1), num_filter=12, name="loc")
    boxes = mx.sym.Flatten(mx.sym.transpose(boxes, axes=(0, 2, 3, 1)))
    target = mx.sym.contrib.MultiBoxTarget(
        anchors, label, classes, overlap_threshold=0.5, negative_mining_ratio=3, negative_mining_thresh=0.5, name="target"
    )
    probability = mx.sym.SoftmaxOutput(
        classes, target[2], ignore_label=-1, use_ignore=True, multi_output=True, normalization="valid", name="cls_prob"
    )
    distance = mx.sym.smooth_l1(target[1] * (boxes - target[0]), scalar=1.0)
    distance = mx.sym.MakeLoss(distance, normalization="valid", name="loc_loss")
    found = mx.sym.contrib.MultiBoxDetection(probability, boxes, anchors, nms_threshold=0.45, nms_topk=10, name="detection")
    shown = [mx.sym.MakeLoss(target[2], grad_scale=0, name="cls_label"), mx.sym.MakeLoss(found, grad_scale=0, name="det_out")]
    return mx.sym.Group([probability, distance, *shown])


net, train, val = detector(2), SquaresIter(32, 8), SquaresIter(16, 8)
print(net.list_outputs())
shapes, outs, _ = net.infer_shape(data=(8, 3, 32, 32), label=(8, 2, 5))
print(outs)
init = np.random.RandomState(2)
arg_params = {
    n: mx.nd.array(init.normal(0, 0.1, s)) for n, s in zip(net.list_arguments(), shapes) if n not in ("data", "label")
}
mod = mx.mod.Module(net, label_names=("label",), fixed_param_names=["conv0_bias"])
mod.fit(
    train,
    val,
    eval_metric=MultiBoxMetric(),
    validation_metric=MultiBoxMetric(),
    batch_end_callback=mx.callback.Speedometer(8, 2),
    arg_params=arg_params,
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.05, "momentum": 0.9, "wd": 5e-4, "rescale_grad": 1.0},
    num_epoch=3,
)
boxes = mod.predict(val)[3]
print(boxes.shape, boxes[0, :3].asnumpy().round(3).tolist())
