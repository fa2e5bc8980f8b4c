"""One leg in a process of its own, which trains an epoch whenever it reads a line: `python -m benchmarks.peers.child SPEC`.

SPEC is JSON, made by `benchmarks.peers.runs.Process`. Answers are lines of JSON on stdout, one after the first epoch, one for
each epoch asked for; what a framework prints goes to stderr. Nothing here imports more than numpy and the leg's framework.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import time
from typing import Any, ClassVar

import numpy as np

from benchmarks.workloads import Workload

# glibc's options of mallopt: no mappings of their own for large blocks, keep 2 GiB of freed memory, one arena
KEEP_MEMORY = {-4: 0, -1: 2**31 - 1, -8: 1}
PACKAGES = ("jax", "optax", "keras", "flax", "torch", "mxnet")


class Timed(Workload):
    """A workload that counts the CPU and wall seconds in which its data were made."""

    seconds: ClassVar[np.ndarray] = np.zeros(2)

    def arrays(self, layout: str = "NCHW") -> tuple[np.ndarray, np.ndarray]:
        """See `Workload.arrays`."""
        before = _clocks()
        made = super().arrays(layout)
        self.seconds[:] += _clocks() - before
        return made


def _clocks() -> np.ndarray:
    return np.array([time.process_time(), time.time()])


def keep_memory() -> None:
    """Tell the allocator to keep freed memory, instead of returning it to the system after every step."""
    mallopt = ctypes.CDLL(None).mallopt
    if not all(mallopt(option, value) for option, value in KEEP_MEMORY.items()):
        raise OSError("mallopt refused an option")


def peak_mb() -> float:
    """Largest resident size of this process so far, in MB (VmHWM; ru_maxrss would count the parent's memory, too)."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def device() -> dict[str, Any]:
    """Name of the device that this process computes on, and the peak of its memory in MB (None: that of the host is used)."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if torch is not None:
        on_gpu = torch.cuda.is_available()
        return {
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "device_peak_mb": torch.cuda.max_memory_allocated() / 1e6 if on_gpu else None,
        }
    if jax is None:
        return {}
    first = jax.local_devices()[0]
    peak = (first.memory_stats() or {}).get("peak_bytes_in_use")
    return {"device": first.device_kind, "device_peak_mb": peak and peak / 1e6}


def _measured(train: Any) -> dict[str, float]:
    gc.collect()
    faults, cpu, wall = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time(), time.perf_counter()
    metric = train()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return {"metric": metric, "cpu_s": cpu, "wall_s": wall, "faults": faults, "peak_mb": peak_mb(), **device()}


def _versions() -> dict[str, str]:
    return {name: sys.modules[name].__version__ for name in PACKAGES if hasattr(sys.modules.get(name), "__version__")}


def main(spec: dict[str, Any]) -> None:
    """Train the leg of the spec as long as there are lines to read."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    if spec["cores"]:
        os.sched_setaffinity(0, spec["cores"])
    if spec["keep_memory"]:
        keep_memory()
    workload = Timed(**spec["workload"] | {"shape": tuple(spec["workload"]["shape"])})
    try:
        leg = importlib.import_module("benchmarks.peers." + spec["module"]).begin(workload, **spec["options"])
    except ImportError as error:
        return answer({"missing": f"{error.name} is not installed"})
    first = leg.train()
    start = dict(zip(("cpu_s", "wall_s"), _clocks() - Timed.seconds - [0, spec["begun"]], strict=True))
    answer({"metric": first, "parameters": int(leg.parameters()), "versions": _versions(), **start})
    for _ in sys.stdin:
        answer(_measured(leg.train))
    return None


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stderr.flush()
    os._exit(0)  # threads of a framework are not waited for
