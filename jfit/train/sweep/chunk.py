"""A chunk: members of a sweep with one program, whose states are stacked on the devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.lowering.model import count_parameters
from jfit.parallel.devices import place
from jfit.parallel.spmd import compile_spmd
from jfit.step import eval_step, unrolls
from jfit.step.state import TrainState
from jfit.step.totals import values, zero_totals
from jfit.train.batches import BatchLayout
from jfit.train.loop import reported_lr
from jfit.train.sweep.problem import Prepared, RowSet
from jfit.train.sweep.stacked import (
    STACK_AXES,
    EvalSpec,
    TrainSpec,
    data_axes,
    evaluate_batches,
    merge_members,
    place_members,
    place_stack,
    read_stack,
    stack_states,
    take_members,
    train_batches,
)

# Number of floating-point operations of a dispatch, of all members: well below a second, so that Ctrl-C is heard soon
DISPATCH_FLOPS = {"cpu": 1e10}
DISPATCH_FLOPS_DEFAULT = 2e12  # for all other backends


class Chunk:
    """Members that train together.

    Args:
        members: with equal `Prepared.group`.
        devices: list of devices over which the members are split.
        keep_best: whether to keep a copy of each member's best state.

    Attributes:
        members: those that still train; the slots of the stack after them repeat the first one.
        final: number of each member that has ended -> its last state, on the host.
        epoch, step: epochs and updates done.
    """

    def __init__(self, members: Sequence[Prepared], devices: Sequence[Any], keep_best: bool = False) -> None:
        self.members, self.devices, self.keep_best = list(members), list(devices), keep_best
        self.final: dict[int, TrainState] = {}
        self.epoch = self.step = 0
        first, problem = members[0], members[0].problem
        self.problem, self.layout = problem, first.layout
        self._most = _dispatch_steps(first, len(members))
        self._on_host: TrainState | None = stack_states([m.state for m in members if m.state is not None])
        for member in members:
            member.state = None  # the stack has it
        self._best_on_host = self._on_host if keep_best else None
        self._improved: set[int] = set()  # numbers of the members that have a best state
        self._stack: Any = None
        self._best: Any = None
        self._loops = not unrolls(problem.model)
        shared = len({token_of_order(m) for m in members}) == 1
        self._order_axis = None if shared else 0
        self._eval_axis = None if problem.folds is None else 0
        self._in_turn = in_turn(devices[0])
        self._eval_data: Any = None
        self._zeros: Any = None  # running sums of the evaluation over no batches, on the host
        self._size = 0  # number of slots of the stack
        self._programs: dict[str, Any] = {}

    # -------------------------------------------------------------------------------- slots
    def load(self) -> None:
        """Copy the states to the devices, if they are not there."""
        if self._stack is not None or not self.members or self._on_host is None:
            return
        count, devices = len(self.members), len(self.devices)
        if not self._size or 2 * count <= self._size:  # few sizes, because each is a program
            size = _power_of_two(count) if self._size else count
            self._size = -(-size // devices) * devices
        slots = np.arange(self._size) % count
        self._stack = place_stack(take_members(self._on_host, slots), self.devices)
        if self._best_on_host is not None:
            self._best = place_stack(take_members(self._best_on_host, slots), self.devices)
        self._numbers = place_members(np.stack([self.members[i].recipe.numbers for i in slots]), self.devices)
        self._on_host = self._best_on_host = self._eval_data = self._zeros = None

    def unload(self) -> None:
        """Copy the states to the host, and free the devices."""
        if self._stack is None:
            return
        count = np.arange(len(self.members))
        self._on_host = take_members(read_stack(self._stack, len(self.devices)), count)
        if self.keep_best:
            self._best_on_host = take_members(read_stack(self._best, len(self.devices)), count)
        self._stack = self._best = None

    def end(self, numbers: set[int]) -> None:
        """Copy the states of the members `numbers`, which end, to `final`, and remove these members from the stack.

        With `keep_best`, these are their best states.  The next `load` makes the stack smaller if the other members use at most
        half of its slots.
        """
        ended = [i for i, m in enumerate(self.members) if m.member.number in numbers]
        if not ended:
            return
        self.unload()
        assert self._on_host is not None
        for i in ended:
            number = self.members[i].member.number
            best = self._best_on_host if number in self._improved else None  # without a best epoch, the last state
            source = self._on_host if best is None else best
            self.final[number] = take_members(source, i)._replace(step=np.int32(self.step))
        rest = np.array([i for i in range(len(self.members)) if i not in ended], int)
        self.members = [self.members[i] for i in rest]
        self._on_host = take_members(self._on_host, rest)
        if self._best_on_host is not None:
            self._best_on_host = take_members(self._best_on_host, rest)

    # -------------------------------------------------------------------------------- training
    def train_epoch(self, stopped: Callable[[], bool], evaluate: bool) -> list[dict[str, Any]] | None:
        """Train all members for one epoch.

        Args:
            stopped: called between dispatches; if it returns True, the epoch ends.
            evaluate: whether to evaluate after the epoch.

        Returns:
            Values of the epoch for each member; None if training was stopped.
        """
        self.load()
        data, first = self._epoch_data(), np.int32(self.step)
        layout, at, last = self.layout, 0, None
        has_tail = self._tail is False and layout.last_size != layout.batch_size  # a second program trains it
        whole = layout.num_batches - has_tail
        while at < layout.num_batches:
            count = min(self._most, whole - at) if at < whole else 1
            program = self._train_program("train" if at < whole else "train_tail")
            self._stack, last = program(self._stack, self._numbers, data, first, np.int32(count))
            at, self.step = at + count, self.step + count
            if at < layout.num_batches:
                counters.wait(last)  # sync: so that Ctrl-C is heard; a dispatch has many updates
            if stopped():
                return None
        totals = self._evaluate() if evaluate else None
        read = counters.read((self._stack.metrics, last, totals))  # sync: once per epoch
        self.epoch += 1
        return self._logs(*read)

    def update_best(self, improved: Sequence[bool]) -> None:
        """Replace the best states of some members by their current states."""
        self._improved |= {m.member.number for m, better in zip(self.members, improved, strict=True) if better}
        mask = np.zeros(self._size, bool)
        mask[: len(improved)] = improved
        axes = (0, STACK_AXES, STACK_AXES)
        if "best" not in self._programs:
            self._programs["best"] = compile_spmd(_select, self.devices, axes, STACK_AXES, donate=(1,), name="sweep_best")
        self._best = self._programs["best"](place_members(mask, self.devices), self._best, self._stack)

    @property
    def _tail(self) -> bool | None:
        """Argument `tail` of `BatchLayout.batch`: None if every batch has row weights."""
        layout = self.layout
        return None if layout.last_size != layout.batch_size and layout.paddable else False

    def _train_program(self, name: str) -> Any:
        if name not in self._programs:
            recipe, metrics = self.members[0].recipe, tuple(self.problem.settings.metrics)
            tail, logged = self._tail if name == "train" else True, tuple(self.problem.model.logged)
            spec = TrainSpec(recipe.step, recipe.constants, self.layout, tail, metrics, logged, self._order_axis, self._in_turn)
            fn = functools.partial(train_batches, spec, self._loops and name == "train")
            axes = (STACK_AXES, 0, data_axes(self._order_axis), None, None)
            out = (STACK_AXES, 0)
            self._programs[name] = compile_spmd(fn, self.devices, axes, out, donate=(0,), name=f"sweep_{name}")
        return self._programs[name]

    def _eval_program(self, evaluation: RowSet) -> Any:
        if "eval" not in self._programs:
            first, settings = self.members[0], self.problem.settings
            options = {"metrics": settings.metrics, "policy": settings.policy, "regularizers": first.settings.regularizers}
            layout = evaluation.of_fold(first.member.fold)[1]
            spec = EvalSpec(eval_step(self.problem.model, **options), layout, self._eval_axis, self._in_turn)
            fn = functools.partial(evaluate_batches, spec, self._loops)
            axes = (STACK_AXES, 0, data_axes(self._eval_axis), None, None)
            self._programs["eval"] = compile_spmd(fn, self.devices, axes, 0, donate=(1,), name="sweep_eval")
        return self._programs["eval"]

    def _evaluate(self) -> Any:
        """Return the running sums of the evaluation of all members, on the devices; None without evaluation data."""
        evaluation = self.problem.evaluation
        if evaluation is None:
            return None
        if self._eval_data is None:
            orders = [evaluation.of_fold(m.member.fold) for m in self._slot_members(self._eval_axis)]
            self._eval_data = self._data(evaluation, orders, self._eval_axis)
        if self._zeros is None:
            zeros = counters.read(zero_totals(self.problem.settings.metrics, self.problem.model.logged))  # sync: once
            self._zeros = jax.tree.map(lambda x: np.repeat(x[None], self._size, axis=0), zeros)
        program, totals = self._eval_program(evaluation), place_members(self._zeros, self.devices)
        batches = evaluation.of_fold(self.members[0].member.fold)[1].num_batches
        step = batches if self._loops else 1
        for at in range(0, batches, step):
            totals = program(self._stack, totals, self._eval_data, np.int32(at), np.int32(step))
        return totals

    def _slot_members(self, axis: int | None) -> list[Prepared]:
        """Return the member of each slot of the stack of states, in order.

        axis: 0 if each member reads its own rows; None if all read the same rows: the result is then a list of one member.
        """
        return [self.members[i % len(self.members)] for i in range(1 if axis is None else self._size)]

    def _epoch_data(self) -> dict[str, Any]:
        train = self.problem.train
        assert train is not None
        orders = [(m.order(self.epoch), m.layout) for m in self._slot_members(self._order_axis)]
        return self._data(train, orders, self._order_axis)

    def _data(self, rows: RowSet, orders: Sequence[tuple[np.ndarray, BatchLayout]], axis: int | None) -> dict[str, Any]:
        """Put the row indices of the batches of an epoch or an evaluation on the devices.

        Args:
            rows: the arrays from which the batches are read.
            orders: (row indices in the order of reading, sizes of the batches) for each slot of the stack, or only one such
                pair if all members read the same rows.
            axis: 0 if each slot has its own row indices; None if all share them.

        Returns:
            dict of "arrays", "weight", "order" and "numbers", as `DeviceBatches.epoch_data` returns it, with first = 0 in
            "numbers"; "order" and "numbers" have a leading slot axis unless `axis` is None.
        """
        tables = [order_table(order, layout) for order, layout in orders]
        sizes = [np.asarray([0, layout.batch_size, layout.last_size], np.int32) for _, layout in orders]
        put = place if axis is None else place_members
        order, numbers = ((x[0] if axis is None else np.stack(x)) for x in (tables, sizes))
        arrays, weight = rows.arrays, rows.weight
        if len(self.devices) > 1:
            arrays, weight = self._replicated(rows)
        return {"arrays": arrays, "weight": weight, "order": put(order, self.devices), "numbers": put(numbers, self.devices)}

    def _replicated(self, rows: RowSet) -> tuple[Any, Any]:
        key = f"arrays {id(rows)}"
        if key not in self._programs:
            self._programs[key] = place((dict(rows.arrays), rows.weight), self.devices)
        return self._programs[key]

    def _logs(self, totals: Any, report: Any, eval_totals: Any) -> list[dict[str, Any]]:
        """Compute losses and metrics of each member from running sums on the host."""
        devices, metrics = len(self.devices), self.problem.settings.metrics
        totals, report, eval_totals = (merge_members(x, devices) for x in (totals, report, eval_totals))
        rows = []
        for i in range(len(self.members)):
            of_member = jax.tree.map(lambda x, i=i: x[i], totals)
            logs = values(metrics, of_member) | reported_lr(report[i])
            if eval_totals is not None:
                of_eval = values(metrics, jax.tree.map(lambda x, i=i: x[i], eval_totals))
                logs |= {f"val_{name}": value for name, value in of_eval.items()}
            bad = int(of_member.first_bad_step)
            rows.append(logs | ({"first_bad_step": bad} if bad >= 0 else {}))
        return rows


def in_turn(device: Any) -> bool:
    """Return whether programs loop over their members instead of using `jax.vmap`: on CPU, where batching is not faster.

    The loop compiles in half the time that the vmapped program takes.  A step of a member takes as long as in a run that trains
    this member only, but one dispatch serves all members.
    """
    return device.platform == "cpu"


def token_of_order(member: Prepared) -> Any:
    """Members with equal tokens read the rows in the same order."""
    given = member.member.arguments
    return member.member.fold, given["seed"] if given["shuffle"] else None


def order_table(order: np.ndarray, layout: BatchLayout) -> np.ndarray:
    """Row indices of every batch, int32 (batches, padded_size); padding repeats rows."""
    size, positions = layout.batch_size, np.arange(layout.padded_size)
    table = np.arange(layout.num_batches)[:, None] * size + positions % size
    table[-1] = (layout.num_batches - 1) * size + positions % layout.last_size
    return order[table].astype(np.int32)


def _dispatch_steps(member: Prepared, members: int) -> int:
    """Number of updates of a dispatch."""
    steps, model = member.member.arguments["steps_per_call"], member.problem.model
    if unrolls(model):
        return 1
    if steps == "auto":
        params = {} if member.state is None else member.state.params
        work = 6.0 * count_parameters(params) * member.problem.settings.batch_size * members  # as `auto_steps_per_call`
        return int(np.clip(DISPATCH_FLOPS.get(jax.default_backend(), DISPATCH_FLOPS_DEFAULT) / max(work, 1.0), 1, 1 << 16))
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f'sweep: steps_per_call is {steps!r}; expected "auto" or an integer of at least 1')
    return int(steps)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _select(mask: Any, best: TrainState, stack: TrainState, axis_name: Any) -> TrainState:
    def pick(old: Any, new: Any) -> Any:
        return jnp.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    names = ("params", "aux", "opt_state", "metrics", "base_lr", "key")
    return stack._replace(**{n: jax.tree.map(pick, getattr(best, n), getattr(stack, n)) for n in names})
