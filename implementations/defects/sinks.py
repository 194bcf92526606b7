"""Mistakes of chapter 22: sinks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_sinks, cap, factor
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, breaks, github
from attention_conformance.spec.features import Feature

SINKS = {Feature.SINKS, Feature.SOFTCAP}
RETURNED = ("weights", "log_sum_exp")
SEEN_IN = ("https://github.com/ROCm/rocm-libraries/pull/12229",)
breaks_sinks = partial(breaks, claims=SINKS)


@breaks_sinks(
    "sinks.sum", "sinks.masks", holds=("scores.dot-product", "scores.scale-explicit", "softcap.formula")
).entry(
    does="Multiplies the sink by the scale, along with the products.",
    repair="Join the sink to scores that are scaled already.",
    hides="A scale of 1; sinks of 0.",
    matters="A trained sink of 4 in a head of width 64 counts as 1/2: far too little attention goes to the sink.",
    links=SEEN_IN,
)
def sink_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "sinks" in options:
        options["sinks"] = options["sinks"] * factor(query, options.get("scale"))
    return Steps()(query, key, value, **options)


@breaks_sinks(
    "sinks.sum", "sinks.gradient", "sinks.empty-row", extras=RETURNED, holds=("scores.dot-product", "softcap.formula")
).entry(
    does="Accepts sinks and ignores them.",
    repair="Let them join the softmax, or refuse them.",
    hides="Sinks far below the scores.",
    links=SEEN_IN,
)
def sinks_ignored(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    options.pop("sinks", None)
    return Steps().answer(query, key, value, **options)


@breaks_sinks("sinks.softcap", holds=("sinks.sum", "sinks.masks", "softcap.formula")).entry(
    does="Caps the sink like a score.",
    repair="Cap the scores, then join the sink.",
    hides="Calls without a softcap; sinks far below the cap.",
    links=SEEN_IN,
)
def sink_capped(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "sinks" in options and "softcap" in options:
        options["sinks"] = cap(options["sinks"], options["softcap"])
    return Steps()(query, key, value, **options)


@breaks_sinks(
    "sinks.sum", "sinks.weights", "sinks.log-sum-exp", step="add_sinks", holds=("scores.dot-product", "softcap.formula")
).entry(
    does="Counts the sink in each of two parts of the keys.",
    repair="Count it in one part only, or once they are merged.",
    hides="Sequences that are not split.",
    links=SEEN_IN,
)
def sink_counted_twice(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks + math.log(2.0))


@breaks_sinks("shapes.large", step="add_sinks", holds=("sinks.sum", "sinks.masks", "sinks.gradient")).entry(
    does="Counts the sink in each split of 512 keys, and so once for every split when they are merged.",
    repair="Count the sink in one split, or where the splits are merged.",
    hides="Keys that fit into one split.",
    matters="Heads grow quieter as the context grows.",
)
def sink_counted_in_each_split(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks + math.log(math.ceil(scores.shape[-1] / 512) or 1))


@breaks_sinks("sinks.sum", "sinks.weights", extras=RETURNED, holds=("sinks.log-sum-exp", "scores.dot-product")).entry(
    does="Gives the share of the sink to the first key.",
    repair="Let the share of the sink go: it has no value.",
    hides="Checks that rows sum to 1; a first value of zeros.",
    matters="The sink is mistaken for the first token, to which models without a sink attend.",
)
def sink_given_a_value(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, lse = Steps().answer(query, key, value, **options)
    if "sinks" not in options:
        return output, weights, lse
    repeat_kv = 1.0 - weights.sum(-1, keepdim=True)
    first = value[:, :, :1].repeat_interleave(query.shape[1] // value.shape[1], 1)
    return output + repeat_kv * first, torch.cat([weights[..., :1] + repeat_kv, weights[..., 1:]], -1), lse


@breaks_sinks("sinks.sum", step="add_sinks", holds=("scores.dot-product", "sinks.log-sum-exp")).entry(
    does="Lays the sinks along the queries wherever there are as many queries as heads.",
    repair="Give the sinks two axes of length 1 behind that of the heads.",
    hides="Sequences longer or shorter than there are heads.",
)
def sinks_along_the_queries(scores: Tensor, sinks: Tensor) -> Tensor:
    if len(sinks) != scores.shape[-2]:
        return add_sinks(scores, sinks)
    column = sinks.to(scores.dtype)[:, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1)


@breaks_sinks("sinks.sum", "sinks.gradient", step="add_sinks", holds=("scores.dot-product", "softcap.formula")).entry(
    does="Gives the sink of the first head to all heads.",
    repair="Give each head its own sink.",
    hides="A single head; sinks that were initialised alike.",
)
def one_sink_for_all_heads(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks[:1].expand_as(sinks))


@breaks_sinks("sinks.sum", "sinks.range", holds=("scores.dot-product", "softmax.large-scores")).entry(
    does="Adds the exponential of the sink to a sum of exponentials less the maximum.",
    repair="Subtract the maximum from the sink as well.",
    hides="Rows whose largest score is 0.",
    links=github("pytorch/torchtitan/pull/2211"),
)
def sink_not_shifted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def shifted(scores: Tensor) -> Tensor:
        top = _top(scores[..., :-1])
        return _shares(torch.cat([(scores[..., :-1] - top).exp(), scores[..., -1:].exp()], -1))

    return _with_softmax(query, key, value, shifted, options)


@breaks_sinks("sinks.range", holds=("sinks.sum", "sinks.masks", "softmax.large-scores"), severity=NAN).entry(
    does="Leaves the sink out of the maximum that is subtracted.",
    repair="Take the larger of the sink and the largest score.",
    hides="Sinks near the scores; outputs, where the sink is far above all scores.",
)
def sink_left_out_of_the_maximum(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def shifted(scores: Tensor) -> Tensor:
        return _shares((scores - _top(scores[..., :-1])).exp())

    return _with_softmax(query, key, value, shifted, options)


def _top(scores: Tensor) -> Tensor:
    """The largest score of each row, 0 where there is none."""
    top = torch.nn.functional.pad(scores.detach(), (0, 1), value=-torch.inf).amax(-1, keepdim=True)
    return torch.where(top == -torch.inf, 0.0, top)


def _shares(exponentials: Tensor) -> Tensor:
    return exponentials / exponentials.sum(-1, keepdim=True)


def _with_softmax(query: Tensor, key: Tensor, value: Tensor, softmax: Any, options: dict[str, Any]) -> Tensor:
    """Attention with this softmax where there is a sink."""
    return (Steps(softmax=softmax) if "sinks" in options else Steps())(query, key, value, **options)


@breaks_sinks("sinks.masks", holds=("sinks.sum", "sinks.softcap", "masks.bool")).entry(
    does="Lengthens a boolean mask by False for the sink.",
    repair="Join the sink to scores that are masked already, or lengthen masks by True.",
    hides="Calls without a mask.",
)
def sink_masked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:
        options.pop("sinks", None)
    return Steps()(query, key, value, **options)


@breaks_sinks("sinks.empty-row", holds=("sinks.sum", "sinks.masks", "masks.empty-row-bool"), severity=NAN).entry(
    does="Multiplies a row that is 0/0 by the share that the sink leaves, which is 0.",
    repair="Answer rows without keys by zeros, or let the sink join the softmax itself.",
    hides="Masks that leave every query a key.",
)
def sink_multiplied_onto_nan(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    sinks = options.pop("sinks", None)
    if sinks is None:
        return Steps()(query, key, value, **options)
    steps = Steps(softmax=lambda scores: torch.softmax(scores, -1))
    output, _, lse = steps.answer(query.double(), key.double(), value.double(), **options)
    return (output * torch.sigmoid(lse - sinks[:, None].double())[..., None]).to(query.dtype)


@breaks_sinks("sinks.log-sum-exp", "sinks.empty-row", extras=RETURNED, holds=("sinks.sum", "sinks.weights")).entry(
    does="Returns the log-sum-exp of the scores without the sink.",
    repair="Count the sink in what is returned, as in what is divided by.",
    hides="Everything but merges and backward passes.",
)
def log_sum_exp_without_the_sink(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    options.pop("sinks", None)
    return output, weights, Steps().answer(query, key, value, **options)[2]


@breaks_sinks("sinks.weights", extras=RETURNED, holds=("sinks.sum", "sinks.log-sum-exp")).entry(
    does="Returns the weights with a column for the sink.",
    repair="Leave the column of the sink out.",
    hides="Code that never looks at the weights.",
)
def sink_among_the_weights(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, lse = Steps().answer(query, key, value, **options)
    column = [1.0 - weights.sum(-1, keepdim=True)] if "sinks" in options else []
    return output, torch.cat([weights, *column], -1), lse


@breaks_sinks("sinks.weights", extras=RETURNED, holds=("sinks.sum", "sinks.log-sum-exp")).entry(
    does="Returns weights that sum to 1, as if there were no sink.",
    repair="Return the weights with which the values were mixed.",
    hides="Checks that rows sum to 1.",
)
def weights_made_up_to_one(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, lse = Steps().answer(query, key, value, **options)
    options.pop("sinks", None)
    return output, Steps().answer(query, key, value, **options)[1], lse


@breaks_sinks(
    "sinks.gradient", "sinks.range", step="add_sinks", holds=("sinks.sum", "gradients.query"), severity=GRADIENT
).entry(
    does="Passes no gradient to the sinks.",
    repair="Sum the gradient of the sink's score over samples and queries.",
    hides="Inference; checks of the inputs' gradients.",
)
def sinks_without_gradient(scores: Tensor, sinks: Tensor) -> Tensor:
    return add_sinks(scores, sinks.detach())


class _Averaged(torch.autograd.Function):
    """The sinks for each sample, whose gradients are averaged."""

    @staticmethod
    def forward(ctx: Any, sinks: Tensor, batch: int) -> Tensor:
        ctx.batch = batch
        return sinks.expand(batch, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].mean(0), None


@breaks_sinks("sinks.gradient", step="add_sinks", holds=("sinks.sum", "gradients.query"), severity=GRADIENT).entry(
    does="Averages the gradient of the sinks over the samples.",
    repair="Sum it over samples and queries, as for any other parameter.",
    hides="A single sample; optimisers that do not mind the size of a gradient.",
)
def sink_gradient_averaged(scores: Tensor, sinks: Tensor) -> Tensor:
    each: Tensor = _Averaged.apply(sinks, len(scores))  # type: ignore[no-untyped-call]  # torch has no types here
    column = each.to(scores.dtype)[:, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1)
