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
_FAMILIES = ("densenet", "inception", "mobilenet", "resnet", "squeezenet", "vgg")  # of nets
_PACKAGES = ("contrib.svrg_optimization", "contrib.text", "gluon.contrib", "gluon.model_zoo", "notebook")  # only of modules
_CELLS = (
    "BidirectionalCell DropoutCell GRUCell HybridRecurrentCell HybridSequentialRNNCell LSTMCell ModifierCell RNNCell "
    "RecurrentCell ResidualCell SequentialRNNCell ZoneoutCell"
)
# Modules below `jfit.mx` that have the names of the module below `jfit.mxnet` with the same name.
_SAME = """autograd context contrib.amp gluon.contrib.nn gluon.contrib.rnn gluon.data.dataloader
gluon.data.dataset gluon.data.sampler gluon.data.vision.datasets gluon.data.vision.transforms
gluon.contrib.estimator.estimator gluon.contrib.estimator.event_handler gluon.loss
gluon.model_zoo.model_store gluon.model_zoo.vision gluon.nn gluon.nn.activations gluon.nn.basic_layers gluon.nn.conv_layers
gluon.utils image metric misc numpy numpy.linalg numpy.random operator profiler random rnn symbol util
visualization""".split()  # noqa: SIM905
# Module below `jfit.mxnet` -> modules below `jfit.mx` that have its names.
_SHARED = {
    "contrib.amp": "contrib.amp.amp contrib.amp.loss_scaler",
    "contrib.legacy": "contrib.autograd contrib.io contrib.tensorboard",
    "contrib.onnx": "contrib.onnx",
    "contrib.quantization": "contrib.quant contrib.quantization",
    "contrib.text": "contrib.text.embedding contrib.text.utils contrib.text.vocab",
    "executor.executor": "executor",
    "gluon.contrib.rnn": "gluon.contrib.rnn.conv_rnn_cell gluon.contrib.rnn.rnn_cell",
    "gluon.data.sampler": "gluon.contrib.data.sampler",
    "gluon.rnn.layers": "gluon.rnn.rnn_layer",
    "io.arrays": "io",
    "ndarray": "nd ndarray",
    "ndarray.sparse": "nd.sparse ndarray.sparse",
    "notebook": "notebook.callback",
    "numpy.extension": "numpy_extension",
    "numpy.random": "numpy_extension.random",
    "random": "ndarray.random",
    "symbol": "sym symbol.symbol",
}
# Module below `jfit.mx` -> the module below `jfit` that has its names; or, if several modules define them, a dict of these:
# "name=other" is called `other` there, "*" are all its public names.  With "" the modules of a package are public too.
TABLE: dict[str, str | dict[str, str]] = {
    **{path: f"mxnet.{path}" for path in _SAME},
    **{path: f"mxnet.{home}" for home, paths in _SHARED.items() for path in paths.split()},
    **{f"gluon.model_zoo.vision.{family}": "mxnet.gluon.model_zoo.vision" for family in _FAMILIES},
    **{path: {"": "*"} for path in _PACKAGES},
    "attribute": {"graph.scopes": "AttrScope"},
    "base": {"mxnet.errors": "* integer_types mx_real_t numeric_types string_types _as_list"},
    "callback": {
        "mxnet.callback": "BatchEndParam LogValidationMetricsCallback ProgressBar Speedometer do_checkpoint log_train_metric "
        "module_checkpoint"
    },
    "contrib": {"mxnet.ndarray": "nd=contrib ndarray=contrib", "mxnet.symbol": "sym=contrib symbol=contrib", "": "*"},
    "contrib.svrg_optimization.svrg_module": {_ARRAYS: "SVRGModule"},
    "engine": {"mxnet.runtime": "bulk set_bulk_size"},
    "error": {"mxnet.errors": "InternalError MXNetError"},
    "executor_manager": {"mxnet.module.exec_group": "_split_input_slice"},
    "gluon": {
        _ARRAYS: "Constant DeferredInitializationError Parameter ParameterDict Trainer utils",
        "mxnet.gluon.hybrid": "Block HybridBlock SymbolBlock",
        "": "*",
    },
    "gluon.block": {"mxnet.gluon.hybrid": "Block HybridBlock SymbolBlock"},
    "gluon.contrib.data": {"mxnet.gluon.data.sampler": "IntervalSampler"},
    "gluon.contrib.estimator": {
        "mxnet.gluon.contrib.estimator.estimator": "*",
        "mxnet.gluon.contrib.estimator.event_handler": "*",
    },
    "gluon.data": {
        "mxnet.gluon.data.dataset": "*",
        "mxnet.gluon.data.sampler": "BatchSampler FilterSampler RandomSampler Sampler SequentialSampler",
        "mxnet.gluon.data.dataloader": "DataLoader",
    },
    "gluon.data.vision": {"mxnet.gluon.data.vision.datasets": "*"},
    "gluon.parameter": {_ARRAYS: "Constant DeferredInitializationError Parameter ParameterDict"},
    "gluon.rnn": {"mxnet.gluon.rnn.cells": _CELLS, "mxnet.gluon.rnn.layers": "GRU LSTM RNN"},
    "gluon.rnn.rnn_cell": {"mxnet.gluon.rnn.cells": _CELLS},
    "gluon.trainer": {_ARRAYS: "Trainer"},
    "initializer": {
        "mxnet.initializer": "Bilinear Constant FusedRNN InitDesc Initializer LSTMBias Load MSRAPrelu Mixed Normal One "
        "Orthogonal Uniform Xavier Zero alias create register"
    },
    "kvstore": {_ARRAYS: "KVStore KVStoreBase create"},
    "log": {"mxnet.logs": "CRITICAL DEBUG ERROR INFO NOTSET WARNING getLogger get_logger"},
    "lr_scheduler": {"mxnet.optimizer.lr_scheduler": "*"},
    "model": {_ARRAYS: "BatchEndParam FeedForward load_checkpoint load_params save_checkpoint"},
    "module": {_ARRAYS: "BaseModule BucketingModule Module PythonLossModule PythonModule SequentialModule"},
    "module.executor_group": {"mxnet.module.exec_group": "DataParallelExecutorGroup=ExecGroup"},
    "monitor": {_ARRAYS: "Monitor"},
    "name": {"graph.scopes": "NameManager Prefix"},
    "ndarray.ndarray": {"mxnet.ndarray": "*", "graph.compose": "_STORAGE_TYPE_STR_TO_ID=STORAGE_TYPES"},
    "onnx": {"mxnet.contrib.onnx": "export_model get_operator_support"},
    "optimizer": {"mxnet.optimizer": "*", _ARRAYS: "Updater get_updater"},
    "recordio": {"mxnet.recordio": "IRHeader MXIndexedRecordIO MXRecordIO pack pack_img unpack unpack_img"},
    "registry": {"mxnet.registry": "*"},
    "runtime": {"mxnet.runtime": "Feature Features feature_list"},
    "test_utils": {
        "mxnet.test_utils": "* Context Symbol array current_context getenv json logging np numbers os platform rnd setenv "
        "sys time use_np"
    },
}


