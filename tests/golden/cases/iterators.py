"""Iterators over files and arrays for MXNet 1.9.1 and jfit: the files, the arguments, the sequences of calls."""

from __future__ import annotations

import gzip
import multiprocessing
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("one", "list", "dict", "nolabel", "multilabel", "3d", "nd", "dictlabel")
WALKS = 60


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype("uint8").tobytes()


def write_files(folder: Path) -> None:
    """The files that the cases read."""
    rng = np.random.RandomState(1)
    table = rng.randn(11, 6)
    (folder / "x.csv").write_text("".join(",".join(f"{v:.7g}" for v in row) + "\n" for row in table))
    (folder / "y.csv").write_text("".join(f"{i}\n" for i in range(11)))
    (folder / "y2.csv").write_text("".join(f"{i},{i * i}\n" for i in range(13)))
    (folder / "whole.csv").write_text("".join(f"{i},{-i * 1000003}\r\n" for i in range(6)))
    lines = []
    for i in range(97):
        columns = sorted(rng.choice(50, rng.randint(0, 9), replace=False))
        lines.append(" ".join([str(i % 7), *(f"{c}:{rng.randint(1, 99) / 8:g}" for c in columns)]) + "\n")
    (folder / "a.libsvm").write_text("".join(lines))
    (folder / "b.libsvm").write_text("".join(lines[:40]))
    (folder / "c.libsvm").write_text("".join(lines[40:]))
    images = rng.randint(0, 256, (103, 5, 6))
    (folder / "images").write_bytes(idx(images))
    (folder / "labels").write_bytes(idx(np.arange(103)))
    (folder / "images.gz").write_bytes(gzip.compress(idx(images), mtime=0))


# name -> (class, arguments); files are names in the folder of `write_files`
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "csv_wrapped": ("CSVIter", {"data_csv": "x.csv", "data_shape": (2, 3), "label_csv": "y.csv", "batch_size": 4}),
    "csv_kept": ("CSVIter", {"data_csv": "x.csv", "data_shape": (6,), "batch_size": 4, "round_batch": False}),
    "csv_even": ("CSVIter", {"data_csv": "x.csv", "data_shape": 6, "label_csv": "y.csv", "batch_size": 11}),
    "csv_labels": (
        "CSVIter",
        {
            "data_csv": "x.csv", "data_shape": (6,), "label_csv": "y2.csv", "label_shape": (2,), "batch_size": 5,
            "data_name": "d",
        },
    ),
    "csv_int32": ("CSVIter", {"data_csv": "whole.csv", "data_shape": (2,), "batch_size": 3, "dtype": "int32"}),
    "csv_int64": ("CSVIter", {"data_csv": "whole.csv", "data_shape": (2,), "batch_size": 3, "dtype": "int64"}),
    "libsvm_wrapped": ("LibSVMIter", {"data_libsvm": "a.libsvm", "data_shape": (50,), "batch_size": 40}),
    "libsvm_label_file": (
        "LibSVMIter",
        {
            "data_libsvm": "b.libsvm", "data_shape": (50,), "label_libsvm": "c.libsvm", "label_shape": (50,),
            "batch_size": 16,
        },
    ),
    **{
        f"libsvm_part{k}of{n}": (
            "LibSVMIter",
            {"data_libsvm": "a.libsvm", "data_shape": (50,), "batch_size": 1, "num_parts": n, "part_index": k},
        )
        for n in (2, 3, 5)
        for k in range(n)
    },
    **{
        f"libsvm_two_files_part{k}of3": (
            "LibSVMIter",
            {"data_libsvm": "b.libsvm;c.libsvm", "data_shape": (50,), "batch_size": 1, "num_parts": 3, "part_index": k},
        )
        for k in range(3)
    },
    "mnist": ("MNISTIter", {"image": "images", "label": "labels", "batch_size": 40, "shuffle": False}),
    "mnist_flat": ("MNISTIter", {"image": "images", "label": "labels", "batch_size": 50, "flat": True, "seed": 3}),
    "mnist_texts": ("MNISTIter", {"image": "images", "label": "labels", "batch_size": "50", "shuffle": "False"}),
    **{
        f"mnist_seed{s}": ("MNISTIter", {"image": "images", "label": "labels", "batch_size": 103, "seed": s})
        for s in (0, 1, 7, -1, 2**31 - 1)
    },
    **{
        f"mnist_part{k}of3": (
            "MNISTIter",
            {"image": "images", "label": "labels", "batch_size": 17, "seed": 5, "num_parts": 3, "part_index": k},
        )
        for k in range(3)
    },
}  # fmt: skip


