"""Tests and measures training on the N GPUs of this machine, in one call, and prints a report in Markdown.

    python3 dist/benchmarks/ranks.py --logs logs >report.md

It runs in the bundle (make bundle), without Go, and needs PyTorch with NCCL, and gcc. --part chooses some parts:

    tests      the tests of collectives, Parallel and its optimisers, in their short form
    steps      BenchmarkParallel beside DDP and ZeroRedundancyOptimizer, in turns: times of steps, peaks of memory
    allreduce  BenchmarkAllReduce: all-reduces queued from Go, and by a loop in C
    mnist      the example's five models on N ranks, with the losses of one rank
    killed     a rank is killed, the others end with an error that names it, and the training resumes under torchrun

A part that fails does not stop the next one; the exit status is then 1. CISTERN_TEST_RANKS=host,host tries the script
on two ranks of the host device, which are goroutines of one process.
"""
import argparse
import contextlib
import gzip
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import time
import traceback

from launch import DIST, Failed, Machine, free_port, table

MNIST = os.path.join(DIST, "mnist")
TESTS = {"device/cuda": "^Test(Collective|NoNCCL)", "autograd/parallel": ".", "autograd/optim": "Minimize"}
SIZES = (512, 128), (512, 1024), (4096, 1024)  # width and rows of BenchmarkParallel
STEPS = 200
SHARDINGS = {"ranks": "nothing", "ranks-state": "state", "ranks-gradients": "gradients"}
NEAR = 1e-5  # between losses
EPOCHS = 20  # of the training in which a rank is killed
TIMEOUT = 10  # seconds that a rank waits for a killed one


