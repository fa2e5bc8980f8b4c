"""`mx.metric`: metrics as objects whose sums live on the device: counting never waits, reading a value does.

Values are Python numbers.  A metric of the user's that writes `update(self, labels, preds)` gets NDArrays from a module of
`mx.mod`.

>>> import jfit.mx as mx
>>> accuracy = mx.metric.create("acc")
>>> accuracy.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.8, 0.2]])])
>>> accuracy.get()
('accuracy', 0.5)
"""

from jfit.mxnet.metric import named
from jfit.mxnet.metric.base import EvalMetric, alias, register
from jfit.mxnet.metric.composite import (
    CompositeEvalMetric,
    CustomMetric,
    check_label_shapes,
    create,
    np,
)
from jfit.mxnet.metric.composite import pure_metrics as pure_metrics
from jfit.mxnet.metric.named import *  # noqa: F403  one list of the classes, in `named`

__all__ = ["CompositeEvalMetric", "CustomMetric", "EvalMetric", "alias", "check_label_shapes", "create", "np", "register"]
__all__ += named.__all__
