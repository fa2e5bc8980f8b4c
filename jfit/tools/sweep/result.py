"""`Sweep`, the result of `jfit.sweep`: a table of the members, the best one, ensembles and plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfit.graph import html
from jfit.graph.drawing import aligned
from jfit.history.plots import new_axes, save_figure
from jfit.history.table import History
from jfit.parallel import place
from jfit.run import Run
from jfit.tools.sweep.rules import ranking

_MOST_SHOWN = 30  # rows of the table as text or HTML
_LOG_RATIO = 30  # a plot has a logarithmic axis if the largest number is so many times the smallest one


class Member:
    """One member of a sweep: its settings, its result and its trained values.

    Attributes:
        number: index in the table.
        settings: the swept settings by name, with "fold" if there are folds.
        score: value of `Sweep.monitor`; NaN if there is none.
        status: "finished", "stopped" (patience), "dropped" (halving) or "interrupted" (Ctrl-C).
        history: `History` with the losses and metrics of its epochs.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(8, axis=0)
        >>> result = jfit.sweep(net, (x, x.argmax(1)), over={"learning_rate": [0.01, 1.0]}, num_epoch=2, progress=False)
        >>> result[1].settings, result[1].run.predict(x).shape
        ({'learning_rate': 1.0}, (16, 2))
    """

    def __init__(
        self, number: int, settings: dict[str, Any], score: float, status: str, history: History, state: Any, make: Any
    ) -> None:
        self.number, self.settings, self.score, self.status, self.history = number, settings, score, status, history
        self._state, self._make, self._run = state, make, None

    @property
    def run(self) -> Run:
        """A `jfit.Run` with the state and history of this member, which can score, predict and save."""
        if self._run is None:
            model, settings = self._make
            run = Run(model, settings, place(self._state, settings.devices), self.history)
            run._position = {"epoch": len(self.history), "batch": 0, "step": int(self._state.step)}
            self._run = run
        return self._run

    @property
    def params(self) -> Any:
        """The parameters, as `Run.params`."""
        return self.run.params

    @property
    def first_bad_step(self) -> int | None:
        """Number of the first step with a loss that is not finite; None if there is none."""
        bad = [row["first_bad_step"] for row in self.history.epochs if row.get("first_bad_step") is not None]
        return int(bad[0]) if bad else None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("members of a sweep cannot be pickled or copied deeply; pickle result.table, or call member.run.save")

    def row(self) -> dict[str, Any]:
        """The row of the table."""
        last = self.history.epochs[-1] if len(self.history) else {}
        hidden = {"epoch", "step", "first_bad_step", "lr", *self.settings}
        logs = {name: value for name, value in last.items() if name not in hidden and not isinstance(value, list)}
        done = {"score": self.score, "status": self.status, "epochs": len(self.history), "first_bad_step": self.first_bad_step}
        return {"member": self.number, **self.settings, **done, **logs}

    def __repr__(self) -> str:
        return f"<Member {self.number}: {named(self.settings)}; score {self.score:.4g}, {self.status}>"


class Sweep(Sequence[Member]):
    """Result of `jfit.sweep`: a sequence of `Member`, with a table, the best member, ensembles and plots.

    Args:
        members: the members.
        monitor: name of the value that is the score, such as "val_accuracy".
        interrupted: whether Ctrl-C ended the sweep.

    Attributes:
        monitor: name of the value that is the score.
        interrupted: whether Ctrl-C ended the sweep.

    Example:
        >>> import jfit, numpy as np
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> x = np.eye(2, dtype="float32").repeat(8, axis=0)
        >>> result = jfit.sweep(net, (x, x.argmax(1)), over={"learning_rate": [0.01, 1.0]}, num_epoch=2, progress=False)
        >>> len(result), result.best.settings, result.predict(x).shape
        (2, {'learning_rate': 1.0}, (16, 2))
    """

    def __init__(self, members: Sequence[Member], monitor: str, interrupted: bool = False) -> None:
        self._members, self.monitor, self.interrupted = list(members), monitor, interrupted

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, at: Any) -> Any:
        return self._members[at]

    @property
    def table(self) -> list[dict[str, Any]]:
        """A dict per member: its number, settings, score, status, number of epochs, and the values of its last epoch."""
        return [member.row() for member in self]

    @property
    def ranked(self) -> list[Member]:
        """The members, the best first; with folds ordered by the mean score of their settings, then by their own."""
        means = {number: row["score"] for row in self.summary for number in row["members"]}
        first = ranking([m.score for m in self], self.monitor)
        by_mean = ranking([means[self._members[i].number] for i in first], self.monitor)
        return [self._members[first[i]] for i in by_mean]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """A dict per combination of settings: mean "score" and standard deviation "std" over folds, numbers of "members"."""
        groups: dict[Any, tuple[dict[str, Any], list[Member]]] = {}
        for member in self:
            settings = {name: value for name, value in member.settings.items() if name != "fold"}
            key = str(settings) if "fold" in member.settings else member.number
            groups.setdefault(key, (settings, []))[1].append(member)
        rows = []
        for settings, members in groups.values():
            scores = np.array([m.score for m in members])
            done = {"score": float(scores.mean()), "std": float(scores.std()), "members": [m.number for m in members]}
            rows.append({**settings, **done})
        return rows

    @property
    def best(self) -> Member:
        """The member with the best score; with folds the best one of the settings with the best mean score.

        Raises:
            ValueError: no member has a score that is a number.
        """
        best = self.ranked[0]
        if math.isnan(best.score):
            raise ValueError(f"sweep: no member has a finite {self.monitor}; lower the learning rates, or pass clip_norm=1.0")
        return best

    @property
    def runs(self) -> list[Run]:
        """A `jfit.Run` for each member, which can score, predict and save."""
        return [member.run for member in self]

    def predict(
        self, data: Any, *, members: Sequence[Any] | int | None = None, weights: Any = None, batch_size: int | None = None
    ) -> Any:
        """Predict with an ensemble: the weighted mean of the outputs of several members.

        Args:
            data: inputs, in the forms of `Run.predict`.
            members: the members: a number of best members, or a sequence of `Member` or of their numbers.  Default: all that
                have a score that is a number.
            weights: array (members,) of weights, at least 0 and not all 0.  Default: equal weights.
            batch_size: number of rows per batch.  Default: that of training.

        Returns:
            NumPy array (rows, ...), or a pytree of arrays, as `Run.predict` returns.

        Raises:
            ValueError: no members, or weights that do not match them.

        Example:
            >>> import jfit, numpy as np
            >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
            >>> x = np.eye(2, dtype="float32").repeat(8, axis=0)
            >>> result = jfit.sweep(net, (x, x.argmax(1)), over={"seed": range(3)}, num_epoch=2, progress=False)
            >>> result.predict(x, members=2).shape
            (16, 2)
        """
        chosen = self._chosen(members)
        if not chosen:
            nans = f"the score of {sum(math.isnan(m.score) for m in self)} of {len(self)} members is NaN"
            raise ValueError(f"sweep: predict has no members to average: members is {members!r}, and {nans}")
        shares = np.ones(len(chosen)) if weights is None else np.asarray(weights, np.float64)
        if shares.shape != (len(chosen),) or not np.isfinite(shares).all() or shares.min() < 0 or not shares.any():
            raise ValueError(f"sweep: weights is {weights!r}; expected {len(chosen)} finite numbers, at least 0, not all 0")
        shares = shares / shares.sum()
        total: Any = None
        for member, share in zip(chosen, shares, strict=True):
            part = jax.tree.map(lambda x, share=share: np.float32(share) * x, member.run.predict(data, batch_size=batch_size))
            total = part if total is None else jax.tree.map(np.add, total, part)
        return total

    def _chosen(self, members: Any) -> list[Member]:
        if members is None:
            return [m for m in self if not math.isnan(m.score)]
        if isinstance(members, int | np.integer) and not isinstance(members, bool) and members >= 0:
            return [m for m in self.ranked if not math.isnan(m.score)][:members]
        chosen = members if isinstance(members, Iterable) and not isinstance(members, str) else [members]
        numbers = [m.number if isinstance(m, Member) else m for m in chosen]
        if any(isinstance(number, bool) or number not in range(len(self)) for number in numbers):
            expected = f"a number of best members, or members or their numbers, from 0 to {len(self) - 1}"
            raise ValueError(f"sweep: predict has members={members!r}; expected {expected}")
        return [self._members[int(number)] for number in numbers]

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame, which needs pandas.

        Returns:
            DataFrame with a row per member.

        Example:
            >>> import jfit
            >>> list(jfit.Sweep([], "loss").to_pandas().columns)
            []
        """
        import pandas

        return pandas.DataFrame(self.table)

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot the scores of the members over each setting that differs, with matplotlib; crosses: not finite.

        Args:
            path: image file to write.  Default: no file.

        Returns:
            The matplotlib figure.  As the last value of a notebook cell it is displayed once, not twice.

        Raises:
            ValueError: there are no members.
            ImportError: matplotlib is not installed.
        """
        if not self._members:
            raise ValueError("sweep: nothing to plot, because the sweep has no members")
        values = {name: [m.settings.get(name) for m in self] for name in dict.fromkeys(n for m in self for n in m.settings)}
        differing = {name: column for name, column in values.items() if len(set(map(repr, column))) > 1}
        differing = differing or {"member": [*range(len(self))]}
        scores = np.array([m.score for m in self], float)
        finite = np.isfinite(scores)
        figure, axes = new_axes("sweep", len(differing), path, None)
        for axis, (name, column) in zip(axes, differing.items(), strict=False):
            numbers: list[Any] = [v for v in column if isinstance(v, int | float | np.number) and not isinstance(v, bool)]
            all_numbers = len(numbers) == len(column)
            places = np.array(numbers if all_numbers else [str(v) for v in column])
            axis.plot(places, np.where(finite, scores, np.nan), "o")
            axis.plot(places[~finite], np.full((~finite).sum(), scores[finite].min() if finite.any() else 0), "rx")
            if all_numbers and 0 < _LOG_RATIO * min(numbers) <= max(numbers):
                axis.set_xscale("log")
            axis.set(xlabel=name, ylabel=self.monitor)
        save_figure(figure, path)
        return figure

    # -------------------------------------------------------------------------------- display
    def _columns(self) -> tuple[list[str], list[list[str]]]:
        ranked = [m.row() for m in self.ranked[:_MOST_SHOWN]]
        names = list(dict.fromkeys(name for row in ranked for name in row))
        names = [n for n in names if n != "first_bad_step" or any(row.get(n) is not None for row in ranked)]
        return names, [[_short(row.get(name)) for name in names] for row in ranked]

    def __str__(self) -> str:
        names, rows = self._columns()
        lines = aligned([names, *rows], range(len(names)))
        more = len(self) - len(rows)
        return "\n".join([repr(self), *lines] + ([f"{more:,} more members"] if more > 0 else []))

    def __repr__(self) -> str:
        scores = [m.score for m in self if not math.isnan(m.score)]
        best = f", best {self.monitor} {self.best.score:.4g} ({named(self.best.settings)})" if scores else ""
        return f"<Sweep: {len(self)} members{best}>"

    def _repr_html_(self) -> str:
        names, rows = self._columns()
        return html.title(repr(self)) + html.table(rows, names, strong=[0] if rows else [])


def named(settings: dict[str, Any]) -> str:
    """The settings of a member in one line."""
    return ", ".join(f"{name} {_short(value)}" for name, value in settings.items())


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."
