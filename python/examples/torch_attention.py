"""A model that calls scaled_dot_product_attention, without and with attn_proto.enable()."""

import torch
import torch.nn.functional as F

import attn_proto


class Attention(torch.nn.Module):
    """Attention as models write it, without any code of this project."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.into, self.out = heads, torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.into(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


torch.manual_seed(0)
attention, x = Attention(256, 4), torch.randn(2, 100, 256)
with torch.no_grad():
    before = attention(x)
    with attn_proto.enable():
        after = attention(x)
print(f"largest difference: {(before - after).abs().max():.1e}; calls that enable() left to PyTorch: {attn_proto.reasons()}")
assert (before - after).abs().max() < 1e-5 and not attn_proto.reasons()
