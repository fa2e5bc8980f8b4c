"""Training speed of jfit against a hand-written JAX loop and other frameworks: `python -m benchmarks.peers`.

Each leg (compared implementation) is a module with `begin(workload, **options)`, which builds the network with its optimizer,
the way the documentation of the framework shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Leg(NamedTuple):
    """What `begin` returns.

    Attributes:
        train: train one shuffled epoch, wait until it has finished, and return its metric: the accuracy of images, the mean
            cross entropy of a text.
        parameters: count the trained values, after the first epoch; it tells whether two legs have the same network.
    """

    train: Callable[[], float]
    parameters: Callable[[], int]
