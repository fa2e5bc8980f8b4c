"""PyTorch eager: forward, backward, step; batches by indexing tensors in memory, images in the memory format channels_last."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import Leg
from benchmarks.workloads import BLOCKS, CLASSES, MOMENTUM, STAGES, Workload


def _unit(before: int, filters: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(before, filters, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


class Residual(nn.Module):
    """Two units and the shortcut."""

    def __init__(self, before: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_unit(before, filters, 3, stride), nn.ReLU(inplace=True), _unit(filters, filters, 3, 1))
        self.short = _unit(before, filters, 1, stride) if before != filters else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(body(x) + short(x))."""
        return torch.relu(self.body(x) + self.short(x))


class Lstm(nn.Module):
    """Embedding, LSTM layers, a dense layer."""

    def __init__(self, w: Workload) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(w.words, w.width), nn.Linear(w.width, w.words)
        self.body = nn.LSTM(w.width, w.width, w.layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (rows, tokens, words)."""
        return self.last(self.body(self.embed(x))[0])


class Block(nn.Module):
    """Attention and two dense layers, each after a LayerNorm."""

    def __init__(self, w: Workload) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = w.heads, nn.LayerNorm(w.width), nn.LayerNorm(w.width)
        self.qkv, self.out = nn.Linear(w.width, 3 * w.width), nn.Linear(w.width, w.width)
        self.dense = nn.Sequential(nn.Linear(w.width, 4 * w.width), nn.GELU(), nn.Linear(4 * w.width, w.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, tokens, width) -> the same shape."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.dense(self.norm2(x))


class Transformer(nn.Module):
    """Embeddings, causal blocks, a dense layer."""

    def __init__(self, w: Workload) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(w.words, w.width), nn.Parameter(0.1 * torch.randn(*w.shape, w.width))
        self.body = nn.Sequential(*[Block(w) for _ in range(w.layers)], nn.LayerNorm(w.width), nn.Linear(w.width, w.words))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (rows, tokens, words)."""
        return self.body(self.embed(x) + self.position)


def _network(w: Workload) -> nn.Module:
    if w.text:
        return {"lstm": Lstm, "transformer": Transformer}[w.kind](w)
    if w.kind == "mlp":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    if w.kind == "lenet":
        body = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES))
    parts: list[nn.Module] = [_unit(w.shape[0], 16, 3, 1), nn.ReLU(inplace=True)]
    before = 16
    for filters, stride in STAGES:
        for block in range(BLOCKS):
            parts.append(Residual(before, filters, stride if block == 0 else 1))
            before = filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def begin(workload: Workload, *, channels_last: bool = True) -> Leg:
    """Prepare the leg; the metric is summed in a tensor and read once per epoch."""
    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    net, rate, text = _network(workload), workload.learning_rate, workload.text
    x, y = (torch.from_numpy(array) for array in workload.arrays())
    y = y.long()
    if channels_last and x.ndim == 4:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # pyright: ignore
    loss, optim, parameters = nn.CrossEntropyLoss(), torch.optim, list(net.parameters())
    rule = optim.Adam(parameters, rate, fused=True) if text else optim.SGD(parameters, rate, MOMENTUM)

    def train() -> float:
        total = torch.zeros(())
        for rows in torch.randperm(workload.rows).split(workload.batch):
            label = y[rows]
            rule.zero_grad()
            logits = net(x[rows])
            value = loss(logits.flatten(0, -2), label.flatten())
            value.backward()
            rule.step()
            total += value.detach() if text else (logits.argmax(1) == label).float().mean()
        return float(total) / workload.steps

    return Leg(train, lambda: sum(p.numel() for p in parameters))
