"""`jfit.counters` counts host waits, traces and compilations, each once."""

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters


def test_waits_and_reads_are_counted():
    with counters.counted() as seen:
        waited = counters.wait({"a": jnp.ones(2)})
        read = counters.read({"a": jnp.ones(2), "b": 1.0})
    assert seen["host_syncs"] == 2
    assert isinstance(waited["a"], jax.Array)
    assert isinstance(read["a"], np.ndarray) and isinstance(read["b"], np.ndarray)


def test_backend_compiles_are_counted_once():
    fn = jax.jit(lambda x: x * 3 + 1)
    x = jnp.ones(3)
    with counters.counted() as first:
        fn(x)
    with counters.counted() as second:
        fn(x)
    assert first["compiles"] == 1 and second["compiles"] == 0


def test_counter_blocks_count_only_their_own_events_and_can_be_nested():
    with counters.counted() as outer:
        counters.count_trace("a")
        with counters.counted() as inner:
            counters.count_trace("b")
    assert dict(inner) == {"traces": 1, "traces:b": 1}
    assert dict(outer) == {"traces": 2, "traces:a": 1, "traces:b": 1}


def test_a_counter_block_that_raises_still_counts():
    seen = None
    try:
        with counters.counted() as seen:
            counters.count_trace("a")
            raise KeyError
    except KeyError:
        pass
    assert seen is not None and seen["traces"] == 1
