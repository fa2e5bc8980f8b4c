"""Packages whose public names and modules are imported when they are first used (`__getattr__` of a module, PEP 562).

>>> import types
>>> package = types.ModuleType("package")
>>> attributes(package, {"sqrt": "math:sqrt", "stats": "statistics"})
>>> package.sqrt(4.0), package.stats.mean([1, 3])
(2.0, 2)
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's garbage collection, which takes a fifth of the time of an import or a trace and finds nothing.

    Example:
        >>> with uncollected():
        ...     gc.isenabled()
        False
        >>> gc.isenabled()
        True
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def attributes(package: ModuleType, homes: Mapping[str, str], missing: Callable[[str], Any] | None = None) -> None:
    """Give a package the attributes in `homes`, each of which is imported when it is first used.

    Args:
        package: the module, `sys.modules[__name__]` in its own code.
        homes: name -> "module", or "module:name" for a name in a module.
        missing: function that is called with the name of an attribute that is neither in `homes` nor a module of the package;
            it raises AttributeError or returns a value.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            module = module_of(package, name)
            if module is None and missing is not None and not name.startswith("__"):
                return missing(name)
            if module is None:
                raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
            return module
        source, _, attribute = home.partition(":")
        with uncollected():
            value = importlib.import_module(source)
        vars(package)[name] = value = getattr(value, attribute) if attribute else value
        return value

    vars(package).update(
        __getattr__=find,
        __dir__=lambda: sorted({*vars(package), *homes, *_module_names(package)}),
        _functions=frozenset(name for name, home in homes.items() if ":" in home),
    )
    package.__class__ = _Package


def stub(package: str, missing: Callable[[str, Sequence[str]], Any] | None = None, **homes: str) -> None:
    """Give a package the names that its stub `__init__.pyi` imports, each of which is imported when it is first used.

    The stub is the one list of the public names (as SPEC 1 of Scientific Python proposes); `__all__` is made of it.

    Args:
        package: name of the package, `__name__` in its own code.
        missing: function that is called with the name of any other attribute and the public names; it raises AttributeError.
        homes: name -> "module", or "module:name", of names that type checkers read elsewhere.
    """
    module, found = sys.modules[package], dict[str, str]()
    for node in ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"").body:
        if isinstance(node, ast.ImportFrom):
            start = f"{node.module}:" if node.module else f"{package}."  # `from . import x`: a module of the package
            found.update({alias.asname or alias.name: start + alias.name for alias in node.names})
    names = sorted(found | homes)
    attributes(module, found | homes, missing and (lambda name: missing(name, names)))
    vars(module)["__all__"] = names


def modules(package: str) -> None:
    """Let the modules of a package be its attributes without an import statement: `jfit.loop.loop` after `import jfit`.

    Args:
        package: name of the package, `__name__` in its own code.
    """
    attributes(sys.modules[package], {})


def module_of(package: ModuleType, name: str) -> ModuleType | None:
    """Import a module of a package; None if there is no module of this name."""
    path = f"{package.__name__}.{name}"
    if name.startswith("_") or not name.isidentifier() or importlib.util.find_spec(path) is None:
        return None
    return importlib.import_module(path)


def optional(name: str, problem: str) -> Any:
    """Import and return a module of an optional package.

    Raises:
        ImportError: it is not installed; `problem` is the message, which has the command that installs it.

    Example:
        >>> optional("math", "needs math").sqrt(4.0)
        2.0
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(problem) from error


def _module_names(package: ModuleType) -> list[str]:
    """Names of the modules in the folder of a package."""
    names = [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", ()))]
    return [name for name in names if not name.startswith("_")]
