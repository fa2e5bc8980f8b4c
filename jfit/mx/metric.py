"""`mx.metric`: MXNet's metrics; values are Python numbers, so the classes are those of `jfit.mxnet.metric.shells` themselves.

A metric of the user's that writes `update(self, labels, preds)` gets NDArrays from a module of `mx.mod`.

>>> import jfit.mx as mx
>>> from jfit.mx import metric
>>> accuracy = metric.create("acc")
>>> accuracy.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.8, 0.2]])])
>>> accuracy.get()
('accuracy', 0.5)
"""

from jfit.mxnet.metric.shells import (
    F1,
    MAE,
    MCC,
    MSE,
    PCC,
    RMSE,
    Accuracy,
    Caffe,
    CompositeEvalMetric,
    CrossEntropy,
    CustomMetric,
    EvalMetric,
    Loss,
    NegativeLogLikelihood,
    PearsonCorrelation,
    Perplexity,
    TopKAccuracy,
    Torch,
    alias,
    check_label_shapes,
    create,
    np,
    register,
)

__all__ = [
    "F1",
    "MAE",
    "MCC",
    "MSE",
    "PCC",
    "RMSE",
    "Accuracy",
    "Caffe",
    "CompositeEvalMetric",
    "CrossEntropy",
    "CustomMetric",
    "EvalMetric",
    "Loss",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Perplexity",
    "TopKAccuracy",
    "Torch",
    "alias",
    "check_label_shapes",
    "create",
    "np",
    "register",
]
