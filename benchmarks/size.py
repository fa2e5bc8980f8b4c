"""Print the lines of code per folder, the lines of the core, and long files: `python -m benchmarks.size`.

A code line has at least one token that is neither a comment nor part of a docstring; blank lines are not code lines.

>>> code_lines('\"\"\"Doc.\"\"\"\\n\\nx = 1  # one\\n# note\\ny = [\\n    2,\\n]\\n')
4
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("jfit", "tests", "benchmarks", "examples", "notebooks")
# The core: the code that turns a graph into a function, and trains it.
CORE = ("jfit/graph/", "jfit/lowering/", "jfit/step/", "jfit/parallel/", "jfit/loop/loop.py", "jfit/run.py")
# Drawing graphs, counting their costs, and reading old file formats are not core.
NOT_CORE = ("jfit/graph/costs.py", "jfit/graph/drawing.py", "jfit/graph/serial.py", "jfit/graph/upgrade.py")
GENERATED = ("jfit/sym/__init__.pyi",)  # written by a program from the table of operators
LONG_FILE = 400  # longer files are listed; not a limit
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _docstring_lines(tree: ast.AST) -> set[int]:
    numbers: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            # Any bare string is documentation, because attribute docstrings can be anywhere in a body.
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                numbers.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return numbers


def code_lines(source: str) -> int:
    """Number of code lines in the source text of a file."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(ast.parse(source)))


def measure(root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """Path relative to the root -> (code lines, total lines), for every Python file and every stub written by hand."""
    sizes: dict[str, tuple[int, int]] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py*")):
            if path.suffix not in (".py", ".pyi") or path.relative_to(root).as_posix() in GENERATED:
                continue
            source = path.read_text(encoding="utf-8")
            sizes[path.relative_to(root).as_posix()] = (code_lines(source), len(source.splitlines()))
    return sizes


def _group(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def _is_core(path: str) -> bool:
    return path.startswith(CORE) and not path.startswith(NOT_CORE)


def report(sizes: dict[str, tuple[int, int]]) -> str:
    """The result of `measure` as text: folders, totals, the core, long files."""
    folders: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, (code, _) in sizes.items():
        folders[_group(path)] += code
        files[_group(path)] += 1
    lines = [f"{'folder':<24}{'files':>6}{'code lines':>12}"]
    lines += [f"{name:<24}{files[name]:>6}{folders[name]:>12,}" for name in sorted(folders)]
    package = sum(code for path, (code, _) in sizes.items() if path.startswith("jfit/"))
    core = sum(code for path, (code, _) in sizes.items() if _is_core(path))
    lines += [
        f"{'total':<24}{len(sizes):>6}{sum(folders.values()):>12,}",
        f"package jfit: {package:,} code lines",
        f"core ({', '.join(part.removeprefix('jfit/').rstrip('/') for part in CORE)}): {core:,} code lines",
    ]
    long = {path: total for path, (_, total) in sizes.items() if total > LONG_FILE}
    lines += [f"over {LONG_FILE} lines: {path} ({total})" for path, total in sorted(long.items())]
    return "\n".join(lines if long else [*lines, f"no file over {LONG_FILE} lines"])


if __name__ == "__main__":
    print(report(measure()))
