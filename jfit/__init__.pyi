"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from . import (
    callbacks as callbacks, checkpoint as checkpoint, counters as counters, data as data, distributed as distributed,
    export as export, formats as formats, init as init, losses as losses, metrics as metrics, ops as ops, optim as optim,
    parallel as parallel, programs as programs, sym as sym,
)
from jfit.callbacks.intervals import Every as Every, every as every
from jfit.data import Batch as Batch, NDArrayIter as NDArrayIter
from jfit.disk_cache import compile_cache as compile_cache
from jfit.evaluate.scorer import predict as predict, score as score
from jfit.fit import fit as fit
from jfit.graph import Symbol as Symbol
from jfit.interrupts import graceful_stop as graceful_stop
from jfit.load import Loaded as Loaded, load as load
from jfit.loop.replayed import Replay as Replay
from jfit.lowering import lower as lower, summary as summary
from jfit.lowering.model import Model as Model, Policy as Policy
from jfit.mxnet import callback as callback
from jfit.mxnet.feedforward import FeedForward as FeedForward
from jfit.mxnet.gluon import Parameter as Parameter, ParameterDict as ParameterDict, Trainer as Trainer
from jfit.mxnet.kvstore import KVStore as KVStore
from jfit.mxnet.module import (
    BucketingModule as BucketingModule, Module as Module, PythonLossModule as PythonLossModule, PythonModule as PythonModule,
    SequentialModule as SequentialModule,
)
from jfit.mxnet.monitor import Monitor as Monitor
from jfit.parallel import Context as Context, cpu as cpu, data_parallel as data_parallel, gpu as gpu, tpu as tpu
from jfit.programs import clear_programs as clear_programs
from jfit.run import Run as Run, last_run as last_run
from jfit.step import (
    StepOut as StepOut, eval_step as eval_step, gradients as gradients, predict_step as predict_step,
    regularizers as regularizers, totals as totals, train_step as train_step,
)
from jfit.step.state import TrainState as TrainState, init_state as init_state
from jfit.step.updates import Update as Update
from jfit.tools.cost import Cost as Cost, cost as cost
from jfit.tools.lr_find import lr_find as lr_find
from jfit.tools.replay import replay as replay
from jfit.tools.sweep import Sweep as Sweep, choice as choice, log_uniform as log_uniform, sweep as sweep, uniform as uniform
from jfit.tools.verify import Verification as Verification, verify as verify

__version__: str
