"""Activations of gluon.nn: elementwise functions without weights, and PReLU, whose slopes are trained."""

from __future__ import annotations

from typing import Any

from jfit.mxnet.gluon.hybrid import HybridBlock
from jfit.mxnet.initializer import Constant


class Activation(HybridBlock):
    """y = f(x), where f is the activation function with the given name.

    Args:
        activation: "relu", "sigmoid", "tanh", "softrelu" or "softsign".
        **kwargs: prefix and params, as for `Block`.

    Example:
        >>> import jfit.mx as mx
        >>> Activation("relu")(mx.nd.array([-1.0, 2.0])).asnumpy().tolist()
        [0.0, 2.0]
    """

    def __init__(self, activation: str, **kwargs: Any) -> None:
        self._act_type = activation  # first, because it is the beginning of automatic names
        super().__init__(**kwargs)

    def _alias(self) -> str:
        return self._act_type

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Apply the function."""
        return F.Activation(x, act_type=self._act_type, name="fwd")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._act_type})"


class _Unit(HybridBlock):
    """A rectified unit: a function that is x, or nearly, for large x."""

    _act_type: str
    _slope = 0.25

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Apply the function."""
        return F.LeakyReLU(x, act_type=self._act_type, slope=self._slope, name="fwd")


class LeakyReLU(_Unit):
    """y = x for x > 0, else alpha * x.

    Args:
        alpha: slope for negative x, at least 0.
        **kwargs: prefix and params, as for `Block`.

    Raises:
        AssertionError: alpha is negative.
    """

    _act_type = "leaky"

    def __init__(self, alpha: float, **kwargs: Any) -> None:
        assert alpha >= 0, f"LeakyReLU(alpha={alpha}): the slope for negative inputs must not be negative."
        super().__init__(**kwargs)
        self._slope = alpha

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._slope})"


_QUARTER = Constant(0.25)


class PReLU(HybridBlock):
    """y = x for x > 0, else alpha * x, with trained slopes alpha.

    Args:
        alpha_initializer: initializer of the slopes.
        in_channels: number of slopes: 1, or the size of axis 1.
        **kwargs: prefix and params, as for `Block`.

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852.
    """

    def __init__(self, alpha_initializer: Any = _QUARTER, in_channels: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = self.params.get("alpha", shape=(in_channels,), init=alpha_initializer)

    def hybrid_forward(self, F: Any, x: Any, alpha: Any) -> Any:
        """Apply the function."""
        return F.LeakyReLU(x, gamma=alpha, act_type="prelu", name="fwd")


class ELU(_Unit):
    """y = x for x > 0, else alpha * (exp(x) - 1); source: Clevert et al. 2016, https://arxiv.org/abs/1511.07289."""

    _act_type = "elu"

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._slope = alpha


class SELU(_Unit):
    """y = 1.0507 * (x for x > 0, else 1.6733 * (exp(x) - 1)); source: Klambauer et al. 2017, https://arxiv.org/abs/1706.02515."""

    _act_type = "selu"


class GELU(_Unit):
    """y = x * Phi(x), Phi the normal distribution; source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415."""

    _act_type = "gelu"


class Swish(HybridBlock):
    """y = x * sigmoid(beta * x); source: Ramachandran et al. 2017, https://arxiv.org/abs/1710.05941."""

    def __init__(self, beta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._beta = beta

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Apply the function."""
        return x * F.sigmoid(self._beta * x, name="fwd")
