"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.metrics.by_output import OutputMetric as OutputMetric
from jfit.metrics.classes import accuracy as accuracy, f1 as f1, mcc as mcc, top_k_accuracy as top_k_accuracy
from jfit.metrics.confusion import confusion_matrix as confusion_matrix, pcc as pcc, precision as precision, recall as recall
from jfit.metrics.core import Metric as Metric, sized as sized
from jfit.metrics.curves import roc_auc as roc_auc
from jfit.metrics.host import HostMetric as HostMetric
from jfit.metrics.likelihood import cross_entropy as cross_entropy, loss as loss, nll_loss as nll_loss, perplexity as perplexity
from jfit.metrics.named import METRICS as METRICS, caffe as caffe, create as create, get as get, torch as torch
from jfit.metrics.regression import mae as mae, mse as mse, pearsonr as pearsonr, rmse as rmse
