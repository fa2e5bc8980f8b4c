"""Eight-bit operator cases, recorded with MXNET_MKLDNN_ENABLED=1: MXNet's CPU build runs most of them only through oneDNN."""

import numpy as np

DRAW = np.random.RandomState(0)


def _f(*shape, low=-2.0, high=3.0):
    return DRAW.uniform(low, high, shape).astype("float32")


def _i8(*shape):
    return DRAW.randint(-127, 128, shape).astype("int8")


def _u8(*shape):
    return DRAW.randint(0, 256, shape).astype("uint8")


def _one(value):
    return np.array([value], "float32")


def _case(op, inputs, skip=(), **attrs):
    floats = dict.fromkeys(inputs, "null")
    return {
        "op": f"_contrib_{op}",
        "attrs": attrs,
        "inputs": inputs,
        "req": floats,
        "skip": skip,
        "named": op == "quantized_batch_norm" or "no_bias" in attrs,
    }


CASES = []
HALVES = np.array([[-127.0, -4.5, -3.5, -0.5, 0.5, 1.5, 2.5, 126.0]], "float32")
for kind in ("int8", "uint8"):
    for low, high in ((-2.0, 3.0), (-4.0, 1.0), (0.0, 2.5)):
        CASES += [
            _case("quantize", {"data": _f(3, 4), "min_range": _one(low), "max_range": _one(high)}, out_type=kind),
            _case("quantize_v2", {"data": _f(3, 4)}, out_type=kind, min_calib_range=low, max_calib_range=high),
        ]
    CASES += [
        _case("quantize", {"data": HALVES, "min_range": _one(-127), "max_range": _one(127)}, out_type=kind),
        _case("quantize_v2", {"data": HALVES}, out_type=kind),
        _case("quantize_v2", {"data": _f(3, 4)}, out_type=kind),
        _case("quantize_v2", {"data": _f(3, 4, low=0.5)}, out_type=kind),
    ]
for low in (-1.0, 0.0):
    CASES.append(_case("quantize_v2", {"data": _f(3, 4)}, out_type="auto", min_calib_range=low, max_calib_range=2.0))
CASES.append(_case("quantize_v2", {"data": _f(3, 4, low=0.5)}, out_type="auto"))
CASES.append(_case("quantize_v2", {"data": _u8(3, 4)}, out_type="uint8"))
CASES.append(_case("quantize_v2", {"data": _i8(3, 4)}, out_type="auto"))
for data in (_i8(3, 4), _u8(3, 4)):
    for low, high in ((-2.0, 3.0), (-4.0, 1.0), (0.0, 2.5)):
        CASES.append(_case("dequantize", {"data": data, "min_range": _one(low), "max_range": _one(high)}))
SUMS = (DRAW.randint(-(2**22), 2**22, (3, 5))).astype("int32")
for kind in ("int8", "uint8", "auto"):
    inputs = {"data": SUMS, "min_range": _one(-900), "max_range": _one(1000)}
    CASES.append(_case("requantize", inputs, out_type=kind))
    for low, high in ((-1.0, 1.5), (0.0, 2.5)):
        CASES.append(_case("requantize", inputs, out_type=kind, min_calib_range=low, max_calib_range=high))


def _ranges(**ranges):
    return {f"{end}_{name}": _one(value) for name, pair in ranges.items() for end, value in zip(("min", "max"), pair)}  # noqa: B905


for data in (_i8(2, 6), _u8(2, 6)):
    for bound in ((-2.0, 1.0), (-0.07, 0.013)):
        bias = {"data": data, "weight": _i8(3, 6), "bias": _i8(3)}
        ends = _ranges(data=(-1.0, 0.7), weight=(-0.3, 0.5), bias=bound)
        CASES.append(_case("quantized_fully_connected", bias | ends, num_hidden=3))
    bare = {"data": data.reshape(2, 2, 3), "weight": _i8(3, 6)} | _ranges(data=(-1.0, 0.7), weight=(-0.3, 0.5))
    CASES.append(_case("quantized_fully_connected", bare, num_hidden=3, no_bias=True))
