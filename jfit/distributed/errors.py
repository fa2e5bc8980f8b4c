"""Errors that say what happened to another process of the job."""

from __future__ import annotations

# parts of the messages of collectives that end because another process is gone
_GONE = (
    "gloo", "connection closed", "connection reset", "socket closed", "broken pipe", "unavailable:", "nccl", "coordination",
)  # fmt: skip


class JobError(RuntimeError):
    """Another process of the job failed, was lost, or does something else than this one.

    Example:
        >>> issubclass(JobError, RuntimeError)
        True
    """


class RanksDiffer(JobError):
    """The processes of a job were started with other settings or data, or their parameters differ; raised by all of them.

    Example:
        >>> issubclass(RanksDiffer, JobError)
        True
    """


def is_of_another(error: BaseException) -> bool:
    """Whether an error is that of a collective or exchange, because another process is gone.

    Example:
        >>> is_of_another(ValueError("Gloo all-reduce failed: Connection closed by peer"))
        True
    """
    if isinstance(error, JobError):
        return not isinstance(error, RanksDiffer)
    text = str(error).lower()
    return isinstance(error, (RuntimeError, ValueError)) and any(part in text for part in _GONE)


def last_line(error: BaseException) -> str:
    """An exception as one line, without notes.

    Example:
        >>> last_line(ValueError("no rows"))
        'ValueError: no rows'
    """
    text = " ".join(str(error).split())
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:500]
