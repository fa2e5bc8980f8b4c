"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.mxnet.metric.base import EvalMetric as EvalMetric, alias as alias, register as register
from jfit.mxnet.metric.composite import (
    CompositeEvalMetric as CompositeEvalMetric, CustomMetric as CustomMetric, check_label_shapes as check_label_shapes,
    create as create, np as np,
)
from jfit.mxnet.metric.named import (
    Accuracy as Accuracy, Caffe as Caffe, CrossEntropy as CrossEntropy, F1 as F1, Loss as Loss, MAE as MAE, MCC as MCC,
    MSE as MSE, NegativeLogLikelihood as NegativeLogLikelihood, PCC as PCC, PearsonCorrelation as PearsonCorrelation,
    Perplexity as Perplexity, RMSE as RMSE, TopKAccuracy as TopKAccuracy, Torch as Torch,
)
