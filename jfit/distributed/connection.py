"""TCP connections between the processes of a job: messages (a JSON object and bytes), and the addresses they are made at.

Nothing that arrives is executed or unpickled, and the length of messages is limited.  The connections are neither encrypted nor
authenticated.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

_HEAD = struct.Struct("!IQ")  # lengths of the JSON text and of the bytes after it
_MOST_JSON, MOST_BYTES = 4 << 20, 64 << 20  # of one message; parsed JSON takes up to 20 times the memory of its text
_CHUNK = 256 << 10  # bytes passed to the kernel at once
_GREETING_JSON, _GREETING_SECONDS = 64 << 10, 5.0
_MOST_GREETINGS = 256  # read at the same time


class Connection:
    """One end of a TCP connection between two processes of a job; `send` may be called by several threads.

    Args:
        sock: a connected socket.

    Attributes:
        address: host and port of the other end, as text.
        received_at: when the last byte arrived, `time.monotonic()`.
        moved_at: when the last chunk of a large message was sent or received.  Small messages do not count: the kernel takes
            many of them for a process that does not read.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._sending = sock, threading.Lock()
        self.address = ""
        with contextlib.suppress(OSError):
            self.address = str(sock.getpeername()[:2])
        self.received_at = self.moved_at = time.monotonic()
        self._sending_since: float | None = None

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message and bytes; wait until the kernel has taken all of it.

        Raises:
            OSError: the connection is closed.
            ValueError: the message is longer than the other end accepts.
        """
        head = _packed(message, blob)
        with self._sending:
            self._write(head, blob)

    def try_send(self, message: dict[str, Any]) -> bool:
        """Send a small message, unless that would wait for another message or for the other process.

        Returns:
            Whether it was sent.

        Raises:
            OSError: the connection is closed.
        """
        head = _packed(message, b"")
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if not self._is_writable():
                return False
            self._write(head, b"")
        finally:
            self._sending.release()
        return True

    def silent_for(self, now: float, reading: bool = True) -> float:
        """Seconds since the last sign of life of the other process.

        Args:
            now: `time.monotonic()`.
            reading: whether a thread is reading from this connection; False: only sending tells of the other process, and
                without it the answer is 0.
        """
        since, last = self._sending_since, max(self.received_at, self.moved_at)
        if reading:
            return now - last
        return 0.0 if since is None else now - max(last, since)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the next message.

        Raises:
            OSError: the connection is closed.
            ValueError: what arrived is not a message.
        """
        return self._message(_MOST_JSON, MOST_BYTES, None)

    def receive_greeting(self) -> dict[str, Any]:
        """Wait at most 5 s for the first message of a process that may be a stranger: short, and without bytes.

        Raises:
            OSError: the connection is closed, or the message did not come in time.
            ValueError: what arrived is not such a message.
            RecursionError: its JSON text is nested too deeply.
        """
        message, _ = self._message(_GREETING_JSON, 0, time.monotonic() + _GREETING_SECONDS)
        self._sock.settimeout(None)
        return message

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

    def _write(self, head: bytes, blob: bytes) -> None:
        self._sending_since = time.monotonic()
        try:
            for data in (head, blob):
                view = memoryview(data)
                for at in range(0, len(data), _CHUNK):
                    chunk = view[at : at + _CHUNK]
                    self._sock.sendall(chunk)
                    if len(chunk) == _CHUNK:
                        self.moved_at = time.monotonic()
        finally:
            self._sending_since = None

    def _is_writable(self) -> bool:
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(self._sock, selectors.EVENT_WRITE)
            except ValueError:
                raise OSError("the connection is closed") from None
            return bool(selector.select(0))

    def _message(self, most_json: int, most_bytes: int, end: float | None) -> tuple[dict[str, Any], bytes]:
        text_length, blob_length = _HEAD.unpack(self._exactly(_HEAD.size, end))
        if text_length > most_json or blob_length > most_bytes:
            raise ValueError("a message of impossible length arrived")
        message = json.loads(self._exactly(text_length, end))
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ValueError("a message without a type arrived")
        return message, self._exactly(blob_length, end)

    def _exactly(self, count: int, end: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            if end is not None:
                self._sock.settimeout(max(end - time.monotonic(), 0.001))
            part = self._sock.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError("the connection was closed")
            if end is not None and time.monotonic() > end:
                raise TimeoutError("the message did not come in time")
            self.received_at = time.monotonic()
            if count >= _CHUNK:
                self.moved_at = self.received_at
            parts += part
        return bytes(parts)


def _packed(message: dict[str, Any], blob: bytes) -> bytes:
    text = json.dumps(message).encode()
    if len(text) > _MOST_JSON or len(blob) > MOST_BYTES:
        raise ValueError(
            f"a message of type {message.get('type')!r} has {len(text)} bytes of JSON and {len(blob)} others, more than "
            f"{_MOST_JSON} and {MOST_BYTES}"
        )
    return _HEAD.pack(len(text), len(blob)) + text


def open_connection(address: tuple[str, int], timeout: float) -> Connection:
    """Connect to a host and port.

    Raises:
        OSError: nobody listens there.
    """
    sock = socket.create_connection(address, timeout=timeout)
    # Where nobody listens on this host, a socket may get the very port it connects to as its own, and reach itself.
    if sock.getsockname() == sock.getpeername():
        sock.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
    return Connection(sock)


def accept_until(server: socket.socket, end: float, greet: Callable[[Connection], None], done: Callable[[], bool]) -> bool:
    """Accept connections until `done()`, and read their greetings side by side: a silent one delays no other.

    Args:
        server: a listening socket.
        end: when to give up, `time.monotonic()`.
        greet: `greet(connection)` calls `receive_greeting`; called on a thread of its own for each connection.
        done: function without arguments; whether all that were expected have come.

    Returns:
        Whether all have come before `end`.

    Raises:
        OSError: the socket accepts no connections.
    """
    slots = threading.Semaphore(_MOST_GREETINGS)

    def read(connection: Connection) -> None:
        try:
            greet(connection)
        finally:
            slots.release()

    while not done():
        if time.monotonic() > end:
            return False
        server.settimeout(0.02)  # then `done` is called again
        try:
            sock, _ = server.accept()
        except (TimeoutError, ConnectionError):  # none yet, or gone before it was accepted
            continue
        if not slots.acquire(timeout=max(end - time.monotonic(), 0)):
            sock.close()
            return False
        threading.Thread(target=read, args=(Connection(sock),), name="jfit-greeting", daemon=True).start()
    return True


def serve(host: str, port: int, backlog: int = 16) -> socket.socket:
    """Listen at an address of this host; on all interfaces if a name is known here only as one of the loopback interface.

    Raises:
        OSError: the address is not one of this host (see `is_elsewhere`), or the port is in use.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if is_loopback(str(address[0])) and not is_loopback(host):  # /etc/hosts of Debian has 127.0.1.1 for the own name
        return serve_all(port, backlog, ipv6=family == socket.AF_INET6)
    return socket.create_server(address, family=family, backlog=backlog)


def serve_all(port: int, backlog: int = 16, *, ipv6: bool = False) -> socket.socket:
    """Listen on all interfaces.

    Raises:
        OSError: the port is in use.
    """
    return socket.create_server(("", port), family=socket.AF_INET6 if ipv6 else socket.AF_INET, backlog=backlog)


def is_elsewhere(error: OSError) -> bool:
    """Whether `serve` failed because the address is not one of this host, such as that of a router before it."""
    return isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL


def is_loopback(host: str) -> bool:
    """Whether a host name is an address of the loopback interface."""
    return host in ("localhost", "::1") or host.startswith("127.")
