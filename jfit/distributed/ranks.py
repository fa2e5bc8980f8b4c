"""Ranks of processes that were started without a number: first come, first served, as ps-lite gives them to MXNet's workers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from jfit.distributed.channel import JobError
from jfit.distributed.connection import Connection, accept_until, open_connection, serve
from jfit.distributed.settings import Settings

_CLAIM = "jfit-rank-1"


def claim_rank(settings: Settings, timeout: float) -> Settings:
    """Agree on ranks with the other processes at the address of the coordinator.

    The first process on that host gets rank 0; it numbers the others in the order in which they connect.

    Args:
        settings: the job, without the rank of this process.
        timeout: seconds to wait for all processes.

    Returns:
        `Settings` with the rank.

    Raises:
        JobError: not all processes came in time, or nobody answers.
    """
    end = time.monotonic() + timeout
    try:
        server = serve(*settings.address, settings.num_processes + 16)
    except OSError:  # another process has it, or it is the address of another host
        return settings._replace(rank=_received(settings, end, timeout))
    with server:
        others = _connected(server, settings, end, timeout)
    # The server is closed first: a process that has its rank connects to the hub of rank 0, at the same address.
    for rank, other in enumerate(others, start=1):
        with contextlib.suppress(OSError):  # it is gone: the hub will say that this rank did not connect
            other.send({"type": _CLAIM, "rank": rank})
        other.close()
    return settings._replace(rank=0)


def _connected(server: socket.socket, settings: Settings, end: float, timeout: float) -> list[Connection]:
    others: list[Connection] = []
    lock, count = threading.Lock(), settings.num_processes - 1

    def greet(other: Connection) -> None:
        with contextlib.suppress(Exception):  # a stranger may send anything
            if other.receive_greeting() == {"type": _CLAIM, "token": settings.token}:
                with lock:
                    if len(others) < count:
                        others.append(other)
                        return
        other.close()

    if not accept_until(server, end, greet, lambda: len(others) == count):
        raise JobError(
            f"{len(others) + 1} of {settings.num_processes} processes asked for a rank at {settings.coordinator} within "
            f"{timeout:.0f} s; start the others, or wait longer with jfit.distributed.init(timeout=...)"
        )
    return others


def _received(settings: Settings, end: float, timeout: float) -> int:
    while True:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            left = max(end - time.monotonic(), 0.1)
            connection = open_connection(settings.address, min(left, 5.0))
            try:
                connection.timeout(left)
                connection.send({"type": _CLAIM, "token": settings.token})
                answer, _ = connection.receive()
                rank = answer.get("rank")
                if answer["type"] == _CLAIM and isinstance(rank, int) and 0 < rank < settings.num_processes:
                    return rank
            finally:
                connection.close()
        if time.monotonic() > end:
            raise JobError(
                f"this process got no rank from {settings.coordinator} within {timeout:.0f} s; without DMLC_WORKER_ID, one of "
                f"the workers must run on that host, and all must be started; the address comes from {settings.source}"
            )
        time.sleep(0.1)
