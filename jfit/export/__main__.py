"""`python -m jfit.export` prints the operators that have an ONNX converter, by family, as Markdown."""

from __future__ import annotations

from jfit.export import converters
from jfit.ops import REGISTRY


def table() -> str:
    """Return the table of docs/export.md, in Markdown: the operators that have an ONNX converter, by family.

    Example:
        >>> from jfit.export.__main__ import table
        >>> table().startswith("| family | operators |")
        True
    """
    families: dict[str, list[str]] = {}
    for name in converters():
        if name in REGISTRY:
            families.setdefault(REGISTRY[name].family, []).append(f"`{name}`")
    count = sum(map(len, families.values()))
    rows = [f"| {family} | {', '.join(names)} |" for family, names in sorted(families.items())]
    return "\n".join(["| family | operators |", "|---|---|", *rows, "", f"{count} of {len(REGISTRY)} operators."])


if __name__ == "__main__":
    print(table())
