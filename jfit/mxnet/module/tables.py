"""Gradients of tables: by rows as long as nobody looks, whole tables for those who do."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import Array

from jfit.mxnet.module.session import Session
from jfit.optim.rows import is_rows


def whole_table(session: Session, name: str, gradient: Any) -> Any:
    """The gradient of a parameter with all its rows, and a leading device axis where there are several devices."""
    if not is_rows(gradient):
        return gradient
    assert session.state is not None
    size = session.state.params[name].shape[int(session.split)]
    return (_dense if len(session.devices) == 1 else _dense_each)(gradient, size)


@functools.partial(jax.jit, static_argnums=1)
def _dense(rows: Any, size: int) -> Array:
    return rows.dense(size)


@functools.partial(jax.jit, static_argnums=1)
def _dense_each(rows: Any, size: int) -> Array:
    return jax.vmap(lambda each: each.dense(size))(rows)
