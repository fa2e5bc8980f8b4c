"""The legs (compared implementations) of step_overhead, one file per framework.

A leg has `setup()` (compile and train one warm-up epoch) and `epoch()` (train one epoch, return its rows). A file is imported
only when its leg runs, so the legs of a framework that is not installed are skipped with a message.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.workloads import Workload


class Unavailable(Exception):
    """A leg cannot run in this environment; the message is the reason."""


class Leg(Protocol):
    """The interface of a compared implementation."""

    accuracy: float
    """Training accuracy over the rows of the last epoch."""

    def setup(self) -> None:
        """Build, compile, and train one warm-up epoch."""
        ...

    def epoch(self) -> int:
        """Train one shuffled epoch and wait until it has finished; returns the number of rows trained."""
        ...


@dataclasses.dataclass(frozen=True)
class Entry:
    """A leg: its title, its group in the comparison, the module with its `make`, and the options of `make`."""

    name: str
    title: str
    group: str
    module: str
    options: dict[str, Any]
    workloads: tuple[str, ...] = ("w1", "w2")
    default: bool = True


def _hand(name: str, title: str, workloads: tuple[str, ...] = ("w1", "w2"), **options: Any) -> Entry:
    return Entry(name, title, "variant", "hand", options, workloads, default=False)


ENTRIES: tuple[Entry, ...] = (
    Entry("jfit_step1", "jfit.fit, steps_per_call=1", "jfit", "jfit_fit", {"steps_per_call": 1}),
    Entry("jfit_auto", "jfit.fit, steps_per_call=auto", "jfit", "jfit_fit", {"steps_per_call": "auto"}),
    Entry("module_fit", "Module.fit, NDArrayIter", "module", "module_fit", {"look": "never"}),
    Entry("module_speed", "Module.fit, Speedometer every 50 batches", "module", "module_fit", {"look": "speedometer"}),
    Entry("module_each", "Module.fit, a callback for each batch", "module", "module_fit", {"look": "each"}),
    Entry("hand", "(a) hand-written JAX loop", "a", "hand", {}),
    Entry("keras", "(b) Keras 3 on JAX, fit", "b", "keras_fit", {"steps_per_execution": 1}),
    Entry("keras_spe20", "(b) Keras 3 on JAX, steps_per_execution=20", "b", "keras_fit", {"steps_per_execution": 20}, ("w1",)),
    Entry("nnx", "(c) Flax NNX + optax", "c", "nnx", {}),
    Entry("torch_slice", "(d) PyTorch eager, indexed tensors", "d", "torch_eager", {"loader": False}),
    Entry("torch_loader", "(d) PyTorch eager, DataLoader", "d", "torch_eager", {"loader": True}),
    _hand("hand_sorted", "hand-written, data permuted once per epoch", feed="permute"),
    _hand("hand_loop", "hand-written, 24 steps per dispatch in one fori_loop", ("w1",), steps=24),
    _hand("hand_window", "hand-written, max-pool by reduce_window", ("w2",), pool="window"),
    _hand("hand_whole", "hand-written, filter gradient in one piece", ("w2",), filter_slices=1),
)


def names(workload: str, *, variants: bool) -> list[str]:
    """Names of the legs that run by default for a workload; with `variants`, also the hand-written loop's other forms."""
    return [e.name for e in ENTRIES if workload in e.workloads and (e.default or variants)]


def entry(name: str) -> Entry:
    """The `Entry` of a leg.

    Args:
        name: name of the leg.

    Returns:
        The entry.

    Raises:
        KeyError: there is no such leg; the message lists the names.
    """
    for candidate in ENTRIES:
        if candidate.name == name:
            return candidate
    raise KeyError(f"No leg is called {name!r}; the legs are {', '.join(e.name for e in ENTRIES)}.")


def build(name: str, workload: Workload, cores: int) -> Leg:
    """Make a leg, without calling its `setup`.

    Args:
        name: name of the leg.
        workload: what to train.
        cores: number of cores that the process uses.

    Returns:
        The leg.

    Raises:
        Unavailable: its framework cannot be imported.
    """
    leg = entry(name)
    try:
        module = importlib.import_module(f"benchmarks.peers.{leg.module}")
    except ImportError as error:
        raise Unavailable(f"{error.name or leg.module} is not installed") from error
    make: Callable[..., Leg] = module.make
    return make(workload, cores, **leg.options)
