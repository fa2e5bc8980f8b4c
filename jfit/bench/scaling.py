"""How training scales over devices and processes: samples per second, efficiency, and where the time of a step goes.

Each number of devices is measured in a process of its own, because XLA reads the number of emulated CPU devices when it
starts.  With --processes, several processes on this machine measure it together.  A process that a launcher started as one of
several (torchrun, srun, mpirun) starts no others: it joins its job, and measures that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jfit import distributed
from jfit.bench import measure, models, processes, report, torch_ddp
from jfit.distributed.settings import launched
from jfit.step.reduce import RULES

MOST_EMULATED = 64  # CPU devices of one process: each has threads of its own, and compiling takes longer with their number
MOST_PROCESSES = 64  # of one machine; a job that a launcher started may have more
PROBE = "import jax, json; print(json.dumps([jax.default_backend(), jax.device_count()]))"
RESULT_FILES = ("json", "markdown", "append", "plot")  # options with the path of a file that is written


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jfit.bench scaling", description="How training scales over devices.")
    parser.add_argument("--devices", help="numbers of devices, of each process with --processes (default: 1,2,4,8; there: 1)")
    parser.add_argument("--processes", help="numbers of processes, separated by commas; each with the numbers of --devices")
    parser.add_argument(
        "--join", action="store_true", help="join the job of this process; torchrun, srun and mpirun are recognized without it"
    )
    parser.add_argument("--model", default="mlp", help=f"{', '.join(models.MODELS)}, or a symbol.json file (default: mlp)")
    parser.add_argument("--shape", action="append", default=[], help="for a file: shape of a row of an input, data=3,224,224")
    parser.add_argument(
        "--mode", choices=("weak", "strong"), default="weak", help="weak: the batch grows with the devices; strong: it does not"
    )
    parser.add_argument("--reduce", choices=sorted(RULES), default="psum", help="how gradients are reduced (default: psum)")
    parser.add_argument("--batch", type=int, help="rows per device (weak) or in all (strong); default: that of the model")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measured block (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of blocks, of which medians are shown (default: 5)")
    parser.add_argument("--torch", action="store_true", help="also measure torch DDP with gloo (CPU; mlp and resnet20)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the processes of a row (default: 1800)")
    parser.add_argument("--before", type=Path, help="JSON file of an earlier measurement, whose rows come first in the table")
    parser.add_argument("--json", help="write the results to this file, or '-' for the standard output")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--append", type=Path, help="add the table to this Markdown file, in place of one with the same title")
    parser.add_argument("--plot", type=Path, help="draw samples per second and efficiency into this image file")
    return parser


def requests(arguments: argparse.Namespace, joined: int | None = None) -> list[dict[str, Any]]:
    """Return what to measure, a dict for each number of devices (see `jfit.bench.measure.measure`).

    Args:
        arguments: parsed command line.
        joined: number of processes of the job of this process; None: it measures alone, or starts processes.

    Returns:
        List of dicts; in addition "processes" has the number of processes, None for one that is no job.

    Raises:
        ValueError: an option has an invalid value.

    Example:
        >>> [r["batch"] for r in requests(_parser().parse_args(["--devices", "1,2", "--batch", "32"]))]
        [32, 64]
        >>> [r["devices"] for r in requests(_parser().parse_args(["--processes", "1,2", "--devices", "2"]))]
        [2, 4]
    """
    several = joined is not None or arguments.processes is not None
    devices = _counts("devices", arguments.devices or ("1" if several else "1,2,4,8"))
    counts: list[int | None] = list(_counts("processes", arguments.processes)) if arguments.processes else [joined]
    if joined is not None and joined not in counts:
        raise ValueError(f"--processes is {arguments.processes}, but the launcher started {joined} processes; start as many")
    counts = counts if joined is None else [joined]
    for name, value in (("batch", 1 if arguments.batch is None else arguments.batch), ("rounds", arguments.rounds)):
        if value < 1:
            raise ValueError(f"--{name} is {value}; expected a number of at least 1")
    shapes = dict(_shape(text) for text in arguments.shape)
    if shapes and arguments.model in models.MODELS:
        raise ValueError(f"--shape is for models in files; the inputs of {arguments.model} have fixed shapes, so leave it out")
    layouts = [(count, (count or 1) * n) for count in counts for n in devices]
    weak, most = arguments.mode == "weak", max(total for _, total in layouts)
    batch = arguments.batch or models.load(arguments.model, shapes).batch * (1 if weak else most)
    common = {"model": arguments.model, "shapes": shapes, "reduce": arguments.reduce, "seconds": arguments.seconds}
    common |= {"rounds": arguments.rounds}
    return [common | {"processes": p, "devices": n, "batch": batch * n if weak else batch} for p, n in layouts]


def _counts(name: str, text: str) -> list[int]:
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        raise ValueError(f"--{name} is {text!r}; expected numbers separated by commas, such as 1,2,4") from None
    if min(counts) < 1:
        raise ValueError(f"--{name} is {text!r}; expected numbers of at least 1")
    return counts


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.partition("=")
    try:
        return name, tuple(int(size) for size in sizes.split(",") if size)
    except ValueError:
        raise ValueError(f"--shape is {text!r}; expected a name and the sizes of a row, such as data=3,224,224") from None


def run(request: Mapping[str, Any], emulate: bool, timeout: float = 1800.0) -> dict[str, Any]:
    """Measure one number of devices in a new process, or in several that form a job on the loopback interface.

    Args:
        request: see `requests`.
        emulate: whether each process emulates its devices on the CPU.
        timeout: seconds after which the processes are killed.

    Returns:
        The results, by column.

    Raises:
        RuntimeError: a process failed, or did not end in time; the message has the end of its output.
    """
    count = request["processes"] or 1
    own = request["devices"] // count
    name, asked = f"{count} process(es) with {own} device(s)", [dict(request) for _ in range(count)]
    if count > 1:
        coordinator = f"127.0.0.1:{processes.free_port()}"
        for rank, one in enumerate(asked):
            join = {"coordinator": coordinator, "num_processes": count, "rank": rank}
            # the accelerators of this machine are divided; emulated devices are those of each process anyway
            one["join"] = join | ({} if emulate else {"local_devices": [rank * own + i for i in range(own)]})
    commands = [[sys.executable, "-m", "jfit.bench", "measure", json.dumps(one)] for one in asked]
    outputs = processes.run_together(f"the measurement of {name}", commands, [environment(own, emulate)] * count, timeout)
    return json.loads(outputs[0].splitlines()[-1]) | ({"processes": count} if request["processes"] else {})


def environment(devices: int, emulate: bool) -> dict[str, str]:
    """Return the environment variables of a process that measures a number of devices.

    Args:
        devices: number of devices.
        emulate: whether they are emulated on the CPU.

    Example:
        >>> "--xla_force_host_platform_device_count=4" in environment(4, True)["XLA_FLAGS"]
        True
    """
    variables = dict(os.environ)
    if emulate:
        flags = [f for f in variables.get("XLA_FLAGS", "").split() if "force_host_platform_device_count" not in f]
        variables["XLA_FLAGS"] = " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"])
        # Convolutions on CPU round differently with another number of threads, which otherwise grows with the devices.
        variables.setdefault("NPROC", "8")
    return variables


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark from the command line.

    Args:
        arguments: options, see --help.

    Returns:
        Exit status.
    """
    options = _parser().parse_args(arguments)
    options.command = _command(arguments)
    joined = None
    if options.join or launched():
        distributed.init()
        joined = distributed.num_processes()
    try:
        if joined is None or distributed.is_main():
            _check_writable(options)
        todo, before = requests(options, joined), _rows_of(options.before)
        return _started(options, todo, before) if joined is None else _joined(options, todo, before)
    except ValueError as error:
        print(f"jfit.bench: {error}", file=sys.stderr)
        return 2


