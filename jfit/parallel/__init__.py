"""Stage 4: devices, where arrays live, and the same step on N devices (pmap, psum)."""

from jfit.parallel.data_parallel import DataParallel, data_parallel
from jfit.parallel.devices import Context, cpu, gpu, place, place_split, resolve, sharding, split_batch, tpu
from jfit.parallel.spmd import Window, compile_spmd

__all__ = [
    "Context",
    "DataParallel",
    "Window",
    "compile_spmd",
    "cpu",
    "data_parallel",
    "gpu",
    "place",
    "place_split",
    "resolve",
    "sharding",
    "split_batch",
    "tpu",
]
