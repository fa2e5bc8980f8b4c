"""SVRGModule, a Module trained with variance-reduced gradients; inputs and results are NDArrays.

>>> import jfit.mx as mx, numpy as np
>>> x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
>>> train = mx.io.NDArrayIter(x, x @ np.array([1, 2, 3], "float32"), batch_size=8, label_name="label")
>>> out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc1")
>>> net = mx.sym.LinearRegressionOutput(out, mx.sym.Variable("label"))
>>> mod = SVRGModule(net, data_names=["data"], label_names=["label"], update_freq=2)
>>> mod.fit(train, eval_metric="mse", num_epoch=30, optimizer_params=(("learning_rate", 0.1),))
>>> np.round(mod.get_params()[0]["fc1_weight"].asnumpy(), 3).tolist()
[[1.0, 2.0, 3.0]]
"""

from jfit.mxnet.ndarray_classes import SVRGModule

__all__ = ["SVRGModule"]
