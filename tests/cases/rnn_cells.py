"""Graphs of recurrent cells: each case is a function of `mx`, MXNet or `jfit.mx`, that returns a symbol.  See `record_rnn`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

CASES: dict[str, Callable[[Any], Any]] = {}
NUMBERS: dict[str, dict[str, tuple[int, ...]]] = {}  # shapes of the inputs of cases whose values are recorded too
NTC, TNC = {"data": (2, 3, 4)}, {"data": (3, 2, 4)}
IMAGES = {"data": (2, 2, 2, 5, 5)}
MERGES = (None, True, False)


def case(name: str, shapes: dict[str, tuple[int, ...]] | None = None) -> Callable[..., Any]:
    def put(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        CASES[name] = make
        if shapes:
            NUMBERS[name] = shapes
        return make

    return put


def flat(mx: Any, *parts: Any) -> Any:
    """One symbol of outputs and states, nested in lists or not."""
    found: list[Any] = []
    for part in parts:
        found += [part] if isinstance(part, mx.sym.Symbol) else flat_list(mx, part)
    return mx.sym.Group(found)


def flat_list(mx: Any, parts: Any) -> list[Any]:
    return [s for p in parts for s in ([p] if isinstance(p, mx.sym.Symbol) else flat_list(mx, p))]


def unrolled(mx: Any, cell: Any, **kwargs: Any) -> Any:
    return flat(mx, *cell.unroll(3, mx.sym.Variable("data"), **kwargs))


def single(kind: str) -> Callable[[Any], Any]:
    made = {"rnn": lambda mx: mx.rnn.RNNCell(3), "lstm": lambda mx: mx.rnn.LSTMCell(3), "gru": lambda mx: mx.rnn.GRUCell(3)}
    return made[kind]


for kind in ("rnn", "lstm", "gru"):
    for merge in MERGES:
        case(f"{kind}_ntc_{merge}")(lambda mx, kind=kind, merge=merge: unrolled(mx, single(kind)(mx), merge_outputs=merge))
    case(f"{kind}_tnc", TNC)(lambda mx, kind=kind: unrolled(mx, single(kind)(mx), layout="TNC", merge_outputs=True))


@case("rnn_relu")
def rnn_relu(mx):
    return unrolled(mx, mx.rnn.RNNCell(3, activation="relu", prefix="a_"))


@case("rnn_function")
def rnn_function(mx):
    return unrolled(mx, mx.rnn.RNNCell(3, activation=functools.partial(mx.sym.LeakyReLU, act_type="elu", slope=0.5)))


@case("lstm_forget_bias")
def lstm_forget_bias(mx):
    return unrolled(mx, mx.rnn.LSTMCell(3, prefix="a_", forget_bias=2.5))


@case("list_of_inputs")
def list_of_inputs(mx):
    inputs = [mx.sym.Variable(f"x{i}") for i in range(2)]
    return flat(mx, *mx.rnn.GRUCell(3).unroll(2, inputs, merge_outputs=True))


@case("one_step")
def one_step(mx):
    return flat(mx, *mx.rnn.LSTMCell(3).unroll(1, mx.sym.Variable("data")))


@case("begin_variables")
def begin_variables(mx):
    cell = mx.rnn.LSTMCell(3)
    return unrolled(mx, cell, begin_state=cell.begin_state(func=mx.sym.Variable))


@case("begin_ones")
def begin_ones(mx):
    cell = mx.rnn.LSTMCell(3)
    first = cell.begin_state(func=mx.sym.ones, dtype="float16")
    return flat(mx, first, cell.begin_state())


@case("steps_by_hand", {"x": (2, 4), "y": (2, 4)})
def steps_by_hand(mx):
    cell = mx.rnn.LSTMCell(3)
    a, states = cell(mx.sym.Variable("x"), cell.begin_state())
    b, states = cell(mx.sym.Variable("y"), states)
    return flat(mx, a, b, states)


@case("shared_weights")
def shared_weights(mx):
    params = mx.rnn.RNNParams("s_")
    a, b = mx.rnn.GRUCell(3, prefix="a_", params=params), mx.rnn.GRUCell(3, prefix="b_", params=params)
    return flat(mx, a.unroll(2, mx.sym.Variable("x"))[0], b.unroll(2, mx.sym.Variable("y"))[0])


@case("unrolled_twice")
def unrolled_twice(mx):
    cell = mx.rnn.LSTMCell(3)
    return flat(mx, cell.unroll(2, mx.sym.Variable("x"))[0], cell.unroll(3, mx.sym.Variable("y"))[0])


# ------------------------------------------------------------------------------------------------ fused
def fused(mx: Any, mode: str, both: bool, **kwargs: Any) -> Any:
    return mx.rnn.FusedRNNCell(3, num_layers=2, mode=mode, bidirectional=both, **kwargs)


for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru"):
    for both in (False, True):
        label = f"{mode}_{'both' if both else 'one'}"
        numbers = TNC if both else None
        case(f"fused_{label}", numbers)(
            lambda mx, mode=mode, both=both: unrolled(mx, fused(mx, mode, both, get_next_state=True), layout="TNC")
        )
        case(f"unfused_{label}", NTC if mode == "gru" and both else None)(
            lambda mx, mode=mode, both=both: unrolled(mx, fused(mx, mode, both).unfuse())
        )
for merge in MERGES:
    for layout in ("NTC", "TNC"):
        case(f"fused_{layout}_{merge}")(
            lambda mx, merge=merge, layout=layout: unrolled(mx, fused(mx, "gru", True), layout=layout, merge_outputs=merge)
        )


@case("fused_options")
def fused_options(mx):
    cell = mx.rnn.FusedRNNCell(3, 2, "lstm", dropout=0.3, forget_bias=2.0, prefix="f_", get_next_state=True)
    return unrolled(mx, cell, begin_state=cell.begin_state(func=mx.sym.Variable))


@case("fused_list")
def fused_list(mx):
    inputs = [mx.sym.Variable(f"x{i}") for i in range(2)]
    return flat(mx, *mx.rnn.FusedRNNCell(3).unroll(2, inputs, layout="TNC"))


@case("unfused_dropout")
def unfused_dropout(mx):
    return unrolled(mx, mx.rnn.FusedRNNCell(3, 3, "gru", bidirectional=True, dropout=0.5).unfuse(), merge_outputs=True)


# ------------------------------------------------------------------------------------------------ made of cells
def stack(mx: Any, *cells: Any) -> Any:
    made = mx.rnn.SequentialRNNCell()
    for cell in cells:
        made.add(cell)
    return made


for merge in MERGES:
    case(f"sequential_{merge}")(
        lambda mx, merge=merge: unrolled(
            mx, stack(mx, mx.rnn.LSTMCell(3, prefix="a_"), mx.rnn.GRUCell(2, prefix="b_")), merge_outputs=merge
        )
    )
    case(f"bidirectional_{merge}", NTC if merge else None)(
        lambda mx, merge=merge: unrolled(
            mx, mx.rnn.BidirectionalCell(mx.rnn.LSTMCell(3, prefix="l_"), mx.rnn.GRUCell(2, prefix="r_")), merge_outputs=merge
        )
    )
    case(f"bidirectional_fused_{merge}")(
        lambda mx, merge=merge: unrolled(
            mx,
            mx.rnn.BidirectionalCell(mx.rnn.FusedRNNCell(3, prefix="l_"), mx.rnn.LSTMCell(3, prefix="r_"), output_prefix="o_"),
            layout="TNC",
            merge_outputs=merge,
        )
    )
    case(f"dropout_{merge}")(
        lambda mx, merge=merge: unrolled(
            mx, stack(mx, mx.rnn.DropoutCell(0.2), mx.rnn.RNNCell(3), mx.rnn.DropoutCell(0.4)), merge_outputs=merge
        )
    )
    case(f"residual_{merge}")(lambda mx, merge=merge: unrolled(mx, mx.rnn.ResidualCell(mx.rnn.GRUCell(4)), merge_outputs=merge))
    case(f"zoneout_{merge}")(
        lambda mx, merge=merge: unrolled(mx, mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(3), 0.3, 0.2), merge_outputs=merge)
    )


@case("stepped_stack")
def stepped_stack(mx):
    cell = stack(mx, mx.rnn.LSTMCell(3, prefix="a_"), mx.rnn.DropoutCell(0.5), mx.rnn.RNNCell(2, prefix="b_"))
    return flat(mx, *cell(mx.sym.Variable("x"), cell.begin_state()))


@case("dropout_zero")
def dropout_zero(mx):
    return unrolled(mx, mx.rnn.DropoutCell(0.0))


@case("zoneout_outputs")
def zoneout_outputs(mx):
    return unrolled(mx, mx.rnn.ZoneoutCell(mx.rnn.RNNCell(3), zoneout_outputs=0.3))


@case("zoneout_states")
def zoneout_states(mx):
    return unrolled(mx, stack(mx, mx.rnn.ZoneoutCell(mx.rnn.GRUCell(3), zoneout_states=0.3), mx.rnn.RNNCell(2)))


@case("residual_stack", NTC)
def residual_stack(mx):
    a, b = mx.rnn.ResidualCell(mx.rnn.LSTMCell(4, prefix="a_")), mx.rnn.ResidualCell(mx.rnn.RNNCell(4, prefix="b_"))
    return unrolled(mx, stack(mx, a, b))


@case("residual_bidirectional")
def residual_bidirectional(mx):
    cell = mx.rnn.BidirectionalCell(mx.rnn.RNNCell(2, prefix="l_"), mx.rnn.RNNCell(2, prefix="r_"))
    return flat(mx, mx.rnn.ResidualCell(cell).unroll(3, mx.sym.Variable("data"))[0])


@case("residual_fused")
def residual_fused(mx):
    return flat(mx, mx.rnn.ResidualCell(mx.rnn.FusedRNNCell(4)).unroll(3, mx.sym.Variable("data"))[0])


@case("residual_step")
def residual_step(mx):
    cell = mx.rnn.ResidualCell(mx.rnn.RNNCell(4))
    return flat(mx, *cell(mx.sym.Variable("x"), cell.begin_state()))


@case("modifier_begin")
def modifier_begin(mx):
    cell = mx.rnn.ZoneoutCell(mx.rnn.LSTMCell(3, prefix="z_"), 0.5)
    return flat(mx, cell.begin_state(mx.sym.Variable))


# ------------------------------------------------------------------------------------------------ convolutional
for kind in ("ConvRNN", "ConvLSTM", "ConvGRU"):
    case(kind, IMAGES)(
        lambda mx, kind=kind: flat(
            mx,
            *getattr(mx.rnn, f"{kind}Cell")((2, 2, 5, 5), 2).unroll(
                2, mx.sym.Variable("data"), layout="NTCHW", merge_outputs=True
            ),
        )
    )
    case(f"{kind}_options")(
        lambda mx, kind=kind: unrolled(
            mx,
            getattr(mx.rnn, f"{kind}Cell")(
                input_shape=(1, 2, 9, 9), num_hidden=2, h2h_kernel=(5, 3), h2h_dilate=(1, 2), i2h_kernel=(2, 4),
                i2h_stride=(2, 1), i2h_pad=(1, 0), i2h_dilate=(1, 2), i2h_weight_initializer=mx.init.Xavier(),
                h2h_weight_initializer="orthogonal", i2h_bias_initializer="ones", activation="tanh", prefix="c_",
            ),
            layout="NTCHW",
        )
    )  # fmt: skip


@case("conv_begin")
def conv_begin(mx):
    return flat(mx, mx.rnn.ConvLSTMCell((1, 2, 9, 9), 2, i2h_stride=(2, 2)).begin_state())
