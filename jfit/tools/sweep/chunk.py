"""A chunk: members of a sweep with one program, whose states are stacked on the devices.

With `jax.vmap`, all states are one stack.  On a CPU, where batching is not faster, each device trains one member after another:
a stack then has one state per device, and all stacks are arguments of the same program, which compiles in half the time of a
program with a loop over members.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.feed.batches import BatchLayout
from jfit.loop.report import reported_lr
from jfit.lowering.model import count_parameters
from jfit.parallel.devices import place
from jfit.parallel.spmd import Window, compile_spmd
from jfit.step import eval_step, unrolls
from jfit.step.state import TrainState
from jfit.step.totals import values, zero_totals
from jfit.tools.sweep.problem import Prepared, RowSet
from jfit.tools.sweep.stacked import (
    STACK_AXES,
    EvalSpec,
    TrainSpec,
    data_axes,
    evaluate_batches,
    join_members,
    member_of,
    place_members,
    place_stack,
    read_stacks,
    stack_states,
    take_members,
    train_batches,
)

# Number of floating-point operations of a dispatch, of all members: well below a second, so that Ctrl-C is heard soon
DISPATCH_FLOPS = {"cpu": 1e10}
DISPATCH_FLOPS_DEFAULT = 2e12  # for all other backends


class Chunk:
    """Members of a sweep that train together, as stacked arrays.

    Args:
        members: with equal `Prepared.group`.
        devices: list of devices over which the members are split.
        keep_best: whether to keep a copy of each member's best state.

    Attributes:
        members: those that still train; they are in the first slots of the stacks, and the slots after them repeat members.
        final: index of each member that has ended -> its last state, on the host.
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
        self._stacks: list[TrainState] = []
        self._best: list[TrainState] = []
        self._loops = not unrolls(problem.model)
        shared = len({token_of_order(m) for m in members}) == 1
        self._order_axis = None if shared else 0
        self._eval_axis = None if problem.folds is None else 0
        self._in_turn = in_turn(devices[0])
        self._eval_data: list[Any] = []
        self._zeros: Any = None  # running sums of the evaluation over no batches, of a stack
        self._size = 0  # number of members for which each stacked array has room
        self._programs: dict[str, Any] = {}

    # -------------------------------------------------------------------------------- slots
    def load(self) -> None:
        """Copy the states to the devices, if they are not there."""
        if self._stacks or not self.members or self._on_host is None:
            return
        count, devices = len(self.members), len(self.devices)
        if self._in_turn:
            self._size = devices
        elif not self._size or 2 * count <= self._size:  # few sizes, because each is a program
            size = _power_of_two(count) if self._size else count
            self._size = -(-size // devices) * devices
        self._slots = [np.arange(low, low + self._size) % count for low in range(0, count, self._size)]
        self._stacks = [place_stack(take_members(self._on_host, slots), self.devices) for slots in self._slots]
        if self._best_on_host is not None:
            self._best = [place_stack(take_members(self._best_on_host, slots), self.devices) for slots in self._slots]
        rows = np.stack([member.recipe.numbers for member in self.members])
        placed = {key: place_members(x, self.devices) for key, x in {rows[s].tobytes(): rows[s] for s in self._slots}.items()}
        self._numbers = [placed[rows[slots].tobytes()] for slots in self._slots]
        self._on_host = self._best_on_host = self._zeros = None
        self._eval_data = []

    def unload(self) -> None:
        """Copy the states to the host, and free the devices."""
        if not self._stacks:
            return
        count = np.arange(len(self.members))
        self._on_host = take_members(read_stacks(self._stacks, len(self.devices)), count)
        if self.keep_best:
            self._best_on_host = take_members(read_stacks(self._best, len(self.devices)), count)
        self._stacks, self._best = [], []

    def end(self, numbers: set[int]) -> None:
        """Copy the states of the members `numbers`, which end, to `final`, and remove these members from the stacks.

        With `keep_best`, these are their best states.  The next `load` makes a single stack smaller if the other members use at
        most half of its slots.
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
    def train_epoch(self, stopped: Callable[[], bool], evaluate: bool, ahead: Any) -> list[dict[str, Any]] | None:
        """Train all members for one epoch.

        Args:
            stopped: called between dispatches; if it returns True, the epoch ends.
            evaluate: whether to evaluate after the epoch.
            ahead: function of `jfit.loop.ahead.compiling_ahead`.

        Returns:
            Values of the epoch for each member; None if training was stopped.
        """
        self.load()
        data, first = self._epoch_data(), np.int32(self.step)
        layout, at = self.layout, 0
        last: list[Any] = [None] * len(self._stacks)
        has_tail = self._tail is False and layout.last_size != layout.batch_size  # a second program trains it
        whole = layout.num_batches - has_tail
        if self.epoch == 0:
            self._prepare(data, first, ahead)
        window = Window()
        while at < layout.num_batches:
            count = min(self._most, whole - at) if at < whole else 1
            program = self._train_program("train" if at < whole else "train_tail")
            for i, stack in enumerate(self._stacks):
                self._stacks[i], last[i] = program(stack, self._numbers[i], data[i], first, np.int32(count))
                if (fence := window.push(last[i])) is not None:
                    counters.wait(fence)  # sync: at most 16 dispatches are queued
            at, self.step = at + count, self.step + count
            if at < layout.num_batches:
                counters.wait(last)  # sync: so that Ctrl-C is heard; a dispatch has many updates
            if stopped():
                return None
        totals = self._evaluate() if evaluate else [None] * len(self._stacks)
        sums = [(stack.metrics, *rest) for stack, *rest in zip(self._stacks, last, totals, strict=True)]
        read = counters.read(sums)  # sync: once per epoch
        self.epoch += 1
        return self._logs(read)

    def _prepare(self, data: Sequence[Any], first: Any, ahead: Any) -> None:
        """Trace the programs of the first epoch, which another thread compiles."""
        programs = [(self._train_program("train"), (self._numbers[0], data[0], first, np.int32(1)))]
        if self.problem.evaluation is not None:
            program, arguments = self._eval_program(self.problem.evaluation), self._eval_arguments(self.problem.evaluation)
            programs.append((program, (*arguments[0], np.int32(0), np.int32(1))))
        ahead(self._stacks[0], programs)

    def update_best(self, improved: Sequence[bool]) -> None:
        """Replace the best states of some members by their current states."""
        self._improved |= {m.member.number for m, better in zip(self.members, improved, strict=True) if better}
        axes = (0, STACK_AXES, STACK_AXES)
        if "best" not in self._programs:
            self._programs["best"] = compile_spmd(_select, self.devices, axes, STACK_AXES, donate=(1,), name="sweep_best")
        for i, slots in enumerate(self._slots):
            mask = np.asarray(improved)[slots]
            if mask.any():
                mask = place_members(mask, self.devices)
                self._best[i] = self._programs["best"](mask, self._best[i], self._stacks[i])

    @property
    def _tail(self) -> bool | None:
        """Argument `tail` of `BatchLayout.batch`: None if every batch has row weights."""
        layout = self.layout
        return None if layout.last_size != layout.batch_size and layout.paddable else False

    def _train_program(self, name: str) -> Any:
        if name not in self._programs:
            recipe, metrics = self.members[0].recipe, tuple(self.problem.settings.metrics)
            tail, model = self._tail if name == "train" else True, self.problem.model
            sums = metrics, tuple(model.logged), model.num_losses
            spec = TrainSpec(recipe.step, recipe.constants, self.layout, tail, *sums, self._order_axis)
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
            spec = EvalSpec(eval_step(self.problem.model, **options), layout, self._eval_axis)
            fn = functools.partial(evaluate_batches, spec, self._loops)
            axes = (STACK_AXES, 0, data_axes(self._eval_axis), None, None)
            self._programs["eval"] = compile_spmd(fn, self.devices, axes, 0, name="sweep_eval")
        return self._programs["eval"]

    def _evaluate(self) -> list[Any]:
        """Return the running sums of the evaluation of the members of each stack, on the devices; None without evaluation."""
        evaluation = self.problem.evaluation
        if evaluation is None:
            return [None] * len(self._stacks)
        program, results, window = self._eval_program(evaluation), [], Window()
        batches = evaluation.of_fold(self.members[0].member.fold)[1].num_batches
        step = batches if self._loops else 1
        for stack, (totals, data) in zip(self._stacks, self._eval_arguments(evaluation), strict=True):
            for at in range(0, batches, step):
                totals = program(stack, totals, data, np.int32(at), np.int32(step))
                if (fence := window.push(totals)) is not None:
                    counters.wait(fence)  # sync: at most 16 dispatches are queued
            results.append(totals)
        return results

    def _eval_arguments(self, evaluation: RowSet) -> list[tuple[Any, Any]]:
        """Return (running sums over no batches, data of the evaluation) for each stack, on the devices."""
        if not self._eval_data:
            self._eval_data = self._data(evaluation, lambda m: evaluation.of_fold(m.member.fold), self._eval_axis)
        if self._zeros is None:
            model = self.problem.model
            zeros = counters.read(zero_totals(self.problem.settings.metrics, model.logged, model.num_losses))  # sync: once
            self._zeros = place_members(jax.tree.map(lambda x: np.repeat(x[None], self._size, axis=0), zeros), self.devices)
        return [(self._zeros, data) for data in self._eval_data]

    def _epoch_data(self) -> list[dict[str, Any]]:
        train = self.problem.train
        assert train is not None
        return self._data(train, lambda member: (member.order(self.epoch), member.layout), self._order_axis)

    def _data(
        self, rows: RowSet, order_of: Callable[[Prepared], tuple[np.ndarray, BatchLayout]], axis: int | None
    ) -> list[dict[str, Any]]:
        """Put the row indices of the batches of an epoch or an evaluation on the devices.

        Args:
            rows: the arrays from which the batches are read.
            order_of: function that returns (row indices in the order of reading, sizes of the batches) for a member.
            axis: 0 if members have their own row indices; None if all share them.

        Returns:
            For each stack a dict of "arrays", "weight", "order" and "numbers", as `DeviceBatches.epoch_data` returns it, with
            first = 0 in "numbers"; "order" and "numbers" have a leading slot axis unless `axis` is None.
        """
        arrays, weight = self._replicated(rows) if len(self.devices) > 1 else (rows.arrays, rows.weight)
        whole = {"arrays": arrays, "weight": weight}
        tables: dict[Any, tuple[np.ndarray, np.ndarray]] = {}
        keys: list[Any] = []
        placed: dict[Any, dict[str, Any]] = {}  # stacks whose members read the same rows share the arrays
        for slots in self._slots:
            members = [self.members[i] for i in (slots[:1] if axis is None else slots)]
            tokens = tuple([None if axis is None else token_of_order(member) for member in members])
            keys.append(tokens)
            if tokens in placed:
                continue
            for token, member in zip(tokens, members, strict=True):
                if token not in tables:
                    order, layout = order_of(member)
                    tables[token] = order_table(order, layout), np.asarray([0, layout.batch_size, layout.last_size], np.int32)
            order, numbers = (np.stack(x) for x in zip(*[tables[token] for token in tokens], strict=True))
            if axis is None:
                order, numbers = place((order[0], numbers[0]), self.devices)
            else:
                order, numbers = place_members((order, numbers), self.devices)
            placed[tokens] = {**whole, "order": order, "numbers": numbers}
        return [placed[key] for key in keys]

    def _replicated(self, rows: RowSet) -> tuple[Any, Any]:
        key = f"arrays {id(rows)}"
        if key not in self._programs:
            self._programs[key] = place((dict(rows.arrays), rows.weight), self.devices)
        return self._programs[key]

    def _logs(self, read: Sequence[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
        """Compute losses and metrics of each member from running sums on the host.

        read: for each stack (running sums, reports of the last batch, running sums of the evaluation or None).
        """
        metrics, rows = self.problem.settings.metrics, []
        totals, reports, eval_totals = (join_members(x, len(self.devices)) for x in zip(*read, strict=True))
        for i in range(len(self.members)):
            of_member = member_of(totals, i)
            logs = values(metrics, of_member) | reported_lr(reports[i])
            if eval_totals is not None:
                logs |= {f"val_{name}": value for name, value in values(metrics, member_of(eval_totals, i)).items()}
            bad = int(of_member.first_bad_step)
            rows.append(logs | ({"first_bad_step": bad} if bad >= 0 else {}))
        return rows


def in_turn(device: Any) -> bool:
    """Return whether a call trains one member per device instead of all by `jax.vmap`: on CPU, where batching is not faster."""
    return device.platform == "cpu"


def token_of_order(member: Prepared) -> Any:
    """Members with equal tokens read the rows in the same order."""
    given = member.member.options
    return member.member.fold, given.seed if given.shuffle else None


def order_table(order: np.ndarray, layout: BatchLayout) -> np.ndarray:
    """Row indices of every batch, int32 (batches, padded_size); padding repeats rows."""
    size, positions = layout.batch_size, np.arange(layout.padded_size)
    table = np.arange(layout.num_batches)[:, None] * size + positions % size
    table[-1] = (layout.num_batches - 1) * size + positions % layout.last_size
    return order[table].astype(np.int32)


def _dispatch_steps(member: Prepared, members: int) -> int:
    """Number of updates of a dispatch."""
    steps, model = member.member.options.steps_per_call, member.problem.model
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
