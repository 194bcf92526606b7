"""Right dropout in unusual styles: other places for the factor, other generators, other ways back."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.extended_layers import DroppingLayer
from attention_conformance.implementations.builtin.stepwise.layer import call_layer
from attention_conformance.implementations.builtin.stepwise.steps import (
    Steps,
    accumulator,
    drop,
    mix,
)
from attention_conformance.implementations.defects.dropout_state import MODES
from attention_conformance.spec.conventions import Conventions, ReturnedWeights
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array
from attention_conformance.tests.selftest.reference.styles import written_out
from attention_conformance.tests.selftest.right.right import BOTH, module, op

AFTER = Conventions(returned_weights=ReturnedWeights.AFTER_DROPOUT)


def by_select(weights: Tensor, rate: float) -> Tensor:
    """Dropped weights are set to 0; the factor only meets what is kept."""
    if rate == 1.0:
        return weights * 0.0
    return weights.masked_fill(torch.rand(weights.shape) < rate, 0.0) / (1.0 - rate)


def in_eight_bits(weights: Tensor, rate: float) -> Tensor:
    """The probability rounded to 1/256, as kernels have it that compare bytes; the factor is that of the given one."""
    kept = torch.randint(256, weights.shape) >= round(256 * rate)
    return weights * kept / (1.0 - rate) if rate < 1.0 else weights * 0.0


def queries_last(weights: Tensor, rate: float) -> Tensor:
    """Drawn in another order than that of the axes."""
    return drop(weights.permute(3, 1, 0, 2).contiguous(), rate).permute(2, 1, 3, 0)


def by_counter(weights: Tensor, rate: float) -> Tensor:
    """One number of the generator seeds a hash of each weight's place, as counter-based generators work."""
    seed = np.uint64(torch.randint(2**62, (1,)).item())
    with np.errstate(over="ignore"):
        z = (np.arange(weights.numel(), dtype=np.uint64) + seed) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    uniform = torch.from_numpy((z >> np.uint64(11)).astype(np.float64) * 2.0**-53).view(weights.shape)
    return torch.where(uniform >= rate, weights / (1.0 - rate) if rate < 1.0 else weights * 0.0, 0.0)


class _DrawnTwice(torch.autograd.Function):
    """Nothing is kept but the state of the generator: the backward pass draws the same again."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rate: float) -> Tensor:
        ctx.rate, ctx.state = rate, torch.get_rng_state()
        return drop(weights, rate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            return drop(gradient, ctx.rate), None


def drawn_twice(weights: Tensor, rate: float) -> Tensor:
    dropped: Tensor = _DrawnTwice.apply(weights, rate)  # type: ignore[no-untyped-call]
    return dropped


def factor_on_the_output(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Any:
    """The weights are only multiplied by 0 and 1, the output is enlarged once."""

    def enlarged(weights: Tensor, rows: Tensor) -> Tensor:
        return mix(weights, rows) * (1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0)

    def chosen(weights: Tensor, rate: float) -> Tensor:
        return weights * (torch.rand(weights.shape) >= rate).to(weights.dtype)

    return Steps(drop=chosen, mix=enlarged).answer(query, key, value, dropout_p=dropout_p, **options)


def factor_on_the_values(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Any:
    """Exponentials are dropped before they are divided by the sum of all; the values are enlarged."""
    wide = accumulator(query.dtype)
    rows = value.to(wide) / (1.0 - dropout_p) if dropout_p < 1.0 else value.to(wide) * 0.0

    def chosen(weights: Tensor, rate: float) -> Tensor:
        return weights.where(torch.rand(weights.shape) >= rate, 0.0)

    answer = Steps(drop=chosen).answer(query.to(wide), key.to(wide), rows, dropout_p=dropout_p, **options)
    return tuple(each.to(query.dtype) for each in answer)


def recomputed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """Nothing is kept for the backward pass: the forward pass is run again, from the same state."""
    names = [name for name, option in options.items() if isinstance(option, Tensor)]

    def again(q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> tuple[Tensor, ...]:
        return Steps().answer(q, k, v, **{**options, **dict(zip(names, masks, strict=True))})

    return checkpoint(again, query, key, value, *(options[name] for name in names), use_reentrant=False)


def returned_after(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    dropped: list[Tensor] = []

    def mixed(weights: Tensor, rows: Tensor) -> Tensor:
        dropped.append(weights.to(query.dtype))
        return mix(weights, rows)

    output, _, lse = Steps(mix=mixed).answer(query, key, value, **options)
    return output, dropped[0], lse, dropped[0].mean(1)


def in_numpy(query: Array, key: Array, value: Array, dropout_p: float = 0.0, **options: Any) -> tuple[Array, Array]:
    """NumPy's generator, float64 inside."""
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"])
    mask = options.get("attn_mask")
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(np.float64)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    dropped = weights
    if dropout_p:
        kept = np.random.random_sample(weights.shape) >= dropout_p
        dropped = weights * kept / (1.0 - dropout_p) if dropout_p < 1.0 else weights * 0.0
    return (dropped @ v).astype(query.dtype), weights.astype(query.dtype)


FEATURES = {Feature.DROPOUT, Feature.GROUPED}
FUNCTIONS = (factor_on_the_output, factor_on_the_values, recomputed)
DROPS = (drop, by_select, in_eight_bits, queries_last, by_counter, drawn_twice)
NUMPY = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH, Feature.SCALE})
RIGHT: tuple[Implementation, ...] = (
    *(op(each.__name__, Steps(drop=each).answer, FEATURES, extras=BOTH) for each in DROPS),
    op("eager", Steps(wide=False, softmax=written_out).answer, FEATURES, extras=BOTH),
    *(op(each.__name__, each, FEATURES, extras=BOTH) for each in FUNCTIONS),
    op("returned_after", returned_after, FEATURES, extras=(*BOTH, "averaged_weights"), conventions=AFTER),
    Implementation(
        "in_numpy",
        Claims(Scope.OP, NUMPY | {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.DROPOUT, Feature.WEIGHTS}),
        numpy_op(in_numpy, extras=("weights",)),
    ),
    module("layer", DroppingLayer, call_layer, MODES),
)
