"""Sequence to sequence with attention: a GRU encoder, a decoder cell stepped with teacher forcing, dot-product attention."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

rng = np.random.RandomState(9)
VOCAB, HIDDEN, LENGTH, START = 8, 12, 5, 0


class Encoder(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(VOCAB, HIDDEN)
            self.rnn = rnn.GRU(HIDDEN, layout="NTC", input_size=HIDDEN)

    def hybrid_forward(self, F, tokens, state):
        return self.rnn(self.embedding(tokens), state)


class Attention(gluon.HybridBlock):
    """Context = sum of the memory, weighted by softmax(query . memory)."""

    def hybrid_forward(self, F, query, memory):
        scores = F.batch_dot(memory, F.expand_dims(query, axis=2))
        weights = F.softmax(scores, axis=1)
        return F.sum(F.broadcast_mul(memory, weights), axis=1), F.squeeze(weights, axis=2)


class Decoder(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(VOCAB, HIDDEN)
            self.attention = Attention()
            self.cell = rnn.GRUCell(HIDDEN, input_size=2 * HIDDEN)
            self.out = nn.Dense(VOCAB, in_units=2 * HIDDEN)

    def hybrid_forward(self, F, token, hidden, memory):
        context, weights = self.attention(hidden, memory)
        output, states = self.cell(F.concat(self.embedding(token), context, dim=1), [hidden])
        return self.out(F.concat(output, context, dim=1)), states[0], weights


def translate(tokens, target=None):
    """Return the loss for a target, else the tokens of greedy decoding and the attention weights."""
    batch = tokens.shape[0]
    memory, states = encoder(tokens, encoder.rnn.begin_state(batch_size=batch, func=mx.nd.zeros))
    hidden, token = states[0][0], mx.nd.full((batch,), START)
    losses, chosen, attended = [], [], []
    for t in range(LENGTH):
        scores, hidden, weights = decoder(token, hidden, memory)
        if target is None:
            token = scores.argmax(axis=1)
            chosen.append(token)
            attended.append(weights)
        else:
            losses.append(loss_fn(scores, target[:, t]))
            token = target[:, t]
    if target is not None:
        return mx.nd.add_n(*losses) / LENGTH
    return mx.nd.stack(*chosen, axis=1), mx.nd.stack(*attended, axis=1)


def sample(size):
    tokens = rng.randint(1, VOCAB, (size, LENGTH))
    return mx.nd.array(tokens), mx.nd.array(tokens[:, ::-1].copy())


encoder, decoder = Encoder(prefix="encoder_"), Decoder(prefix="decoder_")
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
params = gluon.ParameterDict()
for block in (encoder, decoder):
    block.initialize(mx.init.Xavier())
    block.hybridize()
    params.update(block.collect_params())
for param in params.values():
    param.set_data(mx.nd.array(rng.uniform(-0.3, 0.3, param.shape)))
trainer = gluon.Trainer(params, "adam", {"learning_rate": 0.02})
for epoch in range(4):
    total = 0.0
    for _ in range(8):
        source, target = sample(16)
        with autograd.record():
            loss = translate(source, target)
        loss.backward()
        gluon.utils.clip_global_norm([p.grad() for p in params.values()], 5.0)
        trainer.step(16)
        total += loss.mean().asscalar()
    print("epoch %d, loss %.4f" % (epoch, total / 8))
source, target = sample(6)
decoded, attention = translate(source)
print("right: %d of %d" % ((decoded == target).sum().asscalar(), target.size))
print(attention.shape, "%.5f" % attention.sum().asscalar())
