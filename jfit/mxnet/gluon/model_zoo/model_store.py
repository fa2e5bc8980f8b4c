"""Files with trained weights of the nets of the model zoo."""

from __future__ import annotations

import os
from pathlib import Path

from jfit.mxnet.errors import MissingFile, data_dir


def get_model_file(name: str, root: str | os.PathLike[str] | None = None) -> str:
    """Return the path of the file with the trained weights of a net; nothing is downloaded.

    Args:
        name: name of the net as for `get_model`, such as "resnet18_v1".
        root: folder with `<name>-<hash>.params`, as MXNet stores it, or `<name>.params`; None: `models` in the folder of the
            environment variable MXNET_HOME, by default `~/.mxnet`.

    Returns:
        str.

    Raises:
        MissingFile: there is no such file.

    Example:
        >>> import pathlib
        >>> pathlib.Path("alexnet.params").write_bytes(b"")
        0
        >>> get_model_file("alexnet", root=".")
        'alexnet.params'
    """
    folder = Path(root or Path(data_dir()) / "models").expanduser()
    files = [*sorted(folder.glob(f"{name}-????????.params")), *folder.glob(f"{name}.params")]
    if not files:
        hint = "copy it there from a computer that has it, or load other weights with load_parameters"
        raise MissingFile(f"{folder} has no file {name}-<hash>.params with trained weights, and jfit downloads none; {hint}")
    return str(files[0])
