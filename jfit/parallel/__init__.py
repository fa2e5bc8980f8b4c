"""Stage 4: devices, where arrays live, and the same step on N devices (pmap, psum)."""

from jfit.parallel.devices import Context, cpu, gpu, resolve, tpu
from jfit.parallel.spmd import DataParallel, compile_spmd, data_parallel, place, place_split, sharding, split_batch
from jfit.parallel.window import Window

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
