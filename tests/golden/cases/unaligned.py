"""Cases of CTC, of margin losses, and of sparse activations."""

import numpy as np

draw = np.random.RandomState(3)


def case(op, inputs, aux=None, req=None, **attrs):
    return {"op": op, "attrs": attrs, "inputs": inputs, "aux": aux or {}, "req": req or {}}


def ctc(label, steps=4, data_lengths=None, label_lengths=None, **attrs):
    inputs = {"data": draw.standard_normal((steps, 2, 4)), "label": label}
    for name, value in (("data_lengths", data_lengths), ("label_lengths", label_lengths)):
        if value:
            inputs[name] = value
            attrs[f"use_{name}"] = True
    inputs = {name: np.asarray(value, "float32") for name, value in inputs.items()}
    return case("CTCLoss", inputs, req={name: "null" for name in inputs if name != "data"}, **attrs)


CASES = [
    ctc([[1, 2], [2, 1]]),
    # too short for a repeated label
    ctc([[1, 1], [1, 2]], steps=2) | {"skip": ["grad/data"], "note": "MXNet leaves that gradient as it lies in memory"},
    ctc([[1, 2, 3], [1, 2, 3]], steps=3),
    ctc([[0, 0], [1, 0]]),  # nothing to find
    ctc([[1, 0, 2], [2, 2, 0]]),  # labels end at the first 0
    ctc([[1, 1, 1], [2, 2, 0]], steps=6),
    ctc([[0, 1, 2], [1, -1, -1]], blank_label="last"),
    ctc([[0, -1, 2], [1, 1, -1]], blank_label="last"),
    ctc([[1, 2, 3], [2, 2, 3]], steps=6, data_lengths=[6, 6], label_lengths=[3, 2]),
    ctc([[1, 2, 0], [1, 2, 0]], data_lengths=[4, 2]),
    ctc([[1, 2, 3], [1, 2, 3]], data_lengths=[4, 3], label_lengths=[1, 2]),
    ctc([[1, 2, 0], [1, 2, 0]], data_lengths=[4, 3], label_lengths=[1, 2], blank_label="last"),
]
for linear in (False, True):
    for margin, scale in [(1, 1), (0.5, 2.0)]:
        inputs = {"data": draw.standard_normal((4, 3)).astype("float32"), "label": np.array([0, 2, 1, 5], "float32")}
        attrs = {"margin": margin, "regularization_coefficient": scale, "use_linear": linear}
        CASES.append(case("SVMOutput", inputs, req={"label": "null"}, **attrs))
edge = {"data": np.array([[1, -1, 0.5], [1, -1, -1]], "float32"), "label": np.array([0, 0], "float32")}
CASES.append(case("SVMOutput", edge, req={"label": "null"}))
units = {"data": draw.uniform(0.1, 0.9, (4, 3)).astype("float32")}
average = {"moving_avg": draw.uniform(0.2, 0.8, 3).astype("float32")}
CASES.append(case("IdentityAttachKLSparseReg", units, average, sparseness_target=0.2, penalty=0.01, momentum=0.8))
CASES.append(case("IdentityAttachKLSparseReg", units, average))
