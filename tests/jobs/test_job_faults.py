"""Faults in jobs of several processes: the others notice them, say what happened, and end; stops are agreed on."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import threading
import time
from types import SimpleNamespace

import jax
import pytest
from jobs import free_port, start

import jfit
from benchmarks.job_faults import EVENTS, measure
from jfit import activity, interrupts
from jfit.distributed import JobError, channel
from jfit.distributed.channel import Channel
from jfit.distributed.client import Unreachable, wait_for_port
from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.monitor import EXCHANGING, Monitor, Peer, Status, deadlocked, held_up, place_of, start_of
from jfit.distributed.settings import Settings, token_of
from jfit.distributed.stops import AgreedFlag, Stops


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


class Values:
    """A store as that of `jfit.distributed.client`, in this process."""

    def __init__(self):
        self.values, self.answers, self.gone = {}, 0, False
        self._changed = threading.Condition()

    def set(self, key, value):
        self.add(key, value, replace=True)

    def add(self, key, value, replace=False):
        with self._changed:
            if self.gone:
                raise Unreachable("gone")
            self.answers += 1
            if key in self.values and not replace:
                return False
            self.values[key] = value
            self._changed.notify_all()
            return True

    def get(self, key, seconds=0.0):
        with self._changed:
            self._changed.wait_for(lambda: key in self.values or self.gone, seconds)
            if self.gone:
                raise Unreachable("gone")
            return self.values.get(key)

    def count(self, key):
        with self._changed:
            self.values[key] = str(int(self.values.get(key, b"0")) + 1).encode()
            return int(self.values[key])

    def all(self, folder):
        with self._changed:
            return {key.rpartition("/")[2]: value for key, value in self.values.items() if key.startswith(f"{folder}/")}

    def delete(self, folder):
        with self._changed:
            for key in [key for key in self.values if key == folder or key.startswith(f"{folder}/")]:
                del self.values[key]


@contextlib.contextmanager
def connected(count):
    """The stopping points of `count` processes, which are threads."""
    store = Values()
    channels = [Channel(store, rank, count) for rank in range(count)]
    stops = [Stops(store, channel, lambda function: function()) for channel in channels]

    def listen(stops):
        with contextlib.suppress(JobError):
            stops.listen()

    for each in stops:
        thread(listen, each)
    yield stops
    assert len(store.values) <= 2, store.values  # of the last stop
    for each in channels:
        each.error = JobError("the end of the test")


@pytest.mark.parametrize("seed", range(6))
def test_processes_stop_at_the_same_point(seed):
    """Each passes points at its own pace, but none more than 3 before others, as with programs in flight on the devices."""
    choice, count, most = random.Random(seed), 3, 3
    wants = {choice.randrange(count): choice.randrange(5, 40) for _ in range(choice.randrange(1, 4))}
    number = choice.choice([0, int(signal.SIGTERM)])
    passed, changed, results = [0] * count, threading.Condition(), [None] * count

    def run(rank, stops):
        for point in range(10_000):
            with changed:
                changed.wait_for(lambda: passed[rank] <= min(passed) + most)
            reason = None
            if wants.get(rank) == point:
                stops.want(number, None) if number else None
                reason = None if number else "enough"
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
            assert point >= min(wants.values())
            assert (agreed.signal, agreed.reason) == ((number, None) if number else (0, "enough"))


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


def test_a_second_stop_waits_for_the_processes_that_have_not_made_the_first():
    with connected(2) as stops:
        first, again = [None, None], [None, None]

        def stop(rank, found, reason=None):
            found[rank] = _next_stop(stops[rank], reason)

        at_once(stop, [(0, first, "enough")])  # rank 0 has made the stop, rank 1 has not even come to it
        assert first[0].reason == "enough"
        wait_until(lambda: stops[1].is_next)  # the message to its thread may come a little later
        ahead = thread(stop, 0, again, "more")
        wait_until(lambda: stops[0]._channel.open)  # for the count of rank 1
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


@pytest.mark.parametrize("nested", [False, True])
def test_a_signal_after_the_last_stopping_point_is_answered_once(nested):
    """Ctrl-C comes at the end of a loop, and is raised again after it; the next loop stops only in a block that handles it."""
    with connected(1) as stops:
        interrupts.use_flags(lambda: AgreedFlag(stops[0]))
        try:
            with jfit.graceful_stop(interrupt=nested) as outer:
                raised = contextlib.nullcontext() if nested else pytest.raises(KeyboardInterrupt)
                with raised, interrupts.stop_flag().watching() as flag:
                    assert not flag
                    signal.raise_signal(signal.SIGINT)
                wait_until(lambda: stops[0].is_next)
                with interrupts.stop_flag().watching() as flag:
                    assert [bool(flag) for _ in range(3)] == [nested] * 3
                assert outer.set == nested and stops[0].round == 1
        finally:
            interrupts.use_flags(None)


# ------------------------------------------------------------------------------------------------ the start of a job
def test_a_port_in_use_and_a_restarted_job_that_waits_for_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = Settings(f"127.0.0.1:{server.getsockname()[1]}", 2, 0, None, "this test")
        with pytest.raises(JobError, match=f"rank 0 cannot listen at {settings.coordinator}.*another program has the port"):
            wait_for_port(settings, 0)
        threading.Timer(0.5, server.close).start()
        wait_for_port(settings, 60)


# What is wrong with a job of which rank 0 is started for 2 processes, its others, and what all of them say.
UNFIT = {
    "missing": ([], {}, {0: "rank 1 of 2 did not connect to rank 0 within 3 s; start what is missing, or wait longer"}),
    "no rank 0": (
        [(1, 2)],
        {},
        {1: "rank 1 could not connect to rank 0 at .* within 3 s .*check that its process runs"},
    ),
    "rank": ([(2, 3)], {}, {2: "this process is rank 2 of 3, but rank 0 was started for fewer processes"}),
    "count": ([(1, 3)], {}, dict.fromkeys((0, 1), r"rank 1 \(process .*\) was started for 3 processes, but rank 0 for 2")),
    "token": (
        [(1, 2)],
        {"JFIT_JOB_TOKEN": "b"},
        dict.fromkeys((0, 1), r"rank 1 \(.*\) has another token than the job of rank 0"),
    ),
}
BEGIN = """
    import os, sys
    import jfit

    rank = int(sys.argv[3])
    others, environment, own = {others}, {environment}, {own}
    numbers = [(0, 2)] * own + others
    if rank < len(numbers):
        rank, count = numbers[rank]
        os.environ.update(environment if rank else {{}})
        try:
            jfit.distributed.init(sys.argv[1], count, rank, timeout=3 if {short} else 60)
        except jfit.distributed.JobError as error:
            print("REFUSED", rank, error)
            if environment:
                os.environ["JFIT_JOB_TOKEN"] = "c"
                jfit.distributed.init(sys.argv[1], count, rank, timeout=60)
                print("AGAIN", jfit.distributed.exchange(rank))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", UNFIT)
