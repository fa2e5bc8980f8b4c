"""MXNet 1.9.1's Python interface on jfit: `import jfit.mx as mx` runs MXNet 1.x scripts.

Names, arguments, defaults and numerical results are those of MXNet 1.9.1.  The classes are defined in `jfit.mxnet`; this
package only re-exports them under MXNet's module names (`_modules.TABLE`), and no other package of jfit imports it.

>>> import jfit.mx as mx
>>> net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
>>> executor = net.simple_bind(mx.cpu(), data=(4, 3))
>>> executor.forward()[0].shape
(4, 2)
"""

import functools

from jfit import lazy as _lazy
from jfit.mx import _modules
from jfit.mxnet.job import emulate_some_devices as _emulate_some_devices
from jfit.mxnet.job import end_unless_worker as _end_unless_worker
from jfit.mxnet.namespaces import absent

__version__ = "1.9.1"  # the version of MXNet that this package is compatible with

_HOMES = {name: f"jfit.mx.{name}" for name, home in _modules.TABLE.items() if isinstance(home, dict) and "." not in name}
_HOMES |= {"init": "jfit.mx.initializer", "kv": "jfit.mx.kvstore", "mod": "jfit.mx.module", "mon": "jfit.mx.monitor"}
_end_unless_worker()  # before the script computes anything; MXNet runs its servers here
_emulate_some_devices()
_lazy.stub(__name__, functools.partial(absent, "mx"), **_HOMES)
