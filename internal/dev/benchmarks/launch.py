"""Starts the programs of ranks.py and keeps their output."""
import contextlib
import datetime
import os
import re
import socket
import subprocess
import sys
import threading

import torch

DIST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Failed(Exception):
    """The failure of a part. The report contains its text."""


class Machine:
    """The devices of the ranks, and the programs that run on them."""

    def __init__(self, options):
        named = os.environ.get("CISTERN_TEST_RANKS")
        self.devices = named.split(",") if named else [f"cuda:{n}" for n in range(torch.cuda.device_count())]
        if not self.devices:
            sys.exit("ranks.py: PyTorch finds no GPU")
        self.n, self.rounds, self.logs = len(self.devices), options.rounds, os.path.abspath(options.logs)
        os.makedirs(self.logs, exist_ok=True)
        self.env = dict(os.environ, NCCL_NVLS_ENABLE="0", CISTERN_TEST_RANKS=",".join(self.devices),
                        CISTERN_BENCH_RANKS=str(self.n))
        self.on_gpus = self.devices[0].startswith("cuda")
        self.processes = self.n if self.on_gpus else 1
        self.on_ranks = ["-device", "cuda"] if self.on_gpus else ["-ranks", str(self.n)]
        if self.on_gpus:
            self.env["CISTERN_TEST_DEVICE"] = self.devices[0]
        with open("/proc/self/maps") as f:
            if nccl := re.search(r"(/.*)/libnccl\.so\.2", f.read()):  # PyTorch's
                self.env["LD_LIBRARY_PATH"] = nccl[1] + ":" + os.environ.get("LD_LIBRARY_PATH", "")

    def about(self):
        about = ["PyTorch " + torch.__version__, *self.devices, str(datetime.date.today())]
        if torch.cuda.is_available():
            about += [torch.cuda.get_device_name(), "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))]
        return ", ".join(about)

    def log(self, name):
        return os.path.join(self.logs, name + ".log")

    def last_lines(self, name):
        with open(self.log(name)) as f:
            return " / ".join(f.read().strip().splitlines()[-3:])

    def binary(self, package, name, limit, *args):
        """The exit status and the output of a package's tests."""
        with open(self.log(name), "w+") as out:
            code = subprocess.run(["./package.test", *args], cwd=os.path.join(DIST, package), env=self.env, stdout=out,
                                  stderr=out, timeout=limit).returncode
            out.seek(0)
            return code, out.read()

    def benchmark(self, package, name, pattern, times):
        return self.binary(package, name, 240, "-test.run", "^$", "-test.bench", pattern,
                           "-test.benchtime", f"{times}x")

    @contextlib.contextmanager
    def started(self, name, command, size, limit, pipes=None):
        """Processes with torchrun's variables, one for each rank. After limit seconds they are killed."""
        port, ranks = free_port(), []
        for rank in range(size):
            env = dict(self.env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=port, OMP_NUM_THREADS="1")
            with open(self.log(f"{name}-{rank}"), "w") as log:
                ranks.append(subprocess.Popen(command, env=env, text=True, stdin=pipes, stdout=pipes or log,
                                              stderr=log))

        def kill():
            for p in ranks:
                p.kill()
        timer = threading.Timer(limit, kill)
        timer.start()
        try:
            yield ranks
        finally:
            timer.cancel()
            kill()
            for p in ranks:
                p.wait()

    def finish(self, name, ranks):
        for rank, p in enumerate(ranks):
            if p.wait():
                raise Failed(f"{name}, rank {rank}: exit status {p.returncode}: {self.last_lines(f'{name}-{rank}')}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def table(header, rows):
    print("|", header, "|\n|" + " --- |" * (header.count("|") + 1))
    for row in rows:
        print("|", " | ".join(map(str, row)), "|")
