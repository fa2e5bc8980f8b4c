"""A repeated block of a graph: the nodes of its steps, and where each step reads its inputs."""

from __future__ import annotations

from typing import NamedTuple

from jfit.graph.nodes import Entry, Node


class Fixed(NamedTuple):
    """An input that is the same array in every step, such as a weight."""

    entry: Entry


class Local(NamedTuple):
    """An input that is output `index` of a node of the same step."""

    pack: int
    index: int


class Carried(NamedTuple):
    """An input that is output `index` of a node of the step before; `first` replaces it in step 0."""

    pack: int
    index: int
    first: Entry


class Sliced(NamedTuple):
    """An input that is another array, computed outside of the block, in every step: one entry per step."""

    entries: tuple[Entry, ...]


Read = Fixed | Local | Carried | Sliced


class Block(NamedTuple):
    """A part of a graph that is repeated, as steps: equal operators with equal attributes, which read different arrays.

    A pack is the tuple of the nodes at one position of the block, one node per step.

    Attributes:
        packs: the packs, in the order in which a step computes them.
        reads: for each pack, where each input of its nodes comes from.
    """

    packs: tuple[tuple[Node, ...], ...]
    reads: tuple[tuple[Read, ...], ...]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.packs[0])

    def without_first_step(self) -> Block:
        """Return the block of all steps but the first, whose outputs the second step then reads like other arrays."""

        def later(read: Read) -> Read:
            if isinstance(read, Carried):
                return read._replace(first=Entry(self.packs[read.pack][0], read.index))
            return Sliced(read.entries[1:]) if isinstance(read, Sliced) else read

        return Block(tuple(p[1:] for p in self.packs), tuple(tuple(map(later, reads)) for reads in self.reads))
