"""Program of a worker process: reads tasks from standard input, decodes images into memory shared with the parent process.

It is run by its path, so that neither the user's script nor JAX is imported: it imports NumPy, Pillow and a few files of jfit.
Tasks and answers are lines of JSON; answers are written to a pipe, whose file descriptor is the second argument.  It ends at
the end of its input, that is, when the parent closes the pipe or dies.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import traceback
import types
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


def main(handle: int, answers: int) -> None:
    """Read the settings from the first line of the input, then run one task per line until the end."""
    lines = iter(sys.stdin.buffer.readline, b"")
    setup = json.loads(next(lines, b"null"))
    if setup is None:
        return
    sys.path[:] = setup["path"]
    bare_packages()
    import numpy as np

    from jfit.data.images.recipe import Recipe
    from jfit.data.images.source import Job, RowDecoder

    output = os.fdopen(answers, "w")
    memory = mmap.mmap(handle, setup["bytes"])
    job = Job(**{**setup["job"], "recipe": Recipe(**setup["job"]["recipe"])})
    decoder: Any = None
    for line in lines:
        task = json.loads(line)
        try:
            decoder = decoder or RowDecoder(job)
            data = np.ndarray((task["count"], *job.data_shape()), job.recipe.dtype, memory, task["data"])
            labels = np.ndarray((task["count"], job.label_width), np.float32, memory, task["labels"])
            decoder.decode(task["rows"], task["epoch"], data, labels)
            answer: dict[str, Any] = {"done": task["count"]}
        except Exception as error:
            fields = [getattr(error, name, None) for name in ("path", "where", "problem", "remedy")]  # of a FormatError
            answer = {"format": fields} if all(isinstance(f, str) for f in fields) else {"error": traceback.format_exc()}
        output.write(json.dumps(answer) + "\n")
        output.flush()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
