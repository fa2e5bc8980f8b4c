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
