"""MXNet 1.9.1's Python interface on jfit: `import jfit.mx as mx` runs MXNet 1.x scripts.

Names, arguments, defaults and numerical results are those of MXNet 1.9.1.  The classes are defined in `jfit.mxnet`; this
package only re-exports them under MXNet's module names, and no other package of jfit imports it.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
>>> executor = net.simple_bind(mx.cpu(), data=(4, 3))
>>> executor.forward()[0].shape
(4, 2)
"""

from typing import NoReturn

from jfit.mx import (
    attribute,
    base,
    callback,
    contrib,
    gluon,
    kvstore,
    lr_scheduler,
    metric,
    model,
    module,
    monitor,
    name,
    optimizer,
)
from jfit.mx.attribute import AttrScope
from jfit.mxnet import context, image, initializer, operator, random, recordio, rnn, symbol, util, visualization
from jfit.mxnet import ndarray as nd
from jfit.mxnet.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus, tpu
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.executor import executor
from jfit.mxnet.executor.executor import Executor
from jfit.mxnet.io import arrays as io
from jfit.mxnet.namespaces import absent

img = image
init = initializer
kv = kvstore
mod = module
mon = monitor
ndarray = nd
sym = symbol
rnd = random
viz = visualization
__version__ = "1.9.1"  # the version of MXNet that this package is compatible with

__all__ = [
    "AttrScope",
    "Context",
    "Executor",
    "MXNetError",
    "attribute",
    "base",
    "callback",
    "context",
    "contrib",
    "cpu",
    "cpu_pinned",
    "current_context",
    "executor",
    "gluon",
    "gpu",
    "image",
    "img",
    "init",
    "initializer",
    "io",
    "kv",
    "kvstore",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "module",
    "mon",
    "monitor",
    "name",
    "nd",
    "ndarray",
    "num_gpus",
    "operator",
    "optimizer",
    "random",
    "recordio",
    "rnd",
    "rnn",
    "sym",
    "symbol",
    "tpu",
    "util",
    "visualization",
    "viz",
]


def __getattr__(name: str) -> NoReturn:
    absent("mx", name, __all__)
