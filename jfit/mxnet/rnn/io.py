"""Sentences of different lengths: words as numbers, batches of sentences of like length."""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.data import DataBatch, DataDesc, DataIter
from jfit.mxnet import ndarray as nd


def encode_sentences(
    sentences: Sequence[Sequence[Any]],
    vocab: dict[Any, int] | None = None,
    invalid_label: int = -1,
    invalid_key: Any = "\n",
    start_label: int = 0,
    unknown_token: Any = None,
) -> tuple[list[list[int]], dict[Any, int]]:
    """Words as numbers, in the order of their first appearance.

    Args:
        sentences: lists of words.
        vocab: numbers by word; without it a new one grows as words appear.
        invalid_label: the number that stands for no word.
        invalid_key: the word of that number in a new vocabulary.
        start_label: the smallest number.
        unknown_token: stands for words that are not in `vocab`; without it they raise.

    Returns:
        The sentences in numbers, and the vocabulary.

    Raises:
        ValueError: a word is unknown.

    Example:
        >>> encode_sentences([["a", "b"], ["b", "c"]], start_label=1, invalid_label=0)
        ([[1, 2], [2, 3]], {'\\n': 0, 'a': 1, 'b': 2, 'c': 3})
    """
    grows = vocab is None
    known = {invalid_key: invalid_label} if vocab is None else vocab
    taken = set(known.values())
    label = start_label

    def number(word: Any) -> int:
        nonlocal label
        if word not in known and unknown_token is not None:
            word = unknown_token
        if word not in known:
            if not grows and word != unknown_token:
                raise ValueError(f"the word {word!r} is not in the vocabulary; pass unknown_token= to stand for such words")
            while label in taken:
                label += 1
            known[word] = label
            taken.add(label)
        return known[word]

    return [[number(word) for word in sentence] for sentence in sentences], known


