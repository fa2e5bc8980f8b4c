"""Cases of cropping, upsampling, interpolating, average pooling, and of im2col."""

import numpy as np

draw = np.random.RandomState(1)


def normal(*shape):
    return draw.standard_normal(shape).astype("float32")


def case(op, inputs, **attrs):
    return {"op": op, "attrs": attrs, "inputs": inputs}


IMAGE = (2, 3, 7, 8)
CASES = [case("Crop", {"data": normal(*IMAGE)}, num_args=1, **a) for a in [
    {"offset": (1, 2), "h_w": (4, 5)}, {"h_w": (4, 5)}, {"h_w": (3, 3), "center_crop": True, "offset": (1, 1)},
]]  # fmt: skip
CASES += [case("Crop", {"data": normal(*IMAGE), "crop_like": normal(2, 1, 4, 5)}, num_args=2, **a) for a in [
    {"offset": (1, 2)}, {}, {"center_crop": True}, {"h_w": (2, 2)},
]]  # fmt: skip
for scale in (1, 2, 3):
    CASES.append(case("UpSampling", {"arg0": normal(2, 3, 2, 3)}, scale=scale, sample_type="nearest", num_args=1))
for mode, channels in (("concat", 2), ("sum", 3)):
    inputs = {"arg0": normal(2, 3, 2, 4), "arg1": normal(2, channels, 4, 8), "arg2": normal(2, 3, 1, 2)}
    CASES.append(case("UpSampling", inputs, scale=2, sample_type="nearest", num_args=3, multi_input_mode=mode))
for scale in (1, 2, 3, 4):
    side = 2 * scale - scale % 2
    inputs = {"data": normal(2, 3, 2, 3), "weight": normal(3, 1, side, side)}
    CASES.append(case("UpSampling", inputs, scale=scale, sample_type="bilinear", num_filter=3, num_args=2))

RESIZE = "_contrib_BilinearResize2D"
for align in (True, False):
    for height, width in [(7, 6), (2, 3), (1, 1), (4, 5), (8, 1)]:
        CASES.append(case(RESIZE, {"data": normal(1, 2, 4, 5)}, height=height, width=width, align_corners=align))
    for high, wide in [(2.0, 1.5), (0.6, 0.5)]:
        CASES.append(case(RESIZE, {"data": normal(1, 2, 4, 5)}, scale_height=high, scale_width=wide, align_corners=align))
    CASES.append(case(RESIZE, {"data": normal(1, 2, 4, 5), "like": normal(1, 2, 6, 3)}, mode="like", align_corners=align))
for mode in ("odd_scale", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"):
    for shape in [(1, 2, 4, 5), (1, 2, 5, 4)]:
        CASES.append(case(RESIZE, {"data": normal(*shape)}, mode=mode, scale_height=2.0, scale_width=1.5))
for size in [1, (3, 2), 3, (7, 6), (6, 5), (1, 4)]:
    CASES.append(case("_contrib_AdaptiveAvgPooling2D", {"data": normal(2, 3, 6, 5)}, output_size=size))
CASES.append(case("_contrib_AdaptiveAvgPooling2D", {"data": normal(2, 3, 6, 5)}))

for size, windows, attrs in [
    ((4, 5), 12, {"kernel": (2, 2)}),
    ((6, 5), 9, {"kernel": (3, 2), "stride": (2, 1), "dilate": (1, 2), "pad": (1, 0)}),
    ((3, 2), 6, {"kernel": (1, 1), "stride": (1, 1), "dilate": (1, 1), "pad": (0, 0)}),
]:
    taps = int(np.prod(attrs["kernel"]))
    CASES.append(case("im2col", {"data": normal(2, 3, *size)}, **attrs))
    CASES.append(case("col2im", {"data": normal(2, 3 * taps, windows)}, output_size=size, **attrs))
