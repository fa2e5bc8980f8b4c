"""Loggers (`mx.log`), and the log lines of the processes of a job.

All processes log, as MXNet's workers do, because each has its own rows and metrics.
"""

from __future__ import annotations

import logging

from jfit.distributed import rank

CRITICAL, ERROR, WARNING = logging.CRITICAL, logging.ERROR, logging.WARNING
INFO, DEBUG, NOTSET = logging.INFO, logging.DEBUG, logging.NOTSET


class _Formatter(logging.Formatter):
    """Lines such as `W1128 15:34:36 3525 script.py:main:1] message`, with a colored first part."""

    def format(self, record: logging.LogRecord) -> str:
        color = 31 if record.levelno >= WARNING else 32 if record.levelno >= INFO else 34
        letter = record.levelname[0] if record.levelno in (CRITICAL, ERROR, WARNING, INFO, DEBUG) else "U"
        place = f"{record.process} {record.pathname}:{record.funcName}:{record.lineno}"
        return f"\x1b[{color}m{letter}{self.formatTime(record, '%m%d %H:%M:%S')} {place}]\x1b[0m {super().format(record)}"


def get_logger(
    name: str | None = None, filename: str | None = None, filemode: str | None = None, level: int = WARNING
) -> logging.Logger:
    """Return a logger; the first call for a name adds a handler.

    Args:
        name: name of the logger; None is the root logger, to which no handler is added.
        filename: file of the handler; by default it writes colored lines to the standard error.
        filemode: mode of the file, by default "a".
        level: lowest level of the lines.

    Returns:
        logging.Logger.

    Example:
        >>> get_logger("mine", level=INFO).level
        20
    """
    logger = logging.getLogger(name)
    if name is not None and not getattr(logger, "_init_done", False):
        logger._init_done = True  # type: ignore[attr-defined]
        handler = logging.FileHandler(filename, filemode or "a") if filename else logging.StreamHandler()
        if not filename:
            handler.setFormatter(_Formatter())
        logger.addHandler(handler)
        logger.setLevel(level)
    return logger


getLogger = get_logger  # the older name


def of_worker(message: str) -> str:
    """Put the rank of this process before a log line; without a job, and in rank 0, the line stays as in MXNet.

    Args:
        message: the line, or its format.

    Returns:
        The line: "Epoch[%d] Time cost=%.3f" becomes "rank 1: Epoch[%d] Time cost=%.3f".

    Example:
        >>> of_worker("Epoch[0] Time cost=0.1")
        'Epoch[0] Time cost=0.1'
    """
    return f"rank {rank()}: {message}" if rank() else message
