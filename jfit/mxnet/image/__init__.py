"""`mx.image`: functions on images as NDArrays, augmenters, and an iterator over image files.

>>> import jfit.mx as mx, numpy as np
>>> image = mx.nd.array(np.arange(48).reshape(4, 4, 3), dtype="uint8")
>>> mx.image.center_crop(image, (2, 2))[0].asnumpy()[0, 0].tolist()
[15, 16, 17]
"""

import functools

from jfit import lazy as _lazy
from jfit.mxnet.namespaces import absent

_lazy.stub(__name__, functools.partial(absent, "mx.image"))
