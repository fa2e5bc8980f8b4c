"""Cases of normalization per row, of the variants of batch normalization, and of other operators of the nn table."""

import numpy as np

draw = np.random.RandomState(0)


def normal(*shape, dtype="float32"):
    return draw.standard_normal(shape).astype(dtype)


def positive(*shape):
    return draw.uniform(0.5, 2, shape).astype("float32")


def case(op, inputs, aux=None, req=None, skip=(), note=None, **attrs):
    found = {"op": op, "attrs": attrs, "inputs": inputs, "aux": aux or {}, "req": req or {}, "skip": skip}
    return found | ({"note": note} if note else {})


def three(*shape, channels):
    return {"data": normal(*shape), "gamma": normal(channels), "beta": normal(channels)}


def moving(channels):
    return {"moving_mean": normal(channels), "moving_var": positive(channels)}


CASES = [case("InstanceNorm", three(2, 3, *s, channels=3), eps=0.01) for s in [(4,), (4, 5), (2, 2, 2)]]
for groups, shape in [(2, (2, 4, 3)), (1, (2, 4, 3, 3)), (4, (2, 4, 3, 3)), (2, (2, 4, 2, 2, 2))]:
    for shown in (False, True):
        inputs = three(*shape, channels=groups)
        CASES.append(case("GroupNorm", inputs, num_groups=groups, eps=0.01, output_mean_var=shown))
for mode in ("instance", "channel", "spatial"):
    for shape in [(4,), (3, 4)] if mode == "instance" else [(2, 3, 4), (2, 3, 4, 2)]:
        CASES.append(case("L2Normalization", {"data": normal(*shape)}, mode=mode, eps=0.1))
CASES += [case("LRN", {"data": normal(2, 5, 3, 2)}, nsize=n, alpha=0.1, beta=0.5, knorm=1) for n in (1, 3, 5)]
for axes, keep in [((0,), True), ((1, 2), False), ((-1,), True), ((0, 1, 2), False)]:
    CASES.append(case("moments", {"data": normal(2, 3, 4)}, axes=axes, keepdims=keep))

EVAL_IS_GARBAGE = "evaluation leaves the shown statistics as they lie in memory"
number = 0
for op in ("BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm"):
    for shape in [(4, 3, 2, 2), (4, 3)]:
        for fixed in (False, True):
            for stored in (False, True):
                for shown in (False, True):
                    number += 1
                    attrs = {"fix_gamma": fixed, "use_global_stats": stored, "output_mean_var": shown, "eps": 0.01}
                    sync = op == "_contrib_SyncBatchNorm"
                    if sync:
                        attrs["key"] = f"k{number}"
                    # use_global_stats leaves them as they are in training too
                    hidden = [f"{mode}/{i}" for mode in ("eval", "train")[: 1 + stored] for i in (1, 2)]
                    odd = {"skip": hidden, "note": EVAL_IS_GARBAGE} if sync and shown else {}
                    CASES.append(case(op, three(*shape, channels=3), moving(3), **odd, momentum=0.7, **attrs))
for axis in (-1, 0, 2):
    for stored in (False, True):
        inputs, channels = three(4, 3, 5, 2, channels=(4, 3, 5, 2)[axis]), (4, 3, 5, 2)[axis]
        CASES.append(case("BatchNorm", inputs, moving(channels), axis=axis, fix_gamma=False, use_global_stats=stored))
for axis in (-1, 0, 1):
    for shown in (False, True):
        CASES.append(case("LayerNorm", three(3, 4, 5, channels=(3, 4, 5)[axis]), axis=axis, eps=0.01, output_mean_var=shown))
for op in ("softmax", "log_softmax", "softmin"):
    for axis in (0, 1, -1):
        CASES.append(case(op, {"data": normal(2, 3, 4)}, axis=axis, temperature=0.5))
    CASES.append(case(op, {"data": normal(3, 4)}, dtype="float64"))
for axis, lengths, dtype in [(0, (3, 4), "int32"), (1, (2, 4), "int64"), (-1, (2, 3), "int32")]:
    length = draw.randint(0, (2, 3, 4)[axis] + 1, lengths).astype(dtype)
    CASES.append(case("softmax", {"data": normal(2, 3, 4), "length": length}, axis=axis, use_length=True, temperature=3.0))
for mode in ("instance", "channel"):
    for shape in [(2, 3), (2, 3, 4), (2, 3, 4, 2)][mode == "channel" :]:
        CASES.append(case("SoftmaxActivation", {"data": normal(*shape)}, mode=mode))
for kind in ("elu", "gelu", "leaky", "selu"):
    CASES.append(case("LeakyReLU", {"data": 2 * normal(2, 3, 4)}, act_type=kind, slope=0.3))
for shape, slopes in [((4, 3), (3,)), ((2, 3, 4, 2), (3,)), ((4, 3), (1,)), ((4, 3), (1, 1)), ((4, 3), (4, 3))]:
    CASES.append(case("LeakyReLU", {"data": normal(*shape), "gamma": positive(*slopes)}, act_type="prelu"))
for dtype in ("float32", "float16"):
    ids = np.array([[0, 3], [5, -1]], "float32")
    weight = normal(4, 3, dtype=dtype)
    CASES.append(
        case("Embedding", {"data": ids, "weight": weight}, req={"data": "null"}, input_dim=4, output_dim=3, dtype=dtype)
    )
