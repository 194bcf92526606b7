"""The attention family in torch, in many right styles and a few wrong ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention_conformance.implementations.adapters.op_options import INPUTS, extra_options, seeded
from attention_conformance.implementations.adapters.tensors import gradients_of, tensors, to_array
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.inhouse import EXTENSIONS
from attention_conformance.implementations.builtin.stepwise import steps as right
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps, accumulator
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.reference.styles import lower

Answer: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Output, weights, log-sum-exp."""
FAMILY = OP_FEATURES | EXTENSIONS | {Feature.CUMULATIVE_LENGTHS, Feature.WEIGHTS, Feature.LOG_SUM_EXP}


def single_angles(positions: Tensor, count: int, base: float) -> Tensor:
    """(B, L, count) in float32, the frequencies as exponentials of logarithms, as libraries have them."""
    steps = torch.arange(count, dtype=torch.float32) / -count
    return positions[..., None].float() * torch.exp(steps * torch.tensor(base, dtype=torch.float32).log())


def by_single_angles(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return right.rotate_by(rows, single_angles(positions, rows.shape[-1] // 2, base))


def cap_by_exponentials(scores: Tensor, softcap: float) -> Tensor:
    """tanh x = 2 / (1 + e^-2x) - 1, as kernels without a tanh have it, in float32 at least."""
    wide = scores.to(accumulator(scores.dtype))
    return (softcap * (2.0 * torch.sigmoid(2.0 * (wide / softcap)) - 1.0)).to(scores.dtype)


def rescaled_for_sinks(steps: Steps) -> Callable[..., Answer]:
    """The sink comes after attention: o e^lse / (e^lse + e^sink), with the stored output of the keys alone."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        sinks, dtype = options.pop("sinks", None), query.dtype
        wide = accumulator(dtype)
        q, k, v = (x.to(wide) for x in (query, key, value))
        output, weights, lse = steps.answer(q, k, v, **options)
        if sinks is not None:
            sink = sinks.to(wide)[:, None]
            of_keys = torch.sigmoid(lse - sink)[..., None]
            output, weights = (x.to(dtype) * of_keys.to(dtype) for x in (output, weights))
            lse = torch.logaddexp(lse, sink)
        return output.to(dtype), weights.to(dtype), lse.to(dtype)

    return attention


def lifted_by_key_position(steps: Steps) -> Callable[..., Answer]:
    """ALiBi under a causal flag as slope * key position, which lifts whole rows, and so their log-sum-exp."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        slopes = options.get("alibi_slopes")
        if slopes is None or not options.get("is_causal") or "sinks" in options or "add_zero_attn" in options:
            return steps.answer(query, key, value, **options)
        lifted: list[Tensor] = []

        def add(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
            position = (ahead - ahead[..., :1])[:, None]
            # The first key stands at 0, so that it is as far behind a query as that query's position.
            lifted.append(slopes[:, None] * -ahead[:, None, :, 0])
            return scores + slopes[:, None, None] * position

        output, weights, lse = replace(steps, add_alibi=add).answer(query, key, value, **options)
        return output, weights, lse - lifted[0].to(lse.dtype)

    return attention


def gated_weights(steps: Steps) -> Callable[..., Answer]:
    """The gates multiply the weights, as the masks of heads in BERT do."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
        gates: Tensor | None = options.pop("head_gates", None)

        def mix(weights: Tensor, v: Tensor) -> Tensor:
            return (weights if gates is None else weights * gates.to(v.dtype)[:, None, None]) @ v

        return replace(steps, mix=mix).answer(query, key, value, **options)

    return attention


def group_by_group(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Answer:
    """The query heads of a group laid one after another as the queries of one head, where no other option is given."""
    grouped = options.pop("enable_gqa", False)
    if not grouped or set(options) - {"scale", "softcap"}:
        return Steps().answer(query, key, value, **options)
    batch, heads, length, _ = query.shape
    shared = key.shape[1]
    long = query.reshape(batch, shared, heads // shared * length, -1)
    output, weights, lse = Steps().answer(long, key, value, **options)
    return (
        output.reshape(batch, heads, length, -1),
        weights.reshape(batch, heads, length, -1),
        lse.reshape(batch, heads, length),
    )


@dataclass(frozen=True)
class Style:
    """A way to compute, and the option of an `Extension` that it is about; empty: any."""

    answer: Callable[..., Answer]
    option: str = ""

    def concerns(self, case: Case) -> bool:
        if self.option == "groups":
            return case.sizes.num_kv_heads not in (0, case.sizes.num_heads)
        return not self.option or bool(getattr(case.extension, self.option))


EAGER = Steps(wide=False)
RIGHT: Mapping[str, Style] = {
    "steps": Style(Steps().answer),
    "eager": Style(EAGER.answer),
    "float32 angles": Style(Steps(rotate=by_single_angles).answer, "rotary_base"),
    "eager, float32 angles": Style(Steps(wide=False, rotate=by_single_angles).answer, "rotary_base"),
    "cap by exponentials": Style(Steps(cap=cap_by_exponentials).answer, "softcap"),
    "eager, cap by exponentials": Style(Steps(wide=False, cap=cap_by_exponentials).answer, "softcap"),
    "rescaled for sinks": Style(rescaled_for_sinks(Steps()), "sinks"),
    "lifted by key position": Style(lifted_by_key_position(Steps()), "alibi"),
    "eager, lifted by key position": Style(lifted_by_key_position(EAGER), "alibi"),
    "gated weights": Style(gated_weights(EAGER), "head_gates"),
    "group by group": Style(group_by_group, "groups"),
}


def implementation(name: str, function: Callable[..., Answer]) -> Implementation:
    """A style as an implementation of all that it claims."""
    return Implementation(name, Claims(Scope.OP, FAMILY), torch_op(function, extras=("weights", "log_sum_exp")))


def half_angles(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    """Positions, frequencies and angles in float16."""
    half = rows.shape[-1] // 2
    frequencies = (base ** (-torch.arange(half, dtype=torch.float64) / half)).to(torch.float16)
    return right.rotate_by(rows, positions.to(torch.float16)[..., None] * frequencies)


def two_terms(scores: Tensor, softcap: float) -> Tensor:
    """The first two terms of the cap, which are right for small scores."""
    return scores - scores**3 / (3.0 * softcap**2)


@dataclass(frozen=True)
class Wrong:
    """A wrong step, the case on which it has to show, and whether half types are too coarse to show it."""

    replaced: Mapping[str, Callable[..., Any]]
    case: Case
    wide_only: bool = False

    def shows_in(self, dtype: str) -> bool:
        """Whether it has to show there."""
        return not self.wide_only or dtype in ("float64", "float32")

    def implementation(self, dtype: str) -> Implementation:
        """Half types in their own arithmetic, so that a precision below is one below theirs."""
        steps = Steps(wide=dtype in ("float64", "float32"), **self.replaced)
        return implementation("wrong", steps.answer)


FEW = Case(sizes=Sizes(key_length=5))
CAPPED = replace(FEW, score_std=6.0).extended(softcap=4.0)
FAR = Case(sizes=Sizes(key_length=7, d_k=8)).extended(rotary_base=10.0, query_start=2000)
DROPPED = FEW.extended(dropout=0.3, dropout_seed=3)
ALIBI, RELATIVE = FEW.extended(alibi=True), FEW.extended(relative_bias=2)
SINKS, GATES = FEW.extended(sinks=True), FEW.extended(head_gates=True)


def lowered(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The step with its parameters one precision lower."""
    return lambda x, parameters, *rest: step(x, lower(parameters), *rest)


WRONG: Mapping[str, Wrong] = {
    "angles in float16, position 2000": Wrong({"rotate": half_angles}, FAR),
    "no rotation": Wrong({"rotate": lambda rows, positions, base: rows}, FEW.extended(rotary_base=100.0)),
    "no cap": Wrong({"cap": lambda scores, limit: scores}, CAPPED),
    "cap by two terms": Wrong({"cap": two_terms}, CAPPED),
    "cap one precision lower": Wrong({"cap": lambda scores, limit: lower(right.cap(scores, limit))}, CAPPED, True),
    "no ALiBi": Wrong({"add_alibi": lambda scores, slopes, ahead: scores}, ALIBI),
    "slopes one precision lower": Wrong({"add_alibi": lowered(right.add_alibi)}, ALIBI, True),
    "no relative bias": Wrong({"add_relative": lambda scores, table, ahead: scores}, RELATIVE),
    "relative bias one precision lower": Wrong({"add_relative": lowered(right.add_relative)}, RELATIVE, True),
    "no sink": Wrong({"add_sinks": lambda scores, sinks: scores}, SINKS),
    "sinks one precision lower": Wrong({"add_sinks": lowered(right.add_sinks)}, SINKS, True),
    "no gate": Wrong({"gate": lambda heads, gates: heads}, GATES),
    "gates one precision lower": Wrong({"gate": lowered(right.gate)}, GATES, True),
    "no dropout": Wrong({"drop": lambda weights, rate: weights}, DROPPED),
    "dropped weights one precision lower": Wrong(
        {"drop": lambda weights, rate: lower(right.drop(weights, rate))}, DROPPED, True
    ),
}
"""Each in a way that only sharp bounds can detect, or nothing can."""


def factors_of(problem: Problem) -> NDArray[np.float64] | None:
    """What the styles' dropout multiplies the weights by: (B, H, Lq, Lk), extra keys and the sink included."""
    extension = problem.extension
    if not extension.dropout:
        return None
    rows = (len(problem.query), problem.num_heads, problem.query.shape[-2])
    with seeded(problem):
        ones = torch.ones(*rows, problem.key.shape[-2] + extension.extra_keys, dtype=torch.float64)
        factors = torch.dropout(ones, extension.dropout, train=True).numpy()
    sinks = np.ones((*rows, int("sinks" in problem.extras)))
    return np.concatenate([factors, sinks], -1)


def composed(steps: Steps) -> Callable[[Problem, str], Result]:
    """A module of projections, learned extra keys and an output projection around these steps."""

    def run(problem: Problem, device: str) -> Result:
        given = tensors(problem, device)
        query, key, value = (_heads(problem, given, name) for name in INPUTS)
        learned = iter([given.get("bias_k"), given.get("bias_v")])

        def repeat_kv(rows: Tensor, num_heads: int) -> Tensor:
            shared, row = right.repeat_kv(rows, num_heads), next(learned)
            if row is None:
                return shared
            extra = right.repeat_kv(row.to(rows.dtype).view(1, rows.shape[1], 1, -1), num_heads)
            return torch.cat([shared, extra.expand(len(rows), -1, -1, -1)], 2)

        options: dict[str, Any] = {n: given[n] for n in ("attn_mask", "key_padding_mask") if n in given}
        options |= {"is_causal": problem.causal, "scale": problem.scale, **extra_options(problem, given)}
        with seeded(problem):
            answer = replace(steps, repeat_kv=repeat_kv).answer(query, key, value, **options)
        output = answer[0].transpose(1, 2).flatten(2) @ given["w_o"] + given["b_o"]
        gradients = gradients_of(output, {n: given[n] for n in problem.needs}, given["cotangent"])
        weights, lse = (to_array(t) for t in answer[1:])
        return Result(to_array(output), weights=weights, log_sum_exp=lse, gradients=gradients)

    return run


def _heads(problem: Problem, given: Mapping[str, Tensor], name: str) -> Tensor:
    inputs = given.get(name, given.get("key", given["query"]))
    projected = inputs @ given[f"w_{name[0]}"] + given[f"b_{name[0]}"]
    num_heads = problem.num_heads if name == "query" else problem.num_kv_heads
    return projected.view(*projected.shape[:2], num_heads, -1).transpose(1, 2)
