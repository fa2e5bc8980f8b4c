"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.callbacks.bars import progress as progress
from jfit.callbacks.base import (
    Callback as Callback, EVENTS as EVENTS, Event as Event, as_callback as as_callback, lambda_callback as lambda_callback,
)
from jfit.callbacks.intervals import Every as Every, every as every
from jfit.callbacks.logging import csv_logger as csv_logger, jsonl_logger as jsonl_logger, speedometer as speedometer
from jfit.callbacks.plateau import reduce_on_plateau as reduce_on_plateau
from jfit.callbacks.replicas import check_replicas as check_replicas
from jfit.callbacks.saving import checkpointing as checkpointing
from jfit.callbacks.stopping import early_stopping as early_stopping
from jfit.callbacks.trackers import mlflow as mlflow, tensorboard as tensorboard, wandb as wandb
