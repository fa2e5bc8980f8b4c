"""`mx.mon`: the monitor, whose statistic is a function of NDArrays."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.monitor import monitor
from jfit.mxnet.ndarray.array import NDArray

__all__ = ["Monitor"]


class Monitor(monitor.Monitor):
    """`jfit.mxnet.monitor.monitor.Monitor` whose `stat_func` gets an NDArray.

    Example:
        >>> import jfit.mx as mx
        >>> mon = Monitor(1, stat_func=lambda x: x.norm() / x.size**0.5)
        >>> mon.tic()
        >>> mon.collect({"fc_output": mx.nd.ones((2, 2))})
        >>> mon.toc()
        [(1, 'fc_output', '1.0\\t')]
    """

    def _box(self, array: Any) -> Any:
        return array if isinstance(array, NDArray) else NDArray(array)
