"""The job of this process: `init`, rank and number of processes, values exchanged by all of them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
from typing import Any

import jax

from jfit import activity, counters, interrupts
from jfit.activity import Doing
from jfit.distributed.channel import Channel
from jfit.distributed.client import Store, disconnect, start, wait_for_port
from jfit.distributed.errors import JobError
from jfit.distributed.hooks import install
from jfit.distributed.monitor import EXCHANGING, LAST_EXCHANGE, Monitor, Peer, place_of, start_of
from jfit.distributed.output import show_once
from jfit.distributed.settings import launched, settings_of, token_of
from jfit.distributed.stops import AgreedFlag, Stops

# What is wrong with a process that says something else about itself than rank 0, by what it says.
_UNFIT = {
    "token": "has another token than the job of rank 0: end processes of earlier launches, and start all with the same command "
    "of their launcher, or with the same JFIT_JOB_TOKEN",
    "num_processes": "was started for {} processes, but rank 0 for {}; pass the same number to all",
    "versions": "has {}, but rank 0 has {}; install the same versions everywhere",
}


class Job:
    """What this process knows about its job.

    Attributes:
        rank: number of this process.
        peers: `Peer` of each rank.
        store: keys and values that all processes share.
        channel: exchanges with the other processes.
        monitor: notices processes that fail or stall.
        stops: stops on which all processes agree.
    """

    def __init__(self, rank: int, peers: list[Peer], store: Store, watchdog: float) -> None:
        self.rank, self.peers, self.store, self.channel = rank, peers, store, Channel(store, rank, len(peers))
        self.monitor = Monitor(rank, peers, store, self.channel, watchdog)
        self.stops = Stops(store, self.channel, self.monitor.later)
        self.monitor.start(self.stops.listen)
        install(self.monitor)
        interrupts.use_flags(lambda: AgreedFlag(self.stops))


_job: Job | None = None


def current() -> Job | None:
    """The job of this process; None before `init`, and for a job of one process."""
    return _job


def init(
    coordinator: str | None = None,
    num_processes: int | None = None,
    rank: int | None = None,
    *,
    local_devices: Any = None,
    timeout: float = 60.0,
    watchdog: float = 30.0,
) -> None:
    """Join the processes of a job; call it once, before anything is computed.  Afterwards jfit uses all their devices.

    All processes call it with the same script.  Without arguments, it reads the environment of torchrun (`RANK`, `WORLD_SIZE`,
    `MASTER_ADDR`, `MASTER_PORT`; the coordinator listens at the port after it), or that of MXNet's launcher (`DMLC_NUM_WORKER`,
    `DMLC_PS_ROOT_URI`, `DMLC_PS_ROOT_PORT`, `DMLC_WORKER_ID`), or else asks JAX, which knows Slurm, Open MPI, Kubernetes and
    TPU pods.  Where none of these is found, the job is this one process, and a line on stderr says so.

    A process that has another token than rank 0 ends the start, and is named: the token is the environment variable
    `JFIT_JOB_TOKEN`, else the id of torchrun or Slurm for this launch, if there is one.

    Args:
        coordinator: "host:port" on which the process of rank 0 listens.
        num_processes: number of processes.
        rank: number of this process, from 0 to `num_processes` - 1.
        local_devices: numbers of the devices of this host that belong to this process, from 0.  None: with accelerators and
            torchrun, the one of its local rank; else all.
        timeout: seconds to wait for the other processes.
        watchdog: seconds after which a process that makes no progress, while others wait for it, or gives no sign of life, ends
            the job; see "When a process fails" in docs/hosts.md.

    Raises:
        JobError: the other processes did not come, or do not fit together; the port is in use.
        RuntimeError: JAX has already computed something, or `init` was called before.
        ValueError: some of the arguments are missing or impossible.

    Example:
        >>> import jfit
        >>> jfit.distributed.rank(), jfit.distributed.num_processes()
        (0, 1)
    """
    global _job
    if _job is not None or jax.distributed.is_initialized():
        raise RuntimeError(
            "jfit.distributed.init was called after the job had begun; call it once, and jax.distributed.initialize not at all"
        )
    settings = settings_of(coordinator, num_processes, rank)
    if settings is not None and settings.num_processes == 1:
        return
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:  # it would take SIGTERM, and do nothing
        jax.config.update("jax_enable_preemption_service", False)
    if settings is not None and settings.rank == 0:  # a process that torchrun is ending may still have the port
        wait_for_port(settings, timeout if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" else 0.0)
    try:
        client, count, number = start(settings, timeout, local_devices)
    except ValueError as error:
        if settings is not None or "coordinator_address" not in str(error):
            raise
        if name := launched():
            raise JobError(
                f"{name} is {os.environ[name]}, so a launcher started this process as one of several, but JAX does not know "
                "that launcher; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process (see docs/hosts.md)"
            ) from None
        what = "the variables of torchrun (RANK, WORLD_SIZE) nor a cluster that JAX knows (Slurm, Open MPI, Kubernetes, TPU)"
        print(f"jfit.distributed.init: this job is one process: neither {what} were found", file=sys.stderr)
        return
    try:
        _job = _joined(client, count, number, timeout, watchdog)
    except JobError:
        disconnect(settings and settings.coordinator)  # `init` may be called again
        raise
    counters.listen()  # the ends of compilations
    show_once(number, socket.gethostname())
    atexit.register(_at_exit)  # after JAX has registered its own function, so that it is called before that one


def rank() -> int:
    """Number of this process in its job.

    Returns:
        int from 0; 0 without a job.

    Example:
        >>> rank()
        0
    """
    return 0 if _job is None else _job.rank


def num_processes() -> int:
    """Number of processes of the job.

    Returns:
        int; 1 without a job.

    Example:
        >>> num_processes()
        1
    """
    return 1 if _job is None else len(_job.peers)


def is_main() -> bool:
    """Whether this process is the one that prints, logs and writes files.

    Returns:
        bool: True for rank 0, and without a job.

    Example:
        >>> is_main()
        True
    """
    return rank() == 0


def exchange(value: Any, name: str = "exchange") -> list[Any]:
    """Send a value to all processes of the job, and return the values of all, by rank.  No device takes part.

    All processes must call it, in the same order for each name.

    Args:
        value: None, numbers, texts, lists or dicts of them (as in JSON, whose keys are texts), or bytes.
        name: what is exchanged, for messages about a process that does not come; threads use different names.

    Returns:
        list with the value of each process; [value] without a job.

    Raises:
        JobError: a process was lost.
        TypeError: the value cannot be sent as JSON.

    Example:
        >>> exchange({"rows": 3}, "rows of the batch")
        [{'rows': 3}]
    """
    if _job is None:
        return [value]
    activity.begin_together(f"the exchange {name!r}")
    with Doing(activity.PEERS, EXCHANGING.format(name)):
        return _job.channel.exchange(name, value)


def barrier(name: str = "barrier") -> None:
    """Wait until all processes of the job have called this function.

    Args:
        name: what is waited for, for messages about a process that does not come.

    Raises:
        JobError: a process was lost.

    Example:
        >>> barrier()
    """
    exchange(None, name)


def shutdown() -> None:
    """Leave the job, after all processes have called this function.  It is called when the process ends without an error.

    Example:
        >>> shutdown()
    """
    global _job
    if _job is None:
        return
    with Doing(activity.END, "at the end of its script"):
        _job.channel.exchange(LAST_EXCHANGE, None)
    job, _job = _job, None
    job.monitor.stop()
    interrupts.use_flags(None)
    jax.distributed.shutdown()
    job.store.close()


def _at_exit() -> None:
    """Leave the job at the end of the script.  (After an error, the hooks have ended the process before.)"""
    if _job is not None and os.getpid() == _job.monitor.process:
        with contextlib.suppress(JobError):
            shutdown()


def _joined(client: Any, count: int, rank: int, timeout: float, watchdog: float) -> Job:
    """Compare what the processes say about themselves, and begin the job.

    Raises:
        JobError: in all processes, if one was started for another job than rank 0.
    """
    token, pid = token_of(count), os.getpid()
    greetings = Store(client, "greetings")
    versions = f"jfit {sys.modules['jfit'].__version__}, jax {jax.__version__}"
    about = {"host": socket.gethostname(), "pid": pid, "place": place_of(), "start": start_of(pid)}
    about |= {"token": token, "num_processes": count, "versions": versions}
    greetings.set(str(rank), json.dumps(about).encode())
    peers, first = [], {}
    for other in range(count):
        greeting = greetings.get(str(other), timeout)
        if greeting is None:
            raise JobError(f"rank {other} of {count} has connected to rank 0, but did not greet within {timeout:.0f} s")
        about = json.loads(greeting)
        first = first or about
        peers.append(Peer(other, *(about[name] for name in Peer._fields[1:])))
        for name in (name for name in _UNFIT if about[name] != first[name]):
            raise JobError(f"{peers[-1]} {_UNFIT[name].format(about[name], first[name])}")
    return Job(rank, peers, Store(client, f"job {token[:16]}"), watchdog)
