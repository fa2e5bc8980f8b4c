"""What cells do with the steps of a sequence and with cells inside them, for `mx.rnn` and `mx.gluon.rnn` alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jfit.mxnet.rnn.sequences import Sequences
from jfit.mxnet.rnn.steps import States


class Cell:
    """A function of one time step, which is called for every step of a sequence."""

    _prefix: str
    _counter: int  # of time steps
    _init_counter: int  # of initial states
    __call__: Any

    def _begin(self, func: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Return the next initial state."""
        self._init_counter += 1
        return func(name=f"{self._prefix}begin_state_{self._init_counter}", **options)

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        """Apply the cell to a sequence after `reset`; subclasses override this method."""
        outputs, all_states = [], []
        for step in sequences.steps(inputs):
            output, states = self(step, states)
            outputs.append(output)
            all_states.append(states)
        if sequences.valid_length is not None:
            states = [sequences.last(each) for each in zip(*all_states, strict=True)]
        return sequences.masked(outputs, sequences.merge), states


class Parts(Cell):
    """A cell whose states are those of the cells inside it, in order."""

    _cells: Any

    def _state_counts(self) -> list[int]:
        """Return the number of states of each cell."""
        raise NotImplementedError

    def _split_states(self, states: Sequence[Any]) -> list[States]:
        """Split a list of states into one list for each cell."""
        counts, each = self._state_counts(), iter(states)
        if len(states) != sum(counts):
            raise ValueError(f"found {len(states)} states, the {len(counts)} cells have {sum(counts)}; see state_info")
        return [list(itertools.islice(each, count)) for count in counts]


class Stacked(Parts):
    """Cells whose inputs are the outputs of the previous one."""

    def __call__(self, inputs: Any, states: States) -> tuple[Any, States]:
        """Compute one time step of every cell: (inputs, states of all cells) -> (output, new states of all cells)."""
        self._counter += 1
        new_states: States = []
        for cell, own in zip(self._cells, self._split_states(states), strict=True):
            inputs, own = cell(inputs, own)
            new_states += own
        return inputs, new_states

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        cells, new_states = list(self._cells), []
        for cell, own in zip(cells, self._split_states(states), strict=True):
            inputs, own = sequences.unroll(cell, inputs, own, sequences.merge if cell is cells[-1] else None)
            new_states += own
        return inputs, new_states


class BothDirections(Parts):
    """Two cells over the same sequence, the second backward in time; their outputs are concatenated."""

    _output_prefix: str

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, Any]:
        forward = sequences.steps(inputs)
        runs = zip(self._cells, (forward, sequences.reversed(forward)), self._split_states(states), strict=True)
        (left, l_states), (right, r_states) = (sequences.unroll(*run, sequences.merge) for run in runs)
        merge, concat = not isinstance(left, list) and not isinstance(right, list), sequences.F.concat
        if merge:
            outputs = concat(left, sequences.reversed(right), dim=2, name=f"{self._output_prefix}out")
        else:
            left, right = (sequences.steps(outputs, "SliceChannel") for outputs in (left, right))
            pairs = enumerate(zip(left, sequences.reversed(right), strict=True))
            outputs = [concat(a, b, dim=1, name=f"{self._output_prefix}t{i}") for i, (a, b) in pairs]
        return sequences.masked(outputs, merge), [l_states, r_states]


class Modifier(Cell):
    """A cell that wraps another cell and has its weights and states."""

    base_cell: Any
    _check_not_modified: Callable[[], None]

    @property
    def params(self) -> Any:
        """The parameters of the wrapped cell."""
        return self.base_cell.params

    def _begin_wrapped(self, **kwargs: Any) -> States:
        """Return the initial states of the wrapped cell, with arguments of its `begin_state`."""
        self._check_not_modified()
        self.base_cell._modified = False
        states = self.base_cell.begin_state(**kwargs)
        self.base_cell._modified = True
        return states


class Zoneout(Modifier):
    """A cell whose outputs and states keep, at random, their values of the previous step."""

    _check_steps: Callable[[Any], None]  # raises an error if the wrapped cell cannot do a single time step

    def __init__(self, base_cell: Any, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        self._check_steps(base_cell)
        super().__init__(base_cell)  # type: ignore[call-arg]
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states

    def _zoned(self, F: Any, inputs: Any, states: States, first: Callable[[Any], Any]) -> tuple[Any, States]:
        """Compute one time step; `first` returns the output before the first step."""

        def zoneout(rate: float, new: Any, old: Any) -> Any:
            # Dropout of ones is the mask: 0 with probability `rate` in training, never 0 in prediction, which returns `new`.
            return F.where(F.Dropout(F.ones_like(new), p=rate), new, old) if rate else new

        output, new_states = self.base_cell(inputs, states)
        previous = first(output) if self.prev_output is None else self.prev_output
        self.prev_output = zoneout(self.zoneout_outputs, output, previous)
        pairs = zip(new_states, states, strict=True)
        return self.prev_output, [zoneout(self.zoneout_states, new, old) for new, old in pairs]

    def reset(self) -> None:
        """Reset the step counter and discard the output of the previous step."""
        super().reset()  # type: ignore[misc]
        self.prev_output: Any = None


class Residual(Modifier):
    """A cell whose inputs are added to its outputs."""

    def _unroll(self, sequences: Sequences, inputs: Any, states: States) -> tuple[Any, States]:
        outputs, states = sequences.unroll(self.base_cell, inputs, states, sequences.merge)
        merge = not isinstance(outputs, list)
        inputs = sequences.masked(inputs, merge)
        return (self._sum(outputs, inputs) if merge else list(map(self._sum, outputs, inputs))), states

    def _sum(self, output: Any, inputs: Any) -> Any:
        """Return output + inputs."""
        raise NotImplementedError
