"""Settings of all tests: eight emulated CPU devices, strict rank promotion, a compile cache, the choice of fast tests."""

import functools
import gc
import inspect
import os
import random
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import CodeType

TESTS = str(Path(__file__).parent)

# Devices are counted when the backend starts, so the flags must be set before jax is first imported.
_FLAGS = {
    "--xla_force_host_platform_device_count": "8",
    # Eight devices share two cores: a slow member of a collective is waiting for a core, it is not stuck.
    "--xla_cpu_collective_call_terminate_timeout_seconds": "600",
}
# Nearly all of a test's time goes into compiling its programs.  Without optimization, with the older of XLA's two code
# generators, and with the code of a program in one piece, that takes a quarter of the time: so `make test` runs what is not
# marked `optimized`.  XLA stops at a flag it does not know, so only releases known to have these are given them.
QUICKLY = os.environ.get("JFIT_TESTS") == "quickly"
if QUICKLY:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    if version("jaxlib").startswith("0.10."):
        _FLAGS |= {"--xla_cpu_use_fusion_emitters": "false", "--xla_cpu_parallel_codegen_split_count": "1"}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([_given, *(f"{k}={v}" for k, v in _FLAGS.items() if k not in _given)]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Eight devices that all wait in Python code need more threads than two cores have; see `mx.operator.register`.
os.environ.setdefault("PJRT_NPROC", "32")
# The tests, in all workers and in the processes they start, train the same few networks again and again: each program is
# compiled once and read from this folder from then on, also by later runs.  Which bits it computes does not change.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Figures are drawn to files; without a display the default backend would fail or warn.
os.environ.setdefault("MPLBACKEND", "Agg")

import re
import shutil
import signal

import jax
import numpy as np
import pytest
import selection

import jfit
from jfit import counters
from jfit.mxnet import keys

# A shell that starts its jobs in the background has them ignore Ctrl-C, and their children too: tests of Ctrl-C send one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests compare what is logged; on a busy machine the compilation of any program may be slow enough to be announced.
counters.SLOW_SECONDS = 3600.0


MOST_BYTES = 2**30  # of the compile cache on disk
MOST_MEMORY = 3 * 2**30  # of a worker, at the end of a test file


def pytest_sessionstart(session: pytest.Session):
    """Programs of code that is gone are never read again, so a compile cache that has grown large starts anew."""
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    if not hasattr(session.config, "workerinput") and sum(file.stat().st_size for file in folder.glob("*")) > MOST_BYTES:
        shutil.rmtree(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]):
    """Before `-m` chooses: repetitions of a promise are slow tests, by the rule of `selection`, and what promises bits is
    compiled with optimizations.  Fast tests that compare arrays exactly, mostly for other reasons, stay quick."""
    selection.mark_repetitions(items)
    for item in items:
        slow = item.get_closest_marker("slow") and not item.path.name.startswith("test_ops_")
        if re.search(r"_bits?(_|$)", item.name.split("[")[0]) or (slow and compares_exactly(item.function)):
            item.add_marker(pytest.mark.optimized)


EXACT = {"array_equal", "assert_array_equal", "assert_same_bits", "bits", "bits_of", "tobytes"}


def compares_exactly(function: Callable) -> bool:
    """Whether the code of a test compares bits."""
    return not EXACT.isdisjoint(names_in(inspect.unwrap(function).__code__))


def names_in(code: CodeType) -> set[str]:
    """The names in the code of a function and of those within it."""
    return set(code.co_names).union(*(names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


@functools.cache
def counts_programs(function: Callable) -> bool:
    """Whether a test, or a function of the tests that it names, counts traces, compilations or waits."""
    functions = [function]
    for function in functions:
        names = names_in(function.__code__)
        if not names.isdisjoint(("counters", "counted")):
            return True
        named = [inspect.unwrap(f) for f in map(function.__globals__.get, names) if inspect.isfunction(f)]
        functions += [f for f in named if f not in functions and f.__code__.co_filename.startswith(TESTS)]
    return False


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What importing and collecting makes lives as long as the process: the garbage collector need not walk it again and again,
    which took a tenth of the time of the tests."""
    gc.disable()
    result = yield
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    return result


@pytest.fixture
def rng() -> np.random.Generator:
    """The same random numbers in every test and on every machine."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Every test draws the same random numbers, whichever tests ran before: initial parameters come from global seeds."""
    random.seed(0)
    np.random.seed(0)
    keys.seed(0)


@pytest.fixture(autouse=True)
def compiled(request: pytest.FixtureRequest):
    """Promises about bits and about programs hold for optimized programs; tests of operators and metrics compile thousands of
    programs for a handful of numbers, which no optimization is worth."""
    if request.node.get_closest_marker("optimized"):
        jax.config.update("jax_disable_most_optimizations", False)
    elif request.path.name.startswith(("test_ops_", "test_lowering", "test_metrics", "test_mxnet_metric")):
        jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", QUICKLY)


@pytest.fixture(autouse=True)
def no_programs(request: pytest.FixtureRequest):
    """Tests that count compilations do not depend on those before; keys of programs do not have code that a test changed."""
    alone = "monkeypatch" in request.fixturenames or counts_programs(inspect.unwrap(request.function))
    if alone:
        jfit.clear_programs()
    yield
    if alone:
        jfit.clear_programs()


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """The tests of a file share what jfit compiles; jax keeps every program for the life of a process, which a few thousand
    tests fill the memory with.  Dropped programs come back from the compile cache."""
    yield
    jfit.clear_programs()
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        jax.clear_caches()
