"""Callbacks of `jfit.fit`: a callback is a pair of functions `init() -> state` and `on(event, state) -> new state`."""

from jfit.train.callbacks.bars import progress
from jfit.train.callbacks.base import EVENTS, Callback, Event, as_callback, lambda_callback
from jfit.train.callbacks.logging import csv_logger, jsonl_logger, speedometer
from jfit.train.callbacks.plateau import reduce_on_plateau
from jfit.train.callbacks.replicas import check_replicas
from jfit.train.callbacks.saving import checkpointing
from jfit.train.callbacks.stopping import early_stopping
from jfit.train.callbacks.trackers import mlflow, tensorboard, wandb

__all__ = [
    "EVENTS",
    "Callback",
    "Event",
    "as_callback",
    "check_replicas",
    "checkpointing",
    "csv_logger",
    "early_stopping",
    "jsonl_logger",
    "lambda_callback",
    "mlflow",
    "progress",
    "reduce_on_plateau",
    "speedometer",
    "tensorboard",
    "wandb",
]
