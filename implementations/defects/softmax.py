"""Mistakes of chapter 2: the softmax, its maximum and its sums."""

from functools import partial

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, softmax
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks

TILE = 4


def normalised(e: Tensor) -> Tensor:
    """The exponentials of each row divided by their sum."""
    return e / e.sum(-1, keepdim=True)


breaks_softmax = partial(breaks, step="softmax")


@breaks_softmax("softmax.over-keys", holds=("shapes.output",), severity=LEAK)
def softmax_over_queries(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -2)


@breaks_softmax("softmax.over-keys", "relations.batch", holds=("shapes.output",), severity=LEAK)
def softmax_over_samples(scores: Tensor) -> Tensor:
    return torch.softmax(scores, 0)


@breaks_softmax("softmax.rows-sum-to-one", "softmax.over-keys", holds=("shapes.output", "relations.permute-keys"))
def softmax_left_out(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores == -INFINITY, 0.0)


@breaks_softmax("softmax.rows-sum-to-one", "values.single-key", holds=("shapes.output", "relations.permute-keys"))
def sigmoid_for_softmax(scores: Tensor) -> Tensor:
    return torch.sigmoid(scores)


@breaks_softmax("softmax.weights", "softmax.over-keys", holds=("values.single-key", "softmax.log-sum-exp"))
def powers_of_two(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    e = torch.exp2(scores - torch.where(empty, 0.0, scores.amax(-1, keepdim=True)))
    return e / e.sum(-1, keepdim=True).masked_fill(empty, 1.0)


@breaks_softmax("softmax.large-scores", holds=("scores.dot-product", "softmax.weights"), severity=NAN)
def no_maximum(scores: Tensor) -> Tensor:
    return normalised(scores.exp())


@breaks_softmax("softmax.large-scores", holds=("scores.dot-product", "softmax.weights"), severity=NAN)
def constant_for_the_maximum(scores: Tensor) -> Tensor:
    return normalised((scores - 10.0).exp())


@breaks_softmax("softmax.large-scores", holds=("scores.dot-product", "softmax.weights"), severity=NAN)
def mean_for_the_maximum(scores: Tensor) -> Tensor:
    visible = scores > -INFINITY
    mean = torch.where(visible, scores, 0.0).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
    return normalised((scores - mean).exp())


@breaks_softmax("softmax.row-maximum", holds=("softmax.large-scores", "scores.dot-product"), severity=NAN)
def maximum_of_everything(scores: Tensor) -> Tensor:
    return normalised((scores - scores.max()).exp())


@breaks_softmax("softmax.very-negative", holds=("softmax.row-maximum", "softmax.large-scores"))
def maximum_starts_at_a_finite_number(scores: Tensor) -> Tensor:
    return normalised((scores - scores.amax(-1, keepdim=True).clamp(min=-1e4)).exp())


@breaks_softmax(
    "softmax.very-negative", "masks.fill-value", holds=("softmax.large-scores", "softmax.row-maximum"), severity=NAN
)
def maximum_starts_at_zero(scores: Tensor) -> Tensor:
    return normalised((scores - scores.amax(-1, keepdim=True).clamp(min=0.0)).exp())


def _tops(scores: Tensor) -> Tensor:
    """For each score the running maximum once its tile has been read; 0 as long as that is minus infinity."""
    tiles = [tile.amax(-1, keepdim=True).expand_as(tile) for tile in scores.split(TILE, -1)]
    tops = torch.cat(tiles, -1).cummax(-1).values
    return tops.masked_fill(tops == -INFINITY, 0.0)


@breaks_softmax("softmax.late-maximum", "relations.permute-keys", holds=("values.single-key", "softmax.log-sum-exp"))
def sums_not_rescaled(scores: Tensor) -> Tensor:
    tops = [tile.amax(-1, keepdim=True).expand_as(tile) for tile in scores.split(TILE, -1)]
    return normalised((scores - torch.cat(tops, -1)).exp())


@breaks_softmax("softmax.late-maximum", "relations.permute-keys", holds=("values.single-key", "softmax.log-sum-exp"))
def rescaled_the_other_way(scores: Tensor) -> Tensor:
    tops = _tops(scores)
    return normalised((scores - tops).exp() * (tops[..., -1:] - tops).exp())


@breaks_softmax("softmax.rows-sum-to-one", "softmax.late-maximum", holds=("values.single-key", "softmax.log-sum-exp"))
def output_not_rescaled(scores: Tensor) -> Tensor:
    tops = _tops(scores)
    whole = (scores - tops[..., -1:]).exp().sum(-1, keepdim=True)
    return torch.where(whole > 0, (scores - tops).exp() / whole, 0.0)


@breaks_softmax("softmax.first-tile-masked", holds=("softmax.late-maximum", "scores.dot-product"), severity=NAN)
def masked_tile_spoils_the_rest(scores: Tensor) -> Tensor:
    spoilt = (scores[..., :TILE] == -INFINITY).all(-1, keepdim=True)
    return torch.where(spoilt, torch.nan, softmax(scores))


@breaks_softmax("softmax.rows-sum-to-one", "values.single-key", holds=("relations.permute-keys",))
def one_more_in_the_sum(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1.0)


@breaks_softmax(
    "softmax.rows-sum-to-one", "relations.shift-keys", holds=("relations.permute-keys", "softmax.large-scores")
)
def silent_key_of_score_zero(scores: Tensor) -> Tensor:
    top = scores.amax(-1, keepdim=True).clamp(min=0.0)
    e = (scores - top).exp()
    return e / ((-top).exp() + e.sum(-1, keepdim=True))


@breaks_softmax(
    "relations.convex-hull", "softmax.rows-sum-to-one", holds=("relations.permute-keys", "relations.shift-keys")
)
def dropout_scaling_without_dropout(scores: Tensor) -> Tensor:
    return softmax(scores) / 0.8
