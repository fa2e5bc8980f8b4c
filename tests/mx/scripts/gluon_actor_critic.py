"""Actor-critic on a small corridor: a policy and a value head, losses recorded over an episode."""

import argparse

import mxnet as mx
import mxnet.ndarray as F
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

parser = argparse.ArgumentParser(description="actor-critic example")
parser.add_argument("--gamma", type=float, default=0.95)
parser.add_argument("--seed", type=int, default=29)
parser.add_argument("--episodes", type=int, default=12)
args = parser.parse_args()
random = np.random.RandomState(args.seed)


class Corridor:
    """Six places; the goal is at the right end, every step costs a little."""

    def reset(self):
        self.place = 1
        return self.state()

    def state(self):
        return np.eye(6, dtype="float32")[self.place]

    def step(self, action):
        self.place = min(max(self.place + (1 if action else -1), 0), 5)
        done = self.place == 5
        return self.state(), 1.0 if done else -0.05, done


class Policy(gluon.Block):
    def __init__(self, **kwargs):
        super(Policy, self).__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(16, in_units=6, activation="relu")
            self.action_pred = nn.Dense(2, in_units=16)
            self.value_pred = nn.Dense(1, in_units=16)

    def forward(self, x):
        x = self.dense(x)
        probs = self.action_pred(x)
        values = self.value_pred(x)
        return F.softmax(probs), values


env = Corridor()
net = Policy()
net.initialize(mx.init.Zero())
for parameter in net.collect_params().values():
    parameter.set_data(mx.nd.array(random.uniform(-0.3, 0.3, parameter.shape)))
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 3e-2})
loss = gluon.loss.L1Loss()

running_reward = 0
for epoch in range(args.episodes):
    state = env.reset()
    rewards, values, heads, actions = [], [], [], []
    with autograd.record():
        for t in range(15):
            state = mx.nd.array(np.expand_dims(state, 0))
            prob, value = net(state)
            action = int(random.uniform() < prob[0, 1].asscalar())
            logp = F.log(F.pick(prob, mx.nd.array([action]), axis=1))
            state, reward, done = env.step(action)
            rewards.append(reward)
            values.append(value)
            actions.append(action)
            heads.append(logp)
            if done:
                break
        running_reward = running_reward * 0.9 + sum(rewards) * 0.1
        R = 0
        for i in range(len(rewards) - 1, -1, -1):
            R = rewards[i] + args.gamma * R
            rewards[i] = R
        rewards = np.array(rewards)
        rewards -= rewards.mean()
        rewards /= rewards.std() + np.finfo(rewards.dtype).eps
        L = sum([loss(value, mx.nd.array([r])) for r, value in zip(rewards, values)])
        for logp, r, v in zip(heads, rewards, values):
            L = L - logp * (r - v.detach().reshape((-1,)))
    L.backward()
    trainer.step(1)
    print(
        "Episode %d\tlength %d\tright %d\tloss %.4f\taverage reward %.4f"
        % (epoch, t, sum(actions), L.asscalar(), running_reward)
    )
print(net(mx.nd.array(np.eye(6)))[0].asnumpy())
