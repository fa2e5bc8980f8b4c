"""A worker of asynchronous training: it computes gradients of its rows, and sends them to the server."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jfit.data import ArrayData, Batch
from jfit.distributed.actors import Actor
from jfit.lowering.model import Aux
from jfit.step import Shared, train_step
from jfit.step.state import TrainState, typed_key
from jfit.train.asynchronous.problem import Problem
from jfit.train.host_batches import HostBatches


class Values(NamedTuple):
    """What a worker computes with.

    Attributes:
        params: parameters by name.
        aux: auxiliary states by name.
    """

    params: dict[str, Any]
    aux: Aux


class Sent(NamedTuple):
    """What a worker sends to the server for a batch.

    Attributes:
        gradients: mean gradients by name; for tables `jfit.optim.SparseRows`.
        aux: changes of auxiliary states of floating dtype, new values of others.
        shared: sums of the loss and the metrics, `jfit.step.Shared`.
        rows: sum of the row weights.
    """

    gradients: dict[str, Any]
    aux: Aux
    shared: Shared
    rows: Any


class Worker:
    """The rows of one worker.

    Args:
        problem: what is trained.
        arrays: the rows by input name.
        weight: row weights, or None.
        shuffle: whether the rows are shuffled in each epoch.
        rank: number of the worker, from 0; part of the seeds of shuffling and random operators.
        key: PRNG key data of the run.
    """

    def __init__(self, problem: Problem, arrays: dict[str, Any], weight: Any, shuffle: bool, rank: int, key: Any) -> None:
        self.problem, self.rank, self.model = problem, rank, problem.model()
        self.data = ArrayData(arrays, shuffle=shuffle, seed=problem.seed + 7919 * rank, weight=weight)
        self.batches = HostBatches(
            self.model, self.data, 1, problem.batch_size, paddable=problem.paddable, reason=problem.reason
        )
        self._pads = problem.paddable and self.data.num_rows % problem.batch_size != 0
        self.key = np.asarray(jax.random.key_data(jax.random.fold_in(typed_key(jnp.asarray(key)), rank)))
        step = train_step(self.model, "sgd", metrics=problem.metrics, frozen=problem.frozen, policy=problem.policy)
        self._program = jax.jit(functools.partial(_sent, step))

    def train(self, server: Actor, first_epoch: int, num_epoch: int) -> None:
        """Send a gradient for each batch of the epochs from `first_epoch` to `num_epoch` - 1."""
        if first_epoch < num_epoch:
            # The programs are compiled before anybody begins: gradients that wait for a compilation would be stale.
            with self.batches.read(first_epoch) as stream:
                sent = self._gradient(server.call("values").result(), next(iter(stream))[0], 0)
            server.call("ready", self.rank, sent).result()
        values: Values = server.call("pull", self.rank).result()
        for epoch in range(first_epoch, num_epoch):
            with self.batches.read(epoch) as stream:
                for number, (batch, _) in enumerate(stream):
                    sent = self._gradient(values, batch, epoch * self.data.num_batches(self.problem.batch_size) + number)
                    values = server.call("push", self.rank, epoch, sent).result()
            server.call("end_epoch", self.rank, epoch).result()
        server.call("leave", self.rank).result()

    def _gradient(self, values: Values, batch: Batch, step: int) -> Sent:
        if self._pads and batch.weight is None:  # the same program as for the last batch
            ones = np.ones(self.problem.batch_size, np.float32)
            batch = batch._replace(weight=ones, metric_weight=ones)
        return jax.device_get(self._program(values, self.key, np.int32(step), batch))  # sync: it is sent


def _sent(step: Any, values: Values, key: Any, number: Any, batch: Any) -> Sent:
    params, aux = values
    state: Any = TrainState(number, params, aux, (), (), None, key)
    result, _ = step.stages.shard(state, batch, None)
    rows = result.sums.rows
    gradients = jax.tree.map(lambda g: g if jnp.issubdtype(g.dtype, jnp.integer) else _mean(g, rows), result.gradients)
    changes = {k: v - aux[k] if jnp.issubdtype(v.dtype, jnp.inexact) else v for k, v in result.aux.items()}
    return Sent(gradients, changes, result.sums.shared, rows)


def _mean(gradient: Any, rows: Any) -> Any:
    wide = jnp.promote_types(gradient.dtype, jnp.float32)
    return (gradient.astype(wide) / jnp.maximum(rows, 1e-30)).astype(gradient.dtype)