IMAGE = _u8(2, 2, 5, 4)
for more in ({}, {"pad": (1, 1)}, {"stride": (2, 1), "pad": (1, 0)}):
    given = {"data": IMAGE, "weight": _i8(3, 2, 3, 3), "bias": _i8(3)}
    ends = _ranges(data=(0.0, 1.0), weight=(-0.3, 0.5), bias=(-1.0, 2.0))
    CASES.append(_case("quantized_conv", given | ends, kernel=(3, 3), num_filter=3, **more))
bare = {"data": IMAGE, "weight": _i8(3, 2, 1, 1)} | _ranges(data=(-1.0, 1.0), weight=(-0.3, 0.5))
CASES.append(_case("quantized_conv", bare, kernel=(1, 1), num_filter=3, no_bias=True))
for data in (_i8(2, 2, 5, 4), IMAGE):
    given = {"data": data} | _ranges(data=(-1.0, 2.0))
    for kind in ("max", "avg"):
        CASES.append(_case("quantized_pooling", given, pool_type=kind, kernel=(2, 2), stride=(2, 2)))
        CASES.append(_case("quantized_pooling", given, pool_type=kind, kernel=(3, 3), stride=(2, 2), pad=(1, 1)))
        CASES.append(_case("quantized_pooling", given, pool_type=kind, kernel=(2, 2), stride=(2, 2), pooling_convention="full"))
        CASES.append(_case("quantized_pooling", given, pool_type=kind, kernel=(1, 1), global_pool=True))
    CASES.append(_case("quantized_flatten", given))
    norm = {"data": data, "gamma": _f(2, low=0.5), "beta": _f(2)} | _ranges(data=(-1.0, 2.0))
    for fixed in (False, True) if data.dtype == np.int8 else ():
        case = _case("quantized_batch_norm", norm, min_calib_range=-4.0, max_calib_range=5.0, fix_gamma=fixed)
        CASES.append(case | {"aux": {"moving_mean": _f(2), "moving_var": _f(2, low=0.5)}})
    for more in ({}, {"min_calib_range": -1.5, "max_calib_range": 2.0}):
        pair = {"lhs": data, "rhs": data[::-1].copy()}
        ends = {"lhs_min": _one(-1), "lhs_max": _one(0.5), "rhs_min": _one(-2), "rhs_max": _one(1)}
        CASES.append(_case("quantized_elemwise_add", pair | ends, **more))
        if data.dtype == np.int8:
            CASES.append(_case("quantized_elemwise_mul", pair | ends, **more))
            CASES.append(_case("quantized_elemwise_mul", pair | ends, enable_float_output=True, **more))
CASES.append(
    _case(
        "quantized_elemwise_add",
        {"lhs": _i8(2, 6), "rhs": _u8(2, 6), "lhs_min": _one(-1), "lhs_max": _one(1), "rhs_min": _one(0), "rhs_max": _one(2)},
        min_calib_range=-1.0,
        max_calib_range=2.0,
    )
)
CASES.append(_case("quantized_act", {"data": _i8(2, 6)} | _ranges(data=(-1.0, 2.0)), act_type="relu"))
CASES.append(
    _case(
        "quantized_embedding",
        {"data": np.array([0, 2, 1, 5], "float32"), "weight": _i8(3, 6), **_ranges(weight=(-1.0, 2.0))},
        input_dim=3,
        output_dim=6,
    )
)
for left, right in ((_i8(2, 3), _i8(2, 2)), (_u8(2, 3), _u8(2, 2)), (_i8(2, 3), _u8(2, 2))):
    arrays = {"arg0": left, "arg1": right}
    ends = {"arg0_min": _one(-1), "arg0_max": _one(0.5), "arg1_min": _one(0), "arg1_max": _one(2)}
    CASES.append(_case("quantized_concat", arrays | ends, num_args=2, dim=1))
