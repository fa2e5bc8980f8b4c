"""Save a model every epoch, load it again, resume the training and cut the network for its features."""

import argparse
import logging
import os

import mxnet as mx
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model-prefix", default="spiral")
parser.add_argument("--load-epoch", type=int, default=2)
parser.add_argument("--num-epochs", type=int, default=5)
args = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(name)s:%(message)s")

rng = np.random.RandomState(12)
n = 200
t = rng.uniform(0.3, 3.0, n)
y = rng.randint(0, 2, n)
x = np.stack([t * np.cos(t + np.pi * y), t * np.sin(t + np.pi * y)], axis=1) + rng.normal(0, 0.05, (n, 2))


def get_iter():
    return mx.io.NDArrayIter(x.astype("float32"), y.astype("float32"), batch_size=25)


net = mx.sym.Variable("data")
net = mx.sym.FullyConnected(net, name="fc1", num_hidden=24)
net = mx.sym.Activation(net, name="act1", act_type="tanh")
net = mx.sym.FullyConnected(net, name="fc2", num_hidden=12)
net = mx.sym.Activation(net, name="act2", act_type="tanh")
net = mx.sym.FullyConnected(net, name="fc3", num_hidden=2)
net = mx.sym.SoftmaxOutput(net, name="softmax")


class Start(mx.init.Initializer):
    def _init_weight(self, _, arr):
        arr[:] = np.random.RandomState(arr.size).uniform(-0.7, 0.7, arr.shape)


mod = mx.mod.Module(net)
mod.fit(
    get_iter(),
    num_epoch=args.load_epoch,
    initializer=Start(),
    optimizer_params={"learning_rate": 0.3},
    epoch_end_callback=mx.callback.do_checkpoint(args.model_prefix),
    batch_end_callback=mx.callback.log_train_metric(4),
)
print(sorted(os.listdir(".")))

sym, arg_params, aux_params = mx.model.load_checkpoint(args.model_prefix, args.load_epoch)
print("arguments:", sorted(arg_params), "auxiliary:", sorted(aux_params))
again = mx.mod.Module(symbol=sym)
again.fit(
    get_iter(),
    num_epoch=args.num_epochs,
    arg_params=arg_params,
    aux_params=aux_params,
    begin_epoch=args.load_epoch,
    optimizer_params={"learning_rate": 0.3},
    eval_metric="acc",
)
again.save_checkpoint(args.model_prefix, args.num_epochs, save_optimizer_states=True)

loaded = mx.mod.Module.load(args.model_prefix, args.num_epochs)
it = get_iter()
loaded.bind(data_shapes=it.provide_data, label_shapes=it.provide_label, for_training=False)
print("loaded:", loaded.score(it, "acc"), "again:", again.score(get_iter(), "acc"))

internals = sym.get_internals()
print([name for name in internals.list_outputs() if name.endswith("_output")])
features = mx.mod.Module(internals["act2_output"], label_names=None)
features.bind(data_shapes=[("data", (25, 2))], for_training=False)
arg, aux = again.get_params()
features.set_params({k: v for k, v in arg.items() if not k.startswith("fc3")}, aux)
feature = features.predict(get_iter()).asnumpy()
print(feature.shape, "%.5f %.5f" % (feature.mean(), feature.std()))

saved = mx.nd.load("%s-%04d.params" % (args.model_prefix, args.num_epochs))
print({k: v.shape for k, v in sorted(saved.items())})
model = mx.model.FeedForward.load(args.model_prefix, args.num_epochs)
print("FeedForward: %.5f" % model.predict(get_iter())[:, 1].mean())
