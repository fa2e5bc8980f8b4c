"""`import mxnet` means `jfit.mx`: what `python -m jfit.mx run` installs before it runs a script."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Alias(MetaPathFinder, Loader):
    """Imports `mxnet` and every module below it as the module of `jfit.mx` with the same name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == "mxnet" else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = imported(module.__name__)  # the import system returns what it finds there


def imported(name: str) -> Any:
    """Return the module of `jfit.mx` that has the name of a module of MXNet, such as "mxnet.gluon.nn".

    Raises:
        ModuleNotFoundError: there is none.
    """
    ours = "jfit.mx" + name.removeprefix("mxnet")
    try:
        return importlib.import_module(ours)
    except ModuleNotFoundError as error:
        if error.name and not ours.startswith(error.name):
            raise  # a package that the module needs
    parent, _, last = name.rpartition(".")
    module = getattr(imported(parent), last, None) if parent else None
    if module is None or isinstance(module, type) or callable(module):
        raise ModuleNotFoundError(f"jfit.mx has no module {name!r}; `python -m jfit.mx check` lists what to use", name=name)
    return module


def install() -> None:
    """Make `import mxnet`, and the import of modules below it, import `jfit.mx`, also where MXNet is installed."""
    uninstall()
    sys.meta_path.insert(0, Alias())


def uninstall() -> None:
    """Undo `install`."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Alias)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "mxnet"]:
        del sys.modules[name]
