"""The compiled programs of one bound graph: forward, backward, update, and the three in one.

The functions are those of `jfit.step`; here they are compiled for the devices, once per setting, and kept.  Of the auxiliary
states they move those that MXNet's backward pass moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jax import lax

from jfit.graph import Symbol
from jfit.lowering.model import Aux, Model, Plan
from jfit.mxnet.module.session import Session
from jfit.optim.rows import is_rows, stored_rows
from jfit.parallel import compile_spmd
from jfit.step import StepOut, forward_step, gradient_step, train_step, update_step
from jfit.step.state import TrainState

Program = Callable[..., Any]


class Programs:
    """Programs over a model and a session, each compiled when it is first asked for; `gammas` are those it fixes."""

    def __init__(self, model: Model, session: Session, gammas: Sequence[str] = ()) -> None:
        self.model, self.session, self.gammas = model, session, list(gammas)
        self._made: dict[Any, Program] = {}
        self._plans: dict[Any, Plan] = {}

    def axes(self) -> tuple[int | None, TrainState]:
        """(axis of the parameters, axes of the state): a leading device axis where each device has its own."""
        own = 0 if self.session.split else None
        return own, TrainState(None, own, None, own, None, None, None, 0)  # type: ignore[arg-type]

    def compiled(self, key: Any, make: Callable[[], tuple[Any, ...]], name: str, donate: tuple[int, ...] = ()) -> Program:
        """The program of a key: `make() -> (function, in_axes, out_axes)` is compiled when it is first asked for."""
        key = (key, self.session.split)
        if key not in self._made:
            fn, in_axes, out_axes = make()
            self._made[key] = compile_spmd(fn, self.session.devices, in_axes, out_axes, donate=donate, name=name)
        return self._made[key]

    def forward(self, train: bool) -> Program:
        """(params, aux, batch, key, step, number) -> outputs of each device."""

        def make():
            return forward_step(self.model, train=train), (self.axes()[0], None, 0, None, None, None), 0

        return self.compiled(("forward", train), make, "forward")

    def gradients(self, wrt: Sequence[str], heads: bool) -> Program:
        """(params, aux, batch, key, step, number[, head gradients]) -> (outputs, gradients, new aux)."""

        def make():
            own = self.axes()[0]
            fn, axes = gradient_step(self.model, wrt, by_rows=True), (own, None, 0, None, None, None)
            return fn, (*axes, 0) if heads else axes, (0, 0, None)

        return self.compiled(("gradients", tuple(wrt), heads), make, "gradients")

    def step(self) -> Program:
        """(state, batch, rescale) -> (state, out with outputs and gradients): the whole update, one dispatch; donates."""

        def make():
            def fn(state: TrainState, batch: Any, rescale: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
                # behind the barrier the step is compiled, and rounded, as in the programs that run many steps
                state, batch = lax.optimization_barrier((state, batch))
                step = self.raw_step(rescale, outputs=True, gradients=True)
                return step(state, batch, axis_name=axis_name)

            axes = self.axes()[1]
            return fn, (axes, 0, None), (axes, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]

        return self.compiled(("step", self.setting()), make, "module_step", donate=(0,))

    def raw_step(self, rescale: Any, **how: Any) -> Any:
        """The pure train step with this session's optimizer and reduction."""
        return train_step(self.model, self.session.resolved(self.gammas), rescale=rescale, reduce=self.session.reduce, **how)

    def update(self) -> Program:
        """(state, gradients of each device, rescale) -> state; the state is donated."""

        def make():
            def fn(state: TrainState, gradients: Any, rescale: Any, *, axis_name: str | None = None) -> TrainState:
                step = update_step(self.session.resolved(self.gammas), rescale=rescale, reduce=self.session.reduce)
                # gradients of tables that were read or written on the way hold all rows; those of zeros are not stored
                tables = {k: stored_rows(g) for k, g in gradients.items() if k in self.model.tables and not is_rows(g)}
                return step(state, {**gradients, **tables}, axis_name=axis_name)

            axes = self.axes()[1]
            return fn, (axes, 0, None), axes

        return self.compiled(("update", self.setting()), make, "module_update", donate=(0,))

    def setting(self) -> Any:
        """What an update is compiled for: another one is another program."""
        optimizer = self.session.optimizer
        assert optimizer is not None
        return optimizer.hyper_key(self.session.turns(self.gammas)), self.session.reduce

    def plan(self, inputs: dict[str, Any]) -> Plan:
        """Where the rows of the outputs are, for inputs of one device of these shapes."""
        key = tuple((k, tuple(v.shape), str(v.dtype)) for k, v in inputs.items())
        if key not in self._plans:
            self._plans[key] = self.model.plan(inputs)
        return self._plans[key]


def moving_aux(symbol: Symbol, wanted: Collection[str]) -> frozenset[str]:
    """Auxiliary states of the operators below which a gradient is wanted: MXNet moves them in the backward pass.

    Where nothing below an operator wants a gradient, its backward pass does not run, and its moving statistics rest: those
    of a frozen stem stay what they were.

    Args:
        symbol: the network.
        wanted: names of the parameters and inputs whose gradient is kept.

    Example:
        >>> import jfit
        >>> net = jfit.sym.BatchNorm(jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, name="fc"), name="bn")
        >>> sorted(moving_aux(net, {"fc_weight"})), sorted(moving_aux(net, ()))
        (['bn_moving_mean', 'bn_moving_var'], [])

    Source: runs of Apache MXNet 1.9.1.
    """
    reached: set[int] = set()
    found: set[str] = set()
    for node in symbol.nodes():  # inputs come before their users
        if node.op is None:
            if node.name in wanted:
                reached.add(id(node))
        elif any(id(e.node) in reached for e in node.inputs[: node.num_inputs]):
            reached.add(id(node))
            found.update(e.node.name for e in node.inputs[node.num_inputs :])
    return frozenset(found)


def with_resting_aux(model: Model, requests: Mapping[str, str]) -> Model:
    """A model whose training passes leave those auxiliary states alone that MXNet's backward pass does not reach.

    Args:
        model: lowered from a graph.
        requests: argument -> "write", "add" or "null".
    """
    moving = moving_aux(model.symbol, [n for n, r in requests.items() if r != "null"])
    resting = [n for n in model.symbol.list_auxiliary_states() if n not in moving]
    if not resting:
        return model

    def apply(params: Any, aux: Aux, inputs: Any, **how: Any) -> Any:
        outputs, moved = model.apply(params, aux, inputs, **how)
        return outputs, {**moved, **{n: aux[n] for n in resting if n in moved}}

    return model._replace(apply=apply)
