"""Callback that shows a progress bar and a table with a row per epoch: as text in terminals, as HTML in notebooks."""

import contextlib
import sys
from typing import Any, TextIO

from jfit import counters
from jfit.callbacks.base import Callback, Event, scalars
from jfit.callbacks.live import LiveTable, in_notebook, progress_of, values_text
from jfit.history.table import History

_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, ETA {remaining}{postfix}]"


def progress(bar: bool = True, *, force: bool = False, file: TextIO | None = None) -> Callback:
    """Show a progress bar (samples/s, ETA, loss, metrics), above it a table with a row per epoch and evaluation within one.

    In a terminal both are text, and the bar is that of the whole run.  In a notebook they are one HTML output, which is updated
    in place at most ten times per second, and the bar is that of the current epoch.

    Args:
        bar: whether to show the bar; False shows only the table.
        force: True writes to any file; by default nothing is written unless `file` is a terminal or the code runs in a
            notebook.
        file: text file to write text to, in notebooks too.  None: sys.stdout, or the HTML of a notebook.

    Returns:
        A `Callback`.

    Example:
        >>> show = progress(bar=False, force=True)
        >>> end = Event("epoch_end", 0, 10, 10, 10, {"loss": 0.5, "accuracy": 0.9}, None)
        >>> _ = show.on(end, show.init())
        epoch        loss    accuracy
            0      0.5000      0.9000
    """
    text, live = _Display(bar, force, file), LiveTable(bar)

    def on(event: Event, state: None) -> None:
        (live if file is None and in_notebook() else text).show(event)

    events = ("fit_start", "epoch_start", "log", "evaluation", "epoch_end", "fit_end")
    return Callback(on=on, events=events, name="progress", main_only=True)


class _Display:
    """The tqdm bar and the columns of the table; not in the state of the callback, because a bar is not JSON-serializable."""

    def __init__(self, bar: bool, force: bool, file: TextIO | None):
        self.show_bar, self.force, self.file = bar, force, file
        self.bar: Any = None
        self.columns: list[str] = []
        self.watching = contextlib.ExitStack()  # open between "fit_start" and "fit_end"

    def show(self, event: Event) -> None:
        file = self.file or sys.stdout
        if not (self.force or in_notebook() or getattr(file, "isatty", lambda: False)()):
            return
        if event.kind in ("fit_start", "fit_end"):
            self.close()
            self.columns = []
            choice = getattr(getattr(event.run, "settings", None), "metric_choice", "")
            if event.kind == "fit_start" and choice:
                print(choice, file=file, flush=True)
            if event.kind == "fit_start":
                self.watching.enter_context(counters.watching_compiles(lambda sentence, done: self.print(sentence, file)))
            return
        if self.show_bar:
            self.update_bar(event, file)
        if event.kind == "epoch_end" or event.is_within:
            self.print_row(event, file)

    def update_bar(self, event: Event, file: TextIO) -> None:
        done, total = progress_of(event)
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(
                total=total,
                initial=done,
                desc=f"epoch {event.epoch}",
                leave=False,
                file=file,
                # _FORMAT shows a percentage, which needs the total number of batches; None is the default format of tqdm.
                bar_format=_FORMAT if total else None,
                # No minimum time between updates: there are at most about two "log" events per second.
                mininterval=0,
                dynamic_ncols=True,
            )
        self.bar.set_description_str(f"epoch {event.epoch}", refresh=False)
        if event.kind in ("log", "evaluation", "epoch_end"):
            self.bar.set_postfix_str(values_text(scalars(event.logs)), refresh=False)
            self.bar.update(done - self.bar.n)
            self.bar.refresh()

    def print_row(self, event: Event, file: TextIO) -> None:
        history = History([{"epoch": event.epoch, "step": event.step, **scalars(event.logs)}])
        by_step = event.is_within or "step" in self.columns  # rows of a run with evaluations within epochs
        names = [name for name in history.columns() if name != "step" or by_step]
        lines = []
        if not set(names) <= set(self.columns):
            self.columns = names
            lines.append(history.header(names))
        lines.append(history.row(0, self.columns))
        self.print("\n".join(lines), file)

    def print(self, text: str, file: TextIO) -> None:
        if self.bar is not None:
            self.bar.clear()  # so that the text appears above the bar
        print(text, file=file, flush=True)
        if self.bar is not None:
            self.bar.refresh()

    def close(self) -> None:
        self.watching.close()
        if self.bar is not None:
            self.bar.close()
            self.bar = None
