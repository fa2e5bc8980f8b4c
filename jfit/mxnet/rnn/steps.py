"""One time step of the recurrent cells, the methods `_advance` of their classes, for `mx.rnn` and `mx.gluon.rnn` alike.

In the equations x is the input of a step, h and c the states before the step, h' and c' the states after it, σ the logistic
function, W and U the weights i2h_weight and h2h_weight, b and d their biases.
`i2h` is W x + b and `h2h` is U h + d, of all gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

States = list[Any]


class Step(NamedTuple):
    """The operators of one time step and the names of their nodes."""

    F: Any  # mx.sym or mx.nd
    prefix: str  # of the names of the nodes
    activate: Callable[..., Any]  # (inputs, activation, name=) -> outputs
    named: bool = True  # whether products and sums get names, too; otherwise their names are automatic
    mark: str = ""  # prepended to the names of all nodes but the output
    axis: int | None = None  # axis of the gates; None: axis 1
    out: str = "out"  # name of the node of the output

    def name(self, what: str) -> dict[str, str]:
        """Return the keyword argument that names a node."""
        return {"name": f"{self.prefix}{self.out if what == 'out' else self.mark + what}"}

    def add(self, x: Any, y: Any, what: str) -> Any:
        """Return x + y."""
        return self.F.elemwise_add(x, y, **self.name(what)) if self.named else x + y

    def mul(self, x: Any, y: Any, what: str) -> Any:
        """Return x * y."""
        return self.F.elemwise_mul(x, y, **self.name(what)) if self.named else x * y

    def complement(self, x: Any) -> Any:
        """Return 1 - x."""
        if not self.named:
            return 1.0 - x
        return self.F.elemwise_sub(self.F.ones_like(x, **self.name("ones_like0")), x, **self.name("minus0"))

    def split(self, gates: Any, number: int, what: str) -> Any:
        """Split the gates, which are concatenated in one array."""
        axis = {} if self.axis is None else {"axis": self.axis}
        return self.F.SliceChannel(gates, num_outputs=number, **axis, **self.name(what))


def rnn(cell: Any, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
    """Return h' = act(W x + b + U h + d), and it as the state."""
    output = step.activate(step.add(i2h, h2h, "plus0"), cell._activation, **step.name("out"))
    return output, [output]


def lstm(cell: Any, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
    """Return h' = o·act(c') and [h', c'], c' = f·c + i·g, where i, f, o, g = (gate, or act for g)(W x + b + U h + d)."""
    gate, activation = cell._recurrent_activation, cell._activation
    parts = step.split(step.add(i2h, h2h, "plus0"), 4, "slice")
    kinds = zip("ifco", (gate, gate, activation, gate), strict=True)
    i, f, g, o = (step.activate(part, kind, **step.name(what)) for part, (what, kind) in zip(parts, kinds, strict=True))
    new = step.F.elemwise_add(step.mul(f, states[1], "mul0"), step.mul(i, g, "mul1"), **step.name("state"))
    squashed = step.activate(new, activation, **(step.name("activation0") if step.named else {}))
    hidden = step.F.elemwise_mul(o, squashed, **step.name("out"))
    return hidden, [hidden, new]


def gru(cell: Any, step: Step, i2h: Any, h2h: Any, states: States) -> tuple[Any, States]:
    """Return h' = (1 - z)·n + z·h with r, z = σ(W x + b + U h + d) and n = act(W x + b + r·(U h + d)), and it as the state."""
    x, h = step.split(i2h, 3, "i2h_slice"), step.split(h2h, 3, "h2h_slice")
    reset = step.activate(step.add(x[0], h[0], "plus0"), "sigmoid", **step.name("r_act"))
    update = step.activate(step.add(x[1], h[1], "plus1"), "sigmoid", **step.name("z_act"))
    candidate = step.add(x[2], step.mul(reset, h[2], "mul0"), "plus2")
    candidate = step.activate(candidate, cell._activation, **step.name("h_act"))
    new = step.mul(step.complement(update), candidate, "mul1")
    output = step.F.elemwise_add(new, step.mul(update, states[0], "mul20"), **step.name("out"))
    return output, [output]
