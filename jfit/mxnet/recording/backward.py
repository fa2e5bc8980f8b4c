"""Backward passes: the gradients of recorded arrays with respect to variables."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfit.mxnet.errors import MXNetError
from jfit.mxnet.mutable import MutableArray, as_array, replace
from jfit.mxnet.recording.plan import Plan
from jfit.mxnet.recording.tape import Pull, Tape, mode, origin

_NOT_RECORDED = (
    "Cannot differentiate node because it is not in a computational graph: the array was not computed from variables inside "
    "autograd.record(), or its gradient was computed before; pass retain_graph=True to compute it again"
)
_CANNOT = "Cannot differentiate with respect to the {}-th variable because it"


def backward(heads: Sequence[Any], head_gradients: Sequence[Any] | None = None, retain_graph: bool = False) -> None:
    """Compute the gradients of arrays and write them to the `grad` of the variables; see `mx.autograd.backward`."""
    given = head_gradients or [None]
    if len(heads) == len(given) == 1 and given[0] is None and not retain_graph and _wait(heads[0]):
        return
    pass_ = _Pass(heads, head_gradients)
    pass_.run(retain_graph)
    added, olds = [], []
    for array, gradient in pass_.gradients.values():
        if array.grad is None:  # its grad_req became "null" after it was recorded
            continue
        array._fresh_grad = True
        if array._grad_req == "add":
            added.append((array.grad, gradient))
            olds.append(array.grad.value)
        else:
            replace(array.grad, gradient)
    if added:
        for (grad, _), value in zip(added, _sums(olds, [g for _, g in added]), strict=True):
            replace(grad, value)


@jax.jit
def _sums(left: list[Any], right: list[Any]) -> list[Any]:
    return [a + b.astype(a.dtype) for a, b in zip(left, right, strict=True)]


class WaitingPass:
    """A backward pass that runs when one of its results is read, or in one program with the update of its variables.

    Results are numbered: gradients of the plan's variables, then new values of its auxiliary states.  An update does not return
    gradients, because usually nobody reads them.  If one is read afterwards, the pass runs again, on the old weights.

    Args:
        tape: what was recorded.
        plan: the plan of one head.
    """

    def __init__(self, tape: Tape, plan: Plan) -> None:
        self._tape: Tape | None = tape
        self._plan, self._key, self._leaves = plan, tape.key(plan), tape.leaves(plan)  # as they are now
        self._results: list[Any] = [None] * len(plan.specs)
        self.specs = plan.specs

    def read(self, number: int) -> Any:
        """Return a result."""
        if self._results[number] is None:
            self._plan.keeps_gradients |= self._tape is None  # they were read after an update
            self.run()
        return self._results[number]

    def run(self) -> None:
        """Compute all results."""
        gradients, extras, aux = self._plan.gradients(self._key, self._leaves, [None])
        self._finish(extras, gradients, aux)

    def update(self, weights: Sequence[Any], gradients: Sequence[Any], update: Any, *rest: Any) -> Any:
        """Update weights in one program with the pass, if the gradients are results that were not computed.

        Args:
            weights: jax arrays.
            gradients: mutable arrays.
            update: function (weights, gradients, *rest) -> pytree.
            rest: its other arguments.

        Returns:
            What `update` returns; None if the gradients have to be read.
        """
        if self._tape is None:
            return None
        which = [later[1] for g in gradients if (later := getattr(g, "_later", None)) is not None and later[0] is self]
        leaves, places = self._leaves, self._plan.places
        if [id(w) for w in weights] != [id(leaves[places[i]]) for i in which]:
            return None
        new, extras, aux, computed = self._plan.updated(update, tuple(which), self._key, self._leaves, rest)
        self._finish(extras, computed, aux)
        return new

    def _finish(self, extras: Sequence[Any], gradients: Sequence[Any], aux: Sequence[Any]) -> None:
        if self._tape is not None:
            self._tape.keep(self._plan, extras)
            self._tape.waiting = self._tape = None
        self._results = [*(gradients or [None] * len(self._plan.variables)), *aux]
        if gradients:
            self._leaves = []  # the arrays may be freed


def _wait(head: Any) -> bool:
    """Let the backward pass of a head wait, and return True; False if it must run now."""
    tape, slot = head._entry or (None, 0)
    if tape is None or tape.sources or tape.waiting is not None:
        return False
    plan = tape.plan((slot,), tape.pending(), (slot,))
    if not plan.may_wait():
        return False
    owners = [tape.owners[slot] for slot in plan.variables]
    boxes: list[Any] = [a.grad if a._grad_req == "write" else None for a in owners] + [tape.owners[slot] for slot in plan.aux]
    if len({*map(id, boxes)}) < len(boxes):
        return False
    for box, spec in zip(boxes, plan.specs, strict=True):
        if box is None or box._entry is not None or type(box).value is not MutableArray.value:
            return False  # added to the gradient, or itself recorded, or a view
        if (box.shape, box.dtype) != (spec.shape, spec.dtype):
            return False
    tape.waiting = pass_ = WaitingPass(tape, plan)
    for i, box in enumerate(boxes):
        if box._later is None:
            del box.value
        box._later = pass_, i
    for owner in owners:
        owner._fresh_grad = True
    tape.release(plan.visited)
    return True


class _Pass:
    """One backward pass, over all tapes that the heads depend on.

    Args:
        heads: NDArrays to differentiate.
        head_gradients: gradient with respect to each, or None for ones.
        kind: class of gradients that are recorded, to be differentiated again; None: they are jax arrays.

    Attributes:
        gradients: id of a variable -> (the variable, its gradient).
    """

    def __init__(self, heads: Sequence[Any], head_gradients: Sequence[Any] | None = None, kind: Any = None) -> None:
        self._kind, self.gradients = kind, dict[int, tuple[Any, Any]]()
        self._open: dict[Tape, dict[int, Any]] = {}  # tape -> slot -> gradient, or None for ones
        given = [None] * len(heads) if head_gradients is None else list(head_gradients)
        if len(given) != len(heads):
            raise ValueError(f"there are {len(heads)} heads and {len(given)} head gradients; pass one for each head, or None")
        for head, gradient in zip(heads, given, strict=True):
            start = origin(head)
            if start is None:
                raise MXNetError(_NOT_RECORDED)
            if gradient is None and not isinstance(start, tuple):
                gradient = jax.numpy.ones(head.shape, head.dtype)
            self._add(start, gradient if kind is not None or gradient is None else as_array(gradient))

    def _add(self, to: Any, gradient: Any) -> None:
        """Add a gradient to that of a result of a tape, or of a variable."""
        if isinstance(to, tuple):
            tape, slot = to
            slots = self._open.setdefault(tape, {})
            if slot in slots:
                gradient = _or_ones(slots[slot], tape, slot) + _or_ones(gradient, tape, slot)
            slots[slot] = gradient
        elif to is not None:
            old = self.gradients.get(id(to))
            self.gradients[id(to)] = to, gradient if old is None else old[1] + gradient

    def run(self, retain_graph: bool) -> None:
        """Go back through all tapes, from the last recorded one to the first."""
        while self._open:
            tape = max(self._open, key=operator.attrgetter("serial"))
            tape.settle()
            slots = self._open[tape]
            last = max(slots)
            if last in tape.owners:
                self._leave(tape, slots, last, retain_graph)
            else:
                self._pull(tape, slots, last, retain_graph)
            if not slots:
                del self._open[tape]

    def _leave(self, tape: Tape, slots: dict[int, Any], last: int, retain_graph: bool) -> None:
        """Pass the gradient of a leaf on to where it was computed."""
        source = tape.sources.get(last)
        if not retain_graph:
            tape.release(source.slots if isinstance(source, Pull) else [last])
        if isinstance(source, Pull):
            gradients = [_or_ones(slots.pop(slot), tape, slot) if slot in slots else None for slot in source.slots]
            for to, gradient in zip(source.origins, source.backward(gradients), strict=True):
                self._add(to, gradient)
            return
        gradient = _or_ones(slots.pop(last), tape, last)
        if source is not None and not isinstance(gradient, MutableArray):
            # the array may have been copied to another device
            place = source[0].values[source[1]] if isinstance(source, tuple) else source.value
            gradient = jax.device_put(gradient, place.sharding) if isinstance(place, jax.Array) else gradient
        self._add(tape.owners[last] if source is None else source, gradient)

    def _pull(self, tape: Tape, slots: dict[int, Any], last: int, retain_graph: bool) -> None:
        """Compute the gradients of all results that are connected with the last one, in one program."""
        heads = tuple(sorted(slot for slot in slots if slot not in tape.owners))
        wanted = () if self._kind else tape.pending()
        if len(heads) > 1:  # only those that are connected with the last one: others may be on another device
            heads = tape.plan((), heads, (last,)).extras
        plan = tape.plan(heads, wanted, (last,))
        given = [slots.pop(slot) for slot in plan.heads]
        if self._kind is not None:
            gradients: Any = self._recorded(tape, plan, given)
        else:
            gradients, extras, aux = plan.gradients(tape.key(plan), tape.leaves(plan), given)
            tape.keep(plan, extras)
            for slot, value in zip(plan.aux, aux, strict=True):
                tape.owners[slot].value = value
        for slot, gradient in zip(plan.variables, gradients, strict=True):
            self._add((tape, slot) if slot in tape.sources else tape.owners[slot], gradient)
        if not retain_graph:
            tape.release(plan.visited)

    def _recorded(self, tape: Tape, plan: Plan, given: list[Any]) -> Any:
        """Record the gradients as results of one operation on the leaves and head gradients."""
        assert mode.tape is not None
        owners = [tape.owners[slot] for slot in plan.leaves]
        values = [_or_ones(g, tape, slot) for slot, g in zip(plan.heads, given, strict=True)]
        heads = [v if isinstance(v, MutableArray) else self._kind(v) for v in values]
        key = tape.key(plan)
        key = self._kind(np.zeros(2, np.uint32) if key is None else key)
        return mode.tape.record(plan.recorded, [key, *owners, *heads], self._kind)


def _or_ones(gradient: Any, tape: Tape, slot: int) -> Any:
    spec = tape.specs[slot]
    return np.ones(spec.shape, spec.dtype) if gradient is None else gradient


def gradients_of(
    heads: Sequence[Any], variables: Sequence[Any], head_gradients: Any, retain_graph: bool, kind: Any
) -> list[Any]:
    """Return the gradients with respect to variables; recorded ones of class `kind`, if that is not None.

    Raises:
        MXNetError: an array is not a variable, or the heads do not depend on it.
    """
    for i, variable in enumerate(variables, 1):
        if variable._grad_req is None:
            raise MXNetError(f"{_CANNOT.format(i)} does not require gradient; call its attach_grad() before record()")
    pass_ = _Pass(heads, head_gradients, kind)
    pass_.run(retain_graph)
    for i, variable in enumerate(variables, 1):
        if id(variable) not in pass_.gradients:
            raise MXNetError(f"{_CANNOT.format(i)} is unreachable from the outputs")
    return [pass_.gradients[id(v)][1] for v in variables]