class Module(ModuleType):
    """A module of the table; what defines its names is imported when the first of them is used."""

    def __init__(self, path: str, source: str | dict[str, str]) -> None:
        super().__init__(f"jfit.mx.{path}", f"The names of MXNet's `mx.{path}`, which other packages of jfit define.")
        self.__spec__, self.__path__ = ModuleSpec(self.__name__, None, is_package=True), []
        self._path, self._source = path, source
        self._parts = [part for parent, _, part in (other.rpartition(".") for other in TABLE) if parent == path]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if isinstance(self._source, str):
            home = importlib.import_module(f"jfit.{self._source}")
            if name == "__all__":
                return _public(home)
            if name not in self._parts or hasattr(home, name):
                return getattr(home, name)  # also a name that it makes on demand, such as an operator
        if name in self._parts:
            return sys.modules[f"{self.__name__}.{name}"]
        if "__all__" not in vars(self):
            homes: Any = self._source
            values = {own: value for home, names in homes.items() if home for own, value in _values(home, names)}
            vars(self).update(values, __all__=[*values, *(self._parts if "" in self._source else ())])
            return getattr(self, name)
        absent(f"mx.{self._path}", name, self.__all__)

    def __dir__(self) -> list[str]:
        return sorted({*self.__all__, *vars(self)})


def _values(home: str, names: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(f"jfit.{home}")
    for name in names.replace("*", " ".join(_public(module))).split():
        own, _, other = name.partition("=")
        yield own, getattr(module, other or own)


def _public(module: Any) -> list[str]:
    own = [n for n, value in vars(module).items() if n[0] != "_" and getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", own))


sys.modules.update({f"jfit.mx.{path}": Module(path, source) for path, source in TABLE.items()})
