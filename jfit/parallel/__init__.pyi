"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.parallel.communication import Collectives as Collectives, Traffic as Traffic, collectives as collectives
from jfit.parallel.contexts import (
    Context as Context, check_entry as check_entry, cpu as cpu, gpu as gpu, resolve as resolve, tpu as tpu,
)
from jfit.parallel.data_parallel import (
    DataParallel as DataParallel, data_parallel as data_parallel,
)
from jfit.parallel.devices import (
    check_unsharded as check_unsharded, place as place, place_split as place_split, sharding as sharding,
    split_batch as split_batch,
)
from jfit.parallel.replicas import check_replicas as check_replicas
from jfit.parallel.spmd import Window as Window, compile_spmd as compile_spmd
from jfit.step.reduce import with_local as with_local
