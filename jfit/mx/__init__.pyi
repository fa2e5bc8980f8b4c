"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

import typing

from jfit.graph import scopes as attribute, scopes as name
from jfit.graph.scopes import AttrScope as AttrScope
from jfit.mxnet import (
    autograd as autograd, callback as callback, context as context, errors as base, errors as error, image as image, image as img,
    initializer as init, initializer as initializer, logs as log, metric as metric, misc as misc, ndarray as nd, ndarray as ndarray,
    ndarray_classes as kv, ndarray_classes as kvstore, ndarray_classes as mod, ndarray_classes as model, ndarray_classes as
    module, ndarray_classes as mon, ndarray_classes as monitor, numpy as np, numpy as numpy, operator as operator, optimizer
    as optimizer, profiler as profiler, random as random, random as rnd, recordio as recordio, registry as registry, rnn as
    rnn, runtime as engine, runtime as runtime, symbol as sym,
    symbol as symbol, test_utils as test_utils, util as util, visualization as visualization, visualization as viz,
)
from jfit.mxnet.context import (
    Context as Context, cpu as cpu, cpu_pinned as cpu_pinned, current_context as current_context, gpu as gpu,
    num_gpus as num_gpus, tpu as tpu,
)
from jfit.mxnet.errors import MXNetError as MXNetError
from jfit.mxnet.executor import executor as executor
from jfit.mxnet.executor.executor import Executor as Executor
from jfit.mxnet.io import arrays as io
from jfit.mxnet.numpy import extension as npx, extension as numpy_extension
from jfit.mxnet.module import exec_group as executor_manager
from jfit.mxnet.optimizer import lr_scheduler as lr_scheduler
from jfit.mxnet.util import (
    is_np_array as is_np_array, is_np_shape as is_np_shape, np_array as np_array, np_shape as np_shape,
    set_np_shape as set_np_shape, use_np as use_np, use_np_array as use_np_array, use_np_shape as use_np_shape,
)

contrib: typing.Any
gluon: typing.Any
notebook: typing.Any
onnx: typing.Any
__version__: str
__all__ = [
    "AttrScope", "Context", "Executor", "MXNetError", "attribute", "autograd", "base", "callback", "context", "contrib",
    "cpu", "cpu_pinned", "current_context", "engine", "error", "executor", "executor_manager", "gluon", "gpu", "image",
    "img", "init", "initializer", "io", "is_np_array", "is_np_shape", "kv", "kvstore", "log",
    "lr_scheduler", "metric", "misc", "mod", "model", "module", "mon", "monitor", "name", "nd", "ndarray", "notebook", "np",
    "np_array", "np_shape", "npx", "num_gpus", "numpy", "numpy_extension", "onnx", "operator", "optimizer", "profiler", "random",
    "recordio", "registry", "rnd", "rnn", "runtime", "set_np_shape", "sym", "symbol", "test_utils", "tpu", "use_np",
    "use_np_array", "use_np_shape", "util", "visualization", "viz",
]
