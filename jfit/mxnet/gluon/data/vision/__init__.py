"""`mx.gluon.data.vision`: image data sets from local files, and transforms of images."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
