"""Callbacks that send the values of a run to experiment trackers: TensorBoard, Weights & Biases, MLflow."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from jfit.callbacks.base import Callback, Event, as_callback, scalars
from jfit.history.display import hyperparameters
from jfit.lazy import optional


def tensorboard(directory: str | os.PathLike[str], *, every: int | None = None) -> Callback:
    """Write loss, metrics and learning rate to event files of TensorBoard, after each epoch and evaluation and within epochs.

    The files are written by tensorboardX, which depends on neither TensorFlow nor PyTorch.  The curves have the names of the
    history (`loss`, `val_loss`, ...) over the number of updates; the settings of the run are the text `settings`.

    Args:
        directory: folder of the event files.  Curves of an earlier run in this folder are hidden: all if the run starts at step
            0, and those after its step if it is resumed.
        every: None logs the running means at log points within an epoch, at most about twice per second.  A number k logs
            instead the loss, learning rate and metrics of every k-th batch, as `step/loss` etc.

    Returns:
        A `Callback`.  `fit` raises ImportError if tensorboardX is not installed.

    Raises:
        ValueError: `every` is not an integer of at least 1.

    Example:
        >>> tensorboard("runs/a").events
        ('fit_start', 'log', 'evaluation', 'epoch_end', 'fit_end')
    """

    def start(event: Event, state: None) -> tuple[Any, None, bool]:
        # Curves are hidden from this step on; the values of the last step before a resume are those of the checkpoint.
        first = event.step + 1 if event.step else 0
        writer = _package("tensorboardX", "tensorboard").SummaryWriter(logdir=os.fspath(directory), purge_step=first)
        lines = [f"| {name} | {value} |" for name, value in _settings(event).items()]
        writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *lines]), event.step)
        return writer, state, True

    def log(writer: Any, event: Event, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, event.step)
        if event.kind in ("evaluation", "epoch_end"):
            writer.flush()

    return _tracker("tensorboard", _Calls(start, log, lambda writer, failed: writer.close()), every)


def wandb(*, every: int | None = None, **init: Any) -> Callback:
    """Log loss, metrics and learning rate to Weights & Biases, after each epoch and evaluation and within epochs.

    The values have the names of the history and the number of updates as their step; the settings of the run are added to the
    config.  A run of Weights & Biases that is active already is used and stays active.  Otherwise `wandb.init` starts one,
    which is finished when training ends, with exit code 1 after an exception.

    Args:
        every: None logs the running means at log points within an epoch, at most about twice per second.  A number k logs
            instead the loss, learning rate and metrics of every k-th batch, as `step/loss` etc.
        **init: arguments of `wandb.init`, such as project="digits".

    Returns:
        A `Callback`.  Its state is the id of the run, so that a resumed `fit` continues this run.  `fit` raises
        ImportError if the package wandb is not installed.

    Raises:
        ValueError: `every` is not an integer of at least 1.

    Example:
        >>> wandb(project="digits").name
        'wandb'
    """

    def start(event: Event, state: str | None) -> tuple[Any, str | None, bool]:
        package, settings = _package("wandb", "wandb"), _settings(event)
        if package.run is not None:
            package.run.config.update(settings, allow_val_change=True)
            return package.run, package.run.id, False
        again = {} if state is None else {"id": state, "resume": "allow"}
        run = package.init(**{**init, **again, "config": {**settings, **dict(init.get("config") or {})}})
        return run, run.id, True

    def log(run: Any, event: Event, values: dict[str, float]) -> None:
        run.log({"epoch": event.epoch, **values}, step=event.step)

    return _tracker("wandb", _Calls(start, log, lambda run, failed: run.finish(exit_code=int(failed))), every)


def mlflow(*, every: int | None = None, **start_run: Any) -> Callback:
    """Log loss, metrics and learning rate to MLflow, after each epoch and evaluation and within epochs.

    The metrics have the names of the history and the number of updates as their step; the settings of the run are its params.
    A run of MLflow that is active already is used and stays active.  Otherwise `mlflow.start_run` starts one, which is ended
    when training ends, with status FAILED after an exception.  `mlflow.set_tracking_uri` and `mlflow.set_experiment` apply.

    Args:
        every: None logs the running means at log points within an epoch, at most about twice per second.  A number k logs
            instead the loss, learning rate and metrics of every k-th batch, as `step/loss` etc.
        **start_run: arguments of `mlflow.start_run`, such as run_name="first".

    Returns:
        A `Callback`.  Its state is the id of the run, so that a resumed `fit` continues this run.  `fit` raises
        ImportError if the package mlflow is not installed.

    Raises:
        ValueError: `every` is not an integer of at least 1.

    Example:
        >>> mlflow(run_name="first").name
        'mlflow'
    """

    def start(event: Event, state: str | None) -> tuple[Any, str | None, bool]:
        package = _package("mlflow", "mlflow")
        active = package.active_run()
        run = package.start_run(**(start_run if state is None else {"run_id": state})) if active is None else active
        if run.info.run_id != state:  # MLflow raises if a param of a run changes, such as the number of epochs after a resume
            package.log_params(_settings(event))
        return package, run.info.run_id, active is None

    def log(package: Any, event: Event, values: dict[str, float]) -> None:
        # MLflow rejects names with other characters than these, such as "<lambda>".
        metrics = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in values.items()}
        package.log_metrics(metrics, step=event.step)

    def finish(package: Any, failed: bool) -> None:
        package.end_run(status="FAILED" if failed else "FINISHED")

    return _tracker("mlflow", _Calls(start, log, finish), every)


class _Calls(NamedTuple):
    """The calls of a tracker's package; start(event, state) -> (session, state, whether it opened the session)."""

    start: Callable[[Event, Any], tuple[Any, Any, bool]]
    log: Callable[[Any, Event, dict[str, float]], None]
    finish: Callable[[Any, bool], None]  # (session, whether training raised an exception)


def _tracker(name: str, calls: _Calls, every: int | None) -> Callback:
    """Make a callback that opens a session of a tracker for each training, and closes it after exceptions too."""
    session, is_ours = None, False
    outer: Any = None  # the exception that was being handled when training started

    def on(event: Event, state: Any) -> Any:
        nonlocal session, is_ours, outer
        if event.kind == "fit_start":
            outer = sys.exception()
            session, state, is_ours = calls.start(event, state)
        elif session is None or event.ends_epoch:
            pass  # the tracker did not start, and "fit_end" follows its exception; or "epoch_end" has the same values
        elif event.kind == "fit_end":
            ended, session = session, None
            if is_ours:
                calls.finish(ended, sys.exception() is not outer)
        else:
            prefix = "step/" if event.kind == "step_log" else ""
            values = {prefix + key: float(value) for key, value in scalars(event.logs).items() if value is not None}
            calls.log(session, event, values)
        return state

    # Only one of "log" and "step_log": a "log" event may come after the "step_log" event of a later step, and Weights & Biases
    # ignores values of a step before the last one that it has.
    within = "log" if every is None else "step_log"
    events = ("fit_start", within, "evaluation", "epoch_end", "fit_end")
    return as_callback(Callback(on=on, events=events, every=every, name=name, main_only=True))


def _settings(event: Event) -> dict[str, Any]:
    """Settings of the run, with the base learning rate that it starts with."""
    rate = event.run.base_lr  # sync: once per training, before its first step
    return hyperparameters(event.run) | ({} if rate is None else {"learning_rate": float(f"{rate:.6g}")})


def _package(name: str, callback: str) -> Any:
    return optional(name, f"callbacks.{callback} needs the package {name}: pip install {name}")
