"""Messages between the processes of a job, beside the devices: rank 0 has a hub, to which every process is connected by TCP.

The connections are not encrypted, like those of JAX's own coordinator, and only the token of the job (`token_of`), where there
is one, tells its processes from others: run jobs in a network that you trust.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from jfit.distributed.connection import MOST_BYTES, Connection, accept_until, is_elsewhere, open_connection, serve, serve_all
from jfit.distributed.settings import Settings

Handler = Callable[[dict[str, Any], bytes], None]

_GREETING = "jfit-job-1"
_MOST_WAITING = 4 * MOST_BYTES  # of one process, for exchanges that are not complete
_log = logging.getLogger("jfit")


class JobError(RuntimeError):
    """Another process of the job failed, was lost, or does something else than this one.

    Example:
        >>> issubclass(JobError, RuntimeError)
        True
    """


class RanksDiffer(JobError):
    """The processes of a job were started with other settings or data, or their parameters differ; raised by all of them.

    Example:
        >>> issubclass(RanksDiffer, JobError)
        True
    """


class Hub:
    """The server in rank 0 to which all processes connect: it collects values of all, and sends messages of one to the others.

    Args:
        server: a listening socket.
        count: number of processes, rank 0 included, of which each connects once.
        hello: what rank 0 itself sends when it connects; processes with another token or other versions are turned away.

    Attributes:
        handlers: type of a message -> `handler(rank, message, payload)`, called on the thread that reads from that process.
        lost: called with the rank of a process whose connection ended without a goodbye.
        broken: called with an exception that a handler raised.
    """

    def __init__(self, server: socket.socket, count: int, hello: dict[str, Any] | None = None) -> None:
        self._server, self.count, self._hello = server, count, hello or {}
        self.peers: dict[int, Connection] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self.handlers: dict[str, Callable[[int, dict[str, Any], bytes], None]] = {"put": self._put}
        self.lost: Callable[[int], None] = lambda rank: None
        self.broken: Callable[[Exception], None] = lambda error: None
        self.left: set[int] = set()  # ranks that said goodbye
        self._handling: set[int] = set()  # ranks whose message a handler is working on; nothing is read from them
        self._refused: list[str] = []  # why processes were turned away
        self._gathered: dict[str, dict[int, tuple[bool, int, bytes]]] = collections.defaultdict(dict)
        self._lock = threading.Lock()

    def welcome(self, timeout: float, answer: Callable[[], dict[str, Any]]) -> None:
        """Wait until all processes are connected, and answer them; then stop listening.

        Args:
            timeout: seconds to wait.
            answer: `answer() -> message`, called when all are there.

        Raises:
            JobError: not all processes came in time; those that came are told why.
        """
        problem = self._collect(timeout)
        reply: dict[str, Any] = {}
        if problem is None:
            try:
                reply = answer()
            except Exception as error:
                problem = f"rank 0 could not start the job ({type(error).__name__}: {error})"
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.send({"type": "refused", "reason": problem} if problem else reply)
        if problem:
            raise JobError(problem)

    def start(self) -> None:
        """Begin to read messages; `handlers`, `lost` and `broken` are complete."""
        for rank, peer in self.peers.items():
            peer.received_at = time.monotonic()  # since its hello, it has waited for the others
            threading.Thread(target=self._read, args=(rank, peer), name=f"jfit-hub-{rank}", daemon=True).start()

    def _collect(self, timeout: float) -> str | None:
        """Wait until all processes are connected, and stop listening; return why the job cannot begin, if so."""
        problem = None
        try:
            if not accept_until(self._server, time.monotonic() + timeout, self._greet, lambda: len(self.peers) == self.count):
                missing = sorted(set(range(self.count)) - set(self.peers))
                problem = (
                    f"rank{'s' * (len(missing) > 1)} {_shortened(missing)} of {self.count} did not connect to rank 0 within "
                    f"{timeout:.0f} s; start {'them' if len(missing) > 1 else 'it'}, or wait longer with "
                    "jfit.distributed.init(timeout=...)" + "".join(f"; turned away: {text}" for text in self._refused[:4])
                )
        except OSError as error:
            problem = f"rank 0 cannot accept connections ({error})"
        with self._lock:  # whoever greets from now on is turned away
            self._server.close()
        return problem

    def _greet(self, peer: Connection) -> None:
        """Read the hello of a new connection.  Who is no process of this job is turned away, and stops nothing."""
        try:
            hello = peer.receive_greeting()
            _check_hello(hello)
        except Exception as error:  # a stranger may send anything, such as JSON that is nested too deeply
            _log.warning(
                "rank 0 turned away %s, which did not greet as a process of a job (%s)", peer.address, type(error).__name__
            )
            peer.close()
            return
        with self._lock:
            problem = self._unfit(hello)
            if problem is None:
                self.peers[hello["rank"]], self.hellos[hello["rank"]] = peer, hello
                return
            self._refused.append(problem)
        _log.warning("rank 0 turned away %s: %s", peer.address, problem)
        with contextlib.suppress(OSError):
            peer.send({"type": "refused", "reason": problem})
        peer.close()

    def _unfit(self, hello: dict[str, Any]) -> str | None:
        """Why a process cannot take part in the job; None: it can."""
        rank, count, own = hello["rank"], hello["num_processes"], self._hello
        who = f"rank {rank} (process {hello['pid']} on {hello['host']})"
        if not hmac.compare_digest(hello.get("token", "").encode(), own.get("token", "").encode()):
            return (
                f"{who} has another token than the job of rank 0: end processes of earlier launches, and start all with the "
                "same command of their launcher, or with the same JFIT_JOB_TOKEN"
            )
        if count != self.count:
            return f"{who} was started for {count} processes, but rank 0 for {self.count}; pass the same number to all"
        if not 0 <= rank < self.count:
            return f"{who} has a rank outside of 0 to {self.count - 1}"
        first = self.hellos.get(rank) or (own if rank == 0 and own.get("pid", hello["pid"]) != hello["pid"] else None)
        if first is not None:
            return f"{who} has the same rank as process {first['pid']} on {first['host']}; give each a rank of its own"
        if own and hello.get("versions") != own["versions"]:
            return f"{who} has {_text(hello)}, but process {own['pid']} on {own['host']} has {_text(own)}"
        return "the job has begun, or has been given up" if self._server.fileno() < 0 else None

    def broadcast(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message to all processes that are still connected, that of the hub included."""
        for rank, peer in list(self.peers.items()):
            if rank not in self.left:
                with contextlib.suppress(OSError):
                    peer.send(message, blob)

    def announce(self, message: dict[str, Any], *, later: bool = False) -> None:
        """Send a small message to all processes that are still connected, without waiting for any.

        Args:
            message: is not sent to processes to which another message is being sent, or that do not read.
            later: whether threads send it to those, too, when they can.
        """
        for rank, peer in list(self.peers.items()):
            with contextlib.suppress(OSError):
                if rank not in self.left and not peer.try_send(message) and later:
                    threading.Thread(target=_send_quietly, args=(peer, message), daemon=True).start()

    def silent_for(self, rank: int, now: float) -> float:
        """Seconds since a process gave its last sign of life; 0 if that cannot be known."""
        return self.peers[rank].silent_for(now, reading=rank not in self._handling)

    def moved_at(self) -> float:
        """When the last chunk of a large message was sent or received, `time.monotonic()`."""
        return max(peer.moved_at for peer in self.peers.values())

    def _read(self, rank: int, peer: Connection) -> None:
        try:
            while True:
                try:
                    message, blob = peer.receive()
                except (ValueError, RecursionError) as error:  # it is no process of a job
                    peer.close()
                    _log.warning("rank 0 closed the connection of rank %d: %s", rank, error)
                    break
                if message["type"] == "bye":
                    self.left.add(rank)
                elif handler := self.handlers.get(message["type"]):
                    self._handling.add(rank)
                    handler(rank, message, blob)
                    peer.received_at = time.monotonic()  # what it has sent meanwhile is read now
                    self._handling.discard(rank)
        except OSError:
            pass
        except Exception as error:
            self.broken(error)
        if rank not in self.left:
            self.left.add(rank)
            self.lost(rank)

    def _put(self, rank: int, message: dict[str, Any], blob: bytes) -> None:
        with self._lock:
            values = self._gathered[message["key"]]
            values[rank] = message["json"], message["size"], blob
            if sum(len(v[rank][2]) for v in self._gathered.values() if rank in v) > _MOST_WAITING:
                raise JobError(f"rank {rank} has sent more than {_MOST_WAITING >> 20} MiB for exchanges that are not complete")
            if len(values) < self.count:
                return
            del self._gathered[message["key"]]  # the next parts have the same key
        kinds, sizes, parts = zip(*(values[r] for r in range(self.count)), strict=True)
        reply = {"type": "all", "key": message["key"], "json": kinds, "sizes": sizes, "parts": [len(part) for part in parts]}
        self.broadcast(reply, b"".join(parts))

    def missing(self) -> dict[str, list[int]]:
        """For each exchange that is not complete, the ranks that have not sent their value."""
        with self._lock:
            return {key: sorted(set(range(self.count)) - set(values)) for key, values in self._gathered.items()}

    def forget(self) -> None:
        """In a forked process: close its copies of all connections."""
        self._server.close()
        for peer in self.peers.values():
            peer.forget()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._server.close()
        for peer in self.peers.values():
            peer.close()


