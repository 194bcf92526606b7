"""Attention in many styles: other orders of summation, other bases, other places for the roundings; and a few wrong."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import copysign
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    accumulator,
    add_mask,
    factor,
    log_sum_exp,
    score,
    softmax,
)
from attention_conformance.reference.visibility import visibility
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.problem import Array, Problem

Style: TypeAlias = Callable[..., Tensor]
"""Called as style(query, key, value, attn_mask=..., scale=...)."""

LOG2_E = 1.4426950408889634
PLAIN = Steps()
LOWER: Mapping[torch.dtype, torch.dtype] = {
    torch.float64: torch.float32,
    torch.float32: torch.bfloat16,
    torch.bfloat16: torch.float8_e4m3fn,
    torch.float16: torch.float8_e4m3fn,
}
"""The next narrower dtype, with as few digits as one may meet in its place."""


def with_one_mask(problem: Problem) -> Problem:
    """The problem of an op, with all its masks as one float mask (B, H, Lq, Lk)."""
    seen = visibility(problem.widened(), Conventions())
    added = np.where(seen.allowed, 0.0 if seen.added is None else seen.added.total, -np.inf)
    others: dict[str, Any] = {"key_padding_mask": None, "valid_lens": None, "causal": False}
    return problem.but(attn_mask=added.astype(problem.query.dtype), **others)


def output_of(style: Style, problem: Problem) -> Array:
    """The output of a style."""
    return torch_op(style)(with_one_mask(problem).forward_only(), "cpu").output


def scores_of(query: Tensor, key: Tensor, options: dict[str, Any], steps: Steps = PLAIN) -> Tensor:
    """(B, H, Lq, Lk), as the softmax is given them."""
    unmixed = replace(steps, softmax=lambda scores: scores, mix=lambda scores, v: scores)
    return unmixed(query, key, key, **options)


def one_float_mask(query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """The masks and biases among the options of a call as one float mask (B, H, Lq, Lk)."""
    zeros = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
    added = {name: option for name, option in options.items() if name != "scale"}
    return scores_of(query, key, added, Steps(score=lambda q, k, by: zeros))


def or_zero(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), 0.0, x)


def largest(scores: Tensor) -> Tensor:
    """The maximum of each row, 0 for a row that sees nothing; no part of the graph."""
    return or_zero(pad(scores.detach(), (0, 1), value=-INFINITY).amax(-1, keepdim=True))


def exponentials(scores: Tensor) -> Tensor:
    return (scores - largest(scores)).exp()


def normalized(e: Tensor) -> Tensor:
    """Divided by the sums of their rows; zeros stay."""
    return divided(e, e.sum(-1, keepdim=True))


def divided(x: Tensor, by: Tensor) -> Tensor:
    return x / torch.where(by == 0, 1.0, by)


def written_out(scores: Tensor) -> Tensor:
    """Every intermediate in the dtype of the scores."""
    return normalized(exponentials(scores))


def plain_softmax(scores: Tensor) -> Tensor:
    """NaN for a row of minus infinities."""
    return torch.softmax(scores, -1)


def exp_of_log_softmax(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    return torch.where(empty, 0.0, torch.log_softmax(torch.where(empty, 0.0, scores), -1).exp())


def powers_of_two(scores: Tensor) -> Tensor:
    return exp2_softmax(scores * LOG2_E)


def exp2_softmax(scores: Tensor) -> Tensor:
    return normalized((scores - largest(scores)).exp2())


def add_mask_in_base_two(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if mask.dtype is torch.bool else mask * LOG2_E)


def scale_on_query(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query * by, key, 1.0)


def scale_on_both_sides(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = abs(by) ** 0.5
    return score(query * copysign(root, by), key * root, 1.0)


def products_one_by_one(query: Tensor, key: Tensor, by: float) -> Tensor:
    """The components of a dot product summed from the last to the first."""
    columns = zip(reversed(query.unbind(-1)), reversed(key.unbind(-1)), strict=True)
    parts = [q[..., :, None] * k[..., None, :] for q, k in columns]
    return sum(parts[1:], start=parts[0]) * by


def einsum_mix(weights: Tensor, value: Tensor) -> Tensor:
    return torch.einsum("bhij,bhjd->bhid", weights, value)


def values_from_the_last(weights: Tensor, value: Tensor) -> Tensor:
    return weights.flip(-1) @ value.flip(-2)


TEXTBOOK = Steps(wide=False, softmax=written_out)
"""Every intermediate stored in the working dtype."""
BASE_TWO = Steps(
    wide=False, score=lambda q, k, by: score(q, k, by) * LOG2_E, add_mask=add_mask_in_base_two, softmax=exp2_softmax
)
"""Scores and mask times log2(e); its log-sum-exp is none."""
DIVIDED_LAST = Steps(wide=False, softmax=exponentials, mix=lambda e, v: divided(e @ v, e.sum(-1, keepdim=True)))
"""The mixture of values is divided by the sum; its weights are none."""


def weights_rounded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The weights are rounded to the working dtype before they meet the values, as fused kernels do."""
    steps = Steps(mix=lambda weights, v: (weights.to(query.dtype) @ v.to(query.dtype)).to(v.dtype))
    return steps(query, key, value, **options)


