"""MXNet's optimizers: all classes, `create` by name, `register` for user classes.

>>> fast = create("sgd", momentum=0.9, learning_rate=0.5)
>>> fast, fast.hyper_key()[0]
(SGD(momentum=0.9, wd=0.0, clip_gradient=None), 'sgd')
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np

from jfit.graph.compose import STORAGE_TYPES
from jfit.mxnet.keys import next_key
from jfit.mxnet.optimizer import saved
from jfit.mxnet.optimizer.base import Hyper, Optimizer, group_size

# ----------------------------------------------------------------------------------- SGD, variants with momentum, noise


@Optimizer.register
class SGD(Optimizer, momentum=0.0, lazy_update=True):
    """SGD with momentum: m <- momentum * m - lr * (c(g) + wd * w);  w <- w + m; c rescales and clips the gradient.

    Args:
        momentum: momentum; 0 needs no state.
        lazy_update: with a row_sparse gradient, update only the rows it contains.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> SGD(learning_rate=0.5).learning_rate
        0.5

    Source: Apache MXNet 1.9.1, `SGD`.
    """

    rule = "sgd"
    off_switches = ("lazy_update",)
    unwrap_single_slot = True
    master_last = True

    def _set_up(self) -> None:
        self.aggregate_num = group_size(4)


@Optimizer.register
class ccSGD(SGD):
    """Deprecated alias of `SGD`.

    Args:
        momentum, lazy_update, **kwargs: as in `SGD`.

    Example:
        >>> ccSGD(momentum=0.5).momentum
        0.5
    """


@Optimizer.register
class NAG(Optimizer, momentum=0.0):
    """Nesterov momentum: m' = momentum * m;  w' = w - m' + (1 + momentum) * (m' - lr * (c(g) + wd * w)).

    Then m <- m' - lr * (c(g) + wd * w') and w <- w'.  c rescales and clips the gradient.

    Args:
        momentum: momentum; 0 is plain SGD, without state.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> NAG(momentum=0.9).momentum
        0.9

    Source: Apache MXNet 1.9.1, `NAG`; its kernel computes the new momentum with the already updated weight w'.
    """

    rule = "nag"
    unwrap_single_slot = True
    master_last = True


@Optimizer.register
class Signum(Optimizer, learning_rate=0.01, momentum=0.9, wd_lh=0.0):
    """Signum: m <- momentum * m - (1 - momentum) * (wd * w + c(g));  w <- (1 - lr * wd_lh) * w + lr * sign(m).

    c rescales and clips the gradient.  The sign of NaN is 0, so a weight with a NaN gradient is unchanged (except for
    wd_lh).  `learning_rate` always replaces the `base_lr` of a scheduler, as in MXNet, even at its default.

    Args:
        learning_rate: learning rate.
        momentum: momentum; 0 is signSGD, w <- (1 - lr * wd) * w - lr * sign(g), without state.
        wd_lh: decoupled weight decay, applied to the weight and not to the momentum.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Signum().momentum
        0.9

    Source: Bernstein et al. 2018, https://arxiv.org/abs/1802.04434; Apache MXNet 1.9.1, `Signum`.
    """

    rule = "signum"
    unwrap_single_slot = True


@Optimizer.register
class DCASGD(Optimizer, momentum=0.0, lamda=0.04):
    """Delay-compensated SGD: w <- w - lr * (c(g) + wd * w + lamda * c(g)^2 * (w - previous));  previous <- the old w.

    c rescales and clips the gradient.  The state is (momentum or None, previous).  MXNet fails if momentum is not 0; here
    m <- momentum * m - lr * (...) and w <- w + m.

    Args:
        momentum: momentum; 0 needs no momentum state.
        lamda: strength of the correction of a delayed gradient.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> DCASGD().lamda
        0.04

    Source: Zheng et al. 2017, https://arxiv.org/abs/1609.08326; Apache MXNet 1.9.1, `DCASGD`.
    """

    rule = "dcasgd"

    def nested(self, slots: tuple[Any, ...]) -> Any:
        """Return MXNet's state, (momentum or None, previous weight), from the slots."""
        return slots if len(slots) == 2 else (None, *slots)


@Optimizer.register
class Test(Optimizer):
    """Add the gradient: w <- w + rescale_grad * g; the state is a copy of the weight.  MXNet uses it in its own tests.

    Unlike MXNet's class, this one increments update counts.

    Args:
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Test().rule
        'test'

    Source: Apache MXNet 1.9.1, `Test`.
    """

    __test__ = False  # keeps pytest from collecting a class named Test
    rule = "test"
    unwrap_single_slot = True


