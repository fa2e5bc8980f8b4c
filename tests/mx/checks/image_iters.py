"""Iterators over image records and files with MXNet's augmentations, and augmenters of images with boxes."""

import json
import os
import random
import struct
import tempfile
import zlib

import numpy as np
from recorded_checks import raised


def pixels(height, width, seed=0):
    y, x = np.mgrid[:height, :width]
    noise = np.random.RandomState(seed).randint(0, 40, (height, width, 3))
    smooth = np.stack([60 + 5 * x + 3 * y, 200 - 4 * x, 40 + 6 * y + 2 * x], axis=-1)
    return np.clip(smooth + noise, 0, 255).astype("uint8")


def levels(image):
    """An image times 1e-5: a check's tolerance of 2e-5 allows resized images to differ by one of 255 levels, as documented."""
    image = image.asnumpy() if hasattr(image, "asnumpy") else image
    return image.astype("float32") * np.float32(1.2e-5)


def png(array):
    """A PNG file of an (H, W, 3) RGB image."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = array.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in array)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def folder_of_images(count=5, sizes=((20, 24),), boxes=False):
    folder = tempfile.mkdtemp()
    entries = []
    for k in range(count):
        name = f"{k}.png"
        with open(os.path.join(folder, name), "wb") as file:
            file.write(png(pixels(*sizes[k % len(sizes)], seed=k)))
        label = [k]
        if boxes:
            more = [[k, 0.2, 0.1, 0.7, 0.8], [1, 0.5, 0.5, 0.9, 0.95], [2, 0.05, 0.3, 0.35, 0.6]][: 1 + k % 3]
            label = [4, 5, 20, 24, *np.ravel(more)]
        entries.append([np.array(label, "float32") if boxes else k, name])
    return folder, entries


def record_file(mx, count=5, boxes=False, sizes=((20, 24),)):
    folder, entries = folder_of_images(count, sizes, boxes)
    prefix = os.path.join(folder, "data")
    record = mx.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "w")
    for k, (label, name) in enumerate(entries):
        with open(os.path.join(folder, name), "rb") as file:
            record.write_idx(k, mx.recordio.pack(mx.recordio.IRHeader(0, label, k, 0), file.read()))
    record.close()
    return prefix


def first(mx, prefix, shape=(3, 16, 16), batch=4, **options):
    threads = 1 if mx.__name__ == "mxnet" else 0  # jfit: decode in this process
    options = {
        "path_imgrec": prefix + ".rec",
        "data_shape": shape,
        "batch_size": batch,
        "preprocess_threads": threads,
        **options,
    }
    return mx.io.ImageRecordIter(verbose=False, **options).next().data[0].asnumpy()


def check_record_augmentations(mx):
    prefix = record_file(mx)
    values = {}
    settings = {
        "plain": {},
        "mirror": {"mirror": True},
        "pad": {"pad": 3, "fill_value": 7, "data_shape": (3, 24, 28)},
        "pad, default value": {"pad": 2, "data_shape": (3, 24, 28)},
        "rotate 90": {"rotate": 90, "inter_method": 1},
        "rotate 30": {"rotate": 30, "fill_value": 0},
        "rotate 45, cubic": {"rotate": 45, "inter_method": 2},
        "scale 0.8": {"max_random_scale": 0.8, "min_random_scale": 0.8},
        "scale 1.5": {"max_random_scale": 1.5, "min_random_scale": 1.5},
        "scale and rotate": {"max_random_scale": 1.2, "min_random_scale": 1.2, "rotate": 15},
        "max_img_size": {"max_img_size": 18, "rotate": 10},
        "min_img_size": {"min_img_size": 26, "rotate": 10},
        "crop size": {"min_crop_size": 12, "max_crop_size": 12},
        "mean and std": {"mean_r": 10, "mean_g": 20, "mean_b": 30, "std_r": 2, "std_g": 3, "std_b": 4, "scale": 0.5},
        "rotate, mean": {"rotate": 60, "mean_r": 100, "fill_value": 127},
        "resize, rotate": {"resize": 18, "rotate": 20},
        "uint8": {"dtype": "uint8", "rotate": 20},
    }
    for name, options in settings.items():
        shape = options.pop("data_shape", (3, 16, 16))
        out = first(mx, prefix, shape, **options)
        values[name + ", shape"] = list(out.shape)
        values[name + ", dtype"] = str(out.dtype)
        values[name + ", mean of channels"] = levels(out.astype("float64").mean(axis=(0, 2, 3)))
        values[name] = levels(out[:2])[:, :, 1::3, 1::3]
    return values


def check_record_random(mx):
    prefix = record_file(mx)
    plain = first(mx, prefix)
    values = {}
    for name, options in {
        "rotation": {"max_rotate_angle": 20},
        "shear": {"max_shear_ratio": 0.3},
        "aspect": {"max_aspect_ratio": 0.2},
        "h": {"random_h": 30},
        "s": {"random_s": 40},
        "l": {"random_l": 40},
        "hsl": {"random_h": 36, "random_s": 50, "random_l": 50},
        "scale": {"max_random_scale": 1.3, "min_random_scale": 0.9},
        "all": {
            "max_rotate_angle": 10,
            "max_shear_ratio": 0.1,
            "random_l": 10,
            "rand_crop": True,
            "rand_mirror": True,
            "max_random_scale": 1.1,
            "min_random_scale": 1.0,
            "max_aspect_ratio": 0.1,
        },
    }.items():
        out = first(mx, prefix, **options)
        values[name + ", shape"] = list(out.shape)
        values[name + ", in range"] = bool(out.min() >= 0 and out.max() <= 255)
        values[name + ", differs"] = bool(np.abs(out - plain).max() > 1)
        values[name + ", near"] = bool(np.abs(out.mean() - plain.mean()) < 40)
    return values


def check_mean_image(mx):
    prefix = record_file(mx, 6)
    path = os.path.join(os.path.dirname(prefix), "mean.bin")
    before = os.path.exists(path)
    plain = first(mx, prefix, batch=6)
    out = first(mx, prefix, batch=6, mean_img=path)
    saved = mx.nd.load(path)
    again = first(mx, prefix, batch=6, mean_img=path)
    mirrored = first(mx, prefix, batch=6, mean_img=path, mirror=True)
    scaled = first(mx, prefix, batch=3, mean_img=path, scale=0.5)
    other = os.path.join(os.path.dirname(prefix), "other.bin")
    mx.nd.save(other, {"mean_img": mx.nd.ones((3, 16, 16)) * 100})
    return {
        "before": before,
        "written": os.path.exists(path),
        "keys": list(saved),
        "shape": list(saved["mean_img"].shape),
        "dtype": np.dtype(saved["mean_img"].dtype).name,
        "mean image": saved["mean_img"].asnumpy()[:, ::4, ::4],
        "mean of the rows": float(np.abs(saved["mean_img"].asnumpy() - plain.mean(axis=0)).max() < 1e-3),
        "first": out[:2, :, ::5, ::5],
        "again": bool(np.allclose(out, again, atol=1e-4)),
        "mirrored": mirrored[:2, :, ::5, ::5],
        "scaled": scaled[:2, :, ::5, ::5],
        "from a file": first(mx, prefix, batch=2, mean_img=other)[:, :, ::5, ::5],
        "with mean_r": first(mx, prefix, batch=2, mean_img=other, mean_r=50, std_g=2)[:, :, ::5, ::5],
    }


def det_label():
    return np.array([[0, 0.2, 0.1, 0.7, 0.8], [1, 0.5, 0.5, 0.9, 0.95], [2, 0.05, 0.3, 0.35, 0.6]], "float32")


def check_det_augmenters(mx):
    image = mx.nd.array(pixels(20, 24), dtype="uint8")
    flipped = mx.image.DetHorizontalFlipAug(1)(image, det_label())
    kept = mx.image.DetHorizontalFlipAug(0)(image, det_label())
    borrow = mx.image.DetBorrowAug(mx.image.ForceResizeAug((8, 6)))
    select = mx.image.DetRandomSelectAug([mx.image.DetHorizontalFlipAug(1)], skip_prob=1)
    crop, pad = mx.image.DetRandomCropAug(), mx.image.DetRandomPadAug()
    multi = mx.image.CreateMultiRandCropAugmenter(min_object_covered=[0.1, 0.5], area_range=[(0.1, 1.0), (0.3, 0.9)])
    values = {
        "flipped": flipped[0],
        "flipped label": flipped[1],
        "kept": kept[0],
        "kept label": kept[1],
        "borrow": list(borrow(image, det_label())[0].shape),
        "borrow dumps": borrow.dumps(),
        "select skipped": select(image, det_label())[1],
        "select dumps": select.dumps(),
        "empty select": mx.image.DetRandomSelectAug([])(image, det_label())[1],
        "one": len(mx.image.DetRandomSelectAug(crop).aug_list),
        "crop dumps": json.loads(crop.dumps()),
        "pad dumps": json.loads(pad.dumps()),
        "flip dumps": mx.image.DetHorizontalFlipAug(0.5).dumps(),
        "fixed ranges": list(mx.image.DetRandomCropAug(aspect_ratio_range=1, area_range=0.5).area_range),
        "enabled": [crop.enabled, pad.enabled],
        "multi": len(multi.aug_list),
        "multi skip": multi.skip_prob,
        "multi settings": [[a.min_object_covered, list(a.area_range), a.max_attempts] for a in multi.aug_list],
        "unequal lists": raised(mx.image.CreateMultiRandCropAugmenter, [0.1, 0.2], [(0.5, 1)] * 3),
        "base dumps": mx.image.DetAugmenter(a=mx.nd.ones(2), b=np.ones(1)).dumps(),
    }
    for number in range(8):
        random.seed(number)
        out, label = crop(image, det_label())
        values[f"crop {number}"], values[f"crop label {number}"] = list(out.shape), label
        values[f"cropped {number}"] = out.asnumpy()[::3, ::3].astype("int32")
        out, label = pad(image, det_label())
        values[f"pad {number}"], values[f"pad label {number}"] = list(out.shape), label
        values[f"padded {number}"] = out.asnumpy()[::5, ::5].astype("int32")
        out, label = multi(image, det_label())
        values[f"multi {number}"], values[f"multi label {number}"] = list(out.shape), label
        tight = mx.image.DetRandomCropAug(min_object_covered=0.9, area_range=(0.6, 0.9), min_eject_coverage=0.6, max_attempts=9)
        out, label = tight(image, det_label())
        values[f"tight {number}"], values[f"tight label {number}"] = list(out.shape), label
    return values


def check_create_det_augmenter(mx):
    def kinds(augs):
        return [f"{type(a).__name__} {type(getattr(a, 'augmenter', None)).__name__}" for a in augs]

    create = mx.image.CreateDetAugmenter
    full = create(
        (3, 12, 16),
        resize=14,
        rand_crop=0.5,
        rand_pad=0.5,
        rand_gray=0.1,
        rand_mirror=True,
        mean=True,
        std=True,
        brightness=0.1,
        contrast=0.1,
        saturation=0.1,
        pca_noise=0.1,
        hue=0.1,
    )
    values = {
        "default": kinds(create((3, 12, 16))),
        "full": kinds(full),
        "skip": [full[1].skip_prob, full[3].skip_prob],
        "pad areas": list(full[3].aug_list[0].area_range),
        "mean": kinds(create((3, 12, 16), mean=np.array([1.0, 2, 3]), rand_crop=1)),
        "crops": len(create((3, 12, 16), rand_crop=1, min_object_covered=[0.1, 0.3, 0.5])[0].aug_list),
    }
    augs = create((3, 12, 16), rand_crop=0.8, rand_pad=0.8, rand_mirror=True, mean=True, inter_method=1)
    for number in range(6):
        random.seed(number + 40)
        image, label = mx.nd.array(pixels(20, 24, number), dtype="uint8"), det_label()
        for aug in augs:
            image, label = aug(image, label)
        values[f"label {number}"] = label
        values[f"image {number}"] = levels(image)[::3, ::3]
    return values


def check_det_iter(mx):
    folder, entries = folder_of_images(5, ((20, 24), (18, 16)), boxes=True)
    iterator = mx.image.ImageDetIter(2, (3, 12, 16), imglist=entries, path_root=folder)
    first_labels = [b.label[0].asnumpy() for b in iterator]
    iterator.reset()
    batches = list(iterator)
    values = {
        "data shape": list(iterator.provide_data[0][1]),
        "label shape": list(iterator.provide_label[0][1]),
        "names": [iterator.provide_data[0][0], iterator.provide_label[0][0]],
        "label_shape": list(iterator.label_shape),
        "pads": [b.pad for b in batches],
        "batches": len(batches),
        "images": levels(batches[0].data[0])[:, :, ::4, ::4],
        "reshape to fewer": raised(iterator.reshape, None, (1, 5)),
        "reshape to other width": raised(iterator.reshape, None, (4, 6)),
        "reshape to 1 axis": raised(iterator.reshape, None, (4,)),
    }
    values |= {f"labels {k}": v for k, v in enumerate(first_labels)}
    other = mx.image.ImageDetIter(3, (3, 12, 16), imglist=entries[:1], path_root=folder, label_name="boxes", data_name="x")
    values["other"] = list(other.label_shape)
    values["synced"] = list(iterator.sync_label_shape(other).label_shape)
    values["synced back"] = list(iterator.label_shape)
    iterator.reshape((3, 8, 8), (6, 5))
    iterator.auglist = mx.image.CreateDetAugmenter((3, 8, 8))
    iterator.reset()
    batch = iterator.next()
    values |= {"reshaped": list(batch.data[0].shape), "reshaped label": batch.label[0]}
    discard = mx.image.ImageDetIter(2, (3, 12, 16), imglist=entries, path_root=folder, last_batch_handle="discard")
    values["discard"] = len(list(discard))
    prefix = record_file(mx, 5, boxes=True)
    record = mx.image.ImageDetIter(
        2,
        (3, 12, 16),
        path_imgrec=prefix + ".rec",
        path_imgidx=prefix + ".idx",
        aug_list=[mx.image.DetHorizontalFlipAug(1), mx.image.DetBorrowAug(mx.image.ForceResizeAug((16, 12), 1))],
    )
    batch = record.next()
    values |= {"record": levels(batch.data[0])[:, :, ::4, ::4], "record label": batch.label[0]}
    random.seed(3)
    shuffled = mx.image.ImageDetIter(2, (3, 12, 16), imglist=entries, path_root=folder, shuffle=True, rand_crop=0.5)
    values |= {f"shuffled {k}": b.label[0] for k, b in enumerate(shuffled)}
    values["bad label"] = raised(mx.image.ImageDetIter, 1, (3, 12, 16), imglist=[[1.0, "0.png"]], path_root=folder)
    values["empty box"] = raised(
        mx.image.ImageDetIter, 1, (3, 12, 16), path_root=folder, imglist=[[np.array([2, 5, 0, 0.5, 0.5, 0.4, 0.6]), "0.png"]]
    )
    values["bad width"] = raised(
        mx.image.ImageDetIter, 1, (3, 12, 16), path_root=folder, imglist=[[np.array([2, 5, 0, 0.5, 0.5, 0.6, 0.6, 1]), "0.png"]]
    )
    return values


def check_rotate(mx):
    image = mx.nd.array(pixels(12, 15).transpose(2, 0, 1).astype("float32"))
    both = mx.nd.stack(image, image * 0.5)
    values = {
        "30": mx.image.imrotate(image, 30),
        "-45": mx.image.imrotate(image, -45),
        "0": mx.image.imrotate(image, 0),
        "zoom in": mx.image.imrotate(image, 30, zoom_in=True),
        "zoom out": mx.image.imrotate(image, 100, zoom_out=True),
        "batch": mx.image.imrotate(both, mx.nd.array([10, 80])),
        "batch, one angle": mx.image.imrotate(both, 20, zoom_out=True),
        "fixed": mx.image.random_rotate(image, (15, 15)),
        "batch fixed": mx.image.random_rotate(both, (25, 25)),
        "uint8": raised(mx.image.imrotate, image.astype("uint8"), 3),
        "2 axes": raised(mx.image.imrotate, image[0], 3),
    }
    return {k: v[..., ::2, ::2] if hasattr(v, "shape") else v for k, v in values.items()}
