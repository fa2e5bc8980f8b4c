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

# MXNet scripts log at level DEBUG, of which JAX writes a line per operation, the first when it is imported; set the level of
# "jax" yourself to see them.
if logging.getLogger("jax").level == logging.NOTSET:
    logging.getLogger("jax").setLevel(logging.WARNING)

from jfit import allocator as _allocator
from jfit import disk_cache as _disk_cache
from jfit import lazy as _lazy

__version__ = "0.1.0"

_allocator.start()
_disk_cache.start()
_lazy.stub(__name__)
