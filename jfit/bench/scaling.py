"""How training scales over devices: samples per second, efficiency, and where the time of a step goes.

Each number of devices is measured in a process of its own, because XLA reads the number of emulated CPU devices when it
starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jfit.bench import models, report, torch_ddp
from jfit.step.reduce import RULES

MOST_EMULATED = 64  # CPU devices of one process: each has threads of its own, and compiling takes longer with their number
PROBE = "import jax, json; print(json.dumps([jax.default_backend(), jax.device_count()]))"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jfit.bench scaling", description="How training scales over devices.")
    parser.add_argument("--devices", default="1,2,4,8", help="numbers of devices, separated by commas (default: %(default)s)")
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
    parser.add_argument("--json", help="write the results to this file, or '-' for the standard output")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--plot", type=Path, help="draw samples per second and efficiency into this image file")
    return parser


def requests(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what to measure, a dict for each number of devices (see `jfit.bench.measure.measure`).

    Args:
        arguments: parsed command line.

    Raises:
        ValueError: an option has an invalid value.

    Example:
        >>> [r["batch"] for r in requests(_parser().parse_args(["--devices", "1,2", "--batch", "32"]))]
        [32, 64]
    """
    try:
        counts = [int(count) for count in arguments.devices.split(",")]
    except ValueError:
        raise ValueError(f"--devices is {arguments.devices!r}; expected numbers separated by commas, such as 1,2,4") from None
    if min(counts) < 1:
        raise ValueError(f"--devices is {arguments.devices!r}; expected numbers of at least 1")
    for name, value in (("batch", 1 if arguments.batch is None else arguments.batch), ("rounds", arguments.rounds)):
        if value < 1:
            raise ValueError(f"--{name} is {value}; expected a number of at least 1")
    shapes = dict(_shape(text) for text in arguments.shape)
    if shapes and arguments.model in models.MODELS:
        raise ValueError(f"--shape is for models in files; the inputs of {arguments.model} have fixed shapes, so leave it out")
    batch = arguments.batch or models.load(arguments.model, shapes).batch * (1 if arguments.mode == "weak" else max(counts))
    common = {"model": arguments.model, "shapes": shapes, "reduce": arguments.reduce, "seconds": arguments.seconds}
    common |= {"rounds": arguments.rounds}
    return [common | {"devices": n, "batch": batch * n if arguments.mode == "weak" else batch} for n in counts]


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.partition("=")
    try:
        return name, tuple(int(size) for size in sizes.split(",") if size)
    except ValueError:
        raise ValueError(f"--shape is {text!r}; expected a name and the sizes of a row, such as data=3,224,224") from None


def run(request: Mapping[str, Any], emulate: bool) -> dict[str, Any]:
    """Measure one number of devices in a new process.

    Args:
        request: see `jfit.bench.measure.measure`.
        emulate: whether the process emulates the devices on the CPU.

    Returns:
        The results, by column.

    Raises:
        RuntimeError: the process failed; the message has the end of its output.
    """
    command = [sys.executable, "-m", "jfit.bench", "measure", json.dumps(request)]
    result = subprocess.run(command, env=environment(request["devices"], emulate), capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"the measurement of {request['devices']} devices failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


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
    try:
        todo = requests(options)
    except ValueError as error:
        print(f"jfit.bench: {error}", file=sys.stderr)
        return 2
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    backend, present = json.loads(probe.stdout.splitlines()[-1])
    most = max(request["devices"] for request in todo)
    if backend == "cpu" and most > MOST_EMULATED:
        print(
            f"jfit.bench: --devices has {most}, but this machine has no accelerator, so that a process would emulate {most} "
            f"devices with threads of its processor; pass at most {MOST_EMULATED}",
            file=sys.stderr,
        )
        return 2
    results = []
    for number, request in enumerate(todo):
        title = f"{request['model']}: {request['devices']} device(s), batch {request['batch']}"
        print(f"[{number + 1} of {len(todo)}] {title} ...", file=sys.stderr, flush=True)
        if backend != "cpu" and request["devices"] > present:
            print(f"  left out: this machine has {present} device(s)", file=sys.stderr)
            continue
        results.append(run(request, emulate=backend == "cpu"))
        if backend == "cpu" and options.torch and request["devices"] > 1 and torch_ddp.is_available(options.model):
            results[-1]["torch_per_s"] = torch_ddp.samples_per_second(request)
        print(f"  {results[-1]['samples_per_s']:,.0f} samples/s", file=sys.stderr, flush=True)
    _write(options, results, machine(backend))
    return 0


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
    title = f"{options.model}, {options.mode} scaling, reduce={options.reduce}"
    text = report.markdown(title, results, where)
    if options.json == "-":
        print(json.dumps({"title": title, "machine": where, "results": results}, indent=1))
    else:
        print(text)
        if options.json:
            Path(options.json).write_text(json.dumps({"title": title, "machine": where, "results": results}, indent=1))
    if options.markdown:
        options.markdown.write_text(text)
    if options.plot:
        report.plot(title, results, options.plot)
