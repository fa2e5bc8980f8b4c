"""`Event` and `Callback`, and the conversion of plain functions to callbacks."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jfit.checks import one_of, positive_integer
from jfit.distributed import is_main

EVENTS = ("fit_start", "epoch_start", "step", "step_log", "log", "evaluation", "epoch_end", "fit_end")


class Event(NamedTuple):
    """The argument of a callback: the kind of event, the position in the training, and the logged values.

    Kinds of events:

    - "fit_start", "fit_end": before the first and after the last epoch; "fit_end" also after an exception.
    - "epoch_start", "epoch_end": before the first batch of an epoch; after its last batch and the evaluation.  `num_steps` of
      `fit` may end training within an epoch, whose "epoch_end" then comes at the end of training.
    - "evaluation": after each evaluation.  At the end of an epoch it comes just before "epoch_end", which has its values too.
    - "step": every `every` steps, for callbacks with that argument; the state is that of this step.
    - "step_log": the loss, learning rate, metrics and values of `log=` of `fit` of one step, every `every` steps.  The values
      are read some dispatches later, so the host does not wait for them, and many steps can run in one dispatch; the state is
      that of a later step.  All of them are sent before the next "evaluation" and before "epoch_end".
    - "log": when the running loss and metrics have been read from the devices, at most about twice per second.  `epoch`,
      `batch` and `step` are those of the values, which are read a few steps late so that the host does not wait for them.

    Args:
        kind: one of `EVENTS`.
        epoch: number of the epoch, from 0.
        step: number of updates done since the start of the run, those before a resume included.
        batch: number of batches done in this epoch.
        num_batches: number of batches of an epoch, or None if the data has no length.
        logs: name -> value; empty except for "step_log" (loss, lr and metrics of the batch of this step, numbers), "log" (loss,
            metrics, lr, samples_per_second), "evaluation" (evaluation values as "val_" + name) and "epoch_end" (those of "log",
            those of an evaluation at this step, and in seconds time, compile_time, if programs were compiled, and data_time,
            for which the devices waited for batches of a stream).
            Numbers; for metrics such as a confusion matrix NumPy arrays.
        run: the `jfit.Run`, for reading its state (`run.snapshot()`), stopping it (`run.stop()`) and the like.
        ends_epoch: whether it is an "evaluation" at the end of an epoch, so that "epoch_end" follows.

    Example:
        >>> event = Event("epoch_end", epoch=0, step=10, batch=10, num_batches=10, logs={"loss": 0.5}, run=None)
        >>> event.kind, event.logs["loss"]
        ('epoch_end', 0.5)
    """

    kind: str
    epoch: int
    step: int
    batch: int
    num_batches: int | None
    logs: dict[str, Any]
    run: Any
    ends_epoch: bool = False

    @property
    def is_within(self) -> bool:
        """Whether it is an "evaluation" within an epoch, whose values no "epoch_end" event has."""
        return self.kind == "evaluation" and not self.ends_epoch


def scalars(logs: dict[str, Any]) -> dict[str, Any]:
    """Return the logged values (a dict by name) without arrays such as confusion matrices (lists in a history).

    Example:
        >>> import numpy as np
        >>> scalars({"loss": 0.5, "confusion_matrix": np.eye(2)})
        {'loss': 0.5}
    """
    return {name: value for name, value in logs.items() if not (isinstance(value, list) or getattr(value, "ndim", 0))}


class Callback(NamedTuple):
    """A pair of functions, `init() -> state` and `on(event, state) -> new state`, with the events for which `on` is called.

    The state is saved in checkpoints: a resumed run continues with the state instead of calling `init`.  It must therefore be
    JSON-serializable.

    Args:
        on: called with an `Event` and the state of the callback; returns the new state.
        init: returns the initial state.  Default: a function that returns None.
        events: kinds of events for which `on` is called, from `EVENTS`.
        every: number of steps between two "step" or "step_log" events; required if one of these is in `events`.  With "step", a
            call of the compiled program runs at most the steps up to the next event.  None: no such events.
        name: name of the callback in error messages and checkpoints.
        main_only: in a job of several processes, whether only rank 0 calls `on`, as for callbacks that print or write files.
            Otherwise all processes do, and `on` may run programs on the devices.
        saves: whether it saves checkpoints.  It then gets each event after all others, so that a checkpoint has their states,
            and its `on` is a method of a `jfit.callbacks.saving.Saver`.

    Example:
        >>> count = Callback(on=lambda event, state: state + 1, init=lambda: 0, name="count")
        >>> count.on(None, count.init())
        1
    """

    on: Callable[[Event, Any], Any]
    init: Callable[[], Any] = lambda: None
    events: tuple[str, ...] = ("epoch_end",)
    every: int | None = None
    name: str = "callback"
    main_only: bool = False
    saves: bool = False


def as_callback(callback: Any) -> Callback:
    """Convert a function of an event to a `Callback`, and check the events of a `Callback`.

    Args:
        callback: a `Callback`, or a function `f(event)`.  The function is called at "epoch_end", or for the kinds in its
            attribute `f.events` (a string or a tuple); `f.every` is the number of steps between "step" or "step_log" events,
            and `f.main_only` is as in `Callback`.

    Returns:
        The `Callback`.

    Raises:
        TypeError: `callback` is neither a `Callback` nor a function.
        ValueError: a kind of event does not exist, `every` is not an integer of at least 1, or "step" or "step_log" is used
            without `every`.

    Example:
        >>> as_callback(lambda event: print(event.epoch)).events
        ('epoch_end',)
    """
    if isinstance(callback, Callback):
        return _checked(callback)
    if not callable(callback) or isinstance(callback, type):
        expected = "a Callback, a function f(event), or jfit.callbacks.lambda_callback(epoch_end=...)"
        raise TypeError(f"callbacks: found {callback!r} of type {type(callback).__name__}; expected {expected}")
    events = getattr(callback, "events", ("epoch_end",))
    events = (events,) if isinstance(events, str) else tuple(events)
    every, main_only = getattr(callback, "every", None), bool(getattr(callback, "main_only", False))
    name = getattr(callback, "__name__", "callback")
    return lambda_callback(every=every, name=name, main_only=main_only, **dict.fromkeys(events, callback))


def lambda_callback(
    *, every: int | None = None, name: str = "lambda", main_only: bool = False, **functions: Callable[[Event], Any]
) -> Callback:
    """Create a callback without state from one function per kind of event.

    Args:
        every: number of steps between two calls of the `step` or `step_log` function; required with one of them, otherwise
            None.
        name: name of the callback in error messages.
        main_only: in a job of several processes, whether only rank 0 calls the functions.
        **functions: kind of event -> function `f(event)`; the kinds are in `EVENTS`.

    Returns:
        The `Callback`.

    Raises:
        ValueError: a keyword is not a kind of event, or `step=` or `step_log=` is passed without `every`.

    Example:
        >>> lambda_callback(epoch_end=lambda event: None, fit_end=lambda event: None).events
        ('epoch_end', 'fit_end')
    """

    def on(event: Event, state: Any) -> Any:
        functions[event.kind](event)
        return state

    return _checked(Callback(on=on, events=tuple(functions), every=every, name=name, main_only=main_only))


def of_this_process(callback: Callback) -> Callback:
    """Return a callback as this process of a job calls it: without effect, if it is only for rank 0 and this is another one.

    Its `every` stays, so that dispatches are equally long in all processes.
    """
    return callback if is_main() or not callback.main_only else callback._replace(on=lambda event, state: state)


def _checked(callback: Callback) -> Callback:
    for kind in callback.events:
        one_of(EVENTS, **{f"an event of callback {callback.name}": kind})
        if kind in ("step", "step_log") and callback.every is None:
            raise ValueError(f"callback {callback.name}: {kind!r} events need every=N, the number of steps between two events")
    if callback.every is None:
        return callback
    positive_integer(**{f"every of callback {callback.name}": callback.every})
    return callback._replace(every=int(callback.every))