class BucketSentenceIter(DataIter):
    """Batches of sentences of one bucket, padded to its length; the label of each word is the next word.

    Sentences longer than the longest bucket are left out, and so are those of a bucket that do not fill a batch.  `reset`
    shuffles the batches with Python's `random` and the sentences with numpy's, as MXNet does; with a seed of its own the orders
    are the same in every process, and after `load_state_dict`.

    Args:
        sentences: sentences in numbers.
        batch_size: sentences in a batch.
        buckets: lengths; by default those that at least `batch_size` sentences have.
        invalid_label: what sentences are filled up with, and the label of the last word.
        data_name: name of the data.
        label_name: name of the label.
        dtype: dtype of both.
        layout: NT for (batch, length), TN for (length, batch).
        seed: integer for orders of its own; None draws from the global generators.

    Example:
        >>> it = BucketSentenceIter([[1, 2, 3], [4, 5, 6]], 2, buckets=[4], invalid_label=0)
        >>> batch = it.next()
        >>> batch.bucket_key, sorted(batch.label[0].asnumpy().tolist())
        (4, [[2.0, 3.0, 0.0, 0.0], [5.0, 6.0, 0.0, 0.0]])
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = "float32",
        layout: str = "NT",
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size)
        if sorted(layout) != ["N", "T"]:
            raise ValueError(f"layout is {layout!r}, needed NT (batch first) or TN (time first)")
        lengths = sorted(buckets or _usual_lengths(sentences, batch_size))
        self.data_name, self.label_name, self.dtype, self.layout = data_name, label_name, dtype, layout
        self.invalid_label, self.major_axis = invalid_label, layout.find("N")
        filled = self._filled(sentences, lengths)
        self.buckets, self.data = list(filled), list(filled.values())
        if not self.buckets:
            raise ValueError(
                f"no bucket holds a sentence: buckets are {lengths}, sentences have {min(map(len, sentences), default=0)} to "
                f"{max(map(len, sentences), default=0)} words, and without buckets= a length needs {batch_size} sentences"
            )
        self.default_bucket_key = max(self.buckets)
        shape = self._turned((batch_size, self.default_bucket_key))
        self.provide_data = [DataDesc(data_name, shape, layout=layout)]
        self.provide_label = [DataDesc(label_name, shape, layout=layout)]
        self.idx = [
            (i, j) for i, rows in enumerate(self.data) for j in range(0, len(rows) - batch_size + 1, batch_size)
        ]  # (bucket, first sentence) of each batch
        self._batches = None if seed is None else random.Random(seed)
        self._rows = None if seed is None else np.random.RandomState(seed % 2**32)  # None: the global one
        self._orders = [np.arange(len(rows)) for rows in self.data]  # of the sentences of each bucket
        self.reset()

    def _filled(self, sentences: Sequence[Sequence[int]], lengths: Sequence[int]) -> dict[int, np.ndarray]:
        """The sentences of each bucket that has some, filled up to its length: (sentences, length)."""
        rows: dict[int, list[np.ndarray]] = {n: [] for n in lengths}
        dropped = 0
        for sentence in sentences:
            at = bisect.bisect_left(lengths, len(sentence))
            if at == len(lengths):
                dropped += 1
                continue
            row = np.full((lengths[at],), self.invalid_label, dtype=self.dtype)
            row[: len(sentence)] = sentence
            rows[lengths[at]].append(row)
        if dropped:
            print(f"WARNING: discarded {dropped} sentences longer than the largest bucket.")
        return {n: np.asarray(found, self.dtype) for n, found in rows.items() if found}

    def _turned(self, shape: tuple[int, int]) -> tuple[int, int]:
        return shape if self.major_axis == 0 else (shape[1], shape[0])

    def reset(self) -> None:
        """Shuffle, and start the next epoch."""
        self.curr_idx = 0
        (self._batches or random).shuffle(self.idx)
        for order in self._orders:
            (self._rows or np.random).shuffle(order)  # draws what shuffling the sentences themselves would
        self._put()

    def _put(self) -> None:
        """The sentences of each bucket in their order, and their labels."""
        rows = [found[order] for found, order in zip(self.data, self._orders, strict=True)]
        self.nddata = [nd.array(r, dtype=self.dtype) for r in rows]
        self.ndlabel = [nd.array(self._next_words(r), dtype=self.dtype) for r in rows]

    def state_dict(self) -> dict[str, Any]:
        """Position and orders: what it takes to continue this epoch (and, with a seed, the later ones)."""
        kept = None
        if self._batches is not None and self._rows is not None:
            version, words, gauss = self._batches.getstate()
            kept = {"batches": [version, list(words), gauss], "rows": self._rows.get_state(legacy=False)}
        return {"curr_idx": self.curr_idx, "idx": list(self.idx), "orders": [o.copy() for o in self._orders], "rng": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of an iterator over the same sentences, made with the same arguments.

        Raises:
            ValueError: the buckets hold other numbers of sentences.
        """
        orders = [np.array(order, np.int64) for order in state["orders"]]
        found, mine = [len(order) for order in orders], [len(rows) for rows in self.data]
        if found != mine or len(state["idx"]) != len(self.idx):
            raise ValueError(f"the saved position is of buckets with {found} sentences, this iterator has {mine}.")
        self.curr_idx, self.idx = int(state["curr_idx"]), [(int(i), int(j)) for i, j in state["idx"]]
        self._orders = orders
        if state["rng"] is not None and self._batches is not None and self._rows is not None:
            version, words, gauss = state["rng"]["batches"]
            self._batches.setstate((version, tuple(words), gauss))
            self._rows.set_state(state["rng"]["rows"])
        self._put()

    def _next_words(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:, 1:], np.full_like(rows[:, :1], self.invalid_label)], axis=1)

    def next(self) -> DataBatch:
        """The next batch, of one bucket.  Raises StopIteration at the end of the epoch."""
        if self.curr_idx == len(self.idx):
            raise StopIteration
        bucket, first = self.idx[self.curr_idx]
        self.curr_idx += 1
        rows = slice(first, first + self.batch_size)
        data, label = self.nddata[bucket][rows], self.ndlabel[bucket][rows]
        if self.major_axis == 1:
            data, label = data.T, label.T
        return DataBatch(
            [data],
            [label],
            pad=0,
            bucket_key=self.buckets[bucket],
            provide_data=[DataDesc(self.data_name, data.shape, layout=self.layout)],
            provide_label=[DataDesc(self.label_name, label.shape, layout=self.layout)],
        )


def _usual_lengths(sentences: Sequence[Sequence[int]], batch_size: int) -> list[int]:
    counts = np.bincount([len(s) for s in sentences])
    return [length for length, count in enumerate(counts) if count >= batch_size]
