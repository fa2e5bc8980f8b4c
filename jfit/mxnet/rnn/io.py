"""Sentences of different lengths: encoding of words as integers, and an iterator over batches of similar length."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfit import checks, counters
from jfit.data import DataBatch, DataDesc, DataIter
from jfit.mxnet import ndarray as nd
from jfit.mxnet.mutable import as_input
from jfit.mxnet.ndarray.create import from_host


def encode_sentences(
    sentences: Sequence[Sequence[Any]],
    vocab: dict[Any, int] | None = None,
    invalid_label: int = -1,
    invalid_key: Any = "\n",
    start_label: int = 0,
    unknown_token: Any = None,
) -> tuple[list[list[int]], dict[Any, int]]:
    """Encode words as integers, numbered in the order of their first appearance.

    Args:
        sentences: lists of words.
        vocab: integer of each word; by default a new vocabulary is built from the sentences.
        invalid_label: integer of padding.
        invalid_key: word that a new vocabulary maps to `invalid_label`.
        start_label: smallest integer to assign.
        unknown_token: word that replaces words missing from `vocab`; without it they raise.

    Returns:
        (sentences as lists of integers, vocabulary).

    Raises:
        ValueError: a word is not in `vocab`, and there is no `unknown_token`.

    Example:
        >>> encode_sentences([["a", "b"], ["b", "c"]], start_label=1, invalid_label=0)
        ([[1, 2], [2, 3]], {'\\n': 0, 'a': 1, 'b': 2, 'c': 3})
    """
    build = vocab is None
    vocabulary = {invalid_key: invalid_label} if vocab is None else vocab
    used = set(vocabulary.values())
    free = (label for label in itertools.count(start_label) if label not in used)

    def number(word: Any) -> int:
        if word not in vocabulary and unknown_token is not None:
            word = unknown_token
        if word not in vocabulary:
            if not build and word != unknown_token:
                raise ValueError(f"the word {word!r} is not in the vocabulary; pass unknown_token= to replace such words")
            vocabulary[word] = next(free)
        return vocabulary[word]

    return [[number(word) for word in sentence] for sentence in sentences], vocabulary


class BucketSentenceIter(DataIter):
    """Iterate over batches of sentences of similar length; the label of each word is the next word.

    Each sentence goes into the shortest bucket that fits it and is padded to the bucket's length.  Sentences longer than the
    longest bucket are dropped, and so is the last incomplete batch of each bucket.  `reset` shuffles the batches with Python's
    `random` and the sentences with NumPy's generator, as MXNet does.

    Args:
        sentences: sentences as lists of integers.
        batch_size: sentences per batch.
        buckets: lengths; by default every length that at least `batch_size` sentences have.
        invalid_label: padding value, and the label of the last word.
        data_name: name of the data.
        label_name: name of the label.
        dtype: dtype of both.
        layout: "NT" for (batch, length), "TN" for (length, batch).

    Raises:
        ValueError: no bucket has a sentence, or the layout is neither NT nor TN.

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
    ) -> None:
        super().__init__(batch_size)
        checks.one_of(("NT", "TN"), layout=layout)
        lengths = sorted(buckets or _frequent_lengths(sentences, batch_size))
        self.data_name, self.label_name, self.dtype, self.layout = data_name, label_name, dtype, layout
        self.invalid_label, self.major_axis = invalid_label, layout.find("N")
        padded = self._pad_sentences(sentences, lengths)
        self.buckets, self.data = list(padded), list(padded.values())
        if not self.buckets:
            lengths = f"buckets are {lengths}, sentences have up to {max(map(len, sentences), default=0)} words"
            raise ValueError(f"no bucket has a sentence: {lengths}; default buckets need at least {batch_size} sentences")
        self.default_bucket_key = max(self.buckets)
        rows_and_words = (batch_size, self.default_bucket_key)
        shape = rows_and_words if self.major_axis == 0 else rows_and_words[::-1]
        self.provide_data = [DataDesc(data_name, shape, layout=layout)]
        self.provide_label = [DataDesc(label_name, shape, layout=layout)]
        # (bucket, first sentence) of each batch
        self.idx = [(i, j) for i, rows in enumerate(self.data) for j in range(0, len(rows) - batch_size + 1, batch_size)]
        self.reset()

    def _pad_sentences(self, sentences: Sequence[Sequence[int]], lengths: Sequence[int]) -> dict[int, np.ndarray]:
        """Pad each sentence with `invalid_label` to the smallest of the bucket lengths `lengths` (sorted) that it fits in.

        Returns {bucket length: array (sentences, bucket length)} without empty buckets.  Longer sentences are dropped, and
        their number is printed.
        """
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
        return {n: np.asarray(bucket, self.dtype) for n, bucket in rows.items() if bucket}

    def reset(self) -> None:
        """Shuffle the batches and the sentences of each bucket, and start the next epoch."""
        self.curr_idx = 0
        random.shuffle(self.idx)
        for rows in self.data:
            np.random.shuffle(rows)
        self.nddata = [from_host(rows.copy()) for rows in self.data]  # which the next shuffle does not change
        self.ndlabel = [from_host(self._next_words(rows)) for rows in self.data]

    def _next_words(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:, 1:], np.full_like(rows[:, :1], self.invalid_label)], axis=1)

    def next(self) -> DataBatch:
        """Return the next batch, whose sentences are of one bucket.

        Raises:
            StopIteration: the epoch has ended.
        """
        if self.curr_idx == len(self.idx):
            raise StopIteration
        bucket, first = self.idx[self.curr_idx]
        self.curr_idx += 1
        rows = slice(first, first + self.batch_size)
        # sync: slices of host arrays, which subclasses may have replaced; others would compile a program for each bucket
        pair = [counters.read(as_input(arrays[bucket]))[rows] for arrays in (self.nddata, self.ndlabel)]
        data, label = [nd.array(x if self.major_axis == 0 else x.T, dtype=self.dtype) for x in pair]
        descs = [DataDesc(name, data.shape, layout=self.layout) for name in (self.data_name, self.label_name)]
        key = self.buckets[bucket]
        return DataBatch([data], [label], pad=0, bucket_key=key, provide_data=descs[:1], provide_label=descs[1:])


def _frequent_lengths(sentences: Sequence[Sequence[int]], batch_size: int) -> list[int]:
    counts = np.bincount([len(s) for s in sentences])
    return [length for length, count in enumerate(counts) if count >= batch_size]
