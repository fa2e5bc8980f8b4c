"""Stage 7: MXNet's stateful classes (Module, FeedForward, Trainer, KVStore, ...), which call jfit's pure functions for all numbers.

mutable      `MutableArray`, an array that can be written in place
array_types  which array type the classes return                 ndarray_classes  the classes that return NDArrays, for `jfit.mx`
namespaces   lookup of operators by MXNet's names                keys             random keys, all derived from one seed
errors       MXNet's exception types                             files            checkpoint files
"""
