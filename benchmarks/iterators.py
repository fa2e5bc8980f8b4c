"""Time per image of `ImageRecords`, compared with torch's DataLoader doing the same work with Pillow.

    python -m benchmarks.iterators --markdown benchmarks/results/<machine>-images.md
    python -m benchmarks.iterators --quick                      # smoke test

Workloads: JPEGs of noise on smooth colours, quality 90, in one record file. `small`: 256 x 256, shorter side resized to 240;
`photo`: 500 x 375, resized to 256. Then a random crop of 224, half of them mirrored, (x - mean) / std, batches of
(32, 3, 224, 224) float32.

Legs (implementations compared): `jfit` resizes as MXNet does (two neighbours on each axis); `jfit_smooth` with Pillow's
antialiasing filter; `torch`, too, with Pillow: a map-style dataset over the same records, resize and crop, a float tensor,
normalized, collated.

Every leg keeps its workers through all rounds. In a round a leg first consumes the batches prefetched while others ran, and is
then timed: so the workers are equally busy at the start and at the end of the timed interval. CPU seconds include those of the
worker processes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks import measure

BATCH, AHEAD, CROP = 32, 2, 224
MEAN, STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)
WORKLOADS = {"small": ((256, 256), 240), "photo": ((375, 500), 256)}  # (height, width), shorter side
LEGS = ("jfit", "jfit_smooth", "torch")


def records(folder: Path, shape: tuple[int, int], count: int) -> Path:
    """Write a record file of `count` random JPEGs of this (height, width); returns its path."""
    from jfit.data.images import encode, resize
    from jfit.formats.records import IRHeader, RecordWriter, pack

    rng, path = np.random.default_rng(0), folder / f"{shape[0]}x{shape[1]}.rec"
    with RecordWriter(path) as file:
        for row in range(count):
            smooth = resize(rng.integers(0, 256, (12, 12, 3)).astype(np.uint8), shape[1], shape[0], 2)
            noisy = np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)
            file.write(pack(IRHeader(0, row, row, 0), encode(noisy, 90)))
    return path


def jfit_batches(path: Path, resize: int, workers: int, smooth: bool) -> Iterator[np.ndarray]:
    """Endless stream of batches of `ImageRecords`, (32, 3, 224, 224) float32."""
    from jfit.data import ImageRecords

    augment: dict[str, Any] = {
        "resize": resize,
        "rand_crop": True,
        "rand_mirror": True,
        "mean": MEAN,
        "std": STD,
        "antialias": smooth,
    }
    images = ImageRecords(path, (3, CROP, CROP), BATCH, shuffle=True, workers=workers, ahead=AHEAD * max(1, workers), **augment)
    while True:
        for batch in images:
            yield batch.data[0]
        images.reset()


def torch_batches(path: Path, resize: int, workers: int) -> Iterator[Any]:
    """Endless stream of batches of torch's DataLoader, (32, 3, 224, 224) float32."""
    import torch

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        cast(Any, Photos(path, resize)),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=AHEAD if workers else None,
        multiprocessing_context="forkserver" if workers else None,
    )
    while True:
        for images, _ in loader:
            yield images


class Photos:
    """torch's map-style dataset over a record file."""

    def __init__(self, path: Path, resize: int) -> None:
        from jfit.formats.records import record_offsets

        self.path, self.resize, self.offsets, self.reader = path, resize, record_offsets(path).tolist(), None

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> tuple[Any, float]:
        import io

        import torch
        from PIL import Image

        from jfit.formats.records import RecordReader, unpack

        self.reader = self.reader or RecordReader(self.path)  # opened separately in each worker
        self.reader.seek(self.offsets[row])
        record = self.reader.read()
        assert record is not None
        header, content = unpack(record)
        image = Image.open(io.BytesIO(content)).convert("RGB")
        side = self.resize / min(image.size)
        image = image.resize((int(image.width * side), int(image.height * side)), Image.Resampling.BILINEAR)
        x, y = random.randint(0, image.width - CROP), random.randint(0, image.height - CROP)
        image = image.crop((x, y, x + CROP, y + CROP))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float()
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        return tensor.sub_(mean).div_(std), header.label


def cpu_seconds() -> float:
    """CPU seconds of this process and of all its descendants that are alive."""
    total, open_, tick = time.process_time(), _children(os.getpid()), os.sysconf("SC_CLK_TCK")
    while open_:
        pid = open_.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / tick
        open_ += _children(pid)
    return total


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += map(int, task.read_text().split())
    return pids


def leg(name: str, path: Path, resize: int, workers: int) -> Iterator[Any]:
    """Endless stream of batches of a leg."""
    if name == "torch":
        return torch_batches(path, resize, workers)
    return jfit_batches(path, resize, workers, name == "jfit_smooth")


def measured(path: Path, resize: int, workers: int, rounds: int, batches: int) -> dict[str, list[tuple[float, float]]]:
    """Leg -> (CPU, wall) seconds per image of every round; each round starts with the next leg."""
    legs = {name: leg(name, path, resize, workers) for name in LEGS}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in LEGS}
    for stream in legs.values():
        next(stream)
    for r in range(rounds):
        for name in (*LEGS[r % len(LEGS) :], *LEGS[: r % len(LEGS)]):
            for _ in range(AHEAD * workers + 1):
                next(legs[name])
            cpu, wall = cpu_seconds(), time.perf_counter()
            for _ in range(batches):
                next(legs[name])
            seconds[name].append(((cpu_seconds() - cpu) / batches / BATCH, (time.perf_counter() - wall) / batches / BATCH))
        print(f"  {path.name}, {workers} workers: round {r + 1} of {rounds}", file=sys.stderr, flush=True)
    return seconds


def row(workload: str, workers: int, seconds: dict[str, list[tuple[float, float]]]) -> str:
    """A line of the table: CPU and wall ms per image, and the ratios of torch's CPU time to that of the jfit legs."""
    cells = [workload, str(workers)]
    for clock in (0, 1):
        cells += [f"{1000 * np.median([times[clock] for times in seconds[name]]):.2f}" for name in LEGS]
    for name in LEGS[:2]:
        ratios = [t[0] / j[0] for t, j in zip(seconds["torch"], seconds[name], strict=True)]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        cells.append(f"{middle:.2f} ({low:.2f}-{high:.2f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=8, help="timed batches of a leg in a round")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batches = 1, 1
    facts = measure.machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if name in ("numpy", "torch"))
    from PIL import __version__ as pillow_version

    lines = [
        "# Images",
        "",
        f"{facts['processor']}, {facts['cores']} cores; Python {facts['python']}, {versions}, Pillow {pillow_version}.  "
        f"`python -m benchmarks.iterators`, {options.rounds} rounds of {options.batches} batches of {BATCH}; medians.",
        "",
        "ms per image; ratios of torch's CPU time to jfit's (median and quartiles of the rounds):",
        "",
        "| images | workers | jfit, CPU | smooth | torch | jfit, wall | smooth | torch | torch : jfit | torch : smooth |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for workload, (shape, resize) in WORKLOADS.items():
            path = records(Path(folder), shape, 64 if options.quick else 256)
            for workers in (0, 1, 2):
                lines.append(row(workload, workers, measured(path, resize, workers, options.rounds, options.batches)))
    text = "\n".join(lines) + "\n"
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
