"""`replay`: repeat a training step from the checkpoints of a run, in any process, and show it node by node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jfit.callbacks.base import lambda_callback
from jfit.checkpoints.saved import folders_of, step_of
from jfit.fit import fit
from jfit.loop.replayed import Replay
from jfit.loop.replaying import replay_step
from jfit.tools.verify import IGNORED, fit_arguments, meta_of, model_of


def replay(
    directory: str | os.PathLike[str] | None, train_data: Any, model: Any = None, *, step: int, **options: Any
) -> Replay:
    """Repeat a training step of a run from its checkpoints, and return what it computes node by node.

    Training continues from the nearest checkpoint at or before this step, or from the start.  Settings come from the checkpoint
    where it has them.  Callbacks and evaluations are not run, and nothing is written to the folder.

    Args:
        directory: folder of checkpoints, such as `checkpoint=` of `fit`; None: train from the start, with `options`.
        train_data: the training data of the run, as in `fit`.
        model: model of the run.  Default: the graph in the checkpoint.  Functions and modules are not in checkpoints,
            and are passed.
        step: number of the step, from 0: the number of updates before it, as in the warning that a loss is not finite.
        **options: other arguments of `fit`, such as `loss`, `params`, an optax `optimizer`, `devices`.  They replace those in
            the checkpoint.

    Returns:
        Replay: statistics of each node and parameter, `first_bad`, `to_pandas()` and `plot()`; `print` shows it as tables.

    Raises:
        FileNotFoundError: the folder has no checkpoint at or before this step.
        FormatError: the checkpoint is damaged.
        ValueError: an argument is needed or does not match the checkpoint, or the data ends before this step.

    Example:
        >>> import jfit, numpy as np
        >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.log(net, name="log"), name="softmax")
        >>> result = jfit.replay(None, (0 * x, y), net, step=0)
        >>> print(result.first_bad.node.name, result.first_bad.inputs[0])
        log 'fc' 0, 100% zeros
    """
    resume: dict[str, Any] = {}
    if directory is not None:
        folders = folders_of(Path(directory))
        earlier = [folder for folder in folders if step_of(folder) <= step]
        if not earlier:
            steps = ", ".join(str(step_of(folder)) for folder in folders) or "none"
            raise FileNotFoundError(f"replay: {directory} has no checkpoint at or before step {step}; its steps are: {steps}")
        meta = meta_of(earlier[-1], "replay")
        model, options = model_of(meta, model, "replay"), fit_arguments(meta, options, "replay")
        resume = {"resume": earlier[-1], "resume_with": "any"}
    stop = lambda_callback(name="replay", fit_start=lambda event: event.run.stop("replay"))
    arguments = {name: value for name, value in options.items() if name not in IGNORED}
    run = fit(model, train_data, **arguments, **resume, callbacks=[stop], progress=False)
    return replay_step(run._require_loop("replay"), step, True, unread=True)
