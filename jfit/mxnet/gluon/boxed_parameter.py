"""Parameters whose data and gradients are NDArrays that can be written and bound."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import init as pure
from jfit.mxnet import initializer
from jfit.mxnet.context import Context, current_context
from jfit.mxnet.gluon import parameter, parameter_dict
from jfit.mxnet.gluon.parameter import DeferredInitializationError
from jfit.mxnet.ndarray.array import NDArray

__all__ = ["Constant", "DeferredInitializationError", "Parameter", "ParameterDict"]


class Parameter(parameter.Parameter):
    """`jfit.mxnet.gluon.parameter.Parameter` in NDArrays: what `data` and `grad` return is the parameter's own, not a copy.

    Example:
        >>> weight = Parameter("w", shape=(2,))
        >>> weight.initialize(init="ones")
        >>> weight.data()[:] = 3
        >>> weight.data().asnumpy().tolist()
        [3.0, 3.0]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.Parameter`.
    """

    _cell = NDArray

    def _box(self, cell: Any) -> Any:
        return cell

    def _current_context(self) -> Context:
        return current_context()

    def _draw(self, init: Any) -> Any:
        chosen = initializer.create(init)
        if isinstance(chosen, pure.Initializer):
            return super()._draw(chosen)
        cell = NDArray(jnp.zeros(self._shape or (), np.dtype(self.dtype)))
        if hasattr(chosen, "_init_weight"):
            # gluon's rule: the initializer treats every parameter as a weight, whatever its name ends in
            initializer.Initializer()(initializer.InitDesc(self.name, {"__init__": chosen}), cell)
        else:
            chosen(initializer.InitDesc(self.name), cell)
        return cell.value

    def var(self) -> Any:
        """The symbol variable of the parameter."""
        from jfit.mxnet.symbol import Variable

        shape = self.shape if self._known() else None
        return Variable(self.name, shape=shape, dtype=self.dtype, lr_mult=self.lr_mult, wd_mult=self.wd_mult, init=self.init)


class Constant(parameter_dict.Constant, Parameter):
    """A parameter that no trainer changes.

    Example:
        >>> scale = Constant("scale", [1.0, 2.0])
        >>> scale.initialize()
        >>> scale.data().asnumpy().tolist()
        [1.0, 2.0]
    """


class ParameterDict(parameter_dict.ParameterDict):
    """`jfit.mxnet.gluon.parameter_dict.ParameterDict` of these parameters.

    Example:
        >>> params = ParameterDict("net_")
        >>> params.get("w", shape=(1,), init="ones").name
        'net_w'
    """

    _parameter = Parameter
    _constant = Constant
