"""`python -m jfit.bench scaling`."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import jfit
from jfit import sym
from jfit.bench import measure, models, report, scaling
from jfit.bench.__main__ import main


@pytest.fixture
def small(tmp_path):
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    path = tmp_path / "small-symbol.json"
    sym.SoftmaxOutput(net, name="softmax").save(str(path))
    return str(path)


def request(model, **changes):
    shapes = {"data": (3,)} if model.endswith("json") else {}
    common = {"model": model, "shapes": shapes, "devices": 1, "batch": 8, "reduce": "psum", "seconds": 0.01, "rounds": 1}
    return common | changes


def test_weak_scaling_multiplies_the_batch_and_strong_scaling_does_not():
    def batches(*options):
        return [r["batch"] for r in scaling.requests(scaling._parser().parse_args(["--devices", "1,4", *options]))]

    assert batches("--batch", "10") == [10, 40]
    assert batches("--batch", "10", "--mode", "strong") == [10, 10]
    assert batches() == [64, 256] and batches("--mode", "strong") == [256, 256]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "1,two"], "--devices is '1,two'; expected numbers"),
        (["--devices", "0"], "expected numbers of at least 1"),
        (["--processes", "two"], "--processes is 'two'; expected numbers"),
        (["--before", "nowhere.json"], "--before is nowhere.json, which is no JSON file of an earlier measurement"),
        (["--model", "vgg"], "'vgg' is neither one of mlp"),
        (["--model", __file__], "needs the shape of a row"),
        (["--shape", "data=a"], "--shape is 'data=a'"),
        (["--shape", "data=784"], "the inputs of mlp have fixed shapes"),
        (["--batch", "0"], "--batch is 0; expected a number of at least 1"),
        (["--rounds", "0"], "--rounds is 0; expected a number of at least 1"),
        (
            ["--json", "/none/out.json"],
            "--json is /none/out.json, which cannot be written: No such file or directory; nothing was",
        ),
        (["--plot", "/"], "--plot is /, which cannot be written: Is a directory; nothing was measured"),
        (["--markdown", f"{__file__}/out.md"], "which cannot be written: Not a directory"),
    ],
)
def test_wrong_options_are_sentences(options, message, capsys):
    assert main(["scaling", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_measurement_has_all_columns(small):
    result = measure.measure(request(small, devices=2))
    assert result["samples_per_s"] == pytest.approx(8 / result["step_s"])
    gradients = 4 * (3 * 4 + 4)  # of a weight and a bias; each of two devices sends half of them twice
    assert result["collectives"] == 1 and gradients <= result["collective_bytes"] < 2 * gradients
    assert result["memory_bytes"] > 2 * gradients
    assert result["step_s"] > 0 and result["host_s"] > 0 and result["compile_s"] >= 0
    text = report.markdown("title", [result], {"cores": 2, "python": "3", "jax": "1", "emulated": True})
    header, _, row = text.splitlines()[-3:]
    assert "collective ms" in header and result["digest"] in row and header.count("|") == row.count("|")


@pytest.mark.repetitions(slow=2)
@pytest.mark.parametrize("name", [n for n in models.MODELS if n != "resnet50"])
@pytest.mark.slow
def test_models_train(name):
    bench = models.load(name)
    rows = bench.rows(4)
    model = jfit.lower(bench.net)
    state = jfit.init_state(model, "sgd", rows)
    _, out = jax.jit(jfit.train_step(model, "sgd"))(state, rows)
    classes = bench.inputs["softmax_label"].high
    assert float(out.loss) == pytest.approx(np.log(classes), rel=0.4)


@pytest.mark.slow
def test_the_command_writes_json_markdown_and_a_plot(small, tmp_path):
    pytest.importorskip("matplotlib")
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "md", "png")}
    options = ["--model", small, "--shape", "data=3", "--devices", "1,2", "--reduce", "ordered", "--mode", "strong"]
    options += ["--batch", "16", "--seconds", "0.01", "--rounds", "1", "--json", files["json"], "--markdown", files["md"]]
    command = [sys.executable, "-m", "jfit.bench", "scaling", *map(str, options), "--plot", str(files["png"])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "[2 of 2]" in result.stderr
    rows = json.loads(files["json"].read_text())["results"]
    assert [row["devices"] for row in rows] == [1, 2]
    assert rows[0]["digest"] == rows[1]["digest"]
    assert files["md"].read_text().startswith("## ") and files["png"].stat().st_size > 1000
