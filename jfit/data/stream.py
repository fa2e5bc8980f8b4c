"""Batches that come from elsewhere: loaders, MXNet iterators, generators and callables, epoch after epoch."""

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
    """Batches of any iterable over batches, or of a callable that makes one per epoch.

    Args:
        source: an iterable, or a callable `f(epoch)` or `f()` that returns one.
        names: the inputs the graph needs.
        train_pad: whether rows that an MXNet iterator wraps weigh 1 in training.

    Raises:
        TypeError: `source` cannot be iterated or called.

    A generator serves one epoch; anything that can be iterated again serves all.  Where the source or its iterators have
    `state_dict` and `load_state_dict`, or `get_state` and `set_state`, `epoch_start` tells where they stood.

    Example:
        >>> stream = StreamData(lambda epoch: [([[1.0], [2.0]], [epoch, 1])], Names.of(["data"], ["label"]))
        >>> [b.inputs["label"].tolist() for b in stream.batches(epoch=5)]
        [[5, 1]]
    """

    num_rows = None
    shuffle = False

    def __init__(self, source: Any, names: Names, *, train_pad: bool = True):
        self.source, self.names, self.train_pad = source, names, train_pad
        self._makes = callable(source) and not hasattr(source, "__iter__") and not hasattr(source, "as_numpy_iterator")
        self._passes_epoch = self._makes and _takes_argument(source)
        self._seeks = hasattr(source, "seek_batch")  # it can go to a batch of an epoch by itself
        # Whether the source keeps a position; otherwise the iterators it opens may.
        self._keeps = not self._makes and not self._seeks and _state_methods(source) is not None
        self._waiting: tuple[int, Any] | None = None  # (epoch, position) for the iterator that is opened next
        self._begun: tuple[int, Any] | None = None  # the epoch last begun, and the source's position then
        self._spent = False  # a one-shot iterator has been used
        self._dirty = False  # an MXNet iterator stands in mid-epoch
        self._loader: Any = None  # what was last iterated: the source, or what it made
        self._current: Any = None  # the iterator last opened
        self._opened: Iterator[Any] | None = None  # an iterator waiting to be read (after `restore`)
        self._first: tuple[int, Batch, Iterator[Batch]] | None = None  # after `peek`

    def num_batches(self, batch_size: int | None = None) -> int | None:
        """Batches of an epoch where the source knows it, else None; `batch_size` is ignored, the source has its own."""
        count = getattr(self.source, "num_batches", None)
        if isinstance(count, int):
            return count
        try:
            count = len(self.source)
        except (TypeError, NotImplementedError):  # torch loaders over iterable data sets raise from len()
            return None
        return count if count < sys.maxsize else None

    def batches(self, epoch: int, batch_size: int | None = None, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch, from batch `start` on.

        Args:
            epoch: index of the epoch, from 0; a callable `f(epoch)` receives it.
            batch_size: ignored, the source has its own.
            start: batches to leave out, the saved position of an interrupted epoch; not used right after `restore`.  They are
                read, unless the source has `seek_batch(epoch, batch)`, which is called instead.

        Returns:
            Iterator of `Batch`.

        Raises:
            ValueError: the source yields no batch or fewer than `start`, or is a generator that was used up.  An exception of
                the source passes through unchanged.
        """
        if self._first is not None:
            (at, first, rest), self._first = self._first, None
            if (at, start) == (epoch, 0) or not (self._seeks or (self._makes and at != epoch)):
                yield from _skip(_chain(first, rest), start)
                return
        restored = self._opened is not None
        if self._seeks and not restored:
            self.source.seek_batch(epoch, start)
            self._dirty = False
            if start:
                self._opened, restored = self._open(epoch), True
        if start and not restored and self._begun is not None and self._begun[0] == epoch:
            self._go_to(*self._begun)  # the same order again, not the next one
        yield from _skip(self._read(epoch, start if restored else 0), 0 if restored else start)

    def epoch_start(self, epoch: int) -> Any | None:
        """Where the source stood when an epoch began, as JSON: with it, and a number of batches, a training is resumed.

        Args:
            epoch: the epoch last begun, or the one that comes next.

        Returns:
            The `state_dict()` or `get_state()` of the source, or of the iterator it opened, by `jfit.data.positions.encode`;
            None where there is none (its batches are counted instead), or the source finds a batch by itself (`seek_batch`).
        """
        if self._begun is not None and self._begun[0] == epoch:
            position = self._begun[1]
        else:
            position = _position((self.source,) if self._keeps else ())
        try:
            return encode(position)
        except TypeError:  # a position that JSON cannot hold: the batches are counted
            return None

    def start_epoch(self, epoch: int, position: Any) -> None:
        """Go to what `epoch_start` gave for an epoch; sources that keep no position stay where they are."""
        if not self._seeks:
            self._go_to(epoch, decode(position))

    def _go_to(self, epoch: int, position: Any) -> None:
        if self._keeps:
            _put(self.source, position)
            self._begun, self._spent = (epoch, position), False
        elif self._spent:
            return  # a one-shot iterator without a position: its batches are counted from the first
        else:
            self._waiting = (epoch, position)
        self._first, self._opened, self._dirty = None, None, False

    def peek(self, epoch: int = 0) -> Batch:
        """The first batch of an epoch, which `batches` will give again: shapes and dtypes before training starts."""
        if self._first is None:
            stream = self._read(epoch)
            self._first = (epoch, next(stream), stream)
        return self._first[1]

    def state(self) -> Any | None:
        """The source's own position (`state_dict()` of torchdata, `get_state()` of grain), None where it keeps none.

        It is the position of the SOURCE: read it where no prefetch thread runs ahead, otherwise save the batch index and use
        `start`.
        """
        for owner in (self._current, self.source):
            for get, _ in _STATE_METHODS:
                if hasattr(owner, get):
                    return getattr(owner, get)()
        return None

    def restore(self, state: Any) -> None:
        """Continue from a saved `state()`: the next `batches` call goes on where it was taken.

        Raises:
            ValueError: the source has no method to restore a state.
        """
        for _, put in _STATE_METHODS:
            if hasattr(self.source, put):
                getattr(self.source, put)(state)
                self._dirty = False
                self._opened = self._open(0)
                return
        if not self._makes:
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
        """Batches of a freshly opened source, or of one restored at batch `first`; an MXNet iterator is reset at its end."""
        restored = self._opened is not None
        iterator: Any = self._opened if restored else self._open(epoch)
        self._opened = None
        resets = is_mxnet_iter(iterator)
        # A roll_over batch is all real: its pad counts rows that the epoch before has left over.
        wraps = getattr(iterator, "last_batch_handle", "pad") != "roll_over"
        found = False
        twice = not restored and (resets or (self._keeps and iterator is not self.source))
        for attempt in range(2 if twice else 1):
            if attempt and resets:  # it was read to its end before it came here
                iterator.reset()
            elif attempt:  # its position was the end of the epoch before
                iterator = self._open(epoch)
            if not self._seeks and not restored:
                position = _position((self.source,) if self._keeps else (self._loader, iterator))
                self._begun = None if position is None else (epoch, position)
            self._dirty = resets
            for number, element in enumerate(_steps(iterator), first):
                found = True
                yield to_batch(
                    element,
                    self.names,
                    described=iterator,
                    train_pad=self.train_pad,
                    wraps=wraps,
                    where=f"batch {number} of epoch {epoch}: ",
                )
            if found:
                break
        if resets:
            iterator.reset()
        self._dirty = False
        if not found and not restored:
            raise ValueError(
                f"epoch {epoch}: the {_kind(self.source)} yielded no batch; at least one is needed: check its length, its "
                "filter and, where it drops a short last batch, its batch size."
            )

    def _open(self, epoch: int) -> Any:
        source = self.source
        if self._makes:
            source = source(epoch) if self._passes_epoch else source()
        if hasattr(source, "as_numpy_iterator"):
            source = source.as_numpy_iterator()
        waiting, self._waiting = self._waiting, None
        position = waiting[1] if waiting is not None and waiting[0] == epoch else None
        self._loader = source
        if is_mxnet_iter(source):
            if self._dirty:
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
                f"{_kind(self.source)} gives a {type(source).__name__}, an iterable over batches is needed: "
                "a list of batches, a loader, a generator."
            ) from None
        if iterator is self.source:
            if self._spent:
                raise ValueError(
                    f"epoch {epoch}: the {_kind(self.source)} was used up by an earlier pass and cannot start again; pass a "
                    "callable that makes a new one for every epoch, or something that can be iterated again."
                )
            self._spent = True
        if position is not None:
            _put(iterator, position)
        self._current = iterator
        return iterator


def _state_methods(owner: Any) -> tuple[Any, Any] | None:
    """The methods of a loader or iterator that give and set its position, or None."""
    pairs = ((getattr(owner, get, None), getattr(owner, put, None)) for get, put in _STATE_METHODS)
    return next((pair for pair in pairs if None not in pair), None)


def _position(owners: tuple[Any, ...]) -> Any | None:
    """The position of the first of `owners` that has one, or None."""
    methods = next((found for owner in owners if (found := _state_methods(owner)) is not None), None)
    try:
        return None if methods is None else methods[0]()
    except Exception:  # a wrapper around one without a position, or a loader whose workers cannot give it: batches are counted
        return None


def _put(owner: Any, position: Any) -> bool:
    """Let a loader or iterator go to a position; False where it keeps none."""
    methods = _state_methods(owner)
    if methods is not None:
        methods[1](position)
    return methods is not None


def _steps(iterator: Any) -> Iterator[Any]:
    if hasattr(iterator, "__next__"):
        for element in iterator:  # `yield from` would call its close() when this generator is left
            yield element
        return
    while True:  # iterators of Python 2's days have next() only
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
                f"cannot continue at batch {start}: the source ended after {done}; it must give the same batches as when the "
                "position was saved."
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
