"""`Adapted`: a module of a JAX framework as the arguments of `Model.from_function`, and what its call signature says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jfit.lowering.arguments import Arguments, arguments_of
from jfit.lowering.model import flatten_names
from jfit.programs import Key

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
        key: `key_of_structure` of what `apply` depends on besides its arguments: modules with equal keys share their compiled
            programs.  None: programs are found by their text.

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
    key: Key | None = None


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
    """Zeros of the shapes of one row, with which modules are initialized; arrays, which have no rows, stay as they are."""
    return jax.tree.map(lambda s: s if isinstance(s, jax.Array) else jnp.zeros((1, *s.shape[1:]), s.dtype), specs)


def initial(kind: str, framework: str, own: Any, passed: Any) -> Any:
    """Return the initial values: those that the user passed as `params=` or `aux=`, or else those of the module.

    Raises:
        ValueError: the tree that was passed has another structure or, if these are parameters, arrays of other shapes than that
            of the module.  Auxiliary states may depend on the rows of the batches that a module has had.
    """
    if passed is None:
        return own
    is_same = jax.tree.structure(passed) == jax.tree.structure(own)
    if kind == "params" or not is_same:
        check_arrays(framework, [{kind: own}], {kind: passed}, is_same)
    return passed


def drawn_for_data(
    framework: str, draw: Callable[..., tuple[Any, Any]], params: Any, aux: Any, modes: Sequence[bool]
) -> tuple[Callable[..., None], Callable[..., Any] | None]:
    """Return (check, init) of a module whose values are initialized for the shapes of the data.

    Args:
        framework: name of the framework, for messages.
        draw: `draw(train, key, *specs) -> (params, aux)` initializes the module in one of its modes.
        params, aux: values that the user passed, or None.
        modes: modes whose values may have been passed; the first is that of `init`.

    Returns:
        `check(*inputs)`, which at its first call compares values that were passed with those of the module, and `Adapted.init`.
        Both raise a ValueError if names or shapes differ.
    """
    unchecked = [] if params is None else [{"params": params, "aux": aux}]

    def check(*inputs: Any) -> None:
        while unchecked:
            drawn = [jax.eval_shape(functools.partial(draw, train), jax.random.key(0), *inputs) for train in modes]
            check_arrays(framework, [{"params": p, "aux": a} for p, a in drawn], unchecked[0])
            unchecked.clear()

    def init(key: Any, *specs: Any) -> tuple[Any, Any]:
        params, own = draw(modes[0], key, *specs)
        if aux is not None:
            check_arrays(framework, [{"aux": own}], {"aux": aux})
        return params, own if aux is None else aux

    return check, init if params is None else None


def check_arrays(
    framework: str, alternatives: Sequence[Mapping[str, Any]], passed: Mapping[str, Any], is_same: bool = True
) -> None:
    """Compare the values that the user passed as `params=` and `aux=` with those of the module, by name and shape.

    Args:
        framework: name of the framework, for messages.
        alternatives: {"params": pytree, "aux": pytree} of the module, for example as initialized in both modes.
        passed: the user's pytrees by the same names, all or some.  A dimension of aux that is 1 in the module may have any
            size, because modules are initialized with one row.
        is_same: whether the trees have the same structure apart from names.

    Raises:
        ValueError: the values match none of the alternatives; the message is about the first one.
    """
    wrong = [_difference(own, passed) for own in alternatives]
    if all(wrong) or not is_same:
        kind, where = wrong[0] or (next(iter(passed)), "")
        raise ValueError(
            f"{kind}= is not a {type(alternatives[0][kind]).__name__} like that of the {framework} module{where}; "
            "leave out params= and aux=, or pass both from its run: run.params, run.aux"
        )


def _difference(own: Mapping[str, Any], passed: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of the passed arrays that the module has not, as ("params" or "aux", words); None if there is none."""
    for kind, tree in passed.items():
        expected, actual = _shapes(own[kind]), _shapes(tree)
        for name in (*expected, *actual):
            e, a = expected.get(name), actual.get(name)
            free = kind == "aux" and e is not None and a is not None and len(e) == len(a)
            if e != a and not (free and all(x in (y, 1) for x, y in zip(e or (), a or (), strict=True))):
                found, needed = ("missing" if shape is None else f"of shape {shape}" for shape in (a, e))
                return kind, f": {name!r} is {found}, the module's {needed}"
    return None


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(x, "shape", ())) for name, x in flatten_names(tree)[0].items()}


def require_norms(framework: str, layer: str, norms: Any) -> None:
    """Raise unless a module whose batch statistics are to be averaged over the devices has layers with statistics."""
    if not norms:
        raise unsupported_sync(framework, f"it has no {layer}")


def unsupported_sync(framework: str, reason: str) -> ValueError:
    """Error for `sync_batch_stats=True` with a module whose statistics jfit cannot average over devices."""
    return ValueError(
        f"sync_batch_stats=True: {reason}, so jfit cannot average batch statistics of this {framework} module over the "
        "devices; leave out sync_batch_stats (each device then uses its own rows), or train on one device"
    )
