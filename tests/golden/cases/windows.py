"""Cases of convolution and pooling in one and three dimensions and in all layouts."""

import numpy as np

draw = np.random.RandomState(5)


def normal(*shape):
    return draw.standard_normal(shape).astype("float32")


def case(op, inputs, **attrs):
    return {"op": op, "attrs": attrs, "inputs": inputs}


CASES = []
for kernel, more, size in [
    ((3,), {"stride": (2,), "pad": (1,)}, (7,)),
    ((3, 2), {"stride": (2, 1), "dilate": (1, 2), "pad": (1, 0)}, (6, 5)),
]:
    for groups in (1, 2):
        data, attrs = normal(2, 4, *size), {"kernel": kernel, "num_filter": 4, "num_group": groups, **more}
        weight = normal(4, 4 // groups, *kernel)
        CASES.append(case("Convolution", {"data": data, "weight": weight, "bias": normal(4)}, **attrs))
        CASES.append(case("Deconvolution", {"data": data, "weight": weight}, **attrs))
inputs = {"data": normal(2, 4, 3, 2, 4), "weight": normal(4, 2, 2, 1, 2), "bias": normal(4)}
CASES.append(case("Convolution", inputs, kernel=(2, 1, 2), dilate=(1, 1, 2), num_filter=4, num_group=2))
for attrs in [{"adj": (1, 0), "pad": (1, 1)}, {"target_shape": (6, 7), "pad": (5, 5), "adj": (1, 1)}]:
    inputs = {"data": normal(1, 3, 3, 4), "weight": normal(3, 2, 3, 3), "bias": normal(2)}
    CASES.append(case("Deconvolution", inputs, kernel=(3, 3), stride=(2, 2), num_filter=2, no_bias=False, **attrs))

SHAPES = [
    ("NCW", (3,), (2,), (1,), (1, 2, 6)),
    ("NHWC", (3, 3), (2, 2), (0, 0), (1, 6, 6, 2)),
    ("NDHWC", (2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 3, 3, 3, 2)),
]
KINDS = [("max", {}), ("sum", {}), ("avg", {"count_include_pad": False}), *(("lp", {"p_value": p}) for p in (1, 2, 3))]
for kind, more in KINDS:
    for layout, kernel, stride, pad, shape in SHAPES:
        attrs = {"pool_type": kind, "layout": layout, "pooling_convention": "full", **more}
        CASES.append(case("Pooling", {"data": np.abs(normal(*shape))}, kernel=kernel, stride=stride, pad=pad, **attrs))
    CASES.append(case("Pooling", {"data": np.abs(normal(1, 5, 2))}, pool_type=kind, layout="NWC", global_pool=True, **more))
