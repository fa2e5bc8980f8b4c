"""Forked processes: JAX cannot compute in a child of `os.fork` if it ran in the parent, because its threads are not copied.

A program that is called in such a child would wait for ever.  jfit therefore raises RuntimeError where training, scoring and
prediction begin, and where programs are called.  Arrays that are computed already can be read, and written to files.
"""

from __future__ import annotations

import os

import jax

# A setting that jax lets nobody change once it has started its backends; the time limit itself has no effect on one machine.
_FIXED_SETTING = "jax_cpu_get_local_topology_timeout_minutes"

is_forked = False  # whether this process was forked from one in which jax ran
_jax_runs = False  # in the parent, while it forks


def check_not_forked(entry: str) -> None:
    """Raise an error if this process was forked from a process in which JAX ran.

    Args:
        entry: name of the function, for the message.

    Raises:
        RuntimeError: the process was forked after JAX had started its devices.

    Example:
        >>> check_not_forked("jfit.fit")
    """
    if is_forked:
        raise RuntimeError(
            f"{entry}: process {os.getpid()} was forked (os.fork, or the method 'fork' of multiprocessing) from a process in "
            "which JAX had run; JAX's threads do not exist in the child, so that its programs would wait for ever. Start the "
            "process with multiprocessing.get_context('spawn'), or fork before anything uses JAX"
        )


def _jax_has_started() -> bool:
    """Whether jax has started its backends, in which it creates its threads; does not start them."""
    try:
        value = getattr(jax.config, _FIXED_SETTING)
        jax.config.update(_FIXED_SETTING, value + 1)
        jax.config.update(_FIXED_SETTING, value)
    except (AttributeError, RuntimeError):  # an older jax does not have the setting: expect that it runs
        return True
    return False


def _before_fork() -> None:
    global _jax_runs
    _jax_runs = _jax_has_started()


def _in_child() -> None:
    global is_forked
    is_forked = is_forked or _jax_runs


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
