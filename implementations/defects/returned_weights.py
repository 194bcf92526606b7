"""Mistakes of chapter 18 in weights and log-sum-exps: which base, which heads, which rows, which memory."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import BOTTOM_RIGHT, INFINITY, OP_FEATURES, Steps
from attention_conformance.implementations.defects.breaking import NAN, STATE, breaks, breaks_built
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.conventions import Conventions, LogBase, LogOfNothing
from attention_conformance.spec.features import Feature, Scope

TWO = Conventions(log_sum_exp_base=LogBase.TWO)
AS_PLUS, AS_LEAST = (Conventions(log_of_nothing=each) for each in (LogOfNothing.PLUS_INFINITY, LogOfNothing.LEAST))
MINUS = "log-of-nothing=minus-infinity"
breaks_weights = partial(breaks, extras=("weights",))
breaks_base2 = partial(breaks, step="log_sum_exp", conventions=TWO)
GROUPED = frozenset({Feature.GROUPED})
_BUFFERS: dict[object, Tensor] = {}


def in_buffer(name: str, tensor: Tensor) -> Tensor:
    """The tensor's numbers in a buffer that is kept for its shape."""
    buffer = _BUFFERS.setdefault((name, tensor.shape, tensor.dtype), torch.empty_like(tensor))
    return buffer.copy_(tensor.detach())


@breaks_base2("returned.base", "softmax.log-sum-exp", "relations.merge", holds=("softmax.weights", "softmax.over-keys"))
def natural_logarithm_for_base_two(scores: Tensor) -> Tensor:
    return correct.log_sum_exp(scores)


@breaks(
    "returned.empty-row",
    step="log_sum_exp",
    conventions=AS_PLUS,
    holds=("softmax.weights", "returned.base"),
    follows=MINUS,
)
def minus_infinity_for_claimed_plus(scores: Tensor) -> Tensor:
    return correct.log_sum_exp(scores)


@breaks(
    "returned.empty-row",
    step="log_sum_exp",
    conventions=AS_LEAST,
    holds=("softmax.weights", "returned.base"),
    follows=MINUS,
)
def infinity_for_a_claimed_number(scores: Tensor) -> Tensor:
    return correct.log_sum_exp(scores)


@breaks_base2("softmax.log-sum-exp", "relations.merge", holds=("softmax.weights", "returned.base"))
def maximum_in_another_base(scores: Tensor) -> Tensor:
    top = scores.amax(-1) if scores.shape[-1] else scores.new_zeros(scores.shape[:-1])
    top = torch.where(top.isinf(), 0.0, top)
    return torch.log2((scores - top[..., None]).exp().sum(-1)) + top


breaks_log_sum_exp = partial(breaks, extras=("log_sum_exp",))


