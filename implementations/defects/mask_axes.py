"""Mistakes of chapter 7: which axis of a mask is which, padding, lengths, and several masks together."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Result
from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    OP_FEATURES,
    Steps,
    add_causal,
    add_mask,
    add_padding,
)
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, breaks_run, github
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem

leaks = partial(breaks, severity=LEAK)


@leaks("masks.broadcast", "relations.batch", step="add_mask", holds=("masks.segments",)).entry(
    does="Applies the mask of the first sample to all samples.",
    repair="Keep the sample axis of the mask.",
    hides="A batch of one, and masks that all samples share.",
)
def mask_of_the_first_sample(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask[:1] if mask.ndim == 4 else mask)


@breaks("masks.broadcast", step="add_mask", holds=("masks.segments", "masks.key-padding")).entry(
    does="Applies the mask of the first head to all heads.",
    repair="Keep the head axis of the mask.",
    hides="A single head, and masks that all heads share.",
)
def mask_of_the_first_head(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask[:, :1] if mask.ndim == 4 else mask)


@leaks("masks.broadcast", step="add_mask", holds=("masks.segments", "masks.key-padding"), raises=True).entry(
    does="Drops the head axis of a mask (B, 1, Lq, Lk), so that samples are aligned with heads.",
    repair="Keep or insert the head axis: (B, 1, Lq, Lk).",
    hides="A batch of one, and samples with the same mask; as many heads as samples hide the error.",
    matters="It crashes for most batches, and is silently wrong for some.",
    links=github(
        "ml-explore/mlx-lm/pull/1903", "lucidrains/vit-pytorch/issues/71", "lucidrains/graph-transformer-pytorch/pull/2"
    ),
)
def samples_of_the_mask_on_the_head_axis(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask.squeeze(1) if mask.ndim == 4 else mask)


@leaks("masks.broadcast", step="add_mask", holds=("masks.segments", "masks.key-padding")).entry(
    does="Repeats the masks of the samples in turn where sample and head share one axis.",
    repair="Repeat each sample's mask H times in place: item b H + h belongs to sample b.",
    hides="A batch of one, a single head, and samples with the same mask.",
    matters="Five models of one library let a sample's answer depend on the others' padding.",
    links=github("line/lighthouse/pull/77", "ArrowLuo/CLIP4Clip/issues/22", "reczoo/FuxiCTR/issues/130"),
)
def mask_repeated_in_turn(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.ndim == 4 and mask.shape[1] == 1:
        whole = mask.expand(scores.shape[0], -1, -1, -1)
        mask = whole.repeat(scores.shape[1], 1, 1, 1).view(*scores.shape[:2], *whole.shape[2:])
    return add_mask(scores, mask)


@leaks("masks.bool", "shapes.coincident", step="add_mask", holds=("masks.key-padding", "causal.square")).entry(
    does="Exchanges queries and keys in a mask that is square.",
    repair="Read the last axis of a mask as keys.",
    hides="Symmetric masks, such as those of segments; different numbers of queries and keys.",
)
def square_mask_transposed(scores: Tensor, mask: Tensor) -> Tensor:
    square = mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]
    return add_mask(scores, mask.mT if square else mask)


@leaks("masks.segments", "masks.broadcast", step="add_mask", holds=("masks.bool",)).entry(
    does="Takes any mask of two axes for a causal mask.",
    repair="Read the mask that is passed.",
    hides="Causal masks.",
)
def flat_mask_taken_for_causal(scores: Tensor, mask: Tensor) -> Tensor:
    return add_causal(scores) if mask.ndim == 2 else add_mask(scores, mask)


@breaks("masks.rank", holds=("masks.broadcast",)).entry(
    does="Reads a mask of three axes as (B, Lq, Lk), and spreads its first over the batch.",
    repair="Align the axes from the last one, or refuse three of them.",
    hides="A single head.",
)
def heads_taken_for_samples(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 3:
        options["attn_mask"] = mask[:1, None]
    return Steps()(query, key, value, **options)


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool",), raises=True).entry(
    does="Inserts one axis into a padding mask, so that its samples fall on the head axis.",
    repair="Insert two: (B, 1, 1, Lk).",
    hides="A batch of one; as many heads as samples hide the error.",
)
def padding_along_the_heads(scores: Tensor, padding: Tensor) -> Tensor:
    return scores.masked_fill(~padding[:, None], -INFINITY)


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.broadcast"), raises=True).entry(
    does="Hides the padded queries, and leaves the padded keys to everyone.",
    repair="Give the padding mask the shape (B, 1, 1, Lk).",
    hides="Batches without padding; a finite fill, under which masked rows look harmless.",
    links=github("hyunwoongko/transformer/pull/40", "lucidrains/x-transformers/issues/172"),
)
def padding_on_the_queries(scores: Tensor, padding: Tensor) -> Tensor:
    return scores.masked_fill(~padding[:, None, :, None], -INFINITY)


@breaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.empty-row-bool"), severity=NAN).entry(
    does="Hides padded queries as well as padded keys when both are as many.",
    repair="Apply a padding mask to the keys only.",
    hides="Different numbers of queries and keys; readers that skip padded rows.",
    matters="Rows of padding become empty, and with them NaN where the softmax is naive.",
    links=github("pytorch/pytorch/issues/63271"),
)
def padding_on_queries_and_keys(scores: Tensor, padding: Tensor) -> Tensor:
    found = add_padding(scores, padding)
    if scores.shape[-2] == scores.shape[-1]:
        found = found.masked_fill(~padding[:, None, :, None], -INFINITY)
    return found


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.neutral")).entry(
    does="Hides the real keys, and shows the padded ones.",
    repair="Document what True means, and invert the mask where two libraries meet.",
    hides="Batches without padding, when they are passed without a mask.",
    matters="One library reads True as padding in its module, and as real in its function.",
    links=github("pytorch/pytorch/pull/170415", "pytorch/pytorch/pull/114083"),
)
def padding_inverted(scores: Tensor, padding: Tensor) -> Tensor:
    return add_padding(scores, ~padding)


@breaks("masks.key-padding", step="add_padding", holds=("masks.bool", "causal.with-padding")).entry(
    does="Hides all keys from the first padded one on.",
    repair="Hide exactly the padded keys: padding may lie at the start or in between.",
    hides="Padding at the end.",
)
def padding_ends_the_sequence(scores: Tensor, padding: Tensor) -> Tensor:
    return add_padding(scores, padding.int().cumprod(-1).bool())


@leaks("masks.padding-fill-value", step="add_padding", holds=("masks.key-padding", "masks.fill-value")).entry(
    does="Sets the scores of padded keys to -10000.",
    repair="Set them to minus infinity.",
    hides="Real scores above -10000.",
    links=github("microsoft/onnxruntime/issues/14363"),
)
def padding_filled_with_a_number(scores: Tensor, padding: Tensor) -> Tensor:
    real = padding[:, None, None, :]
    return torch.where(real, scores, torch.where(real.any(-1, keepdim=True), -1e4, -INFINITY))


@leaks("masks.intersect", holds=("masks.bool", "masks.key-padding")).entry(
    does="Drops the attention mask when there is a padding mask.",
    repair="Apply both: a key has to be allowed by each.",
    hides="Either mask alone.",
    matters="A fast path that takes one mask takes the shorter one.",
    links=github("pytorch/pytorch/issues/92554"),
)
def padding_instead_of_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "key_padding_mask" in options:
        options.pop("attn_mask", None)
    return Steps()(query, key, value, **options)


@leaks("masks.intersect", holds=("masks.bool", "masks.key-padding")).entry(
    does="Shows a key that either of two masks allows.",
    repair="Combine masks that mean `may attend` by and; by or only those that mean `hidden`.",
    hides="Either mask alone, and masks that agree.",
    matters="Code that was changed from one meaning of True to the other, with the operator left as it was.",
)
def either_mask_is_enough(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask, padding = options.get("attn_mask"), options.get("key_padding_mask")
    if mask is not None and padding is not None:
        hidden = ~mask if mask.dtype is torch.bool else mask == -INFINITY
        shown = ~hidden | padding[:, None, None, :]
        options["attn_mask"] = shown if mask.dtype is torch.bool else torch.where(shown, mask.clamp(min=-99.0), mask)
        options.pop("key_padding_mask")
    return Steps()(query, key, value, **options)


def _without_lengths(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


attend = torch_op(_without_lengths)
breaks_lengths = partial(
    breaks_run, claims=Claims(Scope.OP, (OP_FEATURES | {Feature.VALID_LENS}) - {Feature.GRADIENTS})
)


def masked(problem: Problem, counts: Tensor) -> Problem:
    """The problem with a mask for the leading keys that the counts, which broadcast to (B, H, Lq, 1), leave."""
    return problem.with_arrays({"attn_mask": (torch.arange(problem.key.shape[-2]) < counts).numpy()})


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.key-padding"), severity=LEAK).entry(
    does="Repeats the list of lengths where sample and head share one axis.",
    repair="Repeat each length H times in place: item b H + h belongs to sample b.",
    hides="A batch of one, a single head, equal lengths.",
    links=github("ArrowLuo/CLIP4Clip/issues/22", "line/lighthouse/pull/77"),
)
def lengths_tiled(problem: Problem, device: str) -> Result:
    """Item b * H + h of the joined axis gets the length of sample (b * H + h) % B."""
    lengths = problem.valid_lens
    if lengths is not None:
        batch, heads = problem.query.shape[:2]
        of_items = torch.tensor(lengths).repeat(heads, *(1,) * (lengths.ndim - 1)).unflatten(0, (batch, heads))
        problem = masked(problem, of_items.reshape(batch, heads, -1, 1))
    return attend(problem, device)


@breaks_lengths(
    "masks.valid-lens", "masks.no-influence", holds=("masks.bool", "masks.key-padding"), severity=LEAK
).entry(
    does="Accepts lengths and does not apply them.",
    repair="Hide the keys from each length on.",
    hides="Lengths as long as the buffer; zeros in the tail do not hide it, for they take weight too.",
    links=github("jax-ml/jax/issues/23349"),
)
def lengths_ignored(problem: Problem, device: str) -> Result:
    return attend(problem, device)


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.key-padding"), severity=LEAK).entry(
    does="Applies the length of a sample's first query to all its queries.",
    repair="Read lengths of two axes as one for each query.",
    hides="One length a sample.",
    matters="Decoders that express their triangle by lengths see one token, or the future.",
)
def lengths_of_the_first_query(problem: Problem, device: str) -> Result:
    if problem.valid_lens is not None:
        lengths = torch.tensor(problem.valid_lens).reshape(problem.query.shape[0], -1)[:, :1]
        problem = masked(problem, lengths[:, None, None])
    return attend(problem, device)


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.empty-row-padding"), severity=LEAK).entry(
    does="Shows one key too many: the one at index `length`.",
    repair="Show key j where j < length.",
    hides="Lengths of 0, and as long as the buffer.",
)
def lengths_inclusive(problem: Problem, device: str) -> Result:
    if problem.valid_lens is not None:
        lengths = torch.tensor(problem.valid_lens).reshape(problem.query.shape[0], 1, -1, 1)
        problem = masked(problem, lengths + (lengths > 0).int())
    return attend(problem, device)
