"""Mistakes of chapter 7: boolean and float masks, what they mean and what a masked score becomes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, add_mask, mix
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, github
from attention_conformance.spec.features import Feature


def is_bool(mask: Tensor) -> bool:
    """Whether the mask keeps or hides, and does not add."""
    return mask.dtype is torch.bool


leaks_by_mask = partial(breaks, step="add_mask", severity=LEAK)


@leaks_by_mask("masks.bool", "masks.neutral", holds=("masks.float", "masks.float-infinity")).entry(
    does="Hides the keys that a boolean mask allows, and shows those that it hides.",
    repair="Keep where the mask is True, or declare that True hides.",
    hides="Calls without a mask; masks that are half True, checked by counts.",
    matters="Libraries disagree on what True means, some between two paths of their own.",
    links=github(
        "lucidrains/x-transformers/issues/160",
        "NVIDIA/TransformerEngine/issues/614",
        "InseeFrLab/torchTextClassifiers/pull/92",
    ),
)
def mask_inverted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, ~mask if is_bool(mask) else mask)


@leaks_by_mask("masks.bool", "masks.no-influence", holds=("masks.float", "masks.neutral")).entry(
    does="Adds a boolean mask to the scores: 1 where a key is kept, 0 where it is hidden.",
    repair="Convert a boolean mask to 0 and minus infinity before it is added, or select by it.",
    hides="Masks that allow everything, or nothing.",
    matters="A boolean mask reaches code that expects an additive one; hidden tokens take part in full.",
    links=github(
        "huggingface/diffusers/issues/14342", "huggingface/transformers/pull/41443", "microsoft/onnxscript/pull/656"
    ),
)
def bool_mask_added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.bool", "masks.no-influence", holds=("masks.float", "masks.neutral")).entry(
    does="Multiplies the scores by a boolean mask, so that a hidden key has the score 0.",
    repair="Set hidden scores to minus infinity; 0 is a score like any other.",
    hides="Batches without padding.",
    matters="Hidden tokens keep the weight of exp(0), which is often the largest.",
    links=github("georg-wolflein/good-features/pull/1", "autosome-ru/vigg_ribonanza/issues/1"),
)
def mask_multiplied_into_scores(scores: Tensor, mask: Tensor) -> Tensor:
    return scores * mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.bool", "masks.segments", holds=("masks.float", "masks.neutral")).entry(
    does="Computes the masked scores and goes on with the unmasked ones.",
    repair="Assign the result of `masked_fill`: without a trailing underscore it changes nothing.",
    hides="Calls without a mask.",
    matters="Agents learned from states that had been masked out.",
    links=github("opendilab/DI-engine/issues/333"),
)
def masked_scores_thrown_away(scores: Tensor, mask: Tensor) -> Tensor:
    if is_bool(mask):
        scores.masked_fill(~mask, -INFINITY)
        return scores
    return add_mask(scores, mask)


@breaks("masks.bool", "masks.zero-weight", step="add_mask", holds=("masks.float", "masks.neutral"), severity=NAN).entry(
    does="Fills hidden scores with plus infinity.",
    repair="Fill with minus infinity, and look for a doubled sign.",
    hides="Masks that hide nothing.",
    links=github("lucidrains/memory-compressed-attention/issues/2"),
)
def plus_infinity_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, INFINITY) if is_bool(mask) else add_mask(scores, mask)


@breaks("masks.bool", "masks.segments", extras=("weights",), holds=("masks.neutral", "masks.float")).entry(
    does="Sets the weights of hidden keys to 0 after the softmax, and does not normalise again.",
    repair="Mask the scores before the softmax.",
    hides="Masks that hide nothing; checks that hidden weights are 0.",
    matters="Rows sum to less than 1, the less the more is hidden: short sequences in a batch fade.",
    links=github("huggingface/pytorch-image-models/pull/2236", "NVIDIA/Megatron-LM/pull/731"),
)
def masked_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    mask = options.get("attn_mask")
    if mask is None or not is_bool(mask):
        output, weights, _ = Steps().answer(query, key, value, **options)
    else:
        output, weights, _ = Steps(mix=lambda p, v: mix(p * mask, v)).answer(
            query, key, value, **{**options, "attn_mask": None}
        )
        weights = weights * mask
    return output, weights


@breaks("masks.no-influence", holds=("masks.bool", "masks.segments"), severity=NAN).entry(
    does="Hides keys after the softmax and normalises again.",
    repair="Mask the scores before the maximum is taken.",
    hides="Scores that lie close together: there it is exact.",
    matters="A hidden key that leads by hundreds takes all precision with it: 0/0.",
    links=github("abisee/pointer-generator/issues/88", "ruotianluo/self-critical.pytorch/issues/89"),
)
def masked_and_normalised_again(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is None or not is_bool(mask):
        return Steps()(query, key, value, **options)

    def again(weights: Tensor, value: Tensor) -> Tensor:
        kept = weights * mask
        whole = kept.sum(-1, keepdim=True)
        return mix(torch.where(whole > 0, kept / whole, torch.where(mask.any(-1, keepdim=True), torch.nan, 0.0)), value)

    return Steps(mix=again)(query, key, value, **{**options, "attn_mask": None})


@leaks_by_mask("masks.float", "scores.bias-after-scale", holds=("masks.bool",)).entry(
    does="Reads a float mask as True wherever it is not 0.",
    repair="Add a float mask; read only boolean ones as True and False.",
    hides="Masks of 0 or minus infinity throughout a row.",
    links=github("huggingface/transformers/pull/38094"),
)
def float_mask_read_as_truth(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask.bool())


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool", "masks.neutral")).entry(
    does="Hides a key wherever a float mask is not 0.",
    repair="Add a float mask, whatever its values.",
    hides="Masks of 0 and minus infinity only.",
    matters="A fast path for inference took biases for padding: everything was masked.",
    links=github("pytorch/pytorch/issues/107084"),
)
def float_mask_read_as_padding(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else mask == 0)


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool", "masks.neutral")).entry(
    does="Subtracts the finite values of a float mask.",
    repair="Add a float mask as it is.",
    hides="Masks of 0 and minus infinity only.",
)
def float_mask_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else torch.where(mask == -INFINITY, mask, -mask))


@leaks_by_mask("masks.float-infinity", holds=("masks.float", "masks.bool")).entry(
    does="Clamps a float mask, so that minus infinity becomes -12.",
    repair="Let minus infinity remove the key.",
    hides="Scores within a few units of one another, at tolerances of 1e-5.",
    matters="Hidden tokens keep a little weight, which grows with the scores in training.",
)
def float_mask_clamped(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else mask.clamp(min=-12.0))


@leaks_by_mask("masks.no-influence", "masks.fill-value", holds=("masks.bool", "masks.segments")).entry(
    does="Subtracts a billion from hidden scores.",
    repair="Set hidden scores to minus infinity, whatever they were.",
    hides="Hidden scores below a billion.",
    matters="Poison in the padded tail of a buffer decides the answer.",
)
def large_number_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return scores - 1e9 * ~mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.fill-value", holds=("masks.bool", "masks.no-influence")).entry(
    does="Sets hidden scores to minus a billion.",
    repair="Set hidden scores to minus infinity.",
    hides="Rows with a kept score above a billion's negative, and a kept key.",
    matters="Rows whose kept scores lie lower attend to hidden keys only; empty rows average them.",
)
def billion_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e9) if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.fill-value", holds=("masks.bool", "masks.no-influence"), dtype="float16").entry(
    does="Sets hidden scores to -10000, in half types too.",
    repair="Set hidden scores to minus infinity, which half types can hold.",
    hides="Kept scores above -10000.",
    matters="A network learned to push its scores below -10000, read the future there, and reached a loss of 0.",
    links=github(
        "karpathy/minGPT/issues/75", "huggingface/transformers/pull/17306", "microsoft/onnxruntime/issues/14363"
    ),
)
def ten_thousand_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e4) if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.zero-weight", "gradients.masked", "relations.padding-extension", holds=("masks.neutral",)).entry(
    does="Sets hidden scores to -20.",
    repair="Set hidden scores to minus infinity.",
    hides="Tolerances of 1e-6 and scores near 0.",
    links=github("lucidrains/nGPT-pytorch/issues/11"),
)
def small_fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -20.0) if is_bool(mask) else add_mask(scores, mask)


@breaks(
    "masks.containment", step="mix", claims={Feature.CONTAINMENT}, holds=("masks.no-influence",), severity=NAN
).entry(
    does="Multiplies the weight 0 by a NaN among hidden values, while it promises to keep NaN out.",
    repair="Select the values that have a weight, or clear hidden ones first.",
    hides="Finite numbers in hidden values, however large.",
    matters="Uninitialised memory behind the last token makes whole answers NaN.",
    links=github("pytorch/pytorch/issues/101967"),
)
def zero_times_nan(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


@breaks(
    "masks.containment", claims={Feature.CONTAINMENT}, holds=("masks.no-influence", "masks.bool"), severity=NAN
).entry(
    does="Adds minus infinity to hidden scores, which leaves a NaN as it is, while it promises to keep NaN out.",
    repair="Replace hidden scores, do not add to them.",
    hides="Finite numbers in hidden keys; NaN in hidden values only.",
    matters="Uninitialised memory behind the last token makes whole answers NaN.",
    links=github("pytorch/pytorch/issues/101967", "onnx/onnx/pull/8068"),
)
def nan_plus_minus_infinity(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def added(scores: Tensor, mask: Tensor) -> Tensor:
        return scores + (mask.to(scores.dtype).log() if is_bool(mask) else mask)

    def selected(weights: Tensor, value: Tensor) -> Tensor:
        return mix(weights, value.where((weights != 0).any(-2)[..., None], 0.0))

    return Steps(add_mask=added, mix=selected)(query, key, value, **options)
