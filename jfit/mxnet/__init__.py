"""Stage 7: MXNet's stateful classes (Module, FeedForward, Trainer, KVStore, ...), which compute with jfit's pure functions.

mutable      `MutableArray`, an array that can be written in place
array_types  which array type the classes return    ndarray_classes  subclasses that return NDArrays, for `jfit.mx`
namespaces   operators by MXNet's names             keys             random keys derived from one seed
errors       MXNet's exception types                files            checkpoint files
"""

from jfit import lazy as _lazy

_lazy.modules(__name__)
