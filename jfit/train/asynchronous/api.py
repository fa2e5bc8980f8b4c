"""`fit_async`: asynchronous training on the actors of Ray, or on threads."""

from __future__ import annotations

import concurrent.futures
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jfit import optim
from jfit.data import ArrayData
from jfit.distributed.actors import Actor, RayActors, ThreadActors
from jfit.distributed.channel import JobError
from jfit.lowering.build import lower_with_inputs, model_and_values, split_trained
from jfit.lowering.model import Model, specs_of
from jfit.metrics.core import on_host
from jfit.parallel import check_entry, place
from jfit.step.fitting import choose_metrics, paired
from jfit.step.state import TrainState, init_state
from jfit.train import checkpoint as checkpoints
from jfit.train.asynchronous.problem import Problem
from jfit.train.asynchronous.server import ParameterServer
from jfit.train.asynchronous.worker import Worker
from jfit.train.batches import Settings, data_of, first_batch, labels_of, settings_of
from jfit.train.fit import checked_plan, resolve_optimizer
from jfit.train.history import History
from jfit.train.run import Run
from jfit.train.saved import check_name, newest, read

logger = logging.getLogger(__name__)


def fit_async(
    model: Any,
    train_data: Any,
    eval_data: Any = None,
    *,
    num_workers: int = 2,
    max_staleness: int | None = None,
    actors: Any = "ray",
    worker_options: Mapping[str, Any] | None = None,
    server_options: Mapping[str, Any] | None = None,
    batch_size: int = 32,
    num_epoch: int = 10,
    optimizer: Any = "sgd",
    optimizer_params: Mapping[str, Any] | None = None,
    schedule: Any = None,
    schedule_params: Mapping[str, Any] | None = None,
    eval_metric: Any = "auto",
    initializer: Any = None,
    label: str | Sequence[str] | None = None,
    sample_weight: Any = None,
    shuffle: bool = True,
    seed: int = 0,
    frozen: Sequence[str] = (),
    clip_norm: float | None = None,
    clip_value: float | None = None,
    policy: Any = None,
    params: Any = None,
    aux: Any = None,
    loss: Any = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> Run:
    """Train a model asynchronously (MXNet's `dist_async`): a server applies the gradient of each worker when it arrives.

    θ ← θ − η · u(g(θ')), where g(θ') is the mean gradient of one batch, which a worker computed at the parameters θ' that it
    received last.  Meanwhile others have updated the parameters; the number of these updates is the staleness of the gradient.
    The server is an actor that owns parameters, optimizer state and moving statistics; workers are actors that send gradients
    and receive the newest parameters.

    Worker k trains on the rows k, k + num_workers, k + 2 · num_workers, ...  An epoch is over when every worker has sent the
    gradients of its rows; workers do not wait for each other.  For a seed, each worker has the same batches and random numbers
    in every run, but the order in which gradients arrive differs, so results are not reproducible: use `jfit.fit` for that.

    A worker that is lost, or raises an error, is named in a warning; the others go on, without its rows.

    Args:
        model, train_data: as for `jfit.fit`; the data are arrays, which are sent to the workers.
        eval_data: evaluation data, scored after every epoch by the calling process.  Default: no evaluation.
        num_workers: number of workers.
        max_staleness: bound of the staleness, at least 0: workers wait where a gradient would become staler.  At most
            max_staleness + 1 of them compute at the same time, and 0 is training one batch after the other.  Default: no bound.
        actors: "ray", which needs the extra `jfit[ray]`: the cluster that the script joined by `ray.init()`, or that of the
            environment variable RAY_ADDRESS, else Ray is started on this host, on the loopback interface.  "threads": threads
            of this process, to try asynchronous training without Ray.  Or an object with the methods of
            `jfit.distributed.actors.Actors`.
        worker_options: options of the Ray actors of workers, such as {"num_gpus": 1}.
        server_options: options of the Ray actor of the server, which computes on CPU.
        batch_size: number of rows of a gradient, and so of an update: an epoch has as many updates as with `jfit.fit`.
        num_epoch: number of epochs; a resumed run trains those that are left.
        optimizer, optimizer_params, schedule, schedule_params: as for `jfit.fit`; schedules count updates.
        initializer, params, aux, loss: as for `jfit.fit`.
        label, sample_weight, shuffle, seed: as for `jfit.fit`.
        frozen, clip_norm, clip_value, policy: as for `jfit.fit`.
        eval_metric: as for `jfit.fit`; functions of NumPy arrays are not supported.
        checkpoint: folder in which a checkpoint of the state of the server is saved after every epoch; the last three are kept.
            Default: no checkpoints.
        resume: continue from the newest checkpoint in `checkpoint`, if there is one.

    Returns:
        Run: the trained model, with `params`, `score()`, `predict()`, `save()` and `history`.  A row of the history has in
        addition "staleness" (the mean), "max_staleness", and the arrays "worker_updates" and "worker_staleness" (the mean) by
        worker; `step` is the number of updates.  After Ctrl-C it has the newest state, and `run.interrupted` is True.

    Raises:
        ImportError: Ray is not installed.
        ValueError: an invalid argument, or data that are not arrays.
        jfit.distributed.JobError: the server was lost, or all workers; the error of the first worker is its cause.

    Example:
        >>> import jfit, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
        >>> net = jfit.sym.SoftmaxOutput(net, name="softmax")
        >>> data, params = (x, (x[:, 0] > 0).astype("float32")), {"learning_rate": 0.5}
        >>> run = jfit.fit_async(net, data, num_epoch=5, batch_size=8, optimizer_params=params, actors="threads")
        >>> run.position["step"], "max_staleness" in run.history.columns(), run.score(data)["accuracy"] > 0.9
        (40, True, True)

    Source: Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014; Ho et al., More Effective
    Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013 (the bound).
    """
    check_entry("jfit.fit_async")
    _check(num_workers=(num_workers, 1), batch_size=(batch_size, 1), num_epoch=(num_epoch, 1), max_staleness=(max_staleness, 0))
    if checkpoint is not None:
        check_name(checkpoint, "checkpoint")
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint=, the folder of the checkpoints")
    settings = settings_of(batch_size=batch_size, num_epoch=num_epoch, eval_metric=eval_metric, policy=policy, label=label)
    settings = replace(settings, checkpoint=None if checkpoint is None else str(checkpoint))
    model, params, aux = split_trained(model, params, aux)
    if hasattr(model, "list_arguments") and isinstance(train_data, Mapping):
        model = lower_with_inputs(model, train_data)
    model, params, aux = model_and_values(model, loss, params, aux)
    data = _arrays(data_of(model, train_data, batch_size, shuffle=shuffle, label=label, sample_weight=sample_weight))
    if data.num_rows < num_workers:
        raise ValueError(f"the data has {data.num_rows} rows for {num_workers} workers; each needs at least one")
    probe = {name: np.asarray(value) for name, value in first_batch(model, data, batch_size).items()}
    model = paired(model.bound(probe), settings.metrics, probe)
    updates = sum(-(-rows // batch_size) for rows in _rows_of(data.num_rows, num_workers))
    rate = (optimizer_params or {}).get("learning_rate")
    if schedule is not None:
        schedule = optim.run_schedule(schedule, schedule_params, rate, updates * num_epoch, updates)
    optimizer = resolve_optimizer(optimizer, optimizer_params, model, schedule)
    settings = _with_metrics(settings, model, data, probe, optimizer)
    metrics = settings.metrics
    state = init_state(
        model, optimizer, probe, seed=seed, initializer=initializer, params=params, aux=aux, metrics=metrics, frozen=frozen
    )
    plan = checked_plan(model, data, probe, state)
    problem = Problem(
        model if model.symbol is None else model.symbol,
        probe,
        optimizer,
        schedule,
        metrics,
        frozen,
        clip_norm,
        clip_value,
        settings.policy,
        batch_size,
        plan.paddable,
        plan.coupled,
        seed,
    )
    run = Run(model, settings, place(state, settings.devices))
    if checkpoint is not None:
        _resume(run, checkpoint, resume)
    where = _actors(actors, num_workers)
    try:
        job = _Job(where, problem, run, num_workers, max_staleness, server_options)
        try:
            job.start_workers(data, worker_options)
            job.train(eval_data)
        except KeyboardInterrupt:
            job.update_run(run.position["epoch"])
            run.interrupted = True
        finally:
            job.close()
    finally:
        where.close()
    return run


class _Job:
    """The actors of one training, as the calling process sees them."""

    def __init__(
        self,
        actors: Any,
        problem: Problem,
        run: Run,
        workers: int,
        max_staleness: int | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.actors, self.problem, self.run = actors, problem, run
        state, epoch, calls = run.snapshot(), run.position["epoch"], workers + 4
        self.key = np.asarray(state.key)
        self.workers: dict[int, Actor] = {}
        self._running: dict[concurrent.futures.Future[Any], int] = {}
        self._error: BaseException | None = None
        self._options, self._count = {"num_cpus": 0, **(options or {})}, workers
        self.server = actors.start(
            ParameterServer, problem, state, workers, epoch, max_staleness, calls=calls, options=self._options
        )

    def start_workers(self, data: ArrayData, options: Mapping[str, Any] | None) -> None:
        first = self.run.position["epoch"]
        for rank in range(self._count):
            part = data.part(slice(rank, None, self._count))
            arrays = {name: np.asarray(array) for name, array in part.arrays.items()}
            worker = self.actors.start(
                Worker, self.problem, arrays, part.weight, data.shuffle, rank, self.key, options=options or {}
            )
            self.workers[rank] = worker
            self._running[worker.call("train", self.server, first, self.run.num_epoch)] = rank

    def train(self, eval_data: Any) -> None:
        run = self.run
        for epoch in range(run.position["epoch"], run.num_epoch):
            row = self._result("wait_epoch", epoch)
            if row is None:
                raise JobError(f"all {self._count} workers were lost in epoch {epoch}") from self._error
            self.update_run(epoch + 1)
            if eval_data is not None:
                row |= {f"val_{name}": value for name, value in run.score(eval_data).items()}
            run.history.add_epoch(**row)
            shown = {k: f"{v:.4g}" for k, v in row.items() if isinstance(v, float)}
            logger.info("epoch %d: %s", epoch, ", ".join(f"{k}={v}" for k, v in shown.items()))
            if run.settings.checkpoint is not None:
                checkpoints.save(run.settings.checkpoint, run.snapshot(), meta=run.meta())

    def update_run(self, epoch: int) -> None:
        """Copy the newest state of the server to the run."""
        state: TrainState = self._result("state")
        run = self.run
        run._set_state(place(state, run.settings.devices))
        run._position = {"epoch": epoch, "batch": 0, "step": int(state.step)}

    def _result(self, method: str, *args: Any) -> Any:
        """Result of a call of the server; workers that are lost in the meantime are reported to it."""
        call = self.server.call(method, *args)
        while True:
            done, _ = concurrent.futures.wait([call, *self._running], return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done & set(self._running):
                self._ended(self._running.pop(future), future)
            if call in done:
                break
        if (error := call.exception()) is not None:
            kept = self.run.settings.checkpoint
            rest = f"the newest checkpoint is in {kept}" if kept is not None else "pass checkpoint= to save checkpoints"
            raise JobError(f"the server of asynchronous training was lost ({_line(error)}); {rest}") from error
        return call.result()

    def _ended(self, rank: int, future: concurrent.futures.Future[Any]) -> None:
        error = future.exception()
        if error is None:
            return
        self._error = self._error or error
        self.server.call("lost", rank)
        warnings.warn(
            f"worker {rank} of {self._count} was lost ({_line(error)}); the others go on without its rows", stacklevel=2
        )

    def close(self) -> None:
        """Let calls that wait for the server end, then end the actors."""
        self.server.call("close")
        for worker in self.workers.values():
            self.actors.kill(worker)


def _line(error: BaseException) -> str:
    """Type and the last line of a message, in which Ray has the error of the actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def _actors(actors: Any, num_workers: int) -> Any:
    if actors == "threads":
        return ThreadActors()
    if actors == "ray":
        return RayActors("jfit.fit_async", num_workers + 1)
    if isinstance(actors, str) or not hasattr(actors, "start"):
        raise ValueError(
            f'actors is {actors!r}; expected "ray", "threads", or an object with the methods start, kill and close'
        )
    return actors


def _resume(run: Run, folder: str | Path, resume: bool) -> None:
    """Continue from the newest checkpoint of a folder, or move those of another run aside."""
    if not resume or checkpoints.latest(folder) is None:
        checkpoints.set_aside(folder)
        return
    saved = newest(folder, read)
    state, _ = checkpoints.resumed(saved, run.state)
    run._set_state(place(state, run.settings.devices))
    run.history = History.from_json(saved.meta["history"])
    run._position = {**saved.meta["position"], "batch": 0}


def _arrays(data: Any) -> ArrayData:
    if not isinstance(data, ArrayData):
        raise ValueError(
            "fit_async sends each worker the rows of arrays, but train_data is an iterable of batches; pass arrays, such as "
            "(x, y)"
        )
    return data


def _rows_of(rows: int, workers: int) -> list[int]:
    return [len(range(rank, rows, workers)) for rank in range(workers)]


def _with_metrics(settings: Settings, model: Model, data: ArrayData, probe: dict[str, Any], optimizer: Any) -> Settings:
    metrics, choice = choose_metrics(settings.metrics, model, probe, labels_of(model, data))
    if host := on_host(metrics):
        raise ValueError(
            f"metric {host[0].name!r} is a function of NumPy arrays, which needs the outputs on the host, but workers send "
            "sums only; write it as a jfit.metrics.Metric of JAX functions"
        )
    return replace(
        settings,
        metrics=metrics,
        metric_choice=choice,
        inputs=specs_of(probe),
        optimizer=optimizer.name,
        columns=data.columns or settings.columns,
    )


def _check(**values: tuple[Any, int]) -> None:
    for name, (value, least) in values.items():
        if name == "max_staleness" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} is {value!r}; expected an integer of at least {least}")