@Optimizer.register
class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics: w <- w - lr / 2 * (c(g) + wd * w) + sqrt(lr) * noise, noise ~ N(0, 1).

    c rescales and clips the gradient.  The PRNG key is the next key of `mx.random` at the first update, so call
    `mx.random.seed` before it for reproducible runs.  The noise depends on the key, the update count and the parameter only,
    not on the number of devices.

    Args:
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> SGLD(learning_rate=0.1).rule
        'sgld'

    Source: Welling and Teh 2011, https://icml.cc/2011/papers/398_icmlpaper.pdf; Apache MXNet 1.9.1, `SGLD`.
    """

    rule = "sgld"

    def first_shared(self) -> Mapping[str, Any]:
        """Return the PRNG key, as uint32 key data."""
        return {"key": jax.random.key_data(next_key())}

    def shared_for(self, indices: Sequence[Any]) -> Mapping[str, Any]:
        """Return the PRNG key folded with the indices, because the rule only has the position of a parameter in the list.

        For lists of one element these positions are all equal.
        """
        key = jax.random.wrap_key_data(self.shared.values()["key"])
        return {"key": jax.random.key_data(jax.random.fold_in(key, zlib.crc32(repr(list(indices)).encode())))}

    def keep_shared(self, scalars: Mapping[str, Any]) -> None:
        """Ignore the key that an update returns, because the key never changes."""


# ----------------------------------------------------------------------- moving averages of the gradient and its square


@Optimizer.register
class Adam(Optimizer, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, lazy_update=True):
    """Adam: G = c(g + wd * w);  w <- w - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * mean / (sqrt(var) + epsilon).

    mean and var are moving averages of G and G^2; c rescales and clips the gradient.  `learning_rate` always replaces the
    `base_lr` of a scheduler, as in MXNet, even at its default: pass the learning rate to both.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of G and G^2.
        epsilon: added to the square root.
        lazy_update: with a row_sparse gradient, update only the rows it contains.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Adam().learning_rate
        0.001

    Source: Apache MXNet 1.9.1, `Adam`.
    """

    rule = "adam"
    off_switches = ("lazy_update",)


@Optimizer.register
class AdamW(Optimizer, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-6, wd=0.01, bias_correction=True):
    """AdamW: w <- w - lr * (mean' / (sqrt(var') + epsilon) + wd * w), with bias-corrected moving averages of c(g), c(g)^2.

    c rescales and clips the gradient.  MXNet 1.9.1 has the operator but no such class; the defaults are those of
    `jfit.optim.adamw`.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of c(g) and c(g)^2.
        epsilon: added to the square root.
        wd: decoupled weight decay; it does not enter the moving averages.
        bias_correction: divide the moving averages by 1 - beta^t.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> AdamW().wd
        0.01

    Source: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101; Apache MXNet 1.9.1, `_contrib_adamw_update`.
    """

    rule = "adamw"


@Optimizer.register
class Adamax(Optimizer, learning_rate=0.002, beta1=0.9, beta2=0.999):
    """Adamax: G = c(g + wd * w);  u <- max(beta2 * u, |G|);  w <- w - lr / (1 - beta1^t) * mean / u.

    mean is the moving average of G; c rescales and clips the gradient.  While all gradients of an element are 0 its weight
    is unchanged; MXNet makes it NaN (0 / 0).

    Args:
        learning_rate: learning rate.
        beta1: decay rate of the moving average of G.
        beta2: decay rate of u, the running maximum of |G|.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Adamax().learning_rate
        0.002

    Source: Kingma and Ba 2015, section 7, https://arxiv.org/abs/1412.6980; Apache MXNet 1.9.1, `Adamax`.
    """

    rule = "adamax"


@Optimizer.register
class Nadam(Optimizer, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, schedule_decay=0.004):
    """Adam with scheduled Nesterov momentum; see `jfit.optim.nadam` for the formula.

    As in MXNet all parameters share one `m_schedule`, which is multiplied by the current momentum before the update of each
    parameter; so the result for a parameter depends on its position in the update order.  A Module on several devices
    multiplies it once per parameter, not once per device.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of G = c(g + wd * w) and G^2.
        epsilon: added to the square root.
        schedule_decay: how fast the momentum increases.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Nadam().m_schedule
        1.0

    Source: Dozat 2016, https://cs229.stanford.edu/proj2015/054_report.pdf; Apache MXNet 1.9.1, `Nadam`.
    """

    rule = "nadam"

    @property
    def m_schedule(self) -> float:
        """Product of the momenta of all parameter updates so far; blocks until it is computed."""
        return self.shared.value("m_schedule")

    @m_schedule.setter
    def m_schedule(self, value: float) -> None:
        self.shared.set_value("m_schedule", value)

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the hyperparameters order (names in update order) and fixed (names that only change m_schedule)."""
        return (("order", tuple(names)), ("fixed", tuple(fixed)))


