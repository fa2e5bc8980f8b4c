"""What one `record()` block records, with its arrays: results have no value until one of them is read."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jfit.mxnet import keys
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.recording.calls import Call
from jfit.mxnet.recording.plan import Plan
from jfit.mxnet.recording.steps import MAX_STEPS, Step


class Mode(threading.local):
    """Whether this thread computes in training mode, and what it records to.

    Attributes:
        tape: what operations are recorded to, or None.
        training: whether they compute in training mode.
        on_host: whether the thread runs Python code in `on_host()`, where NumPy computes.
        eager: `training` if operations run on devices immediately, else None (there is a tape, or `on_host` is set), so that
            the fast path of an operation reads one attribute.
    """

    on_host = False

    def __init__(self) -> None:
        self.set(None, False)

    def set(self, tape: Tape | None, training: bool) -> None:
        """Replace the tape and the training mode."""
        self.tape, self.training = tape, training
        self.eager = training if tape is None and not self.on_host else None
        if tape is not None:
            tape.training = training


mode = Mode()


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Context manager for the Python code of custom operators and data loaders: new NDArrays and their arithmetic use NumPy.

    A program of JAX in the code of an operator could wait for the devices, which wait for that code.
    """
    before, mode.on_host = mode.on_host, True
    mode.set(mode.tape, mode.training)
    try:
        yield
    finally:
        mode.on_host = before
        mode.set(mode.tape, mode.training)


_new: Any = object.__new__
_root = [Step(None, ())]
_serials = itertools.count()


