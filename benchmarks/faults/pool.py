"""Worker processes of the benchmark: started when they are needed, and started again when a signal has ended them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
HANG_SECONDS = 240.0


class Died(Exception):
    """The worker ended before it answered; `code` is its exit status, negative for a signal, None if it hung."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the process ended with {code}" if code is not None else f"no answer within {HANG_SECONDS:.0f} s")
        self.code = code


class Worker:
    """One process of `benchmarks.faults.worker`, started by the first request.

    Attributes:
        starts: number of processes that were started.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors: Any = None
        self._last_errors = ""
        self.starts = 0

    def ask(self, task: str, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            Died: the process ended, or did not answer in time and was killed.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        over = threading.Event()
        watch = threading.Thread(target=_end_if_hanging, args=(process, over), daemon=True)
        watch.start()
        try:
            process.stdin.write(json.dumps({"task": task, **request}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            hung = not watch.is_alive()
            over.set()
        if line:
            return json.loads(line)
        code = self._ended(process)
        raise Died(None if hung else code)

    def errors(self) -> str:
        """The end of what the last process wrote to stderr before it died."""
        return self._last_errors

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._ended(self._process)

    def _ended(self, process: subprocess.Popen[str]) -> int:
        """Wait for the end of the process, close its files, and return its exit code."""
        code = process.wait()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        self._errors.seek(0)
        self._last_errors = self._errors.read()[-3000:]
        self._errors.close()
        self._process = None
        return code

    def _start(self) -> subprocess.Popen[str]:
        self.starts += 1
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  as long as the worker
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.worker"],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # a Ctrl-C of the terminal is not for it
        )
        return self._process


def _end_if_hanging(process: subprocess.Popen[str], over: threading.Event) -> None:
    """Kill a process that does not answer in time; the time in which somebody stopped it (SIGSTOP) does not count."""
    seconds = 0.0
    while seconds < HANG_SECONDS:
        if over.wait(1):
            return
        seconds += not _is_stopped(process.pid)
    process.kill()


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _environment() -> dict[str, str]:
    """The environment of a worker; it keeps compiled programs in a folder, for the workers that replace killed ones."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(Path(tempfile.gettempdir()) / "jfit-faults-programs")
    kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # one device
    return {"JAX_PLATFORMS": "cpu"} | given | kept | {"JAX_COMPILATION_CACHE_DIR": cache}


def run_all(jobs: Sequence[Callable[[Worker], None]], workers: int, until: float) -> int:
    """Run jobs, each with one of `workers` workers, and begin none after `until` (`time.monotonic()`).

    Returns:
        Number of processes that were started.
    """
    starts: list[int] = []
    waiting: queue.SimpleQueue[Callable[[Worker], None]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)

    def serve() -> None:
        worker = Worker()
        try:
            while time.monotonic() < until:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                job(worker)
        finally:
            worker.close()
            starts.append(worker.starts)

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(starts)
