"""What the processes of a job print: warnings and log lines that all of them would repeat come from rank 0 only."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent
_OF_ONE_RANK = ("data", "distributed")  # folders whose warnings are about this process: its data, its connections


def show_once(rank: int, host: str) -> None:
    """Hide, in a process other than rank 0, the warnings and log lines of jfit that rank 0 shows, too.

    Warnings of other packages and errors are shown by every process; so is what is said about the data that this process reads,
    with its rank and host.

    Args:
        rank: number of this process.
        host: name of its host.
    """
    if rank == 0:
        return
    where, show = f"rank {rank} on {host}: ", warnings.showwarning

    def filtered(record: logging.LogRecord) -> bool:
        if _kind(record.pathname) == "common" and record.levelno < logging.ERROR:
            return False
        if not str(record.msg).startswith(where):
            record.msg = where.replace("%", "%%" if record.args else "%") + str(record.msg)
        return True

    def show_warning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "warnings":
            frame = frame.f_back
        kind = _kind(frame.f_code.co_filename)  # the code that warns; `filename` is that of its caller
        if kind != "common":
            show(f"{where}{message}" if kind == "own" else message, category, filename, lineno, file, line)

    logging.getLogger("jfit").addFilter(filtered)
    warnings.showwarning = show_warning


def _kind(filename: str) -> str:
    """Whether a source file is of jfit, so that all processes say the same ("common"), of its data ("own"), or "other"."""
    path = Path(filename).resolve()
    if not path.is_relative_to(_PACKAGE):
        return "other"
    return "own" if path.relative_to(_PACKAGE).parts[0] in _OF_ONE_RANK else "common"
