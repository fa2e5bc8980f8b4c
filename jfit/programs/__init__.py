"""Compiled programs that are kept for the whole process, so that equal functions are compiled once.

>>> from jfit.programs import Program, clear_programs
"""

from jfit.programs.kept import Program, Recent, check_shapes, clear_programs, depends_on_more, kept, settings
from jfit.programs.keys import ByIdentity, Unkeyed, key_of

__all__ = [
    "ByIdentity",
    "Program",
    "Recent",
    "Unkeyed",
    "check_shapes",
    "clear_programs",
    "depends_on_more",
    "kept",
    "key_of",
    "settings",
]
