"""Notice processes of a job that failed, were lost, are stopped or stall; say which, and end all processes.

Every process has a thread that sends a heartbeat to the hub about every second, with what the process is doing.  The hub
decides:

- A connection that ends was that of a process that is lost.
- A process without a heartbeat for `watchdog` seconds is stopped, or its host is gone.  While a large message is sent to or
  by a process, its parts count as heartbeats.
- A process that has begun fewer common programs than others, or has not sent its value in an exchange, and does something of
  its own for longer than it may, while those others do not go on either, holds them up.  Compilation has no limit, as long as
  heartbeats arrive.
- Processes that all wait, for different things, for `DEADLOCK` times the watchdog's seconds wait for each other.

The end of the job is one line in each process and `os._exit`: the main thread may be in a collective that never returns.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jfit import activity
from jfit.distributed.channel import Channel, Hub, JobError

EXIT_CODE = 1
LAST_WORDS = 3.0  # seconds for messages to reach the other processes, before this one ends
AFTER_ERROR = 5.0  # seconds that a process may take after an exception has left `fit`, while others wait in theirs
AFTER_END = 2.0  # the same after the end of its script
LAST_EXCHANGE = "the end of the job"  # in which processes whose scripts have ended wait for the others, as long as it takes
EXCHANGING = "waiting for the other processes ({})"  # what a process does in `exchange`
DEADLOCK = 3  # processes may wait for each other so many times the watchdog's seconds
PATIENT = 10  # saving, and code outside of jfit, may take so many times the watchdog's seconds


class Peer(NamedTuple):
    """A process of the job.

    Attributes:
        rank: its number, from 0.
        host: name of its host.
        pid: its process id.
        place: text that is equal for processes that see each other's process ids.
        start: when it began, see `start_of`; 0 if that is not known.
    """

    rank: int
    host: str
    pid: int
    place: str = ""
    start: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


class Status(NamedTuple):
    """The last heartbeat of a process, see `jfit.activity`.

    Attributes:
        count: number of common programs begun.
        kind: kind of its activity.
        what: description of its activity.
        idle: seconds without progress.
        seconds: seconds that the activity may take, or None.
    """

    count: int
    kind: str
    what: str
    idle: float
    seconds: float | None

    def limit(self, watchdog: float) -> float:
        """Seconds that this activity may take, while other processes wait for this one, before the job is ended."""
        if self.kind in (activity.SAVING, activity.SCRIPT):
            return PATIENT * watchdog
        if self.kind in (activity.FAILED, activity.END):
            return min(watchdog, AFTER_ERROR if self.kind == activity.FAILED else AFTER_END)
        return max(watchdog, self.seconds or 0.0)


def held_up(statuses: dict[int, Status], watchdog: float, missing: Iterable[Collection[int]] = ()) -> int | None:
    """The rank of a process for which others wait longer than `watchdog` allows; None: there is none.

    Args:
        statuses: the last heartbeat of each process.
        watchdog: seconds, see the top of this file.
        missing: for each exchange that is not complete, the processes that have not sent their value.

    Example:
        >>> waits = Status(8, "devices", "training", 31.0, None)
        >>> stalls = Status(7, "data", "waiting for batch 7 of epoch 0", 32.0, None)
        >>> held_up({0: waits, 1: stalls}, 30.0), held_up({0: stalls, 1: stalls}, 30.0)
        (1, None)
        >>> held_up({0: stalls, 1: stalls}, 30.0, [[1]])  # rank 0 has read its part of the batch
        1
    """
    absent = [set(ranks) for ranks in missing]
    for rank, status in sorted(statuses.items(), key=lambda item: (item[1].count, -item[1].idle)):
        if status.kind in (*activity.WAITING, activity.COMPILING):
            continue
        limit = status.limit(watchdog)
        ahead = [
            other
            for number, other in statuses.items()
            if other.count > status.count or any(rank in ranks and number not in ranks for ranks in absent)
        ]
        if status.kind == activity.FAILED and any(s.kind != activity.DEVICES for s in ahead):
            limit = PATIENT * watchdog
        if ahead and status.idle >= limit and all(s.kind != activity.COMPILING and s.idle >= limit for s in ahead):
            return rank
    return None


def deadlocked(statuses: dict[int, Status], watchdog: float, missing: Mapping[str, Collection[int]]) -> str | None:
    """The exchange for which some of the processes wait, while the others wait for them; None: they will go on.

    Args:
        statuses: the last heartbeat of each process.
        watchdog: seconds, see the top of this file.
        missing: for the key of each exchange that is not complete, the processes that have not sent their value.

    Example:
        >>> score = Status(8, "devices", "scoring", 95.0, None)
        >>> waits = Status(8, "peers", EXCHANGING.format("barrier"), 95.0, None)
        >>> deadlocked({0: score, 1: waits}, 30.0, {"barrier#1": [0]})
        'barrier#1'
        >>> behind = score._replace(count=7)  # after this program, rank 0 may come to the barrier
        >>> deadlocked({0: behind, 1: waits}, 30.0, {"barrier#1": [0]})
    """
    if any(status.kind not in activity.WAITING for status in statuses.values()):
        return None
    for key, absent in missing.items():
        text = EXCHANGING.format(key.rpartition("#")[0])
        waits = [s.count for rank, s in statuses.items() if s.kind == activity.PEERS and s.what == text and rank not in absent]
        if waits:
            behind = any(status.kind == activity.DEVICES and status.count < max(waits) for status in statuses.values())
            factor = PATIENT if behind else DEADLOCK
            if all(status.idle >= max(factor * watchdog, status.seconds or 0.0) for status in statuses.values()):
                return key
    return None


class Monitor:
    """Sends the heartbeats of this process, decides (in the process of the hub), and ends the process with the job.

    Args:
        rank: number of this process.
        peers: the processes by rank.
        channel: to the hub.
        hub: the hub, in the process of rank 0; else None.
        watchdog: seconds, see the top of this file.
    """

    def __init__(self, rank: int, peers: list[Peer], channel: Channel, hub: Hub | None, watchdog: float) -> None:
        self.rank, self.peers, self.channel, self.hub, self.watchdog = rank, peers, channel, hub, watchdog
        self.interval = min(1.0, watchdog / 4)
        self.ended: list[Callable[[], None]] = []  # called when the job ends with an error
        self.process = os.getpid()
        self.last_words: threading.Event | None = None  # set after the main thread has printed the traceback of its own error
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._told = False  # whether the hub has told the processes to end
        self._ending, self._over = threading.Lock(), threading.Event()
        self._left, self._stopped = False, threading.Event()
        first = Status(0, activity.SCRIPT, "starting", 0.0, None)
        self._statuses = dict.fromkeys(range(len(peers)), first)
        self._seen: tuple[Any, int] | None = None
        self._since = time.monotonic()
        channel.handlers |= {"end": self._on_end}
        channel.lost, channel.broken = self._on_lost_hub, self._broken
        if hub is not None:
            hub.handlers |= {"beat": self._on_beat, "failed": self._on_failed}
            hub.lost, hub.broken = self._on_lost, self._broken

    def start(self) -> None:
        """Begin to send heartbeats."""
        activity.watch(True)
        threading.Thread(target=self._guarded, args=(self._run,), name="jfit-monitor", daemon=True).start()
        # Functions of `later` may wait until a large message was sent; the thread that watches must not.
        threading.Thread(target=self._guarded, args=(self._run_later,), name="jfit-later", daemon=True).start()

    def stop(self) -> None:
        """Send no more heartbeats, and ignore what happens to other processes."""
        self._left = True
        self._stopped.set()
        self._queue.put(None)
        activity.watch(False)

    def later(self, function: Callable[[], None]) -> None:
        """Call a function on another thread, soon; signal handlers may call this method."""
        self._queue.put(function)

    # -------------------------------------------------------------------------------- heartbeats
    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self._broken(error)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._left:
            self._stopped.wait(max(last + self.interval - time.monotonic(), 0.001))
            now = time.monotonic()
            if now - last > 2 * self.interval + 0.5 * self.watchdog:  # this process itself was stopped
                for connection in (self.channel.connection, *(self.hub.peers.values() if self.hub is not None else ())):
                    connection.received_at = now
            if now - last >= self.interval and not self._left:
                last = now
                self._beat(now)

    def _run_later(self) -> None:
        while (function := self._queue.get()) is not None:
            with contextlib.suppress(OSError, JobError):
                function()

    def _broken(self, error: Exception) -> None:
        """End the job because of an error in a thread of this file or in a handler of a message."""
        if self._left or self._told:
            return
        say("".join(traceback.format_exception(error)).rstrip())
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        if self.hub is not None:
            self._end_all(f"{self.peers[self.rank]} failed: {text}", self.rank)
        else:
            with contextlib.suppress(OSError):
                self.channel.connection.try_send({"type": "failed", "error": text})
        self._over.wait(LAST_WORDS)
        self.end(f"{self.peers[self.rank]} failed: {text}", self.rank)

    def _beat(self, now: float) -> None:
        record = activity.record
        seen = record.now, record.count
        if self._seen is None or seen[0] is not self._seen[0] or seen[1] != self._seen[1]:
            self._seen, self._since = seen, now
        what, idle = seen[0], now - self._since
        try:
            text = str(what)
        except Exception:  # its function reads what the main thread changes meanwhile
            text = what.kind
        with contextlib.suppress(OSError):
            message = {"count": record.count, "kind": what.kind, "what": text, "idle": idle, "seconds": what.seconds}
            self.channel.connection.try_send({"type": "beat", **message})
        if self.hub is not None:
            self.hub.announce({"type": "beat"})
            self._decide(now)
        elif (silent := self.channel.connection.silent_for(now)) > self.watchdog and not self._left:
            self.end(f"{self.peers[0]} gave no sign of life for {silent:.0f} s", 0, silent=True)

    def _on_beat(self, rank: int, message: dict[str, Any], _: bytes) -> None:
        values = {name: message[name] for name in ("count", "kind", "what", "idle", "seconds")}
        self._statuses[rank] = Status(**values)

    # -------------------------------------------------------------------------------- decisions of the hub
    def _decide(self, now: float) -> None:
        assert self.hub is not None
        statuses = {rank: status for rank, status in list(self._statuses.items()) if rank not in self.hub.left}
        for rank, status in statuses.items():
            seconds = self.hub.silent_for(rank, now)
            if seconds > self.watchdog and rank != self.rank:
                self._end_all(
                    f"{self.peers[rank]} gave no sign of life for {seconds:.0f} s (last: {status.what})", rank, silent=True
                )
                return
        missing = {key: ranks for key, ranks in self.hub.missing().items() if not key.startswith(LAST_EXCHANGE)}
        rank = held_up(statuses, self.watchdog, missing.values())
        if rank is not None:
            status = statuses[rank]
            stalled = f"makes no progress: {status.what} for {status.idle:.0f} s"
            text = "has ended its script" if status.kind == activity.END else stalled
            self._end_all(f"{self.peers[rank]} {text}, while other processes wait for it", rank)
        elif now - self.hub.moved_at() > self.watchdog and (key := deadlocked(statuses, self.watchdog, missing)):
            ranks = missing[key]
            doing = "; ".join(f"rank {r}: {s.what} for {s.idle:.0f} s" for r, s in sorted(statuses.items())[:8])
            self._end_all(
                f"the processes wait for each other: the exchange {key.rpartition('#')[0]!r} waits for "
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))} ({doing}); all processes must call the same "
                "functions in the same order",
                ranks[0],
            )

    def _on_failed(self, rank: int, message: dict[str, Any], _: bytes) -> None:
        self._end_all(f"{self.peers[rank]} failed: {message['error']}", rank)

    def _on_lost(self, rank: int) -> None:
        if not self._left:
            self._end_all(f"{self.peers[rank]} was lost: it was killed, it crashed, or its host is gone", rank)

    def _end_all(self, text: str, rank: int, *, silent: bool = False) -> None:
        assert self.hub is not None
        if not self._told and not self._left:
            self._told = True
            self.hub.announce({"type": "end", "text": text, "rank": rank, "silent": silent}, later=True)

    # -------------------------------------------------------------------------------- the end of the job
    def _on_end(self, message: dict[str, Any], _: bytes) -> None:
        self._over.set()
        self.end(message["text"], message["rank"], silent=message["silent"])

    def _on_lost_hub(self) -> None:
        if not self._left:
            self.end(f"{self.peers[0]} was lost: it was killed, it crashed, or its host is gone", 0)

    def end(self, text: str, rank: int, *, silent: bool = False) -> None:
        """End this process, because of what happened to a rank; in an interactive session, only say so.

        Args:
            text: what happened.
            rank: the process because of which the job ends.
            silent: whether that process does not answer; on this host, it is killed.
        """
        if (rank == self.rank and self.last_words) or not self._ending.acquire(blocking=False):
            return  # the main thread tells of its own error, and ends the process
        interactive = is_interactive()
        say(f"jfit: {text}; {'all processes of the job end' if interactive else f'rank {self.rank} ends'}")
        peer = self.peers[rank]
        if silent and rank != self.rank and peer.place == self.peers[self.rank].place:
            kill(peer)
        for function in self.ended:  # on threads: they may wait for a lock of a thread that sends a message
            thread = threading.Thread(target=function, daemon=True)
            thread.start()
            thread.join(LAST_WORDS)
        self.channel.fail(JobError(text))
        if interactive:
            self._left = True
            return
        if self.last_words is not None:
            self.last_words.wait(LAST_WORDS)
        self._wait_for_others()
        leave(EXIT_CODE)

    def failed(self, text: str, code: int = EXIT_CODE) -> None:
        """Tell the other processes that this one failed, and end it.

        Args:
            text: the last line of its error.
            code: exit status.
        """
        with contextlib.suppress(OSError):
            self.channel.send({"type": "failed", "error": text})
            self._over.wait(LAST_WORDS)  # at the hub: the others have been told
        self._wait_for_others()
        leave(code)

    def _wait_for_others(self) -> None:
        """In the process of the hub: wait until the others have closed their connections, so that they get the last message."""
        end = time.monotonic() + LAST_WORDS
        while self.hub is not None and len(self.hub.left | {self.rank}) < self.hub.count and time.monotonic() < end:
            time.sleep(0.01)


def place_of() -> str:
    """Text that is equal for processes on the same host which see each other's process ids; "" if that is not known."""
    try:
        return (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            + os.readlink("/proc/self/ns/pid")
            + socket.gethostname()
        )
    except OSError:
        return ""


