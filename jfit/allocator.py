"""Settings of glibc's malloc under which XLA's CPU client reuses the memory of its temporary buffers from call to call.

XLA allocates the temporary buffer of each call with malloc.  From 32 MB, and often from less, glibc maps new pages for it
and returns them to the system after the call, so that every call faults all of its pages again: 76,000 page faults and a
fifth of the CPU time of a step of ResNet-20 at batch size 128.  `import jfit` therefore sets, for the whole process and
before JAX creates its threads: no separate mappings (`M_MMAP_MAX` 0), free memory at the end of the heap is returned to the
system from 2 GiB on (`M_TRIM_THRESHOLD`), and one arena for all threads (`M_ARENA_MAX` 1; other arenas return their memory at
once).

With one arena, threads wait for each other where they allocate: on two cores small networks train fewer samples per second
(docs/training.md, "malloc").  More arenas lose the gain: glibc maps every block above 64 MB that a thread outside the main
arena asks for, whatever `M_MMAP_MAX` and `M_TOP_PAD` say.

The results have the same bits.  What changes for the rest of the process: up to 2 GiB of freed
memory are not returned to the system until the next `jfit.fit` begins, has compiled a program, or ends.

Source: mallopt(3) of the Linux manual.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

# (parameter, value) of mallopt; the numbers of the parameters are those of glibc's malloc.h
_SETTINGS = ((-4, 0), (-1, 2**31 - 1), (-8, 1))  # M_MMAP_MAX, M_TRIM_THRESHOLD (largest int), M_ARENA_MAX
_OTHERS = ("LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_KEEPS = "malloc keeps freed memory for the next call of XLA (JFIT_MALLOC=0: off)"

# One sentence, after `start`: whether the settings are in force, and if not, why.
state = "malloc is as the system set it"


def start() -> None:
    """Change the settings as `import jfit` does, unless `_obstacle` finds a reason not to.

    Sets `state`, and logs it if `logging.getLogger("jfit").setLevel("DEBUG")` was called before.

    Example:
        >>> start()
        >>> state.startswith("malloc ")
        True
    """
    global state
    reason = _obstacle()
    if reason is None and all(ctypes.CDLL(None).mallopt(name, value) for name, value in _SETTINGS):
        state = _KEEPS
    else:
        state = f"malloc is as the system set it: {reason or 'it refused the settings'}"
    logger = logging.getLogger("jfit")
    if logger.level == logging.DEBUG:  # its own level: scripts set that of the root logger, and their logs are parsed
        logger.debug(state)


def trim() -> None:
    """Return freed memory to the system, if `start` made malloc keep it; takes 0.6 ms, and 6 ms for each GB.

    Example:
        >>> trim()
    """
    if state == _KEEPS:
        ctypes.CDLL(None).malloc_trim(0)


def _obstacle() -> str | None:
    if os.environ.get("JFIT_MALLOC") == "0":
        return "JFIT_MALLOC is 0"
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return "the C library is not glibc"
    # Another allocator may be loaded, or somebody has chosen settings.
    chosen = [name for name in _OTHERS if os.environ.get(name)]
    if chosen or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return f"{', '.join(chosen) or 'GLIBC_TUNABLES'} is set"
    # The threads of a backend have arenas of their own already, whose memory would be returned at once.
    if getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        return "JAX has used its devices before jfit was imported"
    return None
