"""How a batch is divided over devices: two traditions that differ where it does not divide evenly."""

from __future__ import annotations

from collections.abc import Sequence


def python_slices(rows: int, workloads: Sequence[float]) -> list[int]:
    """nᵢ = round(wᵢ · rows / Σ w), what is missing goes to the last device: 10 rows on 3 devices are 3, 3, 4.

    The split of MXNet's Module and Python FeedForward.

    Args:
        rows: rows of the batch.
        workloads: relative share of each device.

    Raises:
        ValueError: a device would get no row.

    Example:
        >>> python_slices(10, [1, 1, 1]), python_slices(7, [1, 2])
        ([3, 3, 4], [2, 5])

    Source: Apache MXNet 1.9.1, executor_manager (Python's rounding: halves to even).
    """
    total = sum(workloads)
    counts = [round(w * rows / total) for w in workloads]
    if sum(counts) < rows:
        counts[-1] += rows - sum(counts)
    found, begin = [], 0
    for count in counts:
        end = min(begin + count, rows)
        found.append(end - begin)
        begin = end
    return _checked(found, rows)


def first_slices(rows: int, devices: int) -> list[int]:
    """rows // devices each, what is left goes one by one to the first: 10 rows on 3 devices are 4, 3, 3.

    The split of MXNet.jl and of gluon.

    Example:
        >>> first_slices(10, 3)
        [4, 3, 3]

    Source: MXNet.jl `_split_inputs`; gluon `split_data(even_split=False)`.
    """
    each, extra = divmod(rows, devices)
    return _checked([each + (i < extra) for i in range(devices)], rows)


def _checked(counts: list[int], rows: int) -> list[int]:
    if min(counts) < 1:
        raise ValueError(
            f"Too many slices. Some splits are empty: {rows} rows on {len(counts)} devices give {counts}; every device needs "
            "a row: use fewer devices, a larger batch, or another work_load_list"
        )
    return counts
