"""Learning-rate schedules and optimizers of a Trainer, its states saved and loaded in the middle."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, lr_scheduler, nd
from mxnet.gluon import nn

rng = np.random.RandomState(59)
x = nd.array(rng.normal(size=(32, 4)))
y = nd.array(np.sin(x.asnumpy().sum(axis=1, keepdims=True)))


def network():
    net = nn.Sequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(12, activation="tanh"), nn.Dense(1))
    net.initialize(mx.init.Zero())
    net(x)
    init = np.random.RandomState(60)
    for p in net.collect_params().values():
        p.set_data(nd.array(init.uniform(-0.5, 0.5, p.shape)))
    return net


class TriangularSchedule:
    def __init__(self, min_lr, max_lr, cycle_length):
        self.min_lr, self.max_lr, self.cycle_length = min_lr, max_lr, cycle_length

    def __call__(self, iteration):
        position = iteration % self.cycle_length / self.cycle_length
        return self.min_lr + (self.max_lr - self.min_lr) * (1 - abs(2 * position - 1))


loss_fn = gluon.loss.HuberLoss()


def step(net, trainer):
    with autograd.record():
        loss = loss_fn(net(x), y)
    loss.backward()
    trainer.step(32)
    return loss.mean().asscalar()


schedules = {
    "factor": lr_scheduler.FactorScheduler(step=3, factor=0.5, base_lr=0.2, warmup_steps=2, warmup_begin_lr=0.05),
    "multifactor": lr_scheduler.MultiFactorScheduler(step=[3, 6], factor=0.1, base_lr=0.3),
    "poly": lr_scheduler.PolyScheduler(max_update=10, base_lr=0.2, pwr=2),
    "cosine": lr_scheduler.CosineScheduler(max_update=8, base_lr=0.2, final_lr=0.01),
    "triangular": TriangularSchedule(0.01, 0.2, 6),
}
for name, schedule in schedules.items():
    net = network()
    trainer = gluon.Trainer(net.collect_params(), mx.optimizer.SGD(lr_scheduler=schedule, wd=0.001))
    values = [(step(net, trainer), trainer.learning_rate) for _ in range(9)]
    print(name, " ".join("%.5f" % loss for loss, _ in values))
    print(name, "rates", " ".join("%.5f" % rate for _, rate in values))

for optimizer, options in [
    ("adam", {"learning_rate": 0.02}),
    ("adagrad", {"learning_rate": 0.1}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("adadelta", {"rho": 0.9}),
    ("signum", {"learning_rate": 0.01, "momentum": 0.9}),
    ("lamb", {"learning_rate": 0.02}),
    ("ftrl", {"learning_rate": 0.3, "lamda1": 0.001}),
    ("adamax", {"learning_rate": 0.02}),
    ("nadam", {"learning_rate": 0.02}),
    ("ftml", {"learning_rate": 0.02}),
    ("lars", {"learning_rate": 1.0, "momentum": 0.9}),
]:
    net = network()
    trainer = gluon.Trainer(net.collect_params(), optimizer, options)
    print(optimizer, " ".join("%.5f" % step(net, trainer) for _ in range(6)))

net = network()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
for _ in range(4):
    step(net, trainer)
net.save_parameters("net.params")
trainer.save_states("net.states")
first = [step(net, trainer) for _ in range(3)]
net.load_parameters("net.params")
trainer.load_states("net.states")
trainer.set_learning_rate(trainer.learning_rate)
print("resumed equals:", np.allclose(first, [step(net, trainer) for _ in range(3)], atol=1e-6))
