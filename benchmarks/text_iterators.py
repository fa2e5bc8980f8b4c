"""Speed of reading files into batches: CSVIter, LibSVMIter and MNISTIter against NumPy, pandas and scikit-learn.

    python -m benchmarks.text_iterators                        the table
    python -m benchmarks.text_iterators --rows 2000 --rounds 1 smoke test
    python -m benchmarks.text_iterators --markdown out.md      also write the printed table to a file

The files are generated. The legs (readers) of one file take turns; a leg reads every row of the file once, as batches of 256 or
as one array, as its library does. Times are CPU seconds of the process on one core, medians over the rounds. Every round makes
a new iterator, so nothing is cached between rounds, except in the legs named "second epoch".
"""

from __future__ import annotations

import argparse
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.measure import Epoch, interleave, machine, pin, summary

SIZE = 256


class Reader:
    """A leg of the benchmark: `read` reads all rows once and returns their number."""

    def __init__(self, read: Callable[[], int]) -> None:
        self.read = read

    def epoch(self) -> int:
        """Read the file once; returns the number of rows."""
        return self.read()


def make_files(folder: Path, rows: int) -> dict[str, Path]:
    """Write a CSV table of 30 numbers per row, one of 784, a LibSVM file of about 40 values per row, and MNIST images."""
    rng = np.random.default_rng(0)
    paths = {name: folder / name for name in ("table.csv", "pixels.csv", "sparse.libsvm", "images", "labels")}
    np.savetxt(paths["table.csv"], rng.normal(size=(rows, 30)), delimiter=",", fmt="%.6g")
    few = max(SIZE, rows // 10)
    pixels = rng.integers(0, 256, (few, 784)) * (rng.random((few, 784)) < 0.2)
    np.savetxt(paths["pixels.csv"], pixels, delimiter=",", fmt="%d")
    with open(paths["sparse.libsvm"], "w", encoding="ascii") as file:
        for k in range(rows):
            columns = np.flatnonzero(rng.random(1000) < 0.04)
            values = rng.random(len(columns))
            file.write(" ".join([str(k % 2), *(f"{c}:{v:.4f}" for c, v in zip(columns, values, strict=True))]) + "\n")
    images = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
    paths["images"].write_bytes(struct.pack(">HBB3I", 0, 8, 3, *images.shape) + images.tobytes())
    paths["labels"].write_bytes(struct.pack(">HBBI", 0, 8, 1, rows) + (np.arange(rows) % 10).astype(np.uint8).tobytes())
    return paths


def _rows(iterator: Any) -> int:
    """Consume the iterator; returns its number of rows, without padding rows."""
    return sum(len(b.label[0]) - b.pad for b in iterator)


def _again(iterator: Any) -> Callable[[], int]:
    """A reader of further epochs of one iterator, whose first epoch has been read."""

    def read() -> int:
        iterator.reset()
        return _rows(iterator)

    read()
    return read


def table_legs(path: Path, columns: int) -> dict[str, Reader]:
    """Readers of a CSV table."""
    from jfit.data import CSVIter

    make = lambda: CSVIter(path, (columns,), batch_size=SIZE)  # noqa: E731
    legs = {
        "jfit CSVIter": lambda: _rows(make()),
        "jfit CSVIter, second epoch": _again(make()),
        "numpy.loadtxt": lambda: len(np.loadtxt(path, np.float32, delimiter=",")),
    }
    try:
        import pandas

        legs["pandas.read_csv"] = lambda: len(pandas.read_csv(path, header=None, dtype=np.float32).to_numpy())
    except ImportError:
        print("pandas is not installed: left out")
    return {name: Reader(read) for name, read in legs.items()}


def sparse_legs(path: Path) -> dict[str, Reader]:
    """Readers of a LibSVM file."""
    from jfit.data import LibSVMIter

    make = lambda: LibSVMIter(path, (1000,), batch_size=SIZE)  # noqa: E731
    legs = {"jfit LibSVMIter": lambda: _rows(make()), "jfit LibSVMIter, second epoch": _again(make())}
    try:
        from sklearn.datasets import load_svmlight_file

        load: Any = load_svmlight_file
        legs["sklearn load_svmlight_file"] = lambda: load(str(path), n_features=1000, dtype=np.float32, zero_based=True)[
            0
        ].shape[0]
    except ImportError:
        print("scikit-learn is not installed: left out")
    return {name: Reader(read) for name, read in legs.items()}


def image_legs(paths: dict[str, Path], rows: int) -> dict[str, Reader]:
    """Readers of MNIST images, and for comparison NumPy batching arrays in memory."""
    from jfit.data import MNISTIter

    pixels = np.fromfile(paths["images"], np.uint8)[16:].reshape(rows, 1, 28, 28)
    order = np.random.default_rng(0).permutation(rows)

    def by_hand() -> int:
        batches = [pixels[order[k : k + SIZE]].astype(np.float32) / 256 for k in range(0, rows - SIZE + 1, SIZE)]
        return sum(map(len, batches))

    make = lambda: MNISTIter(paths["images"], paths["labels"], SIZE)  # noqa: E731
    legs = {
        "jfit MNISTIter": lambda: _rows(make()),
        "jfit MNISTIter, second epoch": _again(make()),
        "NumPy, arrays in memory": by_hand,
    }
    return {name: Reader(read) for name, read in legs.items()}


def lines(title: str, path: Path, epochs: dict[str, list[Epoch]]) -> list[str]:
    """The lines of the table for one file."""
    size, table = path.stat().st_size / 1e6, []
    first = np.array([e.cpu_s for e in next(iter(epochs.values()))])
    for name, measured in epochs.items():
        seconds = np.array([e.cpu_s for e in measured])
        ratio = summary(seconds / first)["median"]
        middle = summary(seconds)["median"]
        rows = measured[0].rows
        table.append(f"| {title} | {name} | {size / middle:,.0f} | {rows / middle:,.0f} | {ratio:.2f} |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    pin(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = make_files(Path(folder), options.rows)
        files = {
            "table, 30 numbers per row": (paths["table.csv"], table_legs(paths["table.csv"], 30)),
            "table, 784 pixels per row": (paths["pixels.csv"], table_legs(paths["pixels.csv"], 784)),
            "sparse, 40 of 1000 per row": (paths["sparse.libsvm"], sparse_legs(paths["sparse.libsvm"])),
            "images of 28 x 28": (paths["images"], image_legs(paths, options.rows)),
        }
        table = ["| file | reader | MB/s | rows/s | time, jfit's first = 1 |", "|---|---|---:|---:|---:|"]
        for title, (path, legs) in files.items():
            table += lines(title, path, interleave(cast(Any, legs), options.rounds))
    about = machine()
    text = "\n".join(
        [f"{about['processor']}, one core, Python {about['python']}, NumPy {about['versions']['numpy']}", "", *table]
    )
    print(text)
    if options.markdown:
        options.markdown.write_text(f"# Files to batches\n\n`python -m benchmarks.text_iterators`: {text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
