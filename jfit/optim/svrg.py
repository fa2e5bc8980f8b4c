"""SVRG (stochastic variance-reduced gradients), wrapped around any optimizer.

From each mini-batch gradient, SVRG subtracts the gradient of the same mini-batch at a snapshot w~ of the weights, and adds the
gradient over all data at w~.  The correction has mean 0, and the variance of the corrected gradient goes to 0 as w and w~
approach the optimum, so a constant learning rate converges linearly where SGD stalls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array


class SvrgState(NamedTuple):
    """State of `svrg`.

    Attributes:
        inner: state of the wrapped optimizer.
        snapshot: w~, a copy of earlier weights, pytree like the parameters; before the first `svrg_snapshot`, the initial
            parameters.
        full: mu, the gradient over all data at w~, float32 or wider; zeros before the first `svrg_snapshot`.
        taken: whether `svrg_snapshot` has set `snapshot` and `full`, bool scalar.

    Example:
        >>> state = svrg(optax.sgd(0.1)).init({"w": jnp.ones(2)})
        >>> bool(state.taken), state.full["w"].tolist()
        (False, [0.0, 0.0])
    """

    inner: Any
    snapshot: Any
    full: Any
    taken: Array


def variance_reduced(gradient: Array, at_snapshot: Array, full: Array) -> Array:
    """Compute g - g~ + mu in float32 or wider; the result has the dtype of g.

    Args:
        gradient: g, the gradient of a mini-batch at the current weights.
        at_snapshot: g~, the gradient of the same mini-batch at the snapshot, in the same scale.
        full: mu, the gradient over all data at the snapshot.

    Returns:
        Array with the shape and dtype of `gradient`.

    Example:
        >>> variance_reduced(jnp.float32(3.0), jnp.float32(2.0), jnp.float32(0.5)).tolist()
        1.5

    Source: Johnson and Zhang 2013, Accelerating stochastic gradient descent using predictive variance reduction.
    """
    wide = jnp.promote_types(gradient.dtype, jnp.float32)
    return (gradient.astype(wide) - at_snapshot.astype(wide) + full.astype(wide)).astype(gradient.dtype)


def svrg(inner: Any) -> optax.GradientTransformationExtraArgs:
    """g <- g_i(w) - g_i(w~) + mu;  w <- w + u(g), where u is the wrapped optimizer.

    w: weights, g_i: gradient of mini-batch i, w~: a snapshot (copy) of earlier weights, mu: gradient over all data at w~.
    Before the first `svrg_snapshot`, which sets w~ and mu, updates are those of the wrapped optimizer.  SVRG needs two
    gradients per step, so use it in your own training loop; `jfit.fit` and `jfit.train_step` compute one gradient and raise an
    error.

    Args:
        inner: an optax transformation: `jfit.optim.sgd(0.1)`, an optax optimizer, or a chain.  It gets the corrected gradients.

    Returns:
        optax transformation (init, update).  `update(grads, state, params, snapshot_gradients=, **extra)` returns (updates,
        state).  `snapshot_gradients` is the gradient of the SAME batch at `state.snapshot`, with the same random key and in
        the same scale as `grads` and mu (for example, all means over rows).  `extra` is passed to `inner`.

    Raises:
        ValueError: `update` is called without `snapshot_gradients`.

    Example:
        >>> import jax, jax.numpy as jnp, jfit, numpy as np, optax
        >>> x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
        >>> y = (x @ np.array([1.0, 2.0, 3.0], "float32")) + x[:, 0] ** 2  # no w fits all rows: plain gradients stay noisy
        >>> square = lambda output, label: (output - label) ** 2
        >>> model = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=square, params={"w": jnp.zeros(3)})
        >>> batches = [{"x": x[i : i + 6], "label": y[i : i + 6]} for i in range(0, 60, 6)]
        >>> gradient, everything = jfit.gradients.mean_gradients(model), jfit.gradients.full_gradients(model)
        >>> optimizer = jfit.optim.svrg(jfit.optim.sgd(0.1))
        >>> @jax.jit
        ... def step(params, state, batch):
        ...     at_snapshot = gradient(state.snapshot, {}, batch)
        ...     added, state = optimizer.update(gradient(params, {}, batch), state, params, snapshot_gradients=at_snapshot)
        ...     return optax.apply_updates(params, added), state
        >>> params = {"w": jnp.zeros(3)}
        >>> state = optimizer.init(params)
        >>> for epoch in range(15):
        ...     state = jfit.optim.svrg_snapshot(state, params, everything(params, {}, batches))
        ...     for batch in batches:
        ...         params, state = step(params, state, batch)
        >>> bool(np.allclose(params["w"], np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-5))
        True

    Source: Johnson and Zhang 2013, Accelerating stochastic gradient descent using predictive variance reduction.
    """
    within = optax.with_extra_args_support(inner)

    def init(params: Any) -> SvrgState:
        full = jax.tree.map(lambda w: jnp.zeros(jnp.shape(w), jnp.promote_types(jnp.result_type(w), jnp.float32)), params)
        return SvrgState(within.init(params), _own(params), full, jnp.zeros((), bool))

    def update(
        grads: Any, state: SvrgState, params: Any = None, *, snapshot_gradients: Any = None, **extra: Any
    ) -> tuple[Any, SvrgState]:
        if snapshot_gradients is None:
            needed = "the gradient of the same batch at its snapshot: update(..., snapshot_gradients=...) in your own loop"
            raise ValueError(f"svrg needs {needed}; jfit.fit and jfit.train_step compute one gradient per step.")

        def corrected(g: Array, at_snapshot: Array, full: Array) -> Array:
            # jnp.where, not a product with 0: before the first snapshot, at_snapshot may be NaN.
            return jnp.where(state.taken, variance_reduced(g, at_snapshot, full), g) if _floats(g) else g

        reduced = jax.tree.map(corrected, grads, snapshot_gradients, state.full)
        added, after = within.update(reduced, state.inner, params, **extra)
        return added, state._replace(inner=after)

    return optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]


def svrg_snapshot(state: SvrgState, params: Any, full_gradients: Any) -> SvrgState:
    """Take a snapshot of the weights: w~ <- w, mu <- the gradient over all data at w (see `svrg`).

    Both are copied, so the arguments may be donated later.

    Args:
        state: state of an `svrg` optimizer.
        params: the current parameters.
        full_gradients: gradient over all data, pytree like the parameters, in the scale of the mini-batch gradients (a mean
            over rows if those are).

    Returns:
        The state with the new snapshot; the state of the wrapped optimizer is unchanged.

    Example:
        >>> params = {"w": jnp.ones(2)}
        >>> state = svrg_snapshot(svrg(optax.sgd(0.1)).init(params), params, {"w": jnp.full(2, 0.5)})
        >>> bool(state.taken), state.full["w"].tolist()
        (True, [0.5, 0.5])
    """
    full = jax.tree.map(lambda g, old: jnp.array(g, old.dtype), full_gradients, state.full)
    return state._replace(snapshot=_own(params), full=full, taken=jnp.ones((), bool))


def _own(params: Any) -> Any:
    return jax.tree.map(jnp.array, params)  # copies: jnp.array does not share buffers


def _floats(g: Any) -> bool:
    return jnp.issubdtype(g.dtype, jnp.inexact)
