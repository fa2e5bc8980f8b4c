"""The recipes of docs/hosts.md: every block is parsed, and those that this machine can run train in two processes."""

import ast
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

import jfit
from jfit.bench import scaling

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
BASH = [code for kind, code in BLOCKS if kind == "bash"]
# a file of the page is a block whose first lines name it
FILES = {m[1]: code for _, code in BLOCKS if (m := re.match(r"(?:#!/bin/bash\n)?# ([\w.]+\.(?:py|sh|sbatch|yaml))\b", code))}


# from the manual of sbatch, version 23.11
def commands():
    """Yield the words of each command of the shell blocks that a command line parser of this repository or of torch reads."""
    for code in BASH:
        for line in code.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a quoted text of several lines
                words = line.replace("'", "").split()
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words:
                yield words


def test_shell_blocks_are_valid():
    for code in BASH:
        result = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0 and not result.stderr, result.stderr


def test_python_blocks_compile_and_use_names_of_jfit_that_exist():
    for kind, code in BLOCKS:
        if kind == "python":
            ast.parse(code)
    names = set(re.findall(r"\bjfit(?:\.[A-Za-z_]\w*)+", TEXT)) - {"jfit.bench"}
    assert {"jfit.fit", "jfit.distributed.init", "jfit.distributed.is_main"} <= names
    for name in names:
        value = jfit
        for part in name.split(".")[1:]:
            assert hasattr(value, part), name
            value = getattr(value, part)


def test_commands_have_options_that_exist():
    options = set(re.findall(r'add_argument\("(--[\w-]+)"', FILES["train.py"]))
    benchmarks = scripts = 0
    for words in commands():
        if "jfit.bench" in words:
            rest = words[words.index("jfit.bench") + 1 :]
            assert rest[0] == "scaling"
            scaling._parser().parse_args(rest[1:])
            benchmarks += 1
        elif "train.py" in words and words[0] != "gcloud":
            rest = words[words.index("train.py") + 1 :]
            assert {word for word in rest if word.startswith("--")} <= options, words
            scripts += 1
    assert benchmarks >= 3 and scripts >= 6


def test_kubernetes_objects_fit_together():
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(FILES["train.yaml"])
    (jobset,) = yaml.safe_load_all(FILES["jobset.yaml"])
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    workers = jobset["spec"]["replicatedJobs"][0]
    name = jobset["metadata"]["name"]
    for spec, host in ((job["spec"], first), (workers["template"]["spec"], f"{name}-{workers['name']}-0-0.{name}")):
        assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
        (container,) = spec["template"]["spec"]["containers"]
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert env["WORLD_SIZE"] == str(spec["completions"]) and env["MASTER_ADDR"] == host
        (rank,) = (entry for entry in container["env"] if entry["name"] == "RANK")
        assert "job-completion-index" in rank["valueFrom"]["fieldRef"]["fieldPath"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}


def test_messages_of_the_table_are_those_of_jfit():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "jfit").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    table = TEXT.split("## Reading failures")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) >= 6
    for row in rows:
        for message in re.findall(r"`([^`]+)`", row.split("|")[1]):
            words = re.split(r" ?\d[\d.]*(?: s)? ?|…", message)  # numbers are filled in
            if not message.startswith(("Gloo", "NCCL")):
                assert all(part.strip() in source for part in words if len(part) > 8), message


# ------------------------------------------------------------------------------------------------------- recipes that run
STAND_INS = {  # what a launcher sets for the processes that it starts
    "srun": "SLURM_STEP_NODELIST=127.0.0.1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$r SLURM_LOCALID=$r",
    "mpirun": "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_LOCAL_RANK=$r OMPI_COMM_WORLD_LOCAL_SIZE=2",
}


@pytest.fixture
def folder(tmp_path):
    """The files of the page, `python`, and stand-ins for launchers."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    for name, variables in STAND_INS.items():
        script = f"""#!/bin/bash
            while [[ $1 != bash && $1 != python ]]; do shift; done
            trap 'kill "${{pids[@]}}" 2>/dev/null' EXIT TERM
            for r in 0 1; do {variables} "$@" & pids+=($!); done
            for pid in "${{pids[@]}}"; do wait $pid || exit $?; done"""
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    return tmp_path


def variables(folder, **changes):
    base = {k: v for k, v in os.environ.items() if k not in jobs._FOREIGN and not k.startswith(("DMLC_", "SLURM_", "OMPI_"))}
    # python is a link out of its virtual environment, so its packages are named
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    programs = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    base |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "PATH": os.pathsep.join(programs)}
    return base | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"} | changes


def slurm_job():
    """A number of a job of Slurm for which the port that JAX derives from it is free."""
    for number in range(100 + os.getpid() % 3000, 4096):
        with socket.socket() as server:
            if server.connect_ex(("127.0.0.1", 61440 + number)):
                return number
    raise RuntimeError("no port from 61440 on is free")


def train(folder, command, **changes):
    """Run a command until it ends; return its output."""
    process = subprocess.Popen(
        command, cwd=folder, env=variables(folder, **changes), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=jobs.DEADLINE)
    finally:
        if process.poll() is None:
            process.terminate()  # launchers end their processes
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def losses():
    return {}


def test_open_mpi_processes_get_the_variables_of_torchrun(folder):
    # so the rest is what the recipe of torchrun does: the script is not run here
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").write_text(
        '#!/bin/bash\necho "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $@"\n'
    )
    (folder / "bin" / "python").chmod(0o755)
    output = train(folder, ["bash", "mpi.sh", "--epochs", "1"], MASTER_ADDR="127.0.0.1")
    assert sorted(output.splitlines()) == [f"{r} 2 {r} 2 127.0.0.1 train.py --epochs 1" for r in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["plain", "slurm", "torchrun"])
def test_a_recipe_trains_in_two_processes(recipe, folder, losses):
    port = jobs.free_port(10)
    if recipe == "plain":
        output = train(folder, ["bash", "plain.sh", "--epochs", "1"], MASTER_PORT=str(port))
    elif recipe == "slurm":
        job = slurm_job()
        settings = {"SLURM_JOB_ID": str(job), "SLURM_CPUS_PER_TASK": "1", "CHECKPOINT": "run"}
        settings["JAX_COORDINATOR_BIND_ADDRESS"] = f"127.0.0.1:{job + 61440}"
        output = train(folder, ["bash", "train.sbatch", "--epochs", "1"], **settings)
        assert (folder / "run").is_dir()
    else:
        pytest.importorskip("torch", reason="torchrun is part of torch")
        (line,) = (line for code in BASH for line in code.splitlines() if line.startswith("JAX_PLATFORMS=cpu torchrun"))
        assert shutil.which("torchrun", path=variables(folder)["PATH"])
        line = line.replace("--master-port 29500", f"--master-port {port}").replace("--epochs 3", "--epochs 1")
        output = train(folder, ["bash", "-c", f"exec env {line}"])
    found = re.findall(r"(\d+) processes, loss (\d+\.\d+)", output)
    assert len(found) == 1 and found[0][0] == "2", output
    losses[recipe] = found[0][1]
    assert len(set(losses.values())) == 1, losses
