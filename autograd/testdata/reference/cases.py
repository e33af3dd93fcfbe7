"""What the scripts beside this file share: they record PyTorch's results and gradients in float64 on a CPU.

A case is {op, args, inputs: {name: {shape, values, int}}, output: [shape, values], seed_grad, grads: {name: values}}; the gradients
are those of (output * seed_grad).sum(). Numbers that are not finite are strings. An input whose name begins with _ has no gradient.

    python3 ops_NAME.py ops_NAME.json.gz SEED
"""
import gzip
import json
import sys

import torch

torch.set_default_dtype(torch.float64)
cases = []


def flat(t):
    if not t.is_floating_point():
        return [int(v) for v in t.detach().reshape(-1).tolist()]
    return [v if abs(v) < float("inf") else str(v) for v in t.detach().reshape(-1).tolist()]


def case(op, f, inputs, **args):
    """Records f(**inputs) and its gradients; args are written beside them, and not given to f."""
    leaves = {k: v.clone().requires_grad_(True) if v.is_floating_point() and k[0] != "_" else v for k, v in inputs.items()}
    y = f(**{k.lstrip("_"): v for k, v in leaves.items()})
    c = dict(op=op, args=args, inputs={}, output=[list(y.shape), flat(y)], grads={})
    for k, v in leaves.items():
        c["inputs"][k.lstrip("_")] = dict(shape=list(v.shape), values=flat(v), int=not v.is_floating_point())
    if y.requires_grad:
        g = torch.randn_like(y)
        (y * g).sum().backward()
        c["seed_grad"] = flat(g)
        c["grads"] = {k: flat(v.grad) for k, v in leaves.items() if v.requires_grad and v.grad is not None}
    cases.append(c)


def shape(most=4, limit=6):
    """A random shape of one to so many dimensions."""
    return torch.randint(1, limit + 1, (int(torch.randint(1, most + 1, ())),)).tolist()


def seed():
    torch.manual_seed(int(sys.argv[2]))


def write():
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as f:
        f.write(json.dumps(dict(torch=torch.__version__, cases=cases)).encode())
