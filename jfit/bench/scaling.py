"""How training scales over devices and processes: samples per second, efficiency, and where the time of a step goes.

Each number of devices is measured in a process of its own, because XLA reads the number of emulated CPU devices when it
starts.  With --processes, several processes on this machine measure it together.  A process that a launcher started as one of
several (torchrun, srun, mpirun) starts no others: it joins its job, and measures that.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from jfit import allocator, distributed
from jfit.bench import measure, models, processes, report
from jfit.distributed.settings import launched
from jfit.platforms import cores
from jfit.step.reduce import RULES

MOST_EMULATED = 64  # CPU devices of one machine: each has threads of its own, and compiling takes longer with their number
PROBE = "import jax, json; print(json.dumps([jax.devices()[0].platform, jax.device_count()]))"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jfit.bench scaling", description="How training scales over devices.")
    parser.add_argument(
        "--devices", type=_counts, help="numbers of devices, of each process with --processes (default: 1,2,4,8; there: 1)"
    )
    parser.add_argument(
        "--processes", type=_counts, help="numbers of processes, separated by commas; each with the numbers of --devices"
    )
    parser.add_argument(
        "--join", action="store_true", help="join the job of this process; torchrun, srun and mpirun are recognized without it"
    )
    parser.add_argument("--model", default="mlp", help=f"{', '.join(models.MODELS)}, or a symbol.json file (default: mlp)")
    parser.add_argument(
        "--shape", type=_shape, action="append", default=[], help="for a file: shape of a row of an input, data=3,224,224"
    )
    parser.add_argument(
        "--mode", choices=("weak", "strong"), default="weak", help="weak: the batch grows with the devices; strong: it does not"
    )
    parser.add_argument("--reduce", choices=sorted(RULES), default="psum", help="how gradients are reduced (default: psum)")
    parser.add_argument("--batch", type=int, help="rows per device (weak) or in all (strong); default: that of the model")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measured block (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of blocks, of which medians are shown (default: 5)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the processes of a row (default: 1800)")
    parser.add_argument("--before", type=Path, help="JSON file of an earlier measurement, whose rows come first in the table")
    parser.add_argument("--json", help="write the results to this file, or '-': to the standard output instead of a table")
    parser.add_argument("--plot", help="draw samples per second and efficiency into this image file")
    return parser


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.partition("=")
    return name, tuple(int(size) for size in sizes.split(",") if size)


def requests(arguments: argparse.Namespace, joined: int | None = None) -> list[dict[str, Any]]:
    """Return what to measure, a dict for each number of devices (see `jfit.bench.measure.measure`).

    Args:
        arguments: parsed command line.
        joined: number of processes of the job of this process; None: it measures alone, or starts processes.

    Returns:
        List of dicts; in addition "processes" has the number of processes, None for one that is no job.

    Raises:
        ValueError: the model is neither a name nor a file with shapes.

    Example:
        >>> [r["batch"] for r in requests(_parser().parse_args(["--devices", "1,2", "--batch", "32"]))]
        [32, 64]
        >>> [r["devices"] for r in requests(_parser().parse_args(["--processes", "1,2", "--devices", "2"]))]
        [2, 4]
    """
    counts = [joined] if joined else arguments.processes or [None]
    devices = arguments.devices or ([1, 2, 4, 8] if counts == [None] else [1])
    layouts = [(count, (count or 1) * n) for count in counts for n in devices]
    weak, most, shapes = arguments.mode == "weak", max(total for _, total in layouts), dict(arguments.shape)
    batch = arguments.batch or models.load(arguments.model, shapes).batch * (1 if weak else most)
    common = {"model": arguments.model, "shapes": shapes, "reduce": arguments.reduce, "seconds": arguments.seconds}
    common |= {"rounds": arguments.rounds}
    return [common | {"processes": p, "devices": n, "batch": batch * n if weak else batch} for p, n in layouts]


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
        Exit status: 1 if a measurement failed.

    Raises:
        SystemExit: an invalid option.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    in_job = options.join or launched() is not None
    if in_job:
        distributed.init()
    try:
        todo = requests(options, distributed.num_processes() if in_job else None)
        results = json.loads(options.before.read_text())["results"] if options.before else []
        for path in (options.json, options.plot) if distributed.is_main() else ():
            if path not in (None, "-"):
                Path(path).open("ab").close()  # an error now, and not after the measurement
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"{error}; nothing was measured")
    probe = [sys.executable, "-c", PROBE]
    here = (
        [jax.devices()[0].platform, jax.device_count()]
        if in_job
        else json.loads(subprocess.check_output(probe).splitlines()[-1])
    )
    if here[0] == "cpu" and not in_job and max(r["devices"] for r in todo) > MOST_EMULATED:
        parser.error(f"this machine would emulate more than {MOST_EMULATED} devices; pass fewer --devices and --processes")
    return _measure_all(options, todo, results, in_job, *here)


def _measure_all(
    options: argparse.Namespace, todo: list[Any], results: list[dict[str, Any]], in_job: bool, backend: str, present: int
) -> int:
    """Measure each row, in new processes or in those of the job of this one; the main process prints and writes."""
    is_main, status = distributed.is_main(), 0
    log = functools.partial(print, file=sys.stderr, flush=True) if is_main else lambda text: None
    try:
        for number, request in enumerate(todo):
            count = request["processes"]
            layout = f"{request['devices'] // (count or 1)} device(s)"
            layout = layout if count is None else f"{count} process(es) x {layout}"
            log(f"[{number + 1} of {len(todo)}] {request['model']}: {layout}, batch {request['batch']} ...")
            if backend != "cpu" and request["devices"] > present:
                log(f"  left out: this machine has {present} device(s)")
                continue
            results.append(measure.measure(request) if in_job else run(request, backend == "cpu", options.timeout))
            log(f"  {results[-1]['samples_per_s']:,.0f} samples/s")
    except RuntimeError as error:
        if in_job:
            raise  # so that the other processes end, too
        print(f"jfit.bench: {error}", file=sys.stderr)
        status = 1
    if is_main and results:
        _write(options, results, machine(backend))
    if in_job:
        distributed.shutdown()
    return status


def machine(backend: str) -> dict[str, Any]:
    """Describe this machine: processor cores, Python and jax versions, whether devices are emulated, and malloc's settings.

    Args:
        backend: platform of jax.

    Example:
        >>> machine("cpu")["emulated"]
        True
    """
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "jfit")}
    where = {"cores": cores(), "python": platform.python_version(), "emulated": backend == "cpu", "malloc": allocator.state}
    return where | versions


def _write(options: argparse.Namespace, results: list[dict[str, Any]], where: dict[str, Any]) -> None:
    subject = options.model + (" over processes" if any("processes" in row for row in results) else "")
    title = f"{subject}, {options.mode} scaling, reduce={options.reduce}"
    document = json.dumps({"title": title, "machine": where, "results": results}, indent=1)
    print(document if options.json == "-" else report.markdown(title, results, where))
    if options.json and options.json != "-":
        Path(options.json).write_text(document)
    if options.plot:
        report.plot(title, results, Path(options.plot))
