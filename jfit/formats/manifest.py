"""Sealed JSON files: a JSON object that ends with a SHA-256 digest of itself, so that every changed bit is noticed.

The last field is "sha256".  Its value is the digest of all bytes of the file before it; the bytes after it are fixed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jfit.formats.atomic import FormatError, read_file

_BEGIN, _END = ',\n "sha256": "', b'"\n}\n'
_SEAL_LENGTH = 64 + len(_END)
MAX_LEVELS = 200  # maximum nesting of lists and dicts
_TOO_DEEP = f"lists and dicts are nested more than {MAX_LEVELS} levels deep"


def dump_sealed(record: Mapping[str, Any]) -> bytes:
    """Return a dict as the content of a sealed JSON file.

    Args:
        record: JSON-serializable fields, at least one; "sha256" is added.

    Returns:
        The content of the file, ASCII bytes.

    Raises:
        TypeError: a value is not JSON-serializable.
        ValueError: a value refers to itself, or is nested more than `MAX_LEVELS` levels deep.

    Example:
        >>> b'"sha256": "' in dump_sealed({"step": 3})
        True
    """
    if _is_too_deep(record):
        raise ValueError(_TOO_DEEP)
    head = (json.dumps(record, indent=1).removesuffix("\n}") + _BEGIN).encode()
    return head + _seal(head)


def _seal(head: bytes) -> bytes:
    return hashlib.sha256(head).hexdigest().encode() + _END


def load_sealed(path: str | os.PathLike[str], remedy: str) -> dict[str, Any]:
    """Read a JSON file and check its seal.

    Args:
        path: the file.
        remedy: what to do about damage, the end of the error message.

    Returns:
        The fields.

    Raises:
        FormatError: the file is missing, cannot be read, is no JSON object, or is nested more than `MAX_LEVELS` levels deep; or
            its seal is missing or wrong: the message names the first changed field.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "meta.json"
        >>> _ = path.write_bytes(dump_sealed({"step": 3}))
        >>> load_sealed(path, "save it again.")["step"]
        3
    """
    path = Path(path)
    try:
        content = read_file(path)
        record = json.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise FormatError(path.parent, path.name, "the file is missing", remedy) from None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(path, "content", f"it is not valid JSON, or cannot be read ({error})", remedy) from error
    if not isinstance(record, dict) or _is_too_deep(record):
        raise FormatError(path, "content", f"it is no JSON object, or {_TOO_DEEP}", remedy)
    if content[-_SEAL_LENGTH:] != _seal(content[:-_SEAL_LENGTH]):
        problem = "the digest of the file is missing or does not match its bytes: they changed"
        raise FormatError(path, "field 'sha256'", problem, remedy)
    return record


def _is_too_deep(record: Any) -> bool:
    """Whether lists and dicts are nested more than `MAX_LEVELS` levels deep; functions that call themselves would fail then."""
    level = [record]
    for _ in range(MAX_LEVELS + 2):  # the record itself, and "meta" in it, are two more
        containers = [entry for entry in level if isinstance(entry, (dict, list, tuple))]
        if not containers:
            return False
        level = [entry for outer in containers for entry in (outer.values() if isinstance(outer, dict) else outer)]
    return True
