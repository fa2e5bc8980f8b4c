"""Devices, placement of arrays on them, and data-parallel training steps (pmap, psum)."""

from jfit.parallel.data_parallel import DataParallel, data_parallel, with_local
from jfit.parallel.devices import (
    Context,
    check_unsharded,
    cpu,
    gpu,
    place,
    place_split,
    require_one_process,
    resolve,
    sharding,
    split_batch,
    tpu,
)
from jfit.parallel.spmd import Window, compile_spmd

__all__ = [
    "Context",
    "DataParallel",
    "Window",
    "check_unsharded",
    "compile_spmd",
    "cpu",
    "data_parallel",
    "gpu",
    "place",
    "place_split",
    "require_one_process",
    "resolve",
    "sharding",
    "split_batch",
    "tpu",
    "with_local",
]
