"""Sealed JSON files: a JSON object that ends with a SHA-256 digest of itself, so that every changed bit is noticed.

The last field is "sha256".  Its value is the digest of all bytes of the file before it; the bytes after it are fixed.  The
field "checksums" has the CRC-32 of every other field, with which an error message names the field that changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jfit.formats.atomic import FormatError, read_file

_BEGIN, _END = ',\n "sha256": "', b'"\n}\n'
_DIGEST_LENGTH = 64
MAX_LEVELS = 200  # maximum nesting of lists and dicts
_TOO_DEEP = f"lists and dicts are nested more than {MAX_LEVELS} levels deep"


def dump_sealed(record: Mapping[str, Any]) -> bytes:
    """Return a dict as the content of a sealed JSON file.

    Args:
        record: JSON-serializable fields, at least one; "checksums" and "sha256" are added.

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
    checksums = {name: _crc(value) for name, value in _parts(record).items()}
    text = json.dumps({**record, "checksums": checksums}, indent=1)
    head = (text.removesuffix("\n}") + _BEGIN).encode()
    return head + hashlib.sha256(head).hexdigest().encode() + _END


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
    if not isinstance(record, dict) or any(map(_is_too_deep, _parts(record).values())):
        raise FormatError(path, "content", f"it is no JSON object, or {_TOO_DEEP}", remedy)
    digest_at = len(content) - len(_END) - _DIGEST_LENGTH
    head, digest, end = content[: max(digest_at, 0)], content[max(digest_at, 0) : -len(_END)], content[-len(_END) :]
    if end == _END and hashlib.sha256(head).hexdigest().encode() == digest:
        return record
    raise FormatError(path, *_damage(record), remedy)


def _is_too_deep(value: Any) -> bool:
    """Whether lists and dicts are nested more than `MAX_LEVELS` levels deep; functions that call themselves would fail then."""
    level = [value]
    for _ in range(MAX_LEVELS):
        containers = [entry for entry in level if isinstance(entry, (dict, list, tuple))]
        if not containers:
            return False
        level = [entry for outer in containers for entry in (outer.values() if isinstance(outer, dict) else outer)]
    return True


def _parts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The values that have a checksum: the fields, and instead of the field "meta" its fields as 'meta.<name>'."""
    parts: dict[str, Any] = {}
    for name, value in record.items():
        if name == "meta" and isinstance(value, Mapping):
            parts |= {f"meta.{key}": entry for key, entry in value.items()}
        elif name not in ("checksums", "sha256"):
            parts[name] = value
    return parts


def _crc(value: Any) -> int:
    return zlib.crc32(json.dumps(value).encode())


def _damage(record: dict[str, Any]) -> tuple[str, str]:
    """(position, problem) of the first field that differs from its checksum."""
    saved = record.get("checksums")
    if isinstance(saved, dict):
        actual = {name: _crc(value) for name, value in _parts(record).items()}
        for name in saved:
            if name not in actual:
                return f"field {name!r}", "it is missing, or its name changed"
        for name, crc in actual.items():
            if saved.get(name) != crc:
                return f"field {name!r}", "its value does not match its checksum: its bytes changed"
    return "field 'sha256'", "the digest of the file is missing or does not match its bytes: they changed"
