"""Record batches of iterators with MXNet 1.9.1: `python tests/record_iterators.py` writes tests/golden/io/iterators.json.

Runs in the environment of `record_golden`.  Each case of tests/cases/iterators.py runs in a process of its own, because an
error in a thread of MXNet's readers terminates the process.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import iterators  # noqa: E402


def record(what: str, name: Any, folder: str) -> Any:
    """One case, as MXNet runs it."""
    import mxnet as mx

    return iterators.walk_files(mx, name, Path(folder)) if what == "files" else iterators.walk_arrays(mx, name)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=200) as pool:
        iterators.write_files(Path(folder))
        files = {name: pool.apply(record, ("files", name, folder)) for name in iterators.FILES}
        arrays = [pool.apply(record, ("arrays", number, folder)) for number in range(iterators.WALKS)]
    text = json.dumps({"files": files, "arrays": arrays}, separators=(",", ":"))
    (HERE / "golden" / "io" / "iterators.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
