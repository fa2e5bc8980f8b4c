"""Image data: decoding and encoding, augmentations, and `ImageRecords`, an iterator over record files of images."""

from jfit import lazy as _lazy
from jfit.data.images.codec import decode, encode, resize
from jfit.data.images.image_records import ImageRecords
from jfit.data.images.recipe import Recipe
from jfit.data.images.source import read_list

__all__ = ["ImageRecords", "Recipe", "decode", "encode", "read_list", "resize"]

_lazy.modules(__name__)
