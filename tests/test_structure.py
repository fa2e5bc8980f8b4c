"""The shape of the house: which room may import which, what stays private, how long a file may be."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jfit

ROOT = Path(__file__).parent.parent / "jfit"
FILES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 400
PUBLIC = sorted(getattr(jfit, "__all__", ()))

# A value walks down this list; a room imports only from rooms above it.
# fmt: off
ROOMS = [
    "counters", "formats", "ops", "graph", "init", "lowering", "optim", "metrics", "data", "step", "parallel", "train",
    "load", "export", "mxnet",
    "callbacks", "checkpoint", "mx", "sym",  # re-exports only: short paths
]
# fmt: on

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, also those inside functions; relative ones made absolute."""
    package = ("jfit", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    for line, name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "jfit" and len(parts) > 1:
            yield line, parts[1]


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias):
            yield node.lineno, node.name.rsplit(".", 1)[-1]


@every_file
def test_a_room_imports_only_rooms_above_it(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in ROOMS, f"{path.name}: jfit/{room} has no place in ROOMS; add it where it belongs in the data flow"
    allowed = {*ROOMS[: ROOMS.index(room) + 1]}
    wrong = [f"line {line} imports jfit.{other}" for line, other in imported_rooms(path) if other not in allowed]
    assert not wrong, f"{path.relative_to(ROOT)}: {wrong}; it may import {sorted(allowed)}"


@every_file
def test_nothing_imports_the_private_parts_of_jax(path):
    private = [(line, name) for line, name in imported_names(path) if re.match(r"jax\.(_src|core)(\.|$)", name)]
    assert not private, f"{path.relative_to(ROOT)} imports {private}, which change without notice between releases of jax"


@every_file
def test_only_parallel_names_pmap(path):
    if room_of(path) != "parallel":
        assert "pmap" not in {name for _, name in identifiers(path)}, f"{path.name}: leave pmap to jfit/parallel/"


@every_file
def test_no_file_is_longer_than_four_hundred_lines(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines: which second idea does it hide?"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_explains_itself_with_an_example(name):
    value = getattr(jfit, name)
    if not callable(value):
        return
    doc = getattr(value, "__doc__", None)
    assert doc, f"jfit.{name} has no docstring"
    assert ">>>" in doc, f"the docstring of jfit.{name} has no example that runs"


def test_the_rooms_that_exist_can_be_imported_one_by_one():
    for room in ROOMS:
        if (ROOT / room).is_dir() or (ROOT / f"{room}.py").is_file():
            importlib.import_module(f"jfit.{room}")
