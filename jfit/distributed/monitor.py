"""Notice processes of a job that failed, were lost, are stopped or stall; say which, and end all processes.

Every process has a thread that stores a heartbeat about every second, with what the process is doing.  Rank 0 reads them:

- A process without a heartbeat for `watchdog` seconds is stopped, or its host is gone.
- A process that has begun fewer common programs than others, or has not sent its value in an exchange, and does something of
  its own for longer than it may, while those others do not go on either, holds them up.  Compilation has no limit, as long as
  heartbeats arrive.
- Processes that all wait, for different things, for `DEADLOCK` times the watchdog's seconds wait for each other.

Every process looks whether the others on its host live, and whether the store answers.  A process that notices something, or
fails itself, stores why the job ends, unless another has done so before.  All read it, print a line, and end by `os._exit`: the
main thread may be in a collective that never returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any, NamedTuple

from jfit import activity
from jfit.distributed.channel import Channel
from jfit.distributed.client import Store, Unreachable, on_abort
from jfit.distributed.errors import JobError, last_line
from jfit.interrupts import in_thread

EXIT_CODE = 1
LAST_WORDS = 3.0  # seconds for messages to reach the other processes, before this one ends
AFTER_ERROR = 5.0  # seconds that a process may take after an exception has left `fit`, while others wait in theirs
AFTER_END = 2.0  # the same after the end of its script
LOST = "was lost: it was killed, it crashed, or its host is gone"
LAST_EXCHANGE = "the end of the job"  # in which processes whose scripts have ended wait for the others, as long as it takes
EXCHANGING = "waiting for the other processes ({})"  # what a process does in `exchange`
DEADLOCK = 3  # processes may wait for each other so many times the watchdog's seconds
SUSPECTED = 5.0  # seconds without a heartbeat, after a collective has failed, as it does when a process is lost
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
    """Sends the heartbeats of this process, looks at those of others, and ends the process with the job.

    Args:
        rank: number of this process.
        peers: the processes by rank.
        store: the store of the job.
        channel: the exchanges of this process.
        watchdog: seconds, see the top of this file.

    Attributes:
        left: whether the process has left the job, so that what happens to the others is ignored.
        suspects: whether a collective of this process has failed, so that rank 0 waits less long for heartbeats.
        last_words: set after the main thread has printed the traceback of its own error; None: there is none.
    """

    def __init__(self, rank: int, peers: list[Peer], store: Store, channel: Channel, watchdog: float) -> None:
        self.rank, self.peers, self.watchdog = rank, peers, watchdog
        self._store, self._channel = store, channel
        self.interval, self.process = min(1.0, watchdog / 4), os.getpid()
        self.left = self.suspects = False
        self.last_words: threading.Event | None = None
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        own = peers[rank]  # and others on its host
        self._here = [peer for peer in peers if peer is not own and own.place and peer.place == own.place and peer.start]
        self._ending = threading.Lock()
        self._seen: tuple[Any, int] = None, 0
        self._since, self._beats = time.monotonic(), 0
        # Of each process, the last heartbeat and for how long it has been the last; not counted while this process is stopped.
        self._heard: dict[int, tuple[int, float]] = dict.fromkeys(range(len(peers)), (0, 0.0))

    def start(self, *functions: Callable[[], None]) -> None:
        """Begin to send heartbeats, and to read why the job ends; call functions on threads, too, whose errors end the job."""
        activity.watch(True)
        on_abort(self._aborted)
        for function in (self._run, self._read, *functions):
            threading.Thread(target=self._guarded, args=(function,), name="jfit-monitor", daemon=True).start()

    def stop(self) -> None:
        """Send no more heartbeats, and ignore what happens to other processes."""
        self.left = True
        on_abort(None)
        activity.watch(False)

    def later(self, function: Callable[[], None]) -> None:
        """Call a function on another thread, soon; signal handlers may call this method."""
        self._queue.put(function)

    def _guarded(self, function: Callable[[], None]) -> None:
        """Run a thread of this class; an error in it ends the job."""
        try:
            function()
        except Unreachable:
            self.end(f"{self.peers[0]} {LOST}", 0)
        except JobError:
            pass  # the job has ended
        except Exception as error:
            say("".join(traceback.format_exception(error)).rstrip())
            text = f"{self.peers[self.rank]} failed: {last_line(error)}"
            self.tell(text, self.rank)
            self.end(text, self.rank)

    def _run(self) -> None:
        """Call functions of `later`, and send a heartbeat in each interval."""
        last = time.monotonic()
        while not self.left:
            try:
                self._queue.get(timeout=max(last + self.interval - time.monotonic(), 0.001))()
            except queue.Empty:
                last = time.monotonic()
                self._beat(last)

    def _read(self) -> None:
        """Wait until the job ends, or the store does not answer, and end this process."""
        answers, silent = 0, 0.0
        while not self.left:
            if (why := self._store.get("end", self.interval)) is not None:
                wait([in_thread(self._store.set, f"read/{self.rank}", b"yes")], LAST_WORDS)  # rank 0 waits for that
                return self.end(**json.loads(why))
            answers, silent = self._store.answers, silent + self.interval if self._store.answers == answers else 0.0
            if silent > self.watchdog:
                return self.end(f"{self.peers[0]} gave no sign of life for {silent:.0f} s", 0, silent=True)

    def _beat(self, now: float) -> None:
        record = activity.record
        what, count = record.now, record.count
        if what is not self._seen[0] or count != self._seen[1]:
            self._seen, self._since = (what, count), now
        try:
            text = str(what)
        except Exception:  # its function reads what the main thread changes meanwhile
            text = what.kind
        self._beats += 1
        status = Status(count, what.kind, text, now - self._since, what.seconds)
        beat = [self._beats, self.suspects, list(self._channel.open), status]
        self._store.set(f"beat/{self.rank}", json.dumps(beat).encode())
        for peer in self._here:
            if start_of(peer.pid) != peer.start:
                return self.tell(f"{peer} {LOST}", peer.rank)
        if self.rank == 0:
            self._decide()

    def _decide(self) -> None:
        """In rank 0: look at the heartbeats of all processes."""
        beats = {int(rank): json.loads(beat) for rank, beat in self._store.all("beat").items()}
        statuses = {rank: Status(*beat[-1]) for rank, beat in beats.items()}
        suspects = any(beat[1] for beat in beats.values())
        for rank, (last, silent) in self._heard.items():
            number = beats[rank][0] if rank in beats else 0
            silent = silent + self.interval if number == last else 0.0
            self._heard[rank] = number, silent
            if silent > (min(self.watchdog, SUSPECTED) if suspects else self.watchdog):
                text = f" (last: {statuses[rank].what})" if rank in statuses else ""
                return self.tell(f"{self.peers[rank]} gave no sign of life for {silent:.0f} s{text}", rank, silent=True)
        missing = self._channel.missing({rank: beat[2] for rank, beat in beats.items()})
        missing = {key: ranks for key, ranks in missing.items() if not key.startswith(LAST_EXCHANGE)}
        if (rank := held_up(statuses, self.watchdog, missing.values())) is not None:
            status = statuses[rank]
            text = f"makes no progress: {status.what} for {status.idle:.0f} s"
            text = "has ended its script" if status.kind == activity.END else text
            self.tell(f"{self.peers[rank]} {text}, while other processes wait for it", rank)
        elif key := deadlocked(statuses, self.watchdog, missing):
            ranks = missing[key]
            doing = "; ".join(f"rank {r}: {s.what} for {s.idle:.0f} s" for r, s in sorted(statuses.items())[:8])
            absent = f"the exchange {key.rpartition('#')[0]!r} waits for rank {', '.join(map(str, ranks[:8]))}"
            remedy = "all processes must call the same functions in the same order"
            self.tell(f"the processes wait for each other: {absent} ({doing}); {remedy}", ranks[0])

    # -------------------------------------------------------------------------------- the end of the job
    def tell(self, text: str, rank: int, *, silent: bool = False) -> None:
        """Store why the job ends, unless another process has done so before; see `end`."""
        if not self.left:
            with contextlib.suppress(Exception):  # this process ends anyway
                self._store.add("end", json.dumps({"text": text, "rank": rank, "silent": silent}).encode())

    def end(self, text: str, rank: int, *, silent: bool = False) -> None:
        """End this process, because of what happened to a rank; in an interactive session, only say so.

        Args:
            text: what happened.
            rank: the process because of which the job ends.
            silent: whether that process does not answer; on this host, it is killed.
        """
        if self.left or (rank == self.rank and self.last_words) or not self._ending.acquire(blocking=False):
            return  # the main thread tells of its own error, and ends the process
        interactive, peer = is_interactive(), self.peers[rank]
        say(f"jfit: {text}; {'all processes of the job end' if interactive else f'rank {self.rank} ends'}")
        # Its id may belong to another process by now, or never have been its own; -1, 0 and 1 stand for many processes, or for
        # the first of a container.
        if silent and peer in self._here and peer.pid > 1 and start_of(peer.pid) == peer.start:
            with contextlib.suppress(OSError):
                os.kill(peer.pid, signal.SIGKILL)
        self._channel.error = JobError(text)
        if interactive:
            return self.stop()
        if self.last_words is not None:
            self.last_words.wait(LAST_WORDS)
        self._leave(EXIT_CODE)

    def failed(self, text: str, code: int = EXIT_CODE) -> None:
        """Store the last words of this process for the others, and end it.

        Args:
            text: the last line of its error.
            code: exit status.
        """
        self.tell(f"{self.peers[self.rank]} failed: {text}", self.rank)
        self._leave(code)

    def _leave(self, code: int) -> None:
        """End this process; rank 0 does so when the others have read why the job ends, because the store ends with it."""
        if self.rank == 0:
            with contextlib.suppress(Exception):
                end, cause = time.monotonic() + LAST_WORDS, json.loads(self._store.get("end") or "{}").get("rank")
                for other in range(1, len(self.peers)):
                    if other != cause:
                        self._store.get(f"read/{other}", end - time.monotonic())
        leave(code)

    def _aborted(self) -> None:
        """JAX's client aborts this process; say why, if it is because rank 0 is gone.  Its calls do not return meanwhile."""
        for _ in range(20 * (not self.left and os.getpid() == self.process)):
            if self.peers[0] not in self._here or start_of(self.peers[0].pid) != self.peers[0].start:
                self.end(f"{self.peers[0]} {LOST}", 0)
                time.sleep(2 * LAST_WORDS)  # another thread is ending this process
            time.sleep(0.01)  # the process of rank 0 closes its connections a little before it has ended


def place_of() -> str:
    """Text that is equal for processes on the same host which see each other's process ids; "" if that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + os.readlink("/proc/self/ns/pid") + socket.gethostname()
    except OSError:
        return ""


def start_of(pid: int) -> int:
    """When a process of this host began, in ticks since the system did; 0 if it has ended, or that is not known.

    Example:
        >>> start_of(os.getpid()) == start_of(os.getpid())
        True
    """
    try:
        # fields are separated by spaces, the second is the name of the program in parentheses, this one is the 22nd
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])  # a zombie has ended
    except (OSError, ValueError, IndexError):
        return 0


def is_interactive() -> bool:
    """Whether this is an interactive session, such as a notebook, which is not ended with the job."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(sys, "ps1") or get_shell() is not None


def say(text: str) -> None:
    """Write a line to stderr, also while another thread is writing there."""
    line = f"{text}\n".encode(errors="replace")
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, line)


def leave(code: int) -> None:
    """End this process now, without waiting for threads, or for the functions of `atexit`."""
    streams = (stream for stream in (sys.stdout, sys.stderr) if stream is not None)
    wait([in_thread(stream.flush) for stream in streams], 0.5)  # the main thread may hold their locks
    os._exit(code)
