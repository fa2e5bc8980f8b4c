"""Run any registered operator on arrays immediately: `mx.nd.<name>(*arrays, **attributes, out=None)`.

An operator is compiled once per set of attributes and input shapes.  The scalar of a Python expression such as `x * lr` is a
traced argument of the compiled function, so a new value does not recompile.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit import checks
from jfit.mxnet import keys
from jfit.mxnet.errors import MXNetError, translated
from jfit.mxnet.mutable import MutableArray, as_array
from jfit.mxnet.precision import active
from jfit.mxnet.recording.calls import Call, function_call, operator_call
from jfit.mxnet.recording.steps import refused
from jfit.mxnet.recording.tape import is_tracked, mode
from jfit.ops import Attrs, Op, lookup, record_for
from jfit.ops.elementwise import BROADCAST, WITH_NUMBER


def _divide(x: Any, y: Any) -> Any:
    """x / y with the bits of XLA, which multiplies by 1 / y where y is broadcast."""
    return x / y if y.size == np.broadcast(x, y).size else x * (y.dtype.type(1) / y)


# Operators that NumPy computes in the Python code of custom operators, with the bits of JAX.
_NAMES = "plus add minus rminus sub mul rdiv equal not_equal greater greater_equal lesser lesser_equal"
_NUMPY: dict[str, Any] = BROADCAST | WITH_NUMBER
_NUMPY = {k: f for k, f in _NUMPY.items() if k.removeprefix("broadcast_").removesuffix("_scalar").strip("_") in _NAMES.split()}
_NUMPY |= {"broadcast_div": _divide, "_div_scalar": _divide, "negative": np.negative}


def invoke(
    name: str, arrays: Sequence[Any], attrs: dict[str, Any], out: Any = None, kind: type[MutableArray] = MutableArray
) -> Any:
    """Run one operator on arrays.

    Args:
        name: name of any registered operator.
        arrays: inputs, then auxiliary states, in the operator's order.
        attrs: attributes as typed values or as strings.
        out: mutable array, or list of them, to write the result into.
        kind: class of the results.

    Returns:
        One `kind`, or a list if the operator has several visible outputs; `out` itself if it is passed.

    Raises:
        MXNetError: the number, shapes or dtypes of the arrays, or the attributes, are invalid for the operator.

    Example:
        >>> invoke("clip", [np.array([1.0, 5.0])], {"a_min": 0, "a_max": 2}).asnumpy().tolist()
        [1.0, 2.0]
    """
    return _write_out(run(_prepared(record_for(name, attrs), len(arrays), attrs), arrays, kind), out)


def _prepared(op: Op, count: int, attrs: dict[str, Any]) -> Call:
    """Parse the attributes of an operator that is applied to `count` arrays."""
    if op.variadic:
        attrs = {op.variadic: count, **attrs}
    try:
        params = op.parse(attrs) if attrs else _defaults(op.name)
        names = (*op.input_names(params), *op.aux)
    except ValueError as error:
        raise MXNetError(str(error)) from None
    if count != len(names):
        raise MXNetError(f"{op.name} takes {len(names)} arrays ({', '.join(names)}), found {count}")
    return operator_call(op, params)


def run(call: Call, arrays: Sequence[Any], kind: Any = MutableArray) -> list[Any]:
    """Run an operation, or record it if `mx.autograd` records and one of the arrays is a variable or was recorded.

    Args:
        call: the operation.
        arrays: its inputs.
        kind: class of the results, which must be NDArray or a subclass of it while recording.

    Returns:
        List of the results.

    Raises:
        MXNetError: the operation does not accept arrays of these shapes and dtypes.
    """
    if active.policy is not None:
        cast = functools.partial(invoke, kind=kind)
        arrays = active.policy.cast_arrays(call.op, call.params, [_mutable(a) for a in arrays], cast)
    tape = mode.tape
    if tape is not None:
        for array in arrays:
            if isinstance(array, MutableArray) and (array._entry is not None or array._grad_req is not None):
                return tape.record(call, arrays, kind)
    values, in_numpy = [jax.random.key_data(keys.next_key())] if call.is_random else [], False
    for array in arrays:  # a loop: Python 3.11 calls a function for each comprehension, which is slower
        value = array.value if isinstance(array, MutableArray) else as_array(array)
        if isinstance(value, np.ndarray):
            value, in_numpy = on_device(value), mode.on_host
        values.append(value)
    program = call.run[mode.training]
    if in_numpy and (fn := _numpy_function(call.op.name, values)) is not None:
        program = lambda *values: (fn(*values),)  # noqa: E731
    return _results(program, call, values, kind)


def _results(program: Callable[..., Any], call: Call, values: list[Any], kind: Any) -> list[Any]:
    """Run the program of an operation; `values`: its key, if it is random, and its arrays."""
    try:
        outputs = program(*values)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise refused(call, values[call.is_random :], error) from error
    except jax.errors.JaxRuntimeError:  # of Python code of the user that the program called
        with translated():
            raise
    return _wrapped(outputs, kind)


def _wrapped(outputs: Sequence[Any], kind: Any) -> list[Any]:
    results = []
    for output in outputs:  # `kind(output)`, without looking at the type of the output
        results.append(result := _new(kind))
        result.value = output
    return results


def call(
    fn: Callable[..., Any], arrays: Sequence[Any], static: Mapping[str, Hashable] | None = None, kind: Any = MutableArray
) -> Any:
    """Run, or record, a pure function of JAX arrays.

    Args:
        fn: function `fn(*arrays, **static)` of JAX arrays that returns one or a tuple; the same object each time, because
            its programs are kept by it.
        arrays: its arrays.
        static: its other arguments, hashable.
        kind: class of the results.

    Returns:
        One `kind`, or a list of them if the function returns a tuple of several.

    Example:
        >>> call(jax.numpy.roll, [np.arange(3)], {"shift": 1}).asnumpy().tolist()
        [2, 0, 1]
    """
    results = run(function_call(fn, len(arrays), tuple((static or {}).items())), arrays, kind)
    return results[0] if len(results) == 1 else results


def _mutable(array: Any) -> MutableArray:
    return array if isinstance(array, MutableArray) else MutableArray(array)


@functools.cache
def _defaults(name: str) -> Attrs:
    return lookup(name).parse({})


def _write_out(results: list[MutableArray], out: Any) -> Any:
    if out is None:
        return results[0] if len(results) == 1 else results
    targets = list(out) if isinstance(out, (list, tuple)) else [out]
    for target, result in zip(targets, results, strict=True):
        target[:] = result
    return out


def with_number(name: str, array: Any, scalar: Any, kind: Any = MutableArray) -> Any:
    """Return the result of operator `name` (`_plus_scalar`, ...) for an array and a number, in the array's dtype, as a `kind`.

    Example:
        >>> with_number("_rminus_scalar", np.array([1.0, 2.0]), 5).asnumpy().tolist()
        [4.0, 3.0]
    """
    number = scalar.item() if hasattr(scalar, "item") else scalar
    if isinstance(number, numbers.Integral) and not -(2**31) <= int(number) < 2**31:
        number = float(number)  # an int beyond int32 overflows as an argument of a jitted function
    if mode.tape is not None and is_tracked([array]):
        if name == "_power_scalar":  # with a constant exponent, XLA multiplies where it can
            params = lookup(name).parse({"scalar": number})
            return mode.tape.record(operator_call(lookup(name), params), [array], kind)[0]
        # an array, so that the same program is used for every number
        dtype = np.int32 if isinstance(number, numbers.Integral) else np.float32
        return mode.tape.record(_number_call(name), [array, np.asarray(number, dtype)], kind)[0]
    array = on_device(array)
    if isinstance(array, np.ndarray) and (fn := _numpy_function(name, [array])) is not None:
        # the number is rounded to JAX's default dtype first, as an argument of a compiled function is
        with np.errstate(over="ignore"):
            return kind(fn(array, np.asarray(number, jax.dtypes.canonicalize_dtype(float)).astype(array.dtype)))
    return _wrapped(_number_call(name).run[False](array, number), kind)[0]


@functools.cache
def _number_call(name: str) -> Call:
    fn = lookup(name).fn

    def run(array: Any, scalar: Any) -> Any:
        return fn(None, SimpleNamespace(scalar=scalar, is_int=True), array)

    run.__name__ = name
    return function_call(run, 2)


def on_device(value: Any) -> Any:
    """Convert any array-like to a JAX array, in the Python code of a custom operator to an argument of a program.

    64-bit host data becomes 32-bit here.
    """
    value = as_array(value)
    if mode.on_host and isinstance(value, np.ndarray):
        return value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _numpy_function(name: str, values: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the function with which NumPy computes an operator in the Python code of a custom operator; None: JAX does."""
    if not all(isinstance(v, np.ndarray) for v in values) or len({v.dtype for v in values}) != 1:
        return None
    fn = _NUMPY.get(name) if jnp.issubdtype(values[0].dtype, jnp.floating) else None
    return fn and np.errstate(all="ignore")(fn)