class Run(Machine):
    """A part of the report is a method."""

    def tests(self):
        failures, rows = [], []
        for package, names in TESTS.items():
            began = time.monotonic()
            code, out = self.binary(package, "tests-" + package.replace("/", "-"), 250, "-test.run", names, "-test.v",
                                    "-test.short", "-test.timeout", "240s")
            counts = [len(re.findall(f"--- {end}: ", out)) for end in ("PASS", "FAIL", "SKIP")]
            rows.append([package, *counts, f"{time.monotonic() - began:.0f}"])
            if code:
                failed = re.findall(r"(?:--- FAIL: |^\t)(Test\S+) \(", out, re.M)  # or running when the time was over
                failures.append(f"{package}, exit status {code}: {', '.join(failed)}")
        table("package | passed | failed | skipped | seconds", rows)
        if failures:
            raise Failed("; ".join(failures))

    def steps(self):
        times, peaks = {}, {}  # by case: of each round, and of each rank in the last round
        sizes = ",".join(f"{width}x{rows}" for width, rows in SIZES)
        command = [sys.executable, os.path.join(DIST, "benchmarks", "ddp.py"), sizes, str(STEPS)]
        with self.started("ddp", command, self.n, 60 + 30 * self.rounds, subprocess.PIPE) as others:
            self.ask(others)  # warms up
            for _ in range(self.rounds):
                for cases in zip(*self.ask(others)):  # a case of all ranks
                    case = tuple(cases[0][:3])
                    times.setdefault(case, []).append(max(us for *_, us, _ in cases))
                    peaks[case] = [mib for *_, mib in cases]
                code, out = self.benchmark("autograd/parallel", "steps", "Parallel$", STEPS)
                if code:
                    raise Failed(self.last_lines("steps"))
                for m in re.finditer(r"BenchmarkParallel/width(\d+)/rows(\d+)/([\w-]+/(?:called|captured))(.*)", out):
                    case = int(m[1]), int(m[2]), m[3]
                    times.setdefault(case, []).append(float(re.search(r"([\d.]+) ns/op", m[4])[1]) / 1e3)
                    peaks[case] = [float(kib) / 2**10 for kib in re.findall(r"([\d.]+) KiB-at-most", m[4])]
        us = {case: statistics.median(rounds) for case, rounds in times.items()}
        rows, efficiency, memory = [], [], []
        for size in SIZES:
            name = "{:,}, {:,}".format(*size)
            for way, sharded in SHARDINGS.items():
                figures = [us[*size, w] for w in (way + "/called", way + "/captured", "ddp", "zero")]
                ratios = [f"{t / figures[2]:.2f}" for t in figures[:2]]
                rows.append([name, sharded, *(f"{t:,.0f}" for t in figures), *ratios])
                ours, ddp, zero = (peaks[*size, w] for w in (way + "/called", "ddp", "zero"))
                memory.append([name, sharded, *map(by_rank, (ours, ddp, zero)),
                               f"{max(ours) / max(ddp):.2f}" if max(ddp) else ""])
            pairs = ("alone/called", "ranks/called"), ("alone/captured", "ranks/captured"), ("alone", "ddp")
            efficiency.append([name, *(f"{us[*size, alone] / us[*size, ranks]:.3f}" for alone, ranks in pairs)])
        print(f"Medians of {self.rounds} rounds in turns, µs a step of the slowest rank:\n")
        table("width, rows | sharded | called | captured | DDP | ZeRO | called / DDP | captured / DDP", rows)
        print("\nEfficiency, the time of ranks without an exchange ÷ that of ranks:\n")
        table("width, rows | called | captured | DDP", efficiency)
        print("\nMiB allocated at most in called steps, by rank, and the ratio of the largest:\n")
        table("width, rows | sharded | ours | DDP | ZeRO | ours / DDP", memory)

    def ask(self, others):
        """PyTorch's figures of a round, by rank."""
        for p in others:
            print(file=p.stdin, flush=True)
        replies = [p.stdout.readline() for p in others]
        if not all(replies):
            rank = replies.index("")
            raise Failed(f"rank {rank} of PyTorch ended without figures: {self.last_lines(f'ddp-{rank}')}")
        return [json.loads(reply) for reply in replies]

    def allreduce(self):
        if not self.on_gpus:
            return print("Not run: NCCL needs GPUs.")
        code, out = self.benchmark("device/cuda", "allreduce", "AllReduce/./^(go|c)$", 300)
        found = re.findall(r"-(\d+)-bytes/(?:go|c)\S*\s+\d+\s+([\d.]+) ns/op\s+([\d.]+) busGB/s", out)
        if code or not found:
            raise Failed(self.last_lines("allreduce"))
        rows = []
        for (size, *go), (_, *c) in zip(found[::2], found[1::2]):
            rows.append([f"{int(size):,}", *(f"{float(ns) / 1e3:,.1f}" for ns, _ in (go, c)), go[1], c[1],
                         f"{float(go[0]) / float(c[0]):.2f}"])
        table("bytes | Go, µs | C, µs | Go, bus GB/s | C, bus GB/s | Go / C", rows)

    def train(self, name, size, *args):
        """The results of a training with the example."""
        file = os.path.join(self.logs, name + ".json")
        with self.started(name, [MNIST, "-json", file, *args], size, 120) as ranks:
            self.finish(name, ranks)
        return load(file)

    def mnist(self):
        failures, rows, batch = [], [], 32 * self.n
        for model in "mlp", "cnn", "resnet", "vit", "lstm":
            args = ["-data", self.digits(10 * batch), "-batch", str(batch), "-epochs", "2", "-model", model]
            of, reference = "one rank", ["-device", self.devices[0]]
            if model == "resnet":  # ranks normalise parts of the batch, and Adam would multiply rounding errors
                args += ["-optimizer", "sgd", "-lr", "0.003"]
                of, reference = f"{self.n} ranks of the host device", ["-ranks", str(self.n)]
            try:
                want = self.train(f"mnist-{model}-reference", 1, *args, *reference)["loss"]
                got = self.train(f"mnist-{model}", self.processes, *args, *self.on_ranks)
                peaks = [peak / 2**20 for peak in got.get("max_memory_allocated_by_rank", [])]
                rows.append([model, of, got["loss"], f"{difference(want, got['loss']):.1e}", by_rank(peaks)])
                check_near(want, got["loss"])
            except Failed as e:
                failures.append(f"{model}: {e}")
        table("model | losses of | losses | largest difference | MiB at most by rank", rows)
        if failures:
            raise Failed("; ".join(failures))

    def killed(self):
        batch, victim, checkpoint = 64 * self.n, self.processes - 1, os.path.join(self.logs, "checkpoint")
        with contextlib.suppress(FileNotFoundError):
            os.remove(checkpoint)
        args = ["-data", self.digits(60 * batch), "-batch", str(batch), *self.on_ranks]
        args += ["-epochs", str(EPOCHS), "-timeout", f"{TIMEOUT}s"]
        want = self.train("killed-unbroken", self.processes, *args)["loss"]
        args += ["-resume", checkpoint]
        with self.started("killed", [MNIST, *args], self.processes, 120) as ranks:
            self.wait_for_saves("killed-0", checkpoint, ranks[0])
            ranks[victim].kill()
            began = time.monotonic()
            codes = [p.wait() for p in ranks]
            took = time.monotonic() - began
        print(f"Rank {victim} was killed. The other processes ended after {took:.1f} s:\n")
        for rank, code in enumerate(codes[:victim]):
            error = self.last_lines(f"killed-{rank}")
            print(f"    {error}")
            named = re.search(rf"ranks? ([\d, ]+, )?{victim}(, [\d, ]+)? (is|are) missing", error)
            if code != 1 or took > TIMEOUT + 20 or not named:
                raise Failed(f"rank {rank} has the exit status {code}, ended too late, or does not name rank {victim}")

        # Now torchrun starts all ranks again after one is killed.
        file, pids = os.path.join(self.logs, "killed.json"), os.path.join(self.logs, "pid")
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(self.processes), "--no_python",
                  "--max_restarts", "1", "--master_addr", "127.0.0.1", "--master_port", free_port()]
        keep_pid = ["sh", "-c", 'read pid rest </proc/self/stat; echo $pid >"$0-$RANK"; exec "$@"', pids]
        with self.started("torchrun", [*launch, *keep_pid, MNIST, "-json", file, *args], 1, 180) as ranks:
            self.wait_for_saves("torchrun-0", checkpoint, ranks[0])
            with open(f"{pids}-{victim}") as f:
                os.kill(int(f.read()), signal.SIGKILL)
            self.finish("torchrun", ranks)
        got = load(file)["loss"]
        want = want[-len(got):]
        print(f"\nUnder torchrun it was killed again. After both resumes, the losses of the last {len(got)} of "
              f"{EPOCHS} epochs differ by at most {difference(want, got):.1e} from those of an unbroken training.")
        if len(got) == EPOCHS:
            raise Failed("the training has begun anew")
        check_near(want, got)

    def wait_for_saves(self, name, checkpoint, process):
        """Waits until a training has written its checkpoint twice."""
        seen = set()
        while len(seen) < 3:
            seen.add(os.path.exists(checkpoint) and os.stat(checkpoint).st_mtime_ns)
            if process.poll() is not None:
                raise Failed(f"{name} ended before the kill: {self.last_lines(name)}")
            time.sleep(0.002)

    def digits(self, count):
        """A folder with the first digits of the bundle's MNIST files."""
        folder = os.path.join(self.logs, f"digits-{count}")
        os.makedirs(folder, exist_ok=True)
        for part, n in ("train", count), ("t10k", 500):
            for kind, header, size in ("images-idx3-ubyte", 16, 784), ("labels-idx1-ubyte", 8, 1):
                name = f"{part}-{kind}"
                with gzip.open(os.path.join(DIST, "data", name + ".gz")) as f:
                    data = f.read(header + n * size)
                with open(os.path.join(folder, name), "wb") as f:
                    f.write(data[:4] + struct.pack(">I", n) + data[8:])
        return folder


