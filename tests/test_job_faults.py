"""Faults in jobs of several processes: the others notice them, say what happened, and end; stops are agreed on."""

import contextlib
import random
import signal
import socket
import threading
import time

import jax
import pytest
from jobs import free_port

import jfit
from benchmarks.job_faults import EVENTS, measure
from jfit import activity, interrupts
from jfit.distributed import JobError
from jfit.distributed.channel import Hub, connect, listen
from jfit.distributed.errors import is_of_another, last_line
from jfit.distributed.monitor import Status, held_up
from jfit.distributed.settings import Settings
from jfit.distributed.stops import AgreedFlag, HubStops, Stops


# ------------------------------------------------------------------------------------------------ which process holds others up
def status(count, kind, idle, seconds=None):
    return Status(count, kind, kind, idle, seconds, 0.0)


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
@contextlib.contextmanager
def connected(count):
    """The stopping points of `count` processes, which are threads."""
    first = Settings(f"127.0.0.1:{free_port()}", count, 0, None, "this test")
    settings = [first._replace(rank=rank) for rank in range(count)]
    server, channels = listen(settings[0]), [None] * count
    hub = Hub(server, count)

    def join(rank):
        channels[rank] = connect(settings[rank], {"pid": rank, "host": "here", "versions": {}}, 30)[0]

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(count)]
    try:
        for thread in threads:
            thread.start()
        hub.welcome(30, lambda: {"type": "welcome"})
        for thread in threads:
            thread.join()
        HubStops(hub)
        stops = [Stops(channel, lambda function: function()) for channel in channels]
        hub.start()
        for channel in channels:
            channel.start()
        yield stops
    finally:
        for channel in channels:
            if channel is not None:
                channel.close()
        hub.close()


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
            threads = [threading.Thread(target=run, args=(rank, stop), daemon=True) for rank, stop in enumerate(stops)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
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

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [len(p) for p in points] == [7, 7, 7]


def test_a_second_stop_waits_for_the_processes_that_have_not_made_the_first():
    with connected(2) as stops:
        first = [None, None]
        fast = threading.Thread(target=lambda: first.__setitem__(0, _next_stop(stops[0], "enough")), daemon=True)
        fast.start()
        fast.join(60)  # rank 0 has made the stop, rank 1 has not even come to it
        assert first[0].reason == "enough" and stops[1].is_next
        again = [None, None]
        threads = [
            threading.Thread(target=lambda: again.__setitem__(0, _next_stop(stops[0], "more")), daemon=True),
            threading.Thread(
                target=lambda: (first.__setitem__(1, _next_stop(stops[1])), again.__setitem__(1, _next_stop(stops[1])))
            ),
        ]
        threads[0].start()
        deadline = time.monotonic() + 60
        while not stops[1]._hold_later and time.monotonic() < deadline:
            time.sleep(0.001)
        threads[1].start()
        for thread in threads:
            thread.join(60)
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

        thread = threading.Thread(target=other, daemon=True)
        interrupts.use_flags(lambda: AgreedFlag(stops[0]))
        try:
            with jfit.graceful_stop(interrupt=True) as outer, interrupts.stop_flag().watching(terminate=True) as flag:
                thread.start()
                signal.raise_signal(signal.SIGTERM)
                assert not flag.set  # not before the others
                while not flag:
                    pass
                assert flag.signal is outer.signal is signal.SIGTERM and flag.owned and outer.set
        finally:
            interrupts.use_flags(None)
        thread.join(60)
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
        thread = threading.Thread(target=lambda: server.accept()[0].close(), daemon=True)
        thread.start()
        settings = Settings(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, None, "this test")
        with pytest.raises(JobError, match=r"rank 0 at .* did not answer rank 1"):
            connect(settings, {}, 1)
        thread.join(10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "has the same rank as process 10"),
        ({"num_processes": 3}, "was started for 3 processes, but rank 0 for 2"),
        ({"rank": 5, "num_processes": 2}, "has a rank outside of 0 to 1"),
        ({"versions": {"jfit": "2", "jax": "0.1"}}, "has jfit 2, jax 0.1, but process 10 on here has jfit 1, jax 0.1"),
    ],
)
def test_processes_that_do_not_fit_together(change, message):
    first = Settings(f"127.0.0.1:{free_port()}", 2, 0, None, "this test")
    hello = {"pid": 10, "host": "here", "versions": {"jfit": "1", "jax": "0.1"}}
    second = first._replace(**{"rank": 1, **{k: v for k, v in change.items() if k in Settings._fields}})
    hub, errors = Hub(listen(first), 2), {}

    def join(settings, hello):
        try:
            connect(settings, hello, 20)
        except JobError as error:
            errors[hello["pid"]] = str(error)

    threads = [
        threading.Thread(target=join, args=(first, hello), daemon=True),
        threading.Thread(
            target=join, args=(second, {**hello, "pid": 11, "versions": change.get("versions", hello["versions"])})
        ),
    ]
    try:
        threads[0].start()
        welcome = threading.Thread(
            target=lambda: contextlib.suppress(JobError).__enter__() or _welcome(hub, errors), daemon=True
        )
        welcome.start()
        while 0 not in hub.hellos:
            pass
        threads[1].start()
        for thread in (*threads, welcome):
            thread.join(60)
        assert message in errors["hub"] and errors[10] == errors[11] == errors["hub"]
    finally:
        hub.close()


def _welcome(hub, errors):
    try:
        hub.welcome(20, lambda: {"type": "welcome"})
    except JobError as error:
        errors["hub"] = str(error)


def test_a_process_that_does_not_come():
    settings = Settings(f"127.0.0.1:{free_port()}", 3, 0, None, "this test")
    hub = Hub(listen(settings), 3)
    try:
        with pytest.raises(JobError, match=r"ranks 0, 1, 2 of 3 did not connect to rank 0 within 0 s"):
            hub.welcome(0.1, dict)
    finally:
        hub.close()


def test_init_after_a_computation_is_refused():
    jax.numpy.ones(1).block_until_ready()
    with pytest.raises(RuntimeError, match=r"jfit.distributed.init was called after JAX had started its devices"):
        jfit.distributed.init(f"127.0.0.1:{free_port()}", 2, 0, timeout=1)


# ------------------------------------------------------------------------------------------------ jobs
MEASURED = ("kill-with-child", "kill", "stop", "loader-raises", "loader-stalls", "term-evaluation", "term-save")


@pytest.mark.slow
@pytest.mark.parametrize("action", MEASURED)
def test_an_event_ends_the_job_as_the_table_says(action, tmp_path):
    event = next(e for e in EVENTS if e.action == action)
    row = measure(event._replace(limit=90), folder=tmp_path, watchdog=10)  # other tests keep the machine busy
    assert not row.problem, f"{row.problem}\n{row.output}"
