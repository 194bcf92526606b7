"""Mistakes of chapter 2 in what is returned in addition to the output: weights, averaged weights, log-sum-exp."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, log_sum_exp
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, breaks
from attention_conformance.spec.features import Feature


@breaks("softmax.weights", "masks.zero-weight", extras=("weights",), holds=("masks.bool",))
def weights_before_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    plain = Steps().answer(query, key, value, scale=options.get("scale"))
    return Steps()(query, key, value, **options), plain[1]


@breaks("softmax.weights", "softmax.rows-sum-to-one", extras=("weights",), holds=("scores.dot-product", "masks.bool"))
def weights_not_normalised(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights / weights.amax(-1, keepdim=True)


@breaks("softmax.weights", extras=("weights",), holds=("scores.dot-product", "masks.bool"))
def weights_transposed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights.mT


@breaks("softmax.averaged-weights", extras=("averaged_weights",), holds=("scores.dot-product",))
def weights_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights[:, 0]


@breaks("softmax.averaged-weights", extras=("averaged_weights",), holds=("scores.dot-product", "masks.bool"))
def weights_summed_over_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights.sum(1)


class _Noted(torch.autograd.Function):
    """A number whose gradient goes nowhere, though it has one."""

    @staticmethod
    def forward(ctx: Any, number: Tensor) -> Tensor:
        return number.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.zeros_like(gradients[0])


breaks_gradient_of_logarithm = breaks(
    "returned.log-sum-exp-gradient",
    extras=("log_sum_exp",),
    modes=(Feature.LOG_SUM_EXP_GRADIENT,),
    holds=("softmax.log-sum-exp", "gradients.query", "gradients.key"),
    severity=GRADIENT,
)


@breaks_gradient_of_logarithm
def gradient_of_the_logarithm_left_out(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, log = Steps().answer(query, key, value, **options)
    return output, _Noted.apply(log)  # type: ignore[no-untyped-call]


@breaks_gradient_of_logarithm
def gradient_of_the_logarithm_for_queries_alone(
    query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    return Steps()(query, key, value, **options), Steps().answer(query, key.detach(), value, **options)[2]


@breaks("softmax.log-sum-exp", "relations.merge", step="log_sum_exp", holds=("softmax.weights",))
def logarithm_of_base_two(scores: Tensor) -> Tensor:
    return torch.logsumexp(scores, -1) * 1.4426950408889634


@breaks("softmax.log-sum-exp", "relations.merge", step="log_sum_exp", holds=("softmax.weights", "softmax.large-scores"))
def maximum_not_added_again(scores: Tensor) -> Tensor:
    return log_sum_exp(scores) - scores.amax(-1).clamp(min=torch.finfo(scores.dtype).min)


@breaks("softmax.log-sum-exp", step="log_sum_exp", holds=("softmax.weights", "masks.empty-row-bool"), severity=NAN)
def plus_infinity_for_an_empty_row(scores: Tensor) -> Tensor:
    result = log_sum_exp(scores)
    return torch.where(result == -INFINITY, INFINITY, result)


@breaks("softmax.log-sum-exp", step="log_sum_exp", holds=("softmax.weights", "softmax.rows-sum-to-one"))
def zero_for_an_empty_row(scores: Tensor) -> Tensor:
    result = log_sum_exp(scores)
    return torch.where(result == -INFINITY, 0.0, result)


@breaks("softmax.log-sum-exp", extras=("log_sum_exp",), holds=("masks.bool", "causal.square"))
def log_sum_exp_before_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    plain = Steps().answer(query, key, value, scale=options.get("scale"))
    return Steps()(query, key, value, **options), plain[2]
