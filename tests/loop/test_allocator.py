"""malloc's settings: what `import jfit` changes, and when it changes nothing."""

import logging
import os
import subprocess
import sys

import pytest

from jfit import allocator

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the settings are those of glibc")

FAULTS = """
import ctypes, resource
import jfit
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def use(size=1 << 26):
    memory = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(memory, 0, size)
    libc.free(memory)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(), use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(**variables):
    names = ("JFIT_MALLOC", "GLIBC_TUNABLES", *allocator._OTHERS)
    environment = {name: value for name, value in os.environ.items() if name not in names} | variables
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@linux
def test_memory_that_is_freed_and_allocated_again_faults_no_pages():
    assert _faults() < 10 < _faults(JFIT_MALLOC="0")  # 64 MB: 16,384 pages, or 32 huge ones


@pytest.fixture
def untouched(monkeypatch):
    for name in ("JFIT_MALLOC", "GLIBC_TUNABLES", *allocator._OTHERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", None)
    return monkeypatch


@linux
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("JFIT_MALLOC", "0", "JFIT_MALLOC is 0"),
        ("LD_PRELOAD", "libjemalloc.so", "LD_PRELOAD is set"),
        ("MALLOC_ARENA_MAX", "4", "MALLOC_ARENA_MAX is set"),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", "GLIBC_TUNABLES is set"),
        ("GLIBC_TUNABLES", "glibc.cpu.x86_ibt=on", None),
        ("UNRELATED", "1", None),
    ],
)
def test_settings_that_somebody_has_chosen_are_left_alone(untouched, name, value, reason):
    untouched.setenv(name, value)
    assert allocator._obstacle() == reason


@linux
def test_a_process_that_has_used_its_devices_is_left_alone(monkeypatch, untouched, caplog):
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", type("bridge", (), {"_backends": {"cpu": object()}}))
    monkeypatch.setattr(allocator, "state", "")
    with caplog.at_level(logging.DEBUG, logger="jfit"):
        allocator.start()
    assert allocator.state == "malloc is as the system set it: JAX has used its devices before jfit was imported"
    assert caplog.messages == [allocator.state]


KEPT = """
import ctypes
import numpy as np
import jfit
from jfit import allocator
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) >> 8  # MB, of pages of 4 KB
freed, last = (libc.malloc(ctypes.c_size_t(n)) for n in (200 << 20, 100))  # the end of the heap stays in use
ctypes.memset(freed, 1, 200 << 20)
libc.free(freed)
before = resident()
allocator.trim()
print(before - resident())
"""


@linux
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("choice", "least", "most"), [("1", 190, 300), ("0", 0, 10)])
def test_trim_returns_what_malloc_keeps(choice, least, most):
    done = subprocess.run(
        [sys.executable, "-c", KEPT], env={**os.environ, "JFIT_MALLOC": choice}, capture_output=True, text=True, check=True
    )
    assert least <= int(done.stdout) <= most
