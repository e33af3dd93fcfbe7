"""Writes the files of this folder with PyTorch 1.13: /usr/bin/python3 write.py

A small model of GPT-2's layout, with the names and shapes of Hugging Face's: 2 layers, 32 wide, 4
heads, learned positions, gelu_new, and a head tied to the embedding. Its logits are those of this
script's own forward pass, in float32, with the weights as each file has them.
"""
import json
import math
import os
import struct

import torch
from torch import nn

WIDTH, LAYERS, HEADS, TOKENS, PLACES = 32, 2, 4, 40, 12
here = os.path.dirname(os.path.abspath(__file__))


class Conv1D(nn.Module):
    """Hugging Face's: a linear layer whose weight is (in, out)."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.2)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.2)

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.register_buffer("bias", torch.tril(torch.ones(PLACES, PLACES, dtype=torch.uint8)).view(1, 1, PLACES, PLACES))

    def forward(self, x):
        batch, steps, _ = x.shape
        q, k, v = (p.view(batch, steps, HEADS, -1).transpose(1, 2) for p in self.c_attn(x).split(WIDTH, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(self.bias[:, :, :steps, :steps] == 0, float("-inf"))
        y = scores.softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(batch, steps, WIDTH))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(4 * WIDTH, WIDTH), Conv1D(WIDTH, 4 * WIDTH)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(TOKENS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = Transformer()
        self.lm_head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.transformer(tokens))


NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}


def save_safetensors(name, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for key, t in sorted(tensors.items(), key=lambda e: (-e[1].element_size(), e[0])):
        raw = t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        header[key] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(here, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


torch.manual_seed(11)
model = GPT2()
with torch.no_grad():
    for p in model.parameters():
        if p.dim() == 1:  # norms are not the identity
            p.add_(torch.randn_like(p) * 0.1)
tokens = torch.randint(TOKENS, (2, 9))
state = model.state_dict()
without_head = {n: t for n, t in state.items() if n != "lm_head.weight"}
expected = {"tokens": tokens.tolist(), "logits": {}}


def logits_of(dtype):
    rounded = GPT2()
    rounded.load_state_dict({n: t.to(dtype).to(t.dtype) for n, t in state.items()})
    return [round(v, 7) for v in rounded(tokens).detach().reshape(-1).tolist()]


shards = ({}, {})
for n, t in without_head.items():
    shards[n.startswith("transformer.h.1.")][n] = t
names = ["model-%05d-of-00002.safetensors" % (i + 1) for i in range(2)]
for name, shard in zip(names, shards):
    save_safetensors(name, shard)
index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in without_head.values())},
         "weight_map": {n: name for name, shard in zip(names, shards) for n in sorted(shard)}}
with open(os.path.join(here, "model.safetensors.index.json"), "w") as f:
    json.dump(index, f, indent=2)
    f.write("\n")
for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
    save_safetensors(name + ".safetensors", {n: t if t.dtype == torch.uint8 else t.to(dtype) for n, t in without_head.items()})
    expected["logits"][name] = logits_of(dtype)
expected["logits"]["float32"] = logits_of(torch.float32)

# A .pt of a half model: the head shares the embedding's storage, and one weight is a transposed view.
half = model.half().state_dict()
half["transformer.h.0.mlp.c_fc.weight"] = half["transformer.h.0.mlp.c_fc.weight"].t().contiguous().t()
torch.save(half, os.path.join(here, "pytorch_model.bin"))
with open(os.path.join(here, "expected.json"), "w") as f:
    json.dump(expected, f)
    f.write("\n")
