"""The same networks trained by PyTorch's DistributedDataParallel, one process per device, gradients summed by gloo on CPU."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from jfit.bench import models, peers


def is_available(model: str) -> bool:
    """Whether torch is installed and has the model.

    Args:
        model: name of the model.

    Example:
        >>> is_available("transformer")
        False
    """
    return model in ("mlp", "resnet20") and importlib.util.find_spec("torch") is not None


def samples_per_second(request: Mapping[str, Any]) -> float:
    """Measure training by as many processes as `request` has devices, on CPU.

    Args:
        request: "model", "devices", "batch" (global), "seconds" and "rounds".

    Returns:
        Samples per second over all processes.

    Raises:
        RuntimeError: a process failed; the message has the end of its output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    count, processes = request["devices"], []
    for rank in range(count):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "jfit.bench", "torch", json.dumps(dict(request))]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, results, strict=True):
        if process.returncode:
            raise RuntimeError(f"torch DDP failed:\n{errors[-2000:]}")
    return float(results[0][0].splitlines()[-1])


def main(arguments: list[str]) -> int:
    """Train in one process of several, and print the samples per second of all.

    Args:
        arguments: the request as JSON, see `samples_per_second`.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m jfit.bench torch", description=main.__doc__)
    parser.add_argument("request", help="JSON")
    request = json.loads(parser.parse_args(arguments).request)
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    rows = models.load(request["model"]).rows(request["batch"])
    size = request["batch"] // count
    x, label = (torch.from_numpy(rows[name][rank * size : (rank + 1) * size].copy()) for name in ("data", "softmax_label"))
    net = torch.nn.parallel.DistributedDataParallel(_net(request["model"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=peers.LEARNING_RATE, momentum=peers.MOMENTUM)
    loss_of = torch.nn.CrossEntropyLoss()

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss_of(net(x), label.long()).backward()
            optimizer.step()

    train(3)
    start = time.perf_counter()
    train(3)
    steps = torch.tensor(max(3, round(3 * request["seconds"] / (time.perf_counter() - start))))
    distributed.broadcast(steps, 0)
    speeds = []
    for _ in range(request["rounds"]):
        distributed.barrier()
        start = time.perf_counter()
        train(int(steps))
        distributed.barrier()
        speeds.append(size * count * int(steps) / (time.perf_counter() - start))
    print(statistics.median(speeds))
    distributed.destroy_process_group()
    return 0


def _net(model: str) -> Any:
    from torch import nn

    if model == "mlp":
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))

    def unit(before: int, channels: int, kernel: int, stride: int) -> Any:
        convolution = nn.Conv2d(before, channels, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels))

    class Block(nn.Module):
        def __init__(self, before: int, channels: int, stride: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(unit(before, channels, 3, stride), nn.ReLU(), unit(channels, channels, 3, 1))
            self.same = unit(before, channels, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.inner(x) + self.same(x))

    layers, before = [unit(3, 16, 3, 1), nn.ReLU()], 16
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(Block(before, channels, 2 if stage and block == 0 else 1))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
