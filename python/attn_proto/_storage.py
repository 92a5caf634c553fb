"""The check of PyTorch's storages for code that the operators' own check does not reach."""


def check(name, tensor):
    """Raises ValueError if a tensor of PyTorch has elements beyond the end of its storage: somebody has resized the
    storage. PyTorch's own operations read beyond the end."""
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()  # before PyTorch 2.0
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    needed, there = (last + 1) * tensor.element_size() if tensor.numel() else 0, storage.nbytes()
    if needed > there:
        raise ValueError(f"attn_proto: {name}: a storage of {there} bytes is not allowed; its elements need {needed}")
