"""The callback contract: an Event, a Callback as a pair of functions, and the wrapper for plain functions."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

EVENTS = ("fit_start", "epoch_start", "step", "log", "epoch_end", "fit_end")


class Event(NamedTuple):
    """What happened, where in the run, and the numbers known at that moment.

    Args:
      kind: one of `EVENTS`. "step" fires at call boundaries, only for callbacks with `every=N`; "log" fires when
        running values were read (at most about two a second, without an extra host sync).
      epoch: the epoch, counted from 0.
      step: updates done since the start of the run.
      batch: batches done in this epoch.
      num_batches: batches in an epoch, or None where the data does not tell.
      logs: loss, lr, samples_per_second and metrics; at "epoch_end" also time and the val_ values. Numbers; a metric such
        as the confusion matrix is a numpy array.
      run: a view of the run, valid until the callback returns.

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


def numbers(logs: dict[str, Any]) -> dict[str, Any]:
    """The logs without arrays, such as confusion matrices, which lines and cells have no room for.

    Example:
      >>> import numpy as np
      >>> numbers({"loss": 0.5, "confusion_matrix": np.eye(2)})
      {'loss': 0.5}
    """
    return {name: value for name, value in logs.items() if not getattr(value, "ndim", 0)}


class Callback(NamedTuple):
    """state ← on(event, state), from state = init().

    Args:
      on: called with an event and the callback's state; returns the new state. The state is JSON-able, because
        checkpoints save it.
      init: makes the first state.
      events: the kinds of event that `on` wants.
      every: for "step" events: fire each time that many steps are done. A call then never runs past such a step.
      name: how errors and checkpoints call it.

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


def as_callback(callback: Any) -> Callback:
    """Accepts a Callback, or a plain function of one event.

    Args:
      callback: a `Callback`, or `f(event)`; the function may declare `f.events` (a kind or a tuple of kinds) and
        `f.every` (an int). Without them it is called at "epoch_end".

    Returns:
      The `Callback`, its events and `every` checked.

    Raises:
      TypeError: it is neither.
      ValueError: it asks for an event that does not exist, or `every` is not a positive number of steps.

    Example:
      >>> as_callback(lambda event: print(event.epoch)).events
      ('epoch_end',)
    """
    if isinstance(callback, Callback):
        return _checked(callback)
    if not callable(callback) or isinstance(callback, type):
        raise TypeError(
            f"callbacks: found {callback!r} of type {type(callback).__name__}, needed a Callback or a function of one "
            "event; pass jfit.callbacks.lambda_callback(epoch_end=...) or a function f(event)."
        )
    events = getattr(callback, "events", ("epoch_end",))
    events = (events,) if isinstance(events, str) else tuple(events)

    def on(event: Event, state: Any) -> Any:
        callback(event)
        return state

    every = getattr(callback, "every", None)
    return _checked(Callback(on=on, events=events, every=every, name=getattr(callback, "__name__", "callback")))


def lambda_callback(*, every: int | None = None, name: str = "lambda", **functions: Callable[[Event], Any]) -> Callback:
    """A callback without state from one function for each kind of event.

    Args:
      every: steps between two calls of the `step` function (needed with `step=`).
      name: how errors call it.
      **functions: kind of event -> function of one event.

    Returns:
      The `Callback`.

    Raises:
      ValueError: a keyword is no kind of event.

    Example:
      >>> lambda_callback(epoch_end=lambda event: None, fit_end=lambda event: None).events
      ('epoch_end', 'fit_end')
    """

    def on(event: Event, state: Any) -> Any:
        functions[event.kind](event)
        return state

    return _checked(Callback(on=on, events=tuple(functions), every=every, name=name))


def known_names(name: str, known: Iterable[str]) -> str:
    """'known: a, b, c; did you mean b?', for error sentences.

    Args:
      name: the name that was not found.
      known: the names that exist.

    Returns:
      The end of a sentence.

    Example:
      >>> known_names("val_acc", ["loss", "val_accuracy"])
      'known names are loss, val_accuracy; did you mean val_accuracy?'
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"known names are {', '.join(known) or '(none)'}" + (f"; did you mean {near[0]}?" if near else ".")


def _checked(callback: Callback) -> Callback:
    _check_events(callback.name, callback.events)
    every = callback.every
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"callback {callback.name}: every is {every!r}, needed a number of steps of at least 1, or None.")
    if "step" in callback.events and every is None:
        raise ValueError(
            f"callback {callback.name}: it asks for 'step' events but every is None; give every=N, the number of steps "
            "between two calls, so that several steps can still run in one dispatch."
        )
    return callback


def _check_events(name: str, events: Sequence[str]) -> None:
    for kind in events:
        if kind not in EVENTS:
            raise ValueError(f"callback {name}: there is no event {kind!r}; {known_names(kind, EVENTS)}")
