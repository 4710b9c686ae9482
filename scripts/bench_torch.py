#!/usr/bin/env python3
"""bench_torch.py - the training benches of kvlab beside the same models in plain eager PyTorch.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy
    /tmp/venv/bin/python scripts/bench_torch.py [--threads 1,2] [--pairs 3] [--seconds 3] [NAME ...]

Optional: nothing of kvlab needs it. The models are those of lua/kvlab/bench_training.lua, written the way one writes
them in PyTorch: scaled_dot_product_attention where it applies, elsewhere gathers, a mask of positions and one softmax.
Both sides do the same step (loss, gradients, clipping to norm 1, AdamW) on one batch of random tokens. They take turns:
PyTorch, then `scripts/kvlab bench`, and again; a ratio is of one pair, and the median of the pairs is printed. With one
thread both are timed by processor time, with more by the clock; the best step of a turn counts.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F
from torch import nn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VOCAB, D, HEADS, C, KV_HEADS = 65, 128, 4, 32, 2  # C: width of a head, and of a K = V entry
ROPE, NOPE, RANK = 16, 32, 64
INDEX_HEADS, INDEX_C, TOPK, WINDOW, FFN = 4, 32, 16, 16, 352


# --- parts --------------------------------------------------------------------------------------------

def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class Rope(nn.Module):
    """Turns the last n channels of x [B, T, ..., channels], adjacent pairs; tokens are `stride` apart."""

    def __init__(self, n, length, stride=1):
        super().__init__()
        self.n = n
        angles = torch.arange(0, length, stride)[:, None] * 10000.0 ** (-torch.arange(0, n, 2) / n)
        self.register_buffer('cos', angles.cos(), persistent=False)
        self.register_buffer('sin', angles.sin(), persistent=False)

    def forward(self, x, inverse=False):
        keep, turn = x[..., :-self.n], x[..., -self.n:]
        a, b = turn[..., 0::2], turn[..., 1::2]
        shape = (1, x.shape[1]) + (1,) * (x.dim() - 3) + (self.n // 2,)
        cos, sin = self.cos[:x.shape[1]].view(shape), self.sin[:x.shape[1]].view(shape)
        if inverse:
            sin = -sin
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        return turned if keep.shape[-1] == 0 else torch.cat((keep, turned), -1)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = linear(D, FFN), linear(D, FFN), linear(FFN, D)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GELU(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = linear(D, 4 * D), linear(4 * D, D)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def causal(q, k, v):
    """q [B, T, H, c], k and v with as many heads or fewer -> [B, T, H * c]."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                         enable_gqa=k.shape[2] != q.shape[2])
    return out.transpose(1, 2).flatten(2)


# --- dense attention ----------------------------------------------------------------------------------

class MHA(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(D, D) for _ in range(4))

    def forward(self, x):
        B, T, _ = x.shape
        return self.o(causal(*(part(x).view(B, T, HEADS, C) for part in (self.q, self.k, self.v))))


