"""Log lines of the processes of a job: all of them log, as MXNet's workers do, because each has its own rows and metrics."""

from __future__ import annotations

from jfit.distributed import rank


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
