"""JAX's coordination service, through which the processes of a job talk beside the devices: a store of keys in rank 0.

JAX has its client as a private name, so this is the only module that uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax._src import distributed as _runtime
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from jfit.distributed.errors import JobError
from jfit.distributed.settings import Settings

_HEARTBEAT = 300  # seconds without one after which JAX ends the job, if jfit's watchdog has not
_ANSWERS = ("NOT_FOUND", "ALREADY_EXISTS")
_LOST = ("UNAVAILABLE", "CANCELLED")  # there is no connection, or it ends
_LOOPBACK = ("127.", "localhost:", "[::1]:")  # with another address, JAX listens on all interfaces, or on those it is told
_handlers: list[Any] = []  # of SIGABRT; C keeps no reference to them


class Unreachable(JobError):
    """The service in rank 0 is gone."""


class Store:
    """The keys and values of the service; threads may share it.

    Calls wait while the process of rank 0 is stopped, so that another thread must watch `answers`.

    Args:
        client: the client of JAX's coordination service.
        prefix: what the keys of this job begin with.

    Attributes:
        answers: number of answers of the service.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        self._client, self._prefix = client, f"jfit/{prefix}/"
        self.answers = 0
        self._calling: set[int] = set()  # ids of threads
        self._closed = False

    def set(self, key: str, value: bytes) -> None:
        """Store a value, which replaces an earlier one."""
        self._call("key_value_set_bytes", key, value, True)

    def add(self, key: str, value: bytes) -> bool:
        """Store a value unless the key has one; return whether it was stored."""
        while (stored := self._call("key_value_set_bytes", key, value, False)) is None:  # late: stored or not
            pass
        return stored

    def count(self, key: str) -> int:
        """Add 1 to a number, which begins with 0, and return it; 0 if the service answers too late."""
        return self._call("key_value_increment", key, 1) or 0

    def get(self, key: str, seconds: float = 0.0) -> bytes | None:
        """Return a value; wait until it is stored, at most so many seconds, then return None."""
        if seconds <= 0:
            return self._call("key_value_try_get_bytes", key) or None
        return self._call("blocking_key_value_get_bytes", key, max(int(1000 * seconds), 1)) or None

    def all(self, folder: str) -> dict[str, bytes]:
        """Return the values whose keys are `folder/...`, by the rest of their keys."""
        return {key.rpartition("/")[2]: value for key, value in self._call("key_value_dir_get_bytes", f"{folder}/") or ()}

    def delete(self, folder: str) -> None:
        """Remove the value of a key, and those whose keys are `folder/...`."""
        self._call("key_value_delete", folder)

    def close(self) -> None:
        """Refuse calls, and wait for those of other threads: Python must not end while one is in C++ code."""
        self._closed = True
        while self._calling:
            time.sleep(0.01)

    def _call(self, method: str, key: str, *args: Any) -> Any:
        """Call a method of the client.

        Returns:
            Its result, or True; False: the service answered no; None: the time is over, and the service may be stopped.

        Raises:
            RuntimeError: the service refused the call.
            Unreachable: the service is gone.
        """
        self._calling.add(threading.get_ident())
        try:
            if self._closed:
                raise Unreachable("this process has left its job")
            result = getattr(self._client, method)(self._prefix + key, *args)
        except jax.errors.JaxRuntimeError as error:
            status, line = str(error).partition(":")[0], str(error).partition("\n")[0][:200]
            if status == "DEADLINE_EXCEEDED":
                return None
            if status in _LOST:
                raise Unreachable(f"the connection to rank 0 was lost ({line})") from None
            if status not in _ANSWERS:
                raise RuntimeError(f"JAX's store in rank 0 refused {method}({key!r}) ({line})") from None
            result = False
        finally:
            self._calling.discard(threading.get_ident())
        self.answers += 1
        return True if result is None else result


