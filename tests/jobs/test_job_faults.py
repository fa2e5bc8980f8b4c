"""Faults in jobs of several processes: the others notice them, say what happened, and end; stops are agreed on."""

import contextlib
import json
import os
import random
import signal
import socket
import struct
import threading
import time
from types import SimpleNamespace

import jax
import pytest
from jobs import free_port, start

import jfit
from benchmarks.job_faults import EVENTS, measure
from jfit import activity, interrupts
from jfit.distributed import JobError
from jfit.distributed.channel import Hub, connect, listen
from jfit.distributed.connection import Connection, is_elsewhere, open_connection, serve
from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.job import _free_port
from jfit.distributed.monitor import EXCHANGING, Monitor, Peer, Status, deadlocked, held_up, place_of, start_of
from jfit.distributed.ranks import claim_rank
from jfit.distributed.settings import Settings, token_of
from jfit.distributed.stops import AgreedFlag, HubStops, Stops


# ------------------------------------------------------------------------------------------------ which process holds others up
def status(count, kind, idle, seconds=None):
    return Status(count, kind, kind, idle, seconds)


WAITS = status(8, activity.DEVICES, 31)
STALLED = [
    status(7, activity.DATA, 30),
    status(7, activity.CALLBACK, 31),
    status(7, activity.FAILED, 6),
    status(7, activity.END, 3),
    status(7, activity.SAVING, 301),
    status(7, activity.SCRIPT, 301),
]
PATIENT = [
    status(7, activity.DATA, 29),
    status(8, activity.DATA, 300),  # it does what others wait for: nothing
    status(7, activity.DATA, 59, 60),  # data_timeout=60
    status(7, activity.COMPILING, 10_000),
    status(7, activity.DEVICES, 10_000),
    status(7, activity.PEERS, 10_000),
    status(7, activity.SAVING, 299),
    status(7, activity.SCRIPT, 299),
]


@pytest.mark.parametrize("stalled", STALLED, ids=str)
def test_a_process_that_holds_others_up_is_found(stalled):
    long = WAITS._replace(idle=1000)
    assert held_up({0: long, 1: stalled, 2: long}, 30) == 1
    assert held_up({0: stalled, 1: long}, 30) == 0
    assert held_up({0: long, 1: stalled, 2: WAITS._replace(idle=1)}, 30) is None  # a step has just ended
    assert held_up({0: long._replace(kind=activity.COMPILING), 1: stalled}, 30) is None


@pytest.mark.parametrize("patient", PATIENT, ids=str)
def test_a_process_that_may_take_its_time_is_not(patient):
    assert held_up({0: WAITS._replace(idle=1000), 1: patient}, 30) is None


def test_processes_that_all_do_the_same_for_long_are_not_stalled():
    for kind in (activity.DATA, activity.CALLBACK, activity.SAVING, activity.SCRIPT, activity.COMPILING):
        assert held_up({rank: status(7, kind, 1000) for rank in range(3)}, 30) is None


def test_of_two_stalled_processes_the_one_further_behind_is_named():
    assert held_up({0: WAITS, 1: status(7, activity.DATA, 40), 2: status(6, activity.CALLBACK, 40)}, 30) == 2


def test_a_value_that_has_not_come_names_its_process():
    both = {0: status(7, activity.DATA, 40), 1: status(7, activity.DATA, 40)}
    assert held_up(both, 30, [[1]]) == 1
    assert held_up(both, 30, [[0, 1]]) is None


def test_errors_of_collectives_are_those_of_another_process():
    gloo = jax.errors.JaxRuntimeError("FAILED_PRECONDITION: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:1")
    assert is_of_another(gloo) and is_of_another(JobError("the connection to rank 0 was lost"))
    assert not is_of_another(ValueError("no rows")) and not is_of_another(KeyError("gloo"))
    assert last_line(ValueError("a\n  b")) == "ValueError: a b"
    assert last_line(KeyboardInterrupt()) == "KeyboardInterrupt"


# ------------------------------------------------------------------------------------------------ stops, threads as processes
def thread(function, *args):
    begun = threading.Thread(target=function, args=args, daemon=True)
    begun.start()
    return begun


