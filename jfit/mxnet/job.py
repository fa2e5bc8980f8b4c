"""How a script for MXNet's `dist` stores joins its job: by the environment variables of MXNet's launcher, or of torchrun.

MXNet starts workers, servers and a scheduler, with the role in `DMLC_ROLE`.  jfit has workers only: every process applies the
optimizer itself.  So a process with another role has nothing to do, and ends.
"""

from __future__ import annotations

import contextlib
import os
import sys

import jax

from jfit import distributed
from jfit.distributed.settings import launched, settings_of
from jfit.platforms import cores


def end_unless_worker() -> None:
    """End this process, with exit status 0 and a line on stderr, if MXNet's launcher started it as a server or scheduler.

    MXNet runs its servers at `import mxnet`, so that they never reach the script; `import jfit.mx` calls this function.

    Example:
        >>> end_unless_worker()
    """
    role = os.environ.get("DMLC_ROLE", "worker")
    if role in ("server", "scheduler"):
        print(f"jfit: DMLC_ROLE is {role!r}, but jfit needs workers only, so this process ends", file=sys.stderr, flush=True)
        sys.exit(0)


def emulate_devices(count: int) -> None:
    """Have JAX emulate CPU devices, because MXNet has a context `cpu(i)` for every i.

    Nothing changes if JAX has computed something, `XLA_FLAGS` has a number of devices, a launcher started this process as one
    of several, or `jax_num_cpu_devices` is `count` or more.  Each device beyond the number of cores adds a thread to JAX's
    pool: on two cores, a small MLP takes a tenth more CPU time with four devices, and a half more with eight.

    Args:
        count: number of devices.

    Example:
        >>> emulate_devices(2)
    """
    chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or launched() is not None
    if not chosen and jax.config.jax_num_cpu_devices < count:  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", count)


def emulate_some_devices() -> None:
    """Emulate four CPU devices, with more cores up to eight, and with one core none: threads would take turns on it.

    `import jfit.mx` calls this function.

    Example:
        >>> emulate_some_devices()
    """
    if cores() > 1:
        emulate_devices(min(max(cores(), 4), 8))


def check_synchronous(name: str) -> None:
    """Raise an error if a type of key-value store is asynchronous, such as `dist_async`.

    Args:
        name: the type.

    Raises:
        ValueError: the type is asynchronous.

    Example:
        >>> check_synchronous("dist_sync")
    """
    if "dist" in name.lower() and "async" in name.lower():
        raise ValueError(f"kvstore {name!r} is asynchronous, which can diverge; use 'dist_sync', the sum over all processes")


def join_job(name: str) -> None:
    """Join the job that environment variables describe, unless this process has; without such variables, do nothing.

    Args:
        name: type of the key-value store, for messages.

    Raises:
        RuntimeError: JAX has already computed something, so it cannot join.
        ValueError: a variable is missing, or impossible; or the type is asynchronous.

    Example:
        >>> join_job("dist_sync")
        >>> distributed.num_processes()
        1
    """
    check_synchronous(name)
    end_unless_worker()
    if distributed.num_processes() > 1:
        return
    settings = settings_of()
    if settings is None or settings.num_processes == 1:
        return
    try:
        distributed.init()
    except RuntimeError as error:
        if isinstance(error, distributed.JobError):
            raise
        problem = f"kvstore {name!r} cannot join the job that {settings.source} describe: JAX has computed something before"
        raise RuntimeError(f"{problem} ({error}); create the kvstore at the beginning of the script") from None