@Optimizer.register
class FTML(Optimizer, beta1=0.6, beta2=0.999, epsilon=1e-8):
    """FTML: G = c(g + wd * w);  d_t = (1 - beta1^t) / lr * (sqrt(v / (1 - beta2^t)) + epsilon);  w <- -z / d_t.

    v is the moving average of G^2, z <- beta1 * z + (1 - beta1) * G - (d_t - beta1 * d) * w with the previous d.  c rescales
    and clips the gradient.  The state is (d, v, z).

    Args:
        beta1, beta2: decay rates of z and v.
        epsilon: added to the square root.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> FTML().beta1
        0.6

    Source: Zheng and Kwok 2017, http://proceedings.mlr.press/v70/zheng17a.html; Apache MXNet 1.9.1, `FTML`.
    """

    rule = "ftml"


# ---------------------------------------------------------------------------------------- accumulated squared gradients


@Optimizer.register
class RMSProp(Optimizer, learning_rate=0.001, gamma1=0.9, gamma2=0.9, epsilon=1e-8, centered=False, clip_weights=None):
    """RMSProp: G = c(g + wd * w);  n <- gamma1 * n + (1 - gamma1) * G^2;  w <- w - lr * G / sqrt(n + epsilon).

    c rescales and clips the gradient.  `learning_rate` always replaces the `base_lr` of a scheduler, as in MXNet, even at
    its default.

    Args:
        learning_rate: learning rate.
        gamma1: decay rate of the moving averages.
        gamma2: momentum of the centered version.
        epsilon: added inside the square root.
        centered: use Graves' version, which subtracts the squared moving average of G from n and has momentum.
        clip_weights: clip the new weight to [-clip_weights, clip_weights]; None or 0 disables it.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> RMSProp(centered=True).gamma2
        0.9

    Source: Apache MXNet 1.9.1, `RMSProp`.
    """

    rule = "rmsprop"
    saved_needs: ClassVar = {**Optimizer.saved_needs, "clip_weights": saved.LIMIT}


