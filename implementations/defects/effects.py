"""Mistakes of chapter 13, and of the relations of chapter 12 between calls: traces, memory, paths that differ."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import (
    OP_FEATURES,
    Steps,
    add_mask,
    factor,
    rotate,
    score,
)
from attention_conformance.implementations.defects.breaking import (
    LEAK,
    PRECISION,
    STATE,
    breaks,
    breaks_built,
    breaks_layer,
    github,
)
from attention_conformance.spec.features import Feature, Scope

_MASKS: dict[torch.Size, Tensor] = {}
_OUTPUTS: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
_TURNS: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
_KEYS: dict[int, tuple[Tensor, Tensor]] = {}
_RANGES: dict[torch.dtype, float] = {}
_DIE = torch.Generator().manual_seed(0)
breaks_effects = partial(breaks, severity=STATE)


@breaks_effects("effects.inputs", holds=("scores.dot-product",), raises=True).entry(
    does="Scales the caller's queries in place.",
    repair="Scale a copy, or the scores.",
    hides="Inputs that are used once.",
    links=github("hao-ai-lab/FastVideo/pull/1457"),
)
def query_scaled_in_place(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any
) -> Tensor:
    query.mul_(factor(query, scale))
    return Steps()(query, key, value, scale=1.0, **masks)


@breaks_effects("effects.inputs", step="add_mask", holds=("masks.bool", "masks.float", "scores.dot-product")).entry(
    does="Inverts the caller's boolean mask in place.",
    repair="Invert a copy.",
    hides="Masks that are used once.",
    links=github("Shujun-He/RibonanzaNet/issues/7"),
)
def mask_inverted_in_place(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return add_mask(scores, mask)
    return scores.masked_fill(mask.logical_not_(), float("-inf"))


@breaks_effects("effects.inputs", holds=("scores.dot-product", "masks.bool"), raises=True).entry(
    does="Transposes the caller's keys in place when no gradient is recorded.",
    repair="Take a transposed view, and leave the tensor as it is.",
    hides="Keys that are used once; checks of numbers.",
)
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
).entry(
    does="Writes the rotated queries and keys over the caller's where no gradient is recorded.",
    repair="Rotate copies.",
    hides="Inputs that are used once; half types, which are copied first; calls without rotary embedding.",
    matters="A cached key is rotated again at each call.",
)
def rotated_in_place(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    rotated = rotate(rows, positions, base)
    return rotated if rows.requires_grad else rows.copy_(rotated)


@breaks_effects("effects.inputs", holds=("scores.dot-product", "gradients.query")).entry(
    does="Makes the caller's queries require a gradient.",
    repair="Leave that to the caller.",
    hides="Training, where they require one anyway.",
    matters="Inference keeps graphs, until memory runs out.",
)
def gradient_required_of_the_query(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not query.requires_grad and query.is_leaf and not torch.is_grad_enabled():
        query.requires_grad_()
    return Steps()(query, key, value, **options)


@breaks_layer("effects.inputs", holds=("projections.query", "relations.grad-mode"), severity=STATE).entry(
    does="Leaves the module in evaluation mode.",
    repair="Leave the mode to the caller.",
    hides="Modules without dropout; a single call.",
)
class EvaluationModeLeftOn(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        self.eval()
        answer: Tensor = super().forward(query, key, value, **options)
        return answer


@breaks_layer("effects.inputs", holds=("projections.key", "projections.output"), severity=STATE).entry(
    does="Folds the scale into the query matrix after its first use, in place.",
    repair="Fold it into a copy, once, when the module is made ready.",
    hides="A single call, and weights that are loaded anew before each.",
)
class QueryMatrixScaledInPlace(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer: Tensor = super().forward(query, key, value, **options)
        if not torch.is_grad_enabled():
            self.q.weight.mul_(0.5)
        return answer


@breaks("effects.repeatable", holds=("numerics.bound", "effects.global-state"), severity=PRECISION).entry(
    does="Changes the last bits from call to call.",
    repair="Add up in a fixed order, or document that the call is not deterministic.",
    hides="Tolerances of any kind.",
    matters="Runs cannot be reproduced, and a bug seen once is never seen again.",
    links=github("Dao-AILab/flash-attention/issues/414", "Dao-AILab/flash-attention/issues/2244"),
)
def random_last_bit(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    noise = torch.rand(output.shape, generator=_DIE, dtype=torch.float64) * torch.finfo(output.dtype).eps
    return output * (1 + noise).to(output.dtype)


@breaks("effects.stateless", step="add_mask", holds=("effects.repeatable",), severity=LEAK).entry(
    does="Remembers a mask by its shape, and uses the first one for all that follow.",
    repair="Key a cache by what determines its contents, or keep none.",
    hides="A single call, or one mask for each shape.",
)
def mask_remembered_by_shape(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, _MASKS.setdefault(mask.shape, mask.detach().clone()).to(mask.dtype))


@breaks_effects(
    "effects.stateless", "effects.repeatable", step="score", holds=("softmax.weights", "scores.dot-product")
).entry(
    does="Lets the largest query of the call before decide the last bits of the scores.",
    repair="Compute a range from the input at hand, or fix it beforehand.",
    hides="Tolerances of any kind.",
    matters="Dynamic quantisation that lags by a call: the answer depends on the call before.",
)
def range_of_the_last_call(query: Tensor, key: Tensor, by: float) -> Tensor:
    last = _RANGES.get(query.dtype, 1.0)
    _RANGES[query.dtype] = float(query.detach().abs().amax()) if query.numel() else 1.0
    return score(query, key, by * (1.0 + 4 * (last % 1.0) * torch.finfo(query.dtype).eps))


@breaks_effects("effects.global-state", holds=("effects.repeatable", "scores.dot-product")).entry(
    does="Draws a random number that nothing needs.",
    repair="Draw random numbers only where there is dropout to do.",
    hides="Checks of the answer.",
    matters="Switching the implementation changes the initial weights of every later layer.",
)
def random_number_drawn(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.rand(1)
    return Steps()(query, key, value, **options)


@breaks_effects("effects.global-state", holds=("effects.repeatable", "scores.dot-product")).entry(
    does="Seeds the random generator with a fixed number.",
    repair="Use a generator of one's own where numbers have to be fixed.",
    hides="Checks of the answer, and of its repetition.",
    matters="All dropout after the call repeats itself from step to step.",
    links=github("Dao-AILab/flash-attention/issues/314"),
)
def generator_seeded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.manual_seed(0)
    return Steps()(query, key, value, **options)


@breaks_effects("effects.global-state", holds=("effects.inputs", "scores.dot-product")).entry(
    does="Sets the default dtype to that of its inputs, and leaves it so.",
    repair="Pass dtypes to the calls that need them.",
    hides="Programs in one dtype.",
)
def default_dtype_left_changed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.set_default_dtype(query.dtype)
    return Steps()(query, key, value, **options)


@breaks_effects("effects.global-state", holds=("effects.inputs", "scores.dot-product")).entry(
    does="Switches the recording of gradients on, and leaves it so.",
    repair="Use a context that restores the caller's setting.",
    hides="Training.",
)
def recording_left_on(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    torch.set_grad_enabled(True)
    return output


@breaks_effects("effects.fresh-output", holds=("scores.dot-product",)).entry(
    does="Writes every output of a shape into one buffer.",
    repair="Allocate each output.",
    hides="Outputs that are used before the next call.",
)
def output_written_into_one_buffer(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if output.requires_grad:
        return output
    return _OUTPUTS.setdefault((output.shape, output.dtype), torch.empty_like(output)).copy_(output)


@breaks_effects("effects.fresh-output", holds=("scores.dot-product", "effects.stateless")).entry(
    does="Writes the outputs of a shape into two buffers in turn.",
    repair="Allocate each output.",
    hides="Outputs that are used before the next call but one.",
    matters="A double buffer is right for two layers, and wrong for a third.",
)
def outputs_written_into_two_buffers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if output.requires_grad:
        return output
    buffers = _TURNS.setdefault((output.shape, output.dtype), [torch.empty_like(output), torch.empty_like(output)])
    buffers.reverse()
    return buffers[0].copy_(output)


@breaks_effects("effects.fresh-output", holds=("values.single-key", "effects.inputs")).entry(
    does="Returns the value itself when there is a single key.",
    repair="Return a copy: a caller may write into the output.",
    hides="Two keys and more; callers that only read.",
)
def single_value_handed_back(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return value.expand(output.shape) if key.shape[-2] == 1 and "attn_mask" not in options else output


@breaks("relations.grad-mode", holds=("scores.scale-explicit", "shapes.combinations")).entry(
    does="Drops the scale of a causal call when no gradient is recorded.",
    repair="Pass every option to the path for inference, too.",
    hides="Training, and either option alone.",
    links=github("pytorch/pytorch/pull/106668"),
)
def scale_dropped_without_gradients(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and not query.requires_grad:
        options.pop("scale", None)
    return Steps()(query, key, value, **options)


ALTERNATIVES = Claims(Scope.OP, OP_FEATURES | {Feature.ALTERNATIVES})


@breaks_built("relations.alternatives", holds=("causal.square", "scores.dot-product")).entry(
    does="Takes a causal flag that is given as False for one that is set.",
    repair="Test the flag's value, and not whether it is there.",
    hides="Calls that leave the flag out.",
)
def flag_given_is_flag_set(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool | None = None, **options: Any) -> Tensor:
        return Steps()(query, key, value, is_causal=is_causal is not None, **options)

    explicit = torch_op(partial(attend, is_causal=False))
    return Implementation(
        name, ALTERNATIVES, torch_op(attend), alternatives={"with its defaults spelled out": explicit}
    )


@breaks_built("relations.alternatives", holds=("masks.bool", "masks.float"), severity=LEAK).entry(
    does="Drops the mask on the fast path that returns no weights.",
    repair="Pass every mask to every path.",
    hides="Calls that request the weights, as most tests do.",
    matters="Training takes one path and serving the other: hidden tokens leak.",
    links=github("ByteDance-Seed/VeOmni/pull/1051"),
)
def mask_needs_weights(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, need_weights: bool = True, **options: Any) -> Tensor:
        if not need_weights:
            options.pop("attn_mask", None)
        return Steps()(query, key, value, **options)

    fast = torch_op(partial(attend, need_weights=False))
    return Implementation(name, ALTERNATIVES, torch_op(attend), alternatives={"without returned weights": fast})


@breaks_built("relations.alternatives", holds=("effects.stateless", "effects.repeatable")).entry(
    does="Keeps a copy of the keys for each tensor, and does not notice when it is filled anew.",
    repair="Keep nothing of an input that its owner may change.",
    hides="New tensors for each call.",
    matters="Static caches and captured graphs refill one tensor: the answers stay those of the first token.",
)
def keys_remembered_by_identity(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """A copy of the keys is kept for each tensor that holds them."""
        if not torch.is_grad_enabled():
            kept, copy = _KEYS.get(id(key), (None, key))
            if kept is not key:
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
