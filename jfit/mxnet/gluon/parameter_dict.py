"""ParameterDict: gluon Parameters by name in the order of creation, initialized, saved and loaded together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.formats.sparse import bounded_dense
from jfit.mxnet.errors import translated
from jfit.mxnet.gluon.parameter import Parameter, device_of, merged_shape
from jfit.mxnet.mutable import MutableArray, as_array


class Constant(Parameter):
    """A parameter with a constant value, which has no gradient and is not trained.

    Args:
        name: unique name.
        value: array or nested list; lists and NumPy arrays become float32, as in MXNet.

    Example:
        >>> scale = Constant("scale", [1.0, 2.0])
        >>> scale.initialize()
        >>> scale.data().tolist(), scale.grad_req
        ([1.0, 2.0], 'null')
    """

    def __init__(self, name: str, value: Any) -> None:
        value = as_array(value) if isinstance(value, (MutableArray, jax.Array)) else np.asarray(as_array(value), np.float32)
        self.value = self.arrays.mutable(value)
        super().__init__(name, "null", value.shape, np.dtype(value.dtype).type, differentiable=False)

    def _initial_value(self, init: Any) -> Any:
        return as_array(self.value)


class ParameterDict(Mapping[str, Any]):
    """Ordered dict of Parameters by name; `get` creates missing ones.

    Args:
        prefix: prefix that `get` adds to names.
        shared: another ParameterDict in which `get` looks up names before it creates a parameter.

    Example:
        >>> params = ParameterDict("net_")
        >>> weight = params.get("weight", shape=(2, 3))
        >>> params.initialize(init="one")
        >>> list(params), weight.data().tolist()[0]
        (['net_weight'], [1.0, 1.0, 1.0])

    Source: Apache MXNet 1.9.1, `mxnet.gluon.ParameterDict`.
    """

    __eq__ = object.__eq__  # a ParameterDict is equal to itself only, unlike other Mappings
    __hash__ = object.__hash__  # type: ignore[assignment]

    _parameter: Callable[..., Any] = Parameter
    _constant: Callable[..., Any] = Constant

    def __init__(self, prefix: str = "", shared: ParameterDict | None = None) -> None:
        self._prefix, self._shared = prefix, shared
        self._params: dict[str, Any] = {}

    def __repr__(self) -> str:
        lines = "\n".join(f"  {p!r}" for p in self.values())
        return f"{self._prefix + ' ' if self._prefix else ''}(\n{lines}\n)"

    def __getitem__(self, name: str) -> Any:
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    @property
    def prefix(self) -> str:
        """Prefix that `get` adds to names."""
        return self._prefix

    def get(self, name: str, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return the parameter `prefix + name` of this dict or the shared dict, or create it.

        Args:
            name: name without the prefix.
            **kwargs: arguments of `Parameter`; for an existing parameter they must be equal to its attributes, except that
                unknown sizes of its shape are filled in.

        Returns:
            The parameter.

        Raises:
            AssertionError: an argument contradicts the existing parameter.
        """
        name = self._prefix + name
        param = self._find(name)
        if param is None:
            self._params[name] = param = self._parameter(name, **kwargs)
            return param
        for what, value in kwargs.items():
            current = getattr(param, what, None)
            if current is None:
                setattr(param, what, value)
            elif what == "shape" and (merged := merged_shape(value, current)) is not None:
                param._shape = merged
            else:
                same = value is None or (np.dtype(value) == np.dtype(current) if what == "dtype" else value == current)
                assert same, f"parameter {name!r} exists with {what} {current!r}, but get() was called with {value!r}."
        return param

    def get_constant(self, name: str, value: Any = None) -> Any:
        """Return the constant `prefix + name` of this dict or the shared dict, or create it.

        Args:
            name: name without the prefix.
            value: array or nested list; required if the constant does not exist.

        Returns:
            The `Constant`.

        Raises:
            KeyError: the constant does not exist, and `value` is None.
            AssertionError: the name is that of a parameter, or of a constant with another value.
        """
        name = self._prefix + name
        param = self._find(name)
        if param is None and value is None:
            raise KeyError(f"there is no constant {name!r}; pass its value to create it.")
        if param is None:
            param = self._params[name] = self._constant(name, value)
        elif value is not None and not (  # sync: two constants are compared by value
            isinstance(param, Constant) and np.array_equal(counters.read(as_array(param.value)), np.asarray(as_array(value)))
        ):
            raise AssertionError(f"{name!r} already exists, but not as a constant with this value; choose another name.")
        return param

    def update(self, other: Mapping[str, Any] | ParameterDict) -> None:
        """Add the parameters of another dict, without copying them.

        Args:
            other: ParameterDict or dict of Parameters by name.

        Raises:
            AssertionError: both dicts have different parameters of the same name.
        """
        for name, param in other.items():
            assert self._params.get(name, param) is param, f"both dicts have a parameter {name!r}; rename one of the two."
        self._params.update(other.items())

    def initialize(self, init: Any = "uniform", ctx: Any = None, verbose: bool = False, force_reinit: bool = False) -> None:
        """Initialize every parameter.

        Args:
            init: initializer of parameters whose `init` is None; "uniform" is `Uniform(0.07)`.
            ctx: context, device or list of them; None is the current context.
            verbose: accepted and ignored.
            force_reinit: also initialize parameters that already have values.
        """
        for param in self.values():
            param.initialize(None, ctx, init, force_reinit)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to 0 in place."""
        for param in self.values():
            param.zero_grad()

    def reset_ctx(self, ctx: Any) -> None:
        """Move every parameter to other contexts (a context, device or list of them), as `Parameter.reset_ctx` does."""
        for param in self.values():
            param.reset_ctx(ctx)

    def list_ctx(self) -> list[Any]:
        """Return the contexts of all parameters, without duplicates."""
        return list(dict.fromkeys(ctx for param in self.values() for ctx in param.list_ctx()))

    def setattr(self, name: str, value: Any) -> None:
        """Set an attribute of every parameter: `setattr("grad_req", "null")`, `setattr("lr_mult", 0.5)`."""
        for param in self.values():
            setattr(param, name, value)

    def save(self, filename: str | os.PathLike[str], strip_prefix: str = "") -> None:
        """Write the values (mean over contexts) to an MXNet .params file.

        Args:
            filename: path of the file.
            strip_prefix: prefix removed from every name.

        Raises:
            ValueError: a name does not start with `strip_prefix`.
        """
        for name in self.keys():
            if not name.startswith(strip_prefix):
                raise ValueError(f"parameter {name!r} does not start with {strip_prefix!r}, the strip_prefix to remove.")
        save_values(filename, {p.name.removeprefix(strip_prefix): p for p in self.values()})

    @translated()
    def load(
        self,
        filename: str | os.PathLike[str],
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Load values from an MXNet .params file, whose names may have the prefixes `arg:` and `aux:`.

        Args:
            filename: path of the file.
            ctx: contexts for parameters that are not initialized; None is the current context.
            allow_missing: whether parameters may be missing in the file; they keep their values.
            ignore_extra: whether the file may have other arrays; they are ignored.
            restore_prefix: prefix added to the names in the file.
            cast_dtype: whether to cast if the dtypes of parameter and file differ.
            dtype_source: dtype to cast to: "current" is the parameter's, "saved" the file's.

        Raises:
            AssertionError: names, shapes, dtypes or contexts do not match.
            MXNetError: the file is missing (also a FileNotFoundError) or damaged (also a FormatError).
        """
        arrays = load_arrays(filename) or {}  # MXNet writes a dict without arrays as an empty list
        assert isinstance(arrays, dict), f"{os.fspath(filename)} has {len(arrays)} arrays without names; names are required."
        self.load_dict(arrays, ctx, allow_missing, ignore_extra, restore_prefix, filename, cast_dtype, dtype_source)

    def load_dict(
        self,
        param_dict: Mapping[str, Any],
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        filename: Any = None,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Load values from a dict of arrays by name.

        Args:
            param_dict: arrays by name.
            filename: name of the dict in error messages.
            ctx, allow_missing, ignore_extra, restore_prefix, cast_dtype, dtype_source: as in `load`.

        Raises:
            AssertionError: as in `load`.
        """
        where = "the dict" if filename is None else os.fspath(filename)
        plain = {k[4:] if k.startswith(("arg:", "aux:")) else k: v for k, v in param_dict.items()}
        arrays = {restore_prefix + k: v for k, v in plain.items()}
        for name in () if allow_missing else self.keys():
            found = f"which has {brief(arrays)}; pass allow_missing=True to keep its values, or restore_prefix="
            assert name in arrays, f"parameter {name!r} is missing in {where}, {found}."
        for name in () if ignore_extra else arrays:
            found = f"is not a parameter of this dict, which has {brief(self._params)}"
            assert name in self._params, f"{where} has {name!r}, which {found}. Pass ignore_extra=True to ignore it."
        for name, value in arrays.items():
            if name in self._params:
                load_value(self._params[name], value, where, ctx, cast_dtype, dtype_source)

    def _find(self, name: str) -> Any:
        if name not in self._params and self._shared is not None and name in self._shared._params:
            self._params[name] = self._shared._params[name]
        return self._params.get(name)


def save_values(filename: str | os.PathLike[str], params: Mapping[str, Any]) -> None:
    """Write the values of parameters (mean over contexts) by name, in this order, as MXNet does."""
    values = counters.read([p._reduce() for p in params.values()])  # sync: the file needs the numbers
    save_arrays(filename, dict(zip(params, values, strict=True)))


def load_value(param: Parameter, value: Any, where: str, ctx: Any, cast_dtype: bool, dtype_source: str) -> None:
    value = as_array(bounded_dense(value, where, f"array {param.name!r}", param.shape))
    shape = tuple(value.shape)
    fits = param.shape is None or merged_shape(param.shape, shape) == shape
    assert fits, f"parameter {param.name!r} has shape {param.shape}, the saved array has {shape}."
    if np.dtype(param.dtype) != value.dtype:
        dtypes = f"{np.dtype(param.dtype)}, the saved array {value.dtype}"
        assert cast_dtype, f"parameter {param.name!r} has dtype {dtypes}; pass cast_dtype=True to cast it."
        if dtype_source == "saved":
            param.dtype = value.dtype
        else:
            value = value.astype(np.dtype(param.dtype))
    if param._data is None and param._deferred is None:
        param.shape = shape
        param._contexts, param._deferred = param._context_list(ctx), (None, value)
        param._finish_deferred_init()
        return
    present, target = ({device_of(c) for c in contexts} for contexts in (param.list_ctx(), param._context_list(ctx)))
    assert ctx is None or target == present, f"parameter {param.name!r} is on {param.list_ctx()}; it cannot be loaded on {ctx}."
    param.set_data(value)


def brief(names: Mapping[str, Any]) -> str:
    first = ", ".join(map(repr, list(names)[:5]))
    return first + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"
