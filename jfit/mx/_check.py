"""Which names of MXNet a program uses, and whether `jfit.mx` has them: `python -m jfit.mx check`, and docs/mxnet_names.md."""

from __future__ import annotations

import ast
import fnmatch
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jfit.mx
from jfit.mx import _alias
from jfit.mxnet.namespaces import Namespace

SHORT = {
    "ndarray": "nd", "symbol": "sym", "numpy": "np", "numpy_extension": "npx", "module": "mod", "initializer": "init",
    "kvstore": "kv", "visualization": "viz", "monitor": "mon", "rnd": "random", "img": "image",
}  # fmt: skip
_ABSENT = object()


class Status(NamedTuple):
    """Whether `jfit.mx` has a name of MXNet.

    Attributes:
        name: the name as far as it names something of a module or class, such as "mx.nd.relu".
        kind: "there", "differs" or "missing".
        remark: how it differs, or what to use instead; "" for a name that is there.
    """

    name: str
    kind: str
    remark: str = ""


def status(path: str) -> Status:
    """Return whether `jfit.mx` has a name.

    Args:
        path: its full name, beginning with "mx.", with MXNet's long or short module names.

    Example:
        >>> status("mx.symbol.Convolution").kind, status("mx.nd.relu.__name__").name
        ('there', 'mx.nd.relu')
        >>> status("mx.rtc.CudaModule").kind
        'missing'
    """
    name, value, error = "mx", jfit.mx, ""
    for part in short(path).split(".")[1:]:
        if not isinstance(value, ModuleType | Namespace | type):
            break
        if isinstance(value, type) and not hasattr(value, part) and hasattr(value, "__getattr__"):
            break  # its instances make the attribute when it is used
        name = f"{name}.{part}"
        value, error = _member(value, name, part)
        if value is _ABSENT:
            return missing(name, error)
    if name in remarks()["missing"]:  # it is there, and raises an error
        return missing(name)
    remark = _listed("differs", name)
    return Status(name, "differs" if remark else "there", remark)


def missing(name: str, reason: str = "") -> Status:
    """Return the status of a name that `jfit.mx` lacks; reason: why, unless differences.txt says more."""
    return Status(name, "missing", _listed("missing", name) or reason)


def short(path: str) -> str:
    """Write a name with the short names of modules: "mx.ndarray.relu" is "mx.nd.relu"."""
    return ".".join(SHORT.get(part, part) if i == 1 else part for i, part in enumerate(path.split(".")))


def _member(parent: Any, name: str, part: str) -> tuple[Any, str]:
    try:
        return getattr(parent, part), ""
    except AttributeError as error:
        message = str(error).partition("out of scope: ")[2].rstrip(".")
    try:
        return (_alias.imported(f"mxnet{name[2:]}") if isinstance(parent, ModuleType) else _ABSENT), message
    except ModuleNotFoundError:
        return _ABSENT, message


@functools.cache
def remarks() -> dict[str, dict[str, str]]:
    """Read differences.txt: "differs" and "missing" -> pattern of names -> what differs, or what to use instead."""
    sections: dict[str, dict[str, str]] = {}
    entries: dict[str, str] = {}
    for line in (Path(__file__).parent / "differences.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            entries = sections.setdefault(line[2:], {})
        elif line and not line.startswith("#"):
            patterns, _, text = line.partition(": ")
            entries.update(dict.fromkeys(patterns.split(), text))
    return sections


def _listed(kind: str, name: str) -> str:
    entries = remarks()[kind]
    return entries.get(name) or next((text for p, text in entries.items() if fnmatch.fnmatchcase(name, p)), "")


class Names(ast.NodeVisitor):
    """Collects the names of MXNet in a program as (line, full name), through imports and assignments such as `nd = mx.nd`."""

    def __init__(self) -> None:
        self.used: list[tuple[int, str]] = []
        self._known: dict[str, str] = {}  # name in the program -> full name

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            path = _full(alias.name)
            if path:
                self.used.append((node.lineno, path))
                if alias.asname or alias.name.startswith("mxnet"):
                    self._known[alias.asname or "mxnet"] = path if alias.asname else "mx"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        path = _full(node.module or "") if not node.level else None
        for alias in node.names if path or node.module == "jfit" else ():
            full = _full(f"{node.module}.{alias.name}")
            if alias.name == "*" and path:
                self._known.update((name, f"{path}.{name}") for name in dir(_alias.imported(f"mxnet{path[2:]}")))
            elif full:
                self.used.append((node.lineno, full))
                self._known[alias.asname or alias.name] = full

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path:
            self.used.append((node.lineno, path))
        else:
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            return  # `except ImportError: mx = None`
        self.visit(node.value)
        path = self._path(node.value)
        for target in node.targets:
            self.visit(target)
            if path and isinstance(target, ast.Name):
                self._known[target.id] = path

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._known.pop(node.id, None)  # from here on something else

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        outside = dict(self._known)
        for part in getattr(node, "decorator_list", []):
            self.visit(part)
        self.visit(node.args)
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            self._known.pop(argument.arg, None)
            if argument.arg == "F" and self.used:  # gluon's blocks get mx.nd or mx.sym under this name
                self._known["F"] = "mx.nd"
        for part in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(part)
        self._known = outside

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def _path(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        parent = self._path(node.value) if isinstance(node, ast.Attribute) else None
        return f"{parent}.{node.attr}" if parent and isinstance(node, ast.Attribute) else None


def _full(module: str) -> str | None:
    """The full name, beginning with "mx", of a module of MXNet or of `jfit.mx`; None for other modules."""
    for root in ("mxnet", "jfit.mx"):
        if module == root or module.startswith(root + "."):
            return "mx" + module[len(root) :]
    return None


def check(paths: Iterable[str]) -> int:
    """Print which names of MXNet some Python programs use that `jfit.mx` lacks or does differently, with line and remedy.

    Args:
        paths: files, or folders, in which every `*.py` file is checked.

    Returns:
        Exit status: 1 if a name is missing or a file could not be read, else 0.
    """
    failed = False
    for file in _files(paths):
        names = Names()
        try:
            names.visit(ast.parse(file.read_bytes(), str(file)))
        except (OSError, SyntaxError, ValueError) as error:
            print(f"{file}: cannot be read: {error}")
            failed = True
            continue
        first: dict[Status, int] = {}
        for line, path in sorted(names.used):
            first.setdefault(status(path), line)
        counts = {kind: sum(found.kind == kind for found in first) for kind in ("there", "differs", "missing")}
        for found, line in first.items():
            if found.kind != "there":
                verb = "is missing" if found.kind == "missing" else "differs"
                print(": ".join(filter(None, (f"{file}:{line}", f"{found.name} {verb}", found.remark))))
        if first:
            print(f"{file}: {len(first)} names of MXNet, " + ", ".join(f"{n} {kind}" for kind, n in counts.items() if n))
        failed |= bool(counts["missing"])
    return int(failed)


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
