"""Messages between the processes of a job, beside the devices: rank 0 has a hub, to which every process is connected by TCP.

The connections are neither encrypted nor authenticated, like those of JAX's own coordinator: run jobs in a network that you
trust.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from jfit.distributed.connection import Connection, is_elsewhere, open_connection, serve, serve_all
from jfit.distributed.settings import Settings

Handler = Callable[[dict[str, Any], bytes], None]

_GREETING = "jfit-job-1"


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

    Attributes:
        handlers: type of a message -> `handler(rank, message, payload)`, called on the thread that reads from that process.
        lost: called with the rank of a process whose connection ended without a goodbye.
        broken: called with an exception that a handler raised.
    """

    def __init__(self, server: socket.socket, count: int) -> None:
        self._server, self.count = server, count
        self.peers: dict[int, Connection] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self.handlers: dict[str, Callable[[int, dict[str, Any], bytes], None]] = {"put": self._put, "send": self._pass_on}
        self.lost: Callable[[int], None] = lambda rank: None
        self.broken: Callable[[Exception], None] = lambda error: None
        self.left: set[int] = set()  # ranks that said goodbye
        self._handling: set[int] = set()  # ranks whose message a handler is working on; nothing is read from them
        self._gathered: dict[str, dict[int, tuple[bool, bytes]]] = collections.defaultdict(dict)
        self._lock = threading.Lock()

    def welcome(self, timeout: float, answer: Callable[[], dict[str, Any]]) -> None:
        """Wait until all processes are connected, and answer them; then stop listening.

        Args:
            timeout: seconds to wait.
            answer: `answer() -> message`, called when all are there.

        Raises:
            JobError: not all processes came in time, or two do not fit together; those that came are told why.
        """
        with self._server:
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
        """Wait until all processes are connected; return why the job cannot begin, if so."""
        end = time.monotonic() + timeout
        while len(self.peers) < self.count:
            self._server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                sock, _ = self._server.accept()
            except TimeoutError:
                missing = sorted(set(range(self.count)) - set(self.peers))
                return (
                    f"rank{'s' * (len(missing) > 1)} {_shortened(missing)} of {self.count} did not connect to rank 0 within "
                    f"{timeout:.0f} s; start {'them' if len(missing) > 1 else 'it'}, or wait longer with "
                    "jfit.distributed.init(timeout=...)"
                )
            except ConnectionError:  # gone before it was accepted
                continue
            except OSError as error:
                return f"rank 0 cannot accept connections ({error})"
            if problem := self._greet(Connection(sock)):
                return problem
        return None

    def _greet(self, peer: Connection) -> str | None:
        """Read the hello of a new connection; return why the job cannot begin, if so.  Strangers are turned away."""
        try:
            hello = peer.receive_greeting()
            rank, count = hello["rank"], hello["num_processes"]
            numbers = all(isinstance(number, int) for number in (rank, count, hello["pid"]))
            texts = isinstance(hello["host"], str) and isinstance(hello.get("place", ""), str)
            if hello["type"] != _GREETING or not numbers or not texts or not isinstance(hello.get("versions") or {}, dict):
                raise ValueError("not a process of a job")
        except Exception:  # a stranger may send anything, such as JSON that is nested too deeply
            peer.close()
            return None
        who = f"rank {rank} (process {hello.get('pid')} on {hello.get('host')})"
        problem = None
        if count != self.count:
            problem = f"{who} was started for {count} processes, but rank 0 for {self.count}; pass the same number to all"
        elif not 0 <= rank < self.count:
            problem = f"{who} has a rank outside of 0 to {self.count - 1}"
        elif rank in self.peers:
            first = self.hellos[rank]
            problem = (
                f"{who} has the same rank as process {first.get('pid')} on {first.get('host')}; give each a rank of its own"
            )
        elif self.hellos and hello.get("versions") != (one := next(iter(self.hellos.values()))).get("versions"):
            problem = f"{who} has {_text(hello)}, but process {one.get('pid')} on {one.get('host')} has {_text(one)}"
        if rank not in self.peers:
            self.peers[rank], self.hellos[rank] = peer, hello
        elif problem:
            with contextlib.suppress(OSError):
                peer.send({"type": "refused", "reason": problem})
            peer.close()
        return problem

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
                message, blob = peer.receive()
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
            values[rank] = message["json"], blob
            if len(values) < self.count:
                return
            del self._gathered[message["key"]]
        values = [values[r] for r in range(self.count)]
        reply = {"type": "all", "key": message["key"], "json": [j for j, _ in values], "sizes": [len(b) for _, b in values]}
        self.broadcast(reply, b"".join(b for _, b in values))

    def missing(self) -> dict[str, list[int]]:
        """For each exchange that is not complete, the ranks that have not sent their value."""
        with self._lock:
            return {key: sorted(set(range(self.count)) - set(values)) for key, values in self._gathered.items()}

    def _pass_on(self, rank: int, message: dict[str, Any], blob: bytes) -> None:
        self.broadcast({**message["message"], "rank": rank}, blob)

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