class Tape:
    """The operations of one `record()` block and the arrays they take.

    An NDArray that is a result has no value at first; its attribute `_entry` is (tape, slot).

    Attributes:
        step: the last step.
        serial: number of the tape; a tape depends on tapes with lower numbers only.
        training: `Mode.training` of the thread that records, because an attribute of a `threading.local` is slower.
        values: the array of each slot, None for a result that is not computed.
        specs: shape and dtype of each slot.
        places: an array on the device of each slot.
        owners: slot of a leaf -> its NDArray.
        sources: slot of a leaf that was computed from variables elsewhere -> (tape, slot) or `Pull`.
        waiting: the `WaitingPass` that computes results of this tape, or None.
    """

    def __init__(self) -> None:
        if Step.count > MAX_STEPS:
            _root[0], Step.count = Step(None, ()), 0
        self.step, self.serial, self.training = _root[0], next(_serials), False
        self.values: list[Any] = []
        self.specs: list[Any] = []
        self.places: list[Any] = []
        self.owners: dict[int, Any] = {}
        self.sources: dict[int, Any] = {}
        self.waiting: Any = None
        self._results: dict[int, weakref.ref[Any]] = {}
        self._slots: dict[int, int] = {}  # id of a variable, or of the value of a constant -> slot
        self._key: Any = None

    # ---------------------------------------------------------------------------------------------- recording
    def record(self, call: Call, arrays: Sequence[Any], kind: Any) -> list[Any]:
        """Record an operation; returns its results, of class `kind`.

        Raises:
            MXNetError: the operation does not accept arrays of these shapes and dtypes.
        """
        inputs, made = [], []
        for array in arrays:
            try:
                entry = array._entry
            except AttributeError:  # it is no NDArray
                array, entry = MutableArray(array), None
            inputs.append(entry[1] if entry is not None and entry[0] is self else self._leaf(array))
        key = call, self.training, *inputs
        step = self.step.next.get(key) or self.step.operation(key, [self.specs[slot] for slot in inputs])
        self.step, slot, place = step, step.first, self.places[inputs[0]]
        self.specs += step.outputs
        for _ in step.outputs:
            made.append(array := _new(kind))
            array._entry = self, slot
            self.values.append(None)
            self.places.append(place)
            self._results[slot] = weakref.ref(array)
            slot += 1
        return made

    def replace(self, result: Any, array: Any) -> None:
        """Let another NDArray be a result from now on."""
        self._results[result._entry[1]] = weakref.ref(array)

    def _leaf(self, array: Any) -> int:
        """Return the slot of an array from outside."""
        entry, value = array._entry, array.value
        request = array._grad_req if entry is None else "link"
        identity = id(value) if request is None else id(array)
        slot = self._slots.get(identity)
        if slot is None or self.values[slot] is not value:
            if isinstance(value, np.ndarray):
                value = value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
            slot = self._slots[identity] = self.add_leaf(array, value, request)
            if entry is not None:
                self.sources[slot] = entry
        return slot

    def add_leaf(self, array: Any, value: Any, request: str | None) -> int:
        """Add an array from outside; returns its slot."""
        key = value.shape, value.dtype, request
        self.step = self.step.next.get(key) or self.step.leaf(key)
        self.values.append(value)
        self.specs.extend(self.step.outputs)
        self.places.append(value)
        self.owners[self.step.first] = array
        return self.step.first

    # ---------------------------------------------------------------------------------------------- computing
    def key(self, plan: Plan) -> Any:
        """Return the key data of all random operations of this tape; None if the plan has none."""
        if plan.is_random and self._key is None:
            self._key = jax.random.key_data(keys.next_key())
        return self._key if plan.is_random else None

    def leaves(self, plan: Plan) -> list[Any]:
        """Return the arrays that a plan takes; auxiliary states as they are now, for every backward pass updates them."""
        states = {slot: self.owners[slot].value for slot in plan.aux}
        return [states.get(slot, self.values[slot]) for slot in plan.leaves]

    def pending(self) -> tuple[int, ...]:
        """Return the slots of the results that have no value, and that the script still refers to."""
        values = self.values
        return tuple([slot for slot, ref in self._results.items() if values[slot] is None and ref() is not None])

    def read(self, slot: int) -> Any:
        """Return the value of a slot; if it is not computed yet, all pending results connected with it are."""
        self.settle()
        if self.values[slot] is None:
            known = tuple([s for s in self._results if self.values[s] is not None])
            plan = self.plan((), tuple(sorted({slot, *self.pending()})), (slot,), known)
            self.keep(plan, plan.values(self.key(plan), self.leaves(plan)))
        return self.values[slot]

    def settle(self) -> None:
        """Run the deferred backward pass, if there is one."""
        if self.waiting is not None:
            self.waiting.run()

    def plan(
        self, heads: tuple[int, ...], wanted: tuple[int, ...], roots: tuple[int, ...], known: tuple[int, ...] = ()
    ) -> Plan:
        """Return the `Plan` with these arguments for all that is recorded so far."""
        key = heads, wanted, roots, known
        plan = self.step.plans.get(key)
        if plan is None:
            plan = self.step.plans[key] = Plan(self.step, *key)
        return plan

    def keep(self, plan: Plan, extras: Sequence[Any]) -> None:
        """Store the values of the extras of a plan, also in their NDArrays."""
        for slot, value in zip(plan.extras, extras, strict=True):
            array = self._results[slot]()
            if array is not None and self.values[slot] is None:
                array.value, array._later = value, None
            self.values[slot] = value

    def release(self, slots: Iterable[int]) -> None:
        """Forget how results were computed: their gradients were."""
        for slot in slots:
            array = self.owners[slot] if slot in self.owners else self._results[slot]()
            if array is not None and array._entry == (self, slot):
                array._later = array._entry if self.values[slot] is None else None
                array._entry = None


class Pull:
    """Python code that computes the gradients of arrays that were made by Python code, see `mx.autograd.Function`.

    Args:
        backward: function (list of the gradients of the results, or None) -> gradients of `inputs`.
        inputs: arrays, variables or results of tapes.
        slots: slots of the results on a tape, where they are leaves.
    """

    def __init__(self, backward: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Any], slots: Sequence[int]) -> None:
        self.backward, self.slots = backward, tuple(slots)
        self.origins = [origin(a) for a in inputs]


def origin(array: Any) -> Any:
    """Return where the gradient of an array goes: (tape, slot), the array itself if it is a variable, or None."""
    return array._entry or (array if array._grad_req is not None else None)


def is_tracked(arrays: Sequence[Any]) -> bool:
    """Return whether any of the arrays is a variable (an array with a gradient), or was recorded."""
    return any([a._entry is not None or a._grad_req is not None for a in arrays])  # noqa: C419 (a list is faster)
