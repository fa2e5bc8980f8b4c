"""jfit: a training engine for symbolic graphs and pure JAX functions.

    symbol     graph of operators             jfit.sym.*  ->  Symbol
      |        jfit.lower
    model      pure functions                 Model: init, apply
      |        jfit.train_step
    step       one parameter update           step(state, batch)  ->  (state, out)
      |        jfit.data_parallel
    parallel   the same step on n devices     pmap, psum
      |        jfit.fit
    run        epochs, callbacks, checkpoints Run: state, history, score, predict

Each stage can be used without the stages below it.

>>> import jfit, numpy as np
>>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
>>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
>>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
>>> run = jfit.fit(net, (x, x.argmax(1)), num_epoch=20, optimizer_params={"learning_rate": 1.0}, progress=False)
>>> run.score((x, x.argmax(1)))["accuracy"]
1.0
"""

import logging
import sys
from typing import TYPE_CHECKING

from jfit import disk_cache as _disk_cache
from jfit import lazy as _lazy

if TYPE_CHECKING:  # these names, each of which is imported when it is first used
    from jfit import (
        callbacks,
        checkpoint,
        counters,
        data,
        distributed,
        export,
        formats,
        init,
        losses,
        metrics,
        ops,
        optim,
        parallel,
        programs,
        sym,
    )
    from jfit.data import Batch, NDArrayIter
    from jfit.disk_cache import compile_cache
    from jfit.evaluate.scorer import predict, score
    from jfit.fit import fit
    from jfit.graph import Symbol
    from jfit.interrupts import graceful_stop
    from jfit.load import Loaded, load
    from jfit.loop.replayed import Replay
    from jfit.lowering import lower, summary
    from jfit.lowering.model import Model, Policy
    from jfit.mxnet import callback
    from jfit.mxnet.feedforward import FeedForward, TrainingOptions
    from jfit.mxnet.gluon import Parameter, ParameterDict, Trainer
    from jfit.mxnet.kvstore import KVStore
    from jfit.mxnet.module import BucketingModule, Module, PythonLossModule, PythonModule, SequentialModule
    from jfit.mxnet.monitor import Monitor
    from jfit.parallel import Context, cpu, data_parallel, gpu, tpu
    from jfit.programs import clear_programs
    from jfit.run import Run, last_run
    from jfit.step import BatchCheck, StepOut, eval_step, gradients, predict_step, regularizers, totals, train_step
    from jfit.step.state import TrainState, init_state
    from jfit.tools.cost import Cost, cost
    from jfit.tools.lr_find import lr_find
    from jfit.tools.replay import replay
    from jfit.tools.sweep import Sweep, choice, log_uniform, sweep, uniform
    from jfit.tools.verify import Verification, verify

__version__ = "0.1.0"

_disk_cache.start()
# MXNet scripts log at level DEBUG, of which JAX writes a line per operation; set the level of "jax" yourself to see them.
if logging.getLogger("jax").level == logging.NOTSET:
    logging.getLogger("jax").setLevel(logging.WARNING)

__all__ = [
    "Batch",
    "BatchCheck",
    "BucketingModule",
    "Context",
    "Cost",
    "FeedForward",
    "KVStore",
    "Loaded",
    "Model",
    "Module",
    "Monitor",
    "NDArrayIter",
    "Parameter",
    "ParameterDict",
    "Policy",
    "PythonLossModule",
    "PythonModule",
    "Replay",
    "Run",
    "SequentialModule",
    "StepOut",
    "Sweep",
    "Symbol",
    "TrainState",
    "Trainer",
    "TrainingOptions",
    "Verification",
    "callback",
    "callbacks",
    "checkpoint",
    "choice",
    "clear_programs",
    "compile_cache",
    "cost",
    "counters",
    "cpu",
    "data",
    "data_parallel",
    "distributed",
    "eval_step",
    "export",
    "fit",
    "formats",
    "gpu",
    "graceful_stop",
    "gradients",
    "init",
    "init_state",
    "last_run",
    "load",
    "log_uniform",
    "losses",
    "lower",
    "lr_find",
    "metrics",
    "ops",
    "optim",
    "parallel",
    "predict",
    "predict_step",
    "programs",
    "regularizers",
    "replay",
    "score",
    "summary",
    "sweep",
    "sym",
    "totals",
    "tpu",
    "train_step",
    "uniform",
    "verify",
]

_PACKAGES = "callbacks checkpoint counters data distributed export formats init losses metrics ops optim parallel programs sym"
_HOMES = {
    "jfit.data": "Batch NDArrayIter",
    "jfit.graph": "Symbol",
    "jfit.load": "Loaded load",
    "jfit.interrupts": "graceful_stop",
    "jfit.lowering": "lower summary",
    "jfit.lowering.model": "Model Policy",
    "jfit.mxnet.feedforward": "FeedForward TrainingOptions",
    "jfit.mxnet.gluon": "Parameter ParameterDict Trainer",
    "jfit.mxnet.kvstore": "KVStore",
    "jfit.mxnet.module": "BucketingModule Module PythonLossModule PythonModule SequentialModule",
    "jfit.mxnet.monitor": "Monitor",
    "jfit.disk_cache": "compile_cache",
    "jfit.parallel": "Context cpu data_parallel gpu tpu",
    "jfit.programs": "clear_programs",
    "jfit.step": "BatchCheck StepOut eval_step gradients predict_step regularizers totals train_step",
    "jfit.step.state": "TrainState init_state",
    "jfit.tools.cost": "Cost cost",
    "jfit.evaluate.scorer": "predict score",
    "jfit.fit": "fit",
    "jfit.tools.lr_find": "lr_find",
    "jfit.tools.replay": "replay",
    "jfit.loop.replayed": "Replay",
    "jfit.run": "Run last_run",
    "jfit.tools.sweep": "Sweep choice log_uniform sweep uniform",
    "jfit.tools.verify": "Verification verify",
}

_lazy.attributes(
    sys.modules[__name__],
    {**_lazy.homes_of(_HOMES), "callback": "jfit.mxnet.callback"} | {name: f"jfit.{name}" for name in _PACKAGES.split()},
)
