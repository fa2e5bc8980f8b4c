"""What every recurrent cell shares: parameters by name, begin states, unrolling, the weights of single gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym

KINDS = ("i2h", "h2h")  # input -> gates, hidden state -> gates
Arrays = dict[str, Any]
States = list[Any]


class RNNParams:
    """Variables by name; cells that hold the same container share their weights.

    Args:
        prefix: stands before the name of every variable.

    Example:
        >>> params = RNNParams("a_")
        >>> params.get("weight").name, params.get("weight") is params.get("weight")
        ('a_weight', True)
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """The variable of that name, made with these arguments of `Variable` when it is asked for first."""
        full = self._prefix + name
        if full not in self._params:
            self._params[full] = sym.Variable(full, **kwargs)
        return self._params[full]


class BaseRNNCell:
    """A function of one time step, (input, states) -> (output, states), that can be unrolled over a sequence.

    A cell of your own has `state_info` and `__call__`; `self._counter` numbers the steps of a sequence.

    Args:
        prefix: stands before the names of its nodes and weights.
        params: weights to share; new ones by default.
    """

    _cells: Sequence[BaseRNNCell] = ()
    _num_hidden: int

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._prefix = prefix
        self._own_params = params is None
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Count steps and begin states from 0 again, as a new graph wants it."""
        self._counter = self._init_counter = -1
        for cell in self._cells:
            cell.reset()

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """One time step.

        Args:
            inputs: (batch, features).
            states: those of the step before, or of `begin_state`.

        Returns:
            The output and the new states.
        """
        raise NotImplementedError(f"{type(self).__name__} has no single time step; call unroll")

    # -------------------------------------------------------------------------------- what it is
    @property
    def params(self) -> RNNParams:
        """The container of its variables."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> list[Any]:
        """Shape (0 for the batch) and layout of each state."""
        raise NotImplementedError(f"{type(self).__name__} does not say what states it has")

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """The shape of each state, 0 for the batch."""
        return [info["shape"] for info in self.state_info]

    @property
    def _gate_names(self) -> Sequence[str]:
        """Ends of the names of the gates, in the order in which their weights are stacked."""
        return ()

    @property
    def _num_gates(self) -> int:
        return len(self._gate_names)

    # -------------------------------------------------------------------------------- begin states
    def begin_state(self, func: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """The states before the first step, named `<prefix>begin_state_<number>`.

        Args:
            func: makes a symbol from name, shape and layout: `mx.sym.zeros`, `mx.sym.Variable` to feed them, ...
            kwargs: further arguments of `func`.

        Example:
            >>> import jfit.mx as mx
            >>> mx.rnn.RNNCell(5).begin_state()[0].attr("shape")
            '(0, 5)'
        """
        self._refuse_if_modified()
        return [self._begin(func, {**kwargs, **(info or {})}) for info in self.state_info]

    def _begin(self, func: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        self._init_counter += 1
        return func(name=f"{self._prefix}begin_state_{self._init_counter}", **kwargs)

    def _refuse_if_modified(self) -> None:
        if self._modified:
            raise ValueError(
                f"this {type(self).__name__} is inside a modifier (Zoneout, Residual) that makes its states; call the modifier"
            )

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The modifier around this cell works on it."""
        self._modified = False
        try:
            yield
        finally:
            self._modified = True

    # -------------------------------------------------------------------------------- weights of single gates
    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Arrays by name in which the stacked weights of this cell are cut into those of single gates.

        Args:
            args: arrays by name, as `Module.get_params()[0]` gives them; others than this cell's pass through.
        """
        left, cut = dict(args), {}
        for stacked, gates in self._stacks():
            whole = taken(left, stacked)
            size = whole.shape[0] // len(gates)
            cut.update({gate: whole[i * size : (i + 1) * size].copy() for i, gate in enumerate(gates)})
        return {**left, **cut}

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """The inverse of `unpack_weights`: the weights of single gates are stacked."""
        left = dict(args)
        stacked = {name: nd.concatenate([taken(left, gate) for gate in gates]) for name, gates in self._stacks()}
        return {**left, **stacked}

    def _stacks(self) -> list[tuple[str, list[str]]]:
        """(name of a stacked array, names of its gates' arrays)"""
        if not self._gate_names:
            return []
        parts = [(kind, what) for kind in KINDS for what in ("weight", "bias")]
        return [
            (f"{self._prefix}{kind}_{what}", [f"{self._prefix}{kind}{gate}_{what}" for gate in self._gate_names])
            for kind, what in parts
        ]

    # -------------------------------------------------------------------------------- time
    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """The cell applied to each step of a sequence.

        Args:
            length: number of steps.
            inputs: one symbol laid out as `layout` says, or a list of (batch, features), one for each step.
            begin_state: states before the first step; zeros by default.
            layout: NTC or TNC: where batch, time and features are in a sequence that is one symbol.
            merge_outputs: True for the outputs as one symbol, False for a list, None for what is at hand.

        Returns:
            The outputs and the states after the last step.
        """
        self.reset()
        steps = sequence(length, inputs, layout, merge=False)
        states = self.begin_state() if begin_state is None else begin_state
        outputs = []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
        return sequence(length, outputs, layout, merge_outputs), states

    def _next_name(self) -> str:
        """Beginning of the names of one more step."""
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    def _get_activation(self, inputs: Symbol, activation: Any, **kwargs: Any) -> Symbol:
        """The activation by its name, or any function of a symbol."""
        if isinstance(activation, str):
            return sym.Activation(inputs, act_type=activation, **kwargs)
        return activation(inputs, **kwargs)


def sequence(length: int | None, inputs: Any, layout: str, merge: bool | None) -> Any:
    """A sequence as one symbol (`merge` True), as a list of steps (False), or as it is (None).

    Raises:
        ValueError: there is no sequence, or it has another length.
    """
    if inputs is None:
        raise ValueError("inputs is None: make the symbol of the input, mx.sym.Variable('data'), and pass it to unroll")
    axis = layout.find("T")
    if axis < 0:
        raise ValueError(f"layout is {layout!r}, needed one with a T for the time axis: NTC or TNC")
    if not isinstance(inputs, Symbol):
        steps = list(inputs)
        if length is not None and len(steps) != length:
            raise ValueError(f"inputs are {len(steps)} steps, length is {length}; pass one symbol for each step")
        return sym.Concat(*[sym.expand_dims(s, axis=axis) for s in steps], dim=axis) if merge else steps
    if merge is not False:
        return inputs
    if len(inputs.heads) != 1:
        raise ValueError(f"{inputs!r} has {len(inputs.heads)} outputs, one sequence is needed; pass list(inputs) for steps")
    return list(sym.split(inputs, axis=axis, num_outputs=length, squeeze_axis=1))


def taken(args: Arrays, name: str) -> Any:
    """The array of that name, removed from `args`.

    Raises:
        KeyError: there is none.
    """
    if name not in args:
        raise KeyError(f"no array is named {name!r}, which this cell needs; the arrays are {sorted(args)[:20]}")
    return args.pop(name)
