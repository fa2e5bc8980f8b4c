"""Jobs of several processes, on one host or many: `jfit.distributed.init()` joins them; then jfit uses all their devices.

Rank 0 has a hub to which every process is connected by TCP (`channel.py`), beside JAX's own connections: processes agree there
on what is not computed on devices.
"""

from jfit.distributed.channel import JobError, RanksDiffer
from jfit.distributed.job import barrier, exchange, init, is_main, num_processes, rank, shutdown

__all__ = ["JobError", "RanksDiffer", "barrier", "exchange", "init", "is_main", "num_processes", "rank", "shutdown"]
