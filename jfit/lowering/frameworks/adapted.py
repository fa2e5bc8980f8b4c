"""`Adapted`: a module of a JAX framework as the arguments of `Model.from_function`, and what its call signature says."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jfit.lowering.arguments import Arguments, arguments_of
from jfit.lowering.model import flatten_names

# keyword of a call -> its value in training mode; in evaluation it is the opposite
MODES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
    "inference": False,
}


class Adapted(NamedTuple):
    """A module of a JAX framework as the arguments of `Model.from_function`.

    Attributes:
        framework: name of the framework, for messages, such as "flax.nnx".
        apply: pure function `apply(params, *inputs, key, train, aux, axis_name) -> (output, new aux)`; optional inputs are None
            if a batch does not have them.
        call: the arguments of the module.
        restore: `restore(params, aux) -> module`: a new module with these values, in evaluation mode.
        params: pytree of the initial parameters; None if `init` makes them.
        aux: pytree of the initial auxiliary states; None if `init` makes them.
        init: `init(key, *specs) -> (params, aux)`, or None.

    Example:
        >>> double = lambda x: 2 * x
        >>> Adapted("jax", double, call_of(double), lambda params, aux: params, 2.0, ()).call.inputs
        ('x',)
    """

    framework: str
    apply: Callable[..., Any]
    call: Arguments
    restore: Callable[[Any, Any], Any]
    params: Any = None
    aux: Any = None
    init: Callable[..., Any] | None = None


def call_of(fn: Callable[..., Any], inputs: Any = None, reserved: Collection[str] = (), skip: int = 0) -> Arguments:
    """Read the arguments of a bound method of a module.

    Args:
        fn: the method.
        inputs: names of the inputs, if the user passed any, else None.
        reserved: names of the arguments that its framework passes, in addition to those of `MODES`.
        skip: number of positional arguments before the inputs.

    Returns:
        `Arguments`.  A function of `*args` has one input, "x".
    """
    call = arguments_of(fn, {*MODES, *reserved}, skip, None if inputs is None else tuple(inputs))
    return call if call.inputs else call._replace(inputs=("x",))


def mode(call: Arguments, train: bool) -> dict[str, bool]:
    """Keyword arguments that select training or evaluation mode: those of `MODES` that the module accepts."""
    data = (*call.inputs, *call.optional)
    return {name: train == value for name, value in MODES.items() if name in call.names and name not in data}


def one_row(specs: Any) -> Any:
    """Zeros of the shapes of one row, with which modules are initialized."""
    return jax.tree.map(lambda s: jnp.zeros((1, *s.shape[1:]), s.dtype), specs)


def initial(kind: str, framework: str, own: Any, passed: Any) -> Any:
    """Return the initial values: those that the user passed as `params=` or `aux=`, or else those of the module.

    Raises:
        ValueError: the tree that was passed has another structure, or arrays of other shapes, than that of the module.
    """
    if passed is None:
        return own
    expected, actual = _shapes(own), _shapes(passed)
    wrong = [n for n in (*expected, *actual) if expected.get(n) != actual.get(n)]
    if wrong or jax.tree.structure(passed) != jax.tree.structure(own):
        where = f": {wrong[0]!r} is {actual.get(wrong[0])}, expected {expected.get(wrong[0])}" if wrong else ""
        raise ValueError(
            f"{kind}= is not a {type(own).__name__} like that of the {framework} module{where} (shapes; None: there is no such "
            f"array); leave out {kind}=, or pass a tree such as run.{kind} of its run"
        )
    return passed


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(x, "shape", ())) for name, x in flatten_names(tree)[0].items()}


def unsupported_sync(framework: str, reason: str) -> ValueError:
    """Error for `sync_batch_stats=True` with a module whose statistics jfit cannot average over devices."""
    return ValueError(
        f"sync_batch_stats=True: {reason}, so jfit cannot average batch statistics of this {framework} module over the "
        "devices; leave out sync_batch_stats (each device then uses its own rows), or train on one device"
    )