class GQA(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.q, self.o = linear(D, HEADS * C), linear(HEADS * C, D)
        self.k, self.v = linear(D, KV_HEADS * C), linear(D, KV_HEADS * C)
        self.rope = Rope(C, length)

    def forward(self, x):
        B, T, _ = x.shape
        q, k = self.rope(self.q(x).view(B, T, HEADS, C)), self.rope(self.k(x).view(B, T, KV_HEADS, C))
        return self.o(causal(q, k, self.v(x).view(B, T, KV_HEADS, C)))


class MLA(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.q, self.kv_a = linear(D, HEADS * (NOPE + ROPE)), linear(D, RANK + ROPE)
        self.kv_b, self.o = linear(RANK, HEADS * (NOPE + C)), linear(HEADS * C, D)
        self.norm, self.rope = RMSNorm(RANK), Rope(ROPE, length)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.rope(self.q(x).view(B, T, HEADS, NOPE + ROPE))
        latent, rotary = self.kv_a(x).split((RANK, ROPE), -1)
        k, v = self.kv_b(self.norm(latent)).view(B, T, HEADS, NOPE + C).split((NOPE, C), -1)
        rotary = self.rope(rotary).unsqueeze(2).expand(B, T, HEADS, ROPE)
        return self.o(causal(q, torch.cat((k, rotary), -1), v))


# --- sparse attention ---------------------------------------------------------------------------------

class Compressor(nn.Module):
    """Tokens [B, T, D] to entries [B, T / m, width], a softmax over tokens for each channel."""

    def __init__(self, width, ratio, overlap):
        super().__init__()
        columns = width * (2 if overlap else 1)
        self.ratio, self.overlap, self.norm = ratio, overlap, RMSNorm(width)
        self.value, self.gate = linear(D, columns), linear(D, columns)
        self.bias = nn.Parameter(torch.zeros(ratio, columns)) if overlap else None

    def forward(self, x):
        B, T, _ = x.shape
        c = self.value(x).view(B, T // self.ratio, self.ratio, -1)
        z = self.gate(x).view(B, T // self.ratio, self.ratio, -1)
        if self.overlap:  # the first halves of the block before, the second halves of this one
            z = z + self.bias
            c1, c2 = c.chunk(2, -1)
            z1, z2 = z.chunk(2, -1)
            c = torch.cat((F.pad(c1, (0, 0, 0, 0, 1, 0))[:, :-1], c2), 2)
            z = torch.cat((F.pad(z1, (0, 0, 0, 0, 1, 0), value=float('-inf'))[:, :-1], z2), 2)
        return self.norm((z.softmax(2) * c).sum(2))


class Indexer(nn.Module):
    """The best TOPK entries of every token, which ones are there, and the log-probabilities of the indexer."""

    def __init__(self, length):
        super().__init__()
        self.q, self.weights = linear(D, INDEX_HEADS * INDEX_C), linear(D, INDEX_HEADS)
        self.rope = Rope(ROPE, length)

    def forward(self, x, keys, visible):
        B, T, _ = x.shape
        x = x.detach()
        q = self.rope(self.q(x).view(B, T, INDEX_HEADS, INDEX_C))
        products = torch.einsum('bthc,bnc->bhtn', q, keys).relu()
        weights = self.weights(x).transpose(1, 2).unsqueeze(-1) * (INDEX_C * INDEX_HEADS) ** -0.5
        scores = (products * weights).sum(1).masked_fill(~visible, float('-inf'))
        best, top = scores.topk(TOPK, -1)
        there = best > float('-inf')
        return top, there, best.masked_fill(~there, -1e30).log_softmax(-1)


class Sparse(nn.Module):
    """K = V attention of a window and the selected entries, one softmax with a sink. What the layers of a group share
    is in `shared`: entries, list, and what the indexer's loss is made of."""

    def __init__(self, length, ratio, overlap=False, owner=True):
        super().__init__()
        self.owner, self.length, self.overlap = owner, length, overlap
        self.q, self.local, self.o = linear(D, HEADS * C), linear(D, C), linear(HEADS * C, D)
        self.local_norm, self.sink = RMSNorm(C), nn.Parameter(torch.zeros(HEADS))
        self.rope = Rope(ROPE, length)
        if owner:
            self.compressor, self.entry_rope = Compressor(C, ratio, overlap), Rope(ROPE, length, ratio)
            self.keys = Compressor(INDEX_C, ratio, True) if overlap else linear(C, INDEX_C)
            self.key_norm = None if overlap else RMSNorm(INDEX_C)
            self.indexer = Indexer(length)
            t = torch.arange(length)
            self.register_buffer('visible', torch.arange(length // ratio) < ((t + 1) // ratio)[:, None],
                                 persistent=False)
        t, back = torch.arange(length)[:, None], torch.arange(WINDOW - 1, -1, -1)
        self.register_buffer('in_window', (t - back >= 0)[:, None], persistent=False)

    def forward(self, x, shared):
        B, T, _ = x.shape
        q = self.rope(self.q(x).view(B, T, HEADS, C))
        local = self.rope(self.local_norm(self.local(x)))
        if self.owner:
            latent = self.compressor(x)
            shared['entries'] = self.entry_rope(latent)
            keys = self.keys(x.detach()) if self.overlap else self.key_norm(self.keys(latent.detach()))
            shared['top'], shared['there'], shared['log_p'] = self.indexer(x, self.entry_rope(keys), self.visible)
            shared['teachers'] = []
        entries, top, there = shared['entries'], shared['top'], shared['there']
        window = F.pad(local, (0, 0, WINDOW - 1, 0)).unfold(1, WINDOW, 1).transpose(2, 3)  # [B, T, W, C]
        chosen = entries.gather(1, top.flatten(1).unsqueeze(-1).expand(-1, -1, C)).view(B, T, TOPK, C)
        rows = torch.cat((window, chosen), 2)
        mask = torch.cat((self.in_window.expand(B, T, 1, WINDOW), there.unsqueeze(2)), -1)
        logits = (q @ rows.transpose(2, 3)) * C ** -0.5
        logits = logits.masked_fill(~mask, float('-inf'))
        sink = self.sink.view(1, 1, HEADS, 1).expand(B, T, HEADS, 1)
        p = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
        shared['teachers'].append(p[..., WINDOW:].detach().sum(2))
        return self.o(self.rope(p @ rows, inverse=True).flatten(2))


def index_loss(shared):
    """KL of the teacher, mean over the layers that read with the list, and the indexer, over its list."""
    teacher = torch.stack([t / t.sum(-1, keepdim=True).clamp_min(1e-30) for t in shared['teachers']]).mean(0)
    kl = torch.where(teacher > 0, teacher * (teacher.clamp_min(1e-30).log() - shared['log_p']), 0.0)
    return kl.sum() / shared['there'].any(-1).sum()


# --- models -------------------------------------------------------------------------------------------

class Block(nn.Module):
    def __init__(self, attention, ffn, norm):
        super().__init__()
        self.attention, self.ffn, self.norm1, self.norm2 = attention, ffn, norm(), norm()

    def forward(self, h, shared):
        x = self.norm1(h)
        h = h + (self.attention(x, shared) if isinstance(self.attention, Sparse) else self.attention(x))
        return h + self.ffn(self.norm2(h))


class Model(nn.Module):
    def __init__(self, attentions, length, nano):
        super().__init__()
        norm = (lambda: nn.LayerNorm(D, bias=False)) if nano else (lambda: RMSNorm(D))
        self.embed = nn.Embedding(VOCAB, D)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.positions = nn.Embedding(length, D) if nano else None
        self.blocks = nn.ModuleList(Block(a, GELU() if nano else SwiGLU(), norm) for a in attentions)
        self.norm = norm()

    def forward(self, tokens, targets):
        h, shared, loss = self.embed(tokens), {}, 0.0
        if self.positions:
            h = h + self.positions.weight
        for i, block in enumerate(self.blocks):
            h = block(h, shared)
            following = self.blocks[i + 1].attention if i + 1 < len(self.blocks) else None
            if shared and (following is None or following.owner):  # the last layer that reads with this list
                loss = loss + index_loss(shared)
        logits = self.norm(h) @ self.embed.weight.t()
        return loss + F.cross_entropy(logits.flatten(0, 1), targets.flatten())


MODELS = {  # name: batch, length, model
    'nanogpt-char': (12, 64, lambda T: Model([MHA(T) for _ in range(4)], T, True)),
    'gqa': (16, 256, lambda T: Model([GQA(T) for _ in range(6)], T, False)),
    'mla': (16, 256, lambda T: Model([MLA(T) for _ in range(6)], T, False)),
    'csa': (4, 1024, lambda T: Model([Sparse(T, 4, overlap=True) for _ in range(6)], T, False)),
    'full-reuse': (4, 1024, lambda T: Model([Sparse(T, 2, owner=i % 3 == 0) for i in range(6)], T, False)),
}


def stepper(name):
    """A function that does one step, and the number of parameters."""
    torch.manual_seed(1)
    batch, length, make = MODELS[name]
    model = make(length)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimiser = torch.optim.AdamW([{'params': matrices, 'weight_decay': 0.1}, {'params': vectors, 'weight_decay': 0.0}],
                                  lr=1e-7, betas=(0.9, 0.95))
    tokens, targets = torch.randint(VOCAB, (2, batch, length))

    def step():
        optimiser.zero_grad(set_to_none=True)
        model(tokens, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return step, sum(p.numel() for p in model.parameters())


def best_step(step, seconds, threads):
    clock = time.process_time if threads == 1 else time.perf_counter
    best, end = float('inf'), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = clock()
        step()
        best = min(best, clock() - start)
    return best


def kvlab(name, seconds, threads):
    out = subprocess.run([os.path.join(ROOT, 'scripts', 'kvlab'), 'bench', 'train/' + name, '--threads', str(threads),
                          '--seconds', str(seconds), '--json'], check=True, capture_output=True, text=True).stdout
    return json.loads(out)['benches'][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('names', nargs='*', default=list(MODELS), metavar='NAME', help=', '.join(MODELS))
    parser.add_argument('--threads', default='1,%d' % (os.cpu_count() or 1))
    parser.add_argument('--pairs', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=3.0, help='for each side of a pair')
    args = parser.parse_args()
    for name in args.names:
        if name not in MODELS:
            parser.error("there is no model '%s'; they are %s" % (name, ', '.join(MODELS)))
    print('PyTorch %s, step times in ms, medians of %d pairs' % (torch.__version__, args.pairs))
    print('%-14s %8s %10s %9s %9s %14s' % ('model', 'threads', 'parameters', 'PyTorch', 'kvlab', 'PyTorch/kvlab'))
    for name in args.names:
        step, parameters = stepper(name)
        step()
        for threads in (int(word) for word in args.threads.split(',')):
            torch.set_num_threads(threads)
            pairs = []
            for _ in range(args.pairs):
                theirs, ours = best_step(step, args.seconds, threads), kvlab(name, args.seconds, threads)
                if ours['parameters'] != parameters:
                    raise SystemExit('%s has %d parameters in kvlab, not %d' % (name, ours['parameters'], parameters))
                pairs.append((theirs / ours['seconds'], theirs * 1e3, ours['seconds'] * 1e3))
            ratio, theirs, ours = (statistics.median(column) for column in zip(*pairs))
            print('%-14s %8d %10d %9.1f %9.1f %14.2f' % (name, threads, parameters, theirs, ours, ratio), flush=True)


if __name__ == '__main__':
    main()
