"""`mx.image`: image files as arrays, augmenters, and an iterator over images.

>>> import jfit.mx as mx, numpy as np
>>> image = mx.nd.array(np.arange(48).reshape(4, 4, 3), dtype="uint8")
>>> mx.image.center_crop(image, (2, 2))[0].asnumpy()[0, 0].tolist()
[15, 16, 17]
"""

from typing import NoReturn

from jfit.mxnet.image.augmenters import (
    Augmenter,
    CastAug,
    CenterCropAug,
    ForceResizeAug,
    HorizontalFlipAug,
    RandomCropAug,
    RandomOrderAug,
    RandomSizedCropAug,
    ResizeAug,
    SequentialAug,
)
from jfit.mxnet.image.colours import (
    BrightnessJitterAug,
    ColorJitterAug,
    ColorNormalizeAug,
    ContrastJitterAug,
    HueJitterAug,
    LightingAug,
    RandomGrayAug,
    SaturationJitterAug,
)
from jfit.mxnet.image.create import CreateAugmenter
from jfit.mxnet.image.functions import (
    center_crop,
    color_normalize,
    copyMakeBorder,
    fixed_crop,
    imdecode,
    imread,
    imresize,
    random_crop,
    random_size_crop,
    resize_short,
    scale_down,
)
from jfit.mxnet.image.iterator import ImageIter
from jfit.mxnet.spelling import absent

__all__ = [
    "Augmenter",
    "BrightnessJitterAug",
    "CastAug",
    "CenterCropAug",
    "ColorJitterAug",
    "ColorNormalizeAug",
    "ContrastJitterAug",
    "CreateAugmenter",
    "ForceResizeAug",
    "HorizontalFlipAug",
    "HueJitterAug",
    "ImageIter",
    "LightingAug",
    "RandomCropAug",
    "RandomGrayAug",
    "RandomOrderAug",
    "RandomSizedCropAug",
    "ResizeAug",
    "SaturationJitterAug",
    "SequentialAug",
    "center_crop",
    "color_normalize",
    "copyMakeBorder",
    "fixed_crop",
    "imdecode",
    "imread",
    "imresize",
    "random_crop",
    "random_size_crop",
    "resize_short",
    "scale_down",
]


def __getattr__(name: str) -> NoReturn:
    absent("mx.image", name, __all__)
