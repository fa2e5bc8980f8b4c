"""Parameters by name, in the order they were made: created on demand, initialized, saved and loaded together."""

from __future__ import annotations

import os
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.formats.sparse import bounded_dense
from jfit.mxnet.gluon.parameter import Parameter, device_of
from jfit.mxnet.mutable import MutableArray, as_array


class Constant(Parameter):
    """A parameter that no trainer changes.

    Args:
        name: unique name.
        value: array or nested list; lists and numpy arrays become float32, as in MXNet.

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

    def _draw(self, init: Any) -> Any:
        return as_array(self.value)


class ParameterDict:
    """Parameters by name; `get` makes those that are not there.

    Args:
        prefix: put in front of the names that `get` is asked for.
        shared: where `get` looks before it makes a parameter.

    Example:
        >>> params = ParameterDict("net_")
        >>> weight = params.get("weight", shape=(2, 3))
        >>> params.initialize(init="one")
        >>> list(params), weight.data().tolist()[0]
        (['net_weight'], [1.0, 1.0, 1.0])

    Source: Apache MXNet 1.9.1, `mxnet.gluon.ParameterDict`.
    """

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

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def keys(self) -> KeysView[str]:
        """Names."""
        return self._params.keys()

    def values(self) -> ValuesView[Any]:
        """Parameters."""
        return self._params.values()

    def items(self) -> ItemsView[str, Any]:
        """(name, parameter) pairs."""
        return self._params.items()

    @property
    def prefix(self) -> str:
        """What `get` puts in front of a name."""
        return self._prefix

    def get(self, name: str, **kwargs: Any) -> Any:
        """The parameter of that name (with the prefix): this dict's, the shared one's, or a new one.

        Args:
            name: name without the prefix.
            **kwargs: of `Parameter`; for one that exists they must agree, and fill in unknown sizes.

        Raises:
            AssertionError: an argument contradicts the parameter that exists.
        """
        name = self._prefix + name
        param = self._find(name)
        if param is None:
            param = self._params[name] = self._parameter(name, **kwargs)
            return param
        for what, value in kwargs.items():
            found = getattr(param, what, None)
            if found is None:
                setattr(param, what, value)
            elif what == "shape" and (merged := _merged(value, found)) is not None:
                param._shape = merged
            elif value is not None and not _same(what, value, found):
                raise AssertionError(f"parameter {name!r} exists with {what} {found!r}; get() asked for {value!r}.")
        return param

    def get_constant(self, name: str, value: Any = None) -> Any:
        """The constant of that name (with the prefix), a new one where there is none.

        Raises:
            KeyError: there is none, and no value was given.
            AssertionError: there is a parameter of that name, or a constant with another value.
        """
        name = self._prefix + name
        param = self._find(name)
        if param is None:
            if value is None:
                raise KeyError(f"there is no constant {name!r}; give its value to make one.")
            param = self._params[name] = self._constant(name, value)
        elif value is not None:
            same = isinstance(param, Constant) and np.array_equal(
                counters.read(as_array(param.value)), np.asarray(as_array(value))
            )
            if not same:  # sync: two constants are compared by value
                raise AssertionError(f"{name!r} exists already, and is no constant of that value; choose another name.")
        return param

    def update(self, other: Mapping[str, Any] | ParameterDict) -> None:
        """Take over the parameters of another dict.

        Raises:
            AssertionError: two different parameters have one name.
        """
        for name, param in other.items():
            if self._params.get(name, param) is not param:
                raise AssertionError(f"both dicts have a parameter {name!r}, and they are different ones; rename one of them.")
        self._params.update(other.items())

    def initialize(self, init: Any = "uniform", ctx: Any = None, verbose: bool = False, force_reinit: bool = False) -> None:
        """Initialize every parameter on the contexts; `init` serves those without an initializer of their own.

        Args:
            init: initializer, `Uniform(0.07)` by default.
            ctx: context, device or list of them.
            verbose: accepted.
            force_reinit: also those that have values.
        """
        del verbose
        for param in self.values():
            param.initialize(None, ctx, init, force_reinit)

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        for param in self.values():
            param.zero_grad()

    def reset_ctx(self, ctx: Any) -> None:
        """Move every parameter to other contexts."""
        for param in self.values():
            param.reset_ctx(ctx)

    def list_ctx(self) -> list[Any]:
        """All contexts that parameters are on."""
        return list(dict.fromkeys(ctx for param in self.values() for ctx in param.list_ctx()))

    def setattr(self, name: str, value: Any) -> None:
        """Set an attribute of every parameter: `setattr("grad_req", "null")`, `setattr("lr_mult", 0.5)`."""
        for param in self.values():
            setattr(param, name, value)

    def save(self, filename: str | os.PathLike[str], strip_prefix: str = "") -> None:
        """Write the values (mean over contexts) as an MXNet .params file.

        Args:
            filename: the file.
            strip_prefix: cut from the front of every name.

        Raises:
            ValueError: a name does not start with it.
        """
        for name in self.keys():
            if not name.startswith(strip_prefix):
                raise ValueError(f"parameter {name!r} does not start with {strip_prefix!r}, which strip_prefix should cut off.")
        means = {p.name[len(strip_prefix) :]: p._reduce() for p in self.values()}
        save_arrays(filename, counters.read(means))  # sync: the file needs the numbers

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
        """Read values from an MXNet .params file; names may carry `arg:` and `aux:`.

        Args:
            filename: the file.
            ctx: contexts for parameters that are not initialized; None is the current one.
            allow_missing: parameters that the file does not have keep their values.
            ignore_extra: what the file has and this dict has not is passed over.
            restore_prefix: put in front of the names of the file.
            cast_dtype: a dtype that differs is cast: the file's with dtype_source `current`, the parameter's with `saved`.
            dtype_source: `current` or `saved`.

        Raises:
            AssertionError: names, shapes, dtypes or contexts that do not fit.
        """
        found = load_arrays(filename)
        if not isinstance(found, dict):
            raise AssertionError(f"{os.fspath(filename)} is a list of {len(found)} arrays without names; names are needed.")
        self.load_dict(found, ctx, allow_missing, ignore_extra, restore_prefix, filename, cast_dtype, dtype_source)

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
        """Values from a dict of arrays; arguments and errors as for `load`."""
        where = "the dict" if filename is None else os.fspath(filename)
        plain = {k[4:] if k.startswith(("arg:", "aux:")) else k: v for k, v in param_dict.items()}
        given = {restore_prefix + k: v for k, v in plain.items()}
        missing = [name for name in self.keys() if name not in given]
        if missing and not allow_missing:
            raise AssertionError(
                f"parameter {missing[0]!r} is missing in {where}, which has {_brief(given)}; pass allow_missing=True to keep "
                "its present value, or restore_prefix where names differ by a prefix."
            )
        extra = [name for name in given if name not in self._params]
        if extra and not ignore_extra:
            raise AssertionError(
                f"{where} has {extra[0]!r}, which is no parameter here; there are {_brief(self._params)}. Pass "
                "ignore_extra=True to pass over it."
            )
        for name, value in given.items():
            if name in self._params:
                _load(self._params[name], value, where, ctx, cast_dtype, dtype_source)

    def _find(self, name: str) -> Any:
        if name not in self._params and self._shared is not None and name in self._shared._params:
            self._params[name] = self._shared._params[name]
        return self._params.get(name)


def _load(param: Parameter, value: Any, where: str, ctx: Any, cast_dtype: bool, dtype_source: str) -> None:
    value = as_array(bounded_dense(value, where, f"array {param.name!r}", param.shape))
    merged = tuple(value.shape) if param.shape is None else _merged(param.shape, value.shape)
    if merged != tuple(value.shape):
        raise AssertionError(f"parameter {param.name!r} has shape {param.shape}, the saved array has {tuple(value.shape)}.")
    if np.dtype(param.dtype) != value.dtype:
        if not cast_dtype:
            raise AssertionError(
                f"parameter {param.name!r} has dtype {np.dtype(param.dtype)}, the saved array {value.dtype}; pass "
                "cast_dtype=True to cast it."
            )
        if dtype_source == "saved":
            param.dtype = value.dtype
        else:
            value = value.astype(np.dtype(param.dtype))
    fresh = param._data is None and param._deferred is None
    param.shape = value.shape
    wanted = None if ctx is None else {device_of(c) for c in param._listed(ctx)}
    if not fresh and wanted is not None and wanted != {device_of(c) for c in param.list_ctx()}:
        raise AssertionError(f"parameter {param.name!r} is on {param.list_ctx()} already, so it cannot be loaded on {ctx}.")
    if fresh:
        param._contexts, param._deferred = param._listed(ctx), (None, value)
        param._finish_deferred_init()
    else:
        param.set_data(value)


def _merged(new: Any, old: Any) -> tuple[int, ...] | None:
    """Two shapes with the unknown sizes of each filled in from the other; None where they contradict."""
    if len(new) != len(old) or any(a != b and a > 0 and b > 0 for a, b in zip(new, old, strict=True)):
        return None
    return tuple(int(max(a, b)) for a, b in zip(new, old, strict=True))


def _same(what: str, value: Any, found: Any) -> bool:
    return np.dtype(value) == np.dtype(found) if what == "dtype" else bool(value == found)


def _brief(names: Mapping[str, Any]) -> str:
    first = ", ".join(map(repr, list(names)[:5]))
    return first + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"
