"""A small GPT, for the scripts that train one: attention, dropout, weights that are shared, a loss in the model."""

import torch
from torch import nn
from torch.nn import functional

WORDS, BLOCK, WIDTH = 65, 32, 32


class Layer(nn.Module):
    """Attention and a multilayer perceptron."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        """Return the layer's output."""
        rows, length, _ = x.shape
        parts = self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        query, key, value = (part.view(rows, length, 4, WIDTH // 4).transpose(1, 2) for part in parts)
        rate = 0.1 if self.training else 0
        y = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, WIDTH))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A language model that returns its loss."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Layer() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, inputs, targets):
        """Return logits and the loss."""
        x = self.drop(self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1])))
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(x)
        return logits, functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1), ignore_index=-1)
