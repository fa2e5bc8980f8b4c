"""The modules of `jfit.mx`, as in `from jfit.mx.gluon import Trainer`: a table of names that other packages of jfit define."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jfit.mxnet.namespaces import absent

_ARRAYS = "mxnet.ndarray_classes"
_FAMILIES = (".densenet", ".inception", ".mobilenet", ".resnet", ".squeezenet", ".vgg")  # of nets
_CELLS = (
    "BidirectionalCell DropoutCell GRUCell HybridRecurrentCell HybridSequentialRNNCell LSTMCell ModifierCell RNNCell "
    "RecurrentCell ResidualCell SequentialRNNCell ZoneoutCell"
)
# Module below `jfit.mx` -> the module below `jfit` that has its names; or, if several modules define them, a dict of these:
# "name=other" is called `other` there, "*" are all its public names, "" is the module of the table itself.
TABLE: dict[str, str | dict[str, str]] = {
    "attribute": {"graph.scopes": "AttrScope"},
    "autograd": "mxnet.autograd",
    "base": {
        "mxnet.errors": "DamagedFile MXNetError MissingFile MissingGradient NotImplementedForSymbol ReshapeError "
        "NotSupportedForSparseNDArray classproperty data_dir integer_types mx_real_t numeric_types py_str string_types "
        "translated with_metaclass _as_list=as_list"
    },
    "callback": {
        "mxnet.callback": "BatchEndParam LogValidationMetricsCallback ProgressBar Speedometer do_checkpoint log_train_metric "
        "module_checkpoint"
    },
    "context": "mxnet.context",
    "contrib": {
        "mxnet.ndarray": "nd=contrib ndarray=contrib",
        "mxnet.symbol": "sym=contrib symbol=contrib",
        "": "amp autograd io onnx quantization quant=quantization svrg_optimization tensorboard text",
    },
    "contrib.amp": {"mxnet.contrib.amp": "*", "": "amp loss_scaler"},
    "contrib.amp.amp": "mxnet.contrib.amp",
    "contrib.amp.loss_scaler": {"mxnet.contrib.amp": "LossScaler"},
    "contrib.autograd": {
        "mxnet.contrib.legacy": "TrainingStateScope backward compute_gradient grad grad_and_loss mark_variables "
        "set_is_training test_section train_section"
    },
    "contrib.io": {"mxnet.contrib.legacy": "DataLoaderIter"},
    "contrib.onnx": {"mxnet.contrib.onnx": "export_model get_model_metadata import_model import_to_gluon"},
    "contrib.quantization": {
        "mxnet.contrib.onnx": "calib_graph quantize_graph quantize_model quantize_model_mkldnn quantize_net quantize_net_v2"
    },
    "contrib.tensorboard": {"mxnet.contrib.legacy": "LogMetricsCallback"},
    "contrib.text": {"": "embedding utils vocab"},
    "contrib.text.embedding": {
        "mxnet.contrib.text": "CompositeEmbedding CustomEmbedding FastText GloVe _TokenEmbedding create "
        "get_pretrained_file_names register"
    },
    "contrib.text.utils": {"mxnet.contrib.text": "count_tokens_from_str"},
    "contrib.text.vocab": {"mxnet.contrib.text": "Vocabulary"},
    "contrib.svrg_optimization": {"": "svrg_module svrg_optimizer"},
    "contrib.svrg_optimization.svrg_module": {_ARRAYS: "SVRGModule"},
    "contrib.svrg_optimization.svrg_optimizer": {"mxnet.optimizer.svrg": "_AssignmentOptimizer _SVRGOptimizer"},
    "engine": {"mxnet.runtime": "bulk set_bulk_size"},
    "error": {"mxnet.errors": "InternalError MXNetError"},
    "executor": "mxnet.executor.executor",
    "executor_manager": {"mxnet.module.exec_group": "_split_input_slice"},
    "gluon": {
        _ARRAYS: "Constant DeferredInitializationError Parameter ParameterDict Trainer utils",
        "mxnet.gluon.block": "Block",
        "mxnet.gluon.hybrid": "HybridBlock SymbolBlock",
        "": "block contrib data loss model_zoo nn parameter rnn trainer",
    },
    "gluon.block": {"mxnet.gluon.block": "Block", "mxnet.gluon.hybrid": "HybridBlock SymbolBlock"},
    "gluon.contrib": {"": "cnn data estimator nn rnn"},
    "gluon.contrib.cnn": "mxnet.gluon.contrib.cnn",
    "gluon.contrib.data": {"mxnet.gluon.data.sampler": "IntervalSampler", "": "sampler"},
    "gluon.contrib.data.sampler": {"mxnet.gluon.data.sampler": "IntervalSampler"},
    "gluon.contrib.estimator": {
        "mxnet.gluon.contrib.estimator.batch_processor": "*",
        "mxnet.gluon.contrib.estimator.estimator": "*",
        "mxnet.gluon.contrib.estimator.event_handler": "*",
        "": "batch_processor estimator event_handler",
    },
    "gluon.contrib.estimator.batch_processor": "mxnet.gluon.contrib.estimator.batch_processor",
    "gluon.contrib.estimator.estimator": "mxnet.gluon.contrib.estimator.estimator",
    "gluon.contrib.estimator.event_handler": "mxnet.gluon.contrib.estimator.event_handler",
    "gluon.contrib.nn": "mxnet.gluon.contrib.nn",
    "gluon.contrib.rnn": {
        "mxnet.gluon.contrib.rnn": "Conv1DGRUCell Conv1DLSTMCell Conv1DRNNCell Conv2DGRUCell Conv2DLSTMCell Conv2DRNNCell "
        "Conv3DGRUCell Conv3DLSTMCell Conv3DRNNCell LSTMPCell VariationalDropoutCell",
        "": "conv_rnn_cell rnn_cell",
    },
    "gluon.contrib.rnn.conv_rnn_cell": "mxnet.gluon.contrib.rnn",
    "gluon.contrib.rnn.rnn_cell": "mxnet.gluon.contrib.rnn",
    "gluon.data": {
        "mxnet.gluon.data.dataset": "*",
        "mxnet.gluon.data.sampler": "BatchSampler FilterSampler RandomSampler Sampler SequentialSampler",
        "mxnet.gluon.data.dataloader": "DataLoader",
        "": "dataloader dataset sampler vision",
    },
    "gluon.data.dataloader": "mxnet.gluon.data.dataloader",
    "gluon.data.dataset": {"mxnet.gluon.data.dataset": "*"},
    "gluon.data.sampler": {"mxnet.gluon.data.sampler": "*"},
    "gluon.data.vision": {"mxnet.gluon.data.vision.datasets": "*", "": "datasets transforms"},
    "gluon.data.vision.datasets": "mxnet.gluon.data.vision.datasets",
    "gluon.data.vision.transforms": "mxnet.gluon.data.vision.transforms",
    "gluon.loss": "mxnet.gluon.loss",
    "gluon.model_zoo": {"": "model_store vision"},
    "gluon.model_zoo.model_store": "mxnet.gluon.model_zoo.model_store",
    **{f"gluon.model_zoo.vision{of}": "mxnet.gluon.model_zoo.vision" for of in ("", *_FAMILIES)},
    "gluon.nn": "mxnet.gluon.nn",
    "gluon.nn.activations": "mxnet.gluon.nn.activations",
    "gluon.nn.basic_layers": "mxnet.gluon.nn.basic_layers",
    "gluon.nn.conv_layers": "mxnet.gluon.nn.conv_layers",
    "gluon.parameter": {_ARRAYS: "Constant DeferredInitializationError Parameter ParameterDict"},
    "gluon.rnn": {"mxnet.gluon.rnn.cells": _CELLS, "mxnet.gluon.rnn.layers": "GRU LSTM RNN", "": "rnn_cell rnn_layer"},
    "gluon.rnn.rnn_cell": {"mxnet.gluon.rnn.cells": _CELLS},
    "gluon.rnn.rnn_layer": {"mxnet.gluon.rnn.layers": "GRU LSTM RNN"},
    "gluon.trainer": {_ARRAYS: "Trainer"},
    "gluon.utils": "mxnet.gluon.utils",
    "image": "mxnet.image",
    "initializer": {
        "mxnet.initializer": "Bilinear Constant FusedRNN InitDesc Initializer LSTMBias Load MSRAPrelu Mixed Normal One "
        "Orthogonal Uniform Xavier Zero alias create register"
    },
    "io": "mxnet.io.arrays",
    "kvstore": {_ARRAYS: "KVStore KVStoreBase create"},
    "libinfo": {"mxnet.runtime": "find_include_path find_lib_path"},
    "library": {"mxnet.runtime": "load"},
    "log": {"mxnet.logs": "CRITICAL DEBUG ERROR INFO NOTSET WARNING getLogger get_logger"},
    "lr_scheduler": {
        "mxnet.optimizer.lr_scheduler": "CosineScheduler FactorScheduler LRScheduler MultiFactorScheduler PolyScheduler"
    },
    "metric": "mxnet.metric",
    "misc": {"mxnet.misc": "FactorScheduler LearningRateScheduler"},
    "model": {_ARRAYS: "BatchEndParam FeedForward load_checkpoint load_params save_checkpoint"},
    "module": {_ARRAYS: "BaseModule BucketingModule Module PythonLossModule PythonModule SequentialModule"},
    "module.executor_group": {"mxnet.module.exec_group": "DataParallelExecutorGroup=ExecGroup"},
    "monitor": {_ARRAYS: "Monitor"},
    "name": {"graph.scopes": "NameManager Prefix"},
    "nd": "mxnet.ndarray",
    "nd.sparse": "mxnet.ndarray.sparse",
    "ndarray": "mxnet.ndarray",
    "ndarray.ndarray": {"mxnet.ndarray": "*", "graph.compose": "_STORAGE_TYPE_STR_TO_ID=STORAGE_TYPES"},
    "ndarray.random": "mxnet.random",
    "ndarray.sparse": "mxnet.ndarray.sparse",
    "numpy": "mxnet.numpy",
    "numpy.linalg": "mxnet.numpy.linalg",
    "numpy.random": "mxnet.numpy.random",
    "numpy_extension": "mxnet.numpy.extension",
    "numpy_extension.random": "mxnet.numpy.random",
    "onnx": {"mxnet.contrib.onnx": "export_model"},
    "operator": "mxnet.operator",
    "optimizer": {"mxnet.optimizer": "*", _ARRAYS: "Updater get_updater"},
    "profiler": "mxnet.profiler",
    "random": "mxnet.random",
    "recordio": {"mxnet.recordio": "IRHeader MXIndexedRecordIO MXRecordIO pack pack_img unpack unpack_img"},
    "registry": {"mxnet.registry": "get_alias_func get_create_func get_register_func get_registry"},
    "rnn": "mxnet.rnn",
    "rtc": {"mxnet.runtime": "CudaModule"},
    "runtime": {"mxnet.runtime": "Feature Features feature_list"},
    "sym": "mxnet.symbol",
    "symbol": "mxnet.symbol",
    "symbol.symbol": "mxnet.symbol",
    "test_utils": "mxnet.test_utils",
    "util": "mxnet.util",
    "visualization": "mxnet.visualization",
}


class Module(ModuleType):
    """A module of the table; what defines its names is imported when the first of them is used."""

    def __init__(self, path: str, source: str | dict[str, str]) -> None:
        super().__init__(f"jfit.mx.{path}", f"The names of MXNet's `mx.{path}`, which other packages of jfit define.")
        self.__spec__, self.__path__ = ModuleSpec(self.__name__, None, is_package=True), []
        self._path, self._source = path, source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if isinstance(self._source, str):  # also names that it makes on demand, such as operators
            home = importlib.import_module(f"jfit.{self._source}")
            return _public(home) if name == "__all__" else getattr(home, name)
        if "__all__" not in vars(self):
            values = {own: value for home, names in self._source.items() for own, value in self._values(home, names)}
            vars(self).update(values, __all__=[*values])
            return getattr(self, name)
        absent(f"mx.{self._path}", name, self.__all__)

    def _values(self, home: str, names: str) -> Iterator[tuple[str, Any]]:
        module = importlib.import_module(f"jfit.{home}") if home else None
        for name in names.replace("*", " ".join(getattr(module, "__all__", ()))).split():
            own, _, other = name.partition("=")
            yield own, getattr(module, other or own) if home else sys.modules[f"{self.__name__}.{other or own}"]

    def __dir__(self) -> list[str]:
        return sorted({*self.__all__, *vars(self)})


def _public(module: Any) -> list[str]:
    own = [n for n, value in vars(module).items() if n[0] != "_" and getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", own))


sys.modules.update({f"jfit.mx.{path}": Module(path, source) for path, source in TABLE.items()})
