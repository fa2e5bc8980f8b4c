"""Batches in jobs of several processes: agreement about the batches of streams.

A stream yields the rows of its own process: the global batch is the rows of all processes, by rank.  Before a batch of a stream
is used, the processes tell each other its number of rows, shapes and dtypes, on the threads that prepare batches, ahead of
training: of several batches at a time, if they are read quickly.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jfit.data import ArrayData, Batch, StreamData
from jfit.data.batch import on_host, pad_rows, rows, wrapped_rows
from jfit.data.positions import Exhausted
from jfit.distributed import exchange, job, rank
from jfit.distributed.errors import JobError
from jfit.feed.batch_sizes import MIXED_ROWS
from jfit.lowering.model import Plan

_MOST, _QUICKLY = 4, 0.02  # batches that processes agree about at a time, and seconds in which these are read
_numbers = itertools.count()  # of the passes over streams, which all processes read in the same order


class StreamBatch(NamedTuple):
    """A batch of a stream; in a job, after the processes have agreed about it.

    Attributes:
        batch: as many rows as the largest batch of the processes; rows that this process did not have have weight 0.
        own: number of rows that this process had, 0 after its stream has ended.
        count: number of rows of all processes.
        filled: number of the last of the `own` rows with which a data iterator filled its last batch, see `wrapped_rows`.
        padded: rank of a process that had fewer rows than others, or None.
    """

    batch: Batch
    own: int
    count: int
    filled: int = 0
    padded: int | None = None


class StreamAgreement:
    """Agreement of the processes of a job about the batches of one pass over their streams.

    The pass ends when the streams of all processes have ended: a process whose stream has ended before goes on with rows of
    weight 0.

    Args:
        axes: input name -> batch axis, for inputs whose batch axis is not 0.
        what: what the batches are for, such as "training".
    """

    def __init__(self, axes: Mapping[str, int], what: str) -> None:
        self._axes, self._name = axes, f"batches of {what}, pass {next(_numbers)}"
        self._read: collections.deque[Batch | None] = collections.deque()  # not yielded yet; None: the end of the stream
        self._most = 1  # batches to read before the next agreement
        self._failure: Exception | None = None  # of the source, after what is in `_read`
        self._last: Batch | None = None  # a batch whose rows are repeated after the end of the stream
        self._waits = False  # whether this process waits for the others
        self._since: float | None = None  # when it last did

    def batches(self, source: Iterator[Batch]) -> Generator[StreamBatch]:
        """Yield the batches of this process until the streams of all have ended.

        Raises:
            ValueError: the batches of two processes differ in names, shapes or dtypes.
            JobError: another process reads no further, because it failed.
        """
        batches = self._batches(source)
        next(batches)  # goes into its `try`: the others are also told if it is closed before the first batch
        return batches

    def _batches(self, source: Iterator[Batch]) -> Generator[Any]:
        try:
            yield None
            while True:
                self._fill(source)
                answers = self._exchange([self._described(batch) for batch in self._read], self._name)
                if None in answers:
                    raise JobError(f"rank {answers.index(None)} has stopped to read its data")
                # After the end of its stream, a process agrees to any number of batches of the others.
                count = min((len(answer) for answer in answers if answer[-1] is not None), default=_MOST)
                for number in range(count):
                    described = [answer[min(number, len(answer) - 1)] for answer in answers]
                    if not any(described):
                        return
                    self._check(described)
                    yield self._padded(None if self._read[0] is None else self._read.popleft(), described)
        except GeneratorExit:
            # Training ended early, in all processes at the same step; some have read one batch more than others, and wait.
            if (current := job.current()) is not None:
                with contextlib.suppress(JobError):
                    current.channel.post(self._name, None)

    def _fill(self, source: Iterator[Batch]) -> None:
        """Read batches: one, and more where that has not taken long, as the first of them waits for the others."""
        begin = time.monotonic()
        while len(self._read) < self._most and not (self._read and self._read[-1] is None) and self._failure is None:
            try:
                self._read.append(self._next(source))
            except Exception as error:
                self._failure = error
        if self._failure is not None and not self._read:
            raise self._failure
        self._most = min(2 * self._most, _MOST) if time.monotonic() - begin < _QUICKLY else 1

    def agree_on_plan(self, plan: Plan) -> Plan:
        """Combine the plans of all processes, which may have tested them with different rows: padding needs all of them."""
        mine = [bool(plan.paddable), plan.coupled]
        answers = self._exchange(mine, f"{self._name}: plan")
        return agreed_plan(plan, answers)

    def own_seconds(self) -> float:
        """Seconds since this process last waited for the others; 0 while it waits for them."""
        if self._waits:
            return 0.0
        return math.inf if self._since is None else time.monotonic() - self._since

    def _exchange(self, value: Any, name: str) -> list[Any]:
        self._waits = True
        try:
            return exchange(value, name)
        finally:
            self._since, self._waits = time.monotonic(), False

    def _next(self, source: Iterator[Batch]) -> Batch | None:
        try:
            batch = next(source, None)
        except Exhausted as error:  # a resumed run continues after the end of the stream of this process
            if error.last is None:
                raise
            self._last, batch = error.last, None
        if batch is not None:
            self._last = batch = copied(on_host(batch))  # where its values can be checked before they are used
        return batch

    def _described(self, batch: Batch | None) -> dict[str, Any] | None:
        if batch is None:
            return None
        specs = {}
        for name, x in batch.inputs.items():
            axis, shape = self._axes.get(name, 0), list(np.shape(x))
            if axis is not None:
                shape[axis] = None
            specs[name] = [shape, str(x.dtype)]
        weights = batch.weight is not None or batch.metric_weight is not None
        return {"rows": rows(batch, self._axes), "specs": specs, "weights": weights}

    def _check(self, answers: list[dict[str, Any] | None]) -> None:
        first, usual = next((r, answer["specs"]) for r, answer in enumerate(answers) if answer)
        for other, answer in enumerate(answers):
            if answer is None or answer["specs"] == usual:
                continue
            expected, actual = _text(usual), _text(answer["specs"])
            raise ValueError(
                f"{self._name}: rank {other} of the job has a batch of {actual}, but rank {first} one of {expected}; the "
                "streams of all processes must yield the same inputs, with rows of the same shapes and dtypes"
            )

    def _padded(self, batch: Batch | None, answers: list[dict[str, Any] | None]) -> StreamBatch:
        counts = [0 if answer is None else answer["rows"] for answer in answers]
        size, own, last = max(counts), counts[rank()], self._last
        fewer = next((r for r, count in enumerate(counts) if count < size), None)
        weighted = fewer is not None or any(answer and answer["weights"] for answer in answers)
        if batch is None or last is None:
            if last is None:
                raise ValueError(
                    f"{self._name}: rank {rank()} has no batch; the stream of every process must yield at least one"
                )
            batch = Batch(last.inputs)
        filled = wrapped_rows(batch)  # before the batch gets row weights
        if weighted:
            batch = pad_rows(batch, size, self._axes, real=own)
        return StreamBatch(batch, own, sum(counts), filled, fewer)


def copied(batch: Batch) -> Batch:
    """Copy a batch of an iterator, which may write the next one into the same buffers."""
    copy = lambda x: np.array(x) if isinstance(x, np.ndarray) else x  # noqa: E731
    return Batch({name: copy(x) for name, x in batch.inputs.items()}, copy(batch.weight), copy(batch.metric_weight))


def fewer_message(agreed: StreamBatch, count: int, reason: str) -> str:
    """Error message for a batch of a stream that cannot be padded, of which one process has fewer rows than `count`."""
    return (
        f"rank {agreed.padded} of the job has fewer rows of a batch than the {count} rows of another rank, or its stream has "
        f"ended, and the batch cannot be padded: {reason or MIXED_ROWS}; let the streams of all processes yield as many "
        "batches, with equal numbers of rows"
    )


def agreed_plan(plan: Plan, answers: list[Any] | None = None) -> Plan:
    """Combine what the processes of a job found out about the rows of their first batches.

    Args:
        plan: the plan of this process.
        answers: [paddable, coupled] of each process; None: they are exchanged now.
    """
    answers = exchange([bool(plan.paddable), plan.coupled], "the plan of the model") if answers is None else answers
    coupled = next((reason for paddable, reason in answers if not paddable), None)
    if coupled is None or not plan.paddable:
        return plan
    return plan._replace(paddable=False, coupled=coupled)


def check_alike(data: ArrayData | StreamData, what: str = "training data") -> None:
    """In a job, check that all processes pass arrays, or all iterables, with the same names and shapes.

    Raises:
        ValueError: a process differs from rank 0; the message names its rank.
    """
    mine: Any = "an iterable"
    if isinstance(data, ArrayData):
        mine = ", ".join(f"{name!r} {array.shape} {array.dtype}" for name, array in data.arrays.items())
        mine = f"arrays {mine}{'' if data.weight is None else ' with row weights'}"
    answers = exchange(mine, what)
    other = next((r for r, answer in enumerate(answers) if answer != answers[0]), None)
    if other is not None:
        raise ValueError(
            f"the {what} of rank {other} of the job is {answers[other]}, but that of rank 0 is {answers[0]}; all processes "
            "pass the same arrays, of which each reads the rows of its own devices, or each passes an iterable of its own rows"
        )


def num_batches_of(data: ArrayData | StreamData, batch_size: int) -> int | None:
    """Return the number of batches per epoch; of the streams of a job, the largest, or None if one is not known."""
    count = data.num_batches(batch_size)
    if job.current() is None or isinstance(data, ArrayData):
        return count
    counts = exchange(count, "the number of batches per epoch")
    return None if any(c is None for c in counts) else max(counts)


def _text(specs: Mapping[str, Any]) -> str:
    sized = {name: tuple("rows" if n is None else n for n in shape) for name, (shape, _) in specs.items()}
    return ", ".join(f"{name!r} ({', '.join(map(str, sized[name]))}) {dtype}" for name, (_, dtype) in specs.items())
