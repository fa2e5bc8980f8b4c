"""`mx.runtime` and `mx.engine`: what belongs to MXNet's compiled library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from jfit.mxnet.context import num_gpus

# features of MXNet's build: those that jfit has
_ALL = (
    "CUDA CUDNN NCCL CUDA_RTC TENSORRT CPU_SSE CPU_SSE2 CPU_SSE3 CPU_SSE4_1 CPU_SSE4_2 CPU_SSE4A CPU_AVX CPU_AVX2 OPENMP SSE "
    "F16C JEMALLOC BLAS_OPEN BLAS_ATLAS BLAS_MKL BLAS_APPLE LAPACK MKLDNN OPENCV CAFFE PROFILER DIST_KVSTORE CXX14 "
    "INT64_TENSOR_SIZE SIGNAL_HANDLER DEBUG TVM_OP"
)
_HAS = {"LAPACK", "PROFILER", "DIST_KVSTORE", "F16C"}


class Feature(NamedTuple):
    """A feature of the build: its name, and whether it is enabled.

    Args:
        name: such as "CUDA" or "LAPACK".
        enabled: whether jfit has it here.

    Example:
        >>> Feature("LAPACK", True)
        ✔ LAPACK
    """

    name: str
    enabled: bool

    def __repr__(self) -> str:
        return f"{'✔' if self.enabled else '✖'} {self.name}"


def feature_list() -> list[Feature]:
    """Return the features of MXNet's builds, with those enabled that jfit has.

    Returns:
        List of `Feature`.

    Example:
        >>> [f.name for f in feature_list() if f.enabled and f.name != "CUDA"][:2]
        ['F16C', 'LAPACK']
    """
    return [Feature(name, name in _HAS or (name in ("CUDA", "CUDNN", "NCCL") and num_gpus() > 0)) for name in _ALL.split()]


class Features(dict[str, Feature]):
    """The features by name.

    Example:
        >>> Features().is_enabled("lapack")
        True
    """

    def __init__(self) -> None:
        super().__init__((f.name, f) for f in feature_list())

    def __repr__(self) -> str:
        return str(list(self.values()))

    def is_enabled(self, feature_name: str) -> bool:
        """Return whether a feature is enabled; the case of its name is ignored.

        Raises:
            RuntimeError: there is no such feature.
        """
        name = feature_name.upper()
        if name not in self:
            raise RuntimeError(f"Feature '{name}' is unknown, known features are: {list(self)}")
        return self[name].enabled


# ------------------------------------------------------------------------------------------------ mx.engine
_bulk = [15]  # MXNet's default


def set_bulk_size(size: int) -> int:
    """Set the number of operations that MXNet's engine runs together; XLA decides that itself.

    Args:
        size: the number.

    Returns:
        The previous number.

    Example:
        >>> set_bulk_size(set_bulk_size(10))
        10
    """
    before, _bulk[0] = _bulk[0], int(size)
    return before


@contextlib.contextmanager
def bulk(size: int) -> Iterator[None]:
    """Context manager that sets the number of `set_bulk_size`; it changes no result.

    Args:
        size: the number.

    Example:
        >>> with bulk(10):
        ...     pass
    """
    before = set_bulk_size(size)
    try:
        yield
    finally:
        set_bulk_size(before)
