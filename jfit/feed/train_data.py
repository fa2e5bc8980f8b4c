"""The training data of `fit`: row weights by class, rows for `validation_split`, and positions of iterators in checkpoints."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any

from jfit.checkpoints.fingerprint import sample
from jfit.data import ArrayData, StreamData
from jfit.data.weights import ClassWeights
from jfit.distributed import exchange, num_processes, rank
from jfit.feed.batch_sizes import BatchSizes
from jfit.lowering.model import Model

_BY_RANK = "__by_rank__"  # key of a position: the positions of the streams of all processes of a job
COPY_BYTES = 64 << 20  # arrays of the user of at most this size are copied, if they stay on the host


def split_rows(data: ArrayData | StreamData, fraction: float) -> tuple[ArrayData, ArrayData]:
    """Split arrays into training data and the last rows, as Keras does: rows - floor(rows * (1 - fraction)) of them.

    Args:
        data: the training data of `fit`.
        fraction: the argument `validation_split` of `fit`.

    Returns:
        (training data, evaluation data), views of the arrays.

    Raises:
        ValueError: the data is not in arrays, or one of the parts has no rows.
    """
    if not isinstance(data, ArrayData):
        raise ValueError(
            "validation_split= takes the last rows of arrays, but the training data is an iterable: pass eval_data"
        )
    count = math.floor(data.num_rows * (1 - fraction))
    held_back = data.part(slice(count, None))
    held_back.steps_per_epoch = None  # all of its rows are evaluated
    return data.part(slice(0, count)), held_back


def unshared(data: ArrayData | StreamData) -> ArrayData | StreamData:
    """Copy the arrays that a run reads batch by batch while the user may write to them, if they have at most 64 MiB in all.

    Returns:
        A shallow copy of `ArrayData` with copies of its arrays; other data, and larger arrays, unchanged (see `ArrayWatch`).
    """
    shared = _shared(data)
    if not isinstance(data, ArrayData) or not shared or sum(data.arrays[name].nbytes for name in shared) > COPY_BYTES:
        return data
    result = copy.copy(data)
    result.arrays = {name: array.copy() if name in shared else array for name, array in data.arrays.items()}
    result.private = {*data.private, *shared}
    return result


def _shared(data: ArrayData | StreamData | None) -> list[str]:
    return [name for name in data.arrays if name not in data.private] if isinstance(data, ArrayData) else []


class ArrayWatch:
    """Warn if arrays that a run reads batch by batch are changed during the training, by digests of samples of their rows.

    Args:
        data: the training data, or None.  Arrays that nobody else writes to, memory maps and streams are not looked at.
    """

    def __init__(self, data: ArrayData | StreamData | None) -> None:
        self._arrays = {name: data.arrays[name] for name in _shared(data)} if isinstance(data, ArrayData) else {}
        self._digests = {name: sample(array) for name, array in self._arrays.items()}

    def check(self, epoch: int | None) -> None:
        """Warn of the arrays that were changed since the last call; `epoch` is the number of the epoch that has ended."""
        for name, array in self._arrays.items():
            now = sample(array)
            if now != self._digests[name]:
                self._digests[name] = now
                problem = f"the array of input {name!r} was changed before the end of epoch {epoch}, and training reads it"
                warnings.warn(f"{problem}, so the run cannot be repeated; pass a copy (x.copy())", stacklevel=2)


def add_class_weights(
    model: Model, data: ArrayData | StreamData, class_weight: Mapping[int, float], passed: Any = None
) -> ArrayData | StreamData:
    """Multiply the row weights of training data by the weights of the classes of the rows.

    Args:
        model: the `Model`, which must have one label, a class.
        data: the training data.
        class_weight: the argument of `fit`.
        passed: the argument `train_data` of `fit`.

    Returns:
        The training data with these weights: arrays are a shallow copy, so that an `ArrayData` that the user passed stays the
        same.

    Raises:
        ValueError: the label is not a class, a class has no weight, or the user passed a `StreamData`.
    """
    if isinstance(data, StreamData) and data is passed:
        raise ValueError("class_weight= is passed with a StreamData, which would keep it in later runs; pass its source")
    outputs = [o for o in model.outputs if o.label is not None]
    if len({o.label for o in outputs}) != 1 or any(o.task == "values" for o in outputs):
        labels = ", ".join(model.labels) or "none"
        found = f"has the labels {labels}" if len(model.labels) != 1 else "estimates values (a regression)"
        raise ValueError(
            f"class_weight= needs one label per row that is a class, but the model {found}; pass row weights, (x, y, weight)"
        )
    weights = ClassWeights(class_weight, outputs[0].label or "", outputs[0].ignore_label)
    if isinstance(data, ArrayData):
        data = copy.copy(data)
        data.set_weight(weights.of_rows(data.whole(weights.label), data.weight))
    else:
        data.class_weights = weights
    return data


def data_meta(loop: Any) -> dict[str, Any]:
    """Return what the meta of a checkpoint says about the data of a `Loop`, or of no loop (None).

    Returns:
        dict with "data", the position that the stream, in a job those of all processes, had at the start of the epoch, and
        "batch_sizes", the `BatchSizes` before the current batch.  They are None for arrays, and "data" for iterators without a
        state that can be saved: a resumed run finds its batch by the numbers of epoch and batch.
    """
    if loop is None or not isinstance(loop.dispatcher.data, StreamData):
        return {"data": None, "batch_sizes": None}
    sizes = loop.dispatcher.batches.sizes_at(loop.epoch, loop.batch)
    position = loop.dispatcher.data.epoch_start(loop.epoch)
    if num_processes() > 1:  # each process has a stream of its own
        positions = exchange(position, "the positions of the streams")
        position = None if all(p is None for p in positions) else {_BY_RANK: positions}
    return {"data": position, "batch_sizes": list(sizes) if sizes.counts else None}


def restore_data(dispatcher: Any, epoch: int, batch: int, meta: Mapping[str, Any]) -> None:
    """Move the stream of a resumed run to the position that it had at the start of the epoch.

    If it has no position, and may yield other batches than before, one line is logged.

    Args:
        dispatcher: `ResidentDispatcher` or `StreamDispatcher`, which has the data.
        epoch: number of the epoch that is resumed.
        batch: number of the batch at which it is resumed.
        meta: what `data_meta` returned for the checkpoint.
    """
    data = dispatcher.data
    if not isinstance(data, StreamData):
        return
    if meta["batch_sizes"]:
        counts, sizes, largest = meta["batch_sizes"]
        dispatcher.batches.continue_with(BatchSizes(tuple(counts), tuple(sizes), largest))
    position = _own_position(meta["data"], batch)
    if position is not None:
        data.start_epoch(epoch, position)
    elif data.resumes_by_counting and (batch or not data.repeats_passes):
        logging.getLogger("jfit").warning(
            "resume: a %s has no position that a checkpoint can save, so epoch %d reads it again and skips the batches that "
            "were used; the results are those of an uninterrupted run only if it yields the same batches again (a shuffling "
            "loader may not; one with state_dict and load_state_dict resumes exactly)",
            type(data.source).__name__,
            epoch,
        )


def _own_position(position: Any | None, batch: int) -> Any | None:
    """Return the position of the stream of this process in a checkpoint; None if a job of another size has saved it."""
    positions = position[_BY_RANK] if isinstance(position, Mapping) and _BY_RANK in position else [position]
    if len(positions) == num_processes():
        return positions[rank()]
    if any(p is not None for p in positions):
        logging.getLogger("jfit").warning(
            "resume: the checkpoint has the positions of the streams of %d process(es), but this job has %d; each reads its "
            "stream of the epoch from the start and skips %d batches, so that some rows of this epoch are trained twice or not",
            len(positions),
            num_processes(),
            batch,
        )
    return None
