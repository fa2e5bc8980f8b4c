"""Faults in jobs of several processes: after how many seconds the other processes notice, what they say, and how all end.

Every event is one job of processes on 127.0.0.1, each with one emulated CPU device and `watchdog=4` (the default is 30): at
step 5 of a training, something happens to one of them. The seconds are those from the event to the end of the last other
process.

    python -m benchmarks.job_faults --markdown benchmarks/results/<machine>-job-faults.md
    python -m benchmarks.job_faults --watchdog 30    # the default of jobs; each event is to end within 1.5 times as long

The exit status is 1 if an event did not end as it should.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

STEP = 5  # at which something happens
WATCHDOG = 4
SECONDS = 240  # for a job


class Event(NamedTuple):
    """Something that happens to a process of a job.

    Attributes:
        name: what happens, in the table.
        action: name of an action of `worker`.
        rank: the process.
        expected: pattern of the line that the other processes print; None: all processes stop at the same step.
        codes: exit statuses of the process and of the others.
        limit: seconds within which it must be noticed.
    """

    name: str
    action: str
    rank: int
    expected: str | None
    codes: tuple[int, int]
    limit: float


_LOST, _SILENT = "was lost", "gave no sign of life"
EVENTS = [
    Event("`kill -9` of rank 1, whose loader workers live on", "kill-with-child", 1, _LOST, (-9, 1), 3),
    Event("`kill -9` of rank 0, which has JAX's coordinator", "kill", 0, _LOST, (-9, 1), 3),
    Event("`kill -STOP` of rank 1", "stop", 1, _SILENT, (-9, 1), 10),
    Event("`kill -STOP` of rank 0", "stop", 0, _SILENT, (-9, 1), 10),
    Event("rank 1: a callback raises", "raise", 1, "failed: ValueError: of a callback", (1, 1), 3),
    Event("rank 0: a callback raises", "raise", 0, "failed: ValueError: of a callback", (1, 1), 3),
    Event("rank 1: the loader raises, on fit's thread", "loader-raises", 1, "failed: OSError: of a loader", (1, 1), 3),
    Event("rank 1: the loader stalls", "loader-stalls", 1, r"waiting for batch \d+ of epoch 0", (1, 1), 10),
    Event("rank 1: a callback stalls", "stall", 1, r"in the callback 'event'", (1, 1), 10),
    Event("rank 1: the script catches the exception of fit", "caught", 1, "after the exception", (1, 1), 10),
    Event("rank 1: `sys.exit(3)` in a callback", "exit", 1, "has ended its script", (1, 1), 10),
    Event("SIGTERM to rank 1, during a step", "term", 1, None, (143, 143), 30),
    Event("SIGTERM to rank 0, during the evaluation", "term-evaluation", 0, None, (143, 143), 30),
    Event("SIGTERM to rank 1, which compiles the training step", "term-compile", 1, None, (143, 143), 30),
    Event("SIGTERM to rank 1, which waits for its loader", "term-data", 1, None, (143, 143), 30),
    Event("SIGTERM to rank 0, while it saves a checkpoint", "term-save", 0, None, (143, 143), 30),
    Event("Ctrl-C at rank 1", "interrupt", 1, None, (0, 0), 30),
    Event("`run.stop()` at rank 1 only", "run-stop", 1, None, (0, 0), 30),
]


# ------------------------------------------------------------------------------------------------ in a process of a job
def worker(action: str, rank: int, folder: Path) -> None:
    """Train; at step `STEP`, `action` happens to process `rank`."""
    import numpy as np

    import jfit

    jfit.distributed.init(watchdog=float(os.environ["JOB_WATCHDOG"]))
    here = jfit.distributed.rank() == rank
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 20)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
    net = jfit.sym.SoftmaxOutput(net, name="softmax")

    class Loader:
        """Batches; something happens when batch `STEP` is read."""

        def __iter__(self) -> Any:
            for number in range(10_000):
                if number == STEP and here and action.startswith(("loader", "term-data")):
                    _happen(action)
                yield x[:16], y[:16]

    def on(event: Any, state: Any) -> None:
        at = STEP if event.step == STEP and event.kind == "step" else None
        if (
            here
            and at
            and action in ("kill", "kill-with-child", "stop", "raise", "stall", "exit", "term", "interrupt", "caught")
        ):
            _happen(action)
        if here and at and action == "run-stop":
            _say()
            event.run.stop("enough")
        if here and action == "term-compile" and event.kind == "fit_start":
            threading.Timer(0.05, _happen, ["term"]).start()
        if here and action == "term-evaluation" and event.kind == "epoch_start" and event.epoch == 1:
            threading.Timer(0.2, _happen, ["term"]).start()

    options: dict[str, Any] = {"batch_size": 16, "num_epoch": 3000, "progress": False, "steps_per_call": 1}
    data: Any = (x, y)
    if action.startswith(("loader", "term-data")):
        data = Loader()
        options["num_epoch"] = 1
    if action == "term-evaluation":  # nearly all of the time is that of the evaluation
        options["eval_data"] = (np.tile(x, (40, 1)), np.tile(y, 40))
    if action.startswith("term"):
        options["checkpoint"] = str(folder / "checkpoints")
    if action == "term-save":
        options["checkpoint_every"] = STEP
        if here:
            _slow_saves()
    events = ("fit_start", "step", "epoch_start")
    callback = jfit.callbacks.Callback(on, events=events, every=1, name="event")
    run = None
    try:
        run = jfit.fit(net, data, callbacks=[callback], **options)
    except ValueError:
        if action != "caught":
            raise
        time.sleep(SECONDS)
    finally:
        run = run or jfit.last_run()
        if run is not None:
            print("STATE", run.position["step"], _digest(run), flush=True)


def _happen(action: str) -> None:
    if action == "kill-with-child" and os.fork() == 0:  # it has copies of the sockets
        time.sleep(20)
        os._exit(0)
    _say()
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM, "interrupt": signal.SIGINT}
    number = signals.get(action.split("-")[0])
    if number is not None:
        os.kill(os.getpid(), number)
    if action in ("raise", "caught"):
        raise ValueError("of a callback")
    if action == "loader-raises":
        raise OSError("of a loader")
    if action == "exit":
        sys.exit(3)
    if "stall" in action:
        time.sleep(SECONDS)
    if action == "term-data":
        time.sleep(3)


def _say() -> None:
    print("EVENT", time.time(), flush=True)


def _slow_saves() -> None:
    """Let the first write of a checkpoint take a second, in whose middle the signal comes."""
    import jfit.callbacks.saving as saving

    write, done = saving.write, []

    def slow(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(1)
            threading.Timer(0.3, _happen, ["term"]).start()
            time.sleep(1)
        return write(*args, **options)

    saving.write = slow  # type: ignore[assignment]


def _digest(run: Any) -> str:
    import hashlib

    import numpy as np

    return hashlib.sha256(b"".join(np.asarray(v).tobytes() for _, v in sorted(run.params.items()))).hexdigest()[:8]


# ------------------------------------------------------------------------------------------------ the jobs
class Row(NamedTuple):
    """What happened after an event.

    Attributes:
        event: the event.
        seconds: from the event to the end of the last other process.
        line: what the other processes said, without the end of the line.
        codes: exit statuses by rank.
        problem: what is not as expected; "": nothing.
        output: all that the processes printed.
    """

    event: Event
    seconds: float
    line: str
    codes: list[int | None]
    problem: str
    output: str


def measure(event: Event, processes: int = 2, folder: Path | None = None, watchdog: float = WATCHDOG) -> Row:
    """Run a job in which an event happens."""
    with tempfile.TemporaryDirectory() as own:
        folder = folder or Path(own)
        port = _free_port()
        base = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "LOCAL_"))}
        base |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1", "PYTHONUNBUFFERED": "1"}
        base["JOB_WATCHDOG"] = str(watchdog)
        base |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "benchmarks.job_faults", "--worker", event.action, str(event.rank), str(folder)]
        started: list[subprocess.Popen[str]] = []
        ends: dict[int, float] = {}
        texts = [folder / f"output-{rank}" for rank in range(processes)]
        try:
            for rank, text in enumerate(texts):
                environment = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                with text.open("w") as out:
                    started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, text=True))
            end = time.time() + SECONDS
            while len(ends) < processes and time.time() < end:
                for rank, process in enumerate(started):
                    if rank not in ends and process.poll() is not None:
                        ends[rank] = time.time()
                time.sleep(0.02)
        finally:
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
        outputs = [text.read_text(errors="replace") for text in texts]
    codes = [process.returncode if rank in ends else None for rank, process in enumerate(started)]
    return _row(event, outputs, codes, ends)


def _row(event: Event, outputs: Sequence[str], codes: list[int | None], ends: dict[int, float]) -> Row:
    whole = "\n".join(f"--- rank {rank}, status {codes[rank]}\n{text}" for rank, text in enumerate(outputs))
    happened = re.search(r"^EVENT ([\d.]+)", outputs[event.rank], re.MULTILINE)
    others = [rank for rank in range(len(outputs)) if rank != event.rank]
    if happened is None or len(ends) < len(outputs):
        what = "it did not happen" if happened is None else "a process did not end"
        return Row(event, float("nan"), "", codes, what, whole)
    seconds = max(ends[rank] for rank in others) - float(happened[1])
    expected, problems = [event.codes[0] if rank == event.rank else event.codes[1] for rank in range(len(outputs))], []
    line = ""
    if codes != expected:
        problems.append(f"exit statuses {codes}, expected {expected}")
    if event.expected is not None:
        lines = [
            re.search(rf"^jfit: (rank {event.rank} \(process \d+ on \S+\) .*); rank", outputs[rank], re.M) for rank in others
        ]
        line = lines[0][1] if lines[0] else ""
        if not all(found and re.search(event.expected, found[1]) for found in lines):
            problems.append(f"no line {event.expected!r}")
    else:
        states = [re.findall(r"^STATE (\d+) (\w+)", text, re.MULTILINE) for text in outputs]
        line = f"all stop after step {states[0][-1][0]}, with equal states" if states[0] else ""
        if not states[0] or any(state != states[0] for state in states):
            problems.append(f"different states {states}")
    if seconds > event.limit:
        problems.append(f"after {seconds:.1f} s, expected {event.limit:g}")
    return Row(
        event, seconds, re.sub(r"\(process \d+ on \S+\)", "(process ... on ...)", line), codes, "; ".join(problems), whole
    )


def _free_port() -> int:
    for _ in range(100):
        port = random.SystemRandom().randrange(15000, 30000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for number in (port, port + 1):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
    raise RuntimeError("no free ports on 127.0.0.1")


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| event | ended after, s | the others say | exit statuses: it, others |", "|---|---|---|---|"]
    for row in rows:
        codes = [row.codes[row.event.rank], *(code for rank, code in enumerate(row.codes) if rank != row.event.rank)]
        said = row.line or row.problem
        lines.append(f"| {row.event.name} | {row.seconds:.1f} | {said} | {', '.join(map(str, codes))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all events, and print the table."""
    parser = argparse.ArgumentParser(description="Faults in jobs of several processes.")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--only", default="", help="only events whose action contains this text")
    parser.add_argument("--watchdog", type=float, default=WATCHDOG, help="seconds; default: %(default)s")
    parser.add_argument("--verbose", action="store_true", help="print what the processes wrote, if it is not as expected")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        action, rank, folder = arguments.worker
        worker(action, int(rank), Path(folder))
        return
    rows = []
    for event in EVENTS:
        if arguments.only in event.action:
            limit = event.limit if arguments.watchdog == WATCHDOG else 1.5 * arguments.watchdog
            rows.append(measure(event._replace(limit=limit), watchdog=arguments.watchdog))
            print(f"{event.name}: {rows[-1].seconds:.1f} s, {rows[-1].line} {rows[-1].codes} {rows[-1].problem}", flush=True)
            if rows[-1].problem and arguments.verbose:
                print(rows[-1].output, flush=True)
    text = f"""# Faults in jobs of several processes

`python -m benchmarks.job_faults`: 2 processes on 127.0.0.1 with one emulated CPU device each, on Linux with {os.cpu_count()}
cores. They call `jfit.distributed.init(watchdog={arguments.watchdog:g})`; the default is 30 seconds. Something happens to one
process after step {STEP}; the time ends when the other process has ended. SIGTERM and Ctrl-C are sent to one process only;
where it is SIGTERM, `fit` has `checkpoint=`.
[Several processes and hosts](../../docs/hosts.md#when-a-process-fails) says what the rows mean.

{table(rows)}
"""
    if arguments.markdown:
        arguments.markdown.write_text(text)
    else:
        print(text)
    sys.exit(int(any(row.problem for row in rows)))


if __name__ == "__main__":
    main()
