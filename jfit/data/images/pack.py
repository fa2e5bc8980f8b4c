"""Packs the images of a list into a record file: `python -m jfit.data.images.pack LIST ROOT PREFIX`.

LIST has a line for each image: key, a tab, labels with tabs between them, a tab, file name under ROOT.  PREFIX.rec and
PREFIX.idx appear when all images are packed, or not at all.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from jfit.data.images.codec import decode, encode, open_image, pixels, resize
from jfit.data.images.crops import short_size
from jfit.data.images.source import read_list
from jfit.formats.atomic import FormatError
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
    """Writes prefix.rec and prefix.idx, which MXNet and `ImageRecords` read.

    Args:
        path: the list.
        root: folder of the images.
        prefix: where the two files go.
        shorter_side: images whose shorter side is longer are made smaller (area interpolation) and saved as JPEG; 0 keeps the
            files as they are, byte for byte.
        quality: of those JPEGs.
        skip_broken: leave broken images out, with a line on standard error; else they end it.

    Returns:
        The number of records.

    Raises:
        FormatError: an image is broken, or a line of the list.
        FileNotFoundError: there is no such image.

    Example:
        >>> import tempfile, numpy as np
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "cat.png").write_bytes(encode(np.zeros((9, 8, 3), "uint8"), 9, ".png"))
        >>> _ = (folder / "a.lst").write_text("0\\t1.0\\tcat.png\\n")
        >>> pack_list(folder / "a.lst", folder, folder / "a")
        1
    """
    targets = [Path(f"{os.fspath(prefix)}{ending}") for ending in (".rec", ".idx")]
    halves = [target.with_name(f".{target.name}.{os.getpid()}.half") for target in targets]
    try:
        lines = []
        with RecordWriter(halves[0]) as file:
            for key, (labels, name) in read_list(path):
                try:
                    content = _content(Path(root) / name, shorter_side, quality)
                except FormatError as error:
                    if not skip_broken:
                        raise
                    print(f"left out: {error}", file=sys.stderr)
                    continue
                label = float(labels[0]) if len(labels) == 1 else labels
                lines.append(f"{key}\t{file.write(pack(IRHeader(0, label, key, 0), content))}\n")
        halves[1].write_text("".join(lines), encoding="utf-8")
        for half, target in zip(halves, targets, strict=True):
            os.replace(half, target)
    finally:
        for half in halves:
            half.unlink(missing_ok=True)
    return len(lines)


def _content(path: Path, shorter_side: int, quality: int) -> bytes:
    content = path.read_bytes()
    image = open_image(content, path)
    if shorter_side and min(image.size) > shorter_side:
        width, height = short_size(image.width, image.height, shorter_side)
        return encode(resize(decode(content, "RGB", path), width, height, 3), quality)
    pixels(image, None, path)  # damage is found now, not in a training
    return content


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m jfit.data.images.pack", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("list", help="key, labels and file name with tabs between, a line for each image")
    parser.add_argument("root", help="folder of the images")
    parser.add_argument("prefix", help="PREFIX.rec and PREFIX.idx are written")
    parser.add_argument("--resize", type=int, default=0, help="shorter side of images that are larger")
    parser.add_argument("--quality", type=int, default=95, help="of the JPEGs that are made then")
    parser.add_argument("--skip-broken", action="store_true", help="leave broken images out")
    given = parser.parse_args()
    try:
        count = pack_list(
            given.list,
            given.root,
            given.prefix,
            shorter_side=given.resize,
            quality=given.quality,
            skip_broken=given.skip_broken,
        )
    except (FormatError, OSError) as error:
        raise SystemExit(str(error)) from None
    print(f"{count} images in {given.prefix}.rec")


if __name__ == "__main__":
    main()
