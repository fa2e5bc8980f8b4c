"""MXNet 1.9.1's Python interface on jfit: `import jfit.mx as mx` runs MXNet 1.x scripts.

Names, arguments, defaults and numerical results are those of MXNet 1.9.1.  The classes are defined in `jfit.mxnet`; this
package only re-exports them under MXNet's module names (`_modules.TABLE`), and no other package of jfit imports it.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
>>> executor = net.simple_bind(mx.cpu(), data=(4, 3))
>>> executor.forward()[0].shape
(4, 2)
"""

import sys
from typing import TYPE_CHECKING, Any

from jfit import lazy as _lazy
from jfit.mx import _modules
from jfit.mxnet import context, ndarray, random
from jfit.mxnet.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus, tpu
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.job import end_unless_worker as _end_unless_worker
from jfit.mxnet.namespaces import absent

if TYPE_CHECKING:  # these names, each of which is imported when it is first used
    from jfit.graph import scopes as attribute
    from jfit.graph import scopes as name
    from jfit.graph.scopes import AttrScope
    from jfit.mxnet import callback, image, initializer, metric, operator, optimizer, recordio, rnn, symbol, util, visualization
    from jfit.mxnet import errors as base
    from jfit.mxnet import image as img
    from jfit.mxnet import initializer as init
    from jfit.mxnet import ndarray_classes as gluon
    from jfit.mxnet import ndarray_classes as kv
    from jfit.mxnet import ndarray_classes as kvstore
    from jfit.mxnet import ndarray_classes as mod
    from jfit.mxnet import ndarray_classes as model
    from jfit.mxnet import ndarray_classes as module
    from jfit.mxnet import ndarray_classes as mon
    from jfit.mxnet import ndarray_classes as monitor
    from jfit.mxnet import symbol as sym
    from jfit.mxnet import visualization as viz
    from jfit.mxnet.executor import executor
    from jfit.mxnet.executor.executor import Executor
    from jfit.mxnet.io import arrays as io
    from jfit.mxnet.optimizer import lr_scheduler

    contrib: Any

nd, rnd = ndarray, random
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

_HOMES = {
    **{n: f"jfit.{home}" if isinstance(home, str) else f"jfit.mx.{n}" for n, home in _modules.TABLE.items() if "." not in n},
    "AttrScope": "jfit.graph.scopes:AttrScope",
    "Executor": "jfit.mxnet.executor.executor:Executor",
    "img": "jfit.mxnet.image",
    "init": "jfit.mxnet.initializer",
    "kv": "jfit.mx.kvstore",
    "mod": "jfit.mx.module",
    "mon": "jfit.mx.monitor",
    "sym": "jfit.mxnet.symbol",
    "viz": "jfit.mxnet.visualization",
}

_end_unless_worker()  # before the script computes anything; MXNet runs its servers here
_lazy.attributes(sys.modules[__name__], _HOMES, lambda attribute: absent("mx", attribute, __all__))
