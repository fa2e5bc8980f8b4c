"""The structure of the package: allowed imports between stages, private modules, documented public names."""

import ast
import graphlib
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2] / "jfit"

# A value passes down this list; a stage imports only from stages above it.
# fmt: off
STAGES = [
    "allocator", "lazy", "checks", "disk_cache", "forks", "activity", "interrupts", "counters", "platforms", "programs",
    "formats", "ops", "graph", "init", "lowering", "optim", "metrics", "data", "step", "distributed", "parallel",
    "history", "checkpoints", "callbacks", "feed", "evaluate", "prepare", "loop", "run", "fit", "tools",
    "load", "export", "mxnet",
    "checkpoint", "losses", "mx", "sym",  # re-exports: short paths
    "bench", "runs",  # commands
]
# fmt: on


class Source(NamedTuple):
    """What the rules ask about one file; each file is read and parsed once for all of them."""

    path: str  # below jfit/
    imports: tuple[tuple[int, str], ...]  # (line, dotted name), also those inside functions; relative ones made absolute
    identifiers: frozenset[str]
    typing_only: frozenset[int]  # lines under `if TYPE_CHECKING`

    @property
    def module(self) -> str:
        return ".".join(["jfit", *self.path.removesuffix(".py").removesuffix("__init__").strip("/").split("/")]).rstrip(".")

    @property
    def stage(self) -> str:
        return self.path.removesuffix(".py").split("/")[0]


def read(path: Path) -> Source:
    package = ("jfit", *path.relative_to(ROOT).parent.parts)
    text = path.read_text(encoding="utf-8")
    imports, identifiers, typing_only = [], set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            imports += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            typing_only.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, (ast.Attribute, ast.Name, ast.alias)):
            name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "name", "")
            identifiers.add(name.rsplit(".", 1)[-1])
    return Source(path.relative_to(ROOT).as_posix(), tuple(imports), frozenset(identifiers), frozenset(typing_only))


@cache
def sources() -> list[Source]:
    """All files of jfit; read by the first test that needs them, because every worker imports this file."""
    return [read(path) for path in sorted(ROOT.rglob("*.py"))]


def test_every_package_is_listed_in_the_data_flow():
    assert {source.stage for source in sources()} - {"__init__"} <= set(STAGES)


def test_a_stage_imports_only_stages_above_it():
    wrong = []
    for source in [*sources(), *map(read, ROOT.rglob("*.pyi"))]:  # what a stub imports, its package imports on demand
        if source.stage not in STAGES:
            continue
        above = {*STAGES[: STAGES.index(source.stage) + 1]}
        for line, name in source.imports:
            top, *parts = name.split(".")
            if top == "jfit" and parts and parts[0] not in above:
                wrong.append(f"{source.path}, line {line}: jfit.{parts[0]} stands below {source.stage}")
    assert not wrong, "\n".join(wrong)


def test_there_are_no_import_cycles_not_even_inside_functions():
    modules = {source.module for source in sources()}
    graph: dict[str, set[str]] = {}
    for source in sources():
        names = [name for line, name in source.imports if line not in source.typing_only and name.startswith("jfit")]
        # of `jfit.ops.registry.nearest` the longest part that is a file
        found = {next(part for part in _prefixes(name) if part in modules) for name in names}
        graph[source.module] = found - {source.module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"each of these files imports the one before it: {', '.join(error.args[1])}")


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def test_nothing_imports_the_private_parts_of_jax_but_the_client_of_its_coordination_service():
    private = [
        f"{source.path}, line {line}: {name} changes without notice between releases of jax"
        for source in sources()
        for line, name in source.imports
        # tests/jobs/test_jobs_client.py runs with the newest jax, too
        if re.match(r"jax\.(_src|core)(\.|$)", name) and source.module != "jfit.distributed.client"
    ]
    assert not private, "\n".join(private)


def test_only_parallel_names_pmap():
    assert {source.stage for source in sources() if "pmap" in source.identifiers} == {"parallel"}


def public_names() -> dict[str, object]:
    """Every class and function in the `__all__` of a package of jfit, of mx's namespaces too, once: path -> object."""
    found: dict[int, tuple[str, object]] = {}
    modules = [source.module for source in sources() if source.path.endswith("__init__.py")]
    modules.remove("jfit.export.nodes")  # ONNX converters, which users do not call
    modules += [f"jfit.mx.{path}" for path in importlib.import_module("jfit.mx._modules").TABLE]
    for name in sorted(modules, key=lambda name: (name.count("."), name)):
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", ()):
            value = getattr(module, each)
            if callable(value) and (getattr(value, "__module__", None) or "").startswith("jfit"):
                found.setdefault(id(value), (f"{name}.{each}", value))
    return dict(found.values())


def missing_sections(value: object) -> list[str]:
    """What a docstring lacks: a section for the parameters, each parameter in it, Returns, an example."""
    text = inspect.getdoc(value) or ""
    if isinstance(value, type):  # a class of jfit.mx is described where the class that it extends is
        text = "\n\n".join(inspect.getdoc(c) or "" for c in value.__mro__ if c.__module__.startswith("jfit"))
    if isinstance(value, type) and issubclass(value, Exception):
        return [] if text else ["a docstring"]
    sections = re.search(r"^(Args|Attributes):", text, re.MULTILINE)
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return [] if text else ["a docstring"]
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    missing = ["Example"] * (">>>" not in text) + ["Args"] * bool(names and not sections)
    if isinstance(value, type):
        return missing
    missing += [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}\b.*:", text)]
    returns = signature.return_annotation not in (None, "None", "NoReturn", inspect.Signature.empty)
    returns = returns and not text.startswith("Context manager")
    return missing + ["Returns"] * (returns and not re.search(r"^(Returns|Yields):", text, re.MULTILINE))


def test_every_public_name_documents_parameters_and_result_with_an_example():
    names = public_names()
    missing = {name: sections for name, value in names.items() if (sections := missing_sections(value))}
    assert len(names) > 250 and not missing, "\n".join(f"{name}: {', '.join(parts)}" for name, parts in missing.items())
