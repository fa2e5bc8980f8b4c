"""Devices, placement of arrays on them, and data-parallel training steps (pmap, psum)."""

import sys
from typing import TYPE_CHECKING

from jfit import lazy as _lazy

if TYPE_CHECKING:  # these names, each of which is imported when it is first used
    from jfit.parallel.communication import Collectives, Traffic, collectives
    from jfit.parallel.contexts import Context, check_entry, cpu, gpu, resolve, tpu
    from jfit.parallel.data_parallel import DataParallel, data_parallel, with_local
    from jfit.parallel.devices import check_unsharded, place, place_split, sharding, split_batch
    from jfit.parallel.replicas import check_replicas
    from jfit.parallel.spmd import Window, compile_spmd

__all__ = [
    "Collectives",
    "Context",
    "DataParallel",
    "Traffic",
    "Window",
    "check_entry",
    "check_replicas",
    "check_unsharded",
    "collectives",
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
    "with_local",
]

_HOMES = {
    "jfit.parallel.communication": "Collectives Traffic collectives",
    "jfit.parallel.data_parallel": "DataParallel data_parallel with_local",
    "jfit.parallel.contexts": "Context cpu gpu check_entry resolve tpu",
    "jfit.parallel.devices": "check_unsharded place place_split sharding split_batch",
    "jfit.parallel.replicas": "check_replicas",
    "jfit.parallel.spmd": "Window compile_spmd",
}

_lazy.attributes(sys.modules[__name__], _lazy.homes_of(_HOMES))
