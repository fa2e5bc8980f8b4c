"""`mx.image`: functions on images as NDArrays, augmenters, and an iterator over image files.

>>> import jfit.mx as mx, numpy as np
>>> image = mx.nd.array(np.arange(48).reshape(4, 4, 3), dtype="uint8")
>>> mx.image.center_crop(image, (2, 2))[0].asnumpy()[0, 0].tolist()
[15, 16, 17]
"""

import sys

from jfit import lazy as _lazy
from jfit.mxnet.image import augmenters, colours, functions
from jfit.mxnet.image.augmenters import *  # noqa: F403  each file lists its names
from jfit.mxnet.image.colours import *  # noqa: F403
from jfit.mxnet.image.create import CreateAugmenter
from jfit.mxnet.image.functions import *  # noqa: F403
from jfit.mxnet.image.iterator import ImageIter
from jfit.mxnet.namespaces import absent

__all__ = ["CreateAugmenter", "ImageIter"]
__all__ += augmenters.__all__
__all__ += colours.__all__
__all__ += functions.__all__


_lazy.attributes(sys.modules[__name__], {}, lambda name: absent("mx.image", name, __all__))