class Channel:
    """The connection of this process to the hub.

    Args:
        connection: connected to the hub, which has answered.

    Attributes:
        connection: the argument.
        handlers: type of a message -> `handler(message, bytes)`, called on the thread that reads from the hub.
        lost: called when the connection to the hub ends.
        broken: called with an exception that a handler raised.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.handlers: dict[str, Handler] = {"all": self._complete}
        self.lost: Callable[[], None] = lambda: None
        self.broken: Callable[[Exception], None] = lambda error: None
        self._lock, self._counts = threading.Lock(), collections.Counter[str]()
        self._waiting: dict[str, concurrent.futures.Future[list[Any]]] = {}
        self._error: JobError | None = None
        self._left = False

    def start(self) -> None:
        """Begin to read messages on a thread."""
        self.connection.received_at = time.monotonic()
        threading.Thread(target=self._read, name="jfit-channel", daemon=True).start()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message to the hub."""
        self.connection.send(message, blob)

    def broadcast(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message to all processes through the hub; they get it with the rank of this one as "rank"."""
        self.send({"type": "send", "message": message}, blob)

    def begin_exchange(self, name: str, value: Any) -> concurrent.futures.Future[list[Any]]:
        """Send a value, and return a future of the list of the values of all processes, by rank.

        Args:
            name: all processes exchange values of the same name in the same order; other names may come in between.
            value: JSON (None, numbers, texts, lists, dicts of them), or bytes.

        Raises:
            JobError: the job has ended.
            TypeError: the value is not JSON.
        """
        is_json = not isinstance(value, bytes)
        data = json.dumps(value).encode() if is_json else value  # sent as bytes, which have no limit
        with self._lock:
            if self._error is not None:
                raise self._error
            self._counts[name] += 1
            key = f"{name}#{self._counts[name]}"
            future = self._waiting[key] = concurrent.futures.Future()
        try:
            self.send({"type": "put", "key": key, "json": is_json}, data)
        except OSError:
            self.fail(JobError("the connection to rank 0 is closed"))
        return future

    def fail(self, error: JobError) -> None:
        """Let all exchanges raise an error, those in progress and later ones."""
        with self._lock:
            self._error = self._error or error
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(self._error)

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
        with self._lock:
            future = self._waiting.pop(message["key"], None)
        values, at = [], 0
        for is_json, size in zip(message["json"], message["sizes"], strict=True):
            data = blob[at : at + size]
            values.append(json.loads(data) if is_json else data)
            at += size
        if future is not None:
            future.set_result(values)

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
    return Channel(connection), answer


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


def _send_quietly(peer: Connection, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        peer.send(message)


def _shortened(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _text(hello: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in (hello.get("versions") or {}).items())
