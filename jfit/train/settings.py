"""What `fit`, `score` and `predict` were asked for, checked and resolved once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jfit.lowering.model import Policy
from jfit.metrics import get as get_metrics
from jfit.parallel.devices import Device, resolve


@dataclass(frozen=True)
class Settings:
    """The settings of a run, immutable; `dataclasses.replace` makes changed copies.

    Attributes:
        devices: where it computes.
        batch_size: rows of a global batch.
        eval_batch_size: rows of an evaluation batch.
        num_epoch: epochs in all; training stops before the epoch of this number.
        metrics: of training and evaluation.
        policy: mixed precision, or None.
        directory: folder where callbacks write files, or None.
        checkpoint: folder of checkpoints, or None.
    """

    devices: list[Device]
    batch_size: int
    eval_batch_size: int
    num_epoch: int
    metrics: tuple[Any, ...]
    policy: Policy | None
    directory: str | None
    checkpoint: str | None


def settings_of(
    *,
    devices: Any = None,
    batch_size: int = 32,
    eval_batch_size: int | None = None,
    num_epoch: int = 0,
    eval_metric: Any = "acc",
    policy: Any = None,
    directory: str | Path | None = None,
    checkpoint: str | Path | None = None,
) -> Settings:
    """The settings from what a user passes; see `jfit.fit`."""
    return Settings(
        devices=resolve(devices),
        batch_size=batch_size,
        eval_batch_size=eval_batch_size or batch_size,
        num_epoch=num_epoch,
        metrics=resolve_metrics(eval_metric),
        policy=_policy(policy),
        directory=None if directory is None else str(directory),
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def _policy(policy: Any) -> Policy | None:
    resolved = Policy(policy) if isinstance(policy, str) else policy
    if resolved is None:
        return None
    try:
        if isinstance(resolved, Policy) and jnp.issubdtype(jnp.dtype(resolved.compute), jnp.floating):
            return resolved
    except TypeError:
        pass  # no dtype at all
    raise ValueError(f'policy is {policy!r}; needed a floating dtype such as "bfloat16", or a jfit.Policy')


def resolve_metrics(spec: Any) -> tuple[Any, ...]:
    """Metrics from a name, a Metric, a function `(label, output)` of numpy arrays, or a list of them; None for none.

    Raises:
        ValueError: an unknown name (nearest names listed), or a function where several processes share the outputs.
    """
    metrics = () if spec is None else get_metrics(spec)
    on_host = [m.name for m in metrics if m.host]
    if on_host and jax.process_count() > 1:
        raise ValueError(
            f"metric {on_host[0]!r} runs on the host, but each of the {jax.process_count()} processes holds only its own "
            "outputs; write it as a jfit.metrics.Metric of jax functions"
        )
    return metrics