def start_of(pid: int) -> int:
    """When a process of this host began, in ticks since the system did; 0 if that is not known.

    Example:
        >>> start_of(os.getpid()) == start_of(os.getpid())
        True
    """
    try:
        # fields are separated by spaces, the second is the name of the program in parentheses, this one is the 22nd
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def kill(peer: Peer) -> None:
    """Kill a process of this host that does not answer, if it still is the one that joined the job.

    Its id may belong to another process by now, or never have been its own; -1, 0 and 1 stand for many processes, or for the
    first of a container.
    """
    if peer.pid > 1 and peer.place and peer.start and start_of(peer.pid) == peer.start:
        with contextlib.suppress(OSError):
            os.kill(peer.pid, signal.SIGKILL)


def is_interactive() -> bool:
    """Whether this is an interactive session, such as a notebook, which is not ended with the job."""
    if hasattr(sys, "ps1"):
        return True
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get is not None and get() is not None


def say(text: str) -> None:
    """Write a line to stderr, also while another thread is writing there."""
    line = f"{text}\n".encode(errors="replace")
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, line)


def leave(code: int) -> None:
    """End this process now, without waiting for threads, or for the functions of `atexit`."""
    for stream in (sys.stdout, sys.stderr):
        flusher = threading.Thread(target=_flush, args=(stream,), daemon=True)  # the main thread may hold its lock
        flusher.start()
        flusher.join(0.5)
    os._exit(code)


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):
        stream.flush()
