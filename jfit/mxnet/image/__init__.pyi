"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.data.images.crops import scale_down as scale_down
from jfit.mxnet.image.augmenters import (
    Augmenter as Augmenter, CastAug as CastAug, CenterCropAug as CenterCropAug, ForceResizeAug as ForceResizeAug,
    HorizontalFlipAug as HorizontalFlipAug, RandomCropAug as RandomCropAug, RandomOrderAug as RandomOrderAug,
    RandomSizedCropAug as RandomSizedCropAug, ResizeAug as ResizeAug, SequentialAug as SequentialAug,
)
from jfit.mxnet.image.colours import (
    BrightnessJitterAug as BrightnessJitterAug, ColorJitterAug as ColorJitterAug, ColorNormalizeAug as ColorNormalizeAug,
    ContrastJitterAug as ContrastJitterAug, HueJitterAug as HueJitterAug, LightingAug as LightingAug,
    RandomGrayAug as RandomGrayAug, SaturationJitterAug as SaturationJitterAug,
)
from jfit.mxnet.image.create import CreateAugmenter as CreateAugmenter
from jfit.mxnet.image.functions import (
    center_crop as center_crop, color_normalize as color_normalize, copyMakeBorder as copyMakeBorder, fixed_crop as fixed_crop,
    imdecode as imdecode, imread as imread, imresize as imresize, random_crop as random_crop,
    random_size_crop as random_size_crop, resize_short as resize_short,
)
from jfit.mxnet.image.iterator import ImageIter as ImageIter
