"""gluon's recurrent layers: several layers, one or two directions, over a whole sequence with the operator RNN."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jfit.graph.symbol import Symbol
from jfit.mxnet import ndarray as nd
from jfit.mxnet import symbol as sym
from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.gluon.rnn.cells import NAMES, add_parameters
from jfit.mxnet.util import is_np_array
from jfit.ops.rnn import GATES, layouts

_CLIP = ("state_clip_min", "state_clip_max", "state_clip_nan")
CONNECTIONS = ("i2h", "h2h", "h2r")  # input -> gates, state -> gates, hidden -> projection


class Layer(HybridBlock):
    """Base of the layers.  Its arguments are those that all have; `attrs` are further attributes of the operator RNN."""

    _mode = ""
    l0_i2h_weight: Any

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        *,
        dtype: Any = "float32",
        use_sequence_length: bool = False,
        attrs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        assert layout in ("TNC", "NTC"), f"layout is {layout!r}; it must be TNC or NTC."
        self._layout, self._dtype, self._skip_states = layout, dtype, False
        self._attrs: dict[str, Any] = {"mode": self._mode, "state_size": hidden_size, "num_layers": num_layers}
        self._attrs |= {"bidirectional": bidirectional, "p": dropout, "projection_size": None, **(attrs or {})}
        self._attrs |= {"state_outputs": True, "use_sequence_length": use_sequence_length}
        inits = i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer
        named = dict(zip(NAMES, inits, strict=True))
        for at, (i2h, h2h, *h2r) in zip(self._places(), layouts(SimpleNamespace(**self._attrs), input_size), strict=True):
            shapes = {"i2h_weight": i2h, "h2h_weight": h2h, "i2h_bias": i2h[:1], "h2h_bias": i2h[:1]}
            shapes |= {"h2r_weight": h2r[0]} if h2r else {}
            add_parameters(self, shapes, named, f"{at}_", dtype=dtype)

    def _places(self) -> list[str]:
        """Return the prefixes of the parameters: l0, r0, l1, ..."""
        directions = "lr" if self._attrs["bidirectional"] else "l"
        return [f"{d}{layer}" for layer in range(self._attrs["num_layers"]) for d in directions]

    def __repr__(self) -> str:
        attrs = self._attrs
        rows, inputs = self.l0_i2h_weight.shape
        more = [f"num_layers={attrs['num_layers']}"] * (attrs["num_layers"] != 1)
        more += [f"dropout={attrs['p']}"] * (attrs["p"] != 0) + ["bidirectional"] * attrs["bidirectional"]
        text = f"{inputs or None} -> {rows // len(GATES[attrs['mode']])}"
        return f"{type(self).__name__}({', '.join([text, self._layout, *more])})"

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Any]:
        # In files the parameters have the names of a stack of cells, as those of the first versions of MXNet.
        cell = r".\1_cell" if self._attrs["bidirectional"] else ""
        form = rf"{f'{prefix}.' if prefix else ''}_unfused.\2{cell}.\3"
        return {re.sub(r"^(l|r)(\d+)_(.*)$", form, name): param for name, param in self._reg_params.items()}

    def state_info(self, batch_size: int = 0) -> list[Any]:
        """Return the shape (layers * directions, batch_size, size), `__layout__` and dtype of each state."""
        size, out = self._attrs["state_size"], self._attrs["projection_size"]
        sizes = [out or size, size] if self._attrs["mode"] == "lstm" else [size]
        count = len(self._places())
        return [{"shape": (count, batch_size, s), "__layout__": "LNC", "dtype": self._dtype} for s in sizes]

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> list[Any]:
        """Return the initial states.

        Args:
            batch_size: size of the batch axis; 0 for symbols.
            func: function of name and shape: `mx.nd.zeros`, `mx.sym.zeros`, `mx.sym.var` for states that are inputs, ...
            kwargs: further arguments of `func`, such as ctx and dtype.

        Returns:
            List of arrays or symbols.
        """
        states = [func(name=f"{self.prefix}h0_{i}", **{**info, **kwargs}) for i, info in enumerate(self.state_info(batch_size))]
        return [s.as_np_ndarray() if is_np_array() and isinstance(s, nd.NDArray) else s for s in states]

    def cast(self, dtype: Any) -> None:
        """Cast parameters and gradients to a dtype."""
        super().cast(dtype)
        self._dtype = dtype

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """Compute the outputs of a sequence.

        Args:
            inputs: (time, batch, features), or (batch, time, features) with layout "NTC".
            states: initial states, an array or a list; None: zeros.
            sequence_length: (batch,), the number of steps of each sequence, if the layer has use_sequence_length.

        Returns:
            Outputs, with the layout of the inputs; (outputs, list of last states) if `states` is passed.

        Raises:
            ValueError: a state has another shape than that of `state_info`.
        """
        if self._skip_states != (states is None):  # which are outputs of the graph of a hybridized layer, or not
            self._clear_cached_op()
        self._skip_states = states is None
        if states is None and isinstance(inputs, Symbol):
            states = self.begin_state(0, func=sym.zeros)
        elif states is None:
            size = inputs.shape[self._layout.find("N")]
            states = self.begin_state(size, ctx=inputs.context, dtype=inputs.dtype)
        states = states if isinstance(states, (list, tuple)) else [states]
        lengths = (sequence_length,) if self._attrs["use_sequence_length"] else ()
        return super().__call__(inputs, states, *lengths)

    def hybrid_forward(self, F: Any, inputs: Any, states: Any, *lengths: Any, **params: Any) -> Any:
        """Compute the outputs and last states with the operator RNN."""
        if F is nd:
            for state, info in zip(states, self.state_info(inputs.shape[self._layout.find("N")]), strict=True):
                if state.shape != (shape := info["shape"]):
                    raise ValueError(f"a state of {self.name} has shape {state.shape}, expected {shape}; see begin_state")
        swapped = self._layout == "NTC"
        inputs = F.swapaxes(inputs, 0, 1) if swapped else inputs
        names = [f"{at}_{c}_{kind}" for kind in ("weight", "bias") for at in self._places() for c in CONNECTIONS]
        flat = F._internal._rnn_param_concat(*[F.reshape(params[name], shape=-1) for name in names if name in params], dim=0)
        attrs = {name: value for name, value in self._attrs.items() if value is not None}
        outputs, *last = F.RNN(inputs, flat, *states, *lengths, **attrs)
        outputs = F.swapaxes(outputs, 0, 1) if swapped else outputs
        return outputs if self._skip_states else (outputs, last)


class RNN(Layer):
    """Elman layers over a sequence: h(t) = act(W x(t) + b + U h(t-1) + d); the output is h.

    Args:
        hidden_size: size of the states and outputs of each direction.
        num_layers: number of layers; the inputs of each are the outputs of the previous one.
        activation: "relu" or "tanh".
        args: layout, dropout, bidirectional, as for `LSTM`, and its four initializers.
        kwargs: input_size, dtype, use_sequence_length, prefix, params, as for `LSTM`.

    Raises:
        KeyError: an invalid activation.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.RNN(5, 2, activation="tanh")
        RNN(None -> 5, TNC, num_layers=2)
    """

    def __init__(self, hidden_size: int, num_layers: int = 1, activation: str = "relu", *args: Any, **kwargs: Any) -> None:
        if activation not in ("relu", "tanh"):
            raise KeyError(f"activation is {activation!r}; it must be relu or tanh")
        self._mode = f"rnn_{activation}"
        # MXNet's order: the initializers come before input_size
        inits = dict(zip([f"{name}_initializer" for name in NAMES], args[3:], strict=False))
        super().__init__(hidden_size, num_layers, *args[:3], **inits, **kwargs)


class LSTM(Layer):
    """Long short-term memory layers over a sequence (the equations of `LSTMCell`); the states are [h, c].

    Args:
        hidden_size: size of the states and outputs of each direction.
        num_layers: number of layers; the inputs of each are the outputs of the previous one.
        layout: "TNC" (time, batch, features) or "NTC", of inputs and outputs.
        dropout: fraction of the outputs of every layer but the last that is set to 0 in training.
        bidirectional: whether each layer runs in both directions of time; the features of its outputs are concatenated.
        input_size: number of features of the input; 0: taken from the first input.
        i2h_weight_initializer, h2h_weight_initializer, h2r_weight_initializer: initializers of the weights; None: that of
            `initialize`.
        i2h_bias_initializer, h2h_bias_initializer: initializers of the biases, "zeros" by default.
        projection_size: size of the outputs and of the state h, which is projected by h2r_weight; None: no projection.
        state_clip_min, state_clip_max: limits of the state c, if both are passed.
        state_clip_nan: whether NaN in the state c becomes 0 before it is clipped.
        dtype: dtype of parameters and initial states, float32 by default.
        use_sequence_length: whether calls take the argument sequence_length.
        prefix, params: as for `Block`.

    Raises:
        AssertionError: an invalid layout.

    Example:
        >>> import jfit.mx as mx
        >>> layer = mx.gluon.rnn.LSTM(3, num_layers=2)
        >>> layer.initialize()
        >>> x = mx.nd.ones((5, 2, 4))
        >>> outputs, (h, c) = layer(x, layer.begin_state(batch_size=2))
        >>> layer(x).shape, outputs.shape, c.shape, layer
        ((5, 2, 3), (5, 2, 3), (2, 2, 3), LSTM(4 -> 3, TNC, num_layers=2))
    """

    _mode = "lstm"

    def __init__(
        self, *args: Any, projection_size: int | None = None, h2r_weight_initializer: Any = None, **kwargs: Any
    ) -> None:
        clip = {f"lstm_{name}": kwargs.pop(name) for name in _CLIP if name in kwargs}
        super().__init__(*args, attrs={"projection_size": projection_size or None, **clip}, **kwargs)
        for at in self._places() if projection_size else ():
            self.params.get(f"{at}_h2r_weight").init = h2r_weight_initializer


class GRU(Layer):
    """Layers of gated recurrent units over a sequence (the equations of `GRUCell`).

    Args:
        hidden_size, num_layers, layout, dropout, bidirectional, input_size: as for `LSTM`.
        i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer, dtype: as for `LSTM`.
        use_sequence_length, prefix, params: as for `LSTM`.

    Example:
        >>> import jfit.mx as mx
        >>> mx.gluon.rnn.GRU(5, bidirectional=True, layout="NTC")
        GRU(None -> 5, NTC, bidirectional)
    """

    _mode = "gru"
