"""`DataLoader`: mini-batches of a data set, made in this process, by threads, or by worker processes.

Samples are read, transformed and collated with NumPy (`jfit.mxnet.recording.tape.on_host`); only batches become JAX arrays.
"""

from __future__ import annotations

import collections
import functools
import multiprocessing
import multiprocessing.context
import pickle
import random
import signal
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax
import numpy as np

from jfit import forks
from jfit.mxnet import keys
from jfit.mxnet.gluon.data.dataset import with_fast_rows
from jfit.mxnet.gluon.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from jfit.mxnet.image.functions import created
from jfit.mxnet.mutable import mutable_class
from jfit.mxnet.ndarray.array import NDArray, function
from jfit.mxnet.numpy.arrays import current_kind
from jfit.mxnet.recording.tape import on_host
from jfit.mxnet.util import is_np_array, is_np_shape, set_np


def default_batchify_fn(data: Sequence[Any]) -> Any:
    """Collate samples to a batch: arrays and numbers are stacked, tuples collated element by element.

    Args:
        data: the samples, all alike.

    Returns:
        NDArray (len(data), *shape of a sample) in the dtype of the samples; a list of them if the samples are tuples.

    Raises:
        MXNetError: the samples are NDArrays of different shapes.

    Example:
        >>> [batch.asnumpy().tolist() for batch in default_batchify_fn([(1.5, 0), (2.5, 1)])]
        [[1.5, 2.5], [0, 1]]
    """
    first = data[0]
    if isinstance(first, tuple):
        return [default_batchify_fn(column) for column in zip(*data, strict=True)]
    if not isinstance(first, NDArray):
        return created(np.asarray(data), current_kind())
    if len({x.shape for x in data}) > 1 or first.context.device_type != "cpu":
        return function("stack")(*data)
    return created(np.stack([np.asarray(x.value) for x in data]), mutable_class(first))


default_mp_batchify_fn = default_batchify_fn


