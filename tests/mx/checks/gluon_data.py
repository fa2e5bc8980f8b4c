"""Checks of gluon.data: data sets, samplers, loaders, image data sets and transforms, and of gluon.utils."""

import os
import random
import struct
import tempfile
import warnings
import zlib

import numpy as np
from recorded_checks import raised


def png(image):
    """Return a PNG file of an image (height, width, 3) uint8."""
    rows = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def images(count, height=6, width=8, seed=0):
    """Return `count` random images (height, width, 3) uint8."""
    return np.random.RandomState(seed).randint(0, 256, (count, height, width, 3)).astype("uint8")


def shown(batch):
    """Return a sample or batch with arrays as lists, and their dtypes."""
    if isinstance(batch, (list, tuple)):
        return [shown(b) for b in batch]
    if hasattr(batch, "asnumpy"):
        batch = batch.asnumpy()
    return [str(batch.dtype), list(batch.shape), batch.tolist()] if isinstance(batch, (np.ndarray, np.generic)) else batch


def check_samplers(mx):
    data = mx.gluon.data
    np.random.seed(3)
    drawn = list(data.RandomSampler(7))
    out = {
        "sequential": list(data.SequentialSampler(4)),
        "start": list(data.SequentialSampler(3, 5)),
        "start keyword": list(data.SequentialSampler(length=2, start=1)),
        "sequential length": len(data.SequentialSampler(4, 9)),
        "random": [int(i) for i in drawn],
        "random length": len(data.RandomSampler(7)),
        "filter": list(data.FilterSampler(lambda x: x % 3 == 0, data.SimpleDataset(list(range(10))))),
        "filter length": len(data.FilterSampler(lambda x: x > 7, data.SimpleDataset(list(range(10))))),
        "filter is a sampler": isinstance(data.FilterSampler(bool, [1]), data.Sampler),
        "base iter": raised(lambda: list(data.Sampler())),
        "base length": raised(lambda: len(data.Sampler())),
    }
    again = data.RandomSampler(5)
    out["random passes"] = [[int(i) for i in again] for _ in range(3)]
    return out


def check_batch_sampler(mx):
    data = mx.gluon.data
    out = {}
    for last in ("keep", "discard", "rollover"):
        for size, batch in ((10, 3), (6, 3), (2, 3)):
            sampler = data.BatchSampler(data.SequentialSampler(size), batch, last)
            out[f"{last} {size} length"] = len(sampler)
            out[f"{last} {size}"] = [list(sampler) for _ in range(3)]
            out[f"{last} {size} length after"] = len(sampler)
    out["default"] = list(data.BatchSampler(data.SequentialSampler(3), 2))
    out["unknown"] = raised(lambda: list(data.BatchSampler(data.SequentialSampler(3), 2, "drop")))
    out["unknown length"] = raised(lambda: len(data.BatchSampler(data.SequentialSampler(3), 2, "drop")))
    return out


def check_interval_sampler(mx):
    kind = mx.gluon.contrib.data.IntervalSampler
    return {
        "rollover": list(kind(13, 3)),
        "no rollover": list(kind(13, interval=3, rollover=False)),
        "length": len(kind(13, 3)),
        "no rollover length": len(kind(13, 3, rollover=False)),
        "one": list(kind(3, 3)),
        "too long": raised(lambda: kind(3, 4)),
        "home": mx.gluon.contrib.data.sampler.IntervalSampler is kind,
    }


