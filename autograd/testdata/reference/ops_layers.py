"""Upsample, reflected and replicated edges, InstanceNorm and PReLU; cases.py says how it is run."""
import torch
from torch.nn import functional as F

from cases import case, seed, write

seed()


def n(most, least=1):
    return int(torch.randint(least, most + 1, ()))


def randn(*shape):
    return (torch.randn(*shape) * 100).round() / 100


def float32_rule(size, factor):
    """PyTorch computes lengths of float64 in float64, and their gradient as all others in float32."""
    x = torch.arange(size, dtype=torch.float32).reshape(1, 1, size)
    return torch.equal(F.interpolate(x, **factor), F.interpolate(x.double(), **factor).float())


for i in range(28):
    for dims in 1, 2:
        spatial = [n(5) for _ in range(dims)]
        if i % 2:
            to = dict(size=[n(8) for _ in range(dims)])
            each = [dict(size=k) for k in to["size"]]
        else:
            scales = [[2.0], [3.0], [0.5], [1.5], [2.7], [1 / 3]][n(6) - 1] if i % 4 else [n(25, 10) / 10 for _ in range(dims)]
            to = dict(scale_factor=scales * (dims // len(scales)))
            spatial = [max(s, 3) for s in spatial]
            if any(int(s * k) in (s, 2 * s) and k not in (1, 2) for s, k in zip(spatial, to["scale_factor"])):
                continue  # then some of PyTorch's kernels take the sizes' ratio, and others the factor
            each = [dict(scale_factor=k) for k in to["scale_factor"]]
        if dims == 1 and not all(float32_rule(s, k) for s, k in zip(spatial, each)):
            continue
        x = dict(input=randn(n(2), n(2), *spatial))
        case("interpolate", lambda input: F.interpolate(input, mode="nearest", **to), x, mode="nearest", **to)
        if dims == 2:
            for align in False, True:
                case("interpolate", lambda input: F.interpolate(input, mode="bilinear", align_corners=align, **to), x, mode="bilinear", align=align, **to)

case("interpolate", lambda input: F.interpolate(input, size=[2, 82], mode="nearest"), dict(input=randn(1, 1, 3, 2)), mode="nearest", size=[2, 82])
case("interpolate", lambda input: F.interpolate(input, size=[1, 1], mode="bilinear", align_corners=True), dict(input=randn(1, 2, 3, 4)), mode="bilinear", align=True, size=[1, 1])

for i in range(20):
    for mode in "reflect", "replicate":
        dims = 1 + i % 2
        spatial = [n(5, 2) for _ in range(dims)]
        lead = [n(2), n(3)][i // 2 % 2:]
        pad = []
        for s in reversed(spatial):
            most = s - 1 if mode == "reflect" else 3
            pad += [n(most, 0), n(most, 0)]
        if i % 5 == 4:
            pad[i % 2] = -1
        case("edge_pad", lambda input: F.pad(input, pad, mode=mode), dict(input=randn(*lead, *spatial)), mode=mode, pad=pad)

for i in range(20):
    channels = n(4)
    spatial = [n(4, 2) for _ in range(1 + i % 2)]
    inputs = dict(input=randn(n(3), channels, *spatial))
    if i % 3:
        inputs.update(weight=randn(channels), bias=randn(channels))
    eps = [1e-5, 1e-3, 0.1][i % 3]
    case("instance_norm", lambda input, weight=None, bias=None: F.instance_norm(input, weight=weight, bias=bias, eps=eps), inputs, eps=eps)

for i in range(20):
    shape = [n(3) for _ in range(n(4))]
    if i % 4 == 3 and len(shape) < 2:
        shape += [3]
    x = randn(*shape)
    x[torch.rand_like(x) < 0.2] = 0.0
    if i == 5:
        x[torch.rand_like(x) < 0.2] = float("nan")
    weights = shape[1] if i % 2 and len(shape) > 1 else 1
    case("prelu", lambda input, weight: F.prelu(input, weight), dict(input=x, weight=randn(weights)))

write()
