"""Run the code blocks of a Markdown page in order, with the installed jfit: `python -I tests/docs/run_readme.py README.md`.

Imports only the standard library and jfit, so it also checks that a wheel with its core dependencies is sufficient.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

FRAMEWORKS = ("flax", "equinox")  # no dependencies of jfit; the test of README in tests/docs runs their blocks


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Return (first line, code) of every fenced python block."""
    text = page.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in blocks]


def run(page: Path, without: tuple[str, ...] = ()) -> int:
    """Run the blocks of a page in one namespace, without those that import a package of `without`; return their number."""
    namespace, ran = {"__name__": "__page__"}, 0
    for line, code in python_blocks(page):
        if not any(re.search(rf"^(import|from) {name}\b", code, re.MULTILINE) for name in without):
            # The blank lines give tracebacks the line numbers of the page.
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
            ran += 1
    return ran


def main(page: Path) -> None:
    """Run a page in a temporary folder, with an installed jfit; exit if the jfit next to the page would be imported instead."""
    spec = importlib.util.find_spec("jfit")
    if spec is None or spec.origin is None:
        sys.exit("jfit is not installed for this Python: install the wheel first.")
    if Path(spec.origin).is_relative_to(page.parent):
        sys.exit(f"jfit would be imported from {spec.origin}, not from a wheel: run python -I where a wheel is installed.")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        ran = run(page, without=tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name) is None))
    print(f"{page.name}: {ran} of {len(python_blocks(page))} blocks ran with jfit {importlib.metadata.version('jfit')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
