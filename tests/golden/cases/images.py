"""Record files and image functions; the files lie in tests/golden/images.

photo.jpg               made by `photo`, in the tests' environment, which has an encoder
parts.rec, parts.idx    payloads that contain the magic number, written by MXNet
images.rec, images.idx  ten small PNG images with the labels 0 .. 9, written by MXNet
images.npz              those images; the results of ImageRecordIter, of mx.image's functions and of its augmenters
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent.parent / "images"
MAGIC = b"\x0a\x23\xd7\xce"
# Arguments of ImageRecordIter whose batches hold no random numbers.
BATCHES = {
    "plain": {},
    "normalised": {"mean_r": 10.0, "mean_g": 20.0, "mean_b": 30.0, "std_r": 2.0, "std_g": 3.0, "std_b": 4.0, "scale": 0.5},
    "mirrored": {"mirror": True},
    "framed": {"pad": 4, "fill_value": 7, "data_shape": (3, 28, 32)},
    "nearest": {"resize": 18, "inter_method": 0},
    "grown": {"data_shape": (3, 30, 30)},
    "grey": {"data_shape": (1, 16, 16)},
    "square": {"min_crop_size": 12, "max_crop_size": 12, "data_shape": (3, 12, 12)},
}
# Augmenters of mx.image by name, with the arguments of each.  They draw from Python's and numpy's generators, seeded with 5.
AUGMENTERS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "random crop": ("RandomCropAug", ((12, 10),)),
    "center crop": ("CenterCropAug", ((12, 10),)),
    "flip": ("HorizontalFlipAug", (0.7,)),
    "brightness": ("BrightnessJitterAug", (0.4,)),
    "contrast": ("ContrastJitterAug", (0.4,)),
    "saturation": ("SaturationJitterAug", (0.4,)),
    "hue": ("HueJitterAug", (0.4,)),
    "jitter": ("ColorJitterAug", (0.4, 0.3, 0.2)),
    "gray": ("RandomGrayAug", (0.7,)),
    "lighting": ("LightingAug", (0.1, np.array([55.46, 4.794, 1.148]), np.arange(9.0).reshape(3, 3) / 9)),
    "normalize": ("ColorNormalizeAug", (np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))),
}
SIZES = {"grow": (40, 34), "shrink": (11, 9)}


def payloads() -> list[bytes]:
    """Contents whose magic numbers lie at all places."""
    rng = random.Random(3)
    pieces = [MAGIC, MAGIC[:3], MAGIC[1:], MAGIC * 3, b"a", b"abcd"]
    return [b"".join(rng.choice([*pieces, bytes(rng.randint(0, 9))]) for _ in range(rng.randint(0, 6))) for _ in range(60)]


def pictures() -> list[np.ndarray]:
    """Ten smooth images of different sizes, red first."""
    rng = np.random.default_rng(0)
    found = []
    for k in range(10):
        y, x = np.mgrid[0 : 20 + k, 0 : 24 - k % 3]
        waves = [np.sin(x / rng.uniform(3, 9) + y / rng.uniform(3, 9) + rng.uniform(0, 6)) for _ in range(3)]
        found.append((np.stack(waves, axis=2) * 110 + 128).astype(np.uint8))
    return found


def png(image: np.ndarray) -> bytes:
    """An image file without loss, written without a library."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def photo() -> np.ndarray:
    """An image for a JPEG: waves, an edge, noise."""
    y, x = np.mgrid[0:48, 0:64]
    image = np.stack([np.sin(x / 7 + k) * np.cos(y / 5 - k) * 90 + 128 for k in range(3)], axis=2)
    image[:, 40:] += 60
    return np.clip(image + np.random.default_rng(1).normal(0, 6, image.shape), 0, 255).astype(np.uint8)


def smaller(values: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 to 255 as bytes."""
    return values.astype(np.uint8) if (values == values.astype(np.uint8)).all() else values


def record_files(mx: Any) -> None:
    writer = mx.recordio.MXIndexedRecordIO(str(FOLDER / "parts.idx"), str(FOLDER / "parts.rec"), "w")
    for key, content in enumerate(payloads()):
        writer.write_idx(key, content)
    writer.close()
    writer = mx.recordio.MXIndexedRecordIO(str(FOLDER / "images.idx"), str(FOLDER / "images.rec"), "w")
    for key, image in enumerate(pictures()):
        writer.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(0, float(key), key, 0), png(image)))
    writer.close()


def batches(mx: Any, found: dict[str, np.ndarray]) -> None:
    for name, given in BATCHES.items():
        arguments = {"data_shape": (3, 16, 16), **given}
        it = mx.io.ImageRecordIter(
            path_imgrec=str(FOLDER / "images.rec"), batch_size=2, preprocess_threads=1, verbose=False, **arguments
        )
        found[f"batch {name}"] = smaller(it.next().data[0].asnumpy()[1])


def functions(mx: Any, found: dict[str, np.ndarray]) -> None:
    image = mx.nd.array(pictures()[0], dtype="uint8")
    for name, (width, height) in SIZES.items():
        for interp in range(5):
            found[f"{name} {interp}"] = mx.image.imresize(image, width, height, interp).asnumpy()
    for kind in range(5):
        found[f"border {kind}"] = mx.image.copyMakeBorder(image, 1, 2, 3, 4, kind, values=(5.0, 6.0, 7.0)).asnumpy()
    found["photo"] = mx.image.imdecode((FOLDER / "photo.jpg").read_bytes()).asnumpy()
    found["photo grey"] = mx.image.imdecode((FOLDER / "photo.jpg").read_bytes(), flag=0).asnumpy()
    random.seed(5)
    boxes = [mx.image.random_size_crop(image, (8, 8), (0.1, 0.9), (0.5, 2.0), 0)[1] for _ in range(20)]
    boxes += [mx.image.random_crop(image, (9, 30), 0)[1] for _ in range(5)]
    found["boxes"] = np.array(boxes)


def augmenters(mx: Any, found: dict[str, np.ndarray]) -> None:
    for name, (kind, given) in AUGMENTERS.items():
        random.seed(5)
        np.random.seed(5)
        augmenter = getattr(mx.image, kind)(*given)
        image = mx.nd.array(pictures()[1], dtype="float32")
        found[f"augmenter {name}"] = np.stack([augmenter(image.copy()).asnumpy()[::2, ::2] for _ in range(3)])
        if not kind.startswith("ColorJitter"):
            found[f"dumps {name}"] = np.array(augmenter.dumps())


def image_iter(mx: Any, found: dict[str, np.ndarray]) -> None:
    for handle in ("pad", "discard", "roll_over"):
        random.seed(5)
        given = {"path_imgrec": str(FOLDER / "images.rec"), "path_imgidx": str(FOLDER / "images.idx")}
        it = mx.image.ImageIter(
            4, (3, 16, 16), shuffle=True, rand_crop=True, rand_mirror=True, last_batch_handle=handle, **given
        )
        seen = []
        for _ in range(3):
            for batch in it:
                seen.append(np.append(batch.label[0].asnumpy(), [batch.pad, batch.data[0].asnumpy().mean()]))
            it.reset()
        found[f"iter {handle}"] = np.array(seen)


def recorded(mx: Any) -> dict[str, Any]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    record_files(mx)
    found: dict[str, np.ndarray] = {}
    for part in (batches, functions, augmenters, image_iter):
        part(mx, found)
    return {"images/images.npz": found}
