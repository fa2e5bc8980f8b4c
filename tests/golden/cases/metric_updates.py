"""Metrics over several updates, resets and lists of outputs, recorded from MXNet and replayed by jfit."""

from __future__ import annotations

from typing import Any

import numpy as np

# name -> metric, its settings, what its inputs look like
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "acc": ("acc", {}, "classes"),
    "acc_ties": ("accuracy", {}, "ties"),
    "acc_axis": ("acc", {"axis": 2}, "volume"),
    "acc_numbers": ("acc", {}, "numbers"),
    "acc_half": ("acc", {}, "half"),
    "top_k": ("top_k_acc", {"top_k": 2}, "classes"),
    "top_k_many": ("top_k_accuracy", {"top_k": 3}, "classes"),
    "f1": ("f1", {}, "binary"),
    "f1_micro": ("f1", {"average": "micro"}, "binary"),
    "f1_one_class": ("f1", {}, "one_class"),
    "mcc": ("mcc", {}, "binary"),
    "mcc_micro": ("mcc", {"average": "micro"}, "binary"),
    "mcc_one_class": ("mcc", {}, "one_class"),
    "mcc_ties": ("mcc", {"average": "micro"}, "binary_ties"),
    "perplexity": ("perplexity", {"ignore_label": None}, "classes"),
    "perplexity_ignored": ("perplexity", {"ignore_label": 1}, "classes"),
    "perplexity_zero": ("perplexity", {"ignore_label": 0}, "certain"),
    "mae": ("mae", {}, "real"),
    "mse": ("mse", {}, "real"),
    "rmse": ("rmse", {}, "real"),
    "rmse_columns": ("rmse", {}, "columns"),
    "mse_offset": ("mse", {}, "offset"),
    "ce": ("ce", {}, "classes"),
    "ce_eps": ("crossentropy", {"eps": 1e-3}, "certain"),
    "ce_certain": ("ce", {}, "certain"),
    "nll": ("nll_loss", {}, "classes"),
    "nll_alias": ("negativeloglikelihood", {}, "certain"),
    "pearsonr": ("pearsonr", {}, "real"),
    "pearsonr_micro": ("pearsonr", {"average": "micro"}, "real"),
    "pearsonr_offset": ("pearsoncorrelation", {"average": "micro"}, "offset"),
    "pearsonr_columns": ("pearsonr", {}, "columns"),
    "pearsonr_constant": ("pearsonr", {}, "constant"),
    "pcc": ("pcc", {}, "classes"),
    "pcc_binary": ("pcc", {}, "binary"),
    "pcc_one_class": ("pcc", {}, "one_class"),
    "pcc_numbers": ("pcc", {}, "numbers"),
    "pcc_local": ("pcc", {"has_global_stats": False}, "classes"),
    "loss": ("loss", {}, "columns"),
    "torch": ("torch", {}, "real"),
    "caffe": ("caffe", {}, "real"),
    "composite": ("composite", {"metrics": ["acc", "ce", "pcc"]}, "classes"),
}
SIZES = ([7], [1, 4], [3], [5], [6, 2])  # rows of each output, update by update
LOCAL_RESET, RESET = 2, 4  # before these updates


def batches(name: str) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """(labels, outputs) of each update, the same on every machine."""
    draw = np.random.RandomState(sorted(CASES).index(name))
    return [tuple(map(list, zip(*(_pair(CASES[name][2], draw, n) for n in sizes), strict=True))) for sizes in SIZES]


def _pair(kind: str, draw: np.random.RandomState, n: int) -> tuple[np.ndarray, np.ndarray]:
    n = max(n, 2) if kind in ("real", "columns", "offset") else n  # one number has no correlation
    classes = 2 if kind.startswith(("binary", "one")) else 4
    label = draw.randint(0, classes, n)
    score = draw.uniform(0.05, 1, (n, classes))
    if kind in ("ties", "binary_ties"):
        score = np.round(score * 2) / 2 + 0.5
    if kind == "one_class":
        label = np.full(n, n % 2)
    output = score / score.sum(1, keepdims=True)
    if kind == "certain":
        output = np.eye(classes)[draw.randint(0, classes, n)]
    if kind == "numbers":
        output = draw.randint(0, classes, n)
    if kind == "volume":
        label, output = draw.randint(0, 3, (n, 2)), draw.uniform(size=(n, 2, 3))
    if kind in ("real", "offset", "constant"):
        label = draw.normal(size=n) + (300 if kind == "offset" else 0)
        output = np.ones(n) if kind == "constant" else label + draw.normal(size=n)
    if kind == "columns":
        label = draw.normal(size=(n, 3))
        output = label + draw.normal(size=(n, 3))
    return label.astype("float32"), output.astype("float16" if kind == "half" else "float32")


def run(metric_room: Any, array: Any, name: str) -> list[Any]:
    """What a metric says after each update: value, global value, sum, count."""
    kind, settings, _ = CASES[name]
    metric, told = metric_room.create(kind, **settings), []
    for number, (labels, outputs) in enumerate(batches(name)):
        if number == LOCAL_RESET:
            metric.reset_local()
            told.append(_said(metric))
        if number == RESET:
            metric.reset()
            told.append(_said(metric))
        metric.update([array(x) for x in labels], [array(x) for x in outputs])
        told.append(_said(metric))
    return told


def _said(metric: Any) -> list[Any]:
    def numbers(x: Any) -> Any:
        return [float(v) for v in x] if isinstance(x, list) else float(x)

    found = [numbers(metric.get()[1]), numbers(metric.get_global()[1])]
    return found if isinstance(found[0], list) else [*found, numbers(metric.sum_metric), numbers(metric.num_inst)]


def recorded(mx: Any) -> dict[str, Any]:
    """The value of each metric after each update and reset."""
    return {"metric_updates.json": {n: run(mx.metric, lambda x: mx.nd.array(x, dtype=x.dtype), n) for n in CASES}}
