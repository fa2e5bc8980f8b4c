"""`mx.registry`: factories of classes by name, for the base classes of scripts.

>>> class Shape: pass
>>> register, create = get_register_func(Shape, "shape"), get_create_func(Shape, "shape")
>>> @register
... class Circle(Shape): pass
>>> type(create("circle")).__name__
'Circle'
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

_classes: defaultdict[type, dict[str, type]] = defaultdict(dict)


def get_registry(base_class: type) -> dict[str, type]:
    """Return the registered subclasses of a class by name.

    Args:
        base_class: the class.

    Returns:
        Dict: name -> class.

    Example:
        >>> get_registry(float)
        {}
    """
    return dict(_classes[base_class])


def get_register_func(base_class: type, nickname: str) -> Callable[..., type]:
    """Return the function that registers a subclass, also as a decorator.

    Args:
        base_class: the class.
        nickname: what it is called in messages.

    Returns:
        Function (class, name=None) -> class; the name is that of the class by default, and its case is ignored.

    Example:
        >>> get_register_func(int, "number")(bool).__name__
        'bool'
    """

    def register(klass: type, name: str | None = None) -> type:
        assert issubclass(klass, base_class), f"Can only register subclass of {base_class.__name__}, found {klass!r}"
        key = (name or klass.__name__).lower()
        if key in _classes[base_class]:
            warnings.warn(f"{nickname} {key!r} was {_classes[base_class][key]!r} and is now {klass!r}.", stacklevel=2)
        _classes[base_class][key] = klass
        return klass

    return register


def get_alias_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """Return the function that makes a decorator of several names: `@alias("one", "other")`.

    Args:
        base_class: the class.
        nickname: what it is called in messages.

    Returns:
        Function of names that returns a decorator of classes.

    Example:
        >>> get_alias_func(int, "number")("yes_no")(bool).__name__
        'bool'
    """
    register = get_register_func(base_class, nickname)

    def alias(*aliases: str) -> Callable[[type], type]:
        return lambda klass: [register(klass, name) for name in aliases][-1]

    return alias


def get_create_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """Return the function that creates an object from the name of its class.

    Args:
        base_class: the class.
        nickname: keyword of the name.

    Returns:
        Function (name, *args, **kwargs) -> object; the name may also be an object, which is returned, a dict of keywords, or
        the JSON text of such a dict or of [name, keywords].

    Example:
        >>> get_create_func(int, "number")(3)
        3
    """

    def create(*args: Any, **kwargs: Any) -> Any:
        name, *rest = args or [kwargs.pop(nickname)]
        if isinstance(name, str) and name[:1] in ("[", "{"):
            found = json.loads(name)
            name, kwargs = found if isinstance(found, list) else (found, kwargs)
        if isinstance(name, dict):
            return create(**name)
        if isinstance(name, base_class):
            assert not rest and not kwargs, f"{name!r} is an object already; pass no further arguments"
            return name
        assert isinstance(name, str), f"{nickname} must be of string type, found {type(name).__name__}"
        known = _classes[base_class]
        assert name.lower() in known, f"{name} is not registered. Please register with {nickname}.register first"
        return known[name.lower()](*rest, **kwargs)

    return create