def load(file):
    with open(file) as f:
        return json.load(f)


def difference(want, got):
    finite = len(want) == len(got) and None not in want + got  # null is NaN
    return max(abs(w - g) for w, g in zip(want, got)) if finite else float("inf")


def check_near(want, got):
    if difference(want, got) > NEAR:
        raise Failed(f"the losses are {got}, and {want} of the reference")


def by_rank(mib):
    return ", ".join(f"{m:.0f}" for m in mib)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=10, help="of the part steps")
    p.add_argument("--logs", default="ranks-logs", help="folder for the output of all programs")
    p.add_argument("--part", default="", help="a regular expression of the parts; default: all")
    a = p.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    run, failed = Run(a), []
    print(f"# {run.n} ranks\n\n{run.about()}")
    for part in run.tests, run.steps, run.allreduce, run.mnist, run.killed:
        if not re.search(a.part, part.__name__):
            continue
        print(f"\n## {part.__name__}\n")
        began = time.monotonic()
        try:
            part()
        except Exception as e:  # the next part runs
            failed.append(part.__name__)
            print(f"\nFAILED: {e}")
            if not isinstance(e, Failed):
                traceback.print_exc()
        print(f"\n{time.monotonic() - began:.0f} s")
    print("\nFailed: " + ", ".join(failed) if failed else "\nNo part failed.")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
