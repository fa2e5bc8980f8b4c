"""Optimizers as optax transformations with the exact update rules of MXNet 1.9.1, and learning-rate schedules.

Every optimizer is a pair (init, update).  `update(grads, state, params, learning_rate=None)` returns (updates, state); the
updates are ADDED to the parameters (`optax.apply_updates`).  `learning_rate` may be traced, so it can change without
recompiling; None means the rate or schedule passed at construction.  It may also be one rate per parameter, as an array of
shape (leaves,) or a tuple of scalars, in the order of `jax.tree.leaves(params)`; XLA compiles a tuple ten times faster on CPU.
Gradients are expected to be rescaled already (such as divided by the batch size).  In the formulas, c(x) is x clipped to
±clip_gradient if that is positive, and x otherwise.

A learning rate, decay or other rate that is negative or not finite raises a ValueError, and so does a momentum or a factor of a
moving average of 1 or more.

Arguments that all optimizers share:
    clip_gradient: bound of c(x), see above.  None (default), 0 or negative: no clipping.
    wd: weight decay.
    wd_mult: multipliers of the weight decay.  "mxnet" (default): as in MXNet's Module, only parameters whose names end in
        `_weight` or `_gamma` decay; if no name has one of MXNet's endings, only arrays with two or more dimensions.  A dict
        name -> float overrides this rule for its names, a function name -> float replaces it, and None decays everything.
    lr_mult: multipliers of the learning rate, a dict name -> float (1 for other names) or a function name -> float; None
        means 1 for all.
    multi_precision: whether to keep and update a float32 master copy of 16-bit parameters (slot `master`).  Without it they
        are updated in float32 arithmetic with float32 state, and rounded after every update.

A gradient may be a `SparseRows`, which has values for some rows of an embedding table.  Lazy optimizers (sgd, adam, adagrad,
group_adagrad, ftrl) then update only those rows, and `jfit.optim.apply_updates` writes them in place.  Other optimizers
update the whole table.

>>> import jfit.optim
>>> jfit.optim.get("adam").learning_rate
0.001
"""

from jfit import lazy as _lazy

_lazy.stub(__name__)
