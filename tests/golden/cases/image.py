"""Cases of _image_* operators.  Random factors have a fixed range of one value; flipped images have even sizes."""

import numpy as np

DRAW = np.random.RandomState(0)
BYTES = DRAW.randint(0, 256, (6, 8, 3)).astype("uint8")
ODD = DRAW.randint(0, 256, (5, 7, 3)).astype("uint8")
GREY = DRAW.randint(0, 256, (4, 6, 1)).astype("uint8")
FLOATS = DRAW.uniform(-20, 280, (6, 8, 3)).astype("float32")
BATCH = DRAW.randint(0, 256, (2, 5, 4, 3)).astype("uint8")
TENSOR = DRAW.uniform(0, 1, (3, 4, 5)).astype("float32")


def _case(op, data, learns=False, **attrs):
    req = {"data": "write" if learns else "null"}
    return {"op": f"_image_{op}", "attrs": attrs, "inputs": {"data": data}, "req": req}


CASES = [_case("to_tensor", x) for x in (BYTES, FLOATS, BATCH, BYTES.astype("int32"))]
for x in (TENSOR, np.stack([TENSOR, 1 - TENSOR])):
    CASES.append(_case("normalize", x, True, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)))
    CASES.append(_case("normalize", x, True, mean=0.1, std=0.5))
CASES.append(_case("normalize", TENSOR[:1], True, mean=(0.1,), std=(2.0,)))
for x in (BYTES, FLOATS, BATCH):
    CASES.append(_case("crop", x, x is FLOATS, x=1, y=2, width=3, height=2))
for x in (BYTES, FLOATS):
    CASES.append(_case("flip_left_right", x, x is FLOATS))
    CASES.append(_case("flip_top_bottom", x, x is FLOATS))
    CASES.append(_case("adjust_lighting", x, x is FLOATS, alpha=(0.5, 0.2, -0.3)))
    for factor in (0.4, 1.7):
        for op in ("brightness", "contrast", "saturation"):
            CASES.append(_case(f"random_{op}", x, x is FLOATS, min_factor=factor, max_factor=factor))
for x in (FLOATS.clip(0, 255), DRAW.uniform(0, 255, (4, 4, 3)).astype("float32")):
    for factor in (0.3, 0.85):
        CASES.append(_case("random_hue", x, True, min_factor=factor, max_factor=factor))
for op in ("brightness", "contrast", "saturation"):
    CASES.append(_case(f"random_{op}", GREY, min_factor=0.5, max_factor=0.5))
for interp in range(5):
    for x, sizes in ((BYTES, ((7, 9), (4, 3), (9, 4))), (ODD, ((3, 3),)), (FLOATS, ((7, 9), (3, 3))), (BATCH, ((7, 9),))):
        for size in sizes:
            CASES.append(_case("resize", x, size=size, interp=interp))
CASES.append(_case("resize", BYTES, size=(4, 3), interp=3))
CASES.append(_case("resize", BYTES, size=(2, 2), interp=3))
CASES.append(_case("resize", BYTES.astype("int32"), size=(4, 3), interp=0))
for x in (BYTES, ODD.transpose(1, 0, 2), GREY):
    CASES.append(_case("resize", x, size=5))
    CASES.append(_case("resize", x, size=3, keep_ratio=True))
    CASES.append(_case("resize", x, size=(3, 4), keep_ratio=True))
