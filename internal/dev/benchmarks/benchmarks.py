"""Times training steps of this project beside PyTorch's and JAX's, in turns, and prints a table in Markdown.

    make benchmarks                        on a machine with Go, a GPU and PyTorch
    python3 dist/benchmarks/benchmarks.py  in the bundle, without Go

Each round times every case once by every way: this project captured, PyTorch called, replayed as a
CUDA graph and compiled (mode reduce-overhead), JAX. The table has the medians of the rounds in
microseconds. An interrupt ends the rounds. Products are in float32 without TF32, or in bfloat16 by
PyTorch's autocast. PyTorch takes steps of AdamW and JAX of Adam, on one batch that is on the GPU.
BenchmarkTraining is the example, which also loads its batches, sets the rate of each step, and clips
the gradients of its LSTM.
"""
import argparse
import datetime
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = "called", "graph", "compile", "jax"

# This project's benchmarks: the folder of the test binary, and the steps of a run.
BENCHMARKS = {
    "BenchmarkModel": ("autograd", "300x"),
    "BenchmarkTraining": ("examples/mnist", "300x"),
    "BenchmarkGPT": ("autograd", "10x"),
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--case", default="", help="a regular expression of the cases; default: all")
    return p.parse_args()


def ours(cases):
    """Of each case, the microseconds of a captured step."""
    environment = dict(os.environ, CISTERN_TEST_DEVICE=os.environ.get("CISTERN_TEST_DEVICE", "cuda:0"))
    found = {}
    for benchmark, (folder, times) in BENCHMARKS.items():
        names = [c.split("/")[1:] for c in cases if c.startswith(benchmark + "/")]
        if not names:
            continue
        levels = ["|".join(sorted(set(level))) for level in zip(*names)]
        if folder == "autograd":
            levels.append("captured")
        pattern = "/".join(f"^({level})$" for level in [benchmark] + levels)
        folder = os.path.join(HERE, "..", folder)
        command = [os.path.join(folder, "package.test"), "-test.run", "^$"]
        command += ["-test.bench", pattern, "-test.benchtime", times]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
        for line in out.stdout.splitlines():
            m = re.match(r"(Benchmark.*?)(?:/captured)?(?:-\d+)?\s.*?([\d.]+) ns/op", line)
            if m:
                found[m[1]] = float(m[2]) / 1e3
    if missing := [c for c in cases if c not in found]:
        raise RuntimeError(f"the programs printed no times of {', '.join(missing)}")
    return found


def torch_stepper(case, way):
    """A function that queues n steps and waits for them."""
    import torch
    import torch.nn.functional as F

    import models
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    make, data, half = models.CASES[case]
    torch.manual_seed(1)
    model, (x, y) = make().cuda(), data()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True, capturable=way == "graph")
    forward = torch.compile(model, mode="reduce-overhead", dynamic=False) if way == "compile" else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=way != "graph"):
            logits = forward(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), y.flatten())
        loss.backward()
        optimizer.step()

    one = step
    if way == "graph":
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            step()
        one = graph.replay

    def run(n):
        for _ in range(n):
            one()
        torch.cuda.synchronize()
    run.holds = step  # a graph does not hold what it reads
    run(8)
    return run


def timed(run, n):
    run(3)  # the GPU was idle
    began = time.perf_counter()
    run(n)
    return (time.perf_counter() - began) / n * 1e6


def main():
    a = arguments()
    sys.path.insert(0, HERE)
    import torch

    import models
    cases = [c for c in models.CASES if re.search(a.case, c)]
    ours(cases)  # warms up, and fails before PyTorch compiles
    steppers, times = {}, {}
    for case in cases:
        for way in WAYS:
            try:
                if way != "jax":
                    steppers[case, way] = torch_stepper(case, way)
                elif case in ("BenchmarkModel/mlp", "BenchmarkModel/mlp1024"):
                    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
                    import jax_mlp
                    steppers[case, way] = jax_mlp.stepper(1024 if case.endswith("1024") else 128)
                    steppers[case, way](20)
            except Exception as e:  # a way that does not run is left out, and named
                print(f"{case}, {way}: {str(e)[:200]}", file=sys.stderr)
    rounds = 0
    try:
        while rounds < a.rounds:
            mine = ours(cases)
            others = {key: timed(run, 10 if "gpt12" in key[0] else 100) for key, run in steppers.items()}
            rounds += 1
            for case, us in mine.items():
                times.setdefault((case, "ours"), []).append(us)
            for key, us in others.items():
                times.setdefault(key, []).append(us)
    except KeyboardInterrupt:
        if not rounds:
            raise

    versions = f"PyTorch {torch.__version__}" + (f", JAX {sys.modules['jax'].__version__}" if "jax" in sys.modules else "")
    print(f"{torch.cuda.get_device_name()}, {datetime.date.today()}, {versions},")
    print(f"{rounds} rounds in turns, medians of a step in µs:\n")
    line("case", "ours, captured", *(f"PyTorch, {w}" if w != "jax" else "JAX" for w in WAYS), "ours / best")
    line(*["---"] * (3 + len(WAYS)))
    for case in cases:
        mine = statistics.median(times[case, "ours"])
        others = [statistics.median(times[case, w]) if (case, w) in times else None for w in WAYS]
        known = [t for t in others if t is not None]
        cells = [f"{t:,.0f}" if t is not None else "" for t in [mine] + others]
        line(f"`{case}`", *cells, f"{mine / min(known):.2f}" if known else "")


def line(*cells):
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