class DataLoader:
    """Mini-batches of a data set; each iteration is one pass over it.

    With `num_workers`, batches are made ahead of time.  Worker processes are started by a fork server, not forked from this
    process, in which JAX runs: they get copies of `dataset` and `batchify_fn` by pickle.  If these cannot be pickled, or are
    defined in the script itself, which would have to run again in each worker, batches are made in this process instead, with a
    warning; after `multiprocessing.set_start_method("spawn")`, with which a script says that it can be imported, they may be
    defined in it.  Workers draw random numbers from seeds that depend on the state of this process's generators and on the
    number of the batch, so that batches do not depend on the number of workers.

    Args:
        dataset: data set, NDArray, NumPy array or list.
        batch_size: number of samples per batch.
        shuffle: draw a new order from `numpy.random` for each pass.
        sampler: numbers of the samples, in order, instead of `shuffle`.
        last_batch: "keep" (the default), "discard" or "rollover", see `BatchSampler`.
        batch_sampler: lists of the numbers of samples, instead of the four arguments above.
        batchify_fn: function of a list of samples, returns a batch; by default `default_batchify_fn`.
        num_workers: number of processes or threads; 0 makes batches when they are asked for.
        pin_memory, pin_device_id: accepted and ignored: XLA copies batches to the devices.
        prefetch: number of batches made ahead of time, by default 2 * num_workers.
        thread_pool: use threads.
        timeout: longest time to wait for a batch, in seconds.
        auto_reload: accepted and ignored: the batches of a pass are made from its beginning on.

    Raises:
        ValueError: arguments that exclude each other, or neither `batch_size` nor `batch_sampler`.
        AssertionError: timeout <= 0.
        Exception: an error of the data set or of `batchify_fn`, with a note that names the sample; raised by the iteration.
        TimeoutError: a worker took longer than `timeout`; raised by the iteration.
        RuntimeError: a worker process was killed; raised by the iteration.

    Example:
        >>> from jfit.mxnet.gluon.data.dataset import ArrayDataset
        >>> loader = DataLoader(ArrayDataset([1.0, 2.0, 3.0], [0, 1, 0]), batch_size=2)
        >>> [(x.asnumpy().tolist(), y.asnumpy().tolist()) for x, y in loader], len(loader)
        ([([1.0, 2.0], [0, 1]), ([3.0], [0])], 2)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        auto_reload: bool = False,
    ) -> None:
        assert timeout > 0, f"timeout is {timeout} s, expected more than 0."
        if batch_sampler is None:
            if batch_size is None:
                raise ValueError("DataLoader needs batch_size= (or batch_sampler=).")
            if sampler is not None and shuffle:
                raise ValueError("shuffle=True and sampler= both define the order of the samples; pass one of them.")
            sampler = sampler or (RandomSampler if shuffle else SequentialSampler)(len(dataset))
            batch_sampler = BatchSampler(sampler, batch_size, last_batch or "keep")
        elif batch_size is not None or shuffle or sampler is not None or last_batch is not None:
            raise ValueError("batch_sampler= makes the batches; do not pass batch_size, shuffle, sampler or last_batch too.")
        self._dataset, self._batch_sampler = with_fast_rows(dataset), batch_sampler
        self._batchify_fn = default_batchify_fn if batchify_fn is None else batchify_fn
        self._num_workers, self._threads, self._timeout = max(0, num_workers), thread_pool, timeout
        self._prefetch = 2 * self._num_workers if prefetch is None else max(0, int(prefetch))
        self._made = 0  # number of batches that workers were asked for, in all passes

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        forks.check_not_forked("DataLoader")
        executor, make, ahead = self._workers
        state = zlib.crc32(pickle.dumps((random.getstate(), np.random.get_state(), keys.position())))
        pending = collections.deque[Future[Any]]()
        try:
            for numbers in self._batch_sampler:
                self._made += 1
                pending.append(executor.submit(make, numbers, zlib.crc32(b"%d" % self._made, state)))
                if len(pending) > ahead:
                    yield self._wait(pending.popleft())
            while pending:
                yield self._wait(pending.popleft())
        finally:
            for batch in pending:  # of a pass that is not finished
                batch.cancel()

    def _wait(self, batch: Future[Any]) -> Any:
        try:
            return jax.tree.map(_to_device, batch.result(self._timeout), is_leaf=lambda x: isinstance(x, NDArray))
        except TimeoutError:
            if not batch.done():  # otherwise an error of the data set
                problem = f"DataLoader: a worker did not make its batch within {self._timeout} s"
                raise multiprocessing.TimeoutError(f"{problem}; pass a larger timeout=, or speed up the data set.") from None
            raise
        except BrokenProcessPool as error:
            self.__dict__.pop("_workers", None)  # the next pass starts new ones
            hint = "it may have been killed because memory was short: pass a smaller num_workers="
            raise RuntimeError(f"DataLoader: a worker process ended while it made a batch; {hint}.") from error

    @functools.cached_property
    def _workers(self) -> tuple[Executor, Callable[..., Any], int]:
        """Return what makes batches, the function that it calls, and the number of batches to make ahead of time."""
        make = functools.partial(_make, self._dataset, self._batchify_fn)
        switches = is_np_shape(), is_np_array()  # of the calling thread
        if self._num_workers and self._threads:
            return ThreadPoolExecutor(self._num_workers, "jfit-data", set_np, switches), make, self._prefetch
        context, pickled = self._copies() if self._num_workers else (None, b"")
        if context is None:
            return _Now(), make, 0
        return ProcessPoolExecutor(self._num_workers, context, _start, (pickled, *switches)), _make_here, self._prefetch

    def _copies(self) -> tuple[Any, bytes]:
        """Return what starts worker processes, and what they get; (None, b"") if they cannot get the data set."""
        try:
            pickled = pickle.dumps((self._dataset, self._batchify_fn))
        except Exception as error:  # whatever the pickling of a user's object raises
            problem = f"cannot be copied to worker processes ({error})"
        else:
            if b"__main__" not in pickled:
                return _Context(), pickled
            if multiprocessing.get_start_method(allow_none=True) in ("spawn", "forkserver"):
                return multiprocessing.get_context("forkserver"), pickled
            problem = "are defined in the script itself, which worker processes would have to run again"
        remedy = "define their classes and functions in a module that the script imports, or pass thread_pool=True."
        warnings.warn(
            f"DataLoader: num_workers={self._num_workers}, but the data set, its transforms or batchify_fn {problem}; batches "
            f"are made in this process. For worker processes, {remedy}",
            stacklevel=5,
        )
        return None, b""


def _to_device(value: Any) -> Any:
    if isinstance(value, NDArray) and isinstance(value.value, np.ndarray):
        return created(value.value, mutable_class(value))
    return value


def _make(dataset: Any, batchify_fn: Callable[[list[Any]], Any], numbers: Sequence[Any], _seed: int = 0) -> Any:
    """Return one batch, whose arrays may be NumPy arrays."""
    samples = []
    with on_host():
        for number in numbers:
            try:
                samples.append(dataset[number])
            except Exception as error:
                error.add_note(f"DataLoader: raised by sample {number} of the data set")
                raise
        return batchify_fn(samples)


class _Now(Executor):
    """An executor that calls functions at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
        future = Future[Any]()
        future.set_result(fn(*args))
        return future


# ------------------------------------------------------------------------------------------ worker processes
class _Process(multiprocessing.context.ForkServerProcess):
    """A process of the fork server that does not run the script of its parent again."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        script, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            return multiprocessing.context.ForkServerProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = script


class _Context(multiprocessing.context.ForkServerContext):
    Process = _Process  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload([__name__])  # imported once; the worker processes are forked from that process


_pickled = b""


def _start(pickled: bytes, np_shape: bool, np_array: bool) -> None:
    global _pickled
    _pickled = pickled
    set_np(np_shape, np_array)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    jax.config.update("jax_platforms", "cpu")  # the accelerators belong to the parent


@functools.cache
def _received() -> tuple[Any, Any]:
    return pickle.loads(_pickled)


def _make_here(numbers: Sequence[Any], seed: int) -> Any:
    """Return one batch of the data set of this worker process, with random numbers that depend on `seed`."""
    for generator in (random.seed, np.random.seed, keys.seed):
        generator(seed)
    try:
        return _make(*_received(), numbers)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the parent could not read it
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
