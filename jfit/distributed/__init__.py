"""Jobs of several processes, on one host or many: `jfit.distributed.init()` joins them; then jfit uses all their devices.

Processes agree on what is not computed on devices through JAX's coordination service, which runs in rank 0 (`client.py`).
"""

from jfit.distributed.errors import JobError, RanksDiffer
from jfit.distributed.job import barrier, exchange, init, is_main, num_processes, rank, shutdown

__all__ = ["JobError", "RanksDiffer", "barrier", "exchange", "init", "is_main", "num_processes", "rank", "shutdown"]
