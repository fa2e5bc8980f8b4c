"""Jobs of several processes for tests: a script runs as P processes with L emulated CPU devices each, on 127.0.0.1.

A test starts a job with `run_job`, or with `start` if it sends signals or waits for lines.  In the script,
`jobs.report(name=value, ...)` hands back JSON values and NumPy arrays, which are then in `Process.values`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IMPORTED_FROM = (str(ROOT), str(HERE), str(HERE.parent / "jobs"))  # scripts of jobs import jfit, this module, and tests of jobs
DEADLINE = 240.0  # seconds for a whole job: processes cost 3 to 5 seconds each, on a loaded machine several times that
# variables that would tell the processes of a job about another one
_FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")


def free_port(count: int = 2) -> int:
    """Return the first of `count` free ports of 127.0.0.1 that no outgoing connection gets."""
    choice = random.SystemRandom()
    for _ in range(1000):
        port = choice.randrange(15000, 30000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(port, port + count):
                server = stack.enter_context(socket.socket())
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", number))
            return port
    raise RuntimeError("no free ports on 127.0.0.1 between 15000 and 30000")


class Process:
    """One process of a job.

    Attributes:
        rank: its number.
        code: exit status, as `subprocess.Popen.returncode`; None while it runs.
        out, err: what it wrote so far to stdout and stderr.
        values: dict of what the script handed back by `report`.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.rank, self._results = rank, folder / f"results-{rank}"
        environment = {**environment, "JOB_RESULTS": str(self._results)}
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._changed, self._values = threading.Condition(), None
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder, errors="replace"
        )
        pipes = {"out": self._process.stdout, "err": self._process.stderr}
        self._readers = [threading.Thread(target=self._read, args=item, daemon=True) for item in pipes.items()]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, pipe: Any) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    self._lines[name].append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def out(self) -> str:
        """What it wrote to stdout."""
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        """What it wrote to stderr."""
        return "".join(self._lines["err"])

    @property
    def values(self) -> dict[str, Any]:
        """What the script handed back by `report`."""
        if self._values is not None:
            return self._values
        values: dict[str, Any] = {}
        for file in sorted(self._results.parent.glob(f"{self._results.name}-*.npz")):
            with np.load(file) as arrays:
                values |= {k: arrays[k] for k in arrays.files if k != "json"} | json.loads(str(arrays["json"]))
        self._values = values if self.code is not None else None
        return values

    def wait_for(self, text: str, seconds: float = DEADLINE, where: str = "out") -> str:
        """Wait until the process has written a line with `text` to "out" or "err", and return the line.

        Raises:
            AssertionError: it ended, or the seconds are over.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self._lines[where]:
                    if text in line:
                        return line
                done = self.code is not None and not any(reader.is_alive() for reader in self._readers)
                if done or time.monotonic() > end:
                    what = f"ended with status {self.code}" if done else f"is still running after {seconds} s"
                    raise AssertionError(f"rank {self.rank} {what} without a line {text!r}:\n{self}")
                self._changed.wait(0.2)

    def send(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Wait until the process has ended, at most so many seconds; return `code`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(seconds, 0))
            for reader in self._readers:  # a child of the process may hold the pipe open
                reader.join(5)
        return self.code

    def kill(self) -> None:
        """End the process, if it still runs."""
        if self.code is None:
            self._process.kill()
            self._process.wait()

    def __str__(self) -> str:
        return f"--- rank {self.rank}, status {self.code}\nstdout: {self.out[-4000:]}\nstderr: {self.err[-6000:]}"


class Job(list[Process]):
    """The processes of a job by rank, from `start`.

    Attributes:
        folder: their working directory.
    """

    def __init__(self, processes: Sequence[Process], folder: Path, deadline: float) -> None:
        super().__init__(processes)
        self.folder, self._end = folder, time.monotonic() + deadline

    def wait(self, *, codes: Any = 0) -> Job:
        """Wait until all processes have ended.

        Args:
            codes: expected exit status of all processes, or a list of one of each; None: any.

        Raises:
            AssertionError: the deadline of the job is over, or the exit status of a process is another one.
        """
        for process in self:
            process.wait(self._end - time.monotonic())
        _ = self.values  # read now, because another job may use the folder
        assert all(process.code is not None for process in self), f"the deadline of the job is over:\n{self}"
        if codes is not None:
            expected = [codes] * len(self) if isinstance(codes, int) else list(codes)
            assert [process.code for process in self] == expected, str(self)
        return self

    @property
    def values(self) -> list[dict[str, Any]]:
        """What the script handed back by `report`, by rank."""
        return [process.values for process in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self))


@contextlib.contextmanager
def start(
    script: str,
    processes: int = 2,
    devices: int = 1,
    *,
    folder: Path,
    deadline: float = DEADLINE,
    settings: str | None = "torchrun",
    environment: Mapping[str, str | None] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Job]:
    """Context manager that runs a script as a job; at its end, processes that still run are killed.

    Args:
        script: text of the script, which is dedented; it calls `jfit.distributed.init`.
        processes: number of processes.
        devices: number of emulated CPU devices of each.
        folder: a folder for the script and the results, the working directory of all processes.
        deadline: seconds after which `Job.wait` fails.
        settings: "torchrun": the processes get the environment variables that torchrun sets; "arguments": they get the
            arguments `coordinator num_processes rank` before `arguments`; None: neither.
        environment: more environment variables; None removes one.
        arguments: arguments of the script.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("results-*.npz"):
        old.unlink()
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    port = free_port(10)
    given = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in given if "xla_force_host_platform_device_count" not in flag]
    base = {k: v for k, v in os.environ.items() if k not in _FOREIGN and not k.startswith("DMLC_")}
    base |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"]),
        "PYTHONPATH": os.pathsep.join(filter(None, [*IMPORTED_FROM, os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }
    started: list[Process] = []
    try:
        for rank in range(processes):
            own, args = dict(base), list(arguments)
            if settings == "torchrun":
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
                own |= {"LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            elif settings == "arguments":
                args = [f"127.0.0.1:{port}", str(processes), str(rank), *args]
            for name, value in (environment or {}).items():
                own.pop(name, None) if value is None else own.__setitem__(name, value)
            started.append(Process(rank, [sys.executable, str(path), *args], own, folder))
        yield Job(started, folder, deadline)
    finally:
        for process in started:
            process.kill()


def run_job(script: str, processes: int = 2, devices: int = 1, *, folder: Path, codes: Any = 0, **options: Any) -> Job:
    """Run a script as a job until all processes have ended; arguments as in `start` and `Job.wait`."""
    with start(script, processes, devices, folder=folder, **options) as job:
        return job.wait(codes=codes)


def once(tmp_path_factory: Any, name: str, make: Callable[[Path], Any]) -> Any:
    """Return `make(folder)`, which is called by one of the workers that run the tests, for all of them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    result = folder / "result.pickle"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            result.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(result.read_bytes())


def report(**values: Any) -> None:
    """In a script: hand back values that JSON can represent, and arrays, which become NumPy arrays."""
    report.count = getattr(report, "count", 0) + 1  # type: ignore[attr-defined]
    arrays = {k: np.asarray(v) for k, v in values.items() if hasattr(v, "dtype")}
    rest = {k: v for k, v in values.items() if k not in arrays}
    path = f"{os.environ['JOB_RESULTS']}-{report.count:04d}.npz"  # type: ignore[attr-defined]
    np.savez(path, json=np.asarray(json.dumps(rest)), **arrays)  # type: ignore[arg-type]
