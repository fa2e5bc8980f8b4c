"""Pages of the documentation site that are generated: API reference, README, notebooks, benchmarks.

`mkdocs.yml` loads this file twice: as a hook, which adds the generated pages, and as a griffe extension, which fences the
examples of docstrings.  `api_pages` and `public_names` need jfit only, so that tests can run them without mkdocs.
"""

import importlib
import importlib.util
import inspect
import json
import posixpath
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# (page, title, first sentence, public modules). A name of `jfit` itself is on the first page that has the stage (package below
# `jfit`) of its definition among its stages.
STAGES = (
    ("symbol", "Graphs and operators", "Build symbolic graphs. [Operators](../operators.md) lists the operators "
     "(`jfit.sym.Convolution`, ...).", ("jfit.sym", "jfit.ops"), ("graph",)),
    ("model", "Models and initializers", "Lower a graph to the pure functions `init` and `apply`, and set initial values.",
     ("jfit.lowering", "jfit.init", "jfit.losses"), ("lowering",)),
    ("step", "Steps", "One update as a pure function of state and batch: `step(state, batch) -> (state, out)`.",
     ("jfit.step", "jfit.gradients", "jfit.regularizers", "jfit.totals", "jfit.counters",
      "jfit.programs"), ("step", "programs", "disk_cache")),
    ("optim", "Optimizers and schedules", "Optax transformations with the arithmetic of MXNet, and learning-rate schedules. "
     "[Optimizers](../optimizers.md) lists the formulas.", ("jfit.optim",), ()),
    ("metrics", "Metrics", "Metrics as pure functions whose sums stay on the devices. [Metrics](../metrics.md) lists them.",
     ("jfit.metrics",), ()),
    ("distributed", "Several processes", "Join processes on one host or many to a job.",
     ("jfit.distributed",), ("distributed",)),
    ("parallel", "Several devices", "The same step on several devices: split the batch, add the gradients.",
     ("jfit.parallel",), ("parallel",)),
    ("data", "Data", "Batches of arrays, files, iterators and loaders. The guides are [Data](../data.md) and "
     "[Images](../images.md).", ("jfit.data", "jfit.data.images"), ("data",)),
    ("fit", "Training runs", "Train with one call: epochs, evaluation, callbacks, checkpoints.",
     ("jfit.callbacks", "jfit.checkpoint", "jfit.prepare", "jfit.runs"),
     ("fit", "run", "prepare", "evaluate", "checkpoints", "callbacks", "history", "loop", "tools", "interrupts")),
    ("files", "Files and export", "Read and write model files. The guides are [Model files](../files.md) and "
     "[Export](../export.md).", ("jfit.formats", "jfit.export"), ("load",)),
    ("mxnet", "MXNet's classes on JAX arrays", "The classes of MXNet with JAX arrays as inputs and outputs. The guide is "
     "[Coming from MXNet](../from_mxnet.md).", ("jfit.callback",), ("mxnet",)),
)  # fmt: skip

# Files of the repository outside docs/ -> pages of the site. Folders are the targets of links only.
COPIES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "docs": "index.md",
    "benchmarks/results": "benchmarks/index.md",
}


class Entry(NamedTuple):
    """One public name.

    Attributes:
        name: the dotted path by which users import it, such as "jfit.optim.adam".
        value: the object.
        source: the dotted path of its definition, by which griffe finds it; "" if it is no function or class.
        same: the name under which the same object is documented; "" if it is documented under `name`.
    """

    name: str
    value: Any
    source: str
    same: str


class Namespace(NamedTuple):
    """A public module and its names.

    Attributes:
        name: the dotted path by which users import it.
        other: other dotted paths of the same module.
        module: the module.
        entries: its public names.
    """

    name: str
    other: list[str]
    module: ModuleType
    entries: list[Entry]


def names_of(module: ModuleType) -> list[str]:
    """Return `__all__` of a module, or else the functions and classes that it defines."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [n for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", "") == module.__name__]
    return list(names)


def modules_below(name: str, module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    """Yield the modules among the public names of a module, and those among theirs, with their dotted paths."""
    for child in names_of(module):
        value = getattr(module, child)
        if inspect.ismodule(value) and value.__name__.startswith("jfit"):  # not numpy, which a module may have as `np`
            yield f"{name}.{child}", value
            yield from modules_below(f"{name}.{child}", value)


def definition(value: Any) -> str:
    """Return the dotted path at which the text of a module defines a function or class, "" if it does not (made by a table)."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (inspect.isclass(value) or inspect.isfunction(value)) or module not in sys.modules:
        return ""
    target: Any = sys.modules[module]
    for part in str(path).split("."):
        target = getattr(target, part, None)
    name, source = value.__name__, inspect.getsource(sys.modules[module])
    if not re.search(rf"^ *(def|class) {name}\b|^{name} *[:=]", source, re.MULTILINE):
        return ""
    # A wrapper of a function has its docstring and its signature.
    return f"{module}.{path}" if target is value or (target is not None and target.__doc__ == value.__doc__) else ""


