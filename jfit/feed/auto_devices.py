"""`devices="auto"`: which devices pay for a model."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection

import jax

from jfit.data import ArrayData, StreamData
from jfit.distributed import exchange, num_processes
from jfit.lowering.model import Model, Plan
from jfit.parallel.contexts import Device
from jfit.platforms import cores
from jfit.step.reduce import Reduce


def model_devices(model: Model, batch_size: int) -> list[Device]:
    """Choose the devices to score and predict with a model: `auto_devices`, at most one per row of a batch.

    Functions of JAX frameworks are not traced: on a CPU they get one device.

    Args:
        model: the model.
        batch_size: number of rows per batch.

    Returns:
        List of `jax.Device`.

    Example:
        >>> import jfit
        >>> len(model_devices(jfit.lower(jfit.sym.square(jfit.sym.Variable("data"))), batch_size=1))
        1
    """
    return auto_devices("convolution" in model.traits, batch_size)


def auto_devices(convolutions: bool, most: int | None = None) -> list[Device]:
    """Choose devices for a model: all local accelerators; on a CPU one device, or one per core for models with convolutions.

    XLA computes convolutions on one CPU device with less than all cores, so that several emulated devices may be faster.  They
    must be configured before JAX starts; if they are not, a warning that says how is logged, once per process.

    Args:
        convolutions: whether the model has convolutions.
        most: maximum number of devices.  None: no maximum.

    Returns:
        List of `jax.Device`, at least one; of emulated CPU devices at most as many as there are cores.  In a job, all processes
        must call this function, and use as many devices as the one that could use the fewest.

    Example:
        >>> len(auto_devices(convolutions=False, most=1))
        1
    """
    local = jax.local_devices()
    if local[0].platform == "cpu":
        count = cores() if convolutions else 1
        if convolutions and len(local) == 1 and count > 1 and most != 1:
            _advise(count)
        local = local[:count]
    local = local[:most]
    return local[: min(exchange(len(local), "the number of devices"))]  # hosts may have other numbers of cores


@functools.cache  # once per process
def _advise(count: int) -> None:
    logging.getLogger("jfit").warning(
        "devices='auto': this model has convolutions, which train faster on %d emulated devices than on one CPU device; set "
        "XLA_FLAGS=--xla_force_host_platform_device_count=%d, or call jax.config.update('jax_num_cpu_devices', %d), before the "
        "first use of JAX",
        count,
        count,
        count,
    )


def training_devices(
    model: Model,
    plan: Plan,
    sizes: Collection[int] | None,
    micro_batches: int,
    rule: Reduce,
) -> list[Device]:
    """Choose the devices of `fit(devices="auto")`: those of `auto_devices` over which every batch can be split.

    Args:
        model: the model.
        plan: its plan for the first batch.
        sizes: numbers of rows of all training batches, the largest first; None: they are not known.
        micro_batches: number of parts of each batch.
        rule: how gradients are reduced; an ordered one cuts every batch into a fixed number of slices.

    Returns:
        List of `jax.Device` of this process; those of a job have as many each.  If batches cannot be padded and do not
        divide evenly, it is shorter, which is logged.
    """
    wished, processes = auto_devices("convolution" in model.traits or plan.convolutions), num_processes()

    def splits(count: int) -> bool:
        count *= processes
        if rule.slices is not None:  # the slices, and so the padding, are the same on any number of devices
            return count <= rule.slices
        if plan.paddable:
            return sizes is None or count * micro_batches <= max(sizes)
        return sizes is not None and all(size % (count * micro_batches) == 0 for size in sizes)

    count = next((n for n in range(len(wished), 1, -1) if splits(n)), 1)
    if count < len(wished):
        logging.getLogger("jfit").warning(
            "devices='auto': %d of %d devices are used, because batches of %s rows cannot be split evenly over more%s",
            count,
            len(wished),
            "unknown numbers of" if sizes is None else " and ".join(map(str, sizes)),
            "" if plan.paddable else f", and cannot be padded: {plan.reason or plan.coupled}",
        )
    return wished[:count]


def batch_sizes(data: ArrayData | StreamData, batch_size: int) -> list[int] | None:
    """Numbers of rows of the batches of training data, the largest first; None for an iterable of batches.

    Args:
        data: training data.
        batch_size: number of rows per batch of arrays.

    Example:
        >>> from jfit.data import as_data
        >>> batch_sizes(as_data({"x": [1, 2, 3]}, batch_size=2, input_names=["x"], label_names=[]), 2)
        [2, 1]
    """
    if not isinstance(data, ArrayData):
        return None
    whole, last = divmod(data.num_rows, batch_size)
    return [batch_size] * (whole > 0) + [last] * (last > 0)
