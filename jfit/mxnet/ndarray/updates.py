"""`mx.nd.sgd_update`, `mx.nd.adam_update`, ...: one step of an optimizer of `mx.optimizer`, without the object.

Each function updates its states in place, and returns the new weight or writes it into `out`, which may be the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jfit.mxnet.mutable import write_into
from jfit.mxnet.optimizer import named
from jfit.mxnet.optimizer.base import Optimizer

# function -> (optimizer, names of its states, defaults that differ from those of the optimizer)
_RULES: dict[str, tuple[type[Optimizer], str, dict[str, Any]]] = {
    "sgd_update": (named.SGD, "", {}),
    "sgd_mom_update": (named.SGD, "mom", {"momentum": 0.0}),
    "nag_mom_update": (named.NAG, "mom", {"momentum": 0.0}),
    "signsgd_update": (named.Signum, "", {"momentum": 0.0}),
    "signum_update": (named.Signum, "mom", {"momentum": 0.0}),
    "adam_update": (named.Adam, "mean var", {"begin_num_update": 10**8}),  # so late that the correction of the bias is 1
    "ftml_update": (named.FTML, "d v z", {}),
    "ftrl_update": (named.Ftrl, "z n", {}),
    "rmsprop_update": (named.RMSProp, "n", {"gamma1": 0.95, "centered": False}),
    "rmspropalex_update": (named.RMSProp, "n g delta", {"gamma1": 0.95, "centered": True}),
    "mp_sgd_update": (named.SGD, "weight32", {}),
    "mp_sgd_mom_update": (named.SGD, "mom weight32", {"momentum": 0.0}),
    "mp_nag_mom_update": (named.NAG, "mom weight32", {"momentum": 0.0}),
}
_SEVERAL = ("sgd_update", "sgd_mom_update", "mp_sgd_update", "mp_sgd_mom_update")
NAMES = [*_RULES, *(f"{kind}_{name}" for kind in ("multi", "preloaded_multi") for name in _SEVERAL)]


def update(name: str) -> Callable[..., Any]:
    """Return the function `mx.nd.<name>`, one of `NAMES`.

    Example:
        >>> import jfit.mx as mx
        >>> update("sgd_update")(mx.nd.ones(2), mx.nd.ones(2), lr=0.5).asnumpy().tolist()
        [0.5, 0.5]
    """
    if name not in _RULES:
        return _several(update(name.removeprefix("preloaded_").removeprefix("multi_")), name)
    rule, states, defaults = _RULES[name]

    def call(weight: Any, grad: Any, *arrays: Any, lr: float = 0.01, out: Any = None, **options: Any) -> Any:
        parts = dict(zip(states.split(), arrays, strict=False))
        parts |= {n: options.pop(n) for n in states.split() if n in options}
        numbers = {**defaults, **options, "learning_rate": lr}
        limit = numbers.pop("clip_gradient", numbers.pop("clip_grad", None))
        numbers["clip_gradient"] = limit if limit is not None and limit > 0 else None
        if numbers.get("clip_weights", 0) <= 0:
            numbers.pop("clip_weights", None)
        if "t" in numbers:
            numbers["begin_num_update"] = numbers.pop("t") - 1
        target = weight if out is weight else weight.copy()
        optimizer = rule(**numbers, multi_precision="weight32" in parts)
        if "weight32" in parts:
            optimizer.update_multi_precision(0, target, grad, (parts.get("mom"), parts["weight32"]))
        else:
            optimizer.update(0, target, grad, (*parts.values(),) if len(parts) > 1 else next(iter(parts.values()), None))
        if out is None or out is weight:
            return target
        write_into(out, target)
        return out

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Update a weight as `mx.optimizer.{rule.__name__}`; arrays: weight, grad, {states}."
    return call


def _several(one: Callable[..., Any], name: str) -> Callable[..., list[Any]]:
    """Return the function of several weights: (weight, grad, states) of each in turn, and their rates `lrs` and `wds`."""

    def call(*data: Any, lrs: Any = None, wds: Any = None, num_weights: int = 1, out: Any = None, **options: Any) -> list[Any]:
        if name.startswith("preloaded"):
            *data, lrs, wds = data  # type: ignore[assignment]
            lrs, wds = lrs.asnumpy().tolist(), wds.asnumpy().tolist()
        size = len(data) // num_weights
        outs: Sequence[Any] = out if isinstance(out, (list, tuple)) else [out] * num_weights
        groups = [data[i * size : (i + 1) * size] for i in range(num_weights)]
        return [one(*g, lr=r, wd=w, out=o, **options) for g, r, w, o in zip(groups, lrs, wds, outs, strict=True)]

    call.__name__ = call.__qualname__ = name
    return call