# The spellings that scripts use; for other modules the longest one is used.
SHORT = ("jfit.mx.init", "jfit.mx.kv", "jfit.mx.mod", "jfit.mx.mon", "jfit.mx.nd", "jfit.mx.sym", "jfit.mx.viz")


def public_names() -> dict[str, list[Namespace]]:
    """Return the public modules with their names, by page: "symbol", ..., "mxnet", and "mx" for `jfit.mx`.

    Returns:
        Page -> namespaces. The top-level names of jfit are a namespace "jfit" on each page.
    """
    import jfit
    import jfit.mx

    page_of_stage = {stage: page for page, _, _, _, stages in STAGES for stage in stages}
    values = {name: getattr(jfit, name) for name in jfit.__all__ if not inspect.ismodule(getattr(jfit, name))}
    documented: dict[int, str] = {}

    def namespace(name: str, other: list[str], module: ModuleType, children: list[str]) -> Namespace:
        entries = []
        for child in children:
            value = getattr(module, child)
            if inspect.ismodule(value):
                continue  # a namespace by itself
            source = definition(value)
            # Numbers and strings may be one object by chance; two names of a class or function are aliases.
            same = documented.setdefault(id(value), f"{name}.{child}") if source else f"{name}.{child}"
            entries.append(Entry(f"{name}.{child}", value, source, "" if same == f"{name}.{child}" else same))
        return Namespace(name, other, module, entries)

    pages: dict[str, list[Namespace]] = {}
    for page, *_ in STAGES:
        top = [name for name, value in values.items() if page_of_stage.get(value.__module__.split(".")[1]) == page]
        if top:
            pages[page] = [namespace("jfit", [], jfit, sorted(top, key=str.lower))]
    for page, _, _, modules, _ in STAGES:
        for name in modules:
            module = importlib.import_module(name) if importlib.util.find_spec(name) else getattr(jfit, name.split(".")[1])
            # Longer spellings first: `Variable` documents `var`, `Zero` documents `zero`.
            children = sorted(names_of(module), key=lambda child: (child.lower(), child))
            pages.setdefault(page, []).append(namespace(name, [], module, children))
    spellings: dict[int, list[str]] = {}
    found = {"jfit.mx": jfit.mx, **dict(modules_below("jfit.mx", jfit.mx))}
    for name, module in found.items():
        spellings.setdefault(id(module), []).append(name)
    pages["mx"] = []
    for names in spellings.values():
        name, *other = sorted(names, key=lambda name: (name not in SHORT, -len(name)))
        pages["mx"].append(namespace(name, other, found[name], sorted(names_of(found[name]), key=str.lower)))
    return pages


def summary(value: Any) -> str:
    """Return the first sentence of a docstring as plain Markdown, "" without one."""
    text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    return re.sub(r"([<\[*_])", r"\\\1", text) if "`" not in text else text


def describe(value: Any) -> str:
    """Describe a public value that is neither a function nor a class."""
    if isinstance(value, dict):
        return f"A dict with {len(value)} keys: " + ", ".join(f"`{key}`" for key in sorted(value)) + "."
    if isinstance(value, tuple | list):
        return "A tuple: " + ", ".join(f"`{item!r}`" for item in value) + "."
    if typing.get_origin(value) is not None:
        return f"Type alias: `{value}`."
    text = summary(value)
    return text if text != summary(type(value)) else f"A `{type(value).__name__}`. {text}"


def fenced(text: str) -> str:
    """Put a code fence around each doctest of a docstring, so that Markdown does not read `>>>` as quotations.

    >>> print(fenced("Add.\\n\\n>>> 1 + 1\\n2").replace("`", "'"))
    Add.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    """
    lines: list[str] = []
    indent: str | None = None
    for line in [*text.split("\n"), ""]:
        if indent is None and line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])


def _entries(entries: list[Entry], level: int, page: str, where: dict[str, str], documented: dict[int, str]) -> Iterator[str]:
    for name, value, source, same in entries:
        if same:
            continue
        if source:
            yield f'<a id="{name}"></a>\n\n::: {source}\n    options:\n      heading: {name}'
            yield f"      toc_label: {name.split('.')[-1]}\n      heading_level: {level}"
            if name.startswith("jfit.mx.") and inspect.isclass(value):
                bases = [documented[id(base)] for base in value.__mro__[1:] if id(base) in documented]
                links = ", ".join(_link(base, page, where, base) for base in bases)
                yield f"\nInherits from {links}.\n{{: .bases }}\n" if bases else ""
            elif page == "api/mxnet.md":
                yield "      inherited_members: true"  # the methods of BaseModule
            yield ""
        else:
            yield f"{'#' * level} `{name}` {{#{name} .doc-heading data-toc-label={name.split('.')[-1]}}}\n\n{describe(value)}\n"
    if same := [entry for entry in entries if entry.same]:
        yield "**Other names of objects that are documented elsewhere:**\n"
        for entry in same:
            yield f'- <a id="{entry.name}"></a>`{entry.name}` is {_link(entry.same, page, where, entry.same)}'
        yield ""


