"""Mistakes of chapter 22: the key and value of zeros."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import BOTTOM_RIGHT, INFINITY, Steps, add_zero_key
from attention_conformance.implementations.defects.breaking import LEAK, breaks, omitting
from attention_conformance.spec.features import Feature

ZERO = {Feature.ZERO_ATTN}
RETURNED = ("weights", "log_sum_exp")
breaks_zero_key = partial(breaks, claims=ZERO)
leaks_zero_key = partial(breaks_zero_key, severity=LEAK)
breaks_returned = partial(breaks_zero_key, extras=RETURNED)


@leaks_zero_key(
    "sinks.zero-attn-masks",
    "sinks.zero-attn-causal",
    "sinks.zero-attn-weights",
    step="add_zero_key",
    holds=("sinks.zero-attn", "masks.bool", "causal.square"),
)
def zero_key_before_the_others(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return F.pad(key, (0, 0, 1, 0)), F.pad(value, (0, 0, 1, 0))


@leaks_zero_key("sinks.zero-attn-masks", holds=("sinks.zero-attn", "masks.key-padding", "causal.square"))
def padding_lengthened_at_its_start(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.get("add_zero_attn") or "key_padding_mask" not in options:
        return Steps()(query, key, value, **options)
    del options["add_zero_attn"]
    k, v = add_zero_key(key, value)
    longer = {"key_padding_mask": F.pad(options["key_padding_mask"], (1, 0), value=True)}
    if "attn_mask" in options:
        mask = options["attn_mask"]
        longer["attn_mask"] = F.pad(mask, (0, 1), value=True) if mask.dtype is torch.bool else F.pad(mask, (0, 1))
    return Steps()(query, k, v, **{**options, **longer})


@breaks_zero_key("sinks.zero-attn-masks", holds=("sinks.zero-attn", "sinks.zero-attn-causal", "masks.bool"))
def zero_key_masked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("add_zero_attn", options, "attn_mask"))


@breaks_zero_key("sinks.zero-attn-causal", holds=("sinks.zero-attn", "sinks.zero-attn-masks", "causal.square"))
def zero_key_hidden_as_future(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.get("add_zero_attn") or not options.get("is_causal"):
        return Steps()(query, key, value, **options)

    def hidden(scores: Tensor) -> Tensor:
        return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -INFINITY)

    def after_masks(scores: Tensor) -> Tensor:
        return torch.where((hidden(scores) == -INFINITY).all(-1, keepdim=True), 0.0, torch.softmax(hidden(scores), -1))

    return Steps(softmax=after_masks)(query, key, value, **options)


@leaks_zero_key(
    "sinks.zero-attn-causal",
    conventions=BOTTOM_RIGHT,
    holds=("sinks.zero-attn", "causal.alignment", "causal.empty-rows"),
)
def zero_key_counted_by_the_triangle(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    shift = key.shape[-2] - query.shape[-2] + bool(options.get("add_zero_attn"))

    def end_at_the_last(scores: Tensor) -> Tensor:
        return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(shift), -INFINITY)

    return Steps(add_causal=end_at_the_last)(query, key, value, **options)


@breaks_returned(
    "sinks.zero-attn", "sinks.zero-attn-masks", "sinks.zero-attn-weights", holds=("scores.dot-product", "masks.bool")
)
def zero_key_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    options.pop("add_zero_attn", None)
    return Steps().answer(query, key, value, **options)


@breaks_zero_key("sinks.zero-attn", step="add_zero_key", holds=("scores.dot-product", "masks.bool"))
def zero_key_with_a_value(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return add_zero_key(key, value)[0], torch.cat([value, value[:, :, -1:]], -2)


@breaks_returned("sinks.zero-attn-weights", holds=("sinks.zero-attn", "sinks.zero-attn-masks"))
def column_of_the_zero_key_cut_off(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, lse = Steps().answer(query, key, value, **options)
    return output, weights[..., : key.shape[-2]], lse
