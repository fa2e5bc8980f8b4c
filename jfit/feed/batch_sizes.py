"""The numbers of rows of the batches of a stream, and the few sizes to which batches of ever-changing size are padded.

Every number of rows is another shape, for which XLA compiles another program.  Up to `FEW` different numbers are normal, such
as those of full batches and of an incomplete last one.  From the next one on, batches are padded to few sizes, unless the rows
of a batch affect each other.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from jfit.lowering.model import Model
from jfit.lowering.row_axes import NO_ROWS

FEW = 3  # number of different numbers of rows up to which batches are padded to the largest number only
SPREAD = 4  # no batch is padded to less than 1 / SPREAD of the largest size, so that only few sizes are compiled
MIXED_ROWS = "the network mixes the rows of a batch before a loss head or a batch statistic"
_REMEDY = "; to avoid this, let the loader return batches of one size (loaders often have drop_last=True)"


def multiple(count: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `count`."""
    return -(-count // unit) * unit


class BatchSizes(NamedTuple):
    """Numbers of rows of the batches so far; immutable.

    Attributes:
        counts: different numbers of rows in order of occurrence, at most `FEW` + 1: later ones are not added.
        sizes: numbers of rows to which batches are padded, in order of occurrence; empty up to `FEW` different numbers.
        largest: the largest number of rows.

    Example:
        >>> sizes = BatchSizes()
        >>> for count in (100, 7, 90):
        ...     sizes = sizes.add(count)
        >>> sizes.varies
        False
        >>> sizes = sizes.add(41).add(104)
        >>> sizes.varies, sizes.sizes, sizes.size_of(3), sizes.size_of(99)
        (True, (100, 64, 128), 32, 100)
    """

    counts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    largest: int = 0

    @property
    def varies(self) -> bool:
        """Whether more than `FEW` different numbers of rows occurred."""
        return len(self.counts) > FEW

    def add(self, count: int) -> BatchSizes:
        """Return the sizes after one more batch, of `count` rows."""
        counts, largest = self.counts, max(self.largest, count)
        counts = counts if self.varies or count in counts else (*counts, count)
        if len(counts) <= FEW:
            return BatchSizes(counts, (), largest)
        known = BatchSizes(counts, self.sizes or (max(counts[:FEW]),), largest)
        size = known.size_of(count)
        return known if size in known.sizes else known._replace(sizes=(*known.sizes, size))

    def padded(self, count: int, unit: int) -> int:
        """Number of rows, divisible by `unit`, to which a batch of `count` rows is padded."""
        return multiple(self.size_of(multiple(count, unit)), unit)

    def size_of(self, count: int) -> int:
        """Number of rows to which a batch of `count` rows is padded: a size less than twice as large, else a power of 2."""
        least = max(count, -(-max(self.sizes) // SPREAD))
        return min((size for size in self.sizes if least <= size < 2 * least), default=1 << (least - 1).bit_length())

    def ran_without_weights(self, count: int) -> bool:
        """Whether full batches of `count` rows were among the first ones, for which a program without row weights exists."""
        return count in self.counts[:FEW]


def depends_on_parts(model: Model, parts: int, coupled: str) -> bool:
    """Return whether a training step depends on how the rows of a batch are divided into parts, which padding changes.

    Args:
        model: the model that is trained.
        parts: number of micro-batches of all devices.
        coupled: how rows affect each other in a model of a function, see `Plan.coupled`.
    """
    if parts == 1 or model.symbol is None:
        return parts > 1 and bool(coupled)
    counted = any(attrs.get("normalization", "null") != "null" for attrs in model.symbol.attr_dict().values())
    return counted or bool(model.symbol.list_auxiliary_states())


def announce_varying(sizes: BatchSizes, use: str, obstacle: str | None) -> None:
    """Log that batches have ever-changing numbers of rows, what is done about it, and how to avoid it.

    Args:
        sizes: the numbers of rows.
        use: what the batches are for, such as "training".
        obstacle: why batches are not padded, see `Plan.coupled`; None: they are.
    """
    counts = f"{', '.join(map(str, sizes.counts[:-1]))} and {sizes.counts[-1]}"
    seen = f"{use}: batches of {counts} rows, and XLA compiles a program for each number of rows"
    done = (
        "; from now on, batches are padded with rows of weight 0 to a few sizes, which changes results only by rounding"
        if obstacle is None
        else f"; they are not padded, because {obstacle or MIXED_ROWS}"
    )
    logging.getLogger("jfit").warning("%s%s%s", seen, done, _REMEDY)


def announce_size(model: Model, count: int, size: int, reason: str) -> None:
    """Log that an incomplete batch of a model of a function is trained with its own number of rows."""
    if model.verify is not None:
        logging.getLogger("jfit").warning(
            "a batch of %d rows is not padded to %d rows but trained in a second program, because %s", count, size, reason
        )


def unpaddable_message(count: int, unit: int, reason: str = "") -> str:
    """Error message for a batch of `count` rows that cannot be padded, and not be split into `unit` equal parts.

    `unit` is the number of devices (slices with `reduce="ordered"`) times the number of micro-batches.
    """
    if NO_ROWS in reason:
        remedy = "pass devices=1 without reduce='ordered', or name the arrays that all devices need whole in row_axes="
        return f"{NO_ROWS}, so that a batch cannot be split over {unit} devices or slices; {remedy}"
    return (
        f"a batch of {count} rows does not divide into {unit} equal parts, and cannot be padded: "
        f"{reason or MIXED_ROWS}; choose a batch size and "
        f"data divisible by {unit}, or one device without micro-batches and without reduce='ordered'"
    )
