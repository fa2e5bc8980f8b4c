"""Start the processes of a measurement on this machine, and end all of them if one fails or the time is over."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE = 15.0  # seconds that the other processes have to end by themselves after one has failed, and to print why
MOST_OUTPUT = 3000  # characters of the output of a failed process that a message shows


def free_port() -> int:
    """Return a port of the loopback interface that is free.

    Example:
        >>> 0 < free_port() < 65536
        True
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_together(
    name: str, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], timeout: float
) -> list[str]:
    """Run processes at the same time until all have ended.

    Args:
        name: what they do, for messages.
        commands: command of each process.
        environments: environment variables of each process.
        timeout: seconds after which they are killed.

    Returns:
        What each process wrote to its standard output.

    Raises:
        RuntimeError: a process failed, or the time is over; the message has the end of their output.

    Example:
        >>> import os, sys
        >>> run_together("an example", [[sys.executable, "-c", "print(3)"]], [dict(os.environ)], 60.0)
        ['3\\n']
    """
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(len(commands))]
        for pair, command, environment in zip(files, commands, environments, strict=True):
            out, err = (stack.enter_context(file.open("wb")) for file in pair)
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            stack.callback(process.wait)
            stack.callback(process.kill)  # which comes before `wait`, and does nothing if the process has ended
            processes.append(process)
        failed, late = _wait(processes, timeout)
        if failed or late:
            reasons = [f"process {rank} ended with status {processes[rank].returncode}" for rank in failed]
            reasons += [f"process(es) {', '.join(map(str, late))} had not ended after {timeout:.0f} s"] if late else []
            # stderr has the error, unless a library wrote it to stdout
            output = "".join(f"\n--- process {r}:\n{_end_of(files[r])}" for r in failed or late)
            raise RuntimeError(f"{name} failed: {'; '.join(reasons)}{output}")
        return [out.read_text(errors="replace") for out, _ in files]


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> tuple[list[int], list[int]]:
    """Wait for all processes; return those that failed, the first one first, and those that were late."""
    end, running, failed = time.monotonic() + timeout, set(range(len(processes))), []
    while running and time.monotonic() < end:
        time.sleep(0.1)
        for rank in [rank for rank in running if processes[rank].poll() is not None]:
            running.discard(rank)
            if processes[rank].returncode:
                failed.append(rank)
                end = min(end, time.monotonic() + GRACE)
    return failed, [] if failed else sorted(running)


def _end_of(files: tuple[Path, Path]) -> str:
    out, err = (file.read_text(errors="replace").strip() for file in files)
    return (err or out).split("*** Check failure stack trace", 1)[0][-MOST_OUTPUT:]  # addresses in XLA say nothing
