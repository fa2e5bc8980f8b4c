"""The compiled programs of a module's graph: forward pass, gradients, update, and whole training steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from jfit.lowering.model import Model
from jfit.mxnet.module.groups import Replicas, update_by_device
from jfit.mxnet.module.ordered import ordered_program
from jfit.mxnet.module.parameters import Parameters
from jfit.optim.rows import is_rows, stored_rows
from jfit.parallel import compile_spmd
from jfit.programs import Made
from jfit.step import StepOut, forward_step, gradient_step, train_step, update_step
from jfit.step.reduce import Reduce
from jfit.step.state import TrainState

Program = Callable[..., Any]
# gradients that were summed before the program
_SUMMED = Reduce(lambda gradients: None, lambda gradients, sums, local, axis_name: (gradients, sums, local))


class Programs:
    """The compiled programs of a model, cached and compiled at first use.

    Args:
        model: the lowered graph.
        parameters: the parameters and optimizer.
        fixed_gammas: names of BatchNorm gammas that are always 1.
        replicas: the models of a graph whose `ctx_group`s are on different devices, one for each context; else None.
    """

    def __init__(
        self, model: Model, parameters: Parameters, fixed_gammas: Sequence[str] = (), replicas: Replicas | None = None
    ) -> None:
        self.model, self.parameters, self.fixed_gammas, self.replicas = model, parameters, list(fixed_gammas), replicas
        self._made: dict[Any, Program] = {}

    def axes(self) -> tuple[int | None, TrainState]:
        """Return the axes of (parameters, TrainState) as for vmap: 0 for a leading device axis, None for replicated arrays."""
        axis = 0 if self.parameters.split else None
        return axis, TrainState(None, axis, None, axis, None, None, None, 0)  # type: ignore[arg-type]

    def _once(self, key: Any, make: Callable[[], Program]) -> Program:
        """Return `make()`, made at the first use of `key`."""
        key = (key, self.parameters.split)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def compiled(self, key: Any, make: Callable[[], tuple[Any, ...]], name: str, donate: tuple[int, ...] = ()) -> Program:
        """Return the program of `key`; at its first use it is compiled from `make()`, (function, in_axes, out_axes).

        name: name of the program.  donate: indices of the arguments whose buffers it may reuse.
        """

        def compiled() -> Program:
            fn, in_axes, out_axes = make()
            return compile_spmd(fn, self.parameters.devices, in_axes, out_axes, donate=donate, name=name)

        return self._once(key, compiled)

    def _pass(self, key: Any, fn: Callable[[], Any], out_axes: Any, name: str, heads: int = 0) -> Program:
        """Return the program (params, aux, batch, key, step, number, *head gradients) of the function `fn()`."""
        return self.compiled(key, lambda: (fn(), (self.axes()[0], None, 0, None, None, None, *[0] * heads), out_axes), name)

    def forward(self, train: bool) -> Program:
        """Return the program (params, aux, batch, key, step, number) -> outputs with a leading device axis."""
        key, replicas = ("forward", train), self.replicas
        if replicas is not None:
            return self._once(key, lambda: replicas.forward(train, self.parameters.split))
        return self._pass(key, lambda: forward_step(self.model, train=train), 0, "forward")

    def gradients(self, wrt: tuple[str, ...], heads: bool) -> Program:
        """Return the program (params, aux, batch, key, step, number[, head gradients]) -> (outputs, gradients, new aux).

        wrt: names to differentiate with respect to.  heads: whether it takes head gradients (those of the outputs).
        """
        key, replicas = ("gradients", wrt, heads), self.replicas
        if replicas is not None:
            return self._once(key, lambda: replicas.gradients(wrt, self.parameters.split))
        return self._pass(key, lambda: gradient_step(self.model, wrt, by_rows=True), (0, 0, None), "gradients", int(heads))

    def captured(self, key: Any, raw: Callable[..., Any], heads: int) -> Program:
        """Return the program of a monitor: (params, aux, batch, key, step, number, *head gradients) -> arrays by name.

        key, raw: name and function of the program.  heads: number of its last arguments, 0 or 1.
        """
        return self._pass(key, lambda: raw, 0, "monitor", heads)

    def step(self) -> Program:
        """Return the program (state, batch, rescale) -> (state, StepOut), one whole training step; it donates the state."""

        def make():
            train = self.raw_step(outputs=True, gradients=True)

            def fn(state: TrainState, batch: Any, rescale: Any, *, axis_name: str | None = None) -> tuple[TrainState, StepOut]:
                # The barrier makes results bitwise equal to those of EpochRunner's programs, which need one, too.
                state, batch = lax.optimization_barrier((state, batch))
                return train(rescale=rescale)(state, batch, axis_name=axis_name)

            axes = self.axes()[1]
            return Made(fn, "step", train), (axes, 0, None), (axes, StepOut(None, None, None, None, 0, 0))  # type: ignore[arg-type]

        return self.compiled(("step", self.setting()), make, "module_step", donate=(0,))

    def ordered(self) -> Program:
        """Return the function (state, batch, rescale) -> (state, StepOut) of a training step with reduce="ordered"."""
        devices, axes = self.parameters.job_devices, self.model.batch_axes
        key = ("ordered", self.setting())
        return self._once(key, lambda: ordered_program(self.raw_step(outputs=True), devices, axes))

    def raw_step(self, **options: Any) -> Callable[..., Any]:
        """Return `jfit.step.train_step`, not compiled, with the module's optimizer and gradient reduction; pass `rescale=`.

        It refers neither to the module nor to its arrays: programs with equal ones are the same, see `jfit.programs.key_of`.
        """
        optimizer, reduce = self.parameters.resolved(self.fixed_gammas), self.parameters.reduce
        return functools.partial(train_step, self.model, optimizer, reduce=reduce, **options)

    def update(self, summed: bool = False) -> Program:
        """Return the program (state, gradients, rescale) -> state; it donates the state.

        summed: whether the gradients are sums over all devices, from `Workers`; otherwise they have a leading device axis, if
            there are several devices.
        """
        several = len(self.parameters.devices) > 1 and not self.parameters.grouped

        def make():
            optimizer, reduce = self.parameters.resolved(self.fixed_gammas), self.parameters.reduce
            reduce = _SUMMED if summed else reduce
            table_names = frozenset(self.model.tables)

            def fn(state: TrainState, gradients: Any, rescale: Any, *, axis_name: str | None = None) -> TrainState:
                if summed and several:
                    gradients = gradients[0]
                step = update_step(optimizer, rescale=rescale, reduce=reduce)
                # Gradients of embedding tables that were read or written are dense; convert them back to their nonzero rows.
                tables = {k: stored_rows(g) for k, g in gradients.items() if k in table_names and not is_rows(g)}
                return step(state, {**gradients, **tables}, axis_name=axis_name)

            axes = self.axes()[1]
            split: Any = (None, 0) if several else None  # pmap needs an argument with a device axis
            keyed = Made(fn, "update", optimizer, "summed" if summed else reduce, table_names, several)
            return keyed, (axes, split if summed else 0, None), axes

        key = ("update", summed, self.setting())
        if self.parameters.grouped:
            return self._once(key, lambda: self._update_by_device(make()[0], summed))
        return self.compiled(key, make, "module_update", donate=(0,))

    def _update_by_device(self, update: Program, summed: bool) -> Program:
        parameters = self.parameters
        together = bool(parameters.turns(self.fixed_gammas)) or bool(parameters.state.opt_state.shared)
        contexts = 1 if summed else len(parameters.devices)
        return update_by_device(update, parameters.placement, together, contexts, parameters.split)

    def setting(self) -> Any:
        """Return the hyperparameters that are constants of the compiled update; part of its cache key."""
        optimizer = self.parameters.optimizer
        return optimizer.hyper_key(self.parameters.turns(self.fixed_gammas)), self.parameters.reduce
