"""Pack the images of a list into a record file: `python -m jfit.data.images.pack LIST ROOT PREFIX`.

LIST has one line per image: key, one or more labels and the file name relative to ROOT, separated by tabs.  PREFIX.rec and
PREFIX.idx are created only after all images have been packed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from jfit.data.images.codec import decode, encode, inside, open_image, pixels, resize
from jfit.data.images.crops import short_size
from jfit.data.images.source import read_list
from jfit.formats.atomic import FormatError, atomic_path, read_file
from jfit.formats.records import IRHeader, RecordWriter, pack


def pack_list(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str],
    prefix: str | os.PathLike[str],
    *,
    shorter_side: int = 0,
    quality: int = 95,
    skip_broken: bool = False,
) -> int:
    """Write the record file prefix.rec and its index prefix.idx, for MXNet and `ImageRecords`.

    Args:
        path: image list (.lst).
        root: folder of the images.
        prefix: path of the two files without their endings.
        shorter_side: images with a longer shorter side are resized to it (area interpolation) and encoded as JPEG; 0: all files
            are copied byte for byte.
        quality: quality of those JPEGs, 1 to 100.
        skip_broken: skip damaged images with a message on standard error, instead of raising an error.

    Returns:
        int: number of records.

    Raises:
        FormatError: an image or a line of the list is damaged.
        ValueError: a file name of the list is outside of `root`.
        FileNotFoundError: an image does not exist.

    Example:
        >>> import tempfile, numpy as np
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "cat.png").write_bytes(encode(np.zeros((9, 8, 3), "uint8"), 9, ".png"))
        >>> _ = (folder / "a.lst").write_text("0\\t1.0\\tcat.png\\n")
        >>> pack_list(folder / "a.lst", folder, folder / "a")
        1
    """
    lines = []
    record_file, index_file = (f"{os.fspath(prefix)}{ending}" for ending in (".rec", ".idx"))
    with atomic_path(index_file) as index, atomic_path(record_file) as record_path:
        with RecordWriter(record_path) as file:
            for key, (labels, name) in read_list(path):
                try:
                    content = _content(inside(root, name), shorter_side, quality)
                except FormatError as error:
                    if not skip_broken:
                        raise
                    print(f"skipped: {error}", file=sys.stderr)
                    continue
                label = float(labels[0]) if len(labels) == 1 else labels
                lines.append(f"{key}\t{file.write(pack(IRHeader(0, label, key, 0), content))}\n")
        index.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _content(path: Path, shorter_side: int, quality: int) -> bytes:
    content = read_file(path)
    image = open_image(content, path)
    if shorter_side and min(image.size) > shorter_side:
        width, height = short_size(image.width, image.height, shorter_side)
        return encode(resize(decode(content, "RGB", path), width, height, 3), quality)
    pixels(image, None, path)  # decode it once, to detect damage now and not during training
    return content


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m jfit.data.images.pack", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("list", help="image list: key, labels and file name separated by tabs, one line per image")
    parser.add_argument("root", help="folder of the images")
    parser.add_argument("prefix", help="path of the output files PREFIX.rec and PREFIX.idx")
    parser.add_argument("--resize", type=int, default=0, help="maximum length of the shorter side")
    parser.add_argument("--quality", type=int, default=95, help="JPEG quality of resized images")
    parser.add_argument("--skip-broken", action="store_true", help="skip damaged images")
    args = parser.parse_args()
    try:
        options = {"shorter_side": args.resize, "quality": args.quality, "skip_broken": args.skip_broken}
        count = pack_list(args.list, args.root, args.prefix, **options)
    except (FormatError, OSError) as error:
        raise SystemExit(str(error)) from None
    print(f"{count} images in {args.prefix}.rec")


if __name__ == "__main__":
    main()
