"""Record the public names of MXNet 1.9.1 by namespace: `python tests/golden/record_names.py`, run where MXNet is installed.

A name is public if it is in the `__all__` of its module or, where there is none, has no leading underscore and is defined in
MXNet.  Of the classes that scripts call methods of, the public members are recorded as well.
"""

import importlib
import inspect
import json
import types
from pathlib import Path

_MODULES = """
mx mx.attribute mx.autograd mx.base mx.callback mx.context mx.contrib mx.contrib.amp mx.contrib.autograd mx.contrib.io
mx.contrib.onnx mx.contrib.quantization mx.contrib.svrg_optimization.svrg_module
mx.contrib.svrg_optimization.svrg_optimizer mx.contrib.tensorboard mx.contrib.text mx.contrib.text.embedding
mx.contrib.text.utils mx.contrib.text.vocab mx.engine mx.error mx.executor mx.executor_manager mx.gluon mx.gluon.contrib
mx.gluon.contrib.cnn mx.gluon.contrib.data mx.gluon.contrib.data.text mx.gluon.contrib.estimator mx.gluon.contrib.nn
mx.gluon.contrib.rnn mx.gluon.data mx.gluon.data.vision mx.gluon.data.vision.transforms mx.gluon.loss mx.gluon.model_zoo
mx.gluon.model_zoo.model_store mx.gluon.model_zoo.vision mx.gluon.nn mx.gluon.rnn mx.gluon.utils mx.image mx.initializer
mx.io mx.kvstore mx.library mx.log mx.lr_scheduler mx.metric mx.misc mx.model mx.module mx.monitor mx.name
mx.ndarray mx.ndarray.contrib mx.ndarray.image mx.ndarray.linalg mx.ndarray.random mx.ndarray.sparse mx.notebook.callback
mx.numpy mx.numpy.linalg mx.numpy.random mx.numpy_extension mx.numpy_extension.image mx.numpy_extension.random mx.onnx
mx.operator mx.optimizer mx.profiler mx.random mx.recordio mx.rnn mx.rtc mx.runtime mx.symbol
mx.symbol.contrib mx.symbol.image mx.symbol.linalg mx.symbol.random mx.symbol.sparse mx.test_utils mx.util
mx.visualization
"""
_CLASSES = """
mx.context.Context mx.ndarray.NDArray mx.ndarray.sparse.CSRNDArray mx.ndarray.sparse.RowSparseNDArray mx.symbol.Symbol
mx.executor.Executor mx.numpy.ndarray mx.gluon.Block mx.gluon.HybridBlock mx.gluon.SymbolBlock mx.gluon.Parameter
mx.gluon.ParameterDict mx.gluon.Trainer mx.gluon.data.DataLoader mx.gluon.data.Dataset mx.gluon.rnn.RecurrentCell
mx.module.Module mx.module.BucketingModule mx.module.SequentialModule mx.module.PythonModule mx.model.FeedForward
mx.io.DataIter mx.io.DataBatch mx.io.DataDesc mx.io.NDArrayIter mx.image.ImageIter mx.metric.EvalMetric
mx.metric.CompositeEvalMetric mx.initializer.Initializer mx.optimizer.Optimizer mx.optimizer.Updater mx.kvstore.KVStore
mx.monitor.Monitor mx.operator.CustomOp mx.operator.CustomOpProp mx.recordio.MXRecordIO mx.recordio.MXIndexedRecordIO
mx.rnn.BaseRNNCell mx.autograd.Function
"""
MODULES, CLASSES = _MODULES.split(), _CLASSES.split()
NUMPY = ("mxnet.numpy", "mxnet.numpy_extension")  # their constants and types, such as pi and float32, are NumPy's
INNER = ("check_call", "classproperty", "with_metaclass", "constraint_check", "args_wrapper", "pd", "Pandas_Failed_To_Import")


def names_of(module):
    """Return the public names of a module."""
    own = module.__name__
    listed = getattr(module, "__all__", None)

    def public(name, value):
        if name.startswith(("_", "backward_")) or name in INNER:
            return False
        if isinstance(value, types.ModuleType):  # not the files that modules consist of
            inside = own in ("mxnet", "mxnet.contrib") or value.__name__.startswith(own + ".")
            return inside and f"mx{value.__name__[5:]}" in MODULES
        home = getattr(value, "__module__", None)
        return own in NUMPY or (isinstance(home, str) and (home == own or own == "mxnet" or home.startswith(own + ".")))

    names = {name for name, value in vars(module).items() if public(name, value)}
    if listed and own not in NUMPY:
        names = {name for name in names if isinstance(getattr(module, name), types.ModuleType)}
        names |= {name for name in listed if not name.startswith(("_", "backward_"))}
    return sorted(names)


def works(kind, member):
    """Return whether a member of a class is public, and not a method that only says that it is not there."""
    value = getattr(kind, member)
    source = inspect.getsource(value) if inspect.isfunction(value) else ""
    return not member.startswith("_") and "has no attribute" not in source and "NotImplementedForSymbol" not in source


def main():
    recorded = {}
    for path in MODULES:
        module = importlib.import_module("mxnet" + path[2:])
        recorded[path] = " ".join(names_of(module))
    for path in CLASSES:
        home, _, name = path.rpartition(".")
        value = getattr(importlib.import_module("mxnet" + home[2:]), name)
        recorded[path] = " ".join(sorted(member for member in dir(value) if works(value, member)))
    target = Path(__file__).parent / "mxnet_names.json"
    target.write_text(json.dumps(recorded, indent=0) + "\n")
    print(f"{len(recorded)} namespaces, {sum(len(names.split()) for names in recorded.values())} names")


if __name__ == "__main__":
    main()
