"""Operations of order, index and movement: see cases.py."""
import torch

from cases import case, seed, shape, write

seed()
INF = float("inf")


def randint(n):
    return int(torch.randint(0, n, ()))


def axis(s):
    """A random dimension, counted from either end."""
    return randint(len(s)) - len(s) * randint(2)


def tied(s):
    """Few different numbers, as floats."""
    return torch.randint(-2, 3, s).double()


def numbers(s, i):
    """Random numbers, every third time with ties, and every fifth with NaN."""
    x = tied(s) if i % 3 == 0 else torch.randn(s)
    if i % 5 == 4:
        x[torch.rand(s) < 0.2] = float("nan")
    return x


def some(s):
    """Some of the dimensions, or all."""
    return [d for d in range(len(s)) if randint(2)] or list(range(len(s)))


def index(s, d):
    """An index of elements along d, with duplicates, nowhere larger than s beside it."""
    d %= len(s)
    t = [1 + randint(n) for n in s]
    t[d] = 1 + randint(2 * s[d])
    return torch.randint(0, s[d], t)


def distinct(s, d):
    """An index without duplicates."""
    d %= len(s)
    t = [1 + randint(n) for n in s]
    return torch.rand(s).argsort(d)[tuple(slice(n) for n in t)]


for i in range(20):
    s = shape()
    d = axis(s)
    x = numbers(s, i)
    for op in ("amin", "vector_norm"):
        dims, keep = some(s), bool(randint(2))
        if op == "amin":
            case(op, lambda input: input.amin(dims, keep), dict(input=x), dim=dims, keepdim=keep)
            continue
        for p in (1, 2, INF):
            v = torch.zeros(s) if i == 0 else x
            case(op, lambda input: torch.linalg.vector_norm(input, p, dims, keep), dict(input=v), dim=dims, keepdim=keep, p=min(p, 1e9))
    case("min", lambda input: input.min(), dict(input=x))
    case("argmax", lambda input: input.argmax(d), dict(input=x), dim=d)
    case("argmin", lambda input: input.argmin(d), dict(input=x), dim=d)
    down = bool(randint(2))
    case("sort", lambda input: input.sort(dim=d, descending=down, stable=True)[0], dict(input=x), dim=d, descending=down)
    case("sort_index", lambda input: input.sort(dim=d, descending=down, stable=True)[1], dict(input=x), dim=d, descending=down)
    apart = torch.randn(s)  # topk of PyTorch takes any of equal elements
    if i % 5 == 4:
        apart.view(-1)[0] = float("nan")
    k = randint(s[d] + 1)
    case("topk", lambda input: input.topk(k, d, down)[0], dict(input=apart), k=k, dim=d, largest=down)
    case("topk_index", lambda input: input.topk(k, d, down)[1], dict(input=apart), k=k, dim=d, largest=down)
    case("cumsum", lambda input: input.cumsum(d), dict(input=x), dim=d)
    classes = 1 + randint(6)
    case("one_hot", lambda input: torch.nn.functional.one_hot(input, classes), dict(input=torch.randint(0, classes, s)), classes=classes)
    at = index(s, d)
    case("scatter_add", lambda input, index, src: input.scatter_add(d, index, src),
         dict(input=torch.randn(s), index=at, src=torch.randn(at.shape)), dim=d)
    at = distinct(s, d)
    case("scatter", lambda input, index, src: input.scatter(d, index, src),
         dict(input=torch.randn(s), index=at, src=torch.randn(at.shape)), dim=d)
    dims = [n - len(s) * randint(2) for n in range(len(s)) if randint(2)]
    case("flip", lambda input: input.flip(dims), dict(input=torch.randn(s)), dims=dims)
    dims = [axis(s) for _ in range(1 + randint(3))]
    shifts = [randint(21) - 10 for _ in dims]
    case("roll", lambda input: input.roll(shifts, dims), dict(input=torch.randn(s)), dims=dims, shifts=shifts)

empty = torch.zeros(2, 0)
for p in (1, 2):
    case("vector_norm", lambda input: torch.linalg.vector_norm(input, p, 1), dict(input=empty), dim=1, p=p)
case("sort", lambda input: input.sort(1)[0], dict(input=empty), dim=1)
case("topk", lambda input: input.topk(0, 0)[0], dict(input=empty), k=0, dim=0)
case("cumsum", lambda input: input.cumsum(1), dict(input=empty), dim=1)
case("flip", lambda input: input.flip(0, 1), dict(input=empty), dims=[0, 1])
case("roll", lambda input: input.roll([1, 2], [0, 1]), dict(input=empty), dims=[0, 1], shifts=[1, 2])
for d in (0, -1):  # a scalar is one element along these dimensions
    x, src, first = torch.randn(()), torch.randn(()), torch.tensor(0)
    case("sort", lambda input: input.sort(d)[0], dict(input=x), dim=d)
    case("sort_index", lambda input: input.sort(d)[1], dict(input=x), dim=d)
    for k in (0, 1):
        case("topk", lambda input: input.topk(k, d)[0], dict(input=x), k=k, dim=d)
    case("cumsum", lambda input: input.cumsum(d), dict(input=x), dim=d)
    case("argmax", lambda input: input.argmax(d), dict(input=x), dim=d)
    case("flip", lambda input: input.flip(d), dict(input=x), dims=[d])
    case("scatter", lambda input, index, src: input.scatter(d, index, src), dict(input=x, index=first, src=src), dim=d)
    more = torch.zeros(3, dtype=torch.long)
    case("scatter_add", lambda input, index, src: input.scatter_add(d, index, src), dict(input=x, index=more, src=torch.randn(3)), dim=d)
    for keep in (False, True):
        case("amin", lambda input: input.amin(d, keep), dict(input=x), dim=[d], keepdim=keep)
        case("sum", lambda input: input.sum(d, keep), dict(input=x), dim=[d], keepdim=keep)
    case("softmax", lambda input: input.softmax(d), dict(input=x), dim=d)
    case("gather", lambda input, index: input.gather(d, index), dict(input=x, index=first), dim=d)
write()
