"""Messages between the processes of a job, beside the devices: rank 0 has a hub, to which every process is connected by TCP.

A message is a JSON object, which may be followed by bytes.  No message is executed or unpickled.  The connections are neither
encrypted nor authenticated, like those of JAX's own coordinator: run jobs in a network that you trust.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from jfit.distributed.settings import Settings

Handler = Callable[[dict[str, Any], bytes], None]

_HEAD = struct.Struct("!IQ")  # lengths of the JSON text and of the bytes after it
_MOST_JSON, _MOST_BYTES = 64 << 20, 1 << 40
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


class Connection:
    """One end of a TCP connection between two processes of a job; `send` may be called by several threads.

    Args:
        sock: a connected socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._sending = sock, threading.Lock()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message and bytes.

        Raises:
            OSError: the connection is closed.
        """
        text = json.dumps(message).encode()
        with self._sending:
            self._sock.sendall(_HEAD.pack(len(text), len(blob)) + text)
            if blob:
                self._sock.sendall(blob)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the next message.

        Raises:
            OSError: the connection is closed.
            ValueError: what arrived is not a message.
        """
        text_length, blob_length = _HEAD.unpack(self._exactly(_HEAD.size))
        if text_length > _MOST_JSON or blob_length > _MOST_BYTES:
            raise ValueError("a message of impossible length arrived")
        message = json.loads(self._exactly(text_length))
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ValueError("a message without a type arrived")
        return message, self._exactly(blob_length)

    def timeout(self, seconds: float | None) -> None:
        """Let `receive` raise TimeoutError after so many seconds; None: never."""
        self._sock.settimeout(seconds)

    def forget(self) -> None:
        """In a forked process: close its copy of the connection, of which the other end sees nothing."""
        self._sock.close()

    def close(self) -> None:
        """Close the connection; the other end sees its end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._sock.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError("the connection was closed")
            parts += part
        return bytes(parts)


class Hub:
    """The server in rank 0 to which all processes connect: it collects values of all, and sends messages of one to the others.

    Args:
        server: a listening socket.
        count: number of processes, rank 0 included, of which each connects once.

    Attributes:
        handlers: type of a message -> `handler(rank, message, payload)`, called on the thread that reads from that process.
        lost: called with the rank of a process whose connection ended without a goodbye.
    """

    def __init__(self, server: socket.socket, count: int) -> None:
        self._server, self.count = server, count
        self.peers: dict[int, Connection] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self.handlers: dict[str, Callable[[int, dict[str, Any], bytes], None]] = {"put": self._put, "send": self._pass_on}
        self.lost: Callable[[int], None] = lambda rank: None
        self.left: set[int] = set()  # ranks that said goodbye
        self._gathered: dict[str, dict[int, tuple[Any, bytes]]] = collections.defaultdict(dict)
        self._lock = threading.Lock()

    def welcome(self, timeout: float, answer: Callable[[], dict[str, Any]]) -> None:
        """Wait until all processes are connected, and answer them.

        Args:
            timeout: seconds to wait.
            answer: `answer() -> message`, called when all are there.

        Raises:
            JobError: not all processes came in time, or two do not fit together; those that came are told why.
        """
        end, problem = time.monotonic() + timeout, None
        while len(self.peers) < self.count and problem is None:
            self._server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                sock, _ = self._server.accept()
            except TimeoutError:
                missing = sorted(set(range(self.count)) - set(self.peers))
                problem = (
                    f"rank{'s' * (len(missing) > 1)} {_shortened(missing)} of {self.count} did not connect to rank 0 within "
                    f"{timeout:.0f} s; start {'them' if len(missing) > 1 else 'it'}, or wait longer with "
                    "jfit.distributed.init(timeout=...)"
                )
                break
            problem = self._greet(Connection(sock))
        reply = {"type": "refused", "reason": problem} if problem else answer()
        for peer in self.peers.values():
            with contextlib.suppress(OSError):
                peer.send(reply)
        if problem:
            raise JobError(problem)

    def start(self) -> None:
        """Begin to read messages; `handlers` and `lost` are complete."""
        for rank, peer in self.peers.items():
            threading.Thread(target=self._read, args=(rank, peer), name=f"jfit-hub-{rank}", daemon=True).start()

    def _greet(self, peer: Connection) -> str | None:
        """Read the hello of a new connection; return why the job cannot begin, if so.  Strangers are turned away."""
        try:
            peer.timeout(5.0)
            hello, _ = peer.receive()
            peer.timeout(None)
            rank, count = hello["rank"], hello["num_processes"]
            if hello["type"] != _GREETING or not isinstance(rank, int) or not isinstance(count, int):
                raise ValueError("not a process of a job")
        except (OSError, ValueError, KeyError):
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

    def _read(self, rank: int, peer: Connection) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                message, blob = peer.receive()
                if message["type"] == "bye":
                    self.left.add(rank)
                elif handler := self.handlers.get(message["type"]):
                    handler(rank, message, blob)
        if rank not in self.left:
            self.left.add(rank)
            self.lost(rank)

    def _put(self, rank: int, message: dict[str, Any], blob: bytes) -> None:
        with self._lock:
            values = self._gathered[message["key"]]
            values[rank] = message["value"], blob
            if len(values) < self.count:
                return
            del self._gathered[message["key"]]
        values = [values[r] for r in range(self.count)]
        reply = {"type": "all", "key": message["key"], "values": [v for v, _ in values], "sizes": [len(b) for _, b in values]}
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
        handlers: type of a message -> `handler(message, bytes)`, called on the thread that reads from the hub.
        lost: called when the connection to the hub ends.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.handlers: dict[str, Handler] = {"all": self._complete}
        self.lost: Callable[[], None] = lambda: None
        self._lock, self._counts = threading.Lock(), collections.Counter[str]()
        self._waiting: dict[str, concurrent.futures.Future[list[Any]]] = {}
        self._error: JobError | None = None
        self._left = False

    def start(self) -> None:
        """Begin to read messages on a thread."""
        threading.Thread(target=self._read, name="jfit-channel", daemon=True).start()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message to the hub."""
        self._connection.send(message, blob)

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
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            self._counts[name] += 1
            key = f"{name}#{self._counts[name]}"
            future = self._waiting[key] = concurrent.futures.Future()
        is_bytes = isinstance(value, bytes)
        try:
            self.send({"type": "put", "key": key, "value": None if is_bytes else [value]}, value if is_bytes else b"")
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
        self._connection.forget()

    def close(self) -> None:
        """Say goodbye, and close the connection."""
        self._left = True
        with contextlib.suppress(OSError):
            self.send({"type": "bye"})
        self._connection.close()

    def _complete(self, message: dict[str, Any], blob: bytes) -> None:
        with self._lock:
            future = self._waiting.pop(message["key"], None)
        values, at = [], 0
        for value, size in zip(message["values"], message["sizes"], strict=True):
            values.append(blob[at : at + size] if value is None else value[0])
            at += size
        if future is not None:
            future.set_result(values)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                message, blob = self._connection.receive()
                if handler := self.handlers.get(message["type"]):
                    handler(message, blob)
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
    end, (host, port), error = time.monotonic() + timeout, settings.address, None
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(min(5.0, end - time.monotonic()), 0.01))
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
    connection = Connection(sock)
    connection.send({"type": _GREETING, "rank": settings.rank, "num_processes": settings.num_processes, **hello})
    connection.timeout(max(end - time.monotonic(), 0.01) + 5.0)
    try:
        answer, _ = connection.receive()
    except (OSError, ValueError) as error:
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


def listen(settings: Settings) -> socket.socket:
    """Listen at the address of the coordinator: on the loopback interface if it is there, else on all interfaces.

    Raises:
        JobError: the port is in use.
    """
    host, port = settings.address
    local = is_loopback(host)
    try:
        return socket.create_server((host if local else "", port), reuse_port=False, backlog=settings.num_processes + 16)
    except OSError as error:
        raise JobError(
            f"rank 0 cannot listen at {settings.coordinator} ({error}); another program has the port, or an earlier job still "
            f"runs; pass another port; the address comes from {settings.source}"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether a host name is an address of the loopback interface."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _shortened(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _text(hello: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in (hello.get("versions") or {}).items())
