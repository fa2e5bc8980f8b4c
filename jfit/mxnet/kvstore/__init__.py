"""MXNet's key-value store: sums the values that devices push for a key, and optionally applies an optimizer to the sum."""

from jfit.mxnet.kvstore.store import KVStore, KVStoreBase, create, select

__all__ = ["KVStore", "KVStoreBase", "create", "select"]