class _Exchange:
    """A value that is sent part by part, and what has arrived of those of all processes."""

    def __init__(self, value: Any, count: int) -> None:
        self.is_json = not isinstance(value, bytes)
        self.data = json.dumps(value).encode() if self.is_json else value
        self.sent, self.received = 0, [bytearray() for _ in range(count)]
        self.future: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()


class Channel:
    """The connection of this process to the hub.

    Args:
        connection: connected to the hub, which has answered.
        count: number of processes.

    Attributes:
        connection: the argument.
        handlers: type of a message -> `handler(message, bytes)`, called on the thread that reads from the hub.
        lost: called when the connection to the hub ends.
        broken: called with an exception that a handler raised.
    """

    def __init__(self, connection: Connection, count: int) -> None:
        self.connection, self._count = connection, count
        self.handlers: dict[str, Handler] = {"all": self._complete}
        self.lost: Callable[[], None] = lambda: None
        self.broken: Callable[[Exception], None] = lambda error: None
        self._lock, self._counts = threading.Lock(), collections.Counter[str]()
        self._waiting: dict[str, _Exchange] = {}
        self._error: JobError | None = None
        self._left = False

    def start(self) -> None:
        """Begin to read messages on a thread."""
        self.connection.received_at = time.monotonic()
        threading.Thread(target=self._read, name="jfit-channel", daemon=True).start()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message to the hub."""
        self.connection.send(message, blob)

    def begin_exchange(self, name: str, value: Any) -> concurrent.futures.Future[list[Any]]:
        """Send a value, and return a future of the list of the values of all processes, by rank.

        Args:
            name: all processes exchange values of the same name in the same order; other names may come in between.
            value: JSON (None, numbers, texts, lists, dicts of them), or bytes.

        Raises:
            JobError: the job has ended.
            TypeError: the value is not JSON.
        """
        exchange = _Exchange(value, self._count)
        with self._lock:
            if self._error is not None:
                raise self._error
            self._counts[name] += 1
            key = f"{name}#{self._counts[name]}"
            self._waiting[key] = exchange
        self._send_part(key, exchange)
        return exchange.future

    def _send_part(self, key: str, exchange: _Exchange) -> None:
        """Send the next part of a value; the parts of all processes together fit in one message."""
        part = exchange.data[exchange.sent : exchange.sent + MOST_BYTES // self._count]
        exchange.sent += len(part)
        try:
            self.send({"type": "put", "key": key, "json": exchange.is_json, "size": len(exchange.data)}, part)
        except OSError:
            self.fail(JobError("the connection to rank 0 is closed"))

    def fail(self, error: JobError) -> None:
        """Let all exchanges raise an error, those in progress and later ones."""
        with self._lock:
            self._error = self._error or error
            waiting, self._waiting = self._waiting, {}
        for exchange in waiting.values():
            exchange.future.set_exception(self._error)

    def forget(self) -> None:
        """In a forked process: close its copy of the connection."""
        self.connection.forget()

    def close(self) -> None:
        """Say goodbye, and close the connection."""
        self._left = True
        with contextlib.suppress(OSError):
            self.send({"type": "bye"})
        self.connection.close()

    def _complete(self, message: dict[str, Any], blob: bytes) -> None:
        key, at = message["key"], 0
        with self._lock:
            exchange = self._waiting.get(key)
        if exchange is None:  # the job has ended
            return
        for received, size in zip(exchange.received, message["parts"], strict=True):
            received += blob[at : at + size]
            at += size
        if any(len(data) < size for data, size in zip(exchange.received, message["sizes"], strict=True)):
            # not on this thread, which reads: sending may have to wait until the hub has sent something to this process
            threading.Thread(target=self._send_part, args=(key, exchange), name="jfit-part", daemon=True).start()
            return
        values = [json.loads(v) if is_json else bytes(v) for v, is_json in zip(exchange.received, message["json"], strict=True)]
        with self._lock:
            exchange = self._waiting.pop(key, None)
        if exchange is not None:
            exchange.future.set_result(values)

    def _read(self) -> None:
        try:
            while True:
                message, blob = self.connection.receive()
                if handler := self.handlers.get(message["type"]):
                    handler(message, blob)
        except OSError:
            pass
        except Exception as error:
            if not self._left:
                self.broken(error)
        if not self._left:
            self.fail(JobError("the connection to rank 0 was lost"))
            self.lost()


def connect(settings: Settings, hello: dict[str, Any], timeout: float) -> tuple[Channel, dict[str, Any]]:
    """Connect to the hub, in rank 0, and wait until all processes have.

    Args:
        settings: address of the hub, rank of this process, number of processes.
        hello: what the hub should know about this process.
        timeout: seconds to wait.

    Returns:
        (`Channel`, answer of the hub).

    Raises:
        JobError: nobody listens at the address, the hub refused, or the others did not come in time.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            connection = open_connection(settings.address, max(min(5.0, end - time.monotonic()), 0.01))
            break
        except OSError as caught:
            error = caught
        if time.monotonic() > end:
            raise JobError(
                f"rank {settings.rank} could not connect to rank 0 at {settings.coordinator} within {timeout:.0f} s ({error}); "
                "check that the process of rank 0 runs, and that this address is its own, reachable from here; the address "
                f"comes from {settings.source}"
            )
        time.sleep(0.1)
    try:
        connection.send({"type": _GREETING, "rank": settings.rank, "num_processes": settings.num_processes, **hello})
        connection.timeout(max(end - time.monotonic(), 0.01) + 5.0)
        answer, _ = connection.receive()
        if answer["type"] not in ("welcome", "refused"):
            raise ValueError(f"it sent a message of type {answer['type']!r:.40}")
    except (OSError, ValueError, RecursionError) as error:
        connection.close()
        raise JobError(
            f"rank 0 at {settings.coordinator} did not answer rank {settings.rank} ({error}); check that this is the address "
            "of a process of the same job"
        ) from None
    if answer["type"] == "refused":
        connection.close()
        raise JobError(answer["reason"])
    connection.timeout(None)
    return Channel(connection, settings.num_processes), answer


