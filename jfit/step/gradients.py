"""Mean gradients, of a batch and of a whole data set: for loops that need more than one gradient a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfit.lowering.model import Aux, Model, Params, Policy
from jfit.step.apart import gradient_step
from jfit.step.inputs import parts_of, rows_of
from jfit.step.state import split_params

Gradients = dict[str, Array]


def mean_gradients(
    model: Model, wrt: Sequence[str] | None = None, *, policy: Policy | str | None = None
) -> Callable[..., Gradients]:
    """Σᵢ wᵢ ∇ℓᵢ / Σᵢ wᵢ of a batch, as a pure function; auxiliary states do not move.

    Args:
        model: the model.
        wrt: names of parameters; None: those that are differentiated, all floating ones that the model does not freeze.
        policy: mixed precision.

    Returns:
        `fn(params, aux, batch, key=None, axis_name=None) -> gradients by name`; batch: a `jfit.Batch` or a dict of inputs; key:
        key data, two gradients with the same key draw the same random numbers; with an axis name the mean is over all devices.
        A batch whose weights sum to 0 gives zeros.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> loss = lambda output, label: (output - label) ** 2
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=loss, params={"w": jnp.ones(())})
        >>> batch = {"x": jnp.array([1.0, 2.0]), "label": jnp.zeros(2)}
        >>> float(jfit.gradients.mean_gradients(model)({"w": jnp.ones(())}, {}, batch)["w"])
        5.0
    """
    summed = _summed(model, wrt, policy)

    def fn(params: Params, aux: Aux, batch: Any, key: Array | None = None, *, axis_name: str | None = None) -> Gradients:
        gradients, rows = summed(params, aux, batch, _key(key), 0, axis_name)
        return _mean(gradients, rows)

    return fn


def full_gradients(
    model: Model, wrt: Sequence[str] | None = None, *, policy: Policy | str | None = None
) -> Callable[..., Gradients]:
    """Σ wᵢ ∇ℓᵢ / Σ wᵢ over all batches of a data set, at the same parameters.

    Args:
        model: the model.
        wrt, policy: as for `mean_gradients`.

    Returns:
        `fn(params, aux, batches, key=None) -> gradients by name`: goes through an iterable of batches once, one dispatch each,
        and waits for nothing; float32 or wider.  A batch of another shape (a ragged last one) is compiled once more.

    Raises:
        ValueError: there is no batch.

    Example:
        >>> import jax.numpy as jnp, jfit
        >>> loss = lambda output, label: (output - label) ** 2
        >>> model = jfit.Model.from_function(lambda p, x: x * p["w"], loss=loss, params={"w": jnp.ones(())})
        >>> batches = [{"x": jnp.array([1.0, 2.0]), "label": jnp.zeros(2)}, {"x": jnp.array([4.0]), "label": jnp.zeros(1)}]
        >>> float(jfit.gradients.full_gradients(model)({"w": jnp.ones(())}, {}, batches)["w"])
        14.0
    """
    summed = _summed(model, wrt, policy)

    @jax.jit
    def first(params: Params, aux: Aux, batch: Any, key: Array, number: Any) -> tuple[Gradients, Array]:
        gradients, rows = summed(params, aux, batch, key, number, None)
        return jax.tree.map(_wide, gradients), rows

    def more(sums: tuple[Gradients, Array], *given: Any) -> tuple[Gradients, Array]:
        return jax.tree.map(jnp.add, sums, first(*given))

    more, mean = jax.jit(more, donate_argnums=0), jax.jit(_mean)

    def fn(params: Params, aux: Aux, batches: Iterable[Any], key: Array | None = None) -> Gradients:
        key, sums = _key(key), None
        for number, batch in enumerate(batches):
            given = (params, aux, batch, key, jnp.int32(number))
            sums = first(*given) if sums is None else more(sums, *given)
        if sums is None:
            raise ValueError("full_gradients found no batch; pass an iterable that starts again, such as a list of batches")
        return mean(*sums)

    return fn


def _summed(model: Model, wrt: Sequence[str] | None, policy: Policy | str | None) -> Callable[..., tuple[Gradients, Array]]:
    """(Σ wᵢ ∇ℓᵢ, Σ wᵢ) of a batch, over the devices of an axis."""

    def fn(params: Params, aux: Aux, batch: Any, key: Array, number: Any, axis_name: str | None) -> tuple[Gradients, Array]:
        names = list(split_params(model, params)[0] if wrt is None else wrt)
        _, gradients, _ = gradient_step(model, names, policy=policy)(params, aux, batch, key, 0, number, axis_name=axis_name)
        inputs, weight, _ = parts_of(batch)
        rows = jnp.asarray(rows_of(model, inputs), jnp.float32) if weight is None else jnp.sum(weight)
        return (gradients, rows) if axis_name is None else lax.psum((gradients, rows), axis_name)

    return fn


def _key(key: Array | None) -> Array:
    return jax.random.key_data(jax.random.key(0)) if key is None else key


def _mean(gradients: Gradients, rows: Array) -> Gradients:
    return jax.tree.map(lambda g: (_wide(g) / jnp.maximum(rows, 1e-30)).astype(g.dtype), gradients)


def _wide(g: Array) -> Array:
    return g.astype(jnp.promote_types(g.dtype, jnp.float32))
