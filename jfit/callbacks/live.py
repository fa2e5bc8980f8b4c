"""The display of `fit` in notebooks: one table with a row per epoch and a progress bar, updated in place."""

import contextlib
import html
import sys
import time
from typing import Any

from jfit import counters
from jfit.callbacks.base import Event, scalars
from jfit.history.plots import TIMES
from jfit.history.table import History

MIN_SECONDS = 0.1  # between two updates: browsers cannot show more, and each is a message to the notebook server


def in_notebook() -> bool:
    """Return whether the code runs in a notebook: Jupyter, Colab, VS Code."""
    # Look in sys.modules instead of importing: IPython is slow to import, and a notebook has imported it already.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return any(cls.__name__ == "ZMQInteractiveShell" for cls in type(get_shell()).__mro__)


class LiveTable:
    """Show the epochs of a run and the progress of the current one as HTML that is updated in place.

    It shows what events contain, so it neither waits for the devices nor adds a dispatch.

    Args:
        bar: whether to show the progress bar.
    """

    def __init__(self, bar: bool):
        self.bar = bar
        self._watching = contextlib.ExitStack()  # open between "fit_start" and "fit_end"
        self._reset()

    def _reset(self) -> None:
        self.handle: Any = None
        self.history, self.choice = History(), ""
        self.updated = -MIN_SECONDS
        self.start: tuple[float, int] | None = None  # time and number of batches since epoch 0 when this training began

    def show(self, event: Event) -> None:
        """Show the values of an event; at most one update per `MIN_SECONDS`, and always one at the end."""
        if event.kind == "fit_start":
            self._reset()
            self.choice = getattr(getattr(event.run, "settings", None), "metric_choice", "")
            self._watching.enter_context(counters.watching_compiles(lambda sentence, done: self._draw(f"<p>{sentence}</p>")))
            return
        if event.kind == "fit_end":
            self._watching.close()
        if event.kind == "epoch_end" or event.is_within:
            self.history.add("epochs", epoch=event.epoch, **scalars(event.logs))
        now = time.monotonic()
        if event.kind != "fit_end" and now - self.updated < MIN_SECONDS:
            return
        self.updated = now
        self._draw(self._progress(event) if event.kind != "fit_end" else _stopped(event))

    def _draw(self, status: str) -> None:
        """Show the table of the epochs, and below it the status, which is HTML."""
        parts = [self.choice and f"<p>{html.escape(self.choice)}</p>", len(self.history) and self.history._repr_html_(), status]
        text = "\n".join([self.choice] * bool(self.choice) + [self.history._text()])
        data = {"text/html": "".join(filter(None, parts)), "text/plain": text}
        if self.handle is None:
            from IPython.display import display

            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)

    def _progress(self, event: Event) -> str:
        if not self.bar:
            return ""
        size, (done, total) = event.num_batches, progress_of(event)
        words = [f"epoch {event.epoch}", f"batch {event.batch}"]
        if size:
            words[1] += f" of {size}"
        if total:
            self.start = self.start or (self.updated, done)
            words.append(_eta(done - self.start[1], total - done, self.updated - self.start[0]))
        words.append(values_text(scalars(event.logs)))
        value, most = (event.batch, size) if size else (done, total)
        bar = f'<progress value="{value}" max="{most}"></progress>' if most else "<progress></progress>"
        return f"<p>{bar} {html.escape(', '.join(filter(None, words)))}</p>"


def progress_of(event: Event) -> tuple[int, int | None]:
    """Return (batches done, batches of the run, None if that is not known) at an event, counted from the start of the run."""
    size, epochs = event.num_batches, getattr(event.run, "num_epoch", None)
    if getattr(event.run, "num_steps", None) is not None:
        return event.step, event.run.num_steps
    return event.batch + event.epoch * (size or 0), size * epochs if size and epochs else None


def values_text(logs: dict[str, Any]) -> str:
    """Return logged values as text, such as "1,024 samples/s, loss 0.5"."""
    cells = [f"{logs['samples_per_second']:,.0f} samples/s"] if logs.get("samples_per_second") is not None else []
    return ", ".join(cells + [f"{name} {value:.4g}" for name, value in logs.items() if name not in TIMES and value is not None])


def _eta(done: int, left: int, seconds: float) -> str:
    """Return the remaining time of the run such as "ETA 1:05", "" before the first batch."""
    if not done:
        return ""
    minutes, rest = divmod(round(seconds / done * left), 60)
    return f"ETA {minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"ETA {minutes}:{rest:02}"


def _stopped(event: Event) -> str:
    """Return where training stopped, "" after the last batch of an epoch."""
    of = f" of {event.num_batches}" if event.num_batches else ""
    return f"<p>stopped in epoch {event.epoch} after batch {event.batch}{of}</p>" if event.batch else ""
