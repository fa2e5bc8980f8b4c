"""Stage 6: the Run that `fit` returns: state, history, and what can be done with them."""

from __future__ import annotations

import functools
import html
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.graph import Symbol, load_json
from jfit.lowering import lower
from jfit.lowering.model import Model, count_parameters
from jfit.parallel import place
from jfit.step.state import TrainState
from jfit.train import checkpoint as checkpoints
from jfit.train.batches import Settings, settings_of
from jfit.train.callbacks import Callback
from jfit.train.evaluate import Evaluator
from jfit.train.history import History
from jfit.train.loop import Loop, data_position, reported_lr, set_data_position

# The newest run.  It is kept alive only while it trains and where training raised or was interrupted: a run that ended well is
# freed, with its data on the devices, as soon as nothing refers to it.
_last_run: Run | weakref.ref[Run] | None = None


class Run:
    """A trained (or half trained) model: state, history, and what can be done with them.

    Attributes:
        model: the model.
        history: per epoch and per log point.
        interrupted: True where Ctrl-C ended training.
        stop_reason: why training ended before `num_epoch`, or None.

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
        self.model, self.settings, self.history = model, settings, History() if history is None else history
        self.interrupted, self.stop_reason = False, None
        self._state: TrainState | None = state
        self._best: TrainState | None = None
        self._loop: Loop | None = None
        self._position = {"epoch": 0, "batch": 0, "step": 0}  # while no loop is attached

    # -------------------------------------------------------------------------------- what it holds
    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.model, self.settings)

    @property
    def state(self) -> TrainState:
        """The current state, on its devices.  Training further donates it: keep `snapshot()` instead."""
        state = self._loop.state if self._loop is not None else self._state
        assert state is not None
        return state

    @property
    def params(self) -> dict[str, jax.Array]:
        """The parameters by name."""
        return self.state.params

    @property
    def aux(self) -> dict[str, jax.Array]:
        """The auxiliary states by name."""
        return self.state.aux

    @property
    def symbol(self) -> Symbol | None:
        """The graph the model was lowered from, or None."""
        return self.model.symbol

    @property
    def base_lr(self) -> float | None:
        """The base learning rate, which a schedule scales; None where the optimizer keeps its own."""
        base_lr = self.state.base_lr
        return None if base_lr is None else float(counters.read(base_lr))

    @property
    def lr(self) -> float | None:
        """The learning rate of the last update, schedule included; None before it, and where the optimizer keeps its own.

        Reading it waits for that update: at log points and ends of epochs it is in `event.logs["lr"]` already.
        """
        report = None if self._loop is None or self._loop.report is None else counters.read(self._loop.report)
        if report is None:
            return next((row["lr"] for row in reversed(self.history.epochs) if "lr" in row), None)
        return reported_lr(report).get("lr")

    @property
    def rate(self) -> float | None:
        """The former name of `lr`."""
        return self.lr

    @property
    def directory(self) -> str | None:
        """Where this run writes its files, or None."""
        return self.settings.directory

    @property
    def num_epoch(self) -> int:
        """The epoch training goes to."""
        return self.settings.num_epoch

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        return self.settings.batch_size

    @property
    def position(self) -> dict[str, int]:
        """Where training stands: epoch, batch within it, step."""
        return dict(self._position) if self._loop is None else self._loop.position

    def snapshot(self) -> TrainState:
        """A copy of the state on the host; yours to keep."""
        return jax.tree.map(np.array, counters.read(self.state))  # own copies: the device's buffers are donated

    # -------------------------------------------------------------------------------- what callbacks may do
    def set_base_lr(self, rate: float) -> None:
        """Set the base learning rate, which a schedule scales; nothing recompiles.

        Raises:
            ValueError: the optimizer keeps its own rate (an optax instance).
        """
        state = self.state
        if state.base_lr is None:
            raise ValueError(
                "the optimizer is an optax instance and keeps its own learning rate; pass the optimizer by name, or wrap it in "
                "optax.inject_hyperparams and change opt_state.hyperparams"
            )
        self._set_state(state._replace(base_lr=place(jnp.asarray(rate, jnp.float32), self.settings.devices)))

    set_lr = set_base_lr  # its former name

    def stop(self, reason: str = "stopped by a callback") -> None:
        """End training after the current call; the reason is kept in `stop_reason`."""
        self._attached("stop").stop_reason = reason

    def set_best(self, snapshot: TrainState) -> None:
        """The state to go back to when training ends (`early_stopping` calls it)."""
        self._best = snapshot

    def meta(self) -> dict[str, Any]:
        """What a checkpoint holds beside the state: position, history, callback states, the graph."""
        names = [c.name for c in self._loop.callbacks] if self._loop else []
        states = self._loop.callback_states if self._loop else []
        return {
            "position": self.position,
            "history": self.history.to_json(),
            "callbacks": [list(p) for p in zip(names, states, strict=True)],
            "batch_size": self.batch_size,
            "data": data_position(self._loop.dispatcher, self._loop.epoch) if self._loop else None,
            **({"symbol": self.symbol.tojson(remove_amp_cast=False)} if self.symbol is not None else {}),
        }

    def _set_state(self, state: TrainState) -> None:
        """Go on with this state, on the run's devices already; programs are kept."""
        if self._loop is not None:
            self._loop.state = state
        else:
            self._state = state

    def _attached(self, what: str) -> Loop:
        if self._loop is None:
            raise ValueError(
                f"{what}: this run only scores and predicts, it has no training data; call jfit.fit(..., resume=folder) to go "
                "on from a checkpoint"
            )
        return self._loop

    # -------------------------------------------------------------------------------- training
    def attach(self, dispatcher: Any, callbacks: Sequence[Callback] = (), evaluate: Any = None) -> None:
        """Give the run a loop that trains its state on the batches of a dispatcher (`fit` does)."""
        self._loop = Loop(
            self.state,
            dispatcher,
            devices=self.settings.devices,
            metrics=self.settings.metrics,
            callbacks=callbacks,
            evaluate=evaluate,
            history=self.history,
            run=self,
        )
        self._state = None  # a second reference would keep the first parameters in memory

    def resume_from(self, directory: str | Path | None) -> None:
        """Take state, position, history and callback states from the newest checkpoint of a folder, if there is one.

        Raises:
            ValueError: no folder is named, or the checkpoint does not fit the model.
        """
        loop = self._attached("resume_from")
        if directory is None:
            raise ValueError("resume=True needs checkpoint=, the folder the checkpoints are in; or pass the folder as resume=")
        if checkpoints.latest(directory) is None:
            return
        loop.state = place(checkpoints.restore(directory, like=loop.state), loop.devices)  # the newest that is whole
        meta = checkpoints.load_meta(directory)
        missing = [key for key in ("position", "history", "callbacks") if key not in meta]
        if missing:
            raise ValueError(
                f"the checkpoint in {directory} has no {', '.join(map(repr, missing))} in its meta, so the position of its "
                "run is unknown: jfit.checkpoint.save wrote it without meta=run.meta(); use Run.load or checkpoint.restore for "
                "its values, and start training from them with params="
            )
        then = meta.get("batch_size", self.batch_size)
        if meta["position"]["batch"] and then != self.batch_size:
            found = f"in the middle of an epoch of batches of {then} rows, this run has batch_size={self.batch_size}"
            raise ValueError(f"the checkpoint in {directory} is {found}; resume with batch_size={then}, or from an epoch's end")
        loop.epoch, loop.batch, loop.step = (meta["position"][k] for k in ("epoch", "batch", "step"))
        loop.history = self.history = History.from_json(meta["history"])
        set_data_position(loop.dispatcher, loop.epoch, meta.get("data"))
        saved: dict[str, list[Any]] = {}
        for name, state in meta["callbacks"]:
            saved.setdefault(name, []).append(state)
        for i, callback in enumerate(loop.callbacks):
            if saved.get(callback.name):
                loop.callback_states[i] = saved[callback.name].pop(0)

    def train(self, num_epoch: int = 1) -> Run:
        """Train for `num_epoch` more epochs with the same data, programs and settings (an unfinished epoch counts as one)."""
        self.settings = replace(self.settings, num_epoch=self._attached("train").epoch + num_epoch)
        return self.go()

    def go(self) -> Run:
        """Train up to `num_epoch`."""
        global _last_run
        loop, _last_run = self._attached("go"), self
        loop.stop_reason, loop.interrupted = None, False
        try:
            loop.train(self.num_epoch)
        except BaseException as error:
            where = f"in epoch {loop.epoch} after step {loop.step}"
            error.add_note(f"jfit: training stopped {where}; {self._what_is_left()}")
            raise
        finally:
            self.interrupted, self.stop_reason = loop.interrupted, loop.stop_reason
        if self._best is not None and not loop.interrupted:
            # steps are counted on: batches, schedules and checkpoint names go by them
            best = self._best._replace(step=np.asarray(loop.step, np.int32))
            self._set_state(place(best, self.settings.devices))
        if not loop.interrupted:
            _last_run = weakref.ref(self)
        return self

    def _what_is_left(self) -> str:
        if self._alive():
            return "the last good state is in jfit.last_run()"
        folder = self.settings.checkpoint
        if folder is None or checkpoints.latest(folder) is None:
            return "the device lost the state, and there is no checkpoint; set checkpoint= to keep one"
        try:
            self.resume_from(folder)
        except (OSError, ValueError) as error:
            return f"the device lost the state, and the checkpoints in {folder} cannot be read ({error})"
        step = self.position["step"]
        return f"the device lost the state; jfit.last_run() holds that of step {step}, from the checkpoint in {folder}"

    def _alive(self) -> bool:
        """Whether the state can be read: a call that failed on the device leaves arrays that raise, or none."""
        try:
            jax.block_until_ready(self.state)  # sync: training has stopped; deleted arrays raise too
        except (RuntimeError, ValueError):
            return False
        return True

    # -------------------------------------------------------------------------------- using it
    def score(self, data: Any, eval_metric: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
        """Loss and metrics over a data set; filled-up rows do not count."""
        return self._evaluator.score(self.state, data, eval_metric, batch_size)

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """The outputs for every row of `data` (no labels needed): one numpy array, or a tuple where there are several."""
        return self._evaluator.predict(self.state, data, batch_size)

    # -------------------------------------------------------------------------------- keeping it
    def save(self, directory: str | Path) -> Path:
        """Write state, history and graph as a checkpoint `step-...` of a folder, atomically; `Run.load` reads it."""
        return checkpoints.save(directory, self.snapshot(), meta=self.meta(), keep=None)

    @classmethod
    def load(cls, directory: str | Path, model: Model | Symbol | None = None, *, devices: Any = None, **given: Any) -> Run:
        """A run that scores and predicts, from a folder that `save` or `checkpoint=` wrote; `fit(resume=folder)` trains on.

        A folder of `jfit.checkpoint.save(folder, state)` loads too: it needs model=, and its history is empty.

        Args:
            directory: the folder.
            model: the model or symbol; not needed for runs of graphs, whose graph lies beside the state.
            devices: where it shall live.
            given: batch_size, eval_batch_size, eval_metric and policy, as for `fit`.

        Raises:
            ValueError: the folder holds no graph and no model is given, or no parameters.
            FileNotFoundError: there is no checkpoint.
        """
        meta = checkpoints.load_meta(directory)
        if model is None:
            if "symbol" not in meta:
                state_alone = "jfit.checkpoint.save wrote it without meta=run.meta()"
                reason = "the run was trained from a function" if "history" in meta else state_alone
                raise ValueError(f"{directory} holds no graph: {reason}; pass it as model=")
            model = load_json(meta["symbol"])
        model = lower(model) if isinstance(model, Symbol) else model
        settings = settings_of(devices=devices, **{"batch_size": meta.get("batch_size", 32), **given})
        arrays = checkpoints.load_arrays(directory)
        params = {k[len("params/") :]: v for k, v in arrays.items() if k.startswith("params/")}
        aux = {k[len("aux/") :]: v for k, v in arrays.items() if k.startswith("aux/")}
        if not params and (model.symbol is None or model.symbol.list_arguments()):
            raise ValueError(
                f"{directory} holds no parameters: no array in it is called 'params/...', but {sorted(arrays)[:3]}; "
                "Run.load reads a saved TrainState, checkpoint.load_arrays any other pytree"
            )
        step = np.asarray(arrays.get("step", 0), np.int32)
        blank: Any = (step, params, aux, (), (), None, jax.random.key_data(jax.random.key(0)))
        history = History.from_json(meta["history"]) if "history" in meta else None
        run = cls(model, settings, place(TrainState(*blank), settings.devices), history)
        run._position = {**run._position, "step": int(step), **meta.get("position", {})}
        return run

    # -------------------------------------------------------------------------------- showing it
    def plot(self, path: str | Path | None = None) -> Any:
        """Curves of loss and metrics over the epochs (matplotlib)."""
        return self.history.plot(path)

    def __repr__(self) -> str:
        last = self.history.epochs[-1] if self.history.epochs else {}
        shown = ", ".join(
            f"{k} {v:.4g}" for k, v in last.items() if isinstance(v, float) and k not in ("time", "samples_per_second")
        )
        return f"<Run: {len(self.history)} epochs, {count_parameters(self.params):,} parameters{', ' + shown if shown else ''}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(repr(self))}</b></p>{self.history._repr_html_()}"


def last_run() -> Run | None:
    """The newest run of this process, or None: where training raised, its last good state is here.

    A run whose training raised or was interrupted is kept until the next one starts.  One that ended well is here as long as
    you hold it: once you drop it, its data and parameters are freed.

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
