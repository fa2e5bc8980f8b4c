"""`StreamData`: training data from an iterable of batches (loader, MXNet iterator, generator) or a function returning one."""

from __future__ import annotations

import inspect
import itertools
import operator
import sys
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any

from jfit.data.batch import Batch, Names, is_mxnet_iter
from jfit.data.columns import Columns, label_without_columns, select
from jfit.data.elements import to_batch
from jfit.data.parts import own_size
from jfit.data.positions import Exhausted, decode, encode
from jfit.data.prefetch import Patience, next_patiently
from jfit.data.row_batches import collated, is_row
from jfit.data.weights import ClassWeights

_STATE_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class StreamData:
    """Training data from an iterable of batches, or from a callable that returns one for each epoch.

    An iterable that can be iterated again serves all epochs, a generator only one.  If the source or its iterators have
    `state_dict` and `load_state_dict`, or `get_state` and `set_state`, `epoch_start` returns their state for a checkpoint.

    Args:
        source: an iterable of batches, or a callable `f(epoch)` or `f()` that returns one.
        names: the inputs of the graph.
        train_pad: whether padding rows of an MXNet iterator have weight 1 (True, as in MXNet) or 0 (False) in the loss.
        batch_size: number of rows per batch if the elements are rows, see `by_rows`.  None: elements are batches.
        by_rows: whether the elements are rows, which are collated to batches.  None: if the first element contains a scalar.
        columns: the label columns of elements that are dicts.  None: their keys are the names of the inputs.
        steps_per_epoch: number of batches per epoch.  A source of known length, or a callable `f(epoch)`, starts again in every
            epoch; of any other, an epoch begins where the last one ended, and at its end the source is opened again.  None: an
            epoch is one pass over the source.
        endless: whether this pass may be endless, because training ends after a number of steps.

    Attributes:
        class_weights: `ClassWeights` that multiply the row weights of every batch, or None.
        needs_columns: whether a batch that is no dict is an error, because the user passed the names of its label columns.
        timeout: seconds after which the wait for a batch raises `DataTimeout`; None: no limit.

    Raises:
        ValueError: the source is endless, but neither `endless` nor `steps_per_epoch` is passed, or it has fewer batches than
            `steps_per_epoch`.
        TypeError: from `batches` or `peek`: `source`, or the result of calling it, is not iterable.

    Example:
        >>> stream = StreamData(lambda epoch: [([[1.0], [2.0]], [epoch, 1])], Names.of(["data"], ["label"]))
        >>> [b.inputs["label"].tolist() for b in stream.batches(epoch=5)]
        [[5, 1]]
    """

    num_rows = None
    shuffle = False
    timeout: float | None = None  # seconds to wait for a batch; None: no limit

    def __init__(
        self,
        source: Any,
        names: Names,
        *,
        train_pad: bool = True,
        batch_size: int | None = None,
        by_rows: bool | None = None,
        columns: Columns | None = None,
        steps_per_epoch: int | None = None,
        endless: bool = False,
    ):
        self.source, self.names, self.train_pad = source, names, train_pad
        self.batch_size, self.by_rows, self.columns = batch_size, by_rows, columns
        self.class_weights: ClassWeights | None = None
        self.needs_columns = False
        self.steps_per_epoch = steps_per_epoch
        self._is_factory = callable(source) and not hasattr(source, "__iter__") and not hasattr(source, "as_numpy_iterator")
        self._passes_epoch = self._is_factory and _takes_argument(source)
        self._seekable = hasattr(source, "seek_batch")  # the source itself can go to a batch of an epoch
        # Whether the source itself has a state; otherwise the iterators opened from it may have one.
        self._has_state = not self._is_factory and not self._seekable and _state_methods(source) is not None
        self._pending: tuple[int, Any] | None = None  # (epoch, state) to load into the iterator that is opened next
        self._epoch_start: tuple[int, Any] | None = None  # (epoch, state) at the start of the last epoch that was begun
        self._unread: tuple[int, int] | None = None  # (epoch, batches) of a pass to read and drop before the next epoch
        self._exhausted = False  # the source is a one-shot iterator, and has been used
        self._mid_epoch = False  # an MXNet iterator needs a reset before it is read from the start
        self._loader: Any = None  # the last iterable: the source, or the result of calling it
        self._current: Any = None  # the last iterator
        self._first: tuple[int, Batch, Iterator[Batch]] | None = None  # after `peek`: epoch, first batch, the other batches
        self._logged = False  # whether arrays that are not used were logged
        length = self._length()
        if steps_per_epoch is None and not endless and is_endless(source):
            raise ValueError(
                f"the {_kind(source)} is endless, so an epoch would never end; pass steps_per_epoch=, or num_steps= to fit"
            )
        # Whether an epoch begins where the last one ended, in one sequence of batches: see `_continued`
        self._continues = steps_per_epoch is not None and length is None and not self._passes_epoch and not self._seekable
        self._sequence: Iterator[Batch] | None = None
        self._next = 0  # number, since the first epoch, of the next batch of `_sequence`

    @property
    def resumes_by_counting(self) -> bool:
        """Whether a resumed run depends on the source yielding the same batches again: it is no list and has no position."""
        return not (self._seekable or self._passes_epoch or isinstance(self.source, (list, tuple)))

    @property
    def _cuts(self) -> bool:
        """Whether every epoch is the begin of a new pass over a source with a state."""
        return self.steps_per_epoch is not None and self._has_state and not self._continues

    @property
    def repeats_passes(self) -> bool:
        """Whether all passes are the same and each is an epoch: the iterators have a state, but not the source."""
        state = not self._has_state and self._current is not None and _state_methods(self._current) is not None
        return state and not self._is_factory and not self._continues and self._current is not self.source

    def _length(self) -> int | None:
        """Number of elements of a pass over the source, or None if it does not report it."""
        count = getattr(self.source, "num_batches", None)
        if isinstance(count, int):
            return count
        try:
            count = len(self.source)
        except (TypeError, NotImplementedError):  # torch loaders over iterable data sets raise from len()
            return None
        return count if count < sys.maxsize else None

    def num_batches(self, batch_size: int | None = None) -> int | None:
        """Number of batches per epoch, or None if the source does not report it; `batch_size` is ignored."""
        count = self._length()
        if count is not None and self.batch_size is not None:
            if self.by_rows is None:
                self.peek()  # decides whether the elements are rows
            count = -(-count // own_size(self.batch_size)) if self.by_rows else count
        if count is not None and self.steps_per_epoch is not None and self.steps_per_epoch > count:
            raise ValueError(f"steps_per_epoch is {self.steps_per_epoch}, but the {_kind(self.source)} has {count} batches.")
        return self.steps_per_epoch or count

    def drop(self, names: Collection[str]) -> None:
        """Remove arrays of the batch that `peek` returned; `names` removes those of the others."""
        if self._first is not None:
            at, batch, rest = self._first
            self._first = at, batch._replace(inputs={k: v for k, v in batch.inputs.items() if k not in names}), rest

    def batches(self, epoch: int, batch_size: int | None = None, start: int = 0) -> Generator[Batch, None, None]:
        """Iterate over the batches of an epoch, starting at batch `start`.

        Args:
            epoch: index of the epoch, from 0; passed to a callable `f(epoch)`.
            batch_size: ignored: the source determines it.
            start: index of the first batch, the saved position of an interrupted epoch.  The batches before it are read and
                dropped, unless the source has `seek_batch(epoch, batch)`.

        Returns:
            Iterator of `Batch`.

        Raises:
            ValueError: the source yields no batch or fewer than `start`, or is an exhausted generator.  Exceptions of the
                source propagate unchanged.
        """
        for number, batch in enumerate(self._batches(epoch, start), start):
            yield self._weighted(batch, number, epoch)

    def _weighted(self, batch: Batch, number: int, epoch: int) -> Batch:
        weights = self.class_weights
        return batch if weights is None else weights.apply(batch, f"batch {number} of epoch {epoch}: ")

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        if self._continues:
            return self._continued(epoch, start)
        if self._unread is not None:
            (before, count), self._unread = self._unread, None
            _drop(self._one_pass(before, 0), count)
        if start and start == self.steps_per_epoch and self._cuts and self._epoch_start is not None:
            if self._epoch_start[0] == epoch:  # the next epoch is the pass after this one, which is finished but not begun
                self._go_to(*self._epoch_start)
                _drop(self._one_pass(epoch, 0), start)
            return iter(())
        return self._cut(self._one_pass(epoch, start), epoch, start)

    def _one_pass(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of one pass over the source from batch `start`."""
        if self._first is not None:
            (at, first, rest), self._first = self._first, None
            if (at, start) == (epoch, 0) or not (self._seekable or (self._is_factory and at != epoch)):
                yield from _skip(_chain(first, rest), start)
                return
        if self._seekable:
            self.source.seek_batch(epoch, start)
            self._mid_epoch = False
            yield from self._read(epoch, start)
            return
        if start and self._epoch_start is not None and self._epoch_start[0] == epoch:
            self._go_to(*self._epoch_start)  # repeat the epoch in the same order, not in that of the next epoch
        if start and self._exhausted:  # a one-shot iterator goes on; batches that were read ahead are lost
            self._exhausted = False
            yield from self._read(epoch, start)
            return
        yield from _skip(self._read(epoch), start)

    def _cut(self, stream: Iterator[Batch], epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches from `start` to `steps_per_epoch` of a pass; raise if it has fewer."""
        if self.steps_per_epoch is None:
            yield from stream
            return
        number = start
        for batch in itertools.islice(stream, self.steps_per_epoch - start):
            number += 1
            yield batch
        if number < self.steps_per_epoch:
            raise ValueError(_too_short(self.source, epoch, number, self.steps_per_epoch))

    def _continued(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of an epoch of an iterable that is not restarted: they follow the last batch of the previous epoch.

        The first `start` batches, which were trained before a resumed run stopped, are read and dropped.
        """
        steps = self.steps_per_epoch
        assert steps is not None
        if self._next > epoch * steps + start and self._epoch_start is not None and self._epoch_start[0] == epoch:
            self._go_to(*self._epoch_start)  # batches that were read ahead before an interrupt are read again
        if self._sequence is None:
            self._sequence = self._passes(epoch)
        elif self._next == epoch * steps:
            self._record(epoch)
        self._next = min(self._next, epoch * steps + start)  # batches read ahead from a source without a state are lost
        while self._next < (epoch + 1) * steps:
            sequence, self._sequence = self._sequence, None  # it stays None after an error
            batch = next(sequence)  # not `yield from`, which would close the sequence together with this generator
            self._sequence = sequence
            self._next += 1
            if self._next > epoch * steps + start:
                yield batch

    def _passes(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of `epoch` and of the following ones, one pass over the source after another, without end."""
        first, any_batch = True, True
        while first or any_batch:
            any_batch = first  # a position may be the end of a pass
            for batch in self._read(epoch, record=first, may_be_empty=True):
                any_batch = True
                yield batch
            first = False
        steps = self.steps_per_epoch or 1
        raise ValueError(_too_short(self.source, *divmod(self._next, steps), steps))

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
        begun, at_begin = self._epoch_start or (None, None)
        begins_here = self._continues and self._sequence is not None and self._next == epoch * (self.steps_per_epoch or 0)
        if self._pending is not None and self._pending[0] == epoch:
            position = self._pending[1]
        elif begun == epoch:
            position = at_begin
        elif self._cuts and begun == epoch - 1:
            # The state now is in the middle of a pass, but the next epoch is a new pass: a resumed run repeats this one.
            position = {_BEFORE: at_begin, "batches": self.steps_per_epoch}
        else:
            position = self._position() if begins_here or self._has_state else None
        try:
            return encode(position)
        except TypeError:  # not encodable as JSON: a resumed run skips batches by counting
            return None

    def start_epoch(self, epoch: int, position: Any) -> None:
        """Load the state that `epoch_start` returned for an epoch; no effect on a source without a state."""
        if self._seekable:
            return
        position, self._unread = decode(position), None
        if isinstance(position, Mapping) and _BEFORE in position:
            self._go_to(epoch - 1, position[_BEFORE])
            self._unread = (epoch - 1, position["batches"])
        else:
            self._go_to(epoch, position)

    def _go_to(self, epoch: int, position: Any) -> None:
        if self._continues and (self._has_state or not self._exhausted):
            self._sequence, self._next = None, epoch * (self.steps_per_epoch or 0)
        if self._has_state:
            _put(self.source, position)
            self._epoch_start, self._exhausted = (epoch, position), False
        elif self._exhausted:
            return  # a one-shot iterator without a state: batches are counted from where it is
        else:
            self._pending = (epoch, position)
        self._first, self._mid_epoch = None, False

    def peek(self, epoch: int = 0) -> Batch:
        """Return the first batch of an epoch without consuming it: for shapes and dtypes before training starts."""
        if self._first is None:
            stream = self._passes(epoch) if self._continues else self._read(epoch)
            patience = Patience(lambda _: self.described(0, epoch), self.timeout)
            self._first = (epoch, next_patiently(stream, patience), stream)
            if self._continues:
                self._sequence = _chain(*self._first[1:])
        return self._weighted(self._first[1], 0, epoch)

    def described(self, batch: int, epoch: int) -> str:
        """Return the name of a batch for messages, such as "batch 3 of epoch 0 (DataLoader)"."""
        return f"batch {batch} of epoch {epoch} ({_kind(self.source)})"

    def _position(self) -> Any | None:
        """The state of the source, or else that of what was opened from it last; None without one."""
        owners = (self.source,) if self._has_state else (self._loader, self._current)
        methods = next((pair for owner in owners if (pair := _state_methods(owner)) is not None), None)
        try:
            return None if methods is None else methods[0]()
        except Exception:  # a wrapper of a loader without a state, or workers that cannot return theirs: fall back to counting
            return None

    def _record(self, epoch: int) -> None:
        """Note the position at the start of an epoch."""
        position = self._position()
        self._epoch_start = None if position is None else (epoch, position)

    def _read(
        self, epoch: int, first: int = 0, *, record: bool = True, may_be_empty: bool = False
    ) -> Generator[Batch, None, None]:
        """Yield the batches of a newly opened source; reset an MXNet iterator after it.

        Args:
            epoch: index of the epoch.
            first: number of the first batch, to which the source has been moved.
            record: whether this is the start of the epoch, whose position is recorded.
            may_be_empty: whether a pass without a batch is no error.
        """
        iterator: Any = self._open(epoch)
        resets = is_mxnet_iter(iterator)
        # In a roll_over iterator `pad` is the number of rows carried over from the previous epoch: they are not padding.
        wraps = getattr(iterator, "last_batch_handle", "pad") != "roll_over"
        any_batch = first > 0  # then the pass may have ended
        twice = not first and (resets or (self._has_state and iterator is not self.source))
        for attempt in range(2 if twice else 1):
            if attempt and resets:  # the user had read the iterator to its end before passing it
                iterator.reset()
            elif attempt:  # the state of the source was the end of the previous epoch
                iterator = self._open(epoch)
            if record and not self._seekable:
                self._record(epoch)
            self._mid_epoch = resets
            for number, element in enumerate(self._elements(iterator), first):
                any_batch, where = True, f"batch {number} of epoch {epoch}: "
                yield to_batch(
                    self._named(element), self.names, described=iterator, train_pad=self.train_pad, wraps=wraps, where=where
                )
            if any_batch:
                break
        if resets:
            iterator.reset()
        self._mid_epoch = False
        if not any_batch and not may_be_empty:
            raise ValueError(f"epoch {epoch}: the {_kind(self.source)} yielded no batch, expected at least one")

    def _elements(self, iterator: Any) -> Iterator[Any]:
        """Yield the batches of an iterator; rows are collated to batches."""
        elements = (element for element in iterator)  # closing it does not close the iterator
        if self.batch_size is None or is_mxnet_iter(iterator):
            return elements
        if self.by_rows is None:
            first = next(elements, _END)
            if first is _END:
                return iter(())
            labels = () if self.columns is None else self.columns.label or ()
            self.by_rows, elements = is_row(first, self.names, labels), _chain(first, elements)
        return collated(elements, own_size(self.batch_size)) if self.by_rows else elements

    def _named(self, element: Any) -> Any:
        """Rename the columns of a dict to the inputs of the graph, and log once those that are not used."""
        arrays = element.inputs if isinstance(element, Batch) else element
        if self.needs_columns and not isinstance(element, Mapping):
            found = f"the {_kind(self.source)} yielded a {type(element).__name__}"
            raise ValueError(label_without_columns(self.columns, found))
        if not isinstance(arrays, Mapping):
            return element
        if self.columns is not None and arrays is element:
            element, self.columns = select(element, self.names, self.columns)
            arrays = element
        if not self._logged:
            self._logged = True
            self.names.log_extra(arrays)
        return element

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
        iterator = iter(source)
        if iterator is self.source:
            if self._exhausted and not self._continues:
                raise ValueError(
                    f"epoch {epoch}: the {_kind(self.source)} was exhausted by an earlier pass; pass a callable that makes one."
                )
            self._exhausted = True
        if position is not None:
            _put(iterator, position)
        self._current = iterator
        return iterator


_END = object()
_BEFORE = "__state_of_epoch_before__"  # key of a position: the state at the start of the epoch before


def is_endless(source: Any) -> bool:
    """Return whether an iterable is known to be endless: of itertools, a tf.data or grain data set with `repeat()`.

    Example:
        >>> import itertools
        >>> is_endless(itertools.count()), is_endless([1, 2])
        (True, False)
    """
    if isinstance(source, (itertools.cycle, itertools.count)):
        return True
    if isinstance(source, itertools.repeat):
        return operator.length_hint(source, -1) < 0
    try:
        if hasattr(source, "as_numpy_iterator") and hasattr(source, "cardinality"):
            return int(source.cardinality()) == -1
        return len(source) >= sys.maxsize
    except (TypeError, NotImplementedError):
        return False


def _too_short(source: Any, epoch: int, count: int, steps: Any) -> str:
    return (
        f"epoch {epoch}: the {_kind(source)} ended after {count} of steps_per_epoch={steps} batches, and cannot continue; pass "
        "a smaller steps_per_epoch or num_epoch, or data that has more batches."
    )


def _state_methods(owner: Any) -> tuple[Any, Any] | None:
    """Return the methods (get state, load state) of a loader or iterator, or None if it has none."""
    pairs = ((getattr(owner, get, None), getattr(owner, put, None)) for get, put in _STATE_METHODS)
    return next((pair for pair in pairs if None not in pair), None)


def _put(owner: Any, position: Any) -> bool:
    """Load a state into a loader or iterator; return False if it has no method for it."""
    methods = _state_methods(owner)
    if methods is None:
        return False
    try:
        methods[1](position)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        problem = f"the saved position is damaged, or not of a {type(owner).__name__}"
        raise ValueError(f"{problem} ({type(error).__name__}: {error})") from error
    return True


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _skip(stream: Iterator[Batch], start: int) -> Iterator[Batch]:
    _drop(stream, start)
    yield from stream


def _drop(stream: Iterator[Batch], count: int) -> None:
    """Read batches without using them; raise if there are fewer."""
    last = None
    for done in range(count):
        if (batch := next(stream, None)) is None:
            raise Exhausted(count, done, last)
        last = batch


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
