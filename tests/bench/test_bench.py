"""`python -m jfit.bench scaling`, on devices and with `--processes`: layouts, processes that fail or hang, jobs of two."""

import json
import os
import subprocess
import sys
import time

import jax
import pytest

from jfit import distributed, sym
from jfit.bench import measure, report
from jfit.bench.__main__ import main
from jfit.bench.processes import run_together
from jfit.distributed.settings import launched


def request(model, **changes):
    shapes = {"data": (3,)} if model.endswith("json") else {}
    common = {"model": model, "shapes": shapes, "devices": 1, "batch": 8, "reduce": "psum", "seconds": 0.01, "rounds": 1}
    return common | changes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "1,two"], "argument --devices: invalid _counts value: '1,two'"),
        (["--before", "nowhere.json"], "No such file or directory: 'nowhere.json'"),
        (["--model", "vgg"], "--model is 'vgg' with --shape {}; expected one of mlp"),
        (["--model", __file__], "a symbol.json file with the shape of a row"),
        (["--shape", "data=784"], "--model is 'mlp' with --shape {'data': (784,)}"),
        (["--json", "/none/out.json"], "No such file or directory: '/none/out.json'; nothing was measured"),
    ],
)
def test_wrong_options_are_sentences(options, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["scaling", *options])
    assert message in capsys.readouterr().err


def test_a_measurement_has_all_columns(small):
    result = measure.measure(request(small, devices=2))
    assert result["samples_per_s"] == pytest.approx(8 / result["step_s"])
    gradients = 4 * (3 * 4 + 4)  # of a weight and a bias; each of two devices sends half of them twice
    assert result["collectives"] == 1 and gradients <= result["collective_bytes"] < 2 * gradients
    assert result["memory_bytes"] > 2 * gradients
    assert result["step_s"] > 0 and result["host_s"] > 0 and result["compile_s"] >= 0
    text = report.markdown("title", [result], {"cores": 2, "python": "3", "jax": "1", "emulated": True, "malloc": "as set"})
    header, _, row = text.splitlines()[-3:]
    assert "collective ms" in header and result["digest"] in row and header.count("|") == row.count("|")


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json_and_a_plot(small, tmp_path):
    pytest.importorskip("matplotlib")
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "png")}
    options = ["--model", small, "--shape", "data=3", "--devices", "1,2", "--reduce", "ordered", "--mode", "strong"]
    options += ["--batch", "16", "--seconds", "0.01", "--rounds", "1", "--json", files["json"]]
    command = [sys.executable, "-m", "jfit.bench", "scaling", *map(str, options), "--plot", str(files["png"])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "[2 of 2]" in result.stderr
    rows = json.loads(files["json"].read_text())["results"]
    assert [row["devices"] for row in rows] == [1, 2]
    assert rows[0]["digest"] == rows[1]["digest"]
    assert result.stdout.startswith("## ") and files["png"].stat().st_size > 1000


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    path = tmp_path_factory.mktemp("model") / "small-symbol.json"
    sym.SoftmaxOutput(net, name="softmax").save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1"}, True),
        ({"WORLD_SIZE": "1", "RANK": "0"}, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, True),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, False),  # the shell of sbatch, which starts the processes
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, True),
    ],
)
def test_processes_of_a_launcher_are_recognized(variables, expected):
    assert (launched(variables) is not None) is expected


def test_processes_of_a_launcher_that_jax_does_not_know_are_an_error(monkeypatch):
    def initialize(*args, **options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # of Open MPI 5
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(distributed.JobError, match="OMPI_COMM_WORLD_SIZE is 2, so a launcher started this process as one of"):
        main(["scaling"])
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    distributed.init()
    assert distributed.num_processes() == 1


def python(code):
    return [sys.executable, "-c", code]


def test_a_failed_process_is_reported_with_its_output_and_the_others_end(monkeypatch):
    monkeypatch.setattr("jfit.bench.processes.GRACE", 0.2)
    commands = [python("import time; time.sleep(600)"), python("raise SystemExit('no such device')")]
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)^it failed: process 1 ended with status 1\n--- process 1:\nno such device$"):
        run_together("it", commands, [dict(os.environ)] * 2, 300.0)
    assert time.monotonic() - start < 60


def test_a_process_that_does_not_end_is_reported(tmp_path):
    (tmp_path / "pid").touch()
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    commands = [python(script), python("print(1)")]
    with pytest.raises(RuntimeError, match=r"it failed: process\(es\) 0 had not ended after 3 s"):
        run_together("it", commands, [dict(os.environ)] * 2, 3.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
