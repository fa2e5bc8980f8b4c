"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.data.images.crops import scale_down as scale_down
from jfit.mxnet.image.augmenters import (
    Augmenter as Augmenter, BrightnessJitterAug as BrightnessJitterAug, CastAug as CastAug, CenterCropAug as CenterCropAug,
    ColorJitterAug as ColorJitterAug, ColorNormalizeAug as ColorNormalizeAug, ContrastJitterAug as ContrastJitterAug,
    CreateAugmenter as CreateAugmenter, ForceResizeAug as ForceResizeAug, HorizontalFlipAug as HorizontalFlipAug,
    HueJitterAug as HueJitterAug, LightingAug as LightingAug, RandomCropAug as RandomCropAug, RandomGrayAug as
    RandomGrayAug, RandomOrderAug as RandomOrderAug, RandomSizedCropAug as RandomSizedCropAug, ResizeAug as ResizeAug,
    SaturationJitterAug as SaturationJitterAug, SequentialAug as SequentialAug,
)
from jfit.mxnet.image.detection import (
    CreateDetAugmenter as CreateDetAugmenter, CreateMultiRandCropAugmenter as CreateMultiRandCropAugmenter, DetAugmenter as
    DetAugmenter, DetBorrowAug as DetBorrowAug, DetHorizontalFlipAug as DetHorizontalFlipAug, DetRandomCropAug as
    DetRandomCropAug, DetRandomPadAug as DetRandomPadAug, DetRandomSelectAug as DetRandomSelectAug, ImageDetIter as
    ImageDetIter,
)
from jfit.mxnet.image.functions import (
    center_crop as center_crop, color_normalize as color_normalize, copyMakeBorder as copyMakeBorder, fixed_crop as fixed_crop,
    imdecode as imdecode, imread as imread, imresize as imresize, imrotate as imrotate, random_crop as random_crop, random_rotate as random_rotate,
    random_size_crop as random_size_crop, resize_short as resize_short,
)
from jfit.mxnet.image.iterator import ImageIter as ImageIter