def listen(settings: Settings, timeout: float = 0.0) -> socket.socket:
    """Listen at the address of the coordinator; on all interfaces if it is not one of this host, but leads to it.

    Args:
        settings: the job.
        timeout: seconds to wait for the port, which a process that torchrun is ending may still have.

    Raises:
        JobError: the port is in use.
    """
    (host, port), backlog, end = settings.address, settings.num_processes + 16, time.monotonic() + timeout
    while True:
        try:
            try:
                return serve(host, port, backlog)
            except OSError as error:
                if not is_elsewhere(error):
                    raise
                return serve_all(port, backlog, ipv6=":" in host)
        except OSError as error:
            if time.monotonic() >= end:
                raise JobError(
                    f"rank 0 cannot listen at {settings.coordinator} ({error}); another program has the port, or an earlier "
                    f"job still runs; pass another port; the address comes from {settings.source}"
                ) from None
        time.sleep(0.1)


def _check_hello(hello: dict[str, Any]) -> None:
    """Raise an exception if a greeting has not the form of those of jfit; a stranger may send anything."""
    versions = hello.get("versions") or {}
    texts = [hello["host"], *(hello.get(name, "") for name in ("place", "token")), *versions, *versions.values()]
    numbers = [hello[name] for name in ("rank", "num_processes", "pid")] + [hello.get("start", 0)]
    if hello["type"] != _GREETING or not all(type(number) is int for number in numbers) or not 0 < hello["pid"] < 1 << 31:
        raise ValueError("not a process of a job")
    if not all(isinstance(text, str) and text.isprintable() and len(text) <= 256 for text in texts):  # they are printed
        raise ValueError("not the texts of a process of a job")


def _send_quietly(peer: Connection, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        peer.send(message)


def _shortened(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _text(hello: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in (hello.get("versions") or {}).items()) or "no versions"
