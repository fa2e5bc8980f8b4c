"""Modules of JAX frameworks as models: one file per framework, which is imported only when one of its modules is passed."""

from jfit.lowering.frameworks.adapted import Adapted
from jfit.lowering.frameworks.dispatch import adapter_of, from_module

__all__ = ["Adapted", "adapter_of", "from_module"]
