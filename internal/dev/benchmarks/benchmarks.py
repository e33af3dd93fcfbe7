"""Times training steps of this project beside PyTorch's and JAX's, in turns, and prints a table in Markdown.

    make benchmarks                        on a machine with Go, a GPU and PyTorch
    python3 dist/benchmarks/benchmarks.py  in the bundle, without Go

Each round times every case once by every way: this project captured, PyTorch called, replayed as a CUDA
graph and compiled (mode reduce-overhead), JAX. The table has the medians of the rounds in microseconds,
and this project's peak of allocated memory beside PyTorch's.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--case", default="", help="a regular expression of the cases; default: all")
    p.add_argument("--ways", default="called,graph,compile,jax", help="PyTorch's ways, and jax")
    p.add_argument("--tests", default=os.path.join(HERE, "../autograd"), help="folder of autograd's package.test")
    p.add_argument("--mnist", default=os.path.join(HERE, "../mnist"), help="the example's program")
    p.add_argument("--data", default=os.path.join(HERE, "../data"), help="folder of the digits")
    return p.parse_args()


def ours(cases, a):
    """Of each case, the microseconds of a captured step and the peak in MiB."""
    environment = dict(os.environ, CISTERN_TEST_DEVICE=os.environ.get("CISTERN_TEST_DEVICE", "cuda:0"))
    found = {}
    for benchmark, times in ("BenchmarkModel", "300x"), ("BenchmarkGPT", "20x"):
        names = [c.split("/")[1:] for c in cases if c.startswith(benchmark + "/")]
        if not names:
            continue
        levels = ["|".join(sorted(set(level))) for level in zip(*names)]
        pattern = "/".join(f"^({level})$" for level in [benchmark] + levels + ["captured"])
        command = [os.path.join(os.path.abspath(a.tests), "package.test"), "-test.run", "^$"]
        command += ["-test.bench", pattern, "-test.benchtime", times]
        out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=a.tests, env=environment)
        for line in out.stdout.splitlines():
            m = re.match(r"(Benchmark\S+)/captured\S*\s.*?([\d.]+) ns/op.*?([\d.]+) MiB-at-most", line)
            if m:
                found[m[1]] = float(m[2]) / 1e3, float(m[3])
    for case in cases:
        if case.startswith("mnist/"):
            with tempfile.NamedTemporaryFile() as f:
                command = [os.path.abspath(a.mnist), "-graph", "-epochs", "1", "-model", case[6:], "-json", f.name]
                command += ["-data", os.path.abspath(a.data), "-device", environment["CISTERN_TEST_DEVICE"]]
                subprocess.run(command, check=True, capture_output=True, env=environment)
                r = json.load(f)
            found[case] = r["train_seconds"] / r["steps"] * 1e6, r["max_memory_allocated"] / 2**20
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
    forward = torch.compile(model, mode="reduce-overhead") if way == "compile" else model

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
    run(8)
    return run


def peak_of_torch(case):
    """Of a called step, in MiB, in a process of its own: elsewhere other cases hold memory."""
    code = f"import sys, torch; sys.path.insert(0, {HERE!r}); import benchmarks; " \
           f"benchmarks.torch_stepper({case!r}, 'called'); print(torch.cuda.max_memory_allocated() / 2**20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else None


def timed(run, n):
    began = time.perf_counter()
    run(n)
    return (time.perf_counter() - began) / n * 1e6


def main():
    a = arguments()
    sys.path.insert(0, HERE)
    import torch

    import models
    cases = [c for c in models.CASES if re.search(a.case, c)]
    ways = [w for w in a.ways.split(",") if w]
    steppers = {}
    for case in cases:
        for way in ways:
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
    times, peaks = {}, {case: (0, peak_of_torch(case)) for case in cases}
    for _ in range(a.rounds):
        for case, (us, mib) in ours(cases, a).items():
            times.setdefault((case, "ours"), []).append(us)
            peaks[case] = (max(peaks[case][0], mib), peaks[case][1])
        for (case, way), run in steppers.items():
            times.setdefault((case, way), []).append(timed(run, 20 if "gpt12" in case else 300))

    print(f"{torch.cuda.get_device_name()}, {datetime.date.today()}, PyTorch {torch.__version__}, {a.rounds} rounds in")
    print("turns, medians of a step in µs; MiB allocated at most, ours and PyTorch's called:\n")
    heads = [f"PyTorch, {w}" if w != "jax" else "JAX" for w in ways]
    line("case", "ours, captured", *heads, "ours / best", "MiB")
    line(*["---"] * (4 + len(ways)))
    for case in cases:
        mine = statistics.median(times[case, "ours"])
        others = [statistics.median(times[case, w]) if (case, w) in times else None for w in ways]
        known = [t for t in others if t is not None]
        cells = [f"{t:,.0f}" if t is not None else "–" for t in [mine] + others]
        peak = ", ".join(f"{p:,.0f}" for p in peaks[case] if p is not None)
        line(f"`{case}`", *cells, f"{mine / min(known):.2f}" if known else "–", peak)


def line(*cells):
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
