"""`Run`, the result of `fit`: the trained state and its history, with methods to score, predict, save and continue."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.checkpoints import checkpoint as checkpoints
from jfit.checkpoints import locks
from jfit.checkpoints.agreement import find_checkpoint, from_main, shared_checkpoint
from jfit.checkpoints.fingerprint import allowed_names
from jfit.checkpoints.fingerprint import check as check_fingerprint
from jfit.checkpoints.matching import check_match, check_position
from jfit.checkpoints.recovery import recovery_note
from jfit.checkpoints.saved import Saved, check_name, newest, path_of, read
from jfit.data import StreamData
from jfit.data.columns import Columns
from jfit.data.stream import is_endless
from jfit.distributed import is_main, num_processes
from jfit.evaluate.scorer import Evaluator
from jfit.feed.batches import Settings, settings_of
from jfit.feed.train_data import data_meta, restore_data
from jfit.forks import check_not_forked
from jfit.graph import Symbol, load_json
from jfit.history.display import last_values, run_html
from jfit.history.table import History, from_json_value, to_json_value
from jfit.loop.dispatch import dispatcher_of, reported_lr
from jfit.loop.loop import Loop
from jfit.loop.replaying import Replay, replay_step
from jfit.loop.threads import copied
from jfit.lowering.build import as_model
from jfit.lowering.model import Model, count_parameters
from jfit.lowering.structure import own_buffer
from jfit.optim import EmaState
from jfit.parallel import check_entry, place
from jfit.parallel.mesh import mesh_devices, mesh_of
from jfit.parallel.whole import evaluated_state, host_state, is_spread, specs_of_all, with_whole_params
from jfit.prepare import Problem
from jfit.step.state import TrainState

# The newest run, for `last_run`: a strong reference during training, and after an exception or an interrupt; a weak reference
# after successful training, so that the run and its data on the devices are freed with the user's last reference to it.
_last_run: Run | weakref.ref[Run] | None = None


class Run:
    """Result of `jfit.fit`: a trained model with its state and history, and methods to score, predict, save and continue.

    Callbacks receive the run as `event.run`, while it trains.

    Args:
        model: the `Model` to train, score and predict with.
        settings: devices, batch sizes, number of epochs, metrics and folders.
        state: initial `TrainState`, on the devices of `settings`.
        history: history of earlier epochs.  Default: empty.

    Attributes:
        functions: the `jfit.Model`.
        settings: devices, batch sizes, number of epochs, metrics and folders, a `jfit.feed.batches.Settings`.
        history: `History` with the losses and metrics of every epoch, of evaluations, of recorded steps, and of "log" events.
        interrupted: whether Ctrl-C or SIGTERM ended the last training.
        stop_reason: why the last training ended before `num_epoch` or `num_steps`, a string; None if it did not.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(8, axis=0)
        >>> run = jfit.fit(net, (x, x.argmax(1)), num_epoch=2, progress=False)
        >>> run.position, run.predict(x).shape
        ({'epoch': 2, 'batch': 0, 'step': 2}, (16, 2))
        >>> run.train(3).history.column("epoch")
        [0, 1, 2, 3, 4]
    """

    def __init__(self, model: Model, settings: Settings, state: TrainState, history: History | None = None) -> None:
        self.functions, self.settings, self.history = model, settings, History() if history is None else history
        self.interrupted, self.stop_reason = False, None
        self._state: TrainState | None = state
        self._best: TrainState | None = None
        self._problem: Problem | None = None  # of a run of `fit`
        self._module: tuple[list[weakref.ref[jax.Array]], Any] = [], None  # `model`, and the arrays of its state
        self._loop: Loop | None = None
        self._position = {"epoch": 0, "batch": 0, "step": 0}  # of a run without a `Loop`, which `Run.load` returned

    # -------------------------------------------------------------------------------- state
    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.functions, self.settings)

    @property
    def state(self) -> TrainState:
        """Current `TrainState`, on the devices.  The next step donates (deletes) its buffers: use `snapshot()` for a copy.

        While another thread trains this run, it is a copy on the devices, made between two dispatches.
        With reduce="sharded" or "sharded_parameters", arrays are split over the devices; `snapshot()` and checkpoints have
        whole arrays.
        """
        if self._loop is None:
            assert self._state is not None
            return self._state
        loop = self._loop
        with loop.thread.reading(lambda: loop.state) as state:
            return state

    @property
    def model(self) -> Any:
        """The trained module, if the model is a module of a JAX framework (Flax, Equinox, Haiku, Keras); else the `jfit.Model`.

        The module is in evaluation mode and has copies of `params` and `aux` on the default device, which live as long as the
        run.  It is one object until the parameters or auxiliary states change, by further training or a resume.  If you change
        it, the run and its predictions stay as they are, but `run.model` returns the changed module until the next training or
        resume; to avoid that, change a copy, from `flax.nnx.clone(run.model)` or `copy.deepcopy(run.model)`.
        """
        if self.functions.module is None:
            return self.functions
        with contextlib.nullcontext() if self._loop is None else self._loop.thread.exclusive():  # no step replaces the state
            state = cast(TrainState, self._state if self._loop is None else self._loop.state)
            arrays = jax.tree.leaves((state.params, state.aux))
            known, module = self._module
            if module is None or any(array() is not x for array, x in zip(known, arrays, strict=True)):
                values = counters.read((evaluated_state(state, self.settings.devices).params, state.aux))  # sync: for the user
                params, aux = jax.tree.map(own_buffer, values)
                module = self.functions.module.restore(self._tree("params", params), self._tree("aux", aux))
                self._module = [weakref.ref(x) for x in arrays], module
            return module

    @property
    def params(self) -> Any:
        """Current parameters: a dict name -> array; for a function or module, a pytree of the structure that it takes.

        With `fit(ema=...)` they are the moving averages, which `score` and `predict` use; `raw_params` are the parameters
        without averaging.
        """
        return self._tree("params", evaluated_state(self.state, self.settings.devices).params)

    @property
    def raw_params(self) -> Any:
        """Current parameters as `params`, but without averaging: those that the optimizer updates."""
        return self._tree("params", with_whole_params(self.state, self.settings.devices).params)

    @property
    def aux(self) -> Any:
        """Current auxiliary states (such as BatchNorm moving statistics): dict name -> array; for a function, its pytree."""
        return self._tree("aux", self.state.aux)

    @property
    def named_params(self) -> dict[str, jax.Array]:
        """Current parameters: dict name -> array.  For a function, the names are paths such as 'layers/0/w', in leaf order.

        With `ema=` of `fit` these are the averages, as `params`.
        """
        return self._named("params", evaluated_state(self.state, self.settings.devices).params)

    @property
    def named_aux(self) -> dict[str, jax.Array]:
        """Current auxiliary states: dict name -> array, with names as in `named_params`."""
        return self._named("aux", self.state.aux)

    def _tree(self, kind: str, arrays: dict[str, jax.Array]) -> Any:
        structure = self.functions.structure
        return arrays if structure is None else structure.known(kind).unflatten(arrays)

    def _named(self, kind: str, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        tree = None if self.functions.structure is None else getattr(self.functions.structure, kind)
        return arrays if tree is None else {name: arrays[name] for name in tree.names}

    @property
    def symbol(self) -> Symbol | None:
        """`Symbol` of the model, or None if the model is a function."""
        return self.functions.symbol

    @property
    def base_lr(self) -> float | None:
        """Base learning rate, before the schedule; None if the optimizer is an optax instance with its own learning rate."""
        base_lr = self.state.base_lr
        return None if base_lr is None else float(counters.read(base_lr))

    @property
    def lr(self) -> float | None:
        """Learning rate used by the last update, after the schedule.

        None before the first update, and if the optimizer has its own learning rate (an optax instance).  Reading it waits
        until the devices finish the update; in "log" and "epoch_end" events, `event.logs["lr"]` has it without waiting.
        """
        report = None if self._loop is None or self._loop.report is None else counters.read(self._loop.report)
        recorded = (row["lr"] for row in reversed(self.history.epochs) if "lr" in row)
        return next(recorded, None) if report is None else reported_lr(report).get("lr")

    @property
    def directory(self) -> str | None:
        """Folder for files written by callbacks: the argument `directory` of `fit`; None if it was not passed."""
        return self.settings.directory

    @property
    def num_epoch(self) -> int | None:
        """Total number of epochs, those before a resume included; None if `num_steps` ends training."""
        return self.settings.num_epoch

    @property
    def num_steps(self) -> int | None:
        """Total number of updates, those before a resume included; None if `num_epoch` ends training."""
        return self.settings.num_steps

    @property
    def batch_size(self) -> int:
        """Number of rows per training batch over all devices."""
        return self.settings.batch_size

    @property
    def position(self) -> dict[str, int]:
        """Position of the next step, from 0: `epoch`, `batch` (number within the epoch), `step` (number of updates so far)."""
        return dict(self._position) if self._loop is None else self._loop.position

    def snapshot(self) -> TrainState:
        """Return a copy of the state as NumPy arrays on the host, unaffected by further training; typed PRNG keys stay keys.

        In a job of several processes, all of them must call it if `reduce` of `fit` splits the state over the devices or
        keeps one per device ("sharded", "sharded_parameters", "2bit"): the parts of the other processes are gathered.
        """
        return host_state(self.state, self.settings.devices)

    # -------------------------------------------------------------------------------- methods for callbacks
    def set_base_lr(self, rate: float) -> None:
        """Set the base learning rate, before the schedule, without recompilation.

        Args:
            rate: the new base learning rate.

        Raises:
            ValueError: the optimizer has its own learning rate (an optax instance).
        """
        if self.state.base_lr is None:
            raise ValueError(
                "the optimizer is an optax instance with its own learning rate; pass it by name, or optax.inject_hyperparams"
            )
        base_lr, loop = place(jnp.asarray(rate, jnp.float32), self.settings.devices), self._require_loop("set_base_lr")
        with loop.thread.exclusive():  # another thread may be training
            loop.state = loop.state._replace(base_lr=base_lr)

    def stop(self, reason: str = "stopped by a callback") -> None:
        """End training after the current dispatch (call of a compiled program, which runs one or more steps).

        Args:
            reason: text for `stop_reason`.

        Raises:
            ValueError: the run has no training data.
        """
        self._require_loop("stop").stop_reason = reason

    def keep_finite(self, snapshot: TrainState) -> bool:
        """Keep a copy of the present state, from `snapshot()`, to which nan="stop" and nan="rollback" of `fit` may go back.

        Args:
            snapshot: the copy; not kept if it is not finite.

        Returns:
            bool: whether `nan` is one of these, so that a state that is not finite will be replaced.
        """
        loop = self._require_loop("keep_finite")
        return loop.nan.keep(snapshot, loop.position)

    def set_best(self, snapshot: TrainState) -> None:
        """Set the state that the run restores when training ends; used by `jfit.callbacks.early_stopping`.

        Args:
            snapshot: a copy of the state, from `snapshot()`.
        """
        self._best = snapshot

    def meta(self) -> dict[str, Any]:
        """Return the JSON-serializable part of a checkpoint, the argument `meta` of `jfit.checkpoint.save`.

        Returns:
            dict with the position of the run, its history, the states of its callbacks, its batch size, the position of the
            data iterator and, if the model has one, the graph.
        """
        if self._loop is not None:
            self._loop.read_steps()  # otherwise the checkpoint would lack the values of the last steps
        events = self._loop and self._loop.events
        callbacks = [[c.name, state] for c, state in zip(events.callbacks, events.states, strict=True)] if events else []
        return {
            "position": self.position,
            "history": self.history.to_json(),
            "callbacks": callbacks,
            "batch_size": self.batch_size,
            "learning_rate": self.settings.learning_rate,
            "restores_best": self.restores_best,
            "ema": self._averages,
            "report": self._report(),
            "fingerprint": None if self._problem is None else self._problem.fingerprint,
            "arguments": None if self._problem is None else self._problem.repeated,
            "inputs": {k: [s.shape, str(s.dtype)] for k, s in (self.settings.inputs or {}).items()},
            "columns": None if self.settings.columns is None else self.settings.columns.to_json(),
            **data_meta(self._loop),
            **({"symbol": self.symbol.tojson(remove_amp_cast=False)} if self.symbol is not None else {}),
        }

    def _report(self) -> list[Any] | None:
        report = getattr(self._loop, "report", None)
        return None if report is None else [to_json_value(float(x)) for x in counters.read(report)]  # sync: of a save

    @property
    def restores_best(self) -> bool:
        """Whether training has ended, and the best state (`early_stopping`) becomes that of this run."""
        return self._best is not None and self._loop is not None and self._loop.ended

    def extra(self) -> dict[str, Any]:
        """Return the other arrays of a checkpoint, the argument `extra` of `jfit.checkpoint.save`.

        Returns:
            dict that may have "best", the state that the run restores when training ends (`early_stopping`), and
            "host_metrics", the sums of metrics on the host if the run is in the middle of an epoch.
        """
        extra: dict[str, Any] = {} if self._best is None else {"best": self._best}
        loop = self._loop
        if loop is not None and loop.readings.host is not None and loop.batch:
            loop.read_steps()
            extra["host_metrics"] = loop.readings.host.packed()
        return {name: tree for name, tree in extra.items() if tree}

    def _resume_extra(self, saved: Saved) -> None:
        loop = self._require_loop("resume_from")
        if "best.safetensors" in saved.arrays:
            self._best = checkpoints.unflatten(saved, specs_of_all(loop.state, self.settings.devices), "best")
        if loop.readings.host is not None and "host_metrics.safetensors" in saved.arrays:
            loop.readings.host.unpack(saved.arrays["host_metrics.safetensors"])
        if saved.meta["report"] is not None:
            dtype = jax.dtypes.canonicalize_dtype(float)
            loop.report = np.asarray([from_json_value(value) for value in saved.meta["report"]], dtype)

    @property
    def _averages(self) -> bool:
        return isinstance(self.state.opt_state, EmaState)

    def _require_loop(self, method: str) -> Loop:
        if self._loop is None:
            raise ValueError(
                f"{method}: this run was loaded without training data; call jfit.fit(..., resume=folder) to continue training"
            )
        return self._loop

    # -------------------------------------------------------------------------------- training
    @classmethod
    def of(cls, problem: Problem) -> Run:
        """Return a run that has not trained yet, with its state on the devices and a training loop.

        Args:
            problem: result of `jfit.prepare.prepare`; its state is taken.
        """
        settings, dispatcher = problem.settings, dispatcher_of(problem)
        run = cls(problem.model, settings, place(problem.take_state(), settings.devices))
        run._problem = problem
        run._loop = Loop(problem, dispatcher, run.state, run)
        run._state = None  # as above
        return run

    def open_folder(self, checkpoint: Any, resume: Any, resume_with: str | Sequence[str]) -> None:
        """Lock the folder of checkpoints, resume from it or another one, and move the checkpoints of another run aside.

        Args:
            checkpoint, resume, resume_with: the arguments of `fit`.
        """
        source = checkpoint if resume is True else None if resume is False else resume
        if resume_with and self._problem is not None:
            allowed_names(resume_with, self._problem.fingerprint)
        try:
            if checkpoint is not None:
                from_main(lambda: locks.acquire(checkpoint, self), "locking the folder of checkpoints")  # `go` releases it
            if source is not None:
                check_name(source, "resume")
            left_out = self.resume_from(source, resume_with) if resume else False
            if checkpoint is not None and (source is None or Path(source).resolve() != Path(checkpoint).resolve()):
                # otherwise those of an earlier run with more steps would be read as the newest
                checkpoints.set_aside(checkpoint)
            elif checkpoint is not None and left_out:
                checkpoints.set_aside(checkpoint, after=self.position["step"])
        except BaseException:
            locks.release(self)
            raise

    def resume_from(self, directory: str | Path | None, resume_with: str | Sequence[str] = ()) -> bool:
        """Restore state, position, history and callback states from the newest complete checkpoint of a folder.

        If its parameters or auxiliary states are not finite, the newest checkpoint with finite ones is used, with a warning.
        Does nothing if the folder has no checkpoint.

        Args:
            directory: folder of checkpoints, or one checkpoint; it must exist.
            resume_with: names of settings that may differ from those of the earlier run, or "any".

        Returns:
            bool: whether checkpoints of later steps are not used, because they are not finite.

        Raises:
            ValueError: `directory` is None, the arrays do not match the state of this run, the checkpoint has no position,
                another setting decides what is learned, or it is in the middle of an epoch of another batch size, or another
                learning rate than that of the earlier run was passed, but the optimizer keeps the learning rate in its state.
        """
        loop = self._require_loop("resume_from")
        loop.thread.check_here("Run.resume_from", "wait until that training has ended")
        if directory is None:
            raise ValueError("resume=True needs checkpoint=, the folder of the checkpoints; or pass the folder as resume=")
        found = find_checkpoint(directory)  # read once: state and position are those of one checkpoint
        if found is None:
            return False
        saved, is_older = found
        meta = saved.meta
        check_position(directory, meta, self.batch_size)
        if meta["ema"] != self._averages:
            runs = "a run with ema=, but this one has none" if meta["ema"] else "a run without ema=, but this one has it"
            raise ValueError(f"the checkpoint in {directory} is of {runs}; resume with the same ema= argument")
        state, difference = checkpoints.resumed(saved, specs_of_all(loop.state, self.settings.devices))
        loop.state = place(state, self.settings.devices)
        self._resume_extra(saved)
        loop.epoch, loop.batch, loop.step = (meta["position"][k] for k in ("epoch", "batch", "step"))
        loop.history = self.history = History.from_json(meta["history"])
        self._resume_rate(meta["learning_rate"], directory)
        if self._problem is not None and meta["fingerprint"]:
            check_fingerprint(meta["fingerprint"], self._problem.fingerprint, resume_with, directory)
        if difference:
            warnings.warn(difference, stacklevel=4)
        restore_data(loop.dispatcher, loop.epoch, loop.batch, meta)
        callback_states: dict[str, list[Any]] = {}
        for name, callback_state in meta["callbacks"]:
            callback_states.setdefault(name, []).append(callback_state)
        for i, callback in enumerate(loop.events.callbacks):
            if callback_states.get(callback.name):
                loop.events.states[i] = callback_states[callback.name].pop(0)
        return is_older

    def _resume_rate(self, earlier: float | None, directory: str | Path) -> None:
        """Use the learning rate passed to `fit` if it is not the one that the earlier run was given.

        If both are equal, the learning rate in the checkpoint stays: a callback may have reduced it.
        """
        rate, base_lr = self.settings.learning_rate, self.base_lr
        if rate is None or rate == earlier:
            self.settings = replace(self.settings, learning_rate=earlier)
        elif base_lr is None:
            problem = f"the optimizer's state has learning rate {earlier}, so {rate} would not be used"
            raise ValueError(f"{directory}: {problem}; resume with {earlier}, or pass the optimizer by name")
        elif np.float32(rate) != np.float32(base_lr):
            self.set_base_lr(rate)

    def train(self, num_epoch: int | None = None, *, num_steps: int | None = None) -> Run:
        """Continue training with the same data, compiled programs and settings.

        Args:
            num_epoch: number of further epochs; the rest of an unfinished epoch is the first of them.  Default: 1, without
                `num_steps`.
            num_steps: number of further updates, instead of `num_epoch`.

        Returns:
            Run: this run.

        Raises:
            ValueError: the run was loaded from files and has no training data, both numbers are passed, or the end of an
                epoch is not known: without `num_steps`, if the iterable is known to be endless; without both, if its length is
                not known and the run was trained by `num_steps`.
            RuntimeError: another thread trains this run, or this thread, which called a callback.
        """
        check_not_forked("Run.train")
        if num_epoch is not None and num_steps is not None:
            raise ValueError(
                f"Run.train: num_epoch={num_epoch} and num_steps={num_steps} are both passed; leave out one of them"
            )
        loop = self._require_loop("train")
        data, unending = loop.dispatcher.data, num_steps is None and loop.dispatcher.num_batches is None
        if unending and isinstance(data, StreamData) and (is_endless(data.source) or (num_epoch is None and self.num_steps)):
            raise ValueError("Run.train: an epoch of the training data may be endless; pass num_steps=, or else num_epoch=")
        return self.go(num_epoch if num_epoch is not None or num_steps is not None else 1, num_steps)

    def go(self, epochs: int | None = None, steps: int | None = None) -> Run:
        """Train from the current position and return this run; called by `fit` and `train`.

        Args:
            epochs, steps: number of further epochs, or of further updates.  Default: up to the end that `settings` say.

        Raises:
            RuntimeError: a thread trains this run already.
        """
        loop = self._require_loop("train")
        with loop.thread.training(lambda: setattr(loop, "state", copied(loop.state))):
            if epochs is not None or steps is not None:
                num_epoch = None if epochs is None else loop.epoch + epochs
                num_steps = None if steps is None else loop.step + steps
                self.settings = replace(self.settings, num_epoch=num_epoch, num_steps=num_steps)
            return self._train(loop)

    def _train(self, loop: Loop) -> Run:
        global _last_run
        _last_run = self
        loop.stop_reason, loop.interrupted, loop.ended, loop.exit_code = None, False, False, None
        try:
            loop.train(self.num_epoch, self.num_steps)
        except BaseException as error:
            where = f"in epoch {loop.epoch} after step {loop.step}"
            error.add_note(f"jfit: training stopped {where}; {recovery_note(self)}")
            raise
        finally:
            if loop.saves:
                locks.release(self)
            if self._problem is not None:
                self._problem.described.end()
            self.interrupted, self.stop_reason = loop.interrupted, loop.stop_reason
        if loop.exit_code is not None:
            raise SystemExit(loop.exit_code)
        if self._best is not None and not loop.interrupted:
            # The best state gets the current step number, on which batch positions, schedules and checkpoint names depend.
            best = self._best._replace(step=np.asarray(loop.step, np.int32))
            loop.state = place(best, self.settings.devices)
        if not loop.interrupted:
            _last_run = weakref.ref(self)
        return self

    # -------------------------------------------------------------------------------- scoring and prediction
    def score(self, data: Any, eval_metric: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
        """Compute loss and metrics over a data set.  Padding rows are excluded.

        While another thread trains this run, the parameters are those between two of its steps, for all rows the same.

        Args:
            data: data with labels, in the forms of `train_data` of `jfit.fit`.
            eval_metric: metrics as in `jfit.fit`.  Default: the metrics of the run.
            batch_size: number of rows per batch.  Default: `eval_batch_size` of `fit`.

        Returns:
            dict of floats (some metrics: arrays) by metric name, with the mean loss of the rows as "loss".

        Raises:
            jfit.distributed.RanksDiffer: in a job, the processes pass different arrays.

        Example:
            >>> import jfit, numpy as np
            >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
            >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
            >>> run = jfit.fit(jfit.sym.SoftmaxOutput(net, name="softmax"), (x, y), num_epoch=2, progress=False)
            >>> sorted(run.score((x, y), "acc"))
            ['accuracy', 'loss']
        """
        with self._evaluated() as state:
            return self._evaluator.score(state, data, eval_metric, batch_size)

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """Compute the outputs of the model for every row.

        While another thread trains this run, the parameters are those between two of its steps, for all rows the same.

        Args:
            data: inputs without labels (labels are ignored), in the forms of `train_data` of `jfit.fit`.  Arrays are read in
                their order.
            batch_size: number of rows per batch.  Default: `eval_batch_size` of `fit`.  Fewer rows are padded to a power of
                two, so that few programs are compiled for any number of rows, unless rows of the model affect each other.

        Returns:
            NumPy array of shape (rows, ...), or a tuple of arrays if the model has several outputs.

        Raises:
            ValueError: the data is empty, or an incomplete batch cannot be padded.
            jfit.distributed.RanksDiffer: in a job, the processes pass different arrays.

        Example:
            >>> import jfit, numpy as np
            >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
            >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
            >>> run = jfit.fit(jfit.sym.SoftmaxOutput(net, name="softmax"), (x, y), num_epoch=2, progress=False)
            >>> run.predict(x[:3]).shape
            (3, 2)
        """
        with self._evaluated() as state:
            return self._evaluator.predict(state, data, batch_size)

    def _evaluated(self) -> contextlib.AbstractContextManager[TrainState]:
        """Context manager whose value is the state for scores and predictions, which no other thread deletes in the block."""
        loop, devices = self._loop, self.settings.devices
        if loop is None:
            return contextlib.nullcontext(evaluated_state(self.state, devices))
        return loop.thread.reading(lambda: evaluated_state(loop.state, devices)._replace(opt_state=(), metrics=(), local=None))

    def replay(self, step: int) -> Replay:
        """Repeat a training step, and return what it computes node by node, with the first node that is not finite.

        A copy of an earlier state is trained up to this step with the programs and data of the run, so that it has the bits of
        the run.  This state is the nearest of the checkpoints in `checkpoint=` of `fit`, the present state, and one that
        nan="stop" or nan="rollback" kept.  Callbacks are not called, and the run does not change.  `jfit.replay` needs only the
        folder of the checkpoints, or trains from the start.

        Args:
            step: number of the step, from 0: the number of updates before it, as in the warning that a loss is not finite.  At
                most the number of updates that the run has done: the step that follows.

        Returns:
            Replay: statistics of each node and parameter, `first_bad`, `to_pandas()` and `plot()`; `print` shows it as tables.

        Raises:
            ValueError: the run has not reached this step, there is no earlier state, the data is an iterator that was read, or
                it ends before this step.

        Example:
            >>> import jfit, numpy as np
            >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
            >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
            >>> run = jfit.fit(jfit.sym.SoftmaxOutput(net, name="softmax"), (x, y), num_epoch=2, progress=False)
            >>> replay = run.replay(2)
            >>> replay.epoch, replay["data"].maximum, replay.first_bad, sorted(replay.gradients)
            (2, 1.0, None, ['fc_bias', 'fc_weight'])
        """
        return replay_step(self._require_loop("replay"), step, self._best is None)

    # -------------------------------------------------------------------------------- saving and loading
    def save(self, directory: str | Path) -> Path:
        """Save state, history and graph as a checkpoint, atomically.  `Run.load` loads it, `jfit.fit(resume=folder)` continues.

        In a job of several processes, rank 0 writes, and the others return at once; with a state that is split over devices
        (`reduce="sharded"` and the like), all processes must call this method.

        Args:
            directory: folder of checkpoints, created if missing.

        Returns:
            Path: the new subfolder `step-<number>`.

        Raises:
            RuntimeError: another thread trains this run.
        """
        if self._loop is not None:
            self._loop.thread.check_here("Run.save", "call event.run.save(folder) in a callback, or pass checkpoint= to fit")
        if not is_main() and not self.saves_together:
            return path_of(directory, self.position["step"])
        return checkpoints.save(directory, self.snapshot(), meta=self.meta(), keep=None, extra=self.extra())

    @property
    def saves_together(self) -> bool:
        """Whether a save needs all processes of a job: each has parts of the state on its devices, or a stream of its own."""
        streams = self._loop is not None and isinstance(self._loop.dispatcher.data, StreamData)
        state = self.state
        is_split = state.local is not None or any(map(is_spread, jax.tree.leaves((state.params, state.opt_state))))
        return num_processes() > 1 and (streams or is_split)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        model: Any = None,
        *,
        devices: Any = None,
        which: str = "newest",
        mesh: Any = None,
        shard: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Run:
        """Load a run that can score and predict from a folder of checkpoints (from `save` or `checkpoint=`).

        In a job of several processes, all must call it.  To continue training, call `jfit.fit(..., resume=folder)` instead.  A
        folder of `jfit.checkpoint.save(folder, state)` without `meta` loads with `model`; its history is empty.

        Args:
            directory: folder of checkpoints.
            model: `Model`, `Symbol`, module of a JAX framework, or function.  Default: the graph saved in the checkpoint.
            devices: devices, as for `fit`.
            which: "newest", or "best" for the checkpoint with the best monitored value (`checkpoint_best=` of `fit`).  If
                training has ended and restored its best state (`early_stopping`), the newest checkpoint gives that state.
            mesh, shard: as for `fit`: the parameters are split over the axes of a mesh, of the same shape or another one.
            options: `batch_size`, `eval_batch_size`, `eval_metric` and `policy`, as for `fit`, `loss` for a module or function,
                without which it can only predict, and `params` and `aux` for a function, pytrees with the structure of its
                parameters and auxiliary states (the values are those of the checkpoint).

        Returns:
            Run: its parameters (of a run with `ema=`, their averages) and auxiliary states are on the devices; the optimizer
            state is not loaded.

        Raises:
            ValueError: the run did not keep its best checkpoint; or the checkpoint has no parameters, no graph and `model` is
                None, or parameters with other names or shapes than `model`.
            FileNotFoundError: the folder has no checkpoint.

        Example:
            >>> import jfit, numpy as np, tempfile
            >>> x, y = np.eye(2, dtype="float32").repeat(8, axis=0), np.arange(2).repeat(8)
            >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2)
            >>> run = jfit.fit(jfit.sym.SoftmaxOutput(net, name="softmax"), (x, y), num_epoch=2, progress=False)
            >>> folder = tempfile.mkdtemp()
            >>> run.save(folder).name
            'step-00000002'
            >>> loaded = jfit.Run.load(folder)
            >>> loaded.position["epoch"], bool((loaded.predict(x) == run.predict(x)).all())
            (2, True)
        """
        check_entry("jfit.Run.load", several=True)
        if which not in ("newest", "best"):
            raise ValueError(f'which is {which!r}; expected "newest" or "best"')
        # once: parameters and meta are those of one checkpoint
        best = which == "best"
        saved = shared_checkpoint(lambda: newest(checkpoints.best(directory) if best else directory, read))
        assert saved is not None
        meta, passed = saved.meta, model is not None
        if model is None:
            if "symbol" not in meta:
                without_meta = "jfit.checkpoint.save wrote it without meta=run.meta()"
                reason = "the model of the run was a function" if "history" in meta else without_meta
                raise ValueError(f"the checkpoint in {directory} has no graph: {reason}; pass the model as model=")
            model = load_json(meta["symbol"])
        model = as_model(model, predict=True, **{k: options.pop(k, None) for k in ("loss", "params", "aux")})
        on_mesh = None if mesh is None and shard is None else mesh_of(mesh, shard, devices)
        devices = devices if on_mesh is None else None
        settings = settings_of(model, devices=devices, **{"batch_size": meta.get("batch_size", 32), **options})
        if meta.get("columns") is not None and settings.columns is None:
            settings = replace(settings, columns=Columns.from_json(meta["columns"]))
        saved = checkpoints.whole(saved, ("params/", "aux/", "opt_state/ema_params"))
        arrays = checkpoints.leaves_of(saved, "best" if meta.get("restores_best") and not best else "state")
        params = {k[len("params/") :]: v for k, v in arrays.items() if k.startswith("params/")}
        aux = {k[len("aux/") :]: v for k, v in arrays.items() if k.startswith("aux/")}
        averages = {k: arrays.get(f"opt_state/ema_params/{k}", arrays.get("opt_state/ema_params")) for k in params}
        params |= {k: average.astype(params[k].dtype) for k, average in averages.items() if average is not None}
        if not params and (model.symbol is None or model.symbol.list_arguments()):
            found = f"found arrays {sorted(arrays)[:3]}, expected names such as 'params/...'"
            raise ValueError(f"the checkpoint in {directory} has no parameters: {found}; read it with checkpoint.load_arrays")
        if passed:
            check_match(directory, model, params, aux, meta.get("inputs"))
        step = np.asarray(arrays.get("step", 0), np.int32)
        state = TrainState(cast(Any, step), params, aux, (), (), None, jax.random.key_data(jax.random.key(0)))
        if on_mesh is not None:
            settings = replace(settings, devices=mesh_devices(on_mesh, shard, state, {}))
        history = History.from_json(meta["history"]) if "history" in meta else None
        run = cls(model, settings, place(state, settings.devices), history)
        run._position = {**run._position, "step": int(step), **meta.get("position", {})}
        return run

    # -------------------------------------------------------------------------------- display
    def plot(self, path: str | Path | None = None) -> Any:
        """Plot loss, metrics and learning rate over the epochs with matplotlib, as `History.plot` describes.

        Args:
            path: image file to write.  Default: no file.

        Returns:
            The matplotlib figure.  As the last value of a notebook cell it is displayed once, not twice.
        """
        return self.history.plot(path)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Run cannot be pickled or deep-copied: it has compiled programs; use run.save(folder) and jfit.Run.load(folder)"
        )

    def __copy__(self) -> Run:
        result = object.__new__(type(self))
        vars(result).update(vars(self))
        return result

    def __repr__(self) -> str:
        logs = last_values(self.history)
        return f"<Run: {len(self.history)} epochs, {count_parameters(self.state.params):,} parameters{logs and ', ' + logs}>"

    def _repr_html_(self) -> str:
        return run_html(self)


def last_run() -> Run | None:
    """Return the newest run of this process, for example after `jfit.fit` raised an exception and returned nothing.

    A run whose training raised an exception or was interrupted is kept alive until the next run starts.  A run that finished
    is kept alive only by your own references to it, so that its data and parameters can be freed.

    Returns:
        Run: the newest run, with the state of its last finished step; None if there is none, or if it was freed.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> def fail(event):
        ...     raise RuntimeError("the disk is full")
        >>> try:
        ...     jfit.fit(net, (np.eye(2, dtype="float32"), [0, 1]), callbacks=[fail], progress=False)
        ... except RuntimeError:
        ...     print(jfit.last_run().position["step"])
        1
    """
    return _last_run() if isinstance(_last_run, weakref.ref) else _last_run
