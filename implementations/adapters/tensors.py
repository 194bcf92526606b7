"""Tensors: NumPy arrays to torch and back without a copy, bfloat16 included."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils.checkpoint import CheckpointFunction

from attention_conformance.implementations.api.contract import RANDOM_STATE
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.problem import Array, Problem

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


Tensors = dict[str, torch.Tensor]
"""Tensors by the names that the problem gives its arrays."""


def to_tensor(array: Array, device: str = "cpu") -> torch.Tensor:
    """The array as a tensor that shares its memory and strides on the CPU; negative strides are copied."""
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    if start := _start(array):
        # A tensor made of a view begins with its storage; one of its buffer lies where a user's chunk or slice does.
        buffer = to_tensor(_owner(array).reshape(-1), device)
        return buffer.as_strided(array.shape, [stride // array.itemsize for stride in array.strides], start)
    if array.flags.writeable:
        return _of_memory(array).to(device)
    with warnings.catch_warnings():
        # A broadcast array is read-only; torch warns of it, and the suite compares inputs after each call.
        warnings.simplefilter("ignore", UserWarning)
        return _of_memory(array).to(device)


def _of_memory(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _start(array: Array) -> int:
    """The element of its buffer with which an array begins; 0 where there is no buffer of such elements."""
    owner = _owner(array)
    if owner is array or owner.dtype != array.dtype or not owner.flags.c_contiguous:
        return 0
    start, rest = divmod(array.ctypes.data - owner.ctypes.data, array.itemsize)
    return 0 if rest or any(stride % array.itemsize for stride in array.strides) else start


def _owner(array: Array) -> Array:
    """The array whose memory this one is a view of, perhaps itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def to_array(tensor: torch.Tensor) -> Array:
    """The tensor as an array that shares its memory on the CPU.

    Raises:
        TypeError: it is no tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor was expected, got {type(tensor).__name__}")
    held = tensor.detach().cpu().resolve_conj().resolve_neg()  # a sign may be a mere mark of the tensor
    if held.dtype is torch.bfloat16:
        bits: Array = held.view(torch.uint16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: Array = held.numpy()
    return found


def require_readable(output: object, given: Tensors) -> None:
    """Checks that an output lies where the inputs do; on the CPU, where its numbers are read, it may lie anyway.

    Raises:
        CandidateError: it does not.
    """
    here = given["query"].device.type
    if isinstance(output, torch.Tensor) and output.device.type not in (here, "cpu"):
        raise CandidateError(f"returned its output on device {output.device.type!r}, while the inputs are on {here!r}")


def tensors(problem: Problem, device: str) -> Tensors:
    """Every array of the problem as a tensor by name; those of `needs` require gradients if there is a cotangent."""
    found = {name: to_tensor(array, device) for name, array in problem.arrays().items()}
    if problem.cotangent is not None:
        for name in problem.needs:
            found[name] = found[name].detach().requires_grad_()
    return found


def forms(given: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """What a call could change of tensors without touching a number, and whether gradients are recorded."""
    found: dict[str, object] = {n: (t.shape, t.stride(), t.requires_grad) for n, t in given.items()}
    return found | {"gradient mode": torch.is_grad_enabled()}


def gradients_of(output: torch.Tensor, leaves: Mapping[str, torch.Tensor], cotangent: torch.Tensor) -> dict[str, Array]:
    """D sum(output * cotangent) / d leaf by name; zeros for a leaf that the output does not depend on."""
    return zeros_for_none(leaves, slopes(output, list(leaves.values()), cotangent))


def watched(gradients: Callable[[], dict[str, Array]], problem: Problem) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Gradients, and what the backward pass disturbs; a number is drawn before it, as others draw between passes."""
    if not problem.extension.dropout or problem.extension.evaluation:
        return gradients(), ()
    torch.rand(1)
    before = torch.get_rng_state()
    found = gradients()
    return found, () if torch.equal(before, torch.get_rng_state()) else (RANDOM_STATE,)


def slopes(
    output: torch.Tensor,
    leaves: Sequence[torch.Tensor],
    cotangent: torch.Tensor,
    keep: bool = False,
    graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The same in the order of the leaves, None where the output does not depend on one.

    `keep` keeps the graph of the output; `graph` makes one of the gradients, too.

    Raises:
        ValueError: the output has another shape than the cotangent.
    """
    if output.shape != cotangent.shape:
        raise ValueError(f"an output of shape {tuple(output.shape)} has no cotangent of shape {tuple(cotangent.shape)}")
    product = _Product.apply(output, cotangent)  # type: ignore[no-untyped-call]
    if not graph and _has_reentrant_checkpoint(output):
        return _accumulated(product, leaves, keep)
    return torch.autograd.grad(product, leaves, retain_graph=keep or graph, create_graph=graph, allow_unused=True)


def _has_reentrant_checkpoint(output: torch.Tensor) -> bool:
    """Whether a part of it is computed again in its backward pass by what `torch.autograd.grad` refuses."""
    left, seen = [output.grad_fn], set()
    while left:
        node = left.pop()
        if isinstance(node, CheckpointFunction._backward_cls):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            left += [after for after, _ in node.next_functions]
    return False


def _accumulated(product: torch.Tensor, leaves: Sequence[torch.Tensor], keep: bool) -> tuple[torch.Tensor | None, ...]:
    """The gradients as training takes them: added to what each leaf holds, which then is as it was."""
    held = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        product.backward(retain_graph=keep)
        return tuple(leaf.grad for leaf in leaves)
    finally:
        for leaf, before in zip(leaves, held, strict=True):
            leaf.grad = before


class _Product(torch.autograd.Function):
    """Stands for sum(output * cotangent); its gradient is the cotangent as it was given, strides included.

    Where torch is given a cotangent itself, it imports its symbolic shapes first, which takes a process half a second.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        ctx.cotangent = cotangent
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.cotangent, None


def zeros_for_none(leaves: Mapping[str, torch.Tensor], found: Sequence[torch.Tensor | None]) -> dict[str, Array]:
    """Gradients as arrays by the names of the leaves; zeros where there is none."""
    return {
        name: to_array(torch.zeros_like(leaf) if gradient is None else gradient)
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


def second_products(
    output: torch.Tensor, leaves: Mapping[str, torch.Tensor], directions: Tensors, cotangent: torch.Tensor
) -> dict[str, Array]:
    """Derivatives of the gradients along the directions, by name; see `Problem.direction`."""
    first = slopes(output, list(leaves.values()), cotangent, graph=True)
    along = [(g * directions[name]).sum() for name, g in zip(leaves, first, strict=True) if g is not None]
    return gradients_of(torch.stack(along).sum(), leaves, torch.ones((), dtype=output.dtype, device=output.device))
