"""The models of BenchmarkModel and BenchmarkGPT (autograd) and BenchmarkTraining (examples/mnist), in PyTorch."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def conv(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second, self.side = conv(inputs, outputs, stride), conv(outputs, outputs), nn.Identity()
        if stride != 1 or inputs != outputs:
            self.side = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.side(x))


def resnet(widths):
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:])]
    last = nn.Linear(widths[-1], 10)
    return nn.Sequential(conv(1, widths[0]), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


class Rows(nn.Module):
    """An LSTM that reads a picture row by row."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(28, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.out(self.lstm(x.view(-1, 28, 28).transpose(0, 1))[0][-1])


class Block(nn.Module):
    def __init__(self, width, heads, causal, approximate):
        super().__init__()
        self.heads, self.causal, self.approximate = heads, causal, approximate
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.reduce = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, steps, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(batch, steps, width)
        x = x + self.proj(a)
        return x + self.reduce(F.gelu(self.expand(self.norm2(x)), approximate=self.approximate))


class GPT(nn.Module):
    def __init__(self, layers, heads, width, steps, vocabulary):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(steps, width)
        self.blocks = nn.Sequential(*(Block(width, heads, True, "tanh") for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[:x.shape[1]]
        return self.norm(self.blocks(h)) @ self.tok.weight.T


class ViT(nn.Module):
    """A transformer of the 16 patches of a picture."""

    def __init__(self):
        super().__init__()
        self.patch, self.pos = nn.Linear(49, 64), nn.Parameter(torch.randn(16, 64) * 0.02)
        self.blocks = nn.Sequential(*(Block(64, 4, False, "none") for _ in range(4)))
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x):
        patches = x.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        return self.out(self.norm(self.blocks(self.patch(patches) + self.pos)).mean(1))


def pictures(n, *shape):
    return lambda: (torch.rand(n, *shape, device="cuda"), torch.randint(10, (n,), device="cuda"))


def tokens(rows, steps, vocabulary):
    return lambda: tuple(torch.randint(vocabulary, (rows, steps), device="cuda") for _ in range(2))


# The name of a case is that of this project's benchmark.
# The last value is whether it computes in bfloat16.
CASES = {
    "BenchmarkModel/mlp": (mlp, pictures(128, 784), False),
    "BenchmarkModel/mlp1024": (mlp, pictures(1024, 784), False),
    "BenchmarkModel/cnn": (cnn, pictures(64, 1, 28, 28), False),
    "BenchmarkModel/resnet": (lambda: resnet([16, 16]), pictures(64, 1, 28, 28), False),
    "BenchmarkModel/gpt": (lambda: GPT(2, 4, 64, 32, 65), tokens(4, 32, 65), False),
    "BenchmarkModel/lstm": (Rows, pictures(128, 1, 28, 28), False),
    "BenchmarkGPT/gpt12/float32": (lambda: GPT(12, 12, 768, 512, 50304), tokens(8, 512, 50304), False),
    "BenchmarkGPT/gpt12/bfloat16": (lambda: GPT(12, 12, 768, 512, 50304), tokens(8, 512, 50304), True),
    "BenchmarkTraining/cnn": (cnn, pictures(128, 1, 28, 28), False),
    "BenchmarkTraining/resnet": (lambda: resnet([32, 32, 64, 128]), pictures(128, 1, 28, 28), False),
    "BenchmarkTraining/vit": (ViT, pictures(128, 1, 28, 28), False),
    "BenchmarkTraining/lstm": (Rows, pictures(128, 1, 28, 28), False),
}
