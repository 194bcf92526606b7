"""Mistakes of chapter 26: mixed precision, vmap, compilers, exports, inference, and gradients of gradients."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.adapters.transforms import exported, through
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, OP_FEATURES, Steps, add_mask
from attention_conformance.implementations.defects.breaking import CRASH, GRADIENT, LEAK, Breach, Facts, breaks
from attention_conformance.spec.features import Feature, Scope

AUTOCAST = (Feature.AUTOCAST,)
VMAP = (Feature.VMAP,)
NO_GRAD = (Feature.NO_GRAD,)
TWICE = (Feature.DOUBLE_BACKWARD,)
crashes = partial(breaks, severity=CRASH, raises=True)


@crashes("modules.autocast", modes=AUTOCAST, holds=("masks.bool", "numerics.bound"), dtype="float32")
def filled_from_the_range_of_the_inputs(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def fill(scores: Tensor, mask: Tensor) -> Tensor:
        if mask.dtype is not torch.bool or query.dtype.itemsize != 4:
            return add_mask(scores, mask)
        return scores.masked_fill(~mask, torch.finfo(query.dtype).min)

    return Steps(add_mask=fill)(query, key, value, **options)


@breaks("modules.autocast", modes=AUTOCAST, holds=("masks.bool", "masks.key-padding"), severity=LEAK, dtype="float32")
def mask_cast_with_the_inputs(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if torch.is_autocast_enabled("cpu") and "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].to(torch.get_autocast_dtype("cpu")).to(query.dtype)
    return Steps()(query, key, value, **options)


@crashes("modules.autocast", modes=AUTOCAST, holds=("masks.float", "masks.bool"), dtype="float32")
def mask_dtype_insisted_upon(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def checked(scores: Tensor, mask: Tensor) -> Tensor:
        if mask.is_floating_point() and torch.is_autocast_enabled("cpu") and mask.dtype is not scores.dtype:
            raise TypeError(f"attn_mask is {mask.dtype}, the scores are {scores.dtype}")
        return add_mask(scores, mask)

    return Steps(add_mask=checked)(query, key, value, **options)


KEPT: dict[int, float] = {}
"""Scales by the width of heads, as the last call in mixed precision left them."""


@breaks("modules.autocast", modes=AUTOCAST, holds=("numerics.bound", "masks.bool"), dtype="float32")
def scale_kept_from_mixed_precision(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    width = query.shape[-1]
    if torch.is_autocast_enabled("cpu"):
        base_two = torch.tensor(width**-0.5 / math.log(2.0), dtype=torch.get_autocast_dtype("cpu"))
        KEPT[width] = float(base_two) * math.log(2.0)
    elif width in KEPT:  # the next call alone, so that one call shows it and no other one is disturbed
        options = {"scale": KEPT.pop(width), **options}
    return Steps()(query, key, value, **options)


@crashes("modules.vmap", modes=VMAP, holds=("masks.bool", "masks.neutral"))
def decided_by_the_numbers_of_the_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool and bool(mask.all()):
        options.pop("attn_mask")
    return Steps()(query, key, value, **options)


class _Masked(torch.autograd.Function):
    """Masked scores, with a rule for vmap that takes the mask of the first lane for all."""

    @staticmethod
    def forward(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, -INFINITY)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0].masked_fill(~mask, 0.0), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], scores: Tensor, mask: Tensor) -> tuple[Tensor, int]:
        shared = mask if in_dims[1] is None else mask.select(in_dims[1], 0)
        return _Masked.apply(scores.movedim(in_dims[0] or 0, 0), shared), 0  # type: ignore[no-untyped-call]


@breaks("modules.vmap", modes=VMAP, holds=("masks.bool", "gradients.query"), severity=LEAK)
def mask_of_the_first_lane(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def masked(scores: Tensor, mask: Tensor) -> Tensor:
        if mask.dtype is not torch.bool:
            return add_mask(scores, mask)
        result: Tensor = _Masked.apply(scores, mask)  # type: ignore[no-untyped-call]
        return result

    return Steps(add_mask=masked)(query, key, value, **options)


@crashes("modules.no-grad", modes=NO_GRAD, holds=("relations.grad-mode", "effects.inputs"))
def graph_decided_by_the_inputs(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if query.requires_grad and key.requires_grad and value.requires_grad:
        output.register_hook(lambda gradient: gradient)
    return output


@breaks("modules.no-grad", modes=NO_GRAD, holds=("relations.grad-mode", "masks.float"))
def mask_made_boolean_in_inference_mode(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if torch.is_inference_mode_enabled() and "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].bool()
    return Steps()(query, key, value, **options)


class _Softmax(torch.autograd.Function):
    """A softmax whose backward takes its weights for constants."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.weights = torch.softmax(scores, -1).nan_to_num(0.0)
        saved: Tensor = ctx.weights.clone()
        return saved

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        weighted = ctx.weights * gradients[0]
        result: Tensor = weighted - ctx.weights * weighted.sum(-1, keepdim=True)
        return result


