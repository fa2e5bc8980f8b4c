"""`mx.gluon.model_zoo`: well-known nets for images, with MXNet's names of parameters."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
