"""PyTorch eager: forward, backward, step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.first_step import BLOCKS, CLASSES, LEARNING_RATE, MOMENTUM, STAGES

LAYOUT = "NCHW"


def _unit(before: int, filters: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(before, filters, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


class _Block(nn.Module):
    def __init__(self, before: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_unit(before, filters, 3, stride), nn.ReLU(), _unit(filters, filters, 3, 1))
        self.short = _unit(before, filters, 1, stride) if before != filters else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _network(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    if kind == "lenet":
        body = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES))
    parts: list[nn.Module] = [_unit(3, 16, 3, 1), nn.ReLU()]
    before = 16
    for filters, stride in STAGES:
        for block in range(BLOCKS):
            parts.append(_Block(before, filters, stride if block == 0 else 1))
            before = filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def begin(kind: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """Return a function that trains one batch and reads the loss."""
    net, loss = _network(kind), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    images, labels = torch.from_numpy(x), torch.from_numpy(y).long()

    def train() -> float:
        optimizer.zero_grad()
        value = loss(net(images), labels)
        value.backward()
        optimizer.step()
        return float(value)

    return train
