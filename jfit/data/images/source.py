"""Records of images, row by row: where each begins, what its labels are, and one row of a batch made from it.

Nothing here knows JAX, see `recipe`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.data.images.recipe import Recipe, draws, follow, random_numbers
from jfit.formats.atomic import FormatError
from jfit.formats.records import RecordReader, unpack


class Job(NamedTuple):
    """What a worker has to know once.

    Attributes:
        path: the record file.
        list_path: an image list whose labels replace those of the records, or None.
        label_width: labels of a row.
        seed: of the random numbers.
        recipe: what happens to an image.
    """

    path: str
    list_path: str | None
    label_width: int
    seed: int
    recipe: Recipe

    def data_shape(self) -> tuple[int, ...]:
        """Shape of one row of the batch."""
        channels, height, width = self.recipe.data_shape
        return (height, width, channels) if self.recipe.channels_last else (channels, height, width)


class Filler:
    """Makes rows of batches; one in each process that decodes."""

    def __init__(self, job: Job) -> None:
        self.job, self._reader = job, RecordReader(job.path)
        self._labels = None if job.list_path is None else dict(read_list(job.list_path, labels=job.label_width))
        self._random = draws(job.recipe)

    def fill(self, rows: Sequence[tuple[int, int]], epoch: int, data: np.ndarray, labels: np.ndarray) -> None:
        """Writes rows of a batch.

        Args:
            rows: (row number, byte at which its record begins) of each.
            epoch: index of the epoch, for the random numbers.
            data: (rows, *data_shape), written.
            labels: (rows, label_width) float32, written.

        Raises:
            FormatError: a record is no image record, or damaged; the message names it.
        """
        job = self.job
        for place, (row, offset) in enumerate(rows):
            self._reader.seek(offset)
            record = self._reader.read()
            where = f"row {row}, byte {offset}"
            if record is None:
                raise FormatError(job.path, where, "the file ends before it", "the index is of another file: make it again.")
            header, content = unpack(record, job.path, where)
            where = f"{where}, id {header.id}"
            rng = random_numbers(job.seed, epoch, row) if self._random else None
            follow(job.recipe, content, rng, data[place], job.path, where)
            labels[place] = self._label(header, where)

    def _label(self, header: Any, where: str) -> Any:
        if self._labels is not None:
            if header.id not in self._labels:
                problem = f"the image list {self.job.list_path} has no line for it"
                raise FormatError(self.job.path, where, problem, "give the list that the records were packed from.")
            return self._labels[header.id][0]
        width = self.job.label_width
        if (header.flag or 1) != width:
            problem = f"{header.flag or 1} labels, label_width is {width}"
            raise FormatError(self.job.path, where, problem, "pass label_width as packed, or an image list with other labels.")
        return header.label

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def read_list(path: str | os.PathLike[str], labels: int | None = None) -> list[tuple[int, tuple[np.ndarray, str]]]:
    """The lines of an image list: key, a tab, labels with tabs between them, a tab, the image's file name.

    Args:
        path: a .lst file.
        labels: how many a line must have; None: any number from 1 on.

    Returns:
        (key, ((labels,) float32, file name)) of each line, in its order.

    Raises:
        FormatError: a line is not that; the message names it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp() + "/a.lst")
        >>> _ = path.write_text("5\\t1.0\\tcat.jpg\\n")
        >>> read_list(path)[0][0], read_list(path)[0][1][1]
        (5, 'cat.jpg')
    """
    found = []
    with open(path, encoding="utf-8", errors="surrogateescape") as file:  # a file may be named in any encoding
        for number, line in enumerate(file, 1):
            parts = line.strip().split("\t")
            try:
                key, values = int(parts[0]), _float32(parts[1:-1])
            except ValueError:
                key, values = 0, np.zeros(0, np.float32)
            if not len(values) or labels not in (None, len(values)):
                needed = (
                    f"needed a number, {'labels' if labels is None else f'{labels} labels'} and a file name, with tabs between"
                )
                raise FormatError(path, f"line {number}", f"found {line[:60]!r}, {needed}", "make the list again.")
            found.append((key, (values, parts[-1])))
    return found


def _float32(texts: Sequence[str]) -> np.ndarray:
    """The numbers that are written; ValueError where one is none, or none that float32 can hold."""
    exact = np.array([float(text) for text in texts])
    with np.errstate(over="ignore"):
        found = exact.astype(np.float32)
    if (np.isinf(found) & np.isfinite(exact)).any():
        raise ValueError(texts)
    return found
