"""The job of this process: `init`, rank and number of processes, values exchanged by all of them."""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import json
import os
import secrets
import socket
import sys
import threading
from typing import Any

import jax
import numpy as np

from jfit import activity, counters, interrupts
from jfit.activity import Doing
from jfit.distributed.channel import Channel, Hub, JobError, connect, listen
from jfit.distributed.connection import is_loopback, serve, serve_all
from jfit.distributed.errors import Hooks
from jfit.distributed.monitor import EXCHANGING, LAST_EXCHANGE, Monitor, Peer, place_of, start_of
from jfit.distributed.output import show_once
from jfit.distributed.ranks import claim_rank
from jfit.distributed.settings import UNNUMBERED, Settings, launched, settings_of, token_of
from jfit.distributed.stops import AgreedFlag, HubStops, Stops


class Job:
    """What this process knows about its job.

    Attributes:
        settings: the `Settings` it was started with.
        channel: `Channel` to the hub.
        hub: the `Hub`, in the process of rank 0; else None.
        peers: `Peer` of each rank.
        monitor: notices processes that fail or stall.
        stops: stops on which all processes agree.
        hooks: for errors of this process.
    """

    def __init__(self, settings: Settings, channel: Channel, hub: Hub | None, peers: list[Peer], watchdog: float) -> None:
        self.settings, self.channel, self.hub, self.peers = settings, channel, hub, peers
        self.monitor = Monitor(settings.rank, peers, channel, hub, watchdog)
        self.stops = Stops(channel, self.monitor.later)
        self.monitor.ended.append(self.stops.fail)
        if hub is not None:
            HubStops(hub)
            hub.start()
        channel.start()
        self.monitor.start()
        self.hooks = Hooks(self.monitor)
        interrupts.use_flags(lambda: AgreedFlag(self.stops))

    def leave(self) -> None:
        """Stop watching the other processes."""
        self.monitor.stop()
        self.hooks.remove()
        interrupts.use_flags(None)

    def forget(self) -> None:
        """In a forked process: close its copies of the connections, which would keep them open after the end of its parent."""
        self.channel.forget()
        if self.hub is not None:
            self.hub.forget()


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

    Rank 0 turns away processes that have another token than its own: the environment variable `JFIT_JOB_TOKEN`, else the id of
    torchrun or Slurm for this launch, if there is one.

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
    if settings is not None:
        settings = settings._replace(token=token_of(settings.num_processes))
    if settings is None or settings.num_processes > 1:
        _check_nothing_computed()
        if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:  # it would take SIGTERM, and do nothing
            jax.config.update("jax_enable_preemption_service", False)
    if settings is not None and settings.rank == UNNUMBERED and settings.num_processes > 1:
        settings = claim_rank(settings, timeout)
    if settings is None:
        settings = _detected(local_devices, timeout)
        if settings is None:
            return
        _joined(settings, timeout, watchdog, started=True)
    elif settings.num_processes > 1:
        _joined(settings, timeout, watchdog, local_devices=local_devices)


def rank() -> int:
    """Number of this process in its job.

    Returns:
        int from 0; 0 without a job.

    Example:
        >>> rank()
        0
    """
    return 0 if _job is None else _job.settings.rank


