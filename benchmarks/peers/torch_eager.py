"""Group (d): PyTorch eager, with batches from a DataLoader or, which is faster, by indexing tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.workloads import CLASSES, LEARNING_RATE, MOMENTUM, SIDE, Workload


def _network(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    convolutions = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES))


class TorchEager:
    """The leg: zero_grad, forward, backward, step; the accuracy is summed in a tensor and read once per epoch."""

    def __init__(self, workload: Workload, cores: int, loader: bool) -> None:
        self.workload, self.loader, self.accuracy = workload, loader, 0.0
        torch.set_num_threads(cores)

    def setup(self) -> None:
        """Build and train one epoch."""
        torch.manual_seed(0)
        x, y = self.workload.shaped("NCHW")
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y).long()
        self._net = _network(self.workload.kind)
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        rows = torch.utils.data.TensorDataset(self._x, self._y)
        self._loader = torch.utils.data.DataLoader(rows, batch_size=self.workload.batch, shuffle=True)
        self.epoch()

    def _batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if self.loader:
            yield from self._loader
            return
        order = torch.randperm(self.workload.rows)
        for rows in order.split(self.workload.batch):
            yield self._x[rows], self._y[rows]

    def epoch(self) -> int:
        """Train one shuffled epoch, including an incomplete last batch."""
        correct = torch.zeros((), dtype=torch.int64)
        for x, y in self._batches():
            self._optimizer.zero_grad()
            logits = self._net(x)
            self._loss(logits, y).backward()
            self._optimizer.step()
            correct += (logits.argmax(1) == y).sum()
        self.accuracy = float(correct) / self.workload.rows
        return self.workload.rows


def make(workload: Workload, cores: int, *, loader: bool) -> TorchEager:
    """Make the PyTorch leg, with or without a DataLoader."""
    return TorchEager(workload, cores, loader)
