"""`StreamData`: training data from an iterable of batches (loader, MXNet iterator, generator) or a function returning one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterator
from typing import Any

from jfit.data.batch import Batch, Names, is_mxnet_iter
from jfit.data.elements import to_batch
from jfit.data.positions import decode, encode

_STATE_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class StreamData:
    """Training data from an iterable of batches, or from a callable that returns one for each epoch.

    An iterable that can be iterated again serves all epochs, a generator only one.  If the source or its iterators have
    `state_dict` and `load_state_dict`, or `get_state` and `set_state`, `epoch_start` returns their state for a checkpoint.

    Args:
        source: an iterable of batches, or a callable `f(epoch)` or `f()` that returns one.
        names: the inputs of the graph.
        train_pad: whether padding rows of an MXNet iterator have weight 1 (True, as in MXNet) or 0 (False) in the loss.

    Raises:
        TypeError: from `batches` or `peek`: `source`, or the result of calling it, is not iterable.

    Example:
        >>> stream = StreamData(lambda epoch: [([[1.0], [2.0]], [epoch, 1])], Names.of(["data"], ["label"]))
        >>> [b.inputs["label"].tolist() for b in stream.batches(epoch=5)]
        [[5, 1]]
    """

    num_rows = None
    shuffle = False

    def __init__(self, source: Any, names: Names, *, train_pad: bool = True):
        self.source, self.names, self.train_pad = source, names, train_pad
        self._is_factory = callable(source) and not hasattr(source, "__iter__") and not hasattr(source, "as_numpy_iterator")
        self._passes_epoch = self._is_factory and _takes_argument(source)
        self._seekable = hasattr(source, "seek_batch")  # the source itself can go to a batch of an epoch
        # Whether the source itself has a state; otherwise the iterators opened from it may have one.
        self._has_state = not self._is_factory and not self._seekable and _state_methods(source) is not None
        self._pending: tuple[int, Any] | None = None  # (epoch, state) to load into the iterator that is opened next
        self._epoch_start: tuple[int, Any] | None = None  # (epoch, state) at the start of the last epoch that was begun
        self._exhausted = False  # the source is a one-shot iterator, and has been used
        self._mid_epoch = False  # an MXNet iterator needs a reset before it is read from the start
        self._loader: Any = None  # the last iterable: the source, or the result of calling it
        self._current: Any = None  # the last iterator
        self._opened: Iterator[Any] | None = None  # an iterator at a restored position, for the next `batches`
        self._first: tuple[int, Batch, Iterator[Batch]] | None = None  # after `peek`: epoch, first batch, the other batches

    def num_batches(self, batch_size: int | None = None) -> int | None:
        """Number of batches per epoch, or None if the source does not report it; `batch_size` is ignored."""
        count = getattr(self.source, "num_batches", None)
        if isinstance(count, int):
            return count
        try:
            count = len(self.source)
        except (TypeError, NotImplementedError):  # torch loaders over iterable data sets raise from len()
            return None
        return count if count < sys.maxsize else None

    def batches(self, epoch: int, batch_size: int | None = None, start: int = 0) -> Generator[Batch, None, None]:
        """Iterate over the batches of an epoch, starting at batch `start`.

        Args:
            epoch: index of the epoch, from 0; passed to a callable `f(epoch)`.
            batch_size: ignored: the source determines it.
            start: index of the first batch, the saved position of an interrupted epoch; ignored right after `restore`.  The
                batches before it are read and dropped, unless the source has `seek_batch(epoch, batch)`.

        Returns:
            Iterator of `Batch`.

        Raises:
            ValueError: the source yields no batch or fewer than `start`, or is an exhausted generator.  Exceptions of the
                source propagate unchanged.
        """
        if self._first is not None:
            (at, first, rest), self._first = self._first, None
            if (at, start) == (epoch, 0) or not (self._seekable or (self._is_factory and at != epoch)):
                yield from _skip(_chain(first, rest), start)
                return
        restored = self._opened is not None
        if self._seekable and not restored:
            self.source.seek_batch(epoch, start)
            self._mid_epoch = False
            if start:
                self._opened, restored = self._open(epoch), True
        if start and not restored and self._epoch_start is not None and self._epoch_start[0] == epoch:
            self._go_to(*self._epoch_start)  # repeat the epoch in the same order, not in that of the next epoch
        yield from _skip(self._read(epoch, start if restored else 0), 0 if restored else start)

    def epoch_start(self, epoch: int) -> Any | None:
        """Return the state of the source at the start of an epoch, as JSON values for a checkpoint.

        Together with the number of batches read since then it is what a resumed run needs.

        Args:
            epoch: the last epoch that was begun, or the next one.

        Returns:
            `state_dict()` or `get_state()` of the source or of the iterator opened from it, encoded by
            `jfit.data.positions.encode`.  None if there is no such method or the state cannot be encoded (a resumed run then
            skips batches by counting), or if the source has `seek_batch`.
        """
        if self._epoch_start is not None and self._epoch_start[0] == epoch:
            position = self._epoch_start[1]
        else:
            position = _position((self.source,) if self._has_state else ())
        try:
            return encode(position)
        except TypeError:  # not encodable as JSON: a resumed run skips batches by counting
            return None

    def start_epoch(self, epoch: int, position: Any) -> None:
        """Load the state that `epoch_start` returned for an epoch; no effect on a source without a state."""
        if not self._seekable:
            self._go_to(epoch, decode(position))

    def _go_to(self, epoch: int, position: Any) -> None:
        if self._has_state:
            _put(self.source, position)
            self._epoch_start, self._exhausted = (epoch, position), False
        elif self._exhausted:
            return  # a one-shot iterator without a state: batches are counted from where it is
        else:
            self._pending = (epoch, position)
        self._first, self._opened, self._mid_epoch = None, None, False

    def peek(self, epoch: int = 0) -> Batch:
        """Return the first batch of an epoch without consuming it: for shapes and dtypes before training starts."""
        if self._first is None:
            stream = self._read(epoch)
            self._first = (epoch, next(stream), stream)
        return self._first[1]

    def state(self) -> Any | None:
        """Return the current state of the source (`state_dict()` of torchdata, `get_state()` of grain), or None without one.

        It includes batches that a prefetch thread has read ahead.  With a prefetch thread, save the batch index instead and
        pass it as `start`.
        """
        for owner in (self._current, self.source):
            for get, _ in _STATE_METHODS:
                if hasattr(owner, get):
                    return getattr(owner, get)()
        return None

    def restore(self, state: Any) -> None:
        """Load a state returned by `state()`; the next call of `batches` continues from it.

        Raises:
            ValueError: neither the source nor its iterator has `load_state_dict` or `set_state`.
        """
        for _, put in _STATE_METHODS:
            if hasattr(self.source, put):
                getattr(self.source, put)(state)
                self._mid_epoch = False
                self._opened = self._open(0)
                return
        if not self._is_factory:
            iterator = self._open(0)
            for _, put in _STATE_METHODS:
                if hasattr(iterator, put):
                    getattr(iterator, put)(state)
                    self._opened = iterator
                    return
        raise ValueError(
            f"a {type(self.source).__name__} has no load_state_dict or set_state, so its position cannot be restored; "
            "resume by the batch index (start=) instead."
        )

    def _read(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of a newly opened source, or of one restored at batch `first`; reset an MXNet iterator after it."""
        restored = self._opened is not None
        iterator: Any = self._opened if restored else self._open(epoch)
        self._opened = None
        resets = is_mxnet_iter(iterator)
        # In a roll_over iterator `pad` is the number of rows carried over from the previous epoch: they are not padding.
        wraps = getattr(iterator, "last_batch_handle", "pad") != "roll_over"
        any_batch = False
        twice = not restored and (resets or (self._has_state and iterator is not self.source))
        for attempt in range(2 if twice else 1):
            if attempt and resets:  # the user had read the iterator to its end before passing it
                iterator.reset()
            elif attempt:  # the state of the source was the end of the previous epoch
                iterator = self._open(epoch)
            if not self._seekable and not restored:
                position = _position((self.source,) if self._has_state else (self._loader, iterator))
                self._epoch_start = None if position is None else (epoch, position)
            self._mid_epoch = resets
            for number, element in enumerate(_steps(iterator), first):
                any_batch = True
                yield to_batch(
                    element,
                    self.names,
                    described=iterator,
                    train_pad=self.train_pad,
                    wraps=wraps,
                    where=f"batch {number} of epoch {epoch}: ",
                )
            if any_batch:
                break
        if resets:
            iterator.reset()
        self._mid_epoch = False
        if not any_batch and not restored:
            raise ValueError(
                f"epoch {epoch}: the {_kind(self.source)} yielded no batch, expected at least one; check its length, its "
                "filter and, if it drops a short last batch, its batch size."
            )

    def _open(self, epoch: int) -> Any:
        source = self.source
        if self._is_factory:
            source = source(epoch) if self._passes_epoch else source()
        if hasattr(source, "as_numpy_iterator"):
            source = source.as_numpy_iterator()
        waiting, self._pending = self._pending, None
        position = waiting[1] if waiting is not None and waiting[0] == epoch else None
        self._loader = source
        if is_mxnet_iter(source):
            if self._mid_epoch:
                source.reset()
            if position is not None:
                _put(source, position)
            self._current = source
            return source
        if position is not None and _put(source, position):
            position = None
        try:
            iterator = iter(source)
        except TypeError:
            raise TypeError(
                f"{_kind(self.source)} returned a {type(source).__name__}, expected an iterable of batches: "
                "a list of batches, a loader or a generator."
            ) from None
        if iterator is self.source:
            if self._exhausted:
                raise ValueError(
                    f"epoch {epoch}: the {_kind(self.source)} was exhausted by an earlier pass and cannot restart; pass a "
                    "callable that returns a new one for every epoch, or an iterable that can be iterated again."
                )
            self._exhausted = True
        if position is not None:
            _put(iterator, position)
        self._current = iterator
        return iterator


