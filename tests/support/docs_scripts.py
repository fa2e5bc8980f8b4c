"""The programs in docs/ that print pages and stubs, as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def docs_script(name: str) -> ModuleType:
    """Import docs/<name>.py, which is in no package."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(f"docs.{name}")
