"""Matrix factorization with gluon embeddings, sparse gradients and a rating head."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

rng = np.random.RandomState(73)
users, items, k = 30, 25, 4
p, q = rng.normal(1, 0.5, (users, k)), rng.normal(0.5, 0.5, (items, k))
u, i = rng.randint(0, users, 960), rng.randint(0, items, 960)
r = ((p[u] * q[i]).sum(axis=1) + rng.normal(0, 0.1, 960)).astype("float32")


class MFBlock(gluon.HybridBlock):
    def __init__(self, max_users, max_items, num_emb, sparse=False):
        super(MFBlock, self).__init__()
        with self.name_scope():
            self.user_embeddings = nn.Embedding(max_users, num_emb, sparse_grad=sparse)
            self.item_embeddings = nn.Embedding(max_items, num_emb, sparse_grad=sparse)
            self.user_bias = nn.Embedding(max_users, 1)

    def hybrid_forward(self, F, users, items):
        a = self.user_embeddings(users)
        b = self.item_embeddings(items)
        predictions = F.sum(F.elemwise_mul(a, b), axis=1)
        return predictions + F.reshape(self.user_bias(users), (-1,))


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(arr.size).normal(0.4, 0.2, arr.shape)


def batches(rows, size=48):
    data = gluon.data.ArrayDataset(u[rows].astype("float32"), i[rows].astype("float32"), r[rows])
    return gluon.data.DataLoader(data, batch_size=size, last_batch="keep")


for sparse in (False, True):
    net = MFBlock(users, items, k, sparse)
    net.initialize(ByShape())
    if not sparse:
        net.hybridize()
    loss_function = gluon.loss.L2Loss()
    trainer = gluon.Trainer(
        net.collect_params(), "adam", {"learning_rate": 0.02, "lazy_update": False} if sparse else {"learning_rate": 0.02}
    )
    for e in range(3):
        cumulative_loss = 0
        for user, item, score in batches(slice(0, 768)):
            with autograd.record():
                output = net(user, item)
                loss = loss_function(output, score)
            loss.backward()
            trainer.step(user.shape[0])
            cumulative_loss += nd.sum(loss).asscalar()
        metric = mx.metric.RMSE()
        for user, item, score in batches(slice(768, 960)):
            metric.update([score], [net(user, item)])
        print("sparse %s epoch %d loss %.5f %s %.5f" % (sparse, e, cumulative_loss / 768, *metric.get()))
