"""Program of a worker process: reads tasks from a pipe, decodes images into memory shared with the parent process.

It is run by its path, so that neither the user's script nor JAX is imported: it imports NumPy, Pillow and a few files of jfit.
Tasks and answers are JSON; the file descriptor of the pipe is the second argument.  It ends when the parent closes the pipe or
dies.
"""

from __future__ import annotations

import json
import mmap
import sys
import traceback
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # the folder jfit/


def bare_packages() -> None:
    """Register jfit's packages as empty modules, because running their `__init__` would import JAX."""
    for name in ("jfit", "jfit.data", "jfit.data.images", "jfit.formats"):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(ROOT.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package


def main(handle: int, pipe: Connection) -> None:
    """Read the settings from the first message, then run one task per message until the end."""
    setup = json.loads(pipe.recv_bytes())
    sys.path[:] = setup["path"]
    bare_packages()
    import numpy as np

    from jfit.data.images.recipe import Recipe
    from jfit.data.images.source import Job, RowDecoder

    memory = mmap.mmap(handle, setup["bytes"])
    job = Job(**{**setup["job"], "recipe": Recipe(**setup["job"]["recipe"])})
    decoder: Any = None
    while True:
        task = json.loads(pipe.recv_bytes())
        try:
            decoder = decoder or RowDecoder(job)
            count, at = task["count"], task["at"]
            rows = np.ndarray((count, 2), np.int64, memory, at[0]).tolist()
            labels = np.ndarray((count, job.label_width), np.float32, memory, at[1])
            data = np.ndarray((count, *job.data_shape()), job.recipe.dtype, memory, at[2])
            decoder.decode(rows, task["epoch"], data, labels)
            answer: dict[str, Any] = {"done": count}
        except Exception as error:
            fields = [getattr(error, name, None) for name in ("path", "where", "problem", "remedy")]  # of a FormatError
            answer = {"format": fields} if all(isinstance(f, str) for f in fields) else {"error": traceback.format_exc()}
        pipe.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), Connection(int(sys.argv[2])))
    except (EOFError, ConnectionError, KeyboardInterrupt):
        sys.exit(0)