def check_datasets(mx):
    data = mx.gluon.data
    numbers = data.SimpleDataset(list(range(11)))
    pairs = data.ArrayDataset(list(range(5)), [10, 11, 12, 13, 14])
    shards = [numbers.shard(4, i) for i in range(4)]
    counted = []
    eager = numbers.transform(lambda x: counted.append(x) or x + 1, lazy=False)
    lazy = numbers.transform(lambda x: counted.append(x) or x + 2)
    out = {
        "length": len(numbers),
        "item": numbers[3],
        "negative": numbers[-1],
        "out of range": raised(lambda: numbers[11]),
        "iterates": list(numbers),
        "filter": list(numbers.filter(lambda x: x % 2)),
        "filter length": len(numbers.filter(lambda x: x > 100)),
        "shards": [list(s) for s in shards],
        "shard lengths": [len(s) for s in shards],
        "shard out of range": raised(lambda: numbers.shard(3, 3)),
        "shard negative": raised(lambda: numbers.shard(3, -1)),
        "shard none": raised(lambda: numbers.shard(0, -1)),
        "take": list(numbers.take(3)),
        "take more": len(numbers.take(100)),
        "take None": len(numbers.take(None)),
        "take 0": len(numbers.take(0)),
        "sample": list(numbers.sample(data.SequentialSampler(3, 4))),
        "sample a list": raised(lambda: numbers.sample([1, 2])),
        "transform": lazy[2],
        "eager": [eager[0], len(eager), type(eager).__name__],
        "calls": list(counted),
        "transform pairs": [pairs.transform(lambda x, y: x * y)[i] for i in range(3)],
        "transform first": [pairs.transform_first(lambda x: -x)[i] for i in range(3)],
        "transform first of one": numbers.transform_first(lambda x: -x)[4],
        "transform first eager": list(pairs.transform_first(lambda x: -x, lazy=False)),
        "chain": list(numbers.filter(lambda x: x > 4).transform(lambda x: 2 * x).take(3)),
        "base item": raised(lambda: data.Dataset()[0]),
        "base length": raised(lambda: len(data.Dataset())),
        "is a dataset": isinstance(numbers.take(1), data.Dataset),
    }
    return out


def check_array_dataset(mx):
    data = mx.gluon.data
    x = mx.nd.array(np.arange(12).reshape(4, 3))
    y = mx.nd.array([3, 2, 1, 0])
    both = data.ArrayDataset(x, y)
    out = {
        "sample": shown(both[1]),
        "type of the row": type(both[1][0]).__name__,
        "type of the label": type(both[1][1]).__name__,
        "tuple": isinstance(both[0], tuple),
        "length": len(both),
        "negative": shown(both[-1]),
        "slice": shown(both[1:3]),
        "one": shown(data.ArrayDataset(x)[2]),
        "one of 1 axis": shown(data.ArrayDataset(y)[2]),
        "numpy": shown(data.ArrayDataset(np.eye(2), ["a", "b"])[1]),
        "of datasets": shown(data.ArrayDataset(both, data.SimpleDataset([5, 6, 7, 8]))[0]),
        "unequal": raised(lambda: data.ArrayDataset([1, 2], [1])),
        "nothing": raised(lambda: data.ArrayDataset()),
        "out of range": raised(lambda: data.ArrayDataset([1, 2], [3, 4])[2]),
    }
    x[1, 0] = 99
    out["sees writes"] = shown(both[1][0])
    row = both[2][0]
    out["computes"] = shown(row * 2 + 1)
    out["int"] = shown(data.ArrayDataset(mx.nd.array([[1, 2]], dtype="int32"))[0])
    out["uint8"] = shown(data.ArrayDataset(mx.nd.array([[1, 2]], dtype="uint8"))[0])
    return out


def check_record_file(mx):
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "data.rec")
    writer = mx.recordio.MXIndexedRecordIO(os.path.join(folder, "data.idx"), path, "w")
    for key in (5, 2, 9):
        writer.write_idx(key, b"record %d" % key)
    writer.close()
    records = mx.gluon.data.RecordFileDataset(path)
    return {
        "length": len(records),
        "records": [records[i].decode() for i in (0, 2, 1)],
        "transform": records.transform(len)[0],
        "missing": raised(lambda: mx.gluon.data.RecordFileDataset(os.path.join(folder, "no.rec"))),
        "out of range": raised(lambda: records[3]),
    }


def check_batchify(mx):
    batchify = mx.gluon.data.dataloader.default_batchify_fn
    rows = [mx.nd.array([1, 2]), mx.nd.array([3, 4])]
    return {
        "arrays": shown(batchify(rows)),
        "numbers": shown(batchify([1, 2, 3])),
        "floats": shown(batchify([1.5, 2.5])),
        "float32": shown(batchify([np.float32(1), np.float32(2)])),
        "numpy": shown(batchify([np.ones(2, "uint8"), np.zeros(2, "uint8")])),
        "pairs": shown(batchify([(rows[0], 1), (rows[1], 0)])),
        "type of pairs": type(batchify([(1, 2), (3, 4)])).__name__,
        "nested": shown(batchify([((1, 2.5), 3), ((4, 5.5), 6)])),
        "lists": shown(batchify([[1, 2], [3, 4]])),
        "integers": shown(batchify([mx.nd.array([1], dtype="int32")] * 2)),
        "unequal": raised(lambda: shown(batchify([mx.nd.ones(2), mx.nd.ones(3)]))),
        "workers": shown(mx.gluon.data.dataloader.default_mp_batchify_fn([(1, 2.5), (3, 4.5)])),
    }


