"""`mx.runtime`, `mx.engine`, `mx.libinfo`, `mx.library` and `mx.rtc`: what belongs to MXNet's compiled library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from jfit.mxnet.context import num_gpus
from jfit.mxnet.errors import MXNetError

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


# ------------------------------------------------------------------------------------------------ compiled code of users
def find_lib_path(prefix: str = "libmxnet") -> list[str]:
    """Return an empty list: there is no compiled library.

    Args:
        prefix: accepted and ignored.

    Returns:
        [].

    Example:
        >>> find_lib_path()
        []
    """
    return []


def find_include_path(*_: Any) -> str:
    """Return an empty text: there are no header files.

    Args:
        _: accepted and ignored.

    Returns:
        ''.

    Example:
        >>> find_include_path()
        ''
    """
    return ""


def load(path: str, verbose: bool = True) -> NoReturn:
    """Raise an MXNetError: libraries of compiled operators are made for MXNet's library.

    Args:
        path: path of the library.
        verbose: accepted and ignored.

    Raises:
        MXNetError: always; it names `mx.operator.CustomOp`, with which operators are written in Python.

    Example:
        >>> load("operators.so")
        Traceback (most recent call last):
        jfit.mxnet.errors.MXNetError: 'operators.so' cannot be loaded: ...
    """
    raise MXNetError(f"{path!r} cannot be loaded: it is made for MXNet's library; write the operator with mx.operator.CustomOp")


class CudaModule:
    """CUDA source code of a user, which raises an MXNetError here: write the kernel with `jax.experimental.pallas`.

    Args:
        source: CUDA source code.
        options, exports: accepted and ignored.

    Raises:
        MXNetError: always.

    Example:
        >>> CudaModule("__global__ void axpy() {}")
        Traceback (most recent call last):
        jfit.mxnet.errors.MXNetError: jfit does not compile CUDA source code; ...
    """

    def __init__(self, source: str, options: Any = (), exports: Any = ()) -> None:
        raise MXNetError("jfit does not compile CUDA source code; write the kernel with jax.experimental.pallas")