def start(settings: Settings | None, timeout: float, local_devices: Any = None) -> tuple[Any, int, int]:
    """Start JAX's runtime for several processes.

    Args:
        settings: the processes; None: JAX detects them.
        timeout: seconds to wait until all have connected.
        local_devices: numbers of the devices of this process; None: all.

    Returns:
        (client of the service, number of processes, rank of this process).

    Raises:
        JobError: not all processes came in time, or this one was turned away.
        RuntimeError: JAX has computed something, or the service cannot listen.
        ValueError: JAX detects no cluster.
    """
    seconds, state = max(int(timeout), 1), _runtime.global_state
    address, count, rank, local, _ = settings or (None,) * 5
    service, client = _jax.get_distributed_runtime_service, _jax.get_distributed_runtime_client
    # `jax.distributed.initialize` has no arguments for these.  With a callback, a process that cannot connect raises an error;
    # without, JAX aborts it.  (Where jaxlib cannot call the callback, that is the exception.)
    _jax.get_distributed_runtime_service = functools.partial(service, cluster_register_timeout=seconds)
    _jax.get_distributed_runtime_client = functools.partial(client, missed_heartbeat_callback=lambda *status: os.abort())
    try:
        jax.distributed.initialize(
            address,
            count,
            rank,
            local_device_ids=[local] if local_devices is None and local is not None else local_devices,
            initialization_timeout=seconds + 5,  # after the service, which knows who is missing
            heartbeat_timeout_seconds=_HEARTBEAT,
            shutdown_timeout_seconds=10,
            coordinator_bind_address=address if address and address.startswith(_LOOPBACK) else None,
        )
    except RuntimeError:
        if state.client is None:
            raise  # JAX has computed something, or cannot listen
        raise JobError(_problem(disconnect(), settings, timeout)) from None
    finally:
        _jax.get_distributed_runtime_service, _jax.get_distributed_runtime_client = service, client
    return state.client, state.num_processes, state.process_id


def disconnect(coordinator: str | None = None) -> str:
    """End the connection of a job that does not begin, so that another may begin; return the status that its client reports.

    Args:
        coordinator: address of the service, where this process had connected; a rank other than 0 then waits until that service
            is gone: to connect to it again, shortly before rank 0 ends it, would abort this process.
    """
    state, status = _runtime.global_state, ""
    with contextlib.ExitStack() as stack:
        old = None
        if coordinator is not None and state.service is None:
            host, _, port = coordinator.rpartition(":")
            with contextlib.suppress(OSError):  # the service is gone
                old = stack.enter_context(socket.create_connection((host.strip("[]"), int(port)), timeout=10))
        try:
            state.shutdown()
        except jax.errors.JaxRuntimeError as error:
            status = str(error).partition("Agent status: ")[2].removeprefix("%s").partition("\nRPC")[0].strip()
            state.client = None
            state.shutdown()  # of the service
        with contextlib.suppress(OSError):  # a reset connection, or 10 s over
            while old is not None and old.recv(4096):  # until the service closes the connection
                pass
    return status


def _problem(status: str, settings: Settings | None, timeout: float) -> str:
    """Say why a job does not begin, of which the client reports a status."""
    if settings is None:
        return f"the processes did not connect to the coordinator that JAX has detected within {timeout:.0f} s ({status})"
    rank, count = settings.rank, settings.num_processes
    if missing := re.findall(r"(\d+)$", status.partition("timed out task names:")[2].strip(), re.MULTILINE):
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(sorted(missing, key=int)[:8])} of {count}"
        remedy = "start what is missing, or wait longer with jfit.distributed.init(timeout=...)"
        return f"{ranks} did not connect to rank 0 within {timeout:.0f} s; {remedy}"
    if "incarnation" in status:
        return f"another process has joined as rank {rank}; give each its own, and end processes of earlier launches"
    if "Unexpected task" in status:
        found = f"this process is rank {rank} of {count}, but rank 0 was started for fewer processes"
        return f"{found}; pass the same number to all"
    return (
        f"rank {rank} could not connect to rank 0 at {settings.coordinator} within {timeout:.0f} s ({status}); check "
        f"that its process runs, and that this address is its own, reachable from here; it comes from {settings.source}"
    )


def wait_for_port(settings: Settings, timeout: float) -> None:
    """Wait until no process of this host listens at the port of the job: gRPC would share it, and connect ranks to either.

    Raises:
        JobError: the port is still in use.
    """
    end, port = time.monotonic() + timeout, int(settings.coordinator.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    while True:
        try:
            with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as probe:  # never listens: no stranger can connect
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not refused by connections of an ended job
                if both:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                return probe.bind(("", port))
        except OSError as error:
            if time.monotonic() >= end:
                raise JobError(
                    f"rank 0 cannot listen at {settings.coordinator}: another program has the port, or an earlier job still "
                    f"runs ({error}); pass another port; the address comes from {settings.source}"
                ) from None
        time.sleep(0.1)


def on_abort(function: Callable[[], None] | None) -> None:
    """Call a function when C++ code aborts this process, as JAX's client does on a thread of its own when rank 0 is gone."""
    handler = function and ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: function())
    _handlers.append(handler)
    ctypes.pythonapi.PyOS_setsig(signal.SIGABRT, handler)
