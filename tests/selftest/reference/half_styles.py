"""Right attention in half types, forward and backward, in as many styles as kernels and compositions have."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Answer: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Output and the gradients of query, key and value."""
Answering: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Answer]
"""Called with query, key, value and cotangent, (B, H, L, d)."""
BASE = math.log2(math.e)


@dataclass(frozen=True)
class Style:
    """Where a kernel rounds to the half type; everything else is in float32.

    Attributes:
        scores: the products are stored in the half type.
        scale: multiplied into "scores", "query", or its root into "both" query and key, which are stored then;
            "constant": itself stored, and multiplied into the scores.
        two: powers of two, with a change of base by a rounded constant.
        weights: "raw": exponentials are stored before they meet V, the quotient comes last; "ready": weights are
            stored; "wide": they are not.
        tile: keys of a tile with running states; 0: all at once.
        parts: the keys in parts whose outputs are stored, and merged by their log-sum-exps.
        descending: tiles from the last key to the first.
        centre: D by the "output" or by the "weights".
        steps: dP and dS are stored.
        factor: of the scale; a right style has 1.
    """

    scores: bool = False
    scale: str = "scores"
    two: bool = False
    weights: str = "raw"
    tile: int = 0
    parts: int = 1
    descending: bool = False
    centre: str = "output"
    steps: bool = True
    factor: float = 1.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, cotangent: Tensor) -> Answer:
        """The answer of a problem without masks."""
        scores, half = self._scores(query, key), query.dtype
        split = [slice(first, None, self.parts) for first in range(min(self.parts, scores.shape[-1]))]
        answers = [self._forward(scores[..., part], value[..., part, :]) for part in split]
        logs = torch.stack([log for _, log in answers], -1)
        total = torch.logsumexp(logs, -1)
        shares = (logs - total[..., None]).exp()
        output = sum(o.float() * shares[..., n, None] for n, (o, _) in enumerate(answers))
        assert isinstance(output, Tensor)
        return output.to(half), *self._backward(query, key, value, cotangent, scores, total, output.to(half))

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, H, Lq, Lk) in float32, in units of the base."""
        scale, half = self.factor * query.shape[-1] ** -0.5, query.dtype
        q, k = query.float(), key.float()
        if self.scale == "query":
            q, scale = (q * scale).to(half).float(), 1.0
        elif self.scale == "both":
            q, k, scale = (q * scale**0.5).to(half).float(), (k * scale**0.5).to(half).float(), 1.0
        elif self.scale == "constant":
            scale = torch.tensor(scale).to(half).item()
        products = q @ k.mT
        products = products.to(half).float() if self.scores else products
        scores: Tensor = products * (scale * BASE if self.two else scale)
        return scores.to(half).float() if self.scores else scores

    def _exp(self, x: Tensor) -> Tensor:
        return x.exp2() if self.two else x.exp()

    def _forward(self, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The output, stored, and the natural log-sum-exp (B, H, Lq) over these keys."""
        half, length = value.dtype, scores.shape[-1]
        top = torch.full((*scores.shape[:-1], 1), -torch.inf)
        whole, mixed = torch.zeros_like(top), torch.zeros(*scores.shape[:-1], value.shape[-1])
        starts = range(0, length, self.tile or length)
        for first in reversed(starts) if self.descending else starts:
            part = slice(first, first + (self.tile or length))
            higher = torch.maximum(top, scores[..., part].amax(-1, keepdim=True))
            e, earlier = self._exp(scores[..., part] - higher), self._exp(top - higher)
            whole = whole * earlier + e.sum(-1, keepdim=True)
            e = e.to(half).float() if self.weights == "raw" else e
            mixed, top = mixed * earlier + e @ value[..., part, :].float(), higher
        log = (top + (whole.log2() if self.two else whole.log())) / (BASE if self.two else 1.0)
        if self.weights == "ready":
            weights = self._exp(scores - top) / whole
            mixed, whole = weights.to(half).float() @ value.float(), torch.ones_like(whole)
        return (mixed / whole).to(half), log[..., 0]

    def _backward(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, scores: Tensor, log: Tensor, output: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        half, scale = query.dtype, self.factor * query.shape[-1] ** -0.5
        q, k, v, g = (x.float() for x in (query, key, value, g))
        p = self._exp(scores - log[..., None] * (BASE if self.two else 1.0))
        d_p = g @ v.mT
        d_p = d_p.to(half).float() if self.steps else d_p
        centre = ((g * output.float()) if self.centre == "output" else (p * d_p)).sum(-1, keepdim=True)
        d_s = p * (d_p - centre) * scale
        d_s = d_s.to(half).float() if self.steps else d_s
        p = p if self.weights == "wide" else p.to(half).float()
        return (d_s @ k).to(half), (d_s.mT @ q).to(half), (p.mT @ g).to(half)


def by_autograd(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Answering:
    """A composition in torch, differentiated automatically."""

    def answer(query: Tensor, key: Tensor, value: Tensor, cotangent: Tensor) -> Answer:
        inputs = tuple(x.detach().requires_grad_() for x in (query, key, value))
        output = attention(*inputs)
        d_query, d_key, d_value = torch.autograd.grad(output, inputs, cotangent)
        return output.detach(), d_query, d_key, d_value

    return answer


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Every intermediate in the half type."""
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1) @ value


def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The softmax in steps, each stored."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    e = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ value


def log_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weights that are exponentials of scores minus log-sum-exp, which torch stores."""
    return torch.log_softmax(query @ key.mT * query.shape[-1] ** -0.5, -1).exp() @ value


def divided_last(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Exponentials meet the values, and the quotient comes last."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    e = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    return torch.div(e @ value, e.sum(-1, keepdim=True))


def through_the_maximum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The softmax in steps, differentiated through the maximum, too."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.div(e, e.sum(-1, keepdim=True)) @ value


def wide_through_the_maximum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same in float32, with exponentials that are stored where they meet the values; the quotient comes last."""
    scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
    e = (scores - scores.max(-1, keepdim=True).values).exp()
    return torch.div(e.to(value.dtype) @ value, e.sum(-1, keepdim=True)).to(value.dtype)


def wide_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scores stored, the softmax in float32, as in many models."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ value


def by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Everything in float32, the output stored."""
    q, k, v = (x.float() for x in (query, key, value))
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5, -1)
    return torch.einsum("bhij,bhjd->bhid", weights, v).to(query.dtype)


def _sdpa(backend: SDPBackend) -> Answering:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value)

    return by_autograd(attention)


def _kernels() -> Iterator[Style]:
    for weights, tile, two in product(("raw", "ready", "wide"), (0, 1, 16, 64), (False, True)):
        yield Style(weights=weights, tile=tile, two=two)
    for scale, scores in product(("scores", "query", "both", "constant"), (False, True)):
        yield Style(scale=scale, scores=scores, centre="weights")
        yield Style(scale=scale, scores=scores, two=True, weights="ready")
    for parts, tile in product((2, 5, 16), (0, 64)):
        yield Style(parts=parts, tile=tile)
    yield Style(tile=64, descending=True)
    yield Style(tile=128, descending=True, steps=False)
    yield Style(weights="ready", centre="weights", steps=False)


RIGHT: Mapping[str, Answering] = {
    **{str(style): style for style in dict.fromkeys(_kernels())},
    "eager": by_autograd(eager),
    "written out": by_autograd(written_out),
    "log-softmax": by_autograd(log_softmax),
    "divided last": by_autograd(divided_last),
    "through the maximum": by_autograd(through_the_maximum),
    "through the maximum, wide": by_autograd(wide_through_the_maximum),
    "wide softmax": by_autograd(wide_softmax),
    "einsum": by_autograd(by_einsum),
    "SDPA, composed": _sdpa(SDPBackend.MATH),
    "SDPA, fused": _sdpa(SDPBackend.FLASH_ATTENTION),
}
"""By name; each is right at any size."""
