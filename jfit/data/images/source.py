"""Decode image records into the rows of a batch; read image lists (.lst).

This file must not import JAX: worker processes import it, see `worker.py`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.data.images.recipe import Recipe, decode_into, is_random, random_numbers
from jfit.formats.atomic import FormatError, open_file
from jfit.formats.records import RecordReader, unpack


class Job(NamedTuple):
    """Constant settings of a worker process.

    Attributes:
        path: record file (.rec).
        list_path: image list (.lst) whose labels replace those of the records, or None.
        label_width: number of labels per row.
        seed: seed of the augmentations.
        recipe: decoding and augmentation of an image.
    """

    path: str
    list_path: str | None
    label_width: int
    seed: int
    recipe: Recipe

    def data_shape(self) -> tuple[int, ...]:
        """Shape of one row of the batch: (channels, H, W), or (H, W, channels) for `channels_last`."""
        channels, height, width = self.recipe.data_shape
        return (height, width, channels) if self.recipe.channels_last else (channels, height, width)


class RowDecoder:
    """Decodes records into rows of a batch; each decoding process has one."""

    def __init__(self, job: Job) -> None:
        self.job, self._reader = job, RecordReader(job.path)
        self._labels = None if job.list_path is None else dict(read_list(job.list_path, labels=job.label_width))
        self._random = is_random(job.recipe)

    def decode(self, rows: Sequence[tuple[int, int]], epoch: int, data: np.ndarray, labels: np.ndarray) -> None:
        """Decode and augment records into `data` and `labels`.

        Args:
            rows: (row number, byte offset of its record) of each row.
            epoch: index of the epoch, for the random numbers.
            data: output array, (rows, *data_shape).
            labels: output array, (rows, label_width) float32.

        Raises:
            FormatError: a record is damaged or not an image record; the message names it.
        """
        job = self.job
        for place, (row, offset) in enumerate(rows):
            self._reader.seek(offset)
            record = self._reader.read()
            where = f"row {row}, byte {offset}"
            if record is None:
                raise FormatError(job.path, where, "it is the end of the file", "the index is of another file: rebuild it.")
            header, content = unpack(record, job.path, where)
            where = f"{where}, id {header.id}"
            rng = random_numbers(job.seed, epoch, row) if self._random else None
            decode_into(job.recipe, content, rng, data[place], job.path, where)
            labels[place] = self._label(header, where)

    def _label(self, header: Any, where: str) -> Any:
        if self._labels is not None:
            if header.id not in self._labels:
                problem = f"the image list {self.job.list_path} has no line for this id"
                raise FormatError(self.job.path, where, problem, "pass the list that the records were packed from.")
            return self._labels[header.id][0]
        width = self.job.label_width
        if (header.flag or 1) != width:
            problem = f"found {header.flag or 1} labels, label_width is {width}"
            raise FormatError(self.job.path, where, problem, "pass that label_width, or an image list with other labels.")
        return header.label

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def read_list(path: str | os.PathLike[str], labels: int | None = None) -> list[tuple[int, tuple[np.ndarray, str]]]:
    """Read an image list (.lst): lines of key, one or more labels and file name, separated by tabs.

    Args:
        path: a .lst file.
        labels: expected number of labels per line; None: at least 1.

    Returns:
        list of (key, (labels as (n,) float32, file name)), in the order of the lines.

    Raises:
        FormatError: a line has another form; the message names it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp() + "/a.lst")
        >>> _ = path.write_text("5\\t1.0\\tcat.jpg\\n")
        >>> read_list(path)[0][0], read_list(path)[0][1][1]
        (5, 'cat.jpg')
    """
    entries = []
    with io.TextIOWrapper(
        open_file(path), encoding="utf-8", errors="surrogateescape"
    ) as file:  # file names may have any encoding
        for number, line in enumerate(file, 1):
            parts = line.strip().split("\t")
            try:
                with np.errstate(over="raise"):
                    key, values = int(parts[0]), np.array([float(text) for text in parts[1:-1]]).astype(np.float32)
            except (ValueError, FloatingPointError):
                key, values = 0, np.zeros(0, np.float32)
            if not len(values) or labels not in (None, len(values)):
                expected = f"a number, {'labels' if labels is None else f'{labels} labels'} and a file name, separated by tabs"
                problem = f"found {line[:60]!r}, expected {expected}"
                raise FormatError(path, f"line {number}", problem, "correct the line or rebuild the list.")
            entries.append((key, (values, parts[-1])))
    return entries
