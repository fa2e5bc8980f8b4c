"""Comparison of a checkpoint with the parameters of a model, or with the run that is to continue from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfit.graph import GraphError
from jfit.graph.infer import infer_shape
from jfit.lowering.model import Model
from jfit.ops import nearest

# fields of `Run.meta` that a run needs to continue
_NEEDED = ("position", "history", "callbacks", "batch_size", "learning_rate", "ema", "report", "fingerprint")


def check_position(directory: str | Path, meta: Mapping[str, Any], batch_size: int) -> None:
    """Raise an error if a run with batches of `batch_size` rows cannot continue from a checkpoint.

    Args:
        directory: folder of the checkpoint, for the message.
        meta: the meta of the checkpoint.
        batch_size: number of rows of a batch of the run.

    Raises:
        ValueError: the checkpoint has no position, or one in the middle of an epoch of batches of another size.
    """
    missing = [key for key in _NEEDED if key not in meta]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ValueError(
            f"the checkpoint in {directory} has no {names}, because it was saved without meta=run.meta(); use Run.load"
        )
    saved_size = meta["batch_size"]
    if meta["position"]["batch"] and saved_size != batch_size:
        sizes = f"in the middle of an epoch of batches of {saved_size} rows, but this run has batch_size={batch_size}"
        raise ValueError(f"the checkpoint in {directory} is {sizes}; resume with batch_size={saved_size}")


def check_match(
    directory: str | Path, model: Model, params: Mapping[str, Any], aux: Mapping[str, Any], inputs: Mapping[str, Any] | None
) -> None:
    """Raise an error if a checkpoint has parameters or auxiliary states with other names or shapes than the model.

    Args:
        directory: folder of the checkpoint, for the message.
        model: the model.
        params: parameters in the checkpoint, by name.
        aux: auxiliary states in the checkpoint, by name.
        inputs: shape and dtype of each input of the run, by name; empty or None if the checkpoint does not have them.

    Raises:
        ValueError: the first difference.
    """
    specs = {k: jax.ShapeDtypeStruct(tuple(shape), dtype) for k, (shape, dtype) in (inputs or {}).items()}
    try:
        expected, expected_aux = _of_function(model, specs) if model.symbol is None else _of_graph(model, specs)
    except GraphError as error:
        problem = f"its graph cannot have inputs of the shapes of the run: {error}"
        raise ValueError(f"the checkpoint in {directory} does not match model=: {problem}") from None
    difference = _difference("parameter", expected, params) or _difference("auxiliary state", expected_aux, aux)
    if difference is not None:
        raise ValueError(
            f"the checkpoint in {directory} does not match model=: {difference}; pass the model of the run that saved it"
        )


def _difference(kind: str, expected: Mapping[str, Any] | None, arrays: Mapping[str, Any]) -> str | None:
    """The first difference between the shapes by name (None: unknown) of a model and the arrays of a checkpoint."""
    if expected is None:
        return None
    for name, shape in expected.items():
        if name not in arrays:
            near = nearest(name, [n for n in arrays if n not in expected])
            return f"the model has the {kind} {name!r}, the checkpoint does not{f' (it has {near})' if near else ''}"
        if shape is not None and tuple(shape) != np.shape(arrays[name]):
            return f"{kind} {name!r} has shape {np.shape(arrays[name])} in the checkpoint, expected {tuple(shape)}"
    extra = next((name for name in arrays if name not in expected), None)
    return None if extra is None else f"the checkpoint has the {kind} {extra!r}, the model does not"


def _of_graph(model: Model, specs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Shapes of parameters and auxiliary states by name; None for shapes that do not follow from those of the inputs."""
    inputs, net = {*model.inputs, *model.labels}, model.symbol
    known = {k: s.shape for k, s in specs.items() if k in net.list_inputs()}
    arguments, _, auxiliary = infer_shape(net, partial=True, **known)
    shapes = zip(net.list_arguments(), arguments, strict=True)
    expected = {n: s if s and 0 not in s else None for n, s in shapes if n not in inputs}
    states = zip(net.list_auxiliary_states(), auxiliary, strict=True)
    return expected, {n: s if s and 0 not in s else None for n, s in states}


def _of_function(model: Model, specs: Mapping[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Shapes of parameters and auxiliary states by name; None if they depend on inputs of unknown shapes."""
    try:
        params, aux = jax.eval_shape(lambda: model.init(jax.random.key(0), specs))
    except KeyError:
        return None, None
    return {k: v.shape for k, v in params.items()}, {k: v.shape for k, v in aux.items()}
