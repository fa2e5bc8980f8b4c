"""`mx.mod`: MXNet's modules, which train and run a symbol; inputs and results are NDArrays.

>>> import jfit.mx as mx, numpy as np
>>> net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
>>> x = np.eye(2, dtype="float32").repeat(20, axis=0)
>>> mod = mx.mod.Module(net, context=mx.cpu())
>>> mod.fit(mx.io.NDArrayIter(x, x.argmax(1), 8), num_epoch=20, optimizer_params={"learning_rate": 1.0})
>>> mod.predict(mx.io.NDArrayIter(x, batch_size=8)).asnumpy().argmax(1).tolist() == x.argmax(1).tolist()
True
"""

from typing import NoReturn

from jfit.mxnet.namespaces import absent
from jfit.mxnet.ndarray_classes import BaseModule, BucketingModule, Module, PythonLossModule, PythonModule, SequentialModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]


def __getattr__(name: str) -> NoReturn:
    absent("mx.mod", name, __all__)
