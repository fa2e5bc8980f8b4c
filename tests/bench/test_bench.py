"""`python -m jfit.bench scaling`, on devices and with `--processes`: layouts, processes that fail or hang, jobs of two."""

import contextlib
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jobs
import numpy as np
import pytest

import jfit
from jfit import distributed, sym
from jfit.bench import measure, models, report, scaling
from jfit.bench.__main__ import main
from jfit.bench.processes import run_together
from jfit.distributed import job
from jfit.distributed.settings import launched


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


def test_hosts_whose_own_name_is_a_loopback_address_are_reached_by_another_one(monkeypatch):
    class Probe(contextlib.nullcontext):
        def connect(self, address):
            assert not address[0].startswith("127.")

        def getsockname(self):
            return "10.1.2.3", 5

        __enter__ = lambda self: self  # noqa: E731

    assert job._address_of("no-such-host.invalid") == "127.0.0.1"
    monkeypatch.setattr(job.socket, "socket", lambda *kind: Probe())
    assert job._outward_address("10.0.0.7") == "10.0.0.7"
    assert job._outward_address("127.0.1.1") == "10.1.2.3"


def test_rows_that_were_measured_are_written_when_a_later_one_fails(monkeypatch, tmp_path, capsys):
    def run(request, emulate, timeout):
        if request["processes"] == 2:
            raise RuntimeError("the measurement of 2 process(es) with 1 device(s) failed: process 1 ended with status 3")
        row = {"devices": 1, "processes": 1, "batch": 64, "samples_per_s": 10.0, "step_s": 1.0, "compile_s": 1.0, "digest": "d"}
        return row | {"device": "cpu"}

    probe = subprocess.CompletedProcess([], 0, stdout='["cpu", 1]\n')
    monkeypatch.setattr(scaling.subprocess, "run", lambda *a, **k: probe)
    monkeypatch.setattr(scaling, "run", run)
    page = tmp_path / "page.md"
    page.write_text("# Results\n\n## mlp over processes, weak scaling, reduce=psum\n\nold\n\n## Other\n\nkept\n")
    assert main(["scaling", "--processes", "1,2", "--append", str(page)]) == 1
    assert "process 1 ended with status 3" in capsys.readouterr().err
    text = page.read_text()
    assert "| 1 x 1 | 64 | 10 |" in text and "old" not in text and text.endswith("## Other\n\nkept\n")
    assert "`python -m jfit.bench scaling --processes 1,2`" in text


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


def test_processes_with_different_parameters_are_an_error(monkeypatch):
    monkeypatch.setattr(measure, "digest", lambda state, devices: "a")
    monkeypatch.setattr(distributed, "exchange", lambda value, name: [value, "b"])
    with pytest.raises(RuntimeError, match=r"different parameters after 3 steps \(rank 0: a, rank 1: b\)"):
        measure._digest_of_all(SimpleNamespace(state=None, devices=[]))


OPTIONS = ["--shape", "data=3", "--mode", "strong", "--batch", "16", "--seconds", "0.02", "--rounds", "1"]


@pytest.fixture(scope="module")
def measured(small, tmp_path_factory):
    """The result of the command that starts two processes with one device each."""
    path = tmp_path_factory.mktemp("out") / "two.json"
    command = [sys.executable, "-m", "jfit.bench", "scaling", "--model", small, *OPTIONS, "--processes", "2"]
    result = subprocess.run([*command, "--json", path, "--timeout", "200"], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert "2 process(es) x 1 device(s), batch 16" in result.stderr and "| 2 x 1 |" in result.stdout
    return path


SCRIPT = """
    import sys

    import jax

    import jobs
    from jfit.bench.__main__ import main

    status = main(["scaling", *sys.argv[1:]])
    jobs.report(status=status, processes=jax.process_count())
"""


@pytest.mark.slow
def test_a_job_of_a_launcher_is_measured_with_the_same_columns(small, measured, tmp_path):
    files = {name: tmp_path / f"both.{name}" for name in ("json", "md")}
    arguments = ["--model", small, *OPTIONS, "--processes", "2", "--before", measured]
    arguments += ["--json", files["json"], "--markdown", files["md"]]
    job = jobs.run_job(SCRIPT, 2, 1, folder=tmp_path / "job", arguments=list(map(str, arguments)))
    assert [values["status"] for values in job.values] == [0, 0]
    assert [values["processes"] for values in job.values] == [2, 2]
    assert "| 2 x 1 |" in job[0].out and "| 2 x 1 |" not in job[1].out and "samples/s" not in job[1].err
    started, joined = json.loads(files["json"].read_text())["results"]
    assert set(started) == set(joined)
    assert started["digest"] == joined["digest"]
    for row in (started, joined):
        assert row["samples_per_s"] == pytest.approx(16 / row["step_s"])
        gradients = 4 * (3 * 4 + 4)  # of a weight and a bias; each of two devices sends half of them twice
        assert row["collectives"] == 1 and gradients <= row["collective_bytes"] < 2 * gradients
        assert row["memory_bytes"] > 2 * gradients and "collective_s" in row and row["host_s"] > 0
        assert (row["processes"], row["devices"], row["hosts"]) == (2, 2, 1)
