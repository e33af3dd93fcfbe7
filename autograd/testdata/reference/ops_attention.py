"""Attention with dropped weights, key padding and weights as results; recurrent layers of rows of different lengths.

Dropout is a product with a mask here, that of the tape's random numbers: Philox4x32-10 (Salmon et al., 2011) with the counter
(element / 4, stream) and the seed as key, below p * 2^32.
"""
import math

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from cases import case, seed, write


def philox(counter, stream, key):
    """The four words of a counter."""
    m = 0xFFFFFFFF
    c = [counter & m, counter >> 32, stream & m, stream >> 32]
    k = [key & m, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & m, (a >> 32) ^ c[3] ^ k[1], a & m]
        k = [(k[0] + 0x9E3779B9) & m, (k[1] + 0xBB67AE85) & m]
    return c


def kept(shape, p, key):
    """1/(1-p) or 0 for each element, of the first stream of a seed."""
    n, below = math.prod(shape), round(p * 2**32)
    words = [w for i in range((n + 3) // 4) for w in philox(i, 0, key)][:n]
    return torch.tensor([0.0 if w < below else 1 / (1 - p) for w in words]).reshape(shape)


def randn(*shape):
    """Numbers of few digits."""
    return (torch.randn(*shape) * 32).round() / 32


def n(low, high):
    return int(torch.randint(low, high + 1, ()))


def padding(batch, keys):
    """Each row has its first key at least."""
    p = torch.randint(0, 2, (batch, keys)).to(torch.uint8)
    p[:, 0] = 0
    return p


def hide(scores, key_padding=None, causal=False):
    if key_padding is not None:
        scores = scores.masked_fill(key_padding.bool()[:, None, None, :], -math.inf)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return scores


def dropped():
    batch, heads, l, s, e, v = n(1, 3), n(1, 3), n(1, 5), n(1, 5), n(1, 4), n(1, 4)
    p, key, causal = [0.1, 0.5, 0.75][n(0, 2)], n(0, 2**40), n(0, 1) == 1
    keep = kept((batch, heads, l, s), p, key)
    inputs = dict(query=randn(batch, heads, l, e), key=randn(batch, heads, s, e), value=randn(batch, heads, s, v))
    if n(0, 1):
        inputs["key_padding"] = padding(batch, s)
    if not causal and n(0, 1):
        inputs["attn_mask"] = randn([(l, s), (batch, 1, 1, s), (heads, l, 1)][n(0, 2)])

    def f(query, key, value, key_padding=None, attn_mask=0):
        scores = hide(query @ key.transpose(-1, -2) / math.sqrt(e) + attn_mask, key_padding, causal)
        return (scores.softmax(-1) * keep) @ value

    case("attention_dropout", f, inputs, p=p, seed=key, is_causal=causal)


def multihead():
    batch, heads, l, s = n(1, 3), n(1, 3), n(1, 4), n(1, 4)
    e, first, causal = heads * n(1, 3), n(0, 1) == 1, n(0, 2) == 0
    own, alone, average, one = n(0, 2) == 0, n(0, 4) == 0, n(0, 1) == 1, n(0, 2) == 0
    kdim, vdim = (n(1, 4), n(1, 4)) if own else (e, e)
    if one and not own:
        s = l

    def sequence(steps, width):
        return randn((steps, width) if alone else (batch, steps, width) if first else (steps, batch, width))

    inputs = dict(query=sequence(l, e), in_proj_bias=randn(3 * e), out_proj_weight=randn(e, e), out_proj_bias=randn(e))
    if own:
        inputs |= dict(key=sequence(s, kdim), value=sequence(s, vdim), q_proj_weight=randn(e, e),
                       k_proj_weight=randn(e, kdim), v_proj_weight=randn(e, vdim))
    else:
        inputs["in_proj_weight"] = randn(3 * e, e)
        if not one:
            inputs |= dict(key=sequence(s, e), value=sequence(s, e))
    if n(0, 3):
        inputs["key_padding"] = padding(1, s)[0] if alone else padding(batch, s)
    if not causal and n(0, 1):
        inputs["attn_mask"] = randn(l, s)

    def f(query, in_proj_bias, out_proj_weight, out_proj_bias, key=None, value=None, in_proj_weight=None, q_proj_weight=None,
          k_proj_weight=None, v_proj_weight=None, key_padding=None, attn_mask=None):
        q, k, v = query, query if key is None else key, query if value is None else value
        if first and not alone:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        mask = torch.ones(l, s).triu(1).bool() if causal else attn_mask
        y, w = F.multi_head_attention_forward(
            q, k, v, e, heads, in_proj_weight, in_proj_bias, None, None, False, 0.0, out_proj_weight, out_proj_bias,
            key_padding_mask=None if key_padding is None else key_padding.bool(), need_weights=True, attn_mask=mask,
            use_separate_proj_weight=own, q_proj_weight=q_proj_weight, k_proj_weight=k_proj_weight, v_proj_weight=v_proj_weight,
            average_attn_weights=average)
        if first and not alone:
            y = y.transpose(0, 1)
        return torch.cat([y.reshape(-1), w.reshape(-1)])

    case("multihead_weights", f, inputs, heads=heads, batch_first=first, is_causal=causal, average=average)


def packed(kind):
    steps, batch, inputs, hidden, layers = n(1, 5), n(1, 3), n(1, 2), n(1, 3), 1 + (n(0, 3) == 0)
    bidirectional, first, bias, states = n(0, 1) == 1, n(0, 1) == 1, n(0, 3) > 0, n(0, 1) == 1
    lengths = [n(1, steps) for _ in range(batch)]
    gates, directions = dict(lstm=4, gru=3).get(kind, 1), 1 + bidirectional
    leaves = dict(input=randn((batch, steps, inputs) if first else (steps, batch, inputs)))
    names = []
    for layer in range(layers):
        for d in range(directions):
            width = inputs if layer == 0 else hidden * directions
            for name, shape in [("weight_ih", (gates * hidden, width)), ("weight_hh", (gates * hidden, hidden)),
                                ("bias_ih", (gates * hidden,)), ("bias_hh", (gates * hidden,))]:
                if name.startswith("weight") or bias:
                    names.append(name + f"_l{layer}" + "_reverse" * d)
                    leaves[names[-1]] = randn(shape) / 2
    if states:
        leaves["h0"] = randn(layers * directions, batch, hidden)
        if kind == "lstm":
            leaves["c0"] = randn(layers * directions, batch, hidden)

    def f(input, **rest):
        pack = pack_padded_sequence(input, torch.tensor(lengths), batch_first=first, enforce_sorted=False)
        zeros = torch.zeros(layers * directions, batch, hidden)
        h, c = (rest.get(k, zeros).index_select(1, pack.sorted_indices) for k in ("h0", "c0"))
        run = getattr(torch._VF, kind)
        out = run(pack.data, pack.batch_sizes, (h, c) if kind == "lstm" else h, [rest[k] for k in names], bias, layers, 0.0, True, bidirectional)
        y, _ = pad_packed_sequence(PackedSequence(out[0], pack.batch_sizes, pack.sorted_indices, pack.unsorted_indices),
                                   batch_first=first, total_length=steps)
        return torch.cat([x.reshape(-1) for x in [y] + [s.index_select(1, pack.unsorted_indices) for s in out[1:]]])

    case("packed_" + kind, f, leaves, batch_first=first, lengths=lengths)


seed()
for _ in range(20):
    dropped()
    multihead()
    for kind in ["rnn_tanh", "rnn_relu", "lstm", "gru"]:
        packed(kind)
write()
