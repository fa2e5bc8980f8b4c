"""Markdown tables of what is registered, for the pages in docs/."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the lines of a Markdown table.

    Example:
        >>> markdown_table(("a", "b"), [("1", "2")]).splitlines()
        ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """Return text in the font of code; "" for no text, or "none"."""
    return "" if text in ("", "none") else f"`{text}`"
