"""Embeddings of points learned with a triplet loss, then with pairs and a cosine loss."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.data import DataLoader, Dataset

rng = np.random.RandomState(79)
centers = rng.normal(0, 1, (5, 6))
label = np.arange(150) % 5
points = (centers[label] + rng.normal(0, 0.7, (150, 6))).astype("float32")


class Triplets(Dataset):
    """Anchor, positive and negative."""

    def __init__(self, seed):
        self._rng = np.random.RandomState(seed)
        self._triplets = []
        for k in range(len(points)):
            same, other = np.flatnonzero(label == label[k]), np.flatnonzero(label != label[k])
            self._triplets.append((k, self._rng.choice(same), self._rng.choice(other)))

    def __getitem__(self, idx):
        return tuple(points[k] for k in self._triplets[idx])

    def __len__(self):
        return len(self._triplets)


class Start(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.size).normal(0, 0.3, arr.shape)


net = nn.HybridSequential()
net.add(nn.Dense(12, activation="relu"), nn.Dense(3, use_bias=False))
net.initialize(Start())
net.hybridize()
triplet_loss = gluon.loss.TripletLoss(margin=1.0)
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for epoch in range(4):
    total = 0.0
    for anchor, positive, negative in DataLoader(Triplets(epoch), batch_size=30):
        with autograd.record():
            a, p, n = net(anchor), net(positive), net(negative)
            loss = triplet_loss(a, p, n)
        loss.backward()
        trainer.step(anchor.shape[0])
        total += loss.sum().asscalar()
    print("epoch %d triplet loss %.5f" % (epoch, total / 150))


class Siamese(gluon.HybridBlock):
    def __init__(self, base, **kwargs):
        super().__init__(**kwargs)
        self.base = base

    def hybrid_forward(self, F, left, right):
        return F.L2Normalization(self.base(left)), F.L2Normalization(self.base(right))


siamese = Siamese(net)
cosine = gluon.loss.CosineEmbeddingLoss(margin=0.2)
for epoch in range(3):
    order = np.random.RandomState(90 + epoch).permutation(150)
    left, right = nd.array(points), nd.array(points[order])
    same = nd.array(np.where(label == label[order], 1.0, -1.0))
    with autograd.record():
        loss = cosine(*siamese(left, right), same)
    loss.backward()
    trainer.step(150)
    print("epoch %d cosine loss %.5f" % (epoch, loss.mean().asscalar()))
codes = net(nd.array(points)).asnumpy()
distance = ((codes[:, None] - codes[None]) ** 2).sum(axis=-1)
np.fill_diagonal(distance, np.inf)
print("nearest neighbour of the same class: %.3f" % (label[distance.argmin(axis=1)] == label).mean())
