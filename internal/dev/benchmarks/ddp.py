"""Times training steps of PyTorch's DistributedDataParallel as one rank, for ranks.py.

The variables are torchrun's. Each line of the standard input asks for a round, which times every case once: ranks
that train at the same time without an exchange (alone), DDP with fused Adam (ddp), and DDP with fused Adam in a
ZeroRedundancyOptimizer (zero). The reply is one line of JSON, a list of [width, rows, way, µs a step, peak in MiB].
Between rounds the rank waits for its input, so the GPU is idle.

Model, batch and steps are those of BenchmarkParallel in autograd/parallel: an MLP 784-width-width-10 in float32
without TF32, on a batch that is on the GPU. The peak is of allocated memory after the first steps, and includes
workspaces but not NCCL's own memory. Without a GPU the ranks run on the CPU through gloo, and the peak is 0.

    python3 ddp.py WIDTHxROWS[,WIDTHxROWS...] STEPS
"""
import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer

WAYS = "alone", "ddp", "zero"
WARM_UP = 10
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if GPU else torch.device("cpu")


def synchronize():
    if GPU:
        torch.cuda.synchronize()


def stepper(width, rows, way):
    """A function that queues one training step."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    model.to(DEVICE)
    if way != "alone":
        model = nn.parallel.DistributedDataParallel(model, [DEVICE] if GPU else None, gradient_as_bucket_view=True)
    options = {"lr": 1e-3, "fused": GPU}
    if way == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, **options)
    else:
        optimizer = torch.optim.Adam(model.parameters(), **options)
    x, y = torch.randn(rows, 784, device=DEVICE), torch.randint(10, (rows,), device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return step


def measure(width, rows, way, steps):
    """The microseconds of a step, and the peak of allocated MiB."""
    step = stepper(width, rows, way)
    for _ in range(WARM_UP):
        step()
    synchronize()
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    dist.barrier()
    synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    took = (time.perf_counter() - began) / steps * 1e6
    return took, torch.cuda.max_memory_allocated() / 2**20 if GPU else 0


def main():
    sizes = [tuple(map(int, size.split("x"))) for size in sys.argv[1].split(",")]
    steps = int(sys.argv[2])
    torch.backends.cuda.matmul.allow_tf32 = False
    if GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if GPU else "gloo")
    while sys.stdin.readline():
        figures = []
        for width, rows in sizes:
            for way in WAYS:
                figures.append([width, rows, way, *measure(width, rows, way, steps)])
                gc.collect()  # the model is part of a cycle
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
