"""`verify`: train again from a kept checkpoint to the next one, and compare the bits of every array of the state."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfit import optim
from jfit.callbacks.base import Callback, Event
from jfit.checkpoints.checkpoint import arrays_of, whole
from jfit.checkpoints.fingerprint import ENVIRONMENT, changes_of
from jfit.checkpoints.saved import TENSORS, folders_of, read, record_of, step_of
from jfit.fit import fit
from jfit.graph import load_json
from jfit.prepare.options import DECIDING

_DESCRIBED = re.compile(r"\S+( [0-9a-f]{12})+")  # a value of which `fingerprint.describe` kept the name and a digest
# Arguments of `fit` that do not change the parameters, or that `verify` decides.
IGNORED = ("eval_data", "callbacks", "checkpoint", "checkpoint_every", "checkpoint_best", "resume", "resume_with", "progress")
IGNORED += ("directory", "eval_every", "log_every", "eval_batch_size")


@dataclass(frozen=True)
class LeafDifference:
    """An array of the state that differs from that in a checkpoint.

    Attributes:
        name: name in the checkpoint, such as "params/fc1_weight".
        count: number of values whose bits differ; all of them if shapes or dtypes differ.
        size: number of values.
        maximum: the largest absolute difference; nan if a value is not finite, or the shapes or dtypes differ.
    """

    name: str
    count: int
    size: int
    maximum: float

    def __str__(self) -> str:
        return f"{self.name}: {self.count} of {self.size} values differ, by at most {self.maximum:.4g}"


@dataclass(frozen=True)
class Verification:
    """Result of `jfit.verify`.  `print` shows it as sentences.

    Attributes:
        directory: the folder of checkpoints.
        same: whether all arrays have the same bits at all steps.
        intervals: list of (step of a checkpoint, step of the next one) that were trained, the one that differs last.
        leaves: number of arrays that were compared at each step.
        differences: the arrays that differ at the end of the last interval, a list of `LeafDifference` sorted by name,
            parameters first.
        settings: sentences about settings, model and data that differ from those in the checkpoint.
        environment: sentences about versions of libraries, devices, CPU cores, and flags of XLA and jax that differ.
        unreached: whether training ended before the step of the last interval.

    Example:
        >>> print(Verification("runs/a", True, [(4, 8)], 6, [], [], [], False))
        runs/a: same bits in all 6 arrays; trained from step 4 to step 8
    """

    directory: str
    same: bool
    intervals: list[tuple[int, int]]
    leaves: int
    differences: list[LeafDifference]
    settings: list[str]
    environment: list[str]
    unreached: bool

    def __str__(self) -> str:
        start, stop = self.intervals[-1]
        trained = f"trained from step {self.intervals[0][0]} to step {stop}"
        if self.same:
            lines = [f"{self.directory}: same bits in all {self.leaves} arrays; {trained}"]
        elif self.unreached:
            lines = [f"{self.directory}: training from step {start} ended before step {stop}, so nothing was compared there"]
        else:
            names = f"{len(self.differences)} of {self.leaves} arrays differ"
            lines = [f"{self.directory}: {names} after training from step {start} to step {stop}", f"  {self.differences[0]}"]
        lines += [f"  {text}" for text in self.settings + self.environment]
        return "\n".join(lines + self._hints())

    def _hints(self) -> list[str]:
        if self.same or self.unreached:
            return []
        names = [difference.name for difference in self.differences]
        if all(name.startswith("metrics/") for name in names):
            return ["  only running sums of loss and metrics differ, whose last bits may depend on steps_per_call"]
        if "base_lr" in names and not self.settings:
            return ["  the base learning rate differs; a callback may have changed it, and verify runs no callbacks"]
        if not self.settings and not self.environment:
            same = "  settings, environment and the data as far as it was compared (of arrays above 4 MB 64 rows) are the same"
            return [f"{same}; so other data or the checkpoint changed, a callback did, or a computation was not deterministic"]
        return []


def verify(
    directory: str | os.PathLike[str], train_data: Any, model: Any = None, *, steps: Iterable[int] | None = None, **options: Any
) -> Verification:
    """Train again between the kept checkpoints of a run, and compare the bits of every array of the state.

    Settings come from the checkpoints where these have them.  Functions and other objects, of which checkpoints have only
    digests, are passed again.  Callbacks and evaluations are not run, and nothing is written to the folder.  Training stops at
    the first checkpoint with other bits.

    Args:
        directory: folder of checkpoints with at least two of them, such as `checkpoint=` of `fit`.  By default the last three
            are kept.
        train_data: the training data of the run, as in `fit`.
        model: model of the run.  Default: the graph in the checkpoint.  Functions and modules are not in checkpoints,
            and are passed.
        steps: steps of the checkpoints to compare, at least two.  Default: all that exist.
        **options: other arguments of `fit`, such as `loss`, `params`, an optax `optimizer`, `devices`.  They replace those in
            the checkpoint.  Arguments that do not affect the parameters, such as `checkpoint` and `eval_data`, are ignored.

    Returns:
        Verification: `same`, the first interval and arrays that differ, and what differs in settings, data,
            versions and devices.

    Raises:
        FileNotFoundError: the folder or a checkpoint does not exist.
        FormatError: a checkpoint is damaged.
        ValueError: there are fewer than two checkpoints, one has no fingerprint, an argument is needed, or the state does not
            match the model.
        TypeError: `steps` is not a sequence.

    Example:
        >>> import jfit, numpy as np, tempfile
        >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
        >>> net, folder = jfit.sym.SoftmaxOutput(net, name="softmax"), tempfile.mkdtemp()
        >>> _ = jfit.fit(net, (x, y), num_epoch=2, checkpoint=folder, progress=False)
        >>> jfit.verify(folder, (x, y)).same
        True
        >>> print(jfit.verify(folder, (x + 1, y)).settings[0][:14])
        data: data was
    """
    if steps is not None and (isinstance(steps, str) or not isinstance(steps, Iterable)):
        raise TypeError(f"verify: steps is {steps!r}; expected the steps of at least two checkpoints, such as [100, 200]")
    folders = _folders(Path(directory), steps)
    metas = [meta_of(folder) for folder in folders]
    intervals: list[tuple[int, int]] = []
    for (folder, start), (end, meta) in itertools.pairwise(zip(folders, metas, strict=True)):
        comparison = _Comparison(end, meta)
        _train(comparison, folder, start["position"], train_data, model, options)
        intervals.append((start["position"]["step"], meta["position"]["step"]))
        if not comparison.same:
            break
    return comparison.verification(str(directory), intervals)


def _folders(directory: Path, steps: Iterable[int] | None) -> list[Path]:
    if not directory.is_dir():
        raise FileNotFoundError(f"verify: there is no folder {directory}; expected the folder of the checkpoints of a run")
    folders = {step_of(folder): folder for folder in folders_of(directory)}
    if steps is not None:
        steps = list(steps)
        if missing := [step for step in steps if step not in folders]:
            exist = ", ".join(map(str, folders)) or "none"
            raise FileNotFoundError(f"verify: {directory} has no checkpoint of step {missing[0]}; its steps are: {exist}")
        folders = {step: folders[step] for step in sorted({*steps})}
    if len(folders) < 2:
        found = f"found {len(folders)} checkpoint{'' if len(folders) == 1 else 's'} in {directory}"
        raise ValueError(f"verify: {found}, expected at least 2; keep more with callbacks.checkpointing(folder, keep=...)")
    return list(folders.values())


def meta_of(folder: Path, caller: str = "verify") -> dict[str, Any]:
    """Return the meta of a checkpoint of `fit`; `caller` is named in errors.

    Raises:
        ValueError: the checkpoint has no fingerprint of its run.
    """
    meta = record_of(folder)["meta"]
    if not meta.get("fingerprint") or "position" not in meta:
        needed = "expected one of jfit.fit(..., checkpoint=folder) or Run.save"
        raise ValueError(f"{caller}: the checkpoint {folder} has no fingerprint of its run; {needed}")
    return meta


# ------------------------------------------------------------------------------------------------ arguments of fit
def model_of(meta: Mapping[str, Any], model: Any, caller: str = "verify") -> Any:
    """Return the model that was passed, else the graph in a checkpoint; `caller` is named in errors.

    Raises:
        ValueError: no model was passed, and the checkpoint has none.
    """
    if model is None and "symbol" not in meta:
        remedy = f"pass it, as in jfit.{caller}(folder, data, model, loss=..., params=...)"
        raise ValueError(f"{caller}: the model of this run, a function or a module, is not in its checkpoints; {remedy}")
    return load_json(meta["symbol"]) if model is None else model


def fit_arguments(meta: Mapping[str, Any], options: Mapping[str, Any], caller: str = "verify") -> dict[str, Any]:
    """Return the arguments of `fit` that a checkpoint has, replaced by `options`; `caller` is named in errors.

    Raises:
        ValueError: the checkpoint has only a digest of an argument that is not in `options`.
    """
    saved, missing = meta["fingerprint"], []
    names = [name for name in DECIDING if not name.startswith("optimizer")]
    values = {name: saved.get(name) for name in names} | (meta.get("arguments") or {})
    values = {name: value for name, value in values.items() if value is not None and name not in options}
    for name in ("num_epoch", "num_steps") if {"num_epoch", "num_steps"} & {*options} else ():
        values.pop(name, None)
    optimizer = str(saved.get("optimizer")).split(" ")[0]
    if optimizer in optim.OPTIMIZERS:
        values["optimizer"] = optimizer
        values["optimizer_params"] = dict(saved.get("optimizer_params") or {})
        if meta.get("learning_rate") is not None:
            values["optimizer_params"]["learning_rate"] = meta["learning_rate"]
    elif "optimizer" not in options and not saved.get("updates"):
        missing.append("optimizer")
    if "optimizer" in options:  # an object, or a name whose parameters are in options
        values.pop("optimizer_params", None)
    missing += [name for name, value in values.items() if _is_described(value) and name not in options]
    if missing:
        remedy = f"pass what was passed to fit, as in jfit.{caller}(folder, data, {missing[0]}=...)"
        raise ValueError(f"{caller}: the checkpoint has only a digest of {', '.join(missing)}; {remedy}")
    if values.get("class_weight"):
        values["class_weight"] = {int(name): weight for name, weight in values["class_weight"].items()}
    if values.get("reduce") == "psum" or "mesh" in options or "shard" in options:
        values.pop("reduce", None)
    count = int(str(saved.get("devices", "1")).split(" ")[0])
    if 1 < count <= jax.local_device_count() and not {"devices", "mesh", "shard"} & {*options}:
        values["devices"] = count
    return values | {name: value for name, value in options.items() if name not in IGNORED}


def _is_described(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_described, value.values()))
    if isinstance(value, list):
        return any(map(_is_described, value))
    return isinstance(value, str) and _DESCRIBED.fullmatch(value) is not None


def _train(
    comparison: _Comparison, folder: Path, position: Mapping[str, int], train_data: Any, model: Any, options: Mapping[str, Any]
) -> None:
    """Resume from the checkpoint in a folder, written at one position, and train to the position of the comparison."""
    meta, stop = comparison.meta, comparison.meta["position"]
    model, arguments = model_of(meta, model), fit_arguments(meta, options)
    if "num_steps" in arguments:
        arguments["num_steps"] = max(arguments["num_steps"], stop["step"])
    else:
        end = stop["epoch"] + bool(stop["batch"])
        arguments["num_epoch"] = max(arguments.get("num_epoch", end), end)
    # Dispatches are as long as those of the run if it saved every N steps, so that the last bits of the running sums of losses
    # are equal, too.
    every = math.gcd(*(at["step"] for at in (position, stop) if at["batch"])) or None
    events = ("epoch_end",) if every is None else ("epoch_end", "step")
    callback = Callback(on=comparison.on, events=events, every=every, name="verify")
    try:
        fit(model, train_data, **arguments, resume=folder, resume_with="any", callbacks=[callback], progress=False)
    except (ValueError, TypeError) as error:
        trained = f"verify trained from step {position['step']} with the checkpoint's {', '.join(sorted(arguments))}"
        error.add_note(f"jfit: raised while {trained}; pass what was an object, such as an optimizer, as to fit")
        raise


# ------------------------------------------------------------------------------------------------ comparison
class _Comparison:
    """Compares the state of a run with a checkpoint when it gets there, and stops it."""

    def __init__(self, folder: Path, meta: Mapping[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self.leaves, self.differences, self.changes = 0, [], []
        self.reached = False

    @property
    def same(self) -> bool:
        return self.reached and not self.differences

    def on(self, event: Event, state: Any) -> Any:
        self.changes = self.changes or changes_of(self.meta["fingerprint"], event.run.meta()["fingerprint"])
        position, end = event.run.position, self.meta["position"]
        if position == end and not self.reached:
            expected = whole(read(self.folder)).arrays[TENSORS]
            self.leaves, self.differences = len(expected), _differences(expected, arrays_of(event.run.snapshot())[0])
            self.reached = True
        if self.reached or position["step"] > end["step"]:
            event.run.stop("verify: the checkpoint was compared, or its step is missing")
        return state

    def verification(self, directory: str, intervals: list[tuple[int, int]]) -> Verification:
        settings = [text for name, text in self.changes if name not in ENVIRONMENT]
        environment = [text for name, text in self.changes if name in ENVIRONMENT]
        found = self.leaves, self.differences, settings, environment, not self.reached
        return Verification(directory, self.same, intervals, *found)


def _differences(expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> list[LeafDifference]:
    differences = []
    for name in sorted({*expected, *actual}, key=lambda name: (not name.startswith("params/"), name)):
        old, new = expected.get(name), actual.get(name)
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            size = max(x.size for x in (old, new) if x is not None)
            differences.append(LeafDifference(name, size, size, math.nan))
        elif old.tobytes() != new.tobytes():
            differences.append(_difference(name, old, new))
    return differences


def _difference(name: str, old: np.ndarray, new: np.ndarray) -> LeafDifference:
    width = old.dtype.itemsize
    values = [np.frombuffer(x.tobytes(), np.uint8).reshape(-1, width) for x in (old, new)]
    count = int((values[0] != values[1]).any(axis=1).sum())
    with np.errstate(invalid="ignore"):
        maximum = np.abs(old.astype(np.float64) - new.astype(np.float64)).max()
    return LeafDifference(name, count, old.size, float(maximum))