@Optimizer.register
class AdaGrad(Optimizer):
    """AdaGrad: h <- h + c(g)^2;  w <- w - lr * (c(g) / sqrt(h + eps) + wd * w); c rescales and clips the gradient.

    Args:
        eps: added inside the square root; stored as `float_stable_eps`.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> AdaGrad().float_stable_eps
        1e-07

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `AdaGrad`.
    """

    rule = "adagrad"
    parameters = ("float_stable_eps",)
    rule_names: ClassVar = {"float_stable_eps": "eps"}
    unwrap_single_slot = True

    def __init__(self, eps: float = 1e-7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps


@Optimizer.register
class GroupAdaGrad(AdaGrad):
    """AdaGrad per matrix row: h <- h + mean(c(g)^2, axis=1);  w <- w - lr * c(g) / sqrt(h + eps).

    c rescales and clips the gradient.  Updates raise a ValueError for parameters that are not matrices, and an AssertionError
    for those that have weight decay.

    Args:
        eps: added inside the square root; stored as `float_stable_eps`.
        **kwargs: arguments of `Optimizer`; weight decay must be 0 for every parameter (wd=0 or wd_mult 0).

    Example:
        >>> GroupAdaGrad().float_stable_eps
        1e-05

    Source: Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html; Apache MXNet 1.9.1, `GroupAdaGrad`.
    """

    rule = "groupadagrad"

    def __init__(self, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(eps, **kwargs)

    def hyper_key(self, extra: Any = ()) -> Any:
        """Cache key of a compiled update, as `Optimizer.hyper_key`, without wd: GroupAdaGrad has no weight decay."""
        rule, hyper = super().hyper_key(extra)
        return rule, tuple((name, value) for name, value in hyper if name != "wd")

    def multipliers(self, indices: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Learning rate and weight decay multipliers of the parameters `indices`, two float32 arrays (len(indices),).

        Raises:
            AssertionError: wd * wd_mult of a parameter is not 0; GroupAdaGrad has no weight decay.
        """
        lr, wd = super().multipliers(indices)
        if self.wd and wd.any():
            raise AssertionError(f"weight decay is {self.wd}, which GroupAdaGrad does not support: set wd=0, or wd_mult 0.")
        return lr, wd


@Optimizer.register
class AdaDelta(Optimizer, rho=0.90, epsilon=1e-5):
    """AdaDelta: a <- rho * a + (1 - rho) * c(g)^2;  d = sqrt(b + epsilon) / sqrt(a + epsilon) * c(g);  w <- w - d - wd * w.

    Then b <- rho * b + (1 - rho) * d^2.  c rescales and clips the gradient.  The learning rate is not used, not
    even for the weight decay.

    Args:
        rho: decay rate of the moving averages.
        epsilon: added inside both square roots.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> AdaDelta().rho
        0.9

    Source: Zeiler 2012, https://arxiv.org/abs/1212.5701; Apache MXNet 1.9.1, `AdaDelta`.
    """

    rule = "adadelta"


@Optimizer.register
class Ftrl(Optimizer):
    """FTRL-Proximal: z <- z + c(g) - (sqrt(n + c(g)^2) - sqrt(n)) * w / lr;  n <- n + c(g)^2.

    Then w <- (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) where |z| > lamda1, else 0, so the initial weight is lost
    in the first update.  c rescales and clips the gradient.  A row_sparse gradient updates all rows of a dense weight, and only
    its own rows of a row_sparse weight.  `learning_rate` does not replace a scheduler's `base_lr`, as in
    MXNet: set `base_lr` when creating the scheduler.

    Args:
        lamda1: strength of the L1 regularization.
        learning_rate: learning rate.
        beta: smoothing term of the learning rate.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> Ftrl().learning_rate
        0.1

    Source: McMahan et al. 2013, https://dl.acm.org/citation.cfm?id=2488200; Apache MXNet 1.9.1, `Ftrl`.
    """

    rule = "ftrl"
    parameters = ("lamda1", "beta")
    rows_of_dense = False

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lamda1, self.beta, self.lr = lamda1, beta, learning_rate

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        declared = self.sym_info[0] if self.sym_info else {}  # attributes of the variables of the graph
        by_rows = any(declared.get(name, {}).get("__storage_type__") == str(STORAGE_TYPES["row_sparse"]) for name in names)
        return () if by_rows else (("lazy_update", False),)


# -------------------------------------------------------------------------------------------------------- large batches


_NOT_ADAPTED = ("gamma", "beta", "bias")


@Optimizer.register
class LAMB(
    Optimizer,
    learning_rate=0.001,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    lower_bound=None,
    upper_bound=None,
    bias_correction=True,
):
    """LAMB: w <- w - lr * (r / |u|) * u, u = mean' / (sqrt(var') + epsilon) + wd * w, r = clip(|w|, lower, upper).

    mean' and var' are the bias-corrected moving averages of c(g) and c(g)^2, where c rescales and clips the gradient.

    Args:
        learning_rate: learning rate.
        beta1, beta2: decay rates of the moving averages of c(g) and c(g)^2.
        epsilon: added to the square root.
        lower_bound, upper_bound: bounds of r; None or 0 disables a bound.
        bias_correction: divide the moving averages by 1 - beta^t.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> LAMB().epsilon
        1e-06

    Source: You et al. 2020, https://arxiv.org/abs/1904.00962; Apache MXNet 1.9.1, `LAMB`.
    """

    rule = "lamb"
    counts_one_by_one = True
    saved_needs: ClassVar = {**Optimizer.saved_needs, "lower_bound": saved.LIMIT, "upper_bound": saved.LIMIT}

    def _set_up(self) -> None:
        self.aggregate_num = max(1, min(45, group_size(45)))


@Optimizer.register
class LARS(Optimizer, momentum=0.0, lazy_update=True, eta=0.001, eps=0, momentum_correction=True):
    """LARS: m <- momentum * k * m - lr * r * (c(g) + wd * w);  w <- w + m, with r = eta * |w| / (|g| + wd * |w| + eps).

    c rescales and clips the gradient.  r is 1 for names that end in gamma, beta or bias; only names that end in `_weight`
    decay.  k = (learning rate) / (learning rate of the last update) is the momentum correction; as in MXNet it applies only
    to the parameters of the first call after a change of the learning rate: four parameters, or one if a key-value store
    updates.

    Args:
        momentum: momentum; 0 needs no state.
        lazy_update: accepted for compatibility and ignored; gradients are dense.
        eta: trust coefficient, the step size relative to the weight norm.
        eps: added to the denominator of r.
        momentum_correction: False sets k to 1.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> LARS(param_idx2name={0: "bn_gamma"}).wd_mult
        {'bn_gamma': 0.0}

    Source: You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888; Apache MXNet 1.9.1, `LARS`.
    """

    rule = "lars"
    parameters = ("momentum", "eta", "eps", "momentum_correction")
    unwrap_single_slot = True
    master_last = True
    decayed_endings = ("_weight",)
    separate_lr_mult = True

    def _set_up(self) -> None:
        self.aggregate_num = group_size(4)

    def shared_of_mxnet(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the shared scalars from the attributes cur_lr and last_lr of an MXNet optimizer."""
        rate, last = attributes.get("cur_lr"), attributes.get("last_lr")
        return {} if rate is None else {"rate": rate, "last": rate if last is None else last}

    def hyper_for_indices(self, indices: Sequence[Any], one_by_one: bool) -> Hyper:
        """Return the hyperparameters adapt (which parameters have a layer-wise rate r) and group.

        group: how many parameters get the momentum correction.
        """
        named = [str(self.idx2name.get(i, i)) for i in indices]
        return (("adapt", tuple(not name.endswith(_NOT_ADAPTED) for name in named)), *self._group(one_by_one))

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the hyperparameters order (names in update order), fixed (names without an update) and group.

        group: how many parameters get the momentum correction.
        """
        return (("order", tuple(names)), ("fixed", tuple(fixed)), *self._group(one_by_one))

    def _group(self, one_by_one: bool) -> Hyper:
        return (("group", 1 if one_by_one else max(self.aggregate_num, 1)),)


@Optimizer.register
class LBSGD(
    Optimizer,
    momentum=0.0,
    multi_precision=False,
    warmup_strategy="linear",
    warmup_epochs=5,
    batch_scale=1,
    updates_per_epoch=32,
    begin_epoch=0,
    num_epochs=60,
):
    """SGD on the mean of batch_scale gradients: m <- momentum * m - lr * f * (c(mean of g) + wd * w);  w <- w + m.

    Weights change every batch_scale updates only.  f increases from 1 to batch_scale during the warm-up; strategy "lars" uses
    f = sqrt(|w|^2 / (|g|^2 + wd * |w|^2)) instead, clipped to [0.01, 100], with g before rescale_grad.  As in MXNet the first
    parameter gets the scheduler's rate of the previous update.

    Args:
        momentum: momentum; 0 needs no momentum state.
        multi_precision: as in `Optimizer`.
        warmup_strategy: "linear", "power2", "sqrt" or "lars".
        warmup_epochs, updates_per_epoch: the warm-up takes warmup_epochs * updates_per_epoch updates.
        batch_scale: number of gradients that are averaged.
        begin_epoch: number of epochs already trained, for the warm-up.
        num_epochs: accepted and ignored, as in MXNet.
        **kwargs: arguments of `Optimizer`.

    Example:
        >>> LBSGD(batch_scale=2, begin_epoch=3).init_updates
        96

    Source: Goyal et al. 2017 (warm-up), https://arxiv.org/abs/1706.02677; Apache MXNet 1.9.1, `LBSGD`.
    """

    rule = "lbsgd"
    parameters = ("momentum", "warmup_strategy", "warmup_epochs", "batch_scale", "updates_per_epoch", "begin_epoch")
    unwrap_single_slot = True
    hidden_slots = frozenset({"sum"})
    rate_before_count = True
    saved_needs: ClassVar = {
        **Optimizer.saved_needs,
        "batch_scale": saved.Need("a whole number of at least 1", lambda n: saved.is_number(n) and n >= 1 and n == int(n)),
        **dict.fromkeys(("warmup_epochs", "updates_per_epoch", "begin_epoch"), saved.FROM_0),
    }

    begin_epoch: int
    updates_per_epoch: int
    warmup_strategy: str

    @property
    def init_updates(self) -> int:
        """Number of updates done before begin_epoch, from which the warm-up continues."""
        return self.begin_epoch * self.updates_per_epoch

    def hyper_key(self, extra: Hyper = ()) -> tuple[str, Hyper]:
        """Return (rule name, hyperparameters), the cache key of a compiled update.

        Strategy "lars" includes rescale_grad, because it uses the norm of the raw gradient.
        """
        scaled = (("grad_scale", float(self.rescale_grad)),) if self.warmup_strategy == "lars" else ()
        return super().hyper_key((*scaled, *extra))

    def hyper_for_names(self, names: Sequence[str], one_by_one: bool, fixed: Sequence[str] = ()) -> Hyper:
        """Return the hyperparameter `one_buffer` of `jfit.optim.lbsgd`.

        It is needed because MXNet's first accumulated gradient is the same memory as the Module's gradient buffer.
        """
        return (("one_buffer", True),)


register = Optimizer.register
create = Optimizer.create_optimizer
contrib = SimpleNamespace(GroupAdaGrad=GroupAdaGrad, register=register)
opt_registry = Optimizer.opt_registry  # lower-case name -> class
