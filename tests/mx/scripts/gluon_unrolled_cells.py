"""Adding problem with unrolled cells: a stack with residual and zoneout cells is stepped and unrolled under autograd.record."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

rng = np.random.RandomState(2)
STEPS = 6


def sample(size):
    """Two rows: values, and a mark at two positions; the target is the sum of the marked values."""
    values = rng.uniform(-1, 1, (size, STEPS))
    marks = np.zeros((size, STEPS))
    for row in marks:
        row[rng.choice(STEPS, 2, replace=False)] = 1
    return mx.nd.array(np.stack([values, marks], 2)), mx.nd.array((values * marks).sum(1, keepdims=True))


class Adder(gluon.Block):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.cells = rnn.SequentialRNNCell()
            with self.cells.name_scope():
                self.cells.add(rnn.LSTMCell(10, input_size=2))
                self.cells.add(rnn.ZoneoutCell(rnn.GRUCell(10, input_size=10), zoneout_outputs=0.0, zoneout_states=0.0))
                self.cells.add(rnn.ResidualCell(rnn.RNNCell(10, activation="tanh", input_size=10)))
            self.out = nn.Dense(1, in_units=10)

    def forward(self, x):
        outputs, states = self.cells.unroll(STEPS, x, layout="NTC", merge_outputs=False)
        return self.out(outputs[-1])


net = Adder()
net.collect_params().initialize(mx.init.Uniform(0.1))
for param in net.collect_params().values():
    param.set_data(mx.nd.array(rng.uniform(-0.35, 0.35, param.shape)))
print(net.cells)
trainer = gluon.Trainer(net.collect_params(), mx.optimizer.Adam(learning_rate=0.01))
l2loss = gluon.loss.L2Loss()
for epoch in range(4):
    losses = []
    for _ in range(8):
        x, y = sample(16)
        with autograd.record():
            loss = l2loss(net(x), y)
        autograd.backward(loss)
        trainer.step(16)
        losses.append(loss.mean().asscalar())
    print("epoch %d: %.5f" % (epoch, np.mean(losses)))

x, y = sample(4)
state = net.cells.begin_state(func=mx.nd.zeros, batch_size=4)
net.cells.reset()
for t in range(STEPS):
    out, state = net.cells(x[:, t, :], state)
stepped, unrolled = net.out(out), net(x)
print("stepped equals unrolled:", bool(abs((stepped - unrolled).asnumpy()).max() < 1e-5))

# gradients with respect to the inputs and to a state that is passed in
cell = rnn.GRUCell(3, input_size=2, prefix="gru_")
cell.initialize(mx.init.One())
h = mx.nd.array(rng.uniform(size=(4, 3)))
x.attach_grad()
h.attach_grad()
with autograd.record():
    outputs, last = cell.unroll(STEPS, x.transpose((1, 0, 2)), begin_state=[h], layout="TNC", merge_outputs=True)
    total = (outputs**2).sum() + last[0].sum()
total.backward()
print("%.4f %.4f %.4f" % (total.asscalar(), x.grad.norm().asscalar(), h.grad.norm().asscalar()))