def num_processes() -> int:
    """Number of processes of the job.

    Returns:
        int; 1 without a job.

    Example:
        >>> num_processes()
        1
    """
    return 1 if _job is None else _job.settings.num_processes


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
        value: None, numbers, texts, lists or dicts of them (as in JSON), or bytes.
        name: what is exchanged, for messages about a process that does not come; threads use different names.

    Returns:
        list with the value of each process; [value] without a job.

    Raises:
        JobError: a process was lost.

    Example:
        >>> exchange({"rows": 3}, "rows of the batch")
        [{'rows': 3}]
    """
    if _job is None:
        return [value]
    activity.begin_together(f"the exchange {name!r}")
    with Doing(activity.PEERS, EXCHANGING.format(name)):
        return _job.channel.begin_exchange(name, value).result()


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
    job = _job
    with Doing(activity.END, "at the end of its script"):
        job.channel.begin_exchange(LAST_EXCHANGE, None).result()
    _job = None
    job.leave()
    jax.distributed.shutdown()
    job.channel.close()


def _at_exit() -> None:
    """Leave the job at the end of the script.  (After an error, the hooks have ended the process before.)"""
    if _job is not None and os.getpid() == _job.monitor.process:
        with contextlib.suppress(JobError):
            shutdown()


def _after_fork() -> None:
    if _job is not None:
        _job.forget()


def _joined(settings: Settings, timeout: float, watchdog: float, *, started: bool = False, local_devices: Any = None) -> None:
    """Connect to the other processes, and start JAX's runtime for several processes unless it was started."""
    global _job
    pid = os.getpid()
    hello = {"host": socket.gethostname(), "pid": pid, "place": place_of(), "start": start_of(pid), "versions": _versions()}
    hello["token"] = settings.token
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    server, hub = (listen(settings, timeout if again else 0.0) if settings.rank == 0 else None), None
    if server is not None:
        hub = Hub(server, settings.num_processes, hello)

        def answer() -> dict[str, Any]:
            assert hub is not None
            peers = [[h["host"], h["pid"], h.get("place", ""), h.get("start", 0)] for _, h in sorted(hub.hellos.items())]
            return {"type": "welcome", "peers": peers, "port": _free_port(settings.address[0])}

        def welcome() -> None:
            with contextlib.suppress(JobError):  # this process hears of it, too
                hub.welcome(timeout, answer)

        threading.Thread(target=welcome, name="jfit-hub", daemon=True).start()
    channel, reply = connect(settings, hello, timeout)
    peers = [Peer(rank, *values) for rank, values in enumerate(reply["peers"])]
    counters.listen()  # the ends of compilations
    _job = Job(settings, channel, hub, peers, watchdog)
    show_once(settings.rank, hello["host"])
    if not started:
        with Doing(activity.PEERS, "starting JAX's runtime"):
            _start_jax(settings, int(reply["port"]), timeout, local_devices)
    atexit.register(_at_exit)  # after JAX has registered its own function, so that it is called before that one
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _check_nothing_computed() -> None:
    """Raise RuntimeError if JAX has started its devices, which then are those of one process."""
    try:
        jax.distributed.initialize("127.0.0.1:1", cluster_detection_method="deactivate")  # never valid: no number of processes
    except RuntimeError:
        raise RuntimeError(
            "jfit.distributed.init was called after JAX had started its devices, which are then those of one process; call it "
            "first: before jax.devices(), before anything is computed, and before models that compute values when they are made"
        ) from None
    except ValueError:
        pass


def _start_jax(settings: Settings, port: int, timeout: float, local_devices: Any) -> None:
    host, _ = settings.address
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if local_devices is None and settings.local_rank is not None:
        local_devices = [settings.local_rank]
    jax.distributed.initialize(
        address,
        settings.num_processes,
        settings.rank,
        local_device_ids=local_devices,
        initialization_timeout=max(int(timeout), 1),
        heartbeat_timeout_seconds=300,  # the watchdog of jfit is faster, and JAX aborts the process
        shutdown_timeout_seconds=10,
        coordinator_bind_address=address if is_loopback(host) else None,
    )


def _detected(local_devices: Any, timeout: float) -> Settings | None:
    """Ask JAX whether a cluster is there; its coordinator is then used to agree on the address of the hub."""
    try:
        jax.distributed.initialize(
            local_device_ids=local_devices,
            initialization_timeout=max(int(timeout), 1),
            heartbeat_timeout_seconds=300,
            shutdown_timeout_seconds=10,
        )
    except ValueError as error:
        if "coordinator_address" not in str(error):
            raise
        if name := launched():
            raise JobError(
                f"{name} is {os.environ[name]}, so a launcher started this process as one of several, but JAX does not know "
                "that launcher, and each process would train alone; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each "
                "(see docs/hosts.md), or pass coordinator=, num_processes= and rank="
            ) from None
        print(
            "jfit.distributed.init: this job is one process: neither the variables of torchrun (RANK, WORLD_SIZE) nor a "
            "cluster that JAX knows (Slurm, Open MPI, Kubernetes, TPU) were found",
            file=sys.stderr,
        )
        return None
    from jax.experimental import multihost_utils

    count, number = jax.process_count(), jax.process_index()
    own = socket.gethostname()
    inside = _address_of(own)
    outside = _outward_address(inside)
    port = _free_port(inside)
    token = secrets.token_hex(16)
    sent = np.frombuffer(json.dumps([own, inside, outside, port, token]).encode()[:512].ljust(512), np.uint8)
    hosts = [json.loads(bytes(row)) for row in np.asarray(multihost_utils.process_allgather(sent)).reshape(count, -1)]
    name, inside, outside, port, token = hosts[0]
    address = inside if all(host[0] == name for host in hosts) else outside
    return Settings(f"{address}:{port}", count, number, None, "JAX's detection of the cluster", token)


def _address_of(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:  # a container without an entry for its own name
        return "127.0.0.1"


def _outward_address(address: str) -> str:
    """The address of this host for others, if `address` is one that only this host knows: /etc/hosts may have 127.0.1.1."""
    if not is_loopback(address):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # of UDP: sends nothing, but selects the interface
            return probe.getsockname()[0]
        except OSError:  # no network
            return address


def _free_port(host: str) -> int:
    with serve(host, 0) if is_loopback(host) else serve_all(0, ipv6=":" in host) as server:
        return server.getsockname()[1]


def _versions() -> dict[str, str]:
    return {"jfit": sys.modules["jfit"].__version__, **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}}