def _link(name: str, page: str, where: dict[str, str], text: str = "") -> str:
    target = posixpath.relpath(where[name], posixpath.dirname(page))
    return f"[`{text or name.split('.')[-1]}`]({target}#{name})"


def api_pages() -> dict[str, str]:
    """Return the pages of the API reference: path below the site's root -> Markdown.

    Returns:
        One page for each stage, one for each namespace of `jfit.mx` with objects that are documented there, and two indexes.
    """
    public = public_names()
    root, *spaces = public.pop("mx")
    full = [space for space in spaces if any(not entry.same for entry in space.entries)]
    rest = [space for space in spaces if space not in full]
    where = {e.name: f"api/{page}.md" for page, found in public.items() for space in found for e in space.entries}
    where |= {e.name: f"api/mx/{space.name.removeprefix('jfit.mx.')}.md" for space in full for e in space.entries}
    where |= {e.name: "api/mx/index.md" for space in [root, *rest] for e in space.entries}
    everything = [*(space for found in public.values() for space in found), root, *spaces]
    documented = {id(e.value): e.same or e.name for space in everything for e in space.entries}

    def links(space: list[Entry], page: str) -> str:
        return ", ".join(_link(entry.name, page, where) for entry in space if not entry.same)

    def body(space: Namespace, level: int, page: str) -> Iterator[str]:
        other = ", ".join(f"`{name.removeprefix('jfit.')}`" for name in space.other)
        yield f"Also as {other}.\n" if other else ""
        options = "{members: [], show_root_heading: false, show_root_toc_entry: false}"
        if hasattr(space.module, "__file__"):
            yield f"::: {space.module.__name__}\n    options: {options}\n"
        else:  # a module of the table of jfit.mx
            yield f"{inspect.getdoc(space.module)}\n"
        yield from _entries(space.entries, level, page, where, documented)

    pages = {}
    index = ["# API reference\n\n| page | names |\n|---|---|"]
    for stage, title, text, *_ in STAGES:
        page = f"api/{stage}.md"
        index.append(
            f"| [{title}]({stage}.md) | {links([e for space in public[stage] for e in space.entries], 'api/index.md')} |"
        )
        lines = [f"# {title}\n\n{text}\n"]
        for space in public[stage]:
            if space.name == "jfit":
                lines += _entries(space.entries, 2, page, where, documented)
            else:
                lines += [f"## {space.name}\n", *body(space, 3, page)]
        pages[page] = "\n".join(lines)
    index.append("| [jfit.mx](mx/index.md) | the names of MXNet, with mutable arrays: one page for each namespace |\n")
    pages["api/index.md"] = "\n".join(index)
    lines = ["# jfit.mx\n\nThe guide is [Coming from MXNet](../../from_mxnet.md).\n"]
    lines += [fenced(inspect.getdoc(root.module) or ""), "\n| namespace | names |\n|---|---|"]
    for space in full:
        path = space.name.removeprefix("jfit.mx.")
        page = f"api/mx/{path}.md"
        pages[page] = "\n".join([f"# mx.{path}\n", *body(space, 2, page)])
        lines.append(f"| [`mx.{path}`]({path}.md) | {links(space.entries, 'api/mx/index.md')} |")
    lines += ["\n## Names of `jfit.mx` itself\n", *_entries(root.entries, 3, "api/mx/index.md", where, documented)]
    for space in rest:
        lines += [f"## mx.{space.name.removeprefix('jfit.mx.')}\n", *body(space, 3, "api/mx/index.md")]
    pages["api/mx/index.md"] = "\n".join(lines)
    return pages


def notebook_page(text: str) -> str:
    """Return a notebook without outputs as Markdown: its text, and its code in fences."""
    cells: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(cells) + "\n"


def readme_pages(text: str) -> dict[str, str]:
    """Split README into the first page and the tour."""
    start, end = text.index("## The tour"), text.index("## What is included")
    pointer = "## Next\n\nContinue with [models](models.md), or [the tour](tour.md) of jfit.\n\n"
    tour = re.sub(r"^##(#?) ", r"#\1 ", text[start:end], flags=re.MULTILINE)
    tour = tour.replace("of the examples above", "of the examples on the [first page](README.md)")
    first = with_site_links(text[:start], "README.md", "index.md") + pointer
    return {
        "index.md": first + with_site_links(text[end:], "README.md", "index.md"),
        "tour.md": with_site_links(tour, "README.md", "tour.md"),
    }


