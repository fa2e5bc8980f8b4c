"""The benchmark of accelerators: its formulas, its page, and a short run on a CPU."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.accelerator import __main__ as accelerator
from benchmarks.accelerator import page
from benchmarks.accelerator.networks import NETWORKS, flops, small


def test_model_flops_are_those_of_the_papers():
    # 4.09 billion multiplications with the last layer of 1,000 classes in place of 10 (He et al. 2015; stride in the 3 x 3)
    assert flops(NETWORKS["resnet50"]) / 6 + 990 * 2048 == pytest.approx(4.089e9, rel=1e-3)
    gpt = NETWORKS["gpt"]
    weights = 12 * 12 * 768**2 + 768 * 50_304  # 6 FLOPs for each weight and token, and those of attention
    assert flops(gpt) / 1024 == pytest.approx(6 * weights + 6 * 12 * 1025 * 768, rel=1e-12)
    whole = dataclasses.replace(gpt, causal=False)
    assert flops(whole) / 1024 == pytest.approx(6 * weights + 12 * 12 * 1024 * 768, rel=1e-12)
    assert flops(NETWORKS["mlp"]) == 6 * (784 * 128 + 128 * 64 + 640)


def test_the_sizes_are_those_of_their_names():
    gpt, bert = NETWORKS["gpt"], NETWORKS["bert"]
    layers = 12 * (12 * 768**2 + 13 * 768) + 2 * 768  # weights, biases, norms
    assert (50_304 + 1024) * 768 + layers == pytest.approx(124e6, rel=0.01)
    assert (30_528 + 128) * 768 + layers == pytest.approx(109e6, rel=0.01)  # BERT-base, without its further embeddings
    assert gpt.causal and not bert.causal and bert.dtype == gpt.dtype == NETWORKS["resnet50"].dtype == "bfloat16"


def test_words_are_masked_for_an_encoder():
    words, labels = small(NETWORKS["bert"]).resized(200).arrays()
    hidden = words != labels
    assert (
        words.shape == labels.shape and 0.1 < hidden.mean() < 0.2 and (words[hidden] == small(NETWORKS["bert"]).words - 1).all()
    )


@pytest.fixture
def result():
    def record(rate, **changes):
        values = {"rates": [rate, 2 * rate, rate], "parameters": 7, "learned": True, "metric": 3.0, "last": 2.0}
        return values | {"device": "A100", "peak_mb": 1e4, "start_s": 9.5, "versions": {"jax": "1.0"}} | changes

    matmul = {"device": "A100", "platform": "gpu", "size": 8192, "rates": {"bfloat16": 2e14, "float32": 1e14}}
    legs = {"jfit": record(60.0), "function": record(97.0), "hand": record(100.0, learned=False)}
    legs |= {"compile": {"missing": "torch is not installed"}, "torch": record(50.0, device="cpu", parameters=8)}
    gpt = {"network": "gpt", "title": "GPT", "batch": 16, "dtype": "bfloat16", "flops": 1e12, "steps": 4, "legs": legs}
    machine = {"processor": "A", "cores": 2, "system": "Linux"}
    head = {"machine": machine, "matmul": matmul, "quick": False, "attention": "cudnn", "date": "2026-01-01", "note": ""}
    return head | {"runs": [gpt]}


def test_the_page_compares_the_function_and_divides_by_the_rate_of_the_dtype(result):
    text = page.markdown(result, {leg: entry.title for leg, entry in accelerator.legs("cudnn").items()})
    assert "200 TFLOP/s in bfloat16 and 100 TFLOP/s in float32" in text and '"cudnn"' in text
    share = text.split("## Share")[1].split("##")[0]
    assert "| hand-written JAX | 50.0% |" in share and "| jfit.fit | 30.0% |" in share
    assert "- gpt: 0.97 times the speed of hand-written JAX, bar 0.97: met" in text
    assert "- gpt: 0.48 of the rate of products, bar 0.45: met" in text
    assert "most memory of the device" in text and "| torch eager | 1.94 |" in text


def test_the_page_names_what_is_missing_did_not_learn_or_ran_elsewhere(result):
    remarks = page.markdown(result, {leg: entry.title for leg, entry in accelerator.legs("xla").items()}).split("## Remarks")[1]
    assert "gpt: torch.compile: torch is not installed" in remarks
    assert "hand-written JAX **did not learn**: 3.000, then 2.000" in remarks
    assert "torch eager **ran on cpu**" in remarks and "; 8 in torch eager" in remarks


def test_an_accelerator_is_needed_unless_the_run_is_quick(monkeypatch):
    monkeypatch.setattr(accelerator, "matmul", lambda quick: {"platform": "cpu"})
    with pytest.raises(SystemExit, match="JAX finds no accelerator here; pass --quick"):
        accelerator.main([])
    with pytest.raises(SystemExit):
        accelerator.main(["--quick", "--legs", "jfit,none"])


@pytest.mark.slow  # starts six processes
def test_a_short_run_measures_the_same_networks(tmp_path):
    nets = ["--network", "bert", "--network", "mlp"]
    accelerator.main(["--quick", *nets, "--legs", "jfit,function,hand", "--name", "x", "--folder", str(tmp_path)])
    bert, mlp = json.loads((tmp_path / "x.json").read_text())["runs"]
    assert list(bert["legs"]) == ["jfit", "function", "hand"] and list(mlp["legs"]) == ["jfit", "hand"]
    for run, count in ((bert, 15_328), (mlp, 109_386)):
        for record in run["legs"].values():
            assert record["parameters"] == count and record["rates"][0] > 0 and record["device"] == "cpu"
            assert record["peak_mb"] > 50 and 0.2 < record["start_s"] < 600
    assert "## Share of the rate of matrix products" in (tmp_path / "x.md").read_text()
