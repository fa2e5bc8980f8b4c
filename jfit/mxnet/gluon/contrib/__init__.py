"""`mx.gluon.contrib`: layers that MXNet has outside of gluon.nn."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
