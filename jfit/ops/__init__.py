"""The operators of jfit; each is described by a registered `Op`.  `python -m jfit.ops` prints a table of all of them."""

from jfit import lazy as _lazy
from jfit.ops import (  # noqa: F401  importing a family registers its operators
    attention,
    boxes,
    control,
    conv,
    copies,
    correlation,
    create,
    ctc,
    custom,
    elementwise,
    hawkes,
    image,
    indexing,
    linalg,
    loss,
    multibox,
    nn,
    norm,
    pooling,
    proposal,
    quantized,
    random,
    reduce,
    resize,
    rnn,
    roi,
    sampler,
    shape,
    slicing,
    softmax,
    sorting,
    spectral,
)

_lazy.stub(__name__)
