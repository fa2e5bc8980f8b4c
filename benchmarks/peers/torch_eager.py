"""PyTorch: forward, backward, step; batches by indexing tensors on the device, images in the memory format channels_last.

On a GPU, float32 products may use TF32, as those of JAX do; bfloat16 is `torch.autocast`.
"""

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


class Bottleneck(nn.Module):
    """Three units and the shortcut."""

    def __init__(self, before: int, filters: int, stride: int) -> None:
        super().__init__()
        first = _unit(before, filters, 1, 1), nn.ReLU(inplace=True)
        second = _unit(filters, filters, 3, stride), nn.ReLU(inplace=True)
        self.body = nn.Sequential(*first, *second, _unit(filters, 4 * filters, 1, 1))
        self.short = _unit(before, 4 * filters, 1, stride) if before != 4 * filters else nn.Identity()

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
        self.heads, self.causal, self.norm1, self.norm2 = w.heads, w.causal, nn.LayerNorm(w.width), nn.LayerNorm(w.width)
        self.qkv, self.out = nn.Linear(w.width, 3 * w.width), nn.Linear(w.width, w.width)
        self.dense = nn.Sequential(nn.Linear(w.width, 4 * w.width), nn.GELU(), nn.Linear(4 * w.width, w.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, tokens, width) -> the same shape."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.dense(self.norm2(x))


class Transformer(nn.Module):
    """Embeddings, blocks, a dense layer."""

    def __init__(self, w: Workload) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(w.words, w.width), nn.Parameter(0.1 * torch.randn(*w.shape, w.width))
        last = nn.Linear(w.width, w.words, bias=not w.tied)
        self.body = nn.Sequential(*[Block(w) for _ in range(w.layers)], nn.LayerNorm(w.width), last)
        if w.tied:
            nn.init.normal_(self.embed.weight, std=0.02)
            last.weight = self.embed.weight

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
    if w.kind == "resnet50":
        parts: list[nn.Module] = [_unit(w.shape[0], 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        before = 64
        for stage, (filters, count) in enumerate(w.bottlenecks):
            for block in range(count):
                parts.append(Bottleneck(before, filters, 2 if stage and not block else 1))
                before = 4 * filters
    else:
        parts, before = [_unit(w.shape[0], 16, 3, 1), nn.ReLU(inplace=True)], 16
        for filters, stride in STAGES:
            for block in range(BLOCKS):
                parts.append(Residual(before, filters, stride if block == 0 else 1))
                before = filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def begin(workload: Workload, *, channels_last: bool = True, compiled: bool = False) -> Leg:
    """Prepare the leg; the metric is summed in a tensor and read once per epoch; `compiled`: with `torch.compile`."""
    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    net, rate, text = _network(workload).to(device), workload.learning_rate, workload.text
    x, y = (torch.from_numpy(array).to(device) for array in workload.arrays())
    y = y.long()
    if channels_last and x.ndim == 4:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # pyright: ignore
    loss, optim, parameters = nn.CrossEntropyLoss(), torch.optim, list(net.parameters())
    on_gpu = {"fused": True} if device.type == "cuda" else {}
    rule = optim.Adam(parameters, rate, fused=True) if text else optim.SGD(parameters, rate, MOMENTUM, **on_gpu)
    low = workload.dtype == "bfloat16"
    run = torch.compile(net) if compiled else net

    def train() -> float:
        total = torch.zeros((), device=device)
        for rows in torch.randperm(workload.rows, device=device).split(workload.batch):
            label = y[rows]
            rule.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                logits = run(x[rows])
                value = loss(logits.flatten(0, -2), label.flatten())
            value.backward()
            rule.step()
            total += value.detach() if text else (logits.argmax(1) == label).float().mean()
        return float(total) / workload.steps

    return Leg(train, lambda: sum(p.numel() for p in parameters))
