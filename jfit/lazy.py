"""Packages whose public names are imported when they are first used (`__getattr__` of a module, PEP 562).

>>> import types
>>> package = types.ModuleType("package")
>>> attributes(package, {"sqrt": "math:sqrt", "stats": "statistics"})
>>> package.sqrt(4.0), package.stats.mean([1, 3])
(2.0, 2)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package, some of whose functions have the names of its own modules."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import of the module `jfit.load` ends with setattr(jfit, "load", module), which would hide the function jfit.load.
        if not (
            isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}" and name in vars(self)["_functions"]
        ):
            super().__setattr__(name, value)


def attributes(package: ModuleType, homes: Mapping[str, str], missing: Callable[[str], Any] | None = None) -> None:
    """Give a package the attributes in `homes`, each of which is imported when it is first used.

    Args:
        package: the module, `sys.modules[__name__]` in its own code.
        homes: name -> "module", or "module:name" for a name in a module.
        missing: function that is called with the name of any other attribute; it raises AttributeError or returns a value.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            if missing is not None and not name.startswith("__"):
                return missing(name)
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
        source, _, attribute = home.partition(":")
        value = importlib.import_module(source)
        vars(package)[name] = value = getattr(value, attribute) if attribute else value
        return value

    vars(package).update(
        __getattr__=find,
        __dir__=lambda: sorted({*homes, *vars(package).get("__all__", ()), *(n for n in vars(package) if n.startswith("__"))}),
        _functions=frozenset(name for name, home in homes.items() if ":" in home),
    )
    package.__class__ = _Package


def homes_of(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the argument `homes` of `attributes` from module -> names separated by spaces.

    Example:
        >>> homes_of({"math": "sqrt exp"})
        {'sqrt': 'math:sqrt', 'exp': 'math:exp'}
    """
    return {name: f"{module}:{name}" for module, names in modules.items() for name in names.split()}