def _check_writable(options: argparse.Namespace) -> None:
    """Raise ValueError if a file of the results cannot be written, before anything is measured."""
    for name in RESULT_FILES:
        value = getattr(options, name)
        if value is None or value == "-":
            continue
        path = Path(value)
        is_new = not path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise ValueError(f"--{name} is {path}, which cannot be written: {error.strerror}; nothing was measured") from None
        if is_new:
            path.unlink()


def _command(arguments: Sequence[str]) -> str:
    """The command line without the options for files, which do not change what is measured."""
    files, kept, left_out = {f"--{name}" for name in RESULT_FILES}, [], False
    for word in arguments:
        left_out, before = word in files, left_out
        if not (left_out or before or word.split("=")[0] in files):
            kept.append(word)
    return shlex.join(["python", "-m", "jfit.bench", "scaling", *kept])


def _started(options: argparse.Namespace, todo: list[dict[str, Any]], before: list[dict[str, Any]]) -> int:
    """Measure each row in new processes."""
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    backend, present = json.loads(probe.stdout.splitlines()[-1])
    most, most_processes = max(r["devices"] // (r["processes"] or 1) for r in todo), max(r["processes"] or 1 for r in todo)
    if backend == "cpu" and most > MOST_EMULATED:
        raise ValueError(f"--devices has {most}, which threads of the processor would emulate; pass at most {MOST_EMULATED}")
    if most_processes > MOST_PROCESSES:
        problem = (
            f"--processes has {most_processes}, all of which would be started on this machine; pass at most {MOST_PROCESSES}"
        )
        raise ValueError(f"{problem}, or start the benchmark on several hosts with torchrun, srun or mpirun")
    results = []
    for number, request in enumerate(todo):
        _announce(number, len(todo), request)
        if backend != "cpu" and request["devices"] > present:
            print(f"  left out: this machine has {present} device(s)", file=sys.stderr)
            continue
        try:
            results.append(run(request, backend == "cpu", options.timeout))
            if backend == "cpu" and _compares_torch(options, request):
                results[-1]["torch_per_s"] = torch_ddp.samples_per_second(request, timeout=options.timeout)
        except RuntimeError as error:
            print(f"jfit.bench: {error}", file=sys.stderr)
            if before + results:
                _write(options, before + results, machine(backend))
            return 1
        print(f"  {results[-1]['samples_per_s']:,.0f} samples/s", file=sys.stderr, flush=True)
    _write(options, before + results, machine(backend))
    return 0


def _joined(options: argparse.Namespace, todo: list[dict[str, Any]], before: list[dict[str, Any]]) -> int:
    """Measure each row in the processes of a job, of which this one is one; rank 0 prints and writes."""
    results, main_process = [], distributed.is_main()
    for number, request in enumerate(todo):
        if main_process:
            _announce(number, len(todo), request)
        row = measure.measure(request)
        results.append(row)
        if row["platform"] == "cpu" and _compares_torch(options, request):
            row["torch_per_s"] = torch_ddp.samples_per_second(request, timeout=options.timeout)
        if main_process:
            print(f"  {row['samples_per_s']:,.0f} samples/s", file=sys.stderr, flush=True)
    if main_process:
        _write(options, before + results, machine(results[0]["platform"]))
    distributed.shutdown()
    return 0


def _announce(number: int, count: int, request: Mapping[str, Any]) -> None:
    processes = request["processes"]
    devices = f"{request['devices'] // (processes or 1)} device(s)"
    devices = devices if processes is None else f"{processes} process(es) x {devices}"
    title = f"{request['model']}: {devices}, batch {request['batch']}"
    print(f"[{number + 1} of {count}] {title} ...", file=sys.stderr, flush=True)


def _compares_torch(options: argparse.Namespace, request: Mapping[str, Any]) -> bool:
    return options.torch and request["devices"] > 1 and torch_ddp.is_available(options.model)


def _rows_of(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    try:
        return json.loads(path.read_text())["results"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--before is {path}, which is no JSON file of an earlier measurement ({error!r})") from None


def machine(backend: str) -> dict[str, Any]:
    """Describe this machine: processor cores, Python and jax versions, and whether devices are emulated.

    Args:
        backend: platform of jax.

    Example:
        >>> machine("cpu")["emulated"]
        True
    """
    from importlib import metadata

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "jfit")}
    return {"cores": cores, "python": platform.python_version(), "emulated": backend == "cpu", **versions}


def _write(options: argparse.Namespace, results: list[dict[str, Any]], where: dict[str, Any]) -> None:
    subject = options.model + (" over processes" if any("processes" in row for row in results) else "")
    title = f"{subject}, {options.mode} scaling, reduce={options.reduce}"
    text = report.markdown(title, results, where)
    document = json.dumps({"title": title, "machine": where, "results": results}, indent=1)
    print(document if options.json == "-" else text)
    if options.json and options.json != "-":
        Path(options.json).write_text(document)
    if options.markdown:
        options.markdown.write_text(text)
    if options.append:
        old = options.append.read_text() if options.append.exists() else ""
        heading, rest = text.split("\n", 1)
        options.append.write_text(report.with_section(old, f"{heading}\n\n`{options.command}`\n{rest}"))
    if options.plot:
        report.plot(title, results, options.plot)
