"""The same networks trained by PyTorch's DistributedDataParallel, one process per device, gradients summed by gloo on CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from jfit import distributed
from jfit.bench import models, peers, processes
from jfit.distributed.job import current


def is_available(model: str) -> bool:
    """Whether torch is installed and has the model.

    Args:
        model: name of the model.

    Example:
        >>> is_available("transformer")
        False
    """
    return model in ("mlp", "resnet20") and importlib.util.find_spec("torch") is not None


def samples_per_second(request: Mapping[str, Any], timeout: float = 1800.0) -> float:
    """Measure training by as many processes as `request` has devices, on CPU; in a job, each process starts its part of them.

    Args:
        request: "model", "devices", "batch" (global), "seconds" and "rounds".
        timeout: seconds after which the processes are killed.

    Returns:
        Samples per second over all processes, the same in all processes of a job.

    Raises:
        RuntimeError: a process failed, or did not end in time; the message has the end of its output.
    """
    job, own = current(), request["devices"] // distributed.num_processes()
    hosts = ["127.0.0.1"] if job is None else [peer.host for peer in job.peers]
    host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
    port = distributed.exchange(processes.free_port(), "the port of torch")[0]
    environments = []
    for rank in range(distributed.rank() * own, (distributed.rank() + 1) * own):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        variables |= {"RANK": str(rank), "WORLD_SIZE": str(request["devices"]), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        environments.append(variables | {"OMP_NUM_THREADS": "1"})
    commands = [[sys.executable, "-m", "jfit.bench", "torch", json.dumps(dict(request))]] * own
    outputs = processes.run_together("torch DDP", commands, environments, timeout)
    return distributed.exchange(float(outputs[0].splitlines()[-1]), "samples per second of torch")[0]


def main(arguments: list[str]) -> int:
    """Train in one process of several, and print the samples per second of all.

    Args:
        arguments: the request as JSON, see `samples_per_second`.

    Returns:
        Exit status.
    """
    import torch
    from torch import distributed

    request = json.loads(arguments[0])
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
