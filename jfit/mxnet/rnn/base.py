"""Base class of the recurrent cells: named parameters, initial states, unrolling, splitting of weights by gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym
from jfit.mxnet.rnn.composed import Cell, States
from jfit.mxnet.rnn.sequences import Sequences

CONNECTIONS = ("i2h", "h2h")  # input -> gates, hidden state -> gates
Arrays = dict[str, Any]


class Symbols(Sequences):
    """Sequences of symbols, joined with the nodes of MXNet's `mx.rnn`."""

    def one(self, inputs: Any) -> Any:
        """Return a sequence as one symbol."""
        if isinstance(inputs, Symbol):
            return inputs
        return sym.Concat(*[sym.expand_dims(s, axis=self.axis) for s in inputs], dim=self.axis)


class RNNParams:
    """A dict of variables by name; cells that use the same container share their weights.

    Args:
        prefix: prepended to the name of every variable.

    Example:
        >>> params = RNNParams("a_")
        >>> params.get("weight").name, params.get("weight") is params.get("weight")
        ('a_weight', True)
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """Return the variable `prefix + name`; the first call creates it with `Variable(prefix + name, **kwargs)`."""
        full = self._prefix + name
        if full not in self._params:
            self._params[full] = sym.Variable(full, **kwargs)
        return self._params[full]


class BaseRNNCell(Cell):
    """A function of one time step, (input, states) -> (output, states), that can be unrolled over a sequence.

    A subclass implements `state_info` and `__call__`; `self._counter` is the index of the time step, which
    gated cells advance in each call to name their nodes.

    Args:
        prefix: prepended to the names of the cell's nodes and weights.
        params: container of the weights, to share them with another cell; a new one by default.

    Example:
        >>> import jfit.mx as mx
        >>> class Sum(mx.rnn.BaseRNNCell):
        ...     state_info = [{"shape": (0, 3), "__layout__": "NC"}]
        ...
        ...     def __call__(self, inputs, states):
        ...         total = inputs + states[0]
        ...         return total, [total]
        >>> Sum().unroll(2, mx.sym.Variable("x"))[1][0].infer_shape(x=(4, 2, 3))[1]
        [(4, 3)]
    """

    _cells: Sequence[BaseRNNCell] = ()
    _num_hidden: int
    # suffix of each gate's parameter names, in the order in which the gates' weights are concatenated
    _gate_names: Sequence[str] = ()

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._prefix = prefix
        self._own_params = params is None
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Restart the numbering of time steps and initial states from 0, before the cell is unrolled into a new graph."""
        self._counter = self._init_counter = -1
        for cell in self._cells:
            cell.reset()

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Compute one time step.

        Args:
            inputs: symbol (batch, features).
            states: list of symbols: the states after the previous step, or `begin_state()`.

        Returns:
            (output, new states).
        """
        raise NotImplementedError(f"{type(self).__name__} has no single time step; call unroll")

    # -------------------------------------------------------------------------------- parameters and states
    @property
    def params(self) -> RNNParams:
        """The container of the cell's variables."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> list[Any]:
        """Shape (0 for the batch size) and `__layout__` of each state."""
        raise NotImplementedError(f"{type(self).__name__} does not implement state_info, the list of its states' shapes")

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """Shape of each state, 0 for the batch size."""
        return [info["shape"] for info in self.state_info]

    # -------------------------------------------------------------------------------- initial states
    def begin_state(self, func: Callable[..., Any] = sym.zeros, **kwargs: Any) -> States:
        """Return the initial states, named `<prefix>begin_state_<number>`.

        Args:
            func: function of name, shape and layout that returns a symbol: `mx.sym.zeros`, or `mx.sym.Variable` for states
                that are inputs of the network.
            kwargs: further arguments of `func`.

        Returns:
            List of symbols.

        Example:
            >>> import jfit.mx as mx
            >>> mx.rnn.RNNCell(5).begin_state()[0].attr("shape")
            '(0, 5)'
        """
        self._check_not_modified()
        return [self._begin(func, {**kwargs, **(info or {})}) for info in self.state_info]

    def _check_not_modified(self) -> None:
        if self._modified:
            raise ValueError(f"this {type(self).__name__} is inside a modifier cell, which has the states; call the modifier")

    # -------------------------------------------------------------------------------- conversion of weights
    def unpack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Split each weight and bias of this cell, which holds all gates in one array, into one array per gate.

        Args:
            args: arrays by name, such as `Module.get_params()[0]`; arrays of other layers are returned unchanged.

        Returns:
            Dict of arrays by name.
        """
        others, unpacked = dict(args), {}
        for name, gates in self._stacked_names():
            stacked = others.pop(name)
            size = stacked.shape[0] // len(gates)
            unpacked.update({gate: stacked[i * size : (i + 1) * size].copy() for i, gate in enumerate(gates)})
        return {**others, **unpacked}

    def pack_weights(self, args: Mapping[str, Any]) -> Arrays:
        """Concatenate the arrays of the gates into one array per weight and bias; the inverse of `unpack_weights`.

        Args:
            args: arrays by name, with one array per gate; arrays of other layers are returned unchanged.

        Returns:
            Dict of arrays by name.
        """
        others = dict(args)
        packed = {name: nd.concatenate([others.pop(g) for g in gates]) for name, gates in self._stacked_names()}
        return {**others, **packed}

    def _stacked_names(self) -> list[tuple[str, list[str]]]:
        """Return (name of an array of all gates, names of the arrays of the single gates) for each weight and bias."""
        if not self._gate_names:
            return []
        parameters = [(kind, what) for kind in CONNECTIONS for what in ("weight", "bias")]
        return [
            (f"{self._prefix}{kind}_{what}", [f"{self._prefix}{kind}{gate}_{what}" for gate in self._gate_names])
            for kind, what in parameters
        ]

    # -------------------------------------------------------------------------------- unrolling
    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """Apply the cell to every step of a sequence.

        Args:
            length: number of steps.
            inputs: one symbol in this layout, or a list of `length` symbols (batch, features).
            begin_state: initial states; `begin_state()` by default.
            layout: "NTC" (batch, time, features) or "TNC", of a sequence that is one symbol.
            merge_outputs: True returns the outputs as one symbol, False as a list, None in the form the cell computes them.

        Returns:
            (outputs, states after the last step).
        """
        if "T" not in layout:
            raise ValueError(f"layout is {layout!r}, expected one with a T for the time axis: NTC or TNC")
        if not isinstance(inputs, Symbol) and len(inputs) != length:
            raise ValueError(f"inputs has {len(inputs)} steps, length is {length}; pass one symbol for each step")
        self.reset()
        states = self.begin_state() if begin_state is None else begin_state
        return self._unroll(Symbols(sym, length, layout, merge_outputs), inputs, states)

    def _next_name(self) -> str:
        """Return the name prefix of the nodes of the next time step, and advance the step counter."""
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    def _get_activation(self, inputs: Symbol, activation: Any, **kwargs: Any) -> Symbol:
        """Apply an activation: a name of the operator Activation, or a function of a symbol."""
        if isinstance(activation, str):
            return sym.Activation(inputs, act_type=activation, **kwargs)
        return activation(inputs, **kwargs)
