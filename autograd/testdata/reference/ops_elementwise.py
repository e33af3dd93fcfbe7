"""Comparisons, masks, powers, step functions, triangles and the losses kl_div and nll_loss, of 20 random shapes each."""
import torch
import torch.nn.functional as F

from cases import case, seed, shape, write

seed()
inf, nan = float("inf"), float("nan")
special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 2.0, -2.0])
small = torch.tensor([1e-40, -1e-40, 1e-20, -1e-20])  # the first two are subnormal in float32
numbers = torch.cat([special, small])


def narrowed(s):
    """A shape that broadcasts to s."""
    s = s[int(torch.randint(0, 3, ())) % len(s):]
    return [1 if torch.rand(()) < 0.3 else d for d in s]


def pair(make):
    s = shape(3, 4)
    a, b = make(narrowed(s)), make(s)
    return (a, b) if torch.rand(()) < 0.5 else (b, a)


def tied(s):
    return torch.randint(-2, 3, s).double()


compares = dict(eq=torch.eq, ne=torch.ne, lt=torch.lt, le=torch.le, gt=torch.gt, ge=torch.ge)
for name, f in compares.items():
    for i in range(20):
        a, b = pair(tied)
        case("compare", lambda input, other: torch.where(f(input, other), input, 2 * other), dict(input=a, other=b), relation=name)
    case("compare", lambda input, other: f(input, other).double(), dict(_input=numbers[:, None], _other=numbers), relation=name, mask=True)

for i in range(20):
    s = shape(3, 4)
    case("masked_fill", lambda input, mask: torch.masked_fill(input, mask.bool(), 1.5), dict(input=torch.randn(narrowed(s)), mask=torch.randint(0, 2, narrowed(s))),
         value=1.5)
case("masked_fill", lambda input, mask: torch.masked_fill(input, mask.bool(), -inf), dict(input=torch.tensor([nan, 1.0, 2.0]), mask=torch.tensor([1, 0, 1])), value="-inf")
case("masked_fill", lambda input, mask: torch.masked_fill(input, mask.bool(), 0), dict(input=torch.zeros(0, 3), mask=torch.zeros(1, 3, dtype=torch.int64)), value=0)

for name in ("sign", "floor", "ceil", "round", "log1p", "expm1"):
    f = getattr(torch, name)
    for i in range(20):
        x = torch.randn(shape(3, 4)) * 3
        case(name, f, dict(input=x.abs() - 0.5 if name == "log1p" else x.mul(2).round() / 2 if i % 2 else x))
    case(name, f, dict(input=numbers))
    case(name, f, dict(input=torch.zeros(2, 0)))

for i in range(20):
    a, b = pair(torch.randn)
    if i % 2:
        a = a.abs() + 0.1
    else:
        b = (2 * b).round()
    case("pow", torch.pow, dict(input=a, exponent=b))
n = len(special)  # not broadcast: sums of gradients would be NaN
case("pow", torch.pow, dict(input=special[:, None].expand(n, n).clone(), exponent=special.expand(n, n).clone()))
case("pow", torch.pow, dict(input=torch.zeros(0, 2), exponent=torch.ones(2)))

for name in ("tril", "triu"):
    f = getattr(torch, name)
    for i in range(20):
        x = torch.randn(shape(2, 3)[:-1] + torch.randint(1, 6, (2,)).tolist())
        d = int(torch.randint(-4, 5, ()))
        case(name, lambda input: f(input, d), dict(input=x), diagonal=d)
    case(name, f, dict(input=torch.tensor([[nan, inf], [-inf, nan]])), diagonal=0)
    case(name, f, dict(input=torch.zeros(2, 0, 3)), diagonal=0)

for i in range(20):
    for log_target in (False, True):
        x = F.log_softmax(torch.randn(shape(3, 5)), -1)
        t = torch.softmax(torch.randn_like(x), -1)
        reduction = ("mean", "sum", "none", "batchmean")[i % 4]
        case("kl_div", lambda input, target: F.kl_div(input, target, reduction=reduction, log_target=log_target),
             dict(input=x.detach(), target=(t.log() if log_target else t).detach()), reduction=reduction, log_target=log_target)
edge = torch.tensor([0.0, -1.0, -inf, nan, 1.0])
for log_target in (False, True):
    case("kl_div", lambda input, target: F.kl_div(input, target, reduction="none", log_target=log_target),
         dict(input=edge[:, None].expand(5, 5).clone(), target=edge.expand(5, 5).clone()), reduction="none", log_target=log_target)
case("kl_div", lambda input, target: F.kl_div(input, target, reduction="batchmean"), dict(input=torch.zeros(0, 3), target=torch.zeros(0, 3)), reduction="batchmean")

for i in range(20):
    classes = int(torch.randint(1, 7, ()))
    s = [[], shape(1, 5), shape(1, 3) + shape(1, 3)][i % 3]
    n = [] if i % 7 == 6 else shape(1, 5)
    if not n:
        s = []
    x, labels = F.log_softmax(torch.randn(n + [classes] + s), len(n)), torch.randint(0, classes, n + s)
    args = dict(reduction=("mean", "sum", "none")[i // 3 % 3])
    inputs = dict(input=x, target=labels)
    if i % 2:
        inputs["_weight"] = torch.rand(classes)
    if i % 4 > 1:
        args["ignore_index"] = int(torch.randint(0, classes, ()))
    elif labels.dim() and i % 5 == 0:
        labels[0] = -100
    case("nll_loss", lambda input, target, weight=None: F.nll_loss(input, target, weight=weight, **args), inputs, **args)
case("nll_loss", F.nll_loss, dict(input=torch.randn(2, 3), target=torch.tensor([-100, -100])))
case("nll_loss", F.nll_loss, dict(input=torch.tensor([[nan, -inf], [-inf, -1.0]]), target=torch.tensor([1, 1])))
case("nll_loss", F.nll_loss, dict(input=torch.zeros(0, 3), target=torch.zeros(0, dtype=torch.int64)))

write()
