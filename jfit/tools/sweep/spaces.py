"""The settings that a sweep tries: distributions of values, and the list of combinations."""

from __future__ import annotations

import itertools
import math
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfit.checks import positive_integer

MAX_MEMBERS_TOTAL = 100_000  # of a sweep: each takes tens of kilobytes of Python objects and milliseconds of preparation


@dataclass(frozen=True)
class Distribution:
    """A distribution of the values of a setting; create it with `uniform`, `log_uniform` or `choice`.

    Attributes:
        name: "uniform", "log_uniform" or "choice".
        values: (low, high), or the values of a choice.

    Example:
        >>> uniform(0, 1).name
        'uniform'
    """

    name: str
    values: Sequence[Any]

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw one value: a float, or one of the values of a choice.

        Args:
            generator: NumPy generator, which is advanced.

        Returns:
            The value.

        Example:
            >>> 1e-4 <= log_uniform(1e-4, 1e-1).draw(np.random.default_rng(0)) < 1e-1
            True
        """
        if self.name in ("choice", "list"):
            return self.values[int(generator.integers(len(self.values)))]
        low, high = self.values
        part = float(generator.random())
        if self.name == "uniform":
            return low + (high - low) * part
        return math.exp(math.log(low) + (math.log(high) - math.log(low)) * part)


def uniform(low: float, high: float) -> Distribution:
    """Uniform distribution on [low, high), for `jfit.sweep`.

    Args:
        low, high: finite numbers, low < high.

    Returns:
        `Distribution` of floats.

    Raises:
        ValueError: low is not below high, or one of them is not finite.

    Example:
        >>> 0.5 <= uniform(0.5, 0.9).draw(np.random.default_rng(0)) < 0.9
        True
    """
    return Distribution("uniform", _bounds("uniform", low, high))


def log_uniform(low: float, high: float) -> Distribution:
    """Distribution on [low, high) whose logarithm is uniform, for learning rates and weight decays of `jfit.sweep`.

    Args:
        low, high: finite numbers, 0 < low < high.

    Returns:
        `Distribution` of floats.

    Raises:
        ValueError: low is not positive or not below high, or one of them is not finite.

    Example:
        >>> 1e-5 <= log_uniform(1e-5, 1e-2).draw(np.random.default_rng(0)) < 1e-2
        True
    """
    low, high = _bounds("log_uniform", low, high)
    if low <= 0:
        raise ValueError(f"log_uniform: low is {low}, but only positive numbers have a logarithm; use uniform({low}, {high})")
    return Distribution("log_uniform", (low, high))


def choice(values: Iterable[Any]) -> Distribution:
    """Distribution that draws each of some values with equal probability, for `jfit.sweep`.

    Args:
        values: the values, of any type; at least one.

    Returns:
        `Distribution`.

    Raises:
        ValueError: there are no values.

    Example:
        >>> choice(["relu", "tanh"]).draw(np.random.default_rng(0)) in ("relu", "tanh")
        True
    """
    values = _listed("choice", values)
    if not values:
        raise ValueError("choice: got no values to choose from; expected at least one")
    return Distribution("choice", values)


def _bounds(owner: str, low: Any, high: Any) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{owner}: low is {low} and high is {high}; expected finite numbers, low < high")
    return float(low), float(high)


def combinations(over: Any, n: int | None, seed: int) -> list[dict[str, Any]]:
    """List the settings of all members of a sweep.

    Args:
        over: the argument of `sweep`: a dict name -> values or `Distribution`, or a list of dicts.
        n: number of random combinations; None: all combinations of the values.
        seed: seed of the random combinations; the values of one name do not depend on the other names.

    Returns:
        List of dicts.

    Raises:
        ValueError: no combinations, more than `MAX_MEMBERS_TOTAL`, a distribution without `n`, or a list of dicts with `n`.
        TypeError: `over`, or the values of a name, have another type.

    Example:
        >>> combinations({"a": [1, 2], "b": [3]}, None, 0)
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    if n is not None:
        positive_integer(n=n)
        check_count(n, f"n={n}")
    if isinstance(over, Mapping):
        result = _of_dict(over, n, seed)
    elif isinstance(over, Iterable) and not isinstance(over, str):
        result = _listed("sweep: over", over)
        if n is not None:
            raise ValueError(f"sweep: over is a list of {len(result)} settings and n is {n}; n is for a dict, leave it out")
        if wrong := [s for s in result if not isinstance(s, Mapping)]:
            raise TypeError(f"sweep: over has the item {wrong[0]!r}; expected dicts such as {{'learning_rate': 0.1}}")
        check_count(len(result), "over")
    else:
        raise TypeError(f"sweep: over is {over!r}; expected a dict name -> values, or a list of dicts")
    if not result:
        raise ValueError("sweep: over has no settings to try; expected a dict name -> values, or a list of dicts")
    if wrong := [name for settings in result for name in settings if not isinstance(name, str)]:
        raise TypeError(f"sweep: over has the name {wrong[0]!r}; expected names of settings, such as 'learning_rate'")
    return [dict(settings) for settings in result]


def check_count(count: int, source: str) -> None:
    """Raise ValueError if a sweep has more than `MAX_MEMBERS_TOTAL` members.

    Args:
        count: number of members.
        source: the arguments that make them, for the message.
    """
    if count > MAX_MEMBERS_TOTAL:
        remedy = "pass n=, a number of random combinations of over, or shorter lists"
        raise ValueError(f"sweep: {source} gives {count:,} members; the limit is {MAX_MEMBERS_TOTAL:,}; {remedy}")


def _listed(name: str, values: Iterable[Any]) -> Sequence[Any]:
    """Return an iterable as a sequence; a range stays one, of at most the length that `len` can return."""
    if isinstance(values, range):
        return values[: sys.maxsize]
    if isinstance(values, Sized):
        return list(values)
    result = list(itertools.islice(values, MAX_MEMBERS_TOTAL + 1))
    if len(result) > MAX_MEMBERS_TOTAL:
        raise ValueError(f"{name} has more than {MAX_MEMBERS_TOTAL:,} values; pass fewer, a range, or a distribution with n=")
    return result


def _of_dict(over: Mapping[str, Any], n: int | None, seed: int) -> list[dict[str, Any]]:
    columns: dict[str, Distribution] = {}
    for name, values in over.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable | Distribution):
            raise TypeError(f"sweep: over[{name!r}] is {values!r}; expected a list of values, or a distribution")
        is_listed = not isinstance(values, Distribution)
        columns[name] = Distribution("list", _listed(f"sweep: over[{name!r}]", values)) if is_listed else values
        if not columns[name].values:
            raise ValueError(f"sweep: over[{name!r}] has no values; expected at least one")
    if n is not None:
        generators = {name: np.random.default_rng([seed, zlib.crc32(str(name).encode())]) for name in columns}
        return [{name: d.draw(generators[name]) for name, d in columns.items()} for _ in range(n)]
    if random := [name for name, d in columns.items() if d.name != "list"]:
        raise ValueError(f"sweep: over[{random[0]!r}] is a distribution, so the number of members is unknown; pass n=")
    check_count(math.prod(len(d.values) for d in columns.values()), "over, all combinations of its values,")
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*(d.values for d in columns.values()))]
