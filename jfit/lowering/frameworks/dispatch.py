"""Recognize modules of JAX frameworks, without importing a framework, and make a `Model` of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfit.lowering.frameworks import equinox, haiku, keras, linen, nnx
from jfit.lowering.frameworks.adapted import Adapted
from jfit.lowering.function import from_adapted
from jfit.lowering.model import Model

# (package, name of the class), found among the base classes of an object -> its adapter, or what to pass in its place
ADAPTERS: dict[tuple[str, str], Callable[..., Adapted] | str] = {
    ("flax.nnx", "Module"): nnx.adapt,
    ("flax.linen", "Module"): linen.adapt,
    ("equinox", "Module"): equinox.adapt,
    ("haiku", "Transformed"): haiku.adapt,
    ("haiku", "TransformedWithState"): haiku.adapt,
    ("keras", "Model"): keras.adapt,
    ("keras", "Layer"): "keras.Sequential([layer])",
    ("jfit.mxnet.gluon", "HybridBlock"): lambda block, *args: block._adapted(*args),
    ("jfit.mxnet.gluon", "Block"): "a HybridBlock, which is also a graph",
    ("torch", "Module"): "a JAX module, or a pure function of params",
}


def adapter_of(module: Any) -> Callable[..., Adapted] | None:
    """Find the adapter of a module.

    Args:
        module: any object.

    Returns:
        The function `adapt(module, params, aux) -> Adapted` of its framework; None if it is no module.

    Raises:
        TypeError: it is a module of a framework that is not supported.

    Example:
        >>> adapter_of(len) is None
        True
    """
    if type(module) is tuple and len(module) == 2 and type(module[1]).__module__.startswith("equinox."):
        module = module[0]  # (module, state)
    is_class = isinstance(module, type)
    kind = module if is_class else type(module)
    for base in kind.__mro__:
        for (package, name), adapt in ADAPTERS.items():
            if base.__name__ == name and f"{base.__module__}.".startswith(f"{package}."):
                if is_class or isinstance(adapt, str):
                    remedy = adapt if isinstance(adapt, str) else f"an instance of it, made by {kind.__name__}(...)"
                    raise TypeError(
                        f"the model is {'the class' if is_class else 'a'} {kind.__name__} of {package}; pass {remedy}"
                    )
                return adapt if package != "equinox" or _has_parameters(module) else None
    return None


def _has_parameters(module: Any) -> bool:
    """Whether an Equinox module has floating-point arrays; without, as the result of eqx.filter_jit, it is a function."""
    return any(jnp.issubdtype(getattr(x, "dtype", int), jnp.inexact) for x in jax.tree.leaves(module))


def from_module(
    module: Any, *, loss: Any = None, params: Any = None, aux: Any = None, inputs: Sequence[str] | None = None, **options: Any
) -> Model:
    """Make a `Model` of a module of a JAX framework and a per-example loss.

    Args:
        module: a module of Flax (nnx or linen), Equinox (or a pair (module, state)), Haiku (a transformed pair) or Keras (on
            the JAX backend).  It is not changed.
        loss: as for `Model.from_function`; None: the model can only predict.
        params: initial parameters, a pytree with the structure that `run.params` has; default: those of the module.
        aux: initial auxiliary states (batch statistics, other variables), likewise.
        inputs: names of the inputs.  Default: the arguments of its call without default, and those with a default that a batch
            has, but not those for the mode, random numbers or state.
        options: further arguments of `Model.from_function`, but not `init`.

    Returns:
        The `Model`.  `model.module.restore(params, aux)` returns a new module with these values.

    Raises:
        TypeError: `module` is no module of a supported framework.
        ValueError: `row_axes` is passed with an Equinox module.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> from flax import nnx
        >>> model = jfit.Model.from_module(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), loss="mse")
        >>> model.inputs, model.labels
        (('inputs',), ('label',))
    """
    adapt = adapter_of(module)
    if adapt is None:
        raise TypeError(f"{module!r:.99} is no module of Flax, Equinox, Haiku or Keras; pass a pure function of its parameters")
    adapted = adapt(module, params, aux, inputs)
    if adapted.framework == "Equinox" and options.get("row_axes", 0) != 0:
        remedy = "pass a function of (params, x, ...) that maps the module by jax.vmap with its in_axes"
        raise ValueError(f"row_axes= is passed with an Equinox module, which is called for each row; {remedy}")
    values = {"params": adapted.params, "aux": adapted.aux, "init": adapted.init, "key": adapted.key}
    model = from_adapted(adapted.apply, adapted.call, loss=no_loss if loss is None else loss, **values, **options)
    return model._replace(module=adapted)


def required_loss(loss: Any, kind: str = "function") -> Any:
    """Return `loss`.

    Raises:
        TypeError: it is None.
    """
    if loss is None:
        raise TypeError(f"a {kind} as model needs loss=, the loss of each example, by name ('cross_entropy') or as a function")
    return loss


def no_loss(output: Any, label: Any) -> Any:
    """The loss of models that can only predict.

    Raises:
        TypeError: always.
    """
    return required_loss(None, "function or module")


Model.from_module = staticmethod(from_module)  # type: ignore[attr-defined]
