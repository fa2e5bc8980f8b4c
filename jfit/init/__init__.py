"""Initializers: pure functions `(key, desc, shape, dtype) -> initial values of a parameter`.

The rule for a parameter is chosen as in MXNet 1.9.1.  An initializer in the `__init__` attribute of its variable takes
precedence.  Otherwise the suffix of its name decides: `weight` is drawn by the initializer; `bias`, `beta` and `min` are 0;
`gamma` and `max` are 1; any other suffix is an error.  `draw_all` derives the PRNG key of each parameter from its name, so
that values depend neither on the other parameters nor on the number of devices.

>>> import jax
>>> from jfit.init import InitDesc, Xavier, get
>>> Xavier()(jax.random.key(0), InitDesc("fc_weight"), (4, 3)).shape
(4, 3)
>>> get("normal", sigma=0.3).dumps()
'["normal", {"sigma": 0.3}]'
"""

from jfit import lazy as _lazy
from jfit.init import fused, rules, stored  # noqa: F401  which register the initializers

_lazy.stub(__name__)
