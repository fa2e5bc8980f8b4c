"""`Adapted`: a module of a JAX framework as the arguments of `Model.from_function`, and what its call signature says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# keyword of a call -> its value in training mode; in evaluation it is the opposite
MODES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
    "inference": False,
}
# arguments of a call that are no inputs
RESERVED = frozenset({*MODES, "self", "key", "rng", "rngs", "state"})


class Adapted(NamedTuple):
    """A module of a JAX framework as the arguments of `Model.from_function`.

    Attributes:
        framework: name of the framework, for messages, such as "flax.nnx".
        apply: pure function `apply(params, *inputs, key, train, aux, axis_name) -> (output, new aux)`.
        inputs: names of the inputs.
        restore: `restore(params, aux) -> module`: a new module with these values, in evaluation mode.
        params: pytree of the initial parameters; None if `init` makes them.
        aux: pytree of the initial auxiliary states; None if `init` makes them.
        init: `init(key, *specs) -> (params, aux)`, or None.

    Example:
        >>> Adapted("jax", lambda params, x, **_: (x * params, ()), ("x",), lambda params, aux: params, 2.0, ()).inputs
        ('x',)
    """

    framework: str
    apply: Callable[..., Any]
    inputs: tuple[str, ...]
    restore: Callable[[Any, Any], Any]
    params: Any = None
    aux: Any = None
    init: Callable[..., Any] | None = None


class Call(NamedTuple):
    """The arguments of the call of a module.

    Attributes:
        inputs: names of the positional arguments without default that are data.
        names: names of all arguments.
        required: names of the arguments without default.

    Example:
        >>> call = call_of(lambda x, *, train=False, key: x)
        >>> call.inputs, call.mode(train=True), "key" in call.names
        (('x',), {'train': True}, True)
    """

    inputs: tuple[str, ...]
    names: frozenset[str]
    required: frozenset[str]

    def mode(self, train: bool) -> dict[str, bool]:
        """Keyword arguments that select training or evaluation mode: those of `MODES` that `__call__` of the module accepts."""
        return {name: train == value for name, value in MODES.items() if name in self.names}


def call_of(fn: Callable[..., Any], skip: int = 0) -> Call:
    """Read the arguments of a function or method.

    Args:
        fn: the function; its argument `self` is no input.
        skip: number of positional arguments before the inputs.

    Returns:
        `Call`.  A function of `*args` has one input, "x".
    """
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"][skip:]
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    inputs = tuple(p.name for p in positional if p.name in required and p.name not in RESERVED)
    return Call(inputs or ("x",), frozenset(p.name for p in parameters), frozenset(required))


def one_row(specs: Any) -> Any:
    """Zeros of the shapes of one row, with which modules are initialized."""
    return jax.tree.map(lambda s: jnp.zeros((1, *s.shape[1:]), s.dtype), specs)


def initial(kind: str, framework: str, own: Any, passed: Any) -> Any:
    """Return the initial values: those that the user passed as `params=` or `aux=`, or else those of the module.

    Raises:
        ValueError: the tree that was passed has another structure than that of the module.
    """
    if passed is None:
        return own
    actual, expected = jax.tree.structure(passed), jax.tree.structure(own)
    if actual != expected:
        raise ValueError(
            f"{kind}= has another structure than the {kind} of the {framework} module: found {actual}, expected {expected}; "
            f"leave out {kind}= to start from the values of the module, or pass a tree such as run.{kind} of its run"
        )
    return passed


def note_on_evaluation(error: Exception, draw: str) -> None:
    """Add to an error about a missing PRNG key that there is none in evaluation; `draw` is an example of a random operation."""
    error.add_note(
        f"jfit: in evaluation no PRNG key is passed; give the module an argument such as train or is_training, and {draw} "
        "only if it is True"
    )


def unsupported_sync(framework: str, reason: str) -> ValueError:
    """Error for `sync_batch_stats=True` with a module whose statistics jfit cannot average over devices."""
    return ValueError(
        f"sync_batch_stats=True: {reason}, so jfit cannot average batch statistics of this {framework} module over the "
        "devices; leave out sync_batch_stats (each device then uses its own rows), or train on one device"
    )