def keys_shifted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Keys without the mean of those that some query sees, which moves no weight; all in the working dtype."""
    least = torch.finfo(key.dtype).min
    seen = (one_float_mask(query, key, options) > least).any(-2).unsqueeze(-1)
    mean = torch.where(seen, key, 0).sum(-2, keepdim=True) / seen.sum(-2, keepdim=True).clamp(min=1).to(key.dtype)
    return TEXTBOOK(query, key - mean, value, **options)


def reversed_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """All sums over keys in the opposite order."""
    mask = one_float_mask(query, key, options).flip(-1)
    return TEXTBOOK(query, key.flip(-2), value.flip(-2), attn_mask=mask, scale=options.get("scale"))


def head_by_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.pop("attn_mask", None)
    outputs = []
    for head in range(query.shape[1]):
        one = slice(head, head + 1)
        if mask is not None:
            options["attn_mask"] = mask[..., one, :, :] if mask.ndim > 2 and mask.shape[-3] > 1 else mask
        outputs.append(Steps()(query[:, one], key[:, one], value[:, one], **options))
    return torch.cat(outputs, 1)


def padded_to_eight(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Width and keys padded with zeros to multiples of 8; the padding is masked, the scale that of the real width."""
    scale = factor(query, options.get("scale"))
    width, length = -query.shape[-1] % 8, -key.shape[-2] % 8
    masked = pad(one_float_mask(query, key, options), (0, length), value=-INFINITY)
    q, k, v = pad(query, (0, width)), pad(key, (0, width, 0, length)), pad(value, (0, 0, 0, length))
    return Steps()(q, k, v, attn_mask=masked, scale=scale)


def online(tile: int, stored: bool = False) -> Style:
    """Keys in tiles, with a running maximum, sum and mixture: wide, or stored in the working dtype."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        dtype = query.dtype
        inner = dtype if stored else accumulator(dtype)
        mask, scale = one_float_mask(query, key, options).to(inner), factor(query, options.get("scale"))
        scores = score(query.to(inner), key.to(inner), scale) + mask
        top = torch.full((*query.shape[:-1], 1), -INFINITY, dtype=inner)
        whole, mixed = torch.zeros_like(top), torch.zeros(*query.shape[:-1], value.shape[-1], dtype=inner)
        for s, v in zip(scores.split(tile, -1), value.split(tile, -2), strict=True) if key.shape[-2] else ():
            higher = torch.maximum(top, s.detach().amax(-1, keepdim=True))
            e, earlier = (s - or_zero(higher)).exp(), (top - or_zero(higher)).exp()
            whole = whole * earlier + e.sum(-1, keepdim=True)
            mixed, top = mixed * earlier + (e.to(dtype) @ v).to(inner), higher
        return divided(mixed, whole).to(dtype)

    return attention


def merged(parts: int) -> Callable[..., tuple[Tensor, ...]]:
    """The keys in parts, each answered alone and rounded, merged by their log-sum-exps."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
        wide, dtype = accumulator(query.dtype), query.dtype
        q, k, v = (x.to(wide) for x in (query, key, value))
        mask, scale = one_float_mask(query, key, options).to(wide), factor(query, options.get("scale"))
        slices = [slice(first, None, parts) for first in range(parts)]
        answers = [
            Steps().answer(q, k[..., part, :], v[..., part, :], attn_mask=mask[..., part], scale=scale)
            for part in slices
        ]
        logs, weights = torch.stack([lse for _, _, lse in answers], -1), torch.zeros_like(mask, dtype=dtype)
        shares = softmax(logs).to(dtype)
        mixed = [output.to(dtype) * shares[..., n, None] for n, (output, _, _) in enumerate(answers)]
        for n, part in enumerate(slices):
            weights[..., part] = answers[n][1].to(dtype) * shares[..., n, None]
        return sum(mixed[1:], start=mixed[0]), weights, log_sum_exp(logs).to(dtype)

    return attention


