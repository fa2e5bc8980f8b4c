"""Progress: a bar over the run with speed, time left and running values, and the epoch table row by row."""

import sys
from typing import Any, TextIO

from jfit.train.callbacks.base import Callback, Event, numbers
from jfit.train.history import History

_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, ETA {remaining}{postfix}]"
_HIDDEN = ("samples_per_second", "time")


def progress(bar: bool = True, *, force: bool = False, file: TextIO | None = None) -> Callback:
    """A bar over the whole run (samples/s, ETA, loss, metrics) under a table that grows by a row each epoch.

    Args:
      bar: show the bar; without it only the table.
      force: show it also where the output is neither a terminal nor a notebook (a log file).
      file: where to write; sys.stdout when None.

    Returns:
      A callback for the start and end of the fit and of each epoch, and for log points.

    Example:
      >>> show = progress(bar=False, force=True)
      >>> end = Event("epoch_end", 0, 10, 10, 10, {"loss": 0.5, "accuracy": 0.9}, None)
      >>> _ = show.on(end, show.init())
      epoch        loss    accuracy
          0      0.5000      0.9000
    """
    screen = _Screen(bar, force, file)

    def on(event: Event, state: None) -> None:
        screen.show(event)

    return Callback(on=on, events=("fit_start", "epoch_start", "log", "epoch_end", "fit_end"), name="progress")


class _Screen:
    """The bar is an open terminal line: it cannot be part of the callback's state, which checkpoints save."""

    def __init__(self, bar: bool, force: bool, file: TextIO | None):
        self.wants_bar, self.force, self.file = bar, force, file
        self.bar: Any = None
        self.names: list[str] = []

    def show(self, event: Event) -> None:
        file = self.file or sys.stdout
        if not (self.force or _in_notebook() or _is_terminal(file)):
            return
        if event.kind in ("fit_start", "fit_end"):
            self.close()
            self.names = []
            return
        if self.wants_bar:
            self.draw(event, file)
        if event.kind == "epoch_end":
            self.print_row(event, file)

    def draw(self, event: Event, file: TextIO) -> None:
        size, epochs = event.num_batches, getattr(event.run, "num_epoch", None)
        done = event.batch + (event.epoch * size if size else 0)
        if self.bar is None:
            total = size * epochs if size and epochs else None
            self.bar = _tqdm()(
                total=total,
                initial=done,
                desc=f"epoch {event.epoch}",
                leave=False,
                file=file,
                # None: the format for known totals asks for a percentage.
                bar_format=_FORMAT if total else None,
                # Log points already come at most about twice a second.
                mininterval=0,
                dynamic_ncols=True,
            )
        self.bar.set_description_str(f"epoch {event.epoch}", refresh=False)
        if event.kind in ("log", "epoch_end"):
            self.bar.set_postfix_str(_postfix(numbers(event.logs)), refresh=False)
            self.bar.update(done - self.bar.n)
            self.bar.refresh()

    def print_row(self, event: Event, file: TextIO) -> None:
        history = History([{"epoch": event.epoch, "step": event.step, **numbers(event.logs)}])
        names = [name for name in history.columns() if name != "step"]
        lines = []
        if not set(names) <= set(self.names):
            self.names = names
            lines.append(history.header())
        lines.append(history.row(0, self.names))
        if self.bar is not None and not _in_notebook():
            self.bar.clear()  # the row goes above the bar
        print("\n".join(lines), file=file, flush=True)
        if self.bar is not None:
            self.bar.refresh()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _postfix(logs: dict[str, float]) -> str:
    cells = [f"{logs['samples_per_second']:,.0f} samples/s"] if logs.get("samples_per_second") is not None else []
    return ", ".join(
        cells + [f"{name} {value:.4g}" for name, value in logs.items() if name not in _HIDDEN and value is not None]
    )


def _is_terminal(file: TextIO) -> bool:
    return bool(getattr(file, "isatty", lambda: False)())


def _in_notebook() -> bool:
    # Only a process that has imported IPython can be inside a notebook: it is not imported to find out.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _tqdm() -> Any:
    if _in_notebook():
        try:
            import ipywidgets  # noqa: F401  # pyright: ignore[reportMissingImports]
            from tqdm.notebook import tqdm

            return tqdm
        except ImportError:
            pass  # a text bar works in a notebook too
    from tqdm import tqdm

    return tqdm
