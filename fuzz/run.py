"""Fuzz one file reader with atheris: `python -m fuzz.run TARGET [libFuzzer options] [corpus folders]`.

TARGET is a key of `fuzz.targets.TARGETS`. Without options it runs for one minute, on a temporary corpus of the target's seed
files. An input that fails is written to `crash-...` in the working directory; `python -m fuzz.run TARGET crash-...` reruns it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

import jfit

# Instrument only the readers, because instrumented code is slow; reimport them under instrumentation.
for _name in [name for name in sys.modules if name.startswith(("jfit.formats", "jfit.graph"))]:
    del sys.modules[_name]
with atheris.instrument_imports(include=["jfit.formats", "jfit.graph", "pickletools", "json.decoder"]):
    from fuzz import targets


def _corpus(name: str) -> Path:
    """A new temporary folder with copies of the target's seed files."""
    folder = Path(tempfile.mkdtemp(prefix=f"jfit-fuzz-{name}-"))
    for path in targets.TARGETS[name].seeds:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def _dictionary(name: str) -> Path:
    """A libFuzzer dictionary file of the target's words (and of all operator names, for graphs)."""
    words = [*targets.TARGETS[name].words]
    if name == "graph":
        words += [f'"{op}"'.encode() for op in jfit.ops.ALIASES]
    path = Path(tempfile.mkdtemp()) / "words.dict"
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in words if word]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Run libFuzzer on one target."""
    if len(sys.argv) < 2 or sys.argv[1] not in targets.TARGETS:
        raise SystemExit(f"usage: python -m fuzz.run {{{','.join(targets.TARGETS)}}} [libFuzzer options] [corpus folders]")
    name, rest = sys.argv[1], sys.argv[2:] or ["-max_total_time=60"]
    if all(option.startswith("-") for option in rest):
        rest.append(str(_corpus(name)))
    if targets.TARGETS[name].words:
        rest.append(f"-dict={_dictionary(name)}")
    atheris.Setup([sys.argv[0], *rest], lambda data: targets.check(name, bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