def without_extras(answer: Callable[..., tuple[Tensor, ...]]) -> Style:
    return lambda *rows, **options: answer(*rows, **options)[0]


CORRECT: Mapping[str, Style] = {
    "textbook": TEXTBOOK,
    "wide softmax": weights_rounded,
    "scaled query": replace(TEXTBOOK, score=scale_on_query),
    "scaled query and key": replace(TEXTBOOK, score=scale_on_both_sides),
    "reversed keys": reversed_keys,
    "log-softmax": Steps(wide=False, softmax=exp_of_log_softmax),
    "base 2": BASE_TWO,
    "divided last": DIVIDED_LAST,
    "merged 2": without_extras(merged(2)),
    "merged 5": without_extras(merged(5)),
    "online 1": online(1),
    "online 7": online(7),
    "online 64": online(64),
}
SHORT: Mapping[str, Style] = {
    "online 1, state stored": online(1, stored=True),
    "online 7, state stored": online(7, stored=True),
}
"""Correct for up to 17 keys; with more, a half type's running sum stagnates."""


def lower(x: Tensor, low: torch.dtype | None = None) -> Tensor:
    """Rounded to a narrower dtype, by default the next, and back, saturating; infinities stay."""
    low = LOWER[x.dtype] if low is None else low
    limit = min(torch.finfo(low).max, torch.finfo(x.dtype).max)
    return torch.where(x.isinf(), x, x.clamp(-limit, limit).to(low).to(x.dtype))


def mean_of_values(scores: Tensor) -> Tensor:
    """Every weight the same."""
    return normalized((scores > -INFINITY).to(scores.dtype))


def lower_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Scores, exponentials, their sum and the weights stored in the next lower precision; sums in float32."""
    low = partial(lower, low=LOWER[query.dtype])

    def rounded(scores: Tensor) -> Tensor:
        e = low(exponentials(low(scores)))
        return low(divided(e, low(e.sum(-1, keepdim=True))))

    return Steps(softmax=rounded)(query, key, value, **options)


def lower_weights(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The weights alone stored in the next lower precision."""
    return Steps(softmax=lambda s: lower(softmax(s), LOWER[query.dtype]))(query, key, value, **options)


def with_epsilon(scores: Tensor) -> Tensor:
    """1e-6 in the denominator."""
    e = exponentials(scores)
    return e / (e.sum(-1, keepdim=True) + 1e-6)


WRONG: Mapping[str, Style] = {
    "zeros": lambda query, key, value, **options: torch.zeros_like(TEXTBOOK(query, key, value, **options)),
    "mean of the values": Steps(softmax=mean_of_values),
    "sign flipped": lambda query, key, value, **options: -TEXTBOOK(query, key, value, **options),
    "no scale": lambda query, key, value, **options: TEXTBOOK(query, key, value, **options | {"scale": 1.0}),
    "softmax one precision lower": lower_softmax,
    "weights one precision lower": lower_weights,
}
"""Wrong in every dtype."""
LOST_DIGITS: Mapping[str, Style] = {
    "weights in bfloat16": replace(TEXTBOOK, softmax=lambda s: lower(written_out(s), torch.bfloat16)),
    "1e-6 in the denominator": replace(TEXTBOOK, softmax=with_epsilon),
}
"""Wrong in wide dtypes only: the first in float64 and float32, the second in float64."""


def backward(problem: Problem, centred_by: str = "weights") -> dict[str, Array]:
    """Gradients by the closed form; rowsum(P dP) by the weights, by the output (rowsum(dO O)), or not."""
    given = tensors(with_one_mask(problem).but(needs=()), "cpu")
    query, key, value, cotangent = (given[name] for name in ("query", "key", "value", "cotangent"))
    output, p, _ = TEXTBOOK.answer(query, key, value, attn_mask=given["attn_mask"], scale=problem.scale)
    d_weights = cotangent @ value.mT
    centres = {
        "weights": (p * d_weights).sum(-1, keepdim=True),
        "output": (cotangent * output).sum(-1, keepdim=True),
        "nothing": torch.zeros_like(p[..., :1]),
    }
    d_scores, scale = p * (d_weights - centres[centred_by]), factor(query, problem.scale)
    gradients = {"query": d_scores @ key * scale, "key": d_scores.mT @ query * scale, "value": p.mT @ cotangent}
    return {name: to_array(gradient) for name, gradient in gradients.items()}
