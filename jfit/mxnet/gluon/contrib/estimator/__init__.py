"""`mx.gluon.contrib.estimator`: training and evaluation loops of gluon, with handlers of their events."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
