"""File formats: atomic writes, safetensors, MXNet's array files (.params) and optimizer states (.states)."""

from jfit import lazy as _lazy

_lazy.stub(__name__)
