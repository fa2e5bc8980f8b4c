"""The program of a worker process: reads jobs from its standard input, writes images into memory it shares with its parent.

It is run by its path, so that neither the user's script nor JAX is imported again: it needs numpy, Pillow and four files of
jfit.  Lines of JSON go both ways.  It ends when its input does, that is, when its parent closes it or dies.
"""

from __future__ import annotations

import json
import mmap
import sys
import traceback
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # the folder of jfit


def bare_packages() -> None:
    """Makes packages of jfit importable without running their `__init__`, which would import JAX."""
    for name in ("jfit", "jfit.data", "jfit.data.images", "jfit.formats"):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(ROOT.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package


def main(handle: int) -> None:
    """Answers jobs until there are no more; the first line is what does not change."""
    lines = iter(sys.stdin.buffer.readline, b"")
    setup = json.loads(next(lines, b"null"))
    if setup is None:
        return
    sys.path[:] = setup["path"]
    bare_packages()
    import numpy as np

    from jfit.data.images.recipe import Recipe
    from jfit.data.images.source import Filler, Job

    memory = mmap.mmap(handle, setup["bytes"])
    job = Job(**{**setup["job"], "recipe": Recipe(**setup["job"]["recipe"])})
    filler: Any = None
    for line in lines:
        task = json.loads(line)
        try:
            filler = filler or Filler(job)
            data = np.ndarray((task["count"], *job.data_shape()), job.recipe.dtype, memory, task["data"])
            labels = np.ndarray((task["count"], job.label_width), np.float32, memory, task["labels"])
            filler.fill(task["rows"], task["epoch"], data, labels)
            answer: dict[str, Any] = {"done": task["count"]}
        except Exception as error:
            said = [getattr(error, name, None) for name in ("path", "where", "problem", "remedy")]
            answer = {"format": said} if all(isinstance(part, str) for part in said) else {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