def at_once(function, arguments):
    """Call the function with each of the arguments, in threads, and wait for them."""
    for begun in [thread(function, *args) for args in arguments]:
        begun.join(60)


@contextlib.contextmanager
def hub_of(count, host="127.0.0.1"):
    """A hub, and the connections of processes to it, from which nobody reads yet."""
    settings = Settings(f"{host}:{free_port()}", count, 0, None, "this test")
    hub, channels = Hub(listen(settings), count), [None] * count

    def join(rank):
        about = {"pid": 10 + rank, "host": "here", "versions": {}}
        channels[rank] = connect(settings._replace(rank=rank), about, 30)[0]

    try:
        joining = [thread(join, rank) for rank in range(count)]
        hub.welcome(30, lambda: {"type": "welcome"})
        for begun in joining:
            begun.join(30)
        yield hub, channels
    finally:
        hub.close()  # first: a channel may be sending to it, and it to one that does not read
        for channel in channels:
            if channel is not None:
                channel.close()


@contextlib.contextmanager
def connected(count):
    """The stopping points of `count` processes, which are threads."""
    with hub_of(count) as (hub, channels):
        HubStops(hub)
        stops = [Stops(channel, lambda function: function()) for channel in channels]
        hub.start()
        for channel in channels:
            channel.start()
        yield stops


@pytest.mark.parametrize("seed", range(6))
def test_processes_stop_at_the_same_point(seed):
    """Each passes points at its own pace, but none more than 3 before others, as with programs in flight on the devices."""
    choice, count, most = random.Random(seed), 3, 3
    wants = {choice.randrange(count): choice.randrange(5, 40) for _ in range(choice.randrange(1, 4))}
    number = choice.choice([None, int(signal.SIGTERM)])
    passed, changed, results = [0] * count, threading.Condition(), [None] * count

    def run(rank, stops):
        for point in range(10_000):
            with changed:
                changed.wait_for(lambda: passed[rank] <= min(passed) + most)
            reason = None
            if wants.get(rank) == point:
                stops.want(number, None) if number is not None else None
                reason = "enough" if number is None else None
            agreed = stops.pass_one(reason)
            if agreed is not None:
                results[rank] = point, agreed
                return
            with changed:
                passed[rank] += 1
                changed.notify_all()

    with connected(count) as stops:
        for _ in range(2):  # the second stop is one of another round
            passed[:], results[:] = [0] * count, [None] * count
            at_once(run, enumerate(stops))
            assert None not in results and len(set(results)) == 1, results
            point, agreed = results[0]
            assert point >= min(wants.values()) and agreed.rank in wants
            assert (agreed.signal, agreed.reason) == ((number, None) if number else (None, "enough"))


def test_equal_decisions_stop_at_the_point_where_they_are_made():
    with connected(3) as stops:
        points = [[], [], []]

        def run(rank):
            flag = AgreedFlag(stops[rank])
            for step in range(1, 20):
                points[rank].append(step)
                if flag.agree("enough" if step == 7 else None) is not None:
                    return

        at_once(run, [(rank,) for rank in range(3)])
        assert [len(p) for p in points] == [7, 7, 7]


def test_a_restarted_job_waits_for_the_port_of_the_one_before():
    settings = Settings(f"127.0.0.1:{free_port()}", 2, 0, None, "this test")
    before = listen(settings)
    threading.Timer(0.5, before.close).start()
    listen(settings, timeout=60).close()


def test_a_second_stop_waits_for_the_processes_that_have_not_made_the_first():
    with connected(2) as stops:
        first, again = [None, None], [None, None]

        def stop(rank, found, reason=None):
            found[rank] = _next_stop(stops[rank], reason)

        at_once(stop, [(0, first, "enough")])  # rank 0 has made the stop, rank 1 has not even come to it
        assert first[0].reason == "enough"
        wait_until(lambda: stops[1].is_next)  # the message to its thread may come a little later
        ahead = thread(stop, 0, again, "more")
        wait_until(lambda: stops[1]._hold_later)
        at_once(lambda: (stop(1, first), stop(1, again)), [()])
        ahead.join(60)
        assert first[1] == first[0] and again[0] == again[1] and again[0].reason == "more"
        assert stops[0].round == stops[1].round == 2 and stops[0].passed == stops[1].passed


