"""Split batches over contexts, clip gradients by their global norm, and the handles of hooks."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfit.mxnet.context import Context
from jfit.mxnet.errors import MissingFile, MXNetError
from jfit.mxnet.kvstore.transfer import device_put_all, sharding_of
from jfit.mxnet.mutable import as_array, mutable_class
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.ndarray.create import array
from jfit.mxnet.numpy.arrays import current_kind
from jfit.mxnet.numpy.create import array as np_array
from jfit.mxnet.util import is_np_array, is_np_shape


def split_data(data: Any, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[NDArray]:
    """Split a batch into slices along the batch axis; without an even split the first slices get one more row (4, 3, 3).

    Args:
        data: NDArray with the batch.
        num_slice: number of slices.
        batch_axis: axis of the rows.
        even_split: whether to raise if the number of rows is not a multiple of num_slice.

    Returns:
        List of num_slice NDArrays; the last ones are empty if there are fewer rows than slices.

    Raises:
        ValueError: `even_split` is True and the number of rows is not a multiple of num_slice.

    Example:
        >>> import jfit.mx as mx
        >>> [part.shape for part in split_data(mx.nd.ones((10, 2)), 3, even_split=False)]
        [(4, 2), (3, 2), (3, 2)]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.utils.split_data`.
    """
    size = data.shape[batch_axis]
    if even_split and size % num_slice:
        raise ValueError(f"a batch of {size} rows cannot be split evenly into {num_slice} slices; pass even_split=False.")
    values = as_array(data)
    split = jnp.array_split if isinstance(values, jax.Array) else np.array_split
    kind = mutable_class(data) if isinstance(data, NDArray) else current_kind()
    return [kind(part) for part in split(values, num_slice, batch_axis)]


def split_and_load(data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = True) -> list[NDArray]:
    """Split a batch as `split_data` does, and copy one slice to each context.

    Args:
        data: NDArray, NumPy array or nested list.
        ctx_list: contexts; the number of slices is their number.
        batch_axis, even_split: as in `split_data`.

    Returns:
        List of NDArrays, one per context.

    Example:
        >>> import jfit.mx as mx
        >>> [part.asnumpy().tolist() for part in split_and_load([1, 2], [mx.cpu(0)])]
        [[1.0, 2.0]]
    """
    if not isinstance(data, NDArray):
        data = (np_array if is_np_array() else array)(data, ctx=ctx_list[0])
    parts = [data] if len(ctx_list) == 1 else split_data(data, len(ctx_list), batch_axis, even_split)
    return [mutable_class(data)(v) for v in device_put_all([part.value for part in parts], [ctx.device for ctx in ctx_list])]


def clip_global_norm(arrays: Sequence[Any], max_norm: float, check_isfinite: bool = True) -> Any:
    """Clip arrays in place by their global norm: a <- a * min(1, max_norm / (norm + 1e-8)), norm = sqrt(Σ a²).

    Args:
        arrays: NDArrays, on any contexts.
        max_norm: upper bound of the global norm.
        check_isfinite: block until the norm is computed, and warn if it is not finite.

    Returns:
        The norm before clipping: a float, or without `check_isfinite` an NDArray of shape (1,), without blocking.

    Example:
        >>> import jfit.mx as mx
        >>> grad = mx.nd.array([3.0, 4.0])
        >>> clip_global_norm([grad], 1.0)
        5.0
        >>> [round(value, 3) for value in grad.asnumpy().tolist()]
        [0.6, 0.8]

    Source: Apache MXNet 1.9.1, `mxnet.gluon.utils.clip_global_norm`.
    """
    values = [as_array(a) for a in arrays]
    norm = jnp.sqrt(sum(device_put_all([_squares(v) for v in values], [sharding_of(values[0])] * len(values))))
    scale = jnp.minimum(max_norm / (norm + 1e-8), 1.0)
    scales = device_put_all([scale] * len(values), [sharding_of(v) for v in values])
    for cell, value, factor in zip(arrays, values, scales, strict=True):
        cell[:] = _scaled(value, factor)
    if not check_isfinite:
        return NDArray(norm.reshape(1))
    result = float(NDArray(norm).asnumpy())
    if not math.isfinite(result):
        warnings.warn(f"the global norm of the gradients is {result}, so the clipped gradients are not usable.", stacklevel=2)
    return result


class HookHandle:
    """What `register_forward_hook` and its like return: `detach()`, or the end of a `with` block, removes the hook.

    Example:
        >>> hooks = {}
        >>> with HookHandle().attach(hooks, print):
        ...     len(hooks)
        1
        >>> len(hooks)
        0
    """

    def __init__(self) -> None:
        self._hooks: dict[int, Any] | None = None
        self._id = 0

    def attach(self, hooks_dict: dict[int, Any], hook: Any) -> HookHandle:
        """Add a hook to a dict of hooks; a handle can do so once."""
        assert self._hooks is None, "this handle is attached to a hook already; make another HookHandle."
        self._hooks, self._id = hooks_dict, id(hook)
        hooks_dict[self._id] = hook
        return self

    def detach(self) -> None:
        """Remove the hook; does nothing if it is removed already."""
        if self._hooks is not None:
            self._hooks.pop(self._id, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()


def check_sha1(filename: str, sha1_hash: str) -> bool:
    """Return whether a file has this SHA-1 hash.

    Args:
        filename: path of the file.
        sha1_hash: the hash in hexadecimal digits.

    Returns:
        bool.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("data.txt").write_text("data")
        >>> check_sha1("data.txt", "a17c9aaa61e80a1bf71d0d850af4e5baa9800bbd")
        True
    """
    with open(filename, "rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest() == sha1_hash


def download(
    url: str, path: str | None = None, overwrite: bool = False, sha1_hash: str | None = None, retries: int = 5,
    verify_ssl: bool = True,
) -> str:  # fmt: skip
    """Return the path of a file that was downloaded before; jfit itself does not download.

    Args:
        url: address of the file; its last part is the name of the file.
        path: the file, or its folder; by default the current folder.
        sha1_hash: SHA-1 hash that the file must have.
        overwrite, retries, verify_ssl: accepted and ignored.

    Returns:
        Path of the file.

    Raises:
        MXNetError: there is no such file (then also a FileNotFoundError), or it has another hash.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("data.txt").write_text("data")
        >>> download("https://example.com/data.txt")
        'data.txt'
    """
    name, path = url.split("/")[-1], os.path.expanduser(path or "")
    file = os.path.join(path, name) if os.path.isdir(path) else path or name
    remedy = f"jfit does not download data: get it from {url}"
    if not os.path.exists(file):
        raise MissingFile(f"{file} does not exist; {remedy}, and store it as {file}.")
    if sha1_hash and not check_sha1(file, sha1_hash):
        raise MXNetError(f"{file} does not have the SHA-1 hash {sha1_hash}; {remedy}.")
    return file


def shape_is_known(shape: Sequence[int] | None) -> bool:
    """Return whether a shape has no unknown size: 0, or -1 if NumPy shapes are on (`mx.util.np_shape`), where 0 is a size.

    Args:
        shape: tuple of sizes, or None.

    Returns:
        bool.

    Raises:
        AssertionError: a size below that of an unknown one.

    Example:
        >>> shape_is_known((2, 3)), shape_is_known((2, 0)), shape_is_known(None)
        (True, False, False)
    """
    if shape is None:
        return False
    unknown = -1 if is_np_shape() else 0
    assert all(size >= unknown for size in shape), f"a shape has sizes of at least {unknown}, found {tuple(shape)}."
    return (bool(shape) or is_np_shape()) and unknown not in shape


@jax.jit
def _squares(value: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(value.astype(jnp.float32)))


@jax.jit
def _scaled(value: jax.Array, factor: jax.Array) -> jax.Array:
    return (value * factor).astype(value.dtype)
