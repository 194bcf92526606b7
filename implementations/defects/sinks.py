"""Mistakes of chapter 22: sinks."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_sinks, cap, factor
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, breaks
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.implementations.defects.softmax import normalised
from attention_conformance.spec.features import Feature

SINKS = {Feature.SINKS, Feature.SOFTCAP}
RETURNED = ("weights", "log_sum_exp")
breaks_sinks = partial(breaks, claims=SINKS)
breaks_returned = partial(breaks_sinks, extras=RETURNED)
breaks_add_sinks = partial(breaks_sinks, step="add_sinks")


@breaks_sinks("sinks.sum", "sinks.masks", holds=("scores.dot-product", "scores.scale-explicit", "softcap.formula"))
def sink_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "sinks" in options:
        options["sinks"] = options["sinks"] * factor(query, options.get("scale"))
    return Steps()(query, key, value, **options)


@breaks_returned("sinks.sum", "sinks.gradient", "sinks.empty-row", holds=("scores.dot-product", "softcap.formula"))
def sinks_ignored(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    options.pop("sinks", None)
    return Steps().answer(query, key, value, **options)


@breaks_sinks("sinks.softcap", holds=("sinks.sum", "sinks.masks", "softcap.formula"))
def sink_capped(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "sinks" in options and "softcap" in options:
        options["sinks"] = cap(options["sinks"], options["softcap"])
    return Steps()(query, key, value, **options)


@breaks_add_sinks("sinks.sum", "sinks.weights", "sinks.log-sum-exp", holds=("scores.dot-product", "softcap.formula"))
def sink_counted_twice(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks + math.log(2.0))


@breaks_add_sinks("shapes.large", holds=("sinks.sum", "sinks.masks", "sinks.gradient"))
def sink_counted_in_each_split(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks + math.log(math.ceil(scores.shape[-1] / 512) or 1))


@breaks_returned("sinks.sum", "sinks.weights", holds=("sinks.log-sum-exp", "scores.dot-product"))
def sink_given_a_value(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, lse = Steps().answer(query, key, value, **options)
    if "sinks" not in options:
        return output, weights, lse
    rest = 1.0 - weights.sum(-1, keepdim=True)
    first = value[:, :, :1].repeat_interleave(query.shape[1] // value.shape[1], 1)
    return output + rest * first, torch.cat([weights[..., :1] + rest, weights[..., 1:]], -1), lse


@breaks_add_sinks("sinks.sum", holds=("scores.dot-product", "sinks.log-sum-exp"))
def sinks_along_the_queries(scores: Tensor, sinks: Tensor) -> Tensor:
    if len(sinks) != scores.shape[-2]:
        return add_sinks(scores, sinks)
    column = sinks.to(scores.dtype)[:, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1)


@breaks_add_sinks("sinks.sum", "sinks.gradient", holds=("scores.dot-product", "softcap.formula"))
def one_sink_for_all_heads(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks[:1].expand_as(sinks))


@breaks_sinks("sinks.sum", "sinks.range", holds=("scores.dot-product", "softmax.large-scores"))
def sink_not_shifted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def shifted(scores: Tensor) -> Tensor:
        top = _top(scores[..., :-1])
        return normalised(torch.cat([(scores[..., :-1] - top).exp(), scores[..., -1:].exp()], -1))

    return _with_softmax(query, key, value, shifted, options)


@breaks_sinks("sinks.range", holds=("sinks.sum", "sinks.masks", "softmax.large-scores"), severity=NAN)
def sink_left_out_of_the_maximum(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def shifted(scores: Tensor) -> Tensor:
        return normalised((scores - _top(scores[..., :-1])).exp())

    return _with_softmax(query, key, value, shifted, options)


def _top(scores: Tensor) -> Tensor:
    """The largest score of each row, 0 where there is none."""
    top = torch.nn.functional.pad(scores.detach(), (0, 1), value=-torch.inf).amax(-1, keepdim=True)
    return torch.where(top == -torch.inf, 0.0, top)


def _with_softmax(query: Tensor, key: Tensor, value: Tensor, softmax: Any, options: dict[str, Any]) -> Tensor:
    """Attention with this softmax where there is a sink."""
    return (Steps(softmax=softmax) if "sinks" in options else Steps())(query, key, value, **options)


@breaks_sinks("sinks.masks", holds=("sinks.sum", "sinks.softcap", "masks.bool"))
def sink_masked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:
        options.pop("sinks", None)
    return Steps()(query, key, value, **options)


@breaks_sinks("sinks.empty-row", holds=("sinks.sum", "sinks.masks", "masks.empty-row-bool"), severity=NAN)
def sink_multiplied_onto_nan(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    sinks = options.pop("sinks", None)
    if sinks is None:
        return Steps()(query, key, value, **options)
    steps = Steps(softmax=lambda scores: torch.softmax(scores, -1))
    output, _, lse = steps.answer(query.double(), key.double(), value.double(), **options)
    return (output * torch.sigmoid(lse - sinks[:, None].double())[..., None]).to(query.dtype)


@breaks_returned("sinks.log-sum-exp", "sinks.empty-row", holds=("sinks.sum", "sinks.weights"))
def log_sum_exp_without_the_sink(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    options.pop("sinks", None)
    return output, weights, Steps().answer(query, key, value, **options)[2]


@breaks_returned("sinks.weights", holds=("sinks.sum", "sinks.log-sum-exp"))
def sink_among_the_weights(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, lse = Steps().answer(query, key, value, **options)
    column = [1.0 - weights.sum(-1, keepdim=True)] if "sinks" in options else []
    return output, torch.cat([weights, *column], -1), lse


@breaks_returned("sinks.weights", holds=("sinks.sum", "sinks.log-sum-exp"))
def weights_made_up_to_one(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, lse = Steps().answer(query, key, value, **options)
    options.pop("sinks", None)
    return output, Steps().answer(query, key, value, **options)[1], lse


@breaks_add_sinks("sinks.gradient", "sinks.range", holds=("sinks.sum", "gradients.query"), severity=GRADIENT)
def sinks_without_gradient(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks.detach())


@breaks_add_sinks("sinks.gradient", holds=("sinks.sum", "gradients.query"), severity=GRADIENT)
def sink_gradient_averaged(scores: Tensor, sinks: Tensor) -> Tensor:
    each = distorted(sinks, lambda gradient: gradient.mean(0), lambda sinks: sinks.expand(len(scores), -1))
    column = each.to(scores.dtype)[:, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1)