def _next_stop(stops, reason=None):
    """Pass stopping points until all processes stop, and return why."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (agreed := stops.pass_one(reason)) is not None:
            return agreed


def test_a_flag_is_set_by_the_signal_of_another_process():
    with connected(2) as stops:
        seen = []

        def other():
            flag = AgreedFlag(stops[1])
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if flag.agree(None) is None and flag:
                    seen.append(flag.signal)
                    return

        interrupts.use_flags(lambda: AgreedFlag(stops[0]))
        try:
            with jfit.graceful_stop(interrupt=True) as outer, interrupts.stop_flag().watching(terminate=True) as flag:
                begun = thread(other)
                signal.raise_signal(signal.SIGTERM)
                assert not flag.set  # not before the others
                while not flag:
                    pass
                assert flag.signal is outer.signal is signal.SIGTERM and flag.owned and outer.set
        finally:
            interrupts.use_flags(None)
        begun.join(60)
        assert seen == [signal.SIGTERM]


# ------------------------------------------------------------------------------------------------ the start of a job
def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(JobError, match=f"rank 0 cannot listen at 127.0.0.1:{port} .*another program has the port"):
            listen(Settings(f"127.0.0.1:{port}", 2, 0, None, "this test"))


def test_a_coordinator_that_is_not_there():
    with pytest.raises(JobError, match=r"rank 1 could not connect to rank 0 at .* within 1 s .*check that the process"):
        connect(Settings(f"127.0.0.1:{free_port()}", 2, 1, None, "this test"), {}, 1)


def test_a_program_that_is_no_coordinator():
    with socket.create_server(("127.0.0.1", 0)) as server:
        begun = thread(lambda: server.accept()[0].close())
        settings = Settings(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, None, "this test")
        with pytest.raises(JobError, match=r"rank 0 at .* did not answer rank 1"):
            connect(settings, {}, 1)
        begun.join(10)


FIRST = {"pid": 10, "host": "here", "versions": {"jfit": "1", "jax": "0.1"}, "token": "abc"}
UNFIT = {
    "has the same rank as process 10": {"rank": 0},
    "was started for 3 processes, but rank 0 for 2": {"num_processes": 3},
    "has a rank outside of 0 to 1": {"rank": 5},
    "has jfit 2, jax 0.1, but process 10 on here has jfit 1, jax 0.1": {"versions": {"jfit": "2", "jax": "0.1"}},
    "rank 1 (process 11 on here) has another token than the job of rank 0": {"token": "earlier"},
    "has no versions, but process 10": {"versions": None},
    "closed": {"pid": 0},
    "closed ": {"pid": -1},
    "closed  ": {"pid": 1 << 40},
    "closed   ": {"host": "\x1b[2J"},
    "closed    ": {"type": "jfit-job-0"},
}


def test_unfit_greetings_and_silent_connections_do_not_stop_the_start(caplog, monkeypatch):
    """Each is turned away with a line in the log, and those that speak as jfit does are told why; the job begins."""
    monkeypatch.setattr("jfit.distributed.connection._GREETING_SECONDS", 30)  # longer than this test
    settings = Settings(f"127.0.0.1:{free_port()}", 2, 0, None, "this test")
    hub, channels = Hub(listen(settings), 2, FIRST), [None, None]
    greet = {"type": "jfit-job-1", "rank": 1, "num_processes": 2, **FIRST, "pid": 11}
    short = b'{"type":"jfit-job-1","rank":1,"num_processes":2,"pid":11,"host":"h"}'.ljust(80 - 12)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(settings.address)) for _ in range(10)]
        welcome = thread(hub.welcome, 60, lambda: {"type": "welcome"})
        for change in UNFIT.values():
            connection = open_connection(settings.address, 10)
            connection.send({**greet, **change})
            try:
                answer = connection.receive()[0]
            except OSError:
                answer = {"reason": "closed"}
            expected = next(text for text, value in UNFIT.items() if value is change).strip()
            assert expected in answer["reason"], (change, answer)
            connection.close()
        stranger = stack.enter_context(socket.create_connection(settings.address))
        stranger.sendall(greeting(short))
        assert b"has another token" in stranger.recv(1000)
        assert welcome.is_alive() and not hub.peers and len(silent) == 10
        assert [record.levelname for record in caplog.records if "turned away" in record.getMessage()] == ["WARNING"] * 12

        def join(rank):
            channels[rank] = connect(settings._replace(rank=rank), {**FIRST, "pid": 10 + rank}, 60)[0]

        at_once(join, [(0,), (1,)])
        welcome.join(60)
        assert None not in channels and sorted(hub.peers) == [0, 1]
        for channel in channels:
            channel.close()
    hub.close()


def test_a_job_that_does_not_begin_says_who_was_turned_away():
    settings = Settings(f"127.0.0.1:{free_port()}", 2, 1, None, "this test")
    hub, errors = Hub(listen(settings), 2, FIRST), []

    def join():
        try:
            connect(settings, {**FIRST, "pid": 11, "token": "earlier"}, 20)
        except JobError as error:
            errors.append(str(error))

    begun = thread(join)
    with pytest.raises(
        JobError, match=r"ranks 0, 1 of 2 did not .*; turned away: rank 1 \(process 11 on here\) has another token"
    ):
        hub.welcome(1, dict)
    begun.join(60)
    assert "rank 1 (process 11 on here) has another token" in errors[0] and "JFIT_JOB_TOKEN" in errors[0]


def test_the_token_of_a_job_is_that_of_its_launch():
    torchrun = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    tokens = [token_of(2, env) for env in (torchrun, slurm, {**slurm, "SLURM_STEP_ID": "1"}, {"JFIT_JOB_TOKEN": "b"})]
    assert len({*tokens, ""}) == 5
    assert token_of(2, {**torchrun, "JFIT_JOB_TOKEN": "b"}) == tokens[3] and token_of(2, {**torchrun, **slurm}) == tokens[0]
    # processes that several commands started have no id in common
    assert token_of(2, {**slurm, "SLURM_STEP_NUM_TASKS": "1"}) == token_of(2, {}) == ""


def test_only_the_process_that_joined_is_killed(monkeypatch):
    """Rank 0 ends, as in a notebook, because rank 1 is silent, which has said that it is the process of this test."""
    killed, pid, place = [], os.getpid(), place_of()
    monkeypatch.setattr("jfit.distributed.monitor.is_interactive", lambda: True)
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr("jfit.distributed.monitor.start_of", lambda pid: 7 if pid < 2 else start_of(pid))

    def end(*values):
        rank_0 = SimpleNamespace(rank=0, last_words=None, ended=[], channel=SimpleNamespace(fail=id), _ending=threading.Lock())
        rank_0.peers = [Peer(0, "here", 10, place), Peer(1, "here", *values)]
        Monitor.end(rank_0, "silent", 1, silent=True)

    for wrong in (start_of(pid) + 1, 0):
        end(pid, place, wrong)
    for elsewhere in ("", place + "x"):
        end(pid, elsewhere, start_of(pid))
    for number in (-1, 0, 1):
        end(number, place, 7)
    assert place and start_of(pid) and not killed
    end(pid, place, start_of(pid))
    assert killed == [(pid, signal.SIGKILL)]


def test_init_after_a_computation_is_refused():
    jax.numpy.ones(1).block_until_ready()
    with pytest.raises(RuntimeError, match=r"jfit.distributed.init was called after JAX had started its devices"):
        jfit.distributed.init(f"127.0.0.1:{free_port()}", 2, 0, timeout=1)


# ------------------------------------------------------------------------------------------------ messages and silence
def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)


class Ended(list):
    """What a monitor would end its process with."""

    def __call__(self, text, rank, *, silent=False):
        self.append((text, rank, silent))


def monitored(hub, channels, watchdog):
    monitor = Monitor(0, [Peer(rank, "here", rank) for rank in range(len(channels))], channels[0], hub, watchdog)
    monitor.end = Ended()
    return monitor


def test_a_process_that_stops_reading_a_large_message_is_noticed():
    with hub_of(3) as (hub, channels):
        monitor = monitored(hub, channels, 1.0)
        hub.start()
        channels[0].start()
        channels[1].start()  # nobody reads from channel 2
        for channel in (channels[0], channels[2]):
            channel.begin_exchange("large", b"")
        wait_until(lambda: hub.missing() == {"large#1": [1]})
        channels[1].begin_exchange("large", bytes(64 << 20))  # the hub reads no more from rank 1 before this has arrived at all
        monitor.start()
        done = threading.Event()
        try:
            monitor.later(lambda: (done.wait(60), None))  # a function that waits does not hold the watchdog up
            wait_until(lambda: monitor.end)
        finally:
            done.set()
            monitor.stop()
        assert "rank 2" in monitor.end[0][0] and "gave no sign of life" in monitor.end[0][0]
        assert monitor.end[0][1:] == (2, True)


def test_a_slow_transfer_is_a_sign_of_life():
    left, right = socket.socketpair()
    sender, receiver = Connection(left), Connection(right)
    data = bytes(24 << 20)
    begun = thread(sender.send, {"type": "large"}, data)
    seen = []
    try:
        wait_until(lambda: sender.silent_for(time.monotonic(), False) > 0.2)  # nobody reads
        assert not sender.try_send({"type": "beat"})  # and this does not wait
        before = sender.moved_at, receiver.moved_at
        at_once(lambda: seen.append(receiver.receive()), [()])
        begun.join(60)
        assert seen == [({"type": "large"}, data)]
        assert sender.moved_at > before[0] and receiver.moved_at > before[1]
        assert sender.try_send({"type": "beat"}) and receiver.receive() == ({"type": "beat"}, b"")
        while sender.try_send({"type": "beat"}):  # until the buffer is full
            pass
        assert sender.silent_for(time.monotonic(), False) == 0 and sender.moved_at < receiver.received_at
    finally:
        sender.close()
        receiver.close()


def test_a_process_without_a_first_heartbeat_and_an_error_of_the_monitor_end_the_job(capfd):
    with hub_of(2) as (hub, channels):
        monitor = monitored(hub, channels, 0.5)
        hub.start()
        channels[0].start()
        monitor.start()
        wait_until(lambda: monitor.end)
        monitor.stop()
        assert "rank 1" in monitor.end[0][0] and "no sign of life" in monitor.end[0][0]
    with hub_of(2) as (hub, channels):
        monitor = monitored(hub, channels, 30)
        hub.handlers["odd"] = lambda rank, message, blob: 1 // 0
        hub.start()
        channels[0].start()
        channels[1].send({"type": "odd"})
        wait_until(lambda: monitor.end)
        assert monitor.end[0][0].endswith("failed: ZeroDivisionError: integer division or modulo by zero")
        assert "1 // 0" in capfd.readouterr().err


def test_processes_that_wait_for_each_other():
    scores, waits = status(8, activity.DEVICES, 90), status(8, activity.PEERS, 90)._replace(what=EXCHANGING.format("barrier"))
    missing = {"old#1": [1], "barrier#1": [0]}
    assert deadlocked({0: scores, 1: waits}, 30, missing) == "barrier#1"
    assert deadlocked({0: waits._replace(what=EXCHANGING.format("b")), 1: waits}, 30, missing) == "barrier#1"
    for other in (
        scores._replace(idle=89),
        scores._replace(kind=activity.COMPILING),
        scores._replace(kind=activity.CALLBACK),
        scores._replace(count=7),  # a long program before the exchange
    ):
        assert deadlocked({0: other, 1: waits}, 30, missing) is None
    assert deadlocked({0: scores, 1: scores}, 30, missing) is None
    assert deadlocked({0: scores, 1: waits}, 30, {"old#1": [1], "old#2": [0]}) is None  # that is not what rank 1 waits for
    with hub_of(2) as (hub, channels):
        monitor = monitored(hub, channels, 0.1)
        told = []
        monitor._end_all = lambda text, rank, silent=False: told.append((text, rank))
        hub.start()
        monitor._statuses = {0: scores, 1: waits}
        monitor._decide(time.monotonic() + 0.09)
        channels[1].begin_exchange("barrier", None)
        wait_until(hub.missing)
        for peer in hub.peers.values():
            peer.received_at = peer.moved_at + 10
        monitor._decide(hub.moved_at() + 0.05)
        assert not told  # a large message has just moved
        monitor._decide(hub.moved_at() + 5)
        text, rank = told[0]
        assert rank == 0 and "the processes wait for each other: the exchange 'barrier' waits for rank 0 (rank 0: dev" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_values_of_any_size_are_exchanged(host):
    if host == "[::1]":
        with contextlib.suppress(OSError), serve("::1", 0):
            host = "::1 works"
        if host == "[::1]":
            pytest.skip("this host has no IPv6")
        host = "[::1]"
        assert _free_port("::1") > 0
    large = "x" * (65 << 20) if host == "127.0.0.1" else "x"
    with hub_of(2, host) as (hub, channels):
        hub.start()
        futures = []
        for channel, value in zip(channels, (large, {"rows": [1, None]}), strict=True):
            channel.start()
            futures.append(channel.begin_exchange("values", value))
        for future in futures:
            first, second = future.result(60)
            assert first == large and second == {"rows": [1, None]}
        with pytest.raises(TypeError):
            channels[0].begin_exchange("values", object())
        futures = [channel.begin_exchange("values", value) for channel, value in zip(channels, (b"", None), strict=True)]
        assert [future.result(60) for future in futures] == [[b"", None]] * 2


def test_values_larger_than_a_message_are_exchanged_by_parts(monkeypatch):
    monkeypatch.setattr("jfit.distributed.channel.MOST_BYTES", 1 << 16)
    values = [bytes(range(256)) * 700, {"text": "y" * 50_000}, b""]
    with hub_of(3) as (hub, channels):
        hub.start()
        for channel in channels:
            channel.start()
        for _ in range(2):
            futures = [channel.begin_exchange("values", value) for channel, value in zip(channels, values, strict=True)]
            assert all(future.result(60) == values for future in futures)
        assert not hub.missing()


def test_a_message_that_announces_too_much_ends_its_connection(caplog):
    """A process that joined, and then sends no messages of jfit: it is lost, and rank 0 holds nothing of it."""
    for head in (struct.pack("!IQ", 20, 2 << 30), struct.pack("!IQ", 1 << 31, 0), greeting(b"[" * 100_000)):
        with hub_of(2) as (hub, channels):
            lost = []
            hub.lost, hub.broken = lost.append, lost.append
            hub.start()
            channels[1].connection._sock.sendall(head)
            wait_until(lambda lost=lost: lost == [1])
    assert "rank 0 closed the connection of rank 1: a message of impossible length arrived" in caplog.text


def test_one_process_cannot_fill_the_memory_of_rank_0(monkeypatch):
    monkeypatch.setattr("jfit.distributed.channel._MOST_WAITING", 4 << 16)
    with hub_of(2) as (hub, channels):
        broken = []
        hub.broken = broken.append
        hub.start()
        for number in range(5):
            channels[1].begin_exchange(f"value {number}", bytes(1 << 16))
        wait_until(lambda: broken)
        assert "rank 1 has sent more than 0 MiB for exchanges that are not complete" in str(broken[0])


# ------------------------------------------------------------------------------------------------ strangers
def greeting(text, blob=0):
    return struct.pack("!IQ", len(text), blob) + text


GREETINGS = {
    "nested": greeting(b"[" * 60_000 + b"]" * 60_000)[: 12 + 64_000],
    "deep": greeting(b'{"type":' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    "bytes": greeting(b'{"type": "jfit-job-1"}', 1 << 40),
    "long": struct.pack("!IQ", 1 << 20, 0),
    "no host": greeting(json.dumps({"type": "jfit-job-1", "rank": 1, "num_processes": 2, "pid": 1}).encode()),
    "text": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("name", GREETINGS)
def test_strangers_are_turned_away(name):
    left, right = socket.socketpair()
    with left, right:
        left.sendall(GREETINGS[name])
        hub = Hub(socket.socket(), 2)
        begin = time.monotonic()
        assert hub._greet(Connection(right)) is None and not hub.peers
        assert time.monotonic() - begin < 3
        left.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert left.recv(1) == b""
        hub.close()


@pytest.mark.parametrize("pause", [0.05, 60])
def test_a_slow_stranger_has_one_deadline(pause, monkeypatch):
    monkeypatch.setattr("jfit.distributed.connection._GREETING_SECONDS", 0.3)
    left, right = socket.socketpair()
    stop = threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            left.sendall(struct.pack("!IQ", 60_000, 0))
            while not stop.wait(pause):
                left.sendall(b" ")

    begun = thread(drip)
    hub = Hub(socket.socket(), 2)
    try:
        begin = time.monotonic()
        assert hub._greet(Connection(right)) is None
        assert 0.25 < time.monotonic() - begin < 4
    finally:
        stop.set()
        begun.join(10)
        left.close()
        hub.close()


def test_the_hub_stops_listening_once_all_are_there():
    with hub_of(1) as (hub, _):
        assert hub._server.fileno() == -1


def test_an_answer_that_is_no_welcome_and_a_connection_to_oneself():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo():
            connection = Connection(server.accept()[0])
            connection.send(connection.receive()[0])
            connection.close()

        begun = thread(echo)
        settings = Settings(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, None, "this test")
        with pytest.raises(JobError, match=r"did not answer rank 1 \(it sent a message of type 'jfit-job-1'\)"):
            connect(settings, {}, 5)
        begun.join(10)
    own = socket.socket()
    own.bind(("127.0.0.1", 0))
    own.connect(own.getsockname())  # as the kernel may do for a port from which it also takes outgoing ones
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", lambda *args, **options: own)
        with pytest.raises(ConnectionRefusedError, match="nobody listens"):
            open_connection(("127.0.0.1", 1), 1)


def test_the_coordinator_listens_at_its_own_address():
    with serve("127.0.0.1", 0) as server:
        assert server.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError) as caught:
        serve("192.0.2.1", 0)  # of another host: for documentation only
    assert is_elsewhere(caught.value)


def test_ranks_are_claimed_beside_strangers():
    settings = Settings(f"127.0.0.1:{free_port()}", 2, -1, None, "this test")
    ranks = []

    def claim():
        ranks.append(claim_rank(settings, 30).rank)

    first = thread(claim)

    def stranger():
        with contextlib.suppress(OSError), socket.create_connection(settings.address, 1) as sock:
            sock.sendall(GREETINGS["deep"])
            return True

    wait_until(stranger)
    at_once(claim, [()])
    first.join(60)
    assert sorted(ranks) == [0, 1]


# ------------------------------------------------------------------------------------------------ jobs
DIFFERENT = """
    import contextlib, sys
    import jfit
    from jfit.distributed.connection import serve

    coordinator, count, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with contextlib.suppress(OSError), serve("::1", 0):  # this host has IPv6
        coordinator = coordinator.replace("127.0.0.1", "[::1]")
    jfit.distributed.init(coordinator, count, rank, watchdog=1.5)
    jfit.distributed.exchange("x" * 100, "begin")
    jfit.distributed.exchange(None, "score" if jfit.distributed.is_main() else "barrier")
"""
MEASURED = ["kill-with-child", "kill", "stop", "loader-raises", "loader-stalls"]
MEASURED += ["term", "term-evaluation", "term-compile", "term-save"]


@pytest.mark.repetitions(slow=5)
@pytest.mark.slow
@pytest.mark.parametrize("action", MEASURED)
def test_an_event_ends_the_job_as_the_table_says(action, tmp_path):
    event = next(e for e in EVENTS if e.action == action)
    row = measure(event._replace(limit=90), folder=tmp_path, watchdog=10)  # other tests keep the machine busy
    assert not row.problem, f"{row.problem}\n{row.output}"


@pytest.mark.slow
def test_ranks_that_call_different_functions_end_also_with_ipv6(tmp_path):
    with start(DIFFERENT, folder=tmp_path, settings="arguments", deadline=120) as job:
        job.wait(codes=1)
    for process in job:
        assert "jfit: the processes wait for each other: the exchange '" in process.err  # the one that began first
        assert "rank 0: waiting for the other processes (score) for" in process.err
        assert "rank 1: waiting for the other processes (barrier) for" in process.err
        assert "the same functions in the same order" in process.err
