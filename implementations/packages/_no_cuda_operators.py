"""For packages that import torchvision: its wheel on PyPI has operators of CUDA, which a torch for CPUs alone lacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def without_operators(library: str) -> Iterator[None]:
    """Within, what a library registers for operators that are not there is ignored."""
    register = torch.library.register_fake

    def lenient(op: Any, *args: Any, **options: Any) -> Any:
        return _ignored if str(op).startswith(f"{library}::") else register(op, *args, **options)

    torch.library.register_fake = lenient
    try:
        yield
    finally:
        torch.library.register_fake = register


def _ignored(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
