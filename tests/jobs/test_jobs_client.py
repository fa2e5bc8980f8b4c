"""The client of JAX's coordination service has what jobs need, also in the newest version of JAX."""

from jobs import start

SCRIPT = """
    import os, signal, sys, threading, time
    from jfit.distributed import client
    from jfit.distributed.settings import Settings

    coordinator, rank = sys.argv[1], int(sys.argv[3])
    connection, count, number = client.start(Settings(coordinator, 2, rank, None, "this test"), 60)
    assert (count, number) == (2, rank)
    store = client.Store(connection, "a test")
    if rank == 1:
        time.sleep(0.3)
        store.set("folder/late", b"value")
    else:
        assert store.get("folder/late") is None and store.get("folder/late", 0.05) is None
    assert store.get("folder/late", 60) == b"value"
    assert store.add(f"folder/{rank}", b"first") and not store.add(f"folder/{rank}", b"second")
    while store.count("meet") < 2 and store.get("met") is None:
        time.sleep(0.01)
    store.set("met", b"yes")
    try:
        store.count("folder/late")  # which is no number
    except client.Unreachable:
        raise
    except RuntimeError as error:
        assert "JAX's store in rank 0 refused key_value_increment('folder/late')" in str(error), error
        print("REFUSED", flush=True)
    assert store.all("folder") == {"late": b"value", "0": b"first", "1": b"first"} and store.all("other") == {}
    store.set(f"all read/{rank}", b"yes")
    assert store.get(f"all read/{1 - rank}", 60) == b"yes"
    store.set(f"folder/{rank}", bytes(range(256)))
    assert store.get(f"folder/{rank}") == bytes(range(256)) and store.answers > 5
    store.set(f"own read/{rank}", b"yes")
    store.get("agreed", 0.5)
    if rank == 0:
        assert store.get("own read/1", 60) == b"yes"
        store.delete("folder")
        assert store.all("folder") == {}
        print("DELETED", flush=True)
        store.set("agreed", b"yes")
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    assert store.get("agreed", 60) == b"yes"
    client.on_abort(lambda: (print("ABORTED", flush=True), os._exit(3)))
    try:
        while True:
            store.get("nothing", 60)
    except client.Unreachable:  # another thread may abort before
        time.sleep(60)
"""


def test_the_store_of_a_job_and_the_end_of_its_rank_0(tmp_path):
    with start(SCRIPT, folder=tmp_path, settings="arguments", deadline=180) as job:
        job.wait(codes=[-9, 3])
    assert "REFUSED" in job[0].out and "REFUSED" in job[1].out and "DELETED" in job[0].out and "ABORTED" in job[1].out
