"""Callbacks of `jfit.fit`: a callback is a pair of functions `init() -> state` and `on(event, state) -> new state`."""

from jfit.callbacks.bars import progress
from jfit.callbacks.base import EVENTS, Callback, Event, as_callback, lambda_callback
from jfit.callbacks.logging import csv_logger, jsonl_logger, speedometer
from jfit.callbacks.plateau import reduce_on_plateau
from jfit.callbacks.replicas import check_replicas
from jfit.callbacks.saving import checkpointing
from jfit.callbacks.stopping import early_stopping
from jfit.callbacks.trackers import mlflow, tensorboard, wandb

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
