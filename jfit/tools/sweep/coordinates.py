"""The plot of a sweep: parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jfit.history.plots import new_axes, save_figure
from jfit.tools.sweep.rules import ranking

_LOG_RATIO = 30  # numbers are on a logarithmic axis if the largest one is so many times the smallest one


def draw_coordinates(
    settings: Sequence[Mapping[str, Any]], scores: Sequence[float], monitor: str, path: str | Path | None
) -> Any:
    """Draw the figure of `Sweep.plot`, and return it.

    Args:
        settings: the settings of each member by name.
        scores: score of each member.
        monitor: name of the score.
        path: image file to write, or None.
    """
    if not settings:
        raise ValueError("sweep: nothing to plot, because the sweep has no members")
    names = [n for n in dict.fromkeys(n for s in settings for n in s) if len({repr(s.get(n)) for s in settings}) > 1]
    figure, (axis, *_) = new_axes("sweep", 1, path, None)
    figure.set_size_inches(max(4.5, 1.6 * (len(names) + 1)), 3.6)
    columns = [_heights([s.get(name) for s in settings]) for name in names] + [_heights(list(scores))]
    for position, i in enumerate(reversed(ranking(scores, monitor))):  # the best one is drawn last, in the darkest color
        share = position / max(len(scores) - 1, 1)
        finite = math.isfinite(scores[i])
        color = (0.85 - 0.75 * share, 0.85 - 0.5 * share, 0.9) if finite else "tomato"
        heights = [column[0][i] for column in columns]
        axis.plot(range(len(columns)), heights, color=color, linewidth=1.2, linestyle="-" if finite else ":")
    for x, (_, ticks) in enumerate(columns):
        axis.axvline(x, color="0.3", linewidth=0.8)
        for height, text in ticks:
            axis.annotate(text, (x, height), xytext=(3, 0), textcoords="offset points", fontsize=7, va="center")
    axis.set_xticks(range(len(columns)), [*names, monitor])
    axis.set_yticks([])
    axis.set_ylim(-0.06, 1.06)
    save_figure(figure, path)
    return figure


def _heights(values: list[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return (height of each value from 0 to 1, ticks as (height, text))."""
    finite = sorted({float(v) for v in values if _is_number(v) and math.isfinite(v)})
    if finite and all(_is_number(v) or v is None for v in values):
        low, high = finite[0], finite[-1]
        log = low > 0 and high / low >= _LOG_RATIO
        shown = finite if len(finite) <= 6 else (np.geomspace if log else np.linspace)(low, high, 5).tolist()
        at, scale = np.array([math.nan if v is None else v for v in values], float), np.log if log else np.asarray
        place = lambda x: np.clip((scale(x) - scale(low)) / (scale(high) - scale(low) or 1.0), 0, 1)  # noqa: E731
        heights = place(np.where(np.isfinite(at), at, math.nan)).tolist()
        return heights, [(float(place(x)), f"{x:.3g}") for x in shown]
    texts = list(dict.fromkeys(str(v) for v in values))
    places = {text: i / max(len(texts) - 1, 1) for i, text in enumerate(texts)}
    return [places[str(v)] for v in values], [(height, text[:20]) for text, height in places.items()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
