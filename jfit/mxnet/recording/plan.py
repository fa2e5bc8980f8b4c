"""How to compute values or gradients of some results of a tape: which arrays it takes, and the program."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

import jfit
from jfit.graph.nodes import Entry, Node
from jfit.graph.symbol import Symbol
from jfit.mxnet.errors import translated
from jfit.mxnet.recording.calls import Call, cotangent, function_call, is_float
from jfit.mxnet.recording.steps import Step
from jfit.programs import Program

MAX_NEW = 32  # how many plans are compiled at their first run, without a second run since
_new = [0]  # number of those
MAX_OPERATIONS = 2000  # XLA's time to compile grows faster than the number of operations; more of them run one by one


class Plan:
    """The part of a path that is connected with some results, and its programs.

    Args:
        step: the end of the path.
        heads: slots of the results to differentiate; empty: only values are computed.
        wanted: slots of the results whose values are computed too, if they are connected with `roots`.
        roots: slots of results; all that is connected with them by operations is one program.
        known: slots of results that were computed before.

    Attributes:
        leaves: slots of the arrays that it takes.
        variables: slots of the leaves that get a gradient.
        extras: those of `wanted` that it computes.
        visited: slots of all results that the heads depend on.
        aux: slots of the auxiliary states, whose new values it computes.
        places: positions among the leaves of those with a result: of the variables, then of the auxiliary states.
        specs: shape and dtype of each of these leaves.
        keeps_gradients: whether the gradients are results of a program that also updates the variables.
    """

    keeps_gradients = False

    def __init__(
        self, step: Step, heads: Sequence[int], wanted: Sequence[int], roots: Sequence[int], known: Collection[int]
    ) -> None:
        self.heads, self._runs, self._is_new = tuple(heads), 0, False
        self._updates: dict[Any, Program] = {}  # by update, numbers of the variables, `keeps_gradients`
        operations = {slot: s for s in step.path() if s.call for slot in _slots(s)}
        self._operations, self._known = operations, frozenset(known)
        together = self._connected(roots)
        self.extras = tuple(slot for slot in wanted if slot in together)
        self.visited = self._before(heads)
        needed = self._before((*heads, *self.extras))
        self._steps = sorted({operations[slot] for slot in needed if slot not in self._known}, key=lambda s: s.first)
        inputs = sorted({slot for s in self._steps for slot in s.inputs})
        self.leaves = tuple(s for s in inputs if s not in operations or s in self._known)
        leaves = {s.first: s for s in step.path() if not s.call}
        variables = {slot for slot, s in leaves.items() if s.request and is_float(s.outputs[0])}
        used = {slot for s in self._steps if s.first in self.visited for slot in s.inputs}
        self.variables = tuple(slot for slot in self.leaves if slot in used and slot in variables)
        aux = {s.inputs[i]: None for s in self._steps if s.train and s.first in self.visited for i in s.call.aux}  # type: ignore[union-attr]
        self.aux = tuple(aux)
        results = self.variables + self.aux
        self.places, self.specs = [*map(self.leaves.index, results)], [leaves[slot].outputs[0] for slot in results]
        self._is_own = all(s.call.is_own for s in self._steps)  # type: ignore[union-attr]
        self._train = any(s.train for s in self._steps)
        self.is_random = any(s.call.op.needs_rng for s in self._steps)  # type: ignore[union-attr]

    def _before(self, slots: Sequence[int]) -> set[int]:
        """Return the slots of the results that these depend on, and their own."""
        found = set(slots)
        for slot, step in reversed(self._operations.items()):  # the inputs of a step have smaller slots than its results
            if slot in found and slot not in self._known:
                found.update(_slots(step), step.inputs)
        return found & self._operations.keys()

    def _connected(self, roots: Sequence[int]) -> set[int]:
        """Return the slots of the results that are connected with the roots by operations (not by a common leaf)."""
        users: dict[int, list[Step]] = {}
        for step in {*self._operations.values()}:
            for slot in step.inputs:
                users.setdefault(slot, []).append(step)
        found: set[int] = set()
        stack = list(roots)
        while stack:
            slot = stack.pop()
            if slot in self._operations and slot not in found:
                found.add(slot)
                for step in (self._operations[slot], *users.get(slot, ())):
                    stack.extend((*_slots(step), *step.inputs))
        return found

    # ---------------------------------------------------------------------------------------------- the graph
    @functools.cached_property
    def symbol(self) -> Symbol:
        """The graph of heads and extras; its variables have the names `v<slot>`."""
        entries = {slot: Entry(Node(None, f"v{slot}", {}), 0) for slot in self.leaves}
        for step in self._steps:
            assert step.call is not None
            node = step.call.node(f"n{step.first}", [entries[slot] for slot in step.inputs], self._train and not step.train)
            entries.update({slot: Entry(node, i) for i, slot in enumerate(_slots(step))})
        return Symbol(tuple(entries[slot] for slot in (*self.heads, *self.extras)))

    @functools.cached_property
    def _model(self) -> Any:
        return jfit.lower(self.symbol, inputs=[])

    def _apply(self, key: Any, values: dict[int, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return (heads and extras, new auxiliary states)."""
        arrays = {f"v{slot}": values[slot] for slot in self.leaves}
        aux = {name: arrays.pop(name) for name in self.symbol.list_auxiliary_states()}
        rng = None if key is None else jax.random.wrap_key_data(key)
        outputs, new_aux = self._model.apply(arrays, aux, {}, key=rng, train=self._train)
        return tuple(outputs), tuple(new_aux[f"v{slot}"] for slot in self.aux)

    def _gradients(self, key: Any, leaves: Sequence[Any], head_gradients: Sequence[Any]) -> Any:
        """Return (gradients of the variables, extras, new auxiliary states)."""
        values, count = dict(zip(self.leaves, leaves, strict=True)), len(self.heads)

        def forward(variables: Sequence[Any]) -> Any:
            outputs, new_aux = self._apply(key, {**values, **dict(zip(self.variables, variables, strict=True))})
            return outputs[:count], (outputs[count:], new_aux)

        heads, vjp, (extras, new_aux) = jax.vjp(forward, [values[slot] for slot in self.variables], has_aux=True)
        (gradients,) = vjp(tuple(map(cotangent, heads, head_gradients)))
        return gradients, extras, new_aux

    def _values(self, key: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return self._apply(key, dict(zip(self.leaves, leaves, strict=True)))[0]

    # ---------------------------------------------------------------------------------------------- running it
    @functools.cached_property
    def _program(self) -> Program:
        fn = self._gradients if self.heads else self._values
        return Program(fn, jax.jit, name="autograd_backward" if self.heads else "autograd_forward")

    def _compiles(self) -> bool:
        """Return whether to compile: while few plans were compiled in vain, or if this one runs again."""
        if len(self._steps) > MAX_OPERATIONS:
            return False
        self._runs += 1
        if self._runs == 1 and _new[0] < MAX_NEW:
            self._is_new = True
            _new[0] += 1
        elif self._is_new:
            self._is_new = False
            _new[0] -= 1
        return self._is_new or self._runs > 1

    def values(self, key: Any, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the values of `extras`."""
        if self._compiles():
            with translated():
                return self._program(key, leaves)
        values = self._one_by_one(key, leaves)
        return [values[slot] for slot in self.extras]

    def gradients(self, key: Any, leaves: Sequence[Any], head_gradients: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return (gradients of `variables`, values of `extras`, new values of `aux`); a head gradient may be None, for ones."""
        if self._compiles():
            with translated():
                return self._program(key, leaves, head_gradients)
        values, new_aux = self._one_by_one(key, leaves), {}
        cotangents = {slot: cotangent(values[slot], g) for slot, g in zip(self.heads, head_gradients, strict=True)}
        for step in reversed(self._steps):
            outs = [cotangents.pop(slot, None) for slot in _slots(step)]
            if all(o is None for o in outs):
                continue
            call: Any = step.call
            ins = [values[slot] for slot in step.inputs]
            pulled, new = call.pull[step.train](next(iter(_key_of(key, step)), None), ins, outs)
            for slot, gradient in zip(step.inputs, pulled, strict=True):
                if gradient is not None:
                    cotangents[slot] = gradient if slot not in cotangents else cotangents[slot] + gradient
            new_aux.update(zip([step.inputs[i] for i in call.aux], new, strict=False))
        zeros = [np.zeros(spec.shape, spec.dtype) for spec in self.specs]
        grads = [cotangents.get(slot, zero) for slot, zero in zip(self.variables, zeros, strict=False)]
        return grads, [values[slot] for slot in self.extras], [new_aux.get(slot, values[slot]) for slot in self.aux]

    # ---------------------------------------------------------------------------------------------- with an update
    def may_wait(self) -> bool:
        """Return whether the backward pass would be compiled now, and nobody sees when it runs."""
        return self._is_own and len(self._steps) <= MAX_OPERATIONS and (self._runs > 0 or _new[0] < MAX_NEW)

    def updated(self, update: Any, which: tuple[int, ...], key: Any, leaves: Sequence[Any], rest: Sequence[Any]) -> Any:
        """Compute gradients and the update of some variables in one program.

        Args:
            update: function (weights, gradients, *rest) -> pytree; the same object in each call, or it compiles again.
            which: indices of the variables.
            key, leaves: as for `gradients`.
            rest: further arguments of `update`.

        Returns:
            (result of `update`, values of `extras`, new values of `aux`, gradients or () unless `keeps_gradients`).
        """
        keeps = self.keeps_gradients
        program = self._updates.get((update, which, keeps))
        if program is None:

            def run(key: Any, leaves: Sequence[Any], rest: Sequence[Any]) -> Any:
                gradients, extras, aux = self._gradients(key, leaves, [None])
                weights = tuple([leaves[self.places[i]] for i in which])
                new = update(weights, tuple([gradients[i] for i in which]), *rest)
                return new, extras, aux, gradients if keeps else ()

            program = self._updates[update, which, keeps] = Program(run, jax.jit, name="autograd_step")
        self._compiles()
        with translated():
            return program(key, leaves, rest)

    def _one_by_one(self, key: Any, leaves: Sequence[Any]) -> dict[int, Any]:
        """Run the operations one by one; returns the values of all slots."""
        values = dict(zip(self.leaves, leaves, strict=True))
        for step in self._steps:
            assert step.call is not None
            outputs = step.call.run[step.train](*_key_of(key, step), *(values[slot] for slot in step.inputs))
            values.update(enumerate(outputs, step.first))
        return values

    @functools.cached_property
    def recorded(self) -> Call:
        """The operation (key data, *leaves, *head gradients) -> gradients of `variables`, to differentiate them again."""

        def gradient(key: Any, *arrays: Any) -> tuple[Any, ...]:
            count = len(self.leaves)
            return tuple(self._gradients(key, arrays[:count], arrays[count:])[0])

        return function_call(gradient, 1 + len(self.leaves) + len(self.heads))


def _key_of(key: Any, step: Step) -> list[Any]:
    """Return the key that the node of a step has in the program of its graph, in a list; [] if it needs none."""
    assert step.call is not None
    if not step.call.is_random:
        return []
    return [jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key), zlib.crc32(f"n{step.first}".encode())))]


def _slots(step: Step) -> range:
    return range(step.first, step.first + len(step.outputs))