def check_loader(mx):
    data = mx.gluon.data
    x = np.random.RandomState(0).rand(10, 2).astype("float32")
    y = np.arange(10)
    pairs = data.ArrayDataset(x, y)
    out = {}
    for last in (None, "keep", "discard", "rollover"):
        loader = data.DataLoader(pairs, batch_size=4, last_batch=last)
        out[f"{last} length"] = len(loader)
        out[f"{last} shapes"] = [[b.shape for b in batch] for _ in range(2) for batch in loader]
        out[f"{last} labels"] = [shown(batch[1]) for _ in range(2) for batch in loader]
    np.random.seed(5)
    shuffled = data.DataLoader(pairs, 3, shuffle=True)
    out["shuffled"] = [shown(batch[1]) for _ in range(2) for batch in shuffled]
    out["type"] = [type(batch).__name__ for batch in data.DataLoader(pairs, 10)]
    out["types"] = [type(b).__name__ for batch in data.DataLoader(pairs, 10) for b in batch]
    out["sampler"] = [shown(b[1]) for b in data.DataLoader(pairs, 2, sampler=data.SequentialSampler(3, 4))]
    batches = data.BatchSampler(data.SequentialSampler(6), 3)
    out["batch sampler"] = [shown(b[1]) for b in data.DataLoader(pairs, batch_sampler=batches)]
    out["lists"] = [shown(b[1]) for b in data.DataLoader(pairs, batch_sampler=[[3, 1], [2]])]
    out["no batch size"] = raised(lambda: data.DataLoader(pairs))
    out["shuffle and sampler"] = raised(lambda: data.DataLoader(pairs, 2, True, data.SequentialSampler(3)))
    out["batch sampler and size"] = raised(lambda: data.DataLoader(pairs, 2, batch_sampler=batches))
    out["batch sampler and shuffle"] = raised(lambda: data.DataLoader(pairs, shuffle=True, batch_sampler=batches))
    out["batch sampler and last"] = raised(lambda: data.DataLoader(pairs, last_batch="keep", batch_sampler=batches))
    out["timeout"] = raised(lambda: data.DataLoader(pairs, 2, timeout=0))
    out["unknown last"] = raised(lambda: list(data.DataLoader(pairs, 4, last_batch="drop")))
    out["negative workers"] = len(list(data.DataLoader(pairs, 4, num_workers=-1)))
    return out


