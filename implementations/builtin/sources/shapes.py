"""Head splitting and the checks of sizes that the sources share. Every error names the offending sizes."""

from torch import Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, n, H * d) -> (B, H, n, d): head h owns the columns h * d to (h + 1) * d - 1."""
    batch, length, width = x.shape
    return x.reshape(batch, length, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, n, d) -> (B, n, H * d), the exact inverse of ``split_heads``."""
    return x.transpose(1, 2).flatten(start_dim=2)


def require_positive(**sizes: int) -> None:
    """ValueError unless every size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def require_divisible(num_heads: int, **widths: int) -> None:
    """ValueError unless every total width splits into ``num_heads`` equal heads."""
    for name, width in widths.items():
        if width % num_heads:
            raise ValueError(f"{name} ({width}) must be divisible by num_heads ({num_heads})")


def require_tokens(name: str, x: Tensor, width: int) -> None:
    """ValueError unless ``x`` has shape (B, n, width)."""
    if x.dim() != 3 or x.shape[-1] != width:
        raise ValueError(f"{name} must have shape (B, n, {width}), got {tuple(x.shape)}")
