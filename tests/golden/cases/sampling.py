"""Cases of sampling images at computed positions, of region pooling, and of shifted images."""

import numpy as np

draw = np.random.RandomState(2)


def normal(*shape, scale=1.0):
    return (scale * draw.standard_normal(shape)).astype("float32")


def case(op, inputs, req=None, **attrs):
    return {"op": op, "attrs": attrs, "inputs": inputs, "req": req or {}}


CASES = [case("GridGenerator", {"data": normal(2, 6)}, transform_type="affine", target_shape=s) for s in [(3, 4), (5, 2)]]
CASES += [case("GridGenerator", {"data": normal(*s)}, transform_type="warp") for s in [(2, 2, 3, 4), (1, 2, 5, 2)]]
for scale in (0.5, 1.5):
    CASES.append(case("BilinearSampler", {"data": normal(2, 3, 4, 5), "grid": normal(2, 2, 3, 2, scale=scale)}))
corners = np.array([[[[-1, 0, 1, 1.5]], [[-1, 0, 1, 0]]]], "float32")
CASES.append(case("BilinearSampler", {"data": normal(1, 2, 3, 3), "grid": corners}, cudnn_off=True))
IDENTITY = np.array([[1, 0, 0, 0, 1, 0], [0.5, 0, 0.2, 0, 0.5, -0.2]], "float32")
for size in [(4, 4), (2, 5)]:
    for loc in (normal(2, 6), IDENTITY):
        inputs = {"data": normal(2, 2, 4, 5), "loc": loc}
        CASES.append(case("SpatialTransformer", inputs, target_shape=size, transform_type="affine", sampler_type="bilinear"))

ROIS = [[0, 0, 0, 7, 7], [1, 2.5, 1.5, 5.5, 6.49], [0, 5, 5, 3, 2], [1, -3, -2, 4, 3], [0, 6, 6, 20, 20], [1, 20, 20, 30, 30]]
TIES = draw.randint(-3, 4, (2, 2, 8, 9)).astype("float32")  # the first maximum gets the gradient
for size, scale in [((2, 2), 1.0), ((3, 2), 0.5), ((1, 1), 0.3), ((7, 7), 1.0), ((7, 7), 0.3)]:
    inputs = {"data": TIES, "rois": np.array(ROIS, "float32")}
    CASES.append(case("ROIPooling", inputs, {"rois": "null"}, pooled_size=size, spatial_scale=scale))
inputs = {"data": TIES, "rois": np.array([[-1, 0, 0, 7, 7], [0, 0, 0, 3, 3]], "float32")}
CASES.append(case("ROIPooling", inputs, pooled_size=(2, 2), spatial_scale=1.0))

for attrs in [
    {"max_displacement": 2, "pad_size": 2},
    {"kernel_size": 3, "max_displacement": 2, "stride1": 2, "stride2": 2, "pad_size": 4},
    {"kernel_size": 3, "max_displacement": 1, "stride1": 1, "stride2": 2, "pad_size": 2, "is_multiply": False},
    {"max_displacement": 4, "stride1": 2, "stride2": 2, "pad_size": 4, "is_multiply": False},
    {},
]:
    CASES.append(case("Correlation", {"data1": normal(1, 2, 5, 6), "data2": normal(1, 2, 5, 6)}, **attrs))
levels = [draw.randint(-1, 2, (1, 2, 4, 4)).astype("float32") for _ in range(2)]  # differences of 0
CASES.append(case("Correlation", {"data1": levels[0], "data2": levels[1]}, is_multiply=False, pad_size=1))