@breaks_log_sum_exp(
    "returned.empty-row", holds=("softmax.log-sum-exp", "masks.empty-row-padding", "returned.base"), severity=NAN
)
def plus_infinity_for_an_empty_sample(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, lse = Steps().answer(query, key, value, **options)
    padding = options.get("key_padding_mask")
    if padding is None:
        return output, lse
    return output, lse.masked_fill(~padding.any(-1)[:, None, None], INFINITY)


@breaks_log_sum_exp("returned.empty-row", conventions=BOTTOM_RIGHT, holds=("softmax.log-sum-exp", "causal.empty-rows"))
def zero_for_rows_before_the_first_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, lse = Steps(add_causal=correct.add_bottom_right).answer(query, key, value, **options)
    early = torch.arange(query.shape[-2]) < query.shape[-2] - key.shape[-2]
    return output, lse.masked_fill(early, 0.0) if options.get("is_causal") else lse


@breaks(
    "returned.empty-parts",
    "returned.empty-row",
    "softmax.log-sum-exp",
    step="log_sum_exp",
    holds=("relations.merge", "softmax.weights", "returned.base"),
)
def lowest_number_for_an_empty_row(scores: Tensor) -> Tensor:
    return correct.log_sum_exp(scores).clamp(min=-1e30 if scores.dtype is torch.float64 else -1e4)


def _in_two_halves(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The even and the odd keys apart, joined as if each row saw a key of some half."""
    mask = _masks(query, key, options)
    halves = [
        Steps().answer(query, key[..., s::2, :], value[..., s::2, :], attn_mask=mask[..., s::2], **options)
        for s in range(2)
    ]
    logs = torch.stack([lse for _, _, lse in halves], -1)
    shares = (logs - logs.amax(-1, keepdim=True)).exp()
    whole = shares.sum(-1)
    mixed = [output * (shares[..., n] / whole)[..., None] for n, (output, _, _) in enumerate(halves)]
    return mixed[0] + mixed[1], whole.log() + logs.amax(-1)


def _masks(query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """All masks as one float mask (B, H, Lq, Lk), taken out of the options."""
    names = [name for name in ("attn_mask", "key_padding_mask", "is_causal") if name in options]
    zeros = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
    steps = Steps(score=lambda q, k, by: zeros, softmax=lambda scores: scores, mix=lambda scores, v: scores)
    return steps(query, key, key, **{name: options.pop(name) for name in names})


@breaks_log_sum_exp(
    "masks.empty-row-bool",
    "returned.empty-row",
    "softmax.log-sum-exp",
    without={Feature.EMPTY_SIZES},
    holds=("masks.bool", "relations.merge", "returned.base"),
    severity=NAN,
)
def two_empty_parts_merged(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return _in_two_halves(query, key, value, **options)


@breaks_weights("returned.mixture", holds=("softmax.weights", "scores.scale-explicit"))
def weights_of_the_default_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output = Steps()(query, key, value, **options)
    options.pop("scale", None)
    return output, Steps().answer(query, key, value, **options)[1]


@breaks_weights("returned.mixture", holds=("softmax.weights", "masks.empty-row-bool"))
def equal_weights_for_an_empty_row(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    empty = ~weights.bool().any(-1, keepdim=True)
    return output, torch.where(empty, 1.0 / max(1, key.shape[-2]), weights)


@breaks_weights("softmax.weights", "returned.mixture", holds=("scores.dot-product", "masks.bool"))
def average_for_every_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights.mean(1, keepdim=True).expand_as(weights)


@breaks_weights("returned.grouped-weights", claims=GROUPED, holds=("softmax.weights", "scores.dot-product"))
def weights_of_the_first_in_the_group(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    groups = query.shape[1] // key.shape[1]
    return output, weights[:, ::groups].repeat_interleave(groups, 1)


@breaks_log_sum_exp("returned.grouped-log-sum-exp", claims=GROUPED, holds=("softmax.log-sum-exp", "returned.base"))
def log_sum_exp_of_the_group(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, lse = Steps().answer(query, key, value, **options)
    batch, _, length = lse.shape
    grouped = lse.view(batch, key.shape[1], -1, length) if lse.numel() else lse
    return output, grouped.logsumexp(2) if key.shape[1] != query.shape[1] else lse


@breaks_weights(
    "returned.weights-with-gradients",
    holds=("softmax.weights", "gradients.query", "returned.weights-stay"),
    severity=STATE,
)
def gradient_in_the_returned_weights(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    handed: list[Tensor] = []

    def mixed(weights: Tensor, rows: Tensor) -> Tensor:
        handed.append(weights.detach().clone())
        return distorted(weights, handed[0].copy_) @ rows

    output = Steps(wide=False, mix=mixed)(query, key, value, **options)
    return output, handed[0]


@breaks_log_sum_exp(
    "returned.log-sum-exp-with-gradients",
    holds=("softmax.log-sum-exp", "gradients.query", "returned.log-sum-exp-stays"),
)
def row_maximum_while_recording(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    def largest(scores: Tensor) -> Tensor:
        return scores.amax(-1)

    recording = torch.is_grad_enabled() and key.shape[-2] > 0
    output, _, lse = (Steps(log_sum_exp=largest) if recording else Steps()).answer(query, key, value, **options)
    return output, lse


@breaks_weights("returned.weights-stay", holds=("softmax.weights", "effects.fresh-output"), severity=STATE)
def weights_in_a_buffer(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, in_buffer("weights", weights)


@breaks_log_sum_exp("returned.log-sum-exp-stays", holds=("softmax.log-sum-exp", "effects.fresh-output"), severity=STATE)
def log_sum_exp_in_a_buffer(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, lse = Steps().answer(query, key, value, **options)
    return output, in_buffer("lse", lse)


@breaks_built("relations.alternatives", holds=("softmax.weights", "returned.mixture"))
def flag_for_the_average_ignored_on_one_path(name: str) -> Implementation:
    def attend(query: Tensor, key: Tensor, value: Tensor, average: bool = False, **options: Any) -> tuple[Tensor, ...]:
        output, weights, _ = Steps().answer(query, key, value, **options)
        return output, weights.mean(1, keepdim=True).expand_as(weights) if average else weights

    claims = Claims(Scope.OP, OP_FEATURES | {Feature.WEIGHTS, Feature.ALTERNATIVES})
    averaged = torch_op(partial(attend, average=True), extras=("weights",), context=torch.inference_mode)
    usual = torch_op(attend, extras=("weights",))
    return Implementation(name, claims, usual, alternatives={"in inference mode": averaged})
