"""The operators of jfit; each is described by a registered `Op`.  docs/operators.md is the table of all of them."""

import importlib as _importlib

from jfit import lazy as _lazy

_FAMILIES = (
    "attention boxes calibration control conv copies correlation create ctc custom elementwise hawkes image indexing "
    "linalg loss multibox nn norm pooling proposal quantized random reduce resize rnn roi sampler shape "
    "slicing softmax sorting spectral"
)
for _family in _FAMILIES.split():  # importing a family registers its operators
    _importlib.import_module(f"{__name__}.{_family}")
_lazy.stub(__name__)
