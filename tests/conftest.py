"""Every test sees eight emulated CPU devices and the strictest arithmetic rules; bugs die here, users pay nothing."""

import os
from pathlib import Path

# Devices are counted when the backend starts, so the flags must be set before jax is first imported.
_FLAGS = {
    "--xla_force_host_platform_device_count": "8",
    # Eight devices share two cores: a slow member of a collective is waiting for a core, it is not stuck.
    "--xla_cpu_collective_call_terminate_timeout_seconds": "600",
}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([_given, *(f"{k}={v}" for k, v in _FLAGS.items() if k not in _given)]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Eight devices that all wait in Python code need more threads than two cores have; see `mx.operator.register`.
os.environ.setdefault("PJRT_NPROC", "32")
# Figures are drawn to files; without a display the default backend would fail or warn.
os.environ.setdefault("MPLBACKEND", "Agg")

import signal

import jax
import numpy as np
import pytest

# A shell that starts its jobs in the background has them ignore Ctrl-C, and their children too: tests of Ctrl-C send one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_rank_promotion", "raise")


REPEATED = Path(__file__).with_name("slow.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Marks the repetitions listed in slow.txt as slow; a line that names no test any more is an error."""
    lines = REPEATED.read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    found = {item.nodeid: item for item in items}
    for name in listed & found.keys():
        found[name].add_marker(pytest.mark.slow)
    whole = {name.split("::")[0] for name in found} if not any("::" in arg for arg in config.args) else set()
    gone = sorted(name for name in listed - found.keys() if name.split("::")[0] in whole)
    if gone:
        raise pytest.UsageError(f"{REPEATED.name} names tests that do not exist: {', '.join(gone)}; take them out of the list.")


@pytest.fixture
def rng() -> np.random.Generator:
    """The same random numbers in every test and on every machine."""
    return np.random.default_rng(0)


@pytest.fixture
def quickly():
    """Programs that run once need no optimization, which takes a third of the time to compile them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def operators_quickly(request: pytest.FixtureRequest):
    """Tests of operators, alone and in graphs, compile thousands of programs for a handful of numbers; what trains is compiled
    as users compile it."""
    if request.path.name.startswith(("test_ops_", "test_lowering")):
        request.getfixturevalue("quickly")