def is_array(value: Any) -> bool:
    """Return whether an argument is an array input of an operator (NumPy scalars are attributes)."""
    return isinstance(value, (MutableArray, np.ndarray, jax.Array)) and not isinstance(value, np.generic)


_ARRAY = object()  # takes the place of an array
_new: Any = object.__new__


@functools.cache
def function(name: str, kind: type[MutableArray] = MutableArray) -> Callable[..., Any]:
    """Return the function that runs one operator immediately and returns results of class `kind`.

    Positional arguments that are not arrays are matched to the attributes in order.

    Raises:
        UnknownOperator: there is no such operator; the message lists the nearest names.

    Example:
        >>> function("concat")(np.ones((1, 2)), np.zeros((1, 2)), dim=0).shape
        (2, 2)
    """
    op = lookup(name)
    none_differs = {k for k, a in op.attrs.items() if a.none_differs}
    known: dict[Any, Call] = {}  # by the arguments, without the arrays
    # Calls whose positional arguments are arrays, with one result, not random; key: number of arrays, or (number, *kwargs)
    calls: dict[Any, Any] = {}

    def call(
        first: Any = None, second: Any = None, /, *rest: Any, out: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        if out is None and not rest and active.policy is None and (second is None or isinstance(second, MutableArray)):
            try:  # the fast path for one or two arrays and one result; other calls fall through to the general code below
                training = mode.eager
                if training is not None:
                    result = _new(first._kind)
                    if second is None:
                        outputs = calls[(1, *kwargs.items()) if kwargs else 1].run[training](first.value)
                    else:
                        outputs = calls[(2, *kwargs.items()) if kwargs else 2].run[training](first.value, second.value)
                    result.value = outputs[0]
                    return result
                tape = mode.tape
                if tape is not None and first._entry is not None:
                    inputs = (first,) if second is None else (first, second)
                    simple = calls[(len(inputs), *kwargs.items()) if kwargs else len(inputs)]
                    return tape.record(simple, inputs, first._kind)[0]
            except Exception:
                pass  # not known yet, or `run` below meets the same error, and explains it
        args = (first, second, *rest) if rest or second is not None else () if first is None else (first,)
        arrays: Sequence[Any] = args
        for array in args:
            if not isinstance(array, MutableArray):
                arrays = [a for a in args if isinstance(a, MutableArray)]
                break
        count = len(arrays)
        key: Any = count
        if kwargs or count < len(args):
            key = (*[_ARRAY if isinstance(a, MutableArray) else a for a in args], _ARRAY, *kwargs.items())
        try:
            prepared = known.get(key)
        except TypeError:  # an argument is not hashable
            key = prepared = None
        if prepared is None:
            arrays, prepared = read(args, kwargs)
            if key is not None and len(arrays) == count and len(known) < 256 and op.resolve is None:
                known[key] = prepared
                if count == len(args) and not op.needs_rng and op.num_visible(prepared.params) == 1:
                    calls[(count, *kwargs.items()) if kwargs else count] = prepared
        results = run(prepared, arrays, getattr(arrays[0], "_kind", kind) if arrays else kind)
        return results[0] if out is None and len(results) == 1 else _write_out(results, out)

    def read(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], Call]:
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and op.variadic and all(map(is_array, args[0])):
            args = tuple(args[0])
        arrays = [a for a in args if is_array(a)]
        named = {k: v for k, v in kwargs.items() if is_array(v)}
        attrs = {k: v for k, v in kwargs.items() if not is_array(v) and (v is not None or k in none_differs)}
        if op.resolve:  # mx.nd.Custom: the user's class receives every argument as str(value), also None
            attrs = {k: str(v) for k, v in kwargs.items() if not is_array(v)}
        unset = [k for k in op.attrs if k not in attrs]
        positional = op.attributes_in([a for a in args if not is_array(a)])
        if len(positional) > len(unset):
            raise TypeError(f"{op.name} got {len(positional)} positional attributes, but only has {list(op.attrs)}")
        attrs.update((k, v) for k, v in zip(unset, positional, strict=False) if v is not None)
        with translated():
            record = record_for(op.name, attrs)
            arrays = _order_inputs(record, arrays, named, attrs)
            return arrays, _prepared(record, len(arrays), attrs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = op.doc
    return call


def _order_inputs(op: Op, arrays: list[Any], named: dict[str, Any], attrs: dict[str, Any]) -> list[Any]:
    """Return positional and keyword arrays as one list in the order of the operator's inputs.

    named: arrays passed by input name.
    """
    if not named:
        return arrays
    num_args = {op.variadic: len(arrays) + len(named)} if op.variadic else {}
    names = (*op.input_names(op.parse({**num_args, **attrs})), *op.aux)
    inputs = dict(zip(names, arrays, strict=False))
    for key, value in named.items():
        if key not in names:
            raise MXNetError(f"{op.name} has no input {key!r}; {checks.name_hint(key, names)}")
        inputs[key] = value
    return [inputs[n] for n in names if n in inputs]
