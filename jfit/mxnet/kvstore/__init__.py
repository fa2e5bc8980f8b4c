"""The key-value store: values by key, summed over devices, updated in the store or handed back."""

from jfit.mxnet.kvstore.store import KVStore, KVStoreBase, create, select, select_julia

__all__ = ["KVStore", "KVStoreBase", "create", "select", "select_julia"]