def check_loader_of(mx):
    data = mx.gluon.data
    x = np.arange(6, dtype="float32").reshape(3, 2)

    def first(loader):
        return shown(next(iter(loader)))

    return {
        "numpy": first(data.DataLoader(x, 2)),
        "ndarray": first(data.DataLoader(mx.nd.array(x), 2)),
        "ndarray of 1 axis": first(data.DataLoader(mx.nd.array([1, 2, 3]), 2)),
        "list": first(data.DataLoader([1, 2, 3], 2)),
        "list of pairs": first(data.DataLoader([(1, 2.0), (3, 4.0)], 2)),
        "strings": first(data.DataLoader(["a", "b"], 2, batchify_fn=list)),
        "batchify": first(data.DataLoader(x, 2, batchify_fn=lambda rows: mx.nd.array(rows).sum(axis=0))),
        "tuple of batchify": first(data.DataLoader([1, 2], 2, batchify_fn=lambda s: (mx.nd.array(s), len(s)))),
        "dict of batchify": sorted(next(iter(data.DataLoader([1, 2], 2, batchify_fn=lambda s: {"x": s, "n": len(s)})))),
        "transform": first(data.DataLoader(data.ArrayDataset(mx.nd.array(x), [0, 1, 2]).transform_first(lambda r: r * 2), 2)),
        "astype": first(data.DataLoader(data.SimpleDataset(mx.nd.array(x)).transform(lambda r: r.astype("int32")), 3)),
        "filter": len(data.DataLoader(data.SimpleDataset([1, 2, 3, 4]).filter(lambda v: v > 1), 2)),
        "error of a sample": raised(lambda: list(data.DataLoader(data.SimpleDataset([1, 0]).transform(lambda v: 1 // v), 2))),
        "threads": [shown(b) for b in data.DataLoader(x, 2, num_workers=2, thread_pool=True)],
        "threads twice": [
            shown(b) for loader in [data.DataLoader(x, 1, num_workers=2, thread_pool=True)] for b in (*loader, *loader)
        ],
        "threads, prefetch": [shown(b) for b in data.DataLoader(x, 2, num_workers=1, thread_pool=True, prefetch=0)],
        "threads, error": raised(
            lambda: list(
                data.DataLoader(data.SimpleDataset([1, 0]).transform(lambda v: 1 // v), 1, num_workers=2, thread_pool=True)
            )
        ),
        "pin memory": first(data.DataLoader(x, 2, pin_memory=True, pin_device_id=0)),
        "auto_reload": [len(list(loader)) for loader in [data.DataLoader(x, 2, auto_reload=True)] for _ in range(2)],
        "two iterators": [
            shown(b) for loader in [data.DataLoader([1, 2], 1)] for pair in zip(loader, loader, strict=True) for b in pair
        ],
    }


def check_image_folder(mx):
    folder = tempfile.mkdtemp()
    for name, count in (("dog", 2), ("cat", 1), ("bird", 0)):
        os.mkdir(os.path.join(folder, name))
        for k, image in enumerate(images(count, seed=len(name) + count)):
            with open(os.path.join(folder, name, f"{k}.png"), "wb") as file:
                file.write(png(image))
    for name in ("list.txt", os.path.join("cat", "notes.txt")):
        with open(os.path.join(folder, name), "w"):
            pass
    vision = mx.gluon.data.vision
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = vision.ImageFolderDataset(folder)
        gray = vision.ImageFolderDataset(folder, flag=0)
        transformed = vision.ImageFolderDataset(folder, transform=lambda x, y: (x.shape, y + 1))
    ignored = [str(w.message) for w in caught if "gnor" in str(w.message)]
    return {
        "synsets": found.synsets,
        "items": [(os.path.relpath(path, folder), label) for path, label in found.items],
        "length": len(found),
        "labels": [found[i][1] for i in range(3)],
        "image": found[1][0],
        "type": type(found[1][0]).__name__,
        "gray shape": gray[0][0].shape,
        "transform": transformed[2],
        "warnings": len(ignored),
        "batch": next(iter(mx.gluon.data.DataLoader(found, 3)))[0],
        "labels of the batch": next(iter(mx.gluon.data.DataLoader(found, 3)))[1],
        "missing": raised(lambda: vision.ImageFolderDataset(os.path.join(folder, "none"))),
    }


def check_image_records(mx):
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "images.rec")
    writer = mx.recordio.MXIndexedRecordIO(os.path.join(folder, "images.idx"), path, "w")
    for key, image in enumerate(images(3, 4, 4, seed=2)):
        label = [1.5, key] if key == 2 else key + 0.5
        header = mx.recordio.IRHeader(0, label, key, 0)
        writer.write_idx(key, mx.recordio.pack(header, png(image)))
    writer.close()
    found = mx.gluon.data.vision.ImageRecordDataset(path)
    gray = mx.gluon.data.vision.ImageRecordDataset(path, 0)
    double = mx.gluon.data.vision.ImageRecordDataset(path, transform=lambda x, y: (x.astype("float32") * 2, y))
    return {
        "length": len(found),
        "image": found[1][0],
        "label": found[1][1],
        "labels": found[2][1],
        "gray shape": gray[0][0].shape,
        "transform": double[0][0],
        "batch": next(iter(mx.gluon.data.DataLoader(double.take(2), 2)))[0],
    }


def check_transforms(mx):
    t = mx.gluon.data.vision.transforms
    raw = images(1)[0]
    x = mx.nd.array(raw, dtype="uint8")
    batch = mx.nd.array(images(2), dtype="uint8")
    f = x.astype("float32")
    tensor = t.ToTensor()(x)
    out = {
        "to tensor": tensor,
        "to tensor of a batch": t.ToTensor()(batch),
        "normalize": t.Normalize((0.1, 0.2, 0.3), (0.5, 1, 2))(tensor),
        "normalize by numbers": t.Normalize(0.5, 0.25)(tensor),
        "normalize by default": t.Normalize()(tensor),
        "cast": t.Cast("int32")(f),
        "cast by default": t.Cast()(x),
        "cast float16": t.Cast("float16")(x),
        "uint8 resize": t.Resize((4, 3))(x),
        "uint8 resize by one number": t.Resize(5)(x),
        "uint8 resize of the shorter side": t.Resize(3, keep_ratio=True)(x),
        "resize a batch": t.Resize((5, 4))(batch),
        "resize float": t.Resize((5, 4))(f),
        "nearest": t.Resize((5, 4), interpolation=0)(x),
        "uint8 resize, cubic": t.Resize((12, 12), interpolation=2)(x),
        "center crop": t.CenterCrop(4)(x),
        "center crop of a rectangle": t.CenterCrop((5, 2))(x),
        "center crop of more": t.CenterCrop((9, 9))(x).shape,
        "crop": t.CropResize(1, 2, 4, 3)(x),
        "crop a batch": t.CropResize(1, 2, 4, 3)(batch),
        "crop and resize": t.CropResize(x=1, y=2, width=4, height=3, size=(6, 6), interpolation=1)(x),
        "crop and resize float": t.CropResize(1, 0, 4, 4, 2, 1)(f),
        "normalize an image of 1 channel": t.Normalize(0.5, 2)(tensor[0:1]),
        "float images": t.ToTensor()(f).shape,
    }
    return out


def check_compose(mx):
    t = mx.gluon.data.vision.transforms
    x = mx.nd.array(images(1)[0], dtype="uint8")
    steps = [t.Resize((6, 5), interpolation=0), t.CenterCrop(4), t.ToTensor(), t.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    composed = t.Compose(steps)
    pairs = mx.gluon.data.ArrayDataset(mx.nd.array(images(3), dtype="uint8"), [1, 2, 3])
    loader = mx.gluon.data.DataLoader(pairs.transform_first(composed), 2)
    return {
        "value": composed(x),
        "length": len(composed),
        "types": [type(b).__name__ for b in composed],
        "one": t.Compose([t.ToTensor()])(x),
        "joined": t.Compose([t.ToTensor(), t.Normalize(0.5, 0.5)])(x),
        "none": len(t.Compose([])),
        "batches": [batch[0] for batch in loader],
        "labels": [shown(batch[1]) for batch in loader],
        "random apply 0": t.RandomApply(t.Cast("int32"), p=0)(x).dtype.__name__,
        "random apply 1": t.RandomApply(t.Cast("int32"), p=1)(x).dtype.__name__,
        "hybrid": isinstance(t.ToTensor(), mx.gluon.HybridBlock),
        "not hybrid": isinstance(t.CenterCrop(2), mx.gluon.HybridBlock),
        "symbol": t.ToTensor()(mx.sym.Variable("x")).list_arguments(),
    }


def check_random_transforms(mx):
    t = mx.gluon.data.vision.transforms
    x = mx.nd.array(images(1, 12, 16)[0], dtype="uint8")
    random.seed(1)
    crops = [t.RandomResizedCrop(5)(x) for _ in range(3)]
    wide = t.RandomResizedCrop((8, 4), scale=(0.5, 1), ratio=(1, 2), interpolation=0)(x)
    random.seed(2)
    applied = [t.RandomApply(t.Cast("int32"), p=0.5)(x).dtype.__name__ for _ in range(6)]
    flipped = {str(v) for v in (x, x[:, ::-1])}
    turned = {str(v) for v in (x, x[::-1])}
    f = x.astype("float32")
    return {
        "uint8 resize of a random crop": crops,
        "random resized crop of a rectangle": wide,
        "random apply": applied,
        "flip left right": all(str(t.RandomFlipLeftRight()(x)) in flipped for _ in range(4)),
        "flip top bottom": all(str(t.RandomFlipTopBottom()(x)) in turned for _ in range(4)),
        "brightness 0": t.RandomBrightness(0)(x),
        "contrast 0": t.RandomContrast(0)(x),
        "saturation 0": t.RandomSaturation(0)(x),
        "lighting 0": t.RandomLighting(0)(x),
        "hue shape": t.RandomHue(0.1)(x).shape,
        "brightness range": bool((t.RandomBrightness(0.5)(f).asnumpy() <= 1.5 * f.asnumpy() + 1e-3).all()),
        "color jitter shape": t.RandomColorJitter(0.1, 0.1, 0.1, 0.1)(x).shape,
        "lighting dtype": t.RandomLighting(0.1)(f).dtype.__name__,
    }


def check_rotation(mx):
    t = mx.gluon.data.vision.transforms
    x = mx.nd.array(np.random.RandomState(4).rand(3, 5, 7).astype("float32"))
    batch = mx.nd.array(np.random.RandomState(5).rand(2, 3, 5, 7).astype("float32"))
    np.random.seed(7)
    drawn = [t.RandomRotation((-20, 30))(x) for _ in range(2)]
    return {
        "rotate": t.Rotate(30)(x),
        "rotate back": t.Rotate(-45.5)(x),
        "zoom in": t.Rotate(30, zoom_in=True)(x),
        "zoom out": t.Rotate(110, zoom_out=True)(x),
        "batch": t.Rotate(20)(batch),
        "angles": mx.image.imrotate(batch, mx.nd.array([10, -100]), zoom_in=True),
        "random": drawn,
        "random batch": mx.image.random_rotate(batch, (-20, 30)),
        "never": t.RandomRotation((-20, 30), rotate_with_proba=0)(x),
        "uint8": raised(lambda: t.Rotate(30)(x.astype("uint8"))),
        "2 axes": raised(lambda: mx.image.imrotate(x[0], 30)),
        "wrong number of angles": raised(lambda: mx.image.imrotate(batch, mx.nd.array([1, 2, 3]))),
    }


def check_utils(mx):
    utils = mx.gluon.utils
    x = mx.nd.array(np.arange(20).reshape(10, 2))
    path = os.path.join(tempfile.mkdtemp(), "file")
    with open(path, "wb") as file:
        file.write(b"content")
    grads = [mx.nd.array([3.0, 0.0]), mx.nd.array([[4.0]])]
    small = [mx.nd.array([0.3, 0.4])]
    return {
        "split": [p.asnumpy() for p in utils.split_data(x, 5)],
        "uneven": [p.shape for p in utils.split_data(x, 3, even_split=False)],
        "axis 1": [p.asnumpy() for p in utils.split_data(x, 2, batch_axis=1)],
        "not even": raised(lambda: utils.split_data(x, 3)),
        "one slice": [p.shape for p in utils.split_data(x, 1)],
        "load": [p.shape for p in utils.split_and_load(x, [mx.cpu(0), mx.cpu(1)])],
        "contexts": [str(p.context) for p in utils.split_and_load(x, [mx.cpu(0), mx.cpu(1)])],
        "load one": [p.shape for p in utils.split_and_load(x, [mx.cpu(0)])],
        "load numpy": utils.split_and_load(np.ones((2, 2)), [mx.cpu(0), mx.cpu(1)]),
        "norm": float(utils.clip_global_norm(grads, 1.0)),
        "clipped": grads,
        "small norm": float(utils.clip_global_norm(small, 1.0)),
        "not clipped": small,
        "norm as an array": utils.clip_global_norm([mx.nd.array([3.0, 4.0])], 1.0, check_isfinite=False),
        "sha1": utils.check_sha1(path, "040f06fd774092478d450774f5ba30c5da78acc8"),
        "other sha1": utils.check_sha1(path, "0" * 40),
        "existing file": utils.download("http://localhost/file", path) == path,
        "existing file in a folder": utils.download("http://localhost/file", os.path.dirname(path)) == path,
        "known": [utils.shape_is_known(s) for s in ((2, 3), (2, 0), (), None)],
        "unknown -1": raised(lambda: utils.shape_is_known((2, -1))),
    }


def check_numpy_arrays(mx):
    data, transforms = mx.gluon.data, mx.gluon.data.vision.transforms

    def kinds(*arrays):
        return [[type(a).__name__, list(a.shape), str(a.dtype)] for a in arrays]

    mx.npx.set_np()
    try:
        x = mx.np.array(np.arange(12).reshape(4, 3).astype("float32"))
        image = mx.np.array(images(1)[0], dtype="uint8")
        parts = mx.gluon.utils.split_and_load(x, [mx.cpu(0), mx.cpu(0)])
        return {
            "array": kinds(*next(iter(data.DataLoader(data.ArrayDataset(x, np.arange(4)), 2)))),
            "values": next(iter(data.DataLoader(data.ArrayDataset(x, np.arange(4)), 2)))[0].asnumpy(),
            "numbers": kinds(next(iter(data.DataLoader([1, 2], 2)))),
            "to tensor": kinds(transforms.ToTensor()(image)),
            "composed": kinds(transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])(image)),
            "resize": kinds(transforms.Resize(4)(image)),
            "center crop": kinds(transforms.CenterCrop(3)(image)),
            "cast": kinds(transforms.Cast("int32")(image)),
            "split": kinds(*mx.gluon.utils.split_data(x, 2)),
            "load": kinds(*parts),
            "loaded": [p.asnumpy() for p in parts],
            "known": [mx.gluon.utils.shape_is_known(s) for s in ((), (2, 0), (2, -1))],
        }
    finally:
        mx.npx.reset_np()