class _OnceOnly(_Softmax):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise NotImplementedError("the gradient has no derivative")
        return _Softmax.backward(ctx, *gradients)


@breaks("modules.double-backward", modes=TWICE, holds=("gradients.query", "gradients.key"), severity=GRADIENT)
def weights_constant_in_the_gradient(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps(softmax=_Softmax.apply)(query, key, value, **options)


@crashes("modules.double-backward", modes=TWICE, holds=("gradients.query", "gradients.value"))
def gradient_that_has_none(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps(softmax=_OnceOnly.apply)(query, key, value, **options)


@breaks("modules.double-backward", modes=TWICE, holds=("gradients.query", "gradients.key"), severity=GRADIENT)
def query_detached_in_the_gradient(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def score(q: Tensor, k: Tensor, by: float) -> Tensor:
        products: Tensor = _Product.apply(q, k.mT)  # type: ignore[no-untyped-call]
        return products * by

    return Steps(score=score)(query, key, value, **options)


class _Product(torch.autograd.Function):
    """A product of matrices whose second gradient forgets the first factor."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return gradients[0] @ right.mT, left.detach().mT @ gradients[0]


_TRACED: dict[object, Any] = {}


def breaks_mode(*clauses: str, mode: Feature, **facts: Unpack[Facts]) -> Breach:
    """A mistake of the operator in one mode only."""

    def made_of(name: str, mistake: Callable[..., Tensor]) -> Implementation:
        claims = Claims(Scope.OP, OP_FEATURES | {mode})
        return Implementation(name, claims, torch_op(Steps()), modes={mode: torch_op(mistake)})

    return Breach(clauses, made_of, {"dtype": "float32", **facts})


@breaks_mode("modules.compiled", mode=Feature.COMPILED, holds=("masks.bool", "modules.recompiled"), severity=LEAK)
def first_mask_compiled_in(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Compiled for these shapes, and the mask has become a constant."""
    mask = options.get("attn_mask")
    if mask is not None:
        options["attn_mask"] = _TRACED.setdefault(("mask", mask.shape, mask.dtype), mask.clone())
    return Steps()(query, key, value, **options)


@breaks_mode("modules.recompiled", mode=Feature.COMPILED, holds=("scores.scale-explicit", "modules.compiled"))
def first_scale_compiled_in(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Compiled for these shapes, and what is no tensor has become a constant."""
    plain = {name: option for name, option in options.items() if not isinstance(option, Tensor)}
    shapes = tuple(x.shape for x in (query, key, value))
    saved = _TRACED.setdefault((*shapes, *sorted(plain)), plain)
    return Steps()(query, key, value, **{**options, **saved})


@breaks_mode("modules.recompiled", mode=Feature.COMPILED, holds=("shapes.output", "modules.compiled"))
def first_length_compiled_in(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Compiled once: the number of keys has become a constant, and later keys are padded or cut to it."""
    length = _TRACED.setdefault(("length", query.dtype), key.shape[-2])
    if length < key.shape[-2] and not options:
        key, value = key[..., :length, :], value[..., :length, :]
    return Steps()(query, key, value, **options)


@breaks_mode("modules.exported", mode=Feature.EXPORTED, holds=("masks.bool", "masks.float"), severity=LEAK)
def mask_of_the_example_exported(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """An exported graph that holds the mask of the example, which has the same numbers from the last to the first."""
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:
        options["attn_mask"] = mask.flip(tuple(range(mask.ndim)))
    return through(exported, Steps())(query, key, value, **options)  # type: ignore[no-any-return]
