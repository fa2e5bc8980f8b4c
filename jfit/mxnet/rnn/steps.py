"""One time step of the recurrent cells as functions of the gates' projections, for `mx.rnn` and `mx.gluon.rnn` alike.

In the equations x is the input of a step, h and c the states before the step, h' and c' the states after it, σ the logistic
function, W and U the weights i2h_weight and h2h_weight, b and d their biases.
`i2h` is W x + b and `h2h` is U h + d, of all gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Step(NamedTuple):
    """The operators of one time step and the names of their nodes."""

    F: Any  # mx.sym or mx.nd
    prefix: str  # of the names of the nodes
    activate: Callable[..., Any]  # (inputs, activation, name=) -> outputs
    named: bool = True  # whether products and sums get names, too; otherwise their names are automatic
    mark: str = ""  # prepended to the names of all nodes but the output
    axis: int | None = None  # axis of the gates; None: axis 1

    def name(self, what: str) -> dict[str, str]:
        """Return the keyword argument that names a node."""
        return {"name": f"{self.prefix}{'' if what == 'out' else self.mark}{what}"}

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


def rnn(step: Step, i2h: Any, h2h: Any, activation: Any) -> Any:
    """h' = act(W x + b + U h + d)."""
    return step.activate(step.add(i2h, h2h, "plus0"), activation, **step.name("out"))


def lstm(
    step: Step, i2h: Any, h2h: Any, cell: Any, activation: Any, gate: Any = "sigmoid", out: str = "out"
) -> tuple[Any, Any]:
    """Return h' = o·act(c') and c' = f·c + i·g, with i, f, o = gate(W x + b + U h + d) and g = act(W x + b + U h + d)."""
    parts = step.split(step.add(i2h, h2h, "plus0"), 4, "slice")
    kinds = zip("ifco", (gate, gate, activation, gate), strict=True)
    i, f, g, o = (step.activate(part, kind, **step.name(what)) for part, (what, kind) in zip(parts, kinds, strict=True))
    new = step.F.elemwise_add(step.mul(f, cell, "mul0"), step.mul(i, g, "mul1"), **step.name("state"))
    squashed = step.activate(new, activation, **(step.name("activation0") if step.named else {}))
    return step.F.elemwise_mul(o, squashed, **step.name(out)), new


def gru(step: Step, i2h: Any, h2h: Any, hidden: Any, activation: Any) -> Any:
    """h' = (1 - z)·n + z·h with r, z = σ(W x + b + U h + d) and n = act(W x + b + r·(U h + d))."""
    x, h = step.split(i2h, 3, "i2h_slice"), step.split(h2h, 3, "h2h_slice")
    reset = step.activate(step.add(x[0], h[0], "plus0"), "sigmoid", **step.name("r_act"))
    update = step.activate(step.add(x[1], h[1], "plus1"), "sigmoid", **step.name("z_act"))
    candidate = step.add(x[2], step.mul(reset, h[2], "mul0"), "plus2")
    candidate = step.activate(candidate, activation, **step.name("h_act"))
    new = step.mul(step.complement(update), candidate, "mul1")
    return step.F.elemwise_add(new, step.mul(update, hidden, "mul20"), **step.name("out"))