def test_a_job_that_does_not_begin_says_why_in_all_processes(name, tmp_path):
    others, environment, expected = UNFIT[name]
    script = BEGIN.format(others=others, environment=environment, own=name != "no rank 0", short=name not in ("count", "token"))
    with start(script, folder=tmp_path, settings="arguments", deadline=120) as job:
        job.wait()
        for rank, text in expected.items():
            process = next(p for p in job if f"REFUSED {rank} " in p.out)
            assert re.search(text, process.out), process
            assert ("AGAIN [0, 1]" in process.out) == (name == "token")


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
        peers = [Peer(0, "here", 10, place), Peer(1, "here", *values)]
        Monitor(0, peers, Values(), SimpleNamespace(), 30).end("silent", 1, silent=True)

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
    with pytest.raises(RuntimeError, match=r"must be called before any JAX calls that might initiali[sz]e"):
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


@contextlib.contextmanager
def monitored(watchdog, rank=0, peers=None, started=True):
    """A monitor of one of two processes, its store and its channel."""
    store = Values()
    exchanges = Channel(store, rank, 2)
    peers = peers or [Peer(0, "here", 0), Peer(1, "here", 1)]
    monitor = Monitor(rank, peers, store, exchanges, watchdog)
    monitor.end = Ended()
    if started:
        monitor.start()
    try:
        yield monitor, store, exchanges
    finally:
        monitor.stop()


def test_a_process_without_heartbeats_ends_the_job(monkeypatch):
    with monitored(0.5) as (monitor, store, _):
        wait_until(lambda: monitor.end)
        assert "rank 1 (process 1 on here) gave no sign of life for" in monitor.end[0][0] and monitor.end[0][1:] == (1, True)
        assert json.loads(store.values["end"])["text"] == monitor.end[0][0]  # where the others read it
    monkeypatch.setattr("jfit.distributed.monitor.SUSPECTED", 0.4)
    with monitored(2) as (monitor, _, _):
        monitor.suspects = True  # a collective has failed: nobody waits for the watchdog
        wait_until(lambda: monitor.end)
        assert "gave no sign of life for 0 s" in monitor.end[0][0] or "for 1 s" in monitor.end[0][0]


def test_a_store_that_is_silent_or_gone_ends_the_job():
    with monitored(0.5, rank=1) as (monitor, store, _):
        store.set = lambda key, value: time.sleep(60)  # as calls do when the process of rank 0 is stopped
        wait_until(lambda: monitor.end)
        assert "rank 0 (process 0 on here) gave no sign of life for" in monitor.end[0][0] and monitor.end[0][1:] == (0, True)
    with monitored(30, rank=1) as (monitor, store, _):
        store.gone = True
        wait_until(lambda: monitor.end)
        assert "rank 0 (process 0 on here) was lost: it was killed" in monitor.end[0][0]


def test_a_process_of_this_host_that_has_ended_is_noticed_by_all():
    place, gone = place_of(), Peer(1, "here", os.getpid(), place_of(), start_of(os.getpid()) + 1)
    with monitored(4, peers=[Peer(0, "here", 0, place, 1), gone]) as (monitor, _, _):
        wait_until(lambda: monitor.end)
        assert monitor.end[0][0].endswith("was lost: it was killed, it crashed, or its host is gone") and monitor.end[0][1] == 1


