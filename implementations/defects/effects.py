"""Mistakes of chapter 13, and of the relations of chapter 12 between calls: traces, memory, paths that differ."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.defects.breaking import (
    LEAK,
    PRECISION,
    STATE,
    breaks,
    breaks_built,
    breaks_layer,
)
from attention_conformance.spec.features import Feature, Scope

_MASKS: dict[torch.Size, Tensor] = {}
_OUTPUTS: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
_PAIRS: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
_KEYS: dict[int, tuple[Tensor, Tensor]] = {}
_SHARED: dict[str, Tensor] = {}
_RANGES: dict[torch.dtype, float] = {}
_DIE = torch.Generator().manual_seed(0)
breaks_effects = partial(breaks, severity=STATE)


@breaks_effects("effects.inputs", holds=("scores.dot-product",), raises=True)
def query_scaled_in_place(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    query.mul_(correct.factor(query, options.get("scale")))
    return Steps()(query, key, value, **{**options, "scale": 1.0})


@breaks_effects("effects.inputs", step="add_mask", holds=("masks.bool", "masks.float", "scores.dot-product"))
def mask_inverted_in_place(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return correct.add_mask(scores, mask)
    return scores.masked_fill(mask.logical_not_(), float("-inf"))


@breaks_effects("effects.inputs", holds=("scores.dot-product", "masks.bool"), raises=True)
def key_transposed_in_place(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return Steps()(query, key.transpose_(-1, -2).mT, value, **options)
    return Steps()(query, key, value, **options)


@breaks_effects(
    "effects.inputs",
    step="rotate",
    claims={Feature.ROTARY},
    holds=("positions.rotary", "positions.rotary-gradient", "effects.stateless"),
    raises=True,
)
def rotated_in_place(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    rotated = correct.rotate(rows, positions, base)
    return rotated if rows.requires_grad else rows.copy_(rotated)


@breaks_effects("effects.inputs", holds=("scores.dot-product", "gradients.query"))
def gradient_required_of_the_query(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not query.requires_grad and query.is_leaf and not torch.is_grad_enabled():
        query.requires_grad_()
    return Steps()(query, key, value, **options)


@breaks_layer("effects.inputs", holds=("projections.query", "relations.grad-mode"), severity=STATE)
class EvaluationModeLeftOn(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        self.eval()
        return super().forward(query, key, value, **options)


@breaks_layer("effects.inputs", holds=("projections.key", "projections.output"), severity=STATE)
class QueryMatrixScaledInPlace(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer: Tensor = super().forward(query, key, value, **options)
        if not torch.is_grad_enabled():
            self.q.weight.mul_(0.5)
        return answer


@breaks("effects.repeatable", holds=("numerics.bound", "effects.global-state"), severity=PRECISION)
def random_last_bit(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    noise = torch.rand(output.shape, generator=_DIE, dtype=torch.float64) * torch.finfo(output.dtype).eps
    return output * (1 + noise).to(output.dtype)


@breaks("effects.stateless", step="add_mask", holds=("effects.repeatable",), severity=LEAK)
def mask_remembered_by_shape(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, _MASKS.setdefault(mask.shape, mask.detach().clone()).to(mask.dtype))


@breaks_effects(
    "effects.stateless", "effects.repeatable", step="score", holds=("softmax.weights", "scores.dot-product")
)
def range_of_the_last_call(query: Tensor, key: Tensor, by: float) -> Tensor:
    last = _RANGES.get(query.dtype, 1.0)
    _RANGES[query.dtype] = float(query.detach().abs().amax()) if query.numel() else 1.0
    return correct.score(query, key, by * (1.0 + 4 * (last % 1.0) * torch.finfo(query.dtype).eps))


@breaks_effects("effects.global-state", holds=("effects.repeatable", "scores.dot-product"))
def random_number_drawn(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.rand(1)
    return Steps()(query, key, value, **options)


@breaks_effects("effects.global-state", holds=("effects.repeatable", "scores.dot-product"))
def generator_seeded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.manual_seed(0)
    return Steps()(query, key, value, **options)


@breaks_effects("effects.global-state", holds=("effects.inputs", "scores.dot-product"))
def default_dtype_left_changed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.set_default_dtype(query.dtype)
    return Steps()(query, key, value, **options)


@breaks_effects("effects.global-state", holds=("effects.inputs", "scores.dot-product"))
def recording_left_on(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    torch.set_grad_enabled(True)
    return output


@breaks_effects("effects.threads", holds=("scores.dot-product", "effects.stateless"))
def query_in_a_place_of_all_threads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    _SHARED["query"] = query
    return Steps()(_SHARED["query"], key, value, **options)


@breaks_effects("effects.fresh-output", holds=("scores.dot-product",))
def output_written_into_one_buffer(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if output.requires_grad:
        return output
    return _OUTPUTS.setdefault((output.shape, output.dtype), torch.empty_like(output)).copy_(output)


@breaks_effects("effects.fresh-output", holds=("scores.dot-product", "effects.stateless"))
def outputs_written_into_two_buffers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if output.requires_grad:
        return output
    buffers = _PAIRS.setdefault((output.shape, output.dtype), [torch.empty_like(output), torch.empty_like(output)])
    buffers.reverse()
    return buffers[0].copy_(output)


@breaks_effects("effects.fresh-output", holds=("values.single-key", "effects.inputs"))
def single_value_handed_back(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return value.expand(output.shape) if key.shape[-2] == 1 and "attn_mask" not in options else output


@breaks("relations.grad-mode", "shapes.combinations", holds=("scores.scale-explicit", "causal.square"))
def scale_dropped_without_gradients(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and not query.requires_grad:
        options.pop("scale", None)
    return Steps()(query, key, value, **options)


ALTERNATIVES = Claims(Scope.OP, OP_FEATURES | {Feature.ALTERNATIVES})


@breaks_built("relations.alternatives", holds=("causal.square", "scores.dot-product"))
def flag_given_is_flag_set(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool | None = None, **options: Any) -> Tensor:
        return Steps()(query, key, value, is_causal=is_causal is not None, **options)

    explicit = torch_op(partial(attend, is_causal=False))
    return Implementation(
        name, ALTERNATIVES, torch_op(attend), alternatives={"with its defaults spelled out": explicit}
    )


@breaks_built("relations.alternatives", holds=("masks.bool", "masks.float"), severity=LEAK)
def mask_needs_weights(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, need_weights: bool = True, **options: Any) -> Tensor:
        if not need_weights:
            options.pop("attn_mask", None)
        return Steps()(query, key, value, **options)

    fast = torch_op(partial(attend, need_weights=False))
    return Implementation(name, ALTERNATIVES, torch_op(attend), alternatives={"without returned weights": fast})


@breaks_built("relations.alternatives", holds=("masks.float", "masks.key-padding"), severity=LEAK)
def padding_numbers_made_boolean(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mask = options.get("attn_mask")
        if mask is not None and mask.is_floating_point() and mask.shape[1:3] == (1, 1):
            options["attn_mask"] = mask == 0
        return Steps()(query, key, value, **options)

    padded = torch_op(attend)
    return Implementation(
        name, ALTERNATIVES, torch_op(Steps()), alternatives={"with numbers in its key_padding_mask": padded}
    )


@breaks_built("relations.alternatives", holds=("effects.stateless", "effects.repeatable"))
def keys_remembered_by_identity(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """A copy of the keys is kept for each tensor that holds them."""
        if not torch.is_grad_enabled():
            owner, copy = _KEYS.get(id(key), (None, key))
            if owner is not key:
                copy = key.clone()
                _KEYS[id(key)] = key, copy
            key = copy
            if len(_KEYS) > 64:
                _KEYS.clear()
        return Steps()(query, key, value, **options)

    reused = torch_op(attend, reused=True)
    return Implementation(
        name, ALTERNATIVES, torch_op(attend), alternatives={"in tensors that were used before": reused}
    )