def site_path(path: str) -> str:
    """Return the page of a file of the repository, "" if the site does not have it.

    >>> site_path("docs/data.md"), site_path("notebooks/01_fit.ipynb"), site_path("tests/decided.md")
    ('data.md', 'notebooks/01_fit.md', '')
    """
    if path in COPIES:
        return COPIES[path]
    if path.startswith("notebooks/"):
        return path.replace(".ipynb", ".md")
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.startswith("benchmarks/results/") else ""


def with_site_links(text: str, source: str, page: str) -> str:
    """Change links between files of the repository into links between pages.

    Args:
        text: Markdown.
        source: path of the file that the text is from, relative to the repository.
        page: path of its page.

    Returns:
        The Markdown. Links to files that the site does not have are replaced by their text.
    """

    def change(match: re.Match[str]) -> str:
        label, target, anchor = match.groups()
        if "://" in target or not target:
            return match.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        new = site_path(path)
        if not new:
            return label if label.startswith("`") else f"{label} (`{path}`)"
        return f"[{label}]({posixpath.relpath(new, posixpath.dirname(page) or '.')}{anchor or ''})"

    return re.sub(r"\[([^\]\n]+)\]\(([^)#\s]*)(#[^)\s]*)?\)", lambda m: change(m) if m.group(2) else m.group(), text)


def copied_pages() -> dict[str, str]:
    """Return the pages made from files outside docs/: path of the page -> Markdown with links between pages."""
    pages = {}
    for source in [*COPIES, *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("benchmarks/results/*.md")))]:
        if source.endswith(".md"):
            text = (ROOT / source).read_text(encoding="utf-8")
            page = site_path(source)
            pages |= readme_pages(text) if source == "README.md" else {page: with_site_links(text, source, page)}
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        page = f"notebooks/{path.stem}.md"
        pages[page] = with_site_links(notebook_page(path.read_text(encoding="utf-8")), f"notebooks/{path.name}", page)
    return pages


# ------------------------------------------------------------------------------------------------ hooks of mkdocs
def on_config(config: Any) -> Any:
    """Add the pages of the API reference to the navigation."""
    stages = [{title: f"api/{page}.md"} for page, title, *_ in STAGES]
    spaces = sorted(page for page in api_pages() if page.startswith("api/mx/") and page != "api/mx/index.md")
    mx: list[Any] = ["api/mx/index.md", *({f"mx.{page[7:-3]}": page} for page in spaces)]
    for item in config.nav:
        if "API reference" in item:
            item["API reference"] = ["api/index.md", *stages, {"jfit.mx": mx}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, text in {**api_pages(), **copied_pages()}.items():
        files.append(File.generated(config, path, content=text))
    for picture in sorted(ROOT.glob("benchmarks/results/*.svg")):
        files.append(File.generated(config, str(picture.relative_to(ROOT)), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Change the links of the pages in docs/ that leave docs/, and adapt wide tables."""
    path = page.file.src_uri
    # GitHub needs a backslash before a bar in code in a table; Python-Markdown shows it.
    markdown = re.sub(
        r"^\|.*", lambda row: re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0]), markdown, flags=re.M
    )
    if path in ("operators.md", "optimizers.md", "metrics.md", "mxnet_names.md", "api/index.md", "api/mx/index.md"):
        page.meta["hide"] = ["toc", "navigation"] if path == "operators.md" else ["toc"]
    return markdown if page.file.generated_by else with_site_links(markdown, f"docs/{path}", path)


def on_post_build(config: Any) -> None:
    """Raise if a public name has no anchor in the built site."""
    from mkdocs.exceptions import PluginError

    pattern = r'<a id="([^"]+)"></a>|\{#(jfit[^ ]+) '
    missing = []
    for path, text in api_pages().items():
        built = (Path(config.site_dir) / path).with_suffix(".html").read_text(encoding="utf-8")
        sources = re.findall(r"^::: (\S+)\n    options:\n", text, flags=re.MULTILINE)  # not the modules
        names = [*("".join(found) for found in re.findall(pattern, text)), *sources]
        missing += [name for name in names if f'id="{name}"' not in built]
    if missing:
        raise PluginError(f"Public names without an entry in the site: {', '.join(missing)}.")


# ------------------------------------------------------------------------------------------------ extension of griffe
try:
    import griffe
except ImportError:
    pass  # the tests run without the extra `docs`
else:

    class FencedExamples(griffe.Extension):
        """Put code fences around the doctests of docstrings."""

        def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
            if obj.docstring:
                obj.docstring.value = fenced(inspect.cleandoc(obj.docstring.value))
