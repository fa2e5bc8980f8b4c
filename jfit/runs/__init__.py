"""`python -m jfit.runs list | show | diff`: what folders of checkpoints contain.  Nothing is changed or deleted."""

from jfit import lazy
from jfit.runs.folders import RunFolder, find, open_run

__all__ = ["RunFolder", "find", "open_run"]

lazy.modules(__name__)
