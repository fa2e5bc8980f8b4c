"""The workloads that speed is measured on: networks, their sizes, and their synthetic training data.

Images are class prototypes plus noise, and words a Markov chain over a skewed vocabulary, so that a leg that silently skips its
updates is detected within a few steps. Nothing here imports a framework, because a process must be pinned to its cores before.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

CLASSES = 10
MOMENTUM = 0.9
MASKED = 0.15
# ResNet-20 (He et al. 2015, section 4.2): three stages of three blocks, (filters, stride of the first block)
STAGES = ((16, 1), (32, 2), (64, 2))
BLOCKS = 3
# ResNet-50 (table 1 there): (filters, blocks)
BOTTLENECKS = ((64, 3), (128, 4), (256, 6), (512, 3))


@dataclasses.dataclass(frozen=True)
class Workload:
    """A network with its optimizer, batch size, and the number of training rows.

    Attributes:
        name: short name, "w1" to "w5" for those that are compared with peers.
        kind: "mlp", "lenet", "resnet20", "resnet50", "lstm" or "transformer".
        title: what to call it in a table.
        shape: shape of a row: (features,), (channels, height, width), or (tokens,) of a text.
        batch: rows of a batch.
        rows: rows of an epoch.
        words: size of the vocabulary of a text, 0 for images.
        width, layers, heads: sizes of the networks for texts; layers of ResNet-50: at most so many blocks of each stage.
        learning_rate: of SGD with momentum 0.9 for images, of Adam for texts.
        dtype: "float32", or "bfloat16": layers compute in it, and parameters, optimizer and loss stay float32.
        causal: False: a transformer sees the whole text, of which 15 % of the words are masked, and predicts all words.
        tied: whether the last layer has the weight of the embedding, and no bias.
    """

    name: str
    kind: str
    title: str
    shape: tuple[int, ...]
    batch: int
    rows: int
    words: int = 0
    width: int = 0
    layers: int = 0
    heads: int = 0
    learning_rate: float = 0.02
    dtype: str = "float32"
    causal: bool = True
    tied: bool = False

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return self.rows // self.batch

    @property
    def text(self) -> bool:
        """Whether the rows are tokens, and the labels the next tokens."""
        return self.words > 0

    @property
    def bottlenecks(self) -> tuple[tuple[int, int], ...]:
        """The stages of ResNet-50: (filters, blocks)."""
        return tuple([(filters, min(blocks, self.layers or blocks)) for filters, blocks in BOTTLENECKS])

    def arrays(self, layout: str = "NCHW") -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels, the same for every leg and run.

        Args:
            layout: "NCHW" or "NHWC", for rows with channels.

        Returns:
            Images float32 (rows, *shape) and classes int32 (rows,), or tokens and next tokens, both int32 (rows, tokens).
            For a network that is not causal, tokens some of which are masked (replaced by the last word), and the tokens.
        """
        rng = np.random.default_rng(0)
        if self.text:
            words = self._words(rng)
            if not self.causal:
                masked = rng.random((self.rows, self.shape[0])) < MASKED
                return np.where(masked, np.int32(self.words - 1), words[:, 1:]), np.ascontiguousarray(words[:, 1:])
            return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])
        prototypes = rng.standard_normal((CLASSES, *self.shape), dtype=np.float32)
        labels = rng.integers(0, CLASSES, self.rows, dtype=np.int32)
        images = rng.standard_normal((self.rows, *self.shape), dtype=np.float32)
        images *= 0.3
        images += 0.3 * prototypes[labels]
        if layout == "NHWC" and len(self.shape) == 3:
            images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        return images, labels

    def _words(self, rng: np.random.Generator) -> np.ndarray:
        """Every second word is frequent (a squared uniform number), the one after it follows from it."""
        length = self.shape[0] + 1
        words = (rng.random((self.rows, length)) ** 4 * self.words).astype(np.int32)
        words[:, 1::2] = (words[:, ::2][:, : words[:, 1::2].shape[1]] * 7 + 1) % self.words
        return words

    def learned(self, first: float, last: float) -> bool:
        """Whether the metric of the last epoch shows it: an accuracy above chance (0.1), a cross entropy below the first."""
        return last < min(first, math.log(self.words)) - 0.2 if self.text else last > 0.25

    def resized(self, rows: int) -> Workload:
        """The same workload with another number of rows."""
        return dataclasses.replace(self, rows=rows)


_ALL = (
    Workload("w1", "mlp", "W1: MLP 784-128-64-10, batch 64", (784,), 64, 60_032),
    Workload("w2", "lenet", "W2: LeNet on 1 x 28 x 28, batch 128", (1, 28, 28), 128, 12_800),
    Workload("w3", "resnet20", "W3: ResNet-20 on 3 x 32 x 32, batch 128", (3, 32, 32), 128, 12_800),
    Workload(
        "w4",
        "lstm",
        "W4: language model, 2 x LSTM(200), 35 tokens of 10,000 words, batch 32",
        (35,),
        32,
        3_200,
        words=10_000,
        width=200,
        layers=2,
        learning_rate=0.005,
    ),
    Workload(
        "w5",
        "transformer",
        "W5: language model, transformer of 4 layers of width 256 with 4 heads, 128 tokens of 1,000 words, batch 16",
        (128,),
        16,
        1_600,
        words=1_000,
        width=256,
        layers=4,
        heads=4,
        learning_rate=0.001,
    ),
    Workload("resnet50", "resnet50", "ResNet-50 on 3 x 64 x 64, batch 32", (3, 64, 64), 32, 3_200),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
KINDS = {workload.kind: workload for workload in _ALL}
