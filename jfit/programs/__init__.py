"""Compiled programs that are kept for the whole process, so that equal functions are compiled once.

>>> from jfit.programs import Program, clear_programs
"""

from jfit.programs.constants import Constants, depends_on_more
from jfit.programs.keys import ByIdentity, Unkeyed, assign_key, assigned_key, key_of
from jfit.programs.tables import Program, Recent, check_shapes, clear_programs, kept, settings

__all__ = [
    "ByIdentity",
    "Constants",
    "Program",
    "Recent",
    "Unkeyed",
    "assign_key",
    "assigned_key",
    "check_shapes",
    "clear_programs",
    "depends_on_more",
    "kept",
    "key_of",
    "settings",
]
