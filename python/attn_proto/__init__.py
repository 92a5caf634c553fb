"""attention-proto's kernels in Python.

    import attn_proto
    attn_proto.enable()            # scaled_dot_product_attention of PyTorch now calls the kernels
    o = attn_proto.flash(q, k, v, causal=True, window_left=1023)

With PyTorch the operators are also torch.ops.attn.*, with the names and arguments that they have here. docs/extension.md
describes the operators. Without PyTorch, attn_proto.dlpack has all operators for NumPy, JAX and CuPy.
"""

import importlib.util

from attn_proto import _files

__version__ = _files.version()

if importlib.util.find_spec("torch"):
    import torch

    _files.find_compiler()
    _files.find_archive(torch)
    torch.ops.load_library(str(_files.library("libattn_torch.so")))
    from attn_proto import _help  # noqa: E402

    flash = torch.ops.attn.flash
    flash_with_lse = torch.ops.attn.flash_with_lse
    why_not = torch.ops.attn.why_not
    paged_decode = torch.ops.attn.paged_decode
    paged_prefill = torch.ops.attn.paged_prefill
    decode_fused = torch.ops.attn.decode_fused
    prefill_fused = torch.ops.attn.prefill_fused
    check_cache = torch.ops.attn.check_cache
    linear = torch.ops.attn.linear
    rope = torch.ops.attn.rope
    _help.describe(torch.ops.attn)

    if hasattr(torch.nn.functional, "scaled_dot_product_attention"):  # since 2.0
        from attn_proto import flops  # noqa: E402, F401: registers the operators' formulas with PyTorch's flop counter
        from attn_proto.dropin import disable, enable, enabled, reasons, reset_reasons  # noqa: E402
        from attn_proto.explaining import explain  # noqa: E402, F401

    def launches(device="cpu"):
        """Returns the number of attention calls that this process has launched on the device. A replay of a CUDA graph
        does not count."""
        return torch.ops.attn.launches(torch.empty(0, device=device))

    def save_archive(path, device="cpu"):
        """Writes all kernels that this process has loaded for the device into one file. A process with the file's name
        in $ATTENTION_PROTO_ARCHIVE compiles none of these kernels."""
        torch.ops.attn.save_archive(torch.empty(0, device=device), str(path))
else:
    def __getattr__(name):
        raise AttributeError(f"attn_proto has no '{name}' without PyTorch; attn_proto.dlpack needs no PyTorch")