def _state_methods(owner: Any) -> tuple[Any, Any] | None:
    """Return the methods (get state, load state) of a loader or iterator, or None if it has none."""
    pairs = ((getattr(owner, get, None), getattr(owner, put, None)) for get, put in _STATE_METHODS)
    return next((pair for pair in pairs if None not in pair), None)


def _position(owners: tuple[Any, ...]) -> Any | None:
    """Return the state of the first of `owners` (loaders, iterators) that has one, or None."""
    methods = next((pair for owner in owners if (pair := _state_methods(owner)) is not None), None)
    try:
        return None if methods is None else methods[0]()
    except Exception:  # a wrapper of a loader without a state, or workers that cannot return theirs: fall back to counting
        return None


def _put(owner: Any, position: Any) -> bool:
    """Load a state into a loader or iterator; return False if it has no method for it."""
    methods = _state_methods(owner)
    if methods is not None:
        methods[1](position)
    return methods is not None


def _steps(iterator: Any) -> Iterator[Any]:
    if hasattr(iterator, "__next__"):
        for element in iterator:  # `yield from` would close the iterator when this generator is closed
            yield element
        return
    while True:  # Python 2 style iterators have only next()
        try:
            element = iterator.next()
        except StopIteration:
            return
        yield element


def _chain(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest


def _skip(stream: Iterator[Batch], start: int) -> Iterator[Batch]:
    for done in range(start):
        if next(stream, None) is None:
            raise ValueError(
                f"cannot continue at batch {start}: the source ended after {done} batches; it must yield the same batches as "
                "when the position was saved."
            )
    yield from stream


def _takes_argument(source: Any) -> bool:
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [p for p in parameters if p.kind in kinds]
    return bool(required) and (required[0].default is inspect.Parameter.empty or required[0].name == "epoch")


def _kind(source: Any) -> str:
    return getattr(source, "__name__", type(source).__name__) if callable(source) else type(source).__name__
