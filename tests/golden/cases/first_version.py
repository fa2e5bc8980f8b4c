"""Cases of Convolution_v1 and Pooling_v1, the operators of version 0.7."""

import numpy as np

draw = np.random.RandomState(4)


def normal(*shape):
    return draw.standard_normal(shape).astype("float32")


def case(op, inputs, **attrs):
    return {"op": op, "attrs": attrs, "inputs": inputs}


CASES = []
for kind in ("max", "avg", "sum"):
    data = -np.abs(normal(1, 2, 6, 7)) if kind == "max" else normal(1, 2, 6, 7)  # zeros of the padding are largest
    for rounding in ("valid", "full"):
        for kernel, stride, pad in [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 2), (0, 1))]:
            attrs = {"kernel": kernel, "stride": stride, "pad": pad, "pool_type": kind, "pooling_convention": rounding}
            CASES.append(case("Pooling_v1", {"data": data}, **attrs))
    CASES.append(case("Pooling_v1", {"data": data}, kernel=(2, 2), pool_type=kind, global_pool=True))
ties = draw.randint(0, 2, (1, 2, 4, 4)).astype("float32")
CASES.append(case("Pooling_v1", {"data": ties}, kernel=(2, 2), stride=(2, 2)))
for groups in (1, 2):
    inputs = {"data": normal(2, 4, 6, 5), "weight": normal(4, 4 // groups, 3, 2), "bias": normal(4)}
    attrs = {"kernel": (3, 2), "stride": (2, 1), "dilate": (1, 2), "pad": (1, 0), "num_filter": 4, "num_group": groups}
    CASES.append(case("Convolution_v1", inputs, **attrs))
inputs = {"data": normal(1, 2, 4, 4), "weight": normal(3, 2, 3, 3)}
CASES.append(case("Convolution_v1", inputs, kernel=(3, 3), num_filter=3, no_bias=True))