def test_an_error_of_the_monitor_ends_the_job(capfd):
    with monitored(30) as (monitor, _, _):
        monitor.later(lambda: 1 // 0)
        wait_until(lambda: monitor.end)
        assert monitor.end[0][0].endswith("failed: ZeroDivisionError: integer division or modulo by zero")
        assert "1 // 0" in capfd.readouterr().err


def test_processes_that_fail_at_once_end_because_of_the_first_and_rank_0_last(monkeypatch):
    order = []
    monkeypatch.setattr("jfit.distributed.monitor.leave", lambda code: order.append(("left", code)))
    with monitored(30) as (monitor, store, _):
        del monitor.__dict__["end"]
        monkeypatch.setattr(monitor, "end", lambda text, rank, *, silent=False: order.append(text))
        monitor.tell("rank 1 failed", 1)  # what rank 1 has stored just before
        wait_until(lambda: order == ["rank 1 failed"])
        assert store.values["read/0"] and json.loads(store.values["end"])["rank"] == 1
        monitor.peers.append(Peer(2, "here", 2))
        failing = thread(monitor.failed, "ValueError: no rows", 3)
        time.sleep(0.1)
        assert failing.is_alive() and len(order) == 1  # rank 2 has not read why
        store.set("read/2", b"yes")
        failing.join(60)
        assert order == ["rank 1 failed", ("left", 3)] and json.loads(store.values["end"])["rank"] == 1


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
    with monitored(30, started=False) as (monitor, store, exchanges):
        ended = thread(lambda: exchanges.exchange("barrier", None))
        wait_until(lambda: exchanges.open)
        store.set("beat/0", json.dumps([1, False, list(exchanges.open), waits]).encode())
        store.set("beat/1", json.dumps([1, False, [], scores]).encode())
        told = []
        monitor.tell = lambda text, rank, silent=False: told.append((text, rank))
        monitor._decide()
        text, rank = told[0]
        assert rank == 1 and "the processes wait for each other: the exchange 'barrier' waits for rank 1 (rank 0: wait" in text
        store.set("value/barrier#1/1", b"jnull")  # sent after its last heartbeat
        monitor._decide()
        assert len(told) == 1
        ended.join(60)


# ------------------------------------------------------------------------------------------------ exchanges
def test_values_are_exchanged_by_name(monkeypatch):
    store, values = Values(), [{"rows": [1, None]}, b"", "x" * 100_000]
    channels, results = [Channel(store, rank, 3) for rank in range(3)], [None] * 3
    for name in ("values", "others/#1", "values"):
        at_once(
            lambda rank, name=name: results.__setitem__(rank, channels[rank].exchange(name, values[rank])), [(0,), (1,), (2,)]
        )
        assert results == [values] * 3
    for each in channels:
        each.post("values", None)  # a value for which nobody waits
    assert not store.values
    with pytest.raises(TypeError):
        channels[0].exchange("values", object())
    errors = []

    def wait():
        try:
            channels[0].exchange("values", None)
        except JobError as error:
            errors.append(str(error))

    waits = thread(wait)
    wait_until(lambda: channels[0].open)
    assert channels[1].missing({0: list(channels[0].open), 1: [], 2: []}) == {"values#4": [1, 2]}
    assert channels[1].missing({0: ["value/values#3"], 1: []}) == {}  # all have read it since that heartbeat
    channels[0].error = JobError("rank 1 was lost")
    waits.join(60)
    assert errors == ["rank 1 was lost"] and not channels[0].open


LARGE = """
    import sys, hashlib
    import jfit, jobs
    from jfit.distributed import channel, job

    coordinator, count, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jfit.distributed.init(coordinator, count, rank)
    store, sizes = job.current().store, []
    put = store.set
    store.set = lambda key, value: (sizes.append(len(value)), put(key, value))
    value = bytes(range(256)) * (20_000 if rank == 0 else 5_000) + bytes([rank] * 7)
    values = jfit.distributed.exchange(value, "large")
    texts = jfit.distributed.exchange("y" * (2 << 20) if rank else None, "texts")
    jobs.report(digests=[hashlib.md5(v).hexdigest() for v in values], texts=[t and len(t) for t in texts], largest=max(sizes))
"""


@pytest.mark.slow
def test_large_values_are_sent_by_the_devices(tmp_path):
    with start(LARGE, folder=tmp_path, settings="arguments", deadline=120) as job:
        first, second = job.wait().values
    contents = [bytes(range(256)) * size + bytes([rank] * 7) for rank, size in enumerate((20_000, 5_000))]
    expected = [hashlib.md5(content).hexdigest() for content in contents]
    assert first["digests"] == second["digests"] == expected and first["texts"] == second["texts"] == [None, 2 << 20]
    assert max(first["largest"], second["largest"]) < channel.LARGE


# ------------------------------------------------------------------------------------------------ jobs
DIFFERENT = """
    import contextlib, sys
    import jfit
    import socket

    coordinator, count, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):  # this host has IPv6
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
