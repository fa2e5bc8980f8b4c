"""What a module must have been through before a method can be used."""

from __future__ import annotations

from typing import Any

# attribute -> (what is wrong where it is false, the call that sets it)
_STEPS = {
    "binded": ("it is not bound", "bind(data_shapes, label_shapes)"),
    "params_initialized": ("its parameters have no values", "init_params()"),
    "optimizer_initialized": ("it has no optimizer", "init_optimizer()"),
    "inputs_need_grad": ("it was not bound for gradients of its inputs", "bind(..., inputs_need_grad=True, force_rebind=True)"),
}


def require(module: Any, method: str, *steps: str) -> None:
    """Raises an error unless the module is ready for a method.

    Args:
        module: the module.
        method: name of its method or property.
        steps: attributes that must be true: binded, params_initialized, optimizer_initialized, inputs_need_grad.

    Raises:
        AssertionError: one is not (MXNet's class); the message says what to call first.

    Example:
        >>> import jfit
        >>> net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
        >>> jfit.Module(net).update()
        Traceback (most recent call last):
        ...
        AssertionError: Module.update: it is not bound, its parameters have no values, it has no optimizer; call \
bind(data_shapes, label_shapes), init_params(), init_optimizer() first.
    """
    missing = [step for step in steps if not getattr(module, step)]
    if not missing:
        return
    problems, calls = zip(*(_STEPS[step] for step in missing), strict=True)
    if "binded" in missing and "inputs_need_grad" in missing:  # the last step of all
        problems, calls = problems[:-1], ("bind(data_shapes, label_shapes, inputs_need_grad=True)", *calls[1:-1])
    raise AssertionError(f"{type(module).__name__}.{method}: {', '.join(problems)}; call {', '.join(calls)} first.")