def file_iterator(mx: Any, name: str, folder: Path) -> Any:
    """The iterator of a case."""
    kind, given = FILES[name]
    paths = ("data_csv", "label_csv", "data_libsvm", "label_libsvm", "image", "label")
    placed = {k: ";".join(str(folder / p) for p in v.split(";")) if k in paths else v for k, v in given.items()}
    if kind == "MNISTIter":
        placed["silent"] = True
    return getattr(mx.io, kind)(**placed)


def walk_files(mx: Any, name: str, folder: Path) -> dict[str, Any]:
    """What the first epoch of a case gives: descriptions, and (data, labels, pad) of each batch."""
    it = file_iterator(mx, name, folder)
    described = [[d.name, list(d.shape), np.dtype(d.dtype).name, d.layout] for d in it.provide_data + it.provide_label]
    found = [(b.data[0].asnumpy(), b.label[0].asnumpy(), b.pad) for b in it]
    # values of many rows are summed up; their order shows in the weights
    return {"described": described, "batches": [[_told(d), _told(y), pad] for d, y, pad in found]}


def _told(array: np.ndarray) -> Any:
    flat = array.astype("float64").ravel()
    return (
        flat.tolist() if flat.size <= 40 else [float(flat @ np.cos(np.arange(flat.size))), float(flat.sum()), list(array.shape)]
    )


def walk_arrays(mx: Any, number: int) -> dict[str, Any]:
    """What an NDArrayIter with drawn arguments gives over four epochs, some of them left before their end."""
    rng = np.random.RandomState(number)
    rows, size = int(rng.randint(1, 14)), int(rng.randint(1, 8))
    handle, kind = ("pad", "discard", "roll_over")[rng.randint(3)], KINDS[rng.randint(len(KINDS))]
    shuffle = bool(rng.randint(2))
    size = min(size, rows) if handle == "roll_over" else size  # MXNet fails where a batch is much larger than the data
    x, y = rng.randint(0, 99, (rows, 3)).astype(("float32", "float64", "int32")[rng.randint(3)]), np.arange(rows)
    data, label = {
        "one": (x, y),
        "list": ([x, x + 1], [y]),
        "dict": ({"z": x, "a": x * 2}, y),
        "nolabel": (x, None),
        "multilabel": (x, [y, y * 2]),
        "3d": (np.stack([x, x], 1), y.reshape(-1, 1)),
        "nd": (mx.nd.array(x, dtype="float32"), mx.nd.array(y, dtype="float32" if shuffle else "int32")),
        "dictlabel": (x, {"q": y}),
    }[kind]
    orders = [int(rng.randint(0, 6)) for _ in range(4)], [("reset", "hard_reset")[rng.randint(2)] for _ in range(4)]
    np.random.seed(number)
    it = mx.io.NDArrayIter(data, label, size, shuffle, handle)
    described = [[d.name, list(d.shape), np.dtype(d.dtype).name] for d in it.provide_data + it.provide_label]
    epochs: list[Any] = []
    for batches, restart in zip(*orders):  # noqa: B905  (the recorder runs where strict= is there, but not asked for)
        found: list[Any] = []
        for _ in range(batches):
            try:
                batch = it.next()
            except StopIteration:
                found.append("end")
                break
            found.append(
                [[a.asnumpy().tolist() for a in batch.data], [a.asnumpy().tolist() for a in batch.label or []], batch.pad]
            )
        epochs.append(found)
        getattr(it, restart)()
    return {"described": described, "epochs": epochs}


def _walk(what: str, name: Any, folder: str) -> Any:
    import mxnet as mx

    return walk_files(mx, name, Path(folder)) if what == "files" else walk_arrays(mx, name)


def recorded(mx: Any) -> dict[str, Any]:
    """Each case in a process of its own, because an error in a thread of MXNet's readers terminates the process."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=200) as pool:
        write_files(Path(folder))
        files = {name: pool.apply(_walk, ("files", name, folder)) for name in FILES}
        arrays = [pool.apply(_walk, ("arrays", number, folder)) for number in range(WALKS)]
    return {"io/iterators.json": {"files": files, "arrays": arrays}}
