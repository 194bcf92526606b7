"""Mistakes of chapter 2: the softmax, its maximum and its sums."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, softmax
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, github

TILE = 4


def normalised(e: Tensor) -> Tensor:
    """The exponentials of each row divided by their sum."""
    return e / e.sum(-1, keepdim=True)


breaks_softmax = partial(breaks, step="softmax")


@breaks_softmax("softmax.over-keys", holds=("shapes.output",), severity=LEAK).entry(
    does="Normalises over the queries, and not over the keys.",
    repair="Take the softmax along the last axis of (B, H, Lq, Lk), the keys.",
    hides="Equal scores with as many queries as keys; checks of shapes or of column sums; a loss that falls anyway.",
    matters="Generative models trained with it for years; under a causal flag every row learns of the future.",
    links=github(
        "labmlai/annotated_deep_learning_paper_implementations/issues/146",
        "nerminnuraydogan/vision-transformer/issues/1",
    ),
)
def softmax_over_queries(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -2)


@breaks_softmax("softmax.over-keys", "relations.batch", holds=("shapes.output",), severity=LEAK).entry(
    does="Normalises over the samples, as a softmax without an axis did in old libraries.",
    repair="Name the axis of every softmax; it is the last one.",
    hides="Checks of shapes only.",
    matters="The samples of a batch influence one another, and a batch of one has weights of 1 throughout.",
    links=github("PetrochukM/PyTorch-NLP/issues/2", "jadore801120/attention-is-all-you-need-pytorch/issues/52"),
)
def softmax_over_samples(scores: Tensor) -> Tensor:
    return torch.softmax(scores, 0)


@breaks_softmax(
    "softmax.rows-sum-to-one", "softmax.over-keys", holds=("shapes.output", "relations.permute-keys")
).entry(
    does="Leaves the softmax out: the scores themselves are the weights.",
    repair="Apply a softmax over the keys to the scores.",
    hides="Checks of shapes only.",
    matters="The result is linear attention of unbounded size, which passes every smoke test.",
    links=github("flexflow/flexflow-train/issues/467"),
)
def softmax_left_out(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores == -INFINITY, 0.0)


@breaks_softmax(
    "softmax.rows-sum-to-one", "values.single-key", holds=("shapes.output", "relations.permute-keys")
).entry(
    does="Squeezes each score by a sigmoid, so that the weights of a row do not sum to 1.",
    repair="Divide the exponentials of a row by their sum.",
    hides="Checks that weights lie between 0 and 1.",
)
def sigmoid_for_softmax(scores: Tensor) -> Tensor:
    return torch.sigmoid(scores)


@breaks_softmax("softmax.weights", "softmax.over-keys", holds=("values.single-key", "softmax.log-sum-exp")).entry(
    does="Takes powers of 2 for exponentials, without the factor log2(e) on the scores.",
    repair="Multiply the scores by log2(e) wherever the hardware's base-2 exponential is used.",
    hides="Equal scores, and checks of row sums.",
    matters="Kernels written around a base-2 exponential give too flat an attention.",
)
def powers_of_two(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    e = torch.exp2(scores - torch.where(empty, 0.0, scores.amax(-1, keepdim=True)))
    return e / e.sum(-1, keepdim=True).masked_fill(empty, 1.0)


@breaks_softmax("softmax.large-scores", holds=("scores.dot-product", "softmax.weights"), severity=NAN).entry(
    does="Takes exponentials of the scores as they are.",
    repair="Subtract the maximum of each row before the exponential.",
    hides="Scores below 88 in float32 and 709 in float64: all that random normal inputs give.",
    matters="NaN in deployment, where real models reach scores of 100 and more.",
    links=github("NVIDIA/FasterTransformer/issues/43", "pytorch/executorch/pull/18407", "mila-iqia/blocks/pull/727"),
)
def no_maximum(scores: Tensor) -> Tensor:
    return normalised(scores.exp())


@breaks_softmax("softmax.large-scores", holds=("scores.dot-product", "softmax.weights"), severity=NAN).entry(
    does="Subtracts a fixed number instead of the maximum.",
    repair="Subtract the maximum of each row, which no constant can stand for.",
    hides="Scores near the constant.",
    links=github("HabanaAI/vllm-fork/issues/275"),
)
def constant_for_the_maximum(scores: Tensor) -> Tensor:
    return normalised((scores - 10.0).exp())


@breaks_softmax("softmax.large-scores", holds=("scores.dot-product", "softmax.weights"), severity=NAN).entry(
    does="Subtracts the mean of each row instead of its maximum.",
    repair="Subtract the maximum: only then is no exponent above 0.",
    hides="Rows whose scores lie close together.",
)
def mean_for_the_maximum(scores: Tensor) -> Tensor:
    kept = scores > -INFINITY
    mean = torch.where(kept, scores, 0.0).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)
    return normalised((scores - mean).exp())


@breaks_softmax("softmax.row-maximum", holds=("softmax.large-scores", "scores.dot-product"), severity=NAN).entry(
    does="Subtracts one maximum of the whole array from all rows.",
    repair="Take the maximum along the keys, keeping the axis.",
    hides="Rows whose maxima lie within 104 of one another in float32, 745 in float64.",
    links=github("NVIDIA/DeepLearningExamples/issues/169"),
)
def maximum_of_everything(scores: Tensor) -> Tensor:
    return normalised((scores - scores.max()).exp())


@breaks_softmax("softmax.very-negative", holds=("softmax.row-maximum", "softmax.large-scores")).entry(
    does="Starts the running maximum at -10000 instead of minus infinity.",
    repair="Start at minus infinity, and guard the difference of two infinities.",
    hides="Rows with a single score above -10000.",
    matters="Models with massive activations got zeros from a serving kernel, silently.",
    links=github("flashinfer-ai/flashinfer/issues/4267", "flashinfer-ai/flashinfer/pull/4401"),
)
def maximum_starts_at_a_finite_number(scores: Tensor) -> Tensor:
    return normalised((scores - scores.amax(-1, keepdim=True).clamp(min=-1e4)).exp())


@breaks_softmax(
    "softmax.very-negative", "masks.fill-value", holds=("softmax.large-scores", "softmax.row-maximum"), severity=NAN
).entry(
    does="Starts the running maximum at 0, or at the smallest positive number.",
    repair="Start at minus infinity: FLT_MIN of C is positive.",
    hides="Rows with a single positive score, or none far below 0.",
    links=github("mit-han-lab/tinyengine/issues/107"),
)
def maximum_starts_at_zero(scores: Tensor) -> Tensor:
    return normalised((scores - scores.amax(-1, keepdim=True).clamp(min=0.0)).exp())


def _tops(scores: Tensor) -> Tensor:
    """For each score the running maximum once its tile has been read; 0 as long as that is minus infinity."""
    tiles = [tile.amax(-1, keepdim=True).expand_as(tile) for tile in scores.split(TILE, -1)]
    tops = torch.cat(tiles, -1).cummax(-1).values
    return tops.masked_fill(tops == -INFINITY, 0.0)


@breaks_softmax(
    "softmax.late-maximum", "relations.permute-keys", holds=("values.single-key", "softmax.log-sum-exp")
).entry(
    does="Gives each tile of keys a maximum of its own, and adds the tiles up as they are.",
    repair="Multiply what has been summed by exp(old maximum - new maximum) whenever the maximum rises.",
    hides="Fewer keys than a tile, and tiles with equal maxima.",
)
def sums_not_rescaled(scores: Tensor) -> Tensor:
    tops = [tile.amax(-1, keepdim=True).expand_as(tile) for tile in scores.split(TILE, -1)]
    return normalised((scores - torch.cat(tops, -1)).exp())


@breaks_softmax(
    "softmax.late-maximum", "relations.permute-keys", holds=("values.single-key", "softmax.log-sum-exp")
).entry(
    does="Multiplies by the inverse of the factor when the running maximum rises.",
    repair="Multiply by exp(old maximum - new maximum), which is at most 1.",
    hides="Fewer keys than a tile, and a largest score in the first tile.",
    matters="Code that follows an algorithm as printed in a paper, with its misprint.",
    links=github("Dao-AILab/flash-attention/issues/991"),
)
def rescaled_the_other_way(scores: Tensor) -> Tensor:
    tops = _tops(scores)
    return normalised((scores - tops).exp() * (tops[..., -1:] - tops).exp())


@breaks_softmax(
    "softmax.rows-sum-to-one", "softmax.late-maximum", holds=("values.single-key", "softmax.log-sum-exp")
).entry(
    does="Rescales the sum of exponentials when the maximum rises, but not the output summed so far.",
    repair="Multiply the sum and the output by the same factor.",
    hides="Fewer keys than a tile, and a largest score in the first tile.",
)
def output_not_rescaled(scores: Tensor) -> Tensor:
    tops = _tops(scores)
    whole = (scores - tops[..., -1:]).exp().sum(-1, keepdim=True)
    return torch.where(whole > 0, (scores - tops).exp() / whole, 0.0)


@breaks_softmax("softmax.first-tile-masked", holds=("softmax.late-maximum", "scores.dot-product"), severity=NAN).entry(
    does="Subtracts minus infinity from itself when the first tile of keys is masked.",
    repair="Subtract 0 as long as the running maximum is minus infinity.",
    hides="Rows whose first tile has a key that is not masked.",
    matters="Padding at the start, or segments: whole rows are NaN.",
)
def masked_tile_spoils_the_rest(scores: Tensor) -> Tensor:
    spoilt = (scores[..., :TILE] == -INFINITY).all(-1, keepdim=True)
    return torch.where(spoilt, torch.nan, softmax(scores))


@breaks_softmax("softmax.rows-sum-to-one", "values.single-key", holds=("relations.permute-keys",)).entry(
    does="Adds 1 to the sum of the shifted exponentials.",
    repair="Divide by the sum alone; for a key of score 0 without a value, add exp(-maximum) and document it.",
    hides="Comparisons with itself, and rows with very many similar scores.",
    matters="A variant that lets a head be silent, written after the shift: not even invariant under shifts.",
    links=github("kyegomez/AttentionIsOFFByOne/issues/5"),
)
def one_more_in_the_sum(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1.0)


@breaks_softmax(
    "softmax.rows-sum-to-one", "relations.shift-keys", holds=("relations.permute-keys", "softmax.large-scores")
).entry(
    does="Adds one more key, of score 0 and without a value, that was not requested.",
    repair="Normalise over the keys that are there.",
    hides="Rows with a score well above 0.",
)
def silent_key_of_score_zero(scores: Tensor) -> Tensor:
    top = scores.amax(-1, keepdim=True).clamp(min=0.0)
    e = (scores - top).exp()
    return e / ((-top).exp() + e.sum(-1, keepdim=True))


@breaks_softmax(
    "relations.convex-hull", "softmax.rows-sum-to-one", holds=("relations.permute-keys", "relations.shift-keys")
).entry(
    does="Divides the weights by the keep probability of a dropout that does not take place.",
    repair="Rescale only where weights have been dropped.",
    hides="A dropout of 0.",
    matters="Evaluation: all outputs are too large by a quarter at a dropout of 0.2.",
)
def dropout_scaling_without_dropout(scores: Tensor) -> Tensor:
    return softmax(scores) / 0.8
