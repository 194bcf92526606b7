"""Causes: mistakes that are described by a rule rather than by an entry of the catalogue, each a way to answer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.defects import Defect
from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.expected import Solution, solve
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import NOTHING, Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation

if TYPE_CHECKING:
    from attention_conformance.tests.harness.explain.diagnosis.edits import Edit

OPTIONS: Mapping[Feature, Callable[[Problem], bool]] = {
    Feature.VALID_LENS: lambda problem: problem.valid_lens is not None,
    Feature.KEY_PADDING: lambda problem: problem.key_padding_mask is not None,
    Feature.BOOL_MASK: lambda problem: problem.attn_mask is not None and problem.attn_mask.dtype.kind == "b",
    Feature.FLOAT_MASK: lambda problem: problem.attn_mask is not None and problem.attn_mask.dtype.kind != "b",
    Feature.CAUSAL: lambda problem: problem.causal,
}
"""Features that a defect may lack, and how a problem shows that it has them."""
BIASES = ("alibi", "relative_bias", "bucketed_bias")
POSITIONED = ("rotary_base", "rotary_dim", "rotary_tables", "position_ids", "query_start", "query_starts")
IGNORED = ("softcap", *BIASES, "sinks", *POSITIONED, "qk_norm", "head_gates", "output_gates")
INTENDED = "If this is intended, it is no mistake: add --convention "
"""The repair of what is a convention, before its key and value."""
DIGITS = 1e-6
"""How well a factor that is measured on one case has to agree between its elements, relative to itself, in float64."""


@dataclass(frozen=True)
class Hypothesis:
    """One explanation.

    Attributes:
        name: the id of a defect, a convention as the command line spells it, or a cause in words.
        repair: what to do, one sentence.
        answer: the answer of an implementation for which the hypothesis is true; it may raise.
        defect: the catalogue's entry; None for a convention or a cause.
        rank: which of two that explain the same is named: conventions, then the catalogue, then causes.
        affects: whether the answer to a problem may differ from the right one.
        edit: the change of the stages that it is, if it is one.
        several: its answers, where it empties rows for which there is no rule; the first one is `answer`.
        options: those of the command under which it is no mistake, if it may be intended.
    """

    name: str
    repair: str
    answer: Callable[[Problem], Result]
    defect: Defect | None = None
    rank: float = 1
    affects: Callable[[Problem], bool] = lambda problem: True
    edit: Edit | None = None
    several: Callable[[Problem], Iterator[Result]] | None = None
    options: tuple[str, ...] = ()

    def answers(self, problem: Problem) -> Iterator[Result]:
        """What it may answer; one answer for most."""
        yield from [self.answer(problem)] if self.several is None else self.several(problem)

    def applies_to(self, problem: Problem) -> bool:
        """Whether it gets the whole problem: what a defect does not claim it may leave aside without mistake."""
        claimed = None if self.defect is None else self.defect.implementation.claims
        return claimed is None or all(each in claimed for each, given in OPTIONS.items() if given(problem))


def repairs(of: Sequence[str]) -> str:
    """The repairs of several mistakes; what is to be added to the command for conventions is one sentence."""
    text = " ".join(dict.fromkeys(of))
    settings = re.findall(f"{INTENDED}(.+?)\\.(?= |$)", text)
    others = re.sub(f"{INTENDED}.+?\\.( |$)", "", text).strip()
    return " ".join([*filter(None, [others]), *([f"{INTENDED}{' --convention '.join(settings)}."] if settings else [])])


def answering(conventions: Conventions) -> Callable[[Problem], Result]:
    """What an implementation answers that is right under these conventions."""

    def answer(problem: Problem) -> Result:
        parts = {name: part.value for name, part in solve(problem, conventions).parts.items()}
        gradients = {n.removeprefix("gradients."): value for n, value in parts.items() if n.startswith("gradients.")}
        weights, averaged = parts["weights"], parts["averaged_weights"]
        return Result(parts["output"], weights, averaged, parts["log_sum_exp"], gradients)

    return answer


def causes(claimed: Conventions) -> Iterator[Hypothesis]:
    """Options that are ignored, and scales by another extent."""
    right = answering(claimed)

    def changed(name: str, repair: str, change: Callable[[Problem], Problem]) -> Hypothesis:
        return Hypothesis(name, repair, lambda problem: right(change(problem)), rank=2)

    yield changed("causal flag ignored", "Apply the causal flag.", lambda p: p.but(causal=False))
    yield changed("mask ignored", "Apply the attention mask.", lambda p: p.but(attn_mask=None))
    without_padding: Callable[[Problem], Problem] = lambda p: p.but(key_padding_mask=None, valid_lens=None)  # noqa: E731
    yield changed("padding ignored", "Apply the padding mask.", without_padding)
    for option in IGNORED:
        yield changed(f"{option} ignored", f"Apply {option}.", lambda p, option=option: _without(p, option))  # type: ignore[misc]
    window: Callable[[Problem], Problem] = lambda p: _without(p, "window_left", "window_right")  # noqa: E731
    yield changed("window ignored", "Apply the window.", window)
    for name, scale in SCALES.items():
        yield changed(
            f"scores {name}",
            "Divide the scores by the root of the width of a head, d_k, unless the caller gives a scale.",
            lambda p, scale=scale: p if p.scale is not None else p.but(scale=scale(p)),  # type: ignore[misc]
        )
    for shift, seen in ((1, "the next position is seen"), (-1, "the own position is hidden")):
        yield changed(seen, "Show the keys up to the own position.", lambda p, shift=shift: _shifted(p, shift))  # type: ignore[misc]
    for first, second in (("query", "key"), ("key", "value"), ("query", "value")):
        yield changed(
            f"{first} and {second} exchanged",
            "Take query, key and value in this order.",
            lambda p, first=first, second=second: _exchanged(p, first, second),  # type: ignore[misc]
        )


SCALES: dict[str, Callable[[Problem], float]] = {
    "not scaled": lambda problem: 1.0,
    "multiplied by the root of d_k": lambda problem: _width(problem) ** 0.5,
    "divided by d_k": lambda problem: 1.0 / _width(problem),
    "divided by the root of the width of all heads": lambda problem: (problem.num_heads * _width(problem)) ** -0.5,
    "divided by the root of the width of a value": lambda problem: max(int(problem.value.shape[-1]), 1) ** -0.5,
    "divided by the root of the number of keys": lambda problem: max(int(problem.key.shape[-2]), 1) ** -0.5,
    "divided by the root of the number of queries": lambda problem: max(int(problem.query.shape[-2]), 1) ** -0.5,
    "divided by the root of the number of heads": lambda problem: max(problem.num_heads, 1) ** -0.5,
}
"""Wrong default scales, by what happens to the scores."""


def _width(problem: Problem) -> int:
    """d_k."""
    if problem.scope is Scope.OP:
        return int(problem.query.shape[-1])
    return int(problem.parameters["w_q"].shape[1]) // problem.num_heads


def _shifted(problem: Problem, shift: int) -> Problem:
    """The causal triangle as a mask, moved to later keys.

    Raises:
        ValueError: there is no triangle at the first key, or another mask.
    """
    if not problem.causal or problem.attn_mask is not None or problem.extension != NOTHING:
        return problem
    if problem.query.shape[-2] != problem.key.shape[-2]:
        raise ValueError("conventions rule which corner the triangle starts from")
    visible = np.tri(problem.query.shape[-2], problem.key.shape[-2], shift, dtype=bool)
    return problem.but(causal=False, attn_mask=visible)


def _without(problem: Problem, *options: str) -> Problem:
    known = {field.name for field in fields(NOTHING)}
    plain = {option: getattr(NOTHING, option) for option in options if option in known}
    given = {name for option in CASE_OPTIONS if option.setting in options for name in option.keywords}
    return problem.but(
        extension=replace(problem.extension, **plain),
        extras={name: array for name, array in problem.extras.items() if name not in given},
        needs=tuple(name for name in problem.needs if name not in given),
    )


def _exchanged(problem: Problem, first: str, second: str) -> Problem:
    if problem.scope is not Scope.OP:
        raise ValueError("a module has other inputs")
    arrays = problem.arrays()
    return problem.with_arrays({first: arrays[second], second: arrays[first]})


def fitted_causes(each: Observation, claimed: Conventions) -> Iterator[Hypothesis]:
    """Causes with one number, which is measured on this failing observation, and has to hold in the others."""
    if each.got is None or each.problem.scope is not Scope.OP or each.errors.get("output", 0.0) <= 1.0:
        return
    if not isinstance(each.got.output, np.ndarray) or each.got.output.shape != each.expected["output"].value.shape:
        return
    solution = solve(each.problem.forward_only(), claimed)
    with np.errstate(all="ignore"):
        quotient = each.got.output.astype(np.float64) / solution.parts["output"].value
    if (factor := _constant(quotient, each)) is not None:
        same = np.asarray(factor)
        repair = "Return the weighted sum as it is."
        yield Hypothesis(f"output multiplied by {factor:.6g}", repair, _scaled(claimed, lambda _: same), rank=2)
    for name, sums in SUMS.items():
        with np.errstate(all="ignore"):
            epsilon = _constant(sums(solution)[..., None] * (1.0 / quotient - 1.0), each)
        if epsilon is not None:
            name = f"{epsilon:.3g} added to the sum of the exponentials{name}"
            answer = _scaled(claimed, partial(_share, sums, epsilon))
            yield Hypothesis(name, "Divide by the sum of the exponentials alone.", answer, rank=2)


def factors_of_gradients(each: Observation, parts: Sequence[str], claimed: Conventions) -> Iterator[Hypothesis]:
    """These gradients multiplied by one number, which is measured on this observation; nothing else is wrong."""
    names = [part.removeprefix("gradients.") for part in parts if part.startswith("gradients.")]
    if each.got is None or len(names) != len(parts) or not set(names) <= each.got.gradients.keys():
        return
    expected = {name: each.expected[f"gradients.{name}"].value for name in names}
    if any(each.got.gradients[name].shape != right.shape for name, right in expected.items()):
        return
    with np.errstate(all="ignore"):
        found = [_constant(each.got.gradients[n].astype(np.float64) / right, each) for n, right in expected.items()]
    known = [number for number in found if number is not None]
    if len(known) < len(found) or not np.allclose(known, known[0], rtol=math.sqrt(DIGITS), atol=0.0):
        return
    factor = known[0]
    right, where = answering(claimed), " and the ".join(f"gradient of {name.replace('_', ' ')}" for name in names)

    def answer(problem: Problem) -> Result:
        whole = right(problem)
        scaled = {name: whole.gradients[name] * factor for name in names if name in whole.gradients}
        return replace(whole, gradients={**whole.gradients, **scaled})

    negated = abs(factor + 1.0) < math.sqrt(DIGITS)
    words = f"{where} negated" if negated else f"{where} multiplied by {factor:.6g}"
    yield Hypothesis(words, "Look for a sign or a factor in the backward pass.", answer, rank=2)


def _share(sums: Callable[[Solution], Floats], epsilon: float, solution: Solution) -> Floats:
    """What is left of an output (B, H, Lq) where its denominator is larger by epsilon."""
    return sums(solution) / (sums(solution) + epsilon)


def _scaled(claimed: Conventions, factor: Callable[[Solution], Floats]) -> Callable[[Problem], Result]:
    """Right answers, multiplied by a factor for each query, (B, H, Lq) or a single one; the output alone."""

    def answer(problem: Problem) -> Result:
        solution = solve(problem.forward_only(), claimed)
        return Result(solution.parts["output"].value * factor(solution)[..., None])

    return answer


SUMS: dict[str, Callable[[Solution], Floats]] = {
    "": lambda solution: np.exp(solution.trace.log_sum_exp - solution.trace.top[..., 0]),
    " without the maximum": lambda solution: np.exp(solution.trace.log_sum_exp),
}
"""The denominators (B, H, Lq): with the row maximum subtracted, and without."""


def _constant(values: Floats, each: Observation) -> float | None:
    """The one number that all elements are, as far as their digits go; None where they differ."""
    finite = values[np.isfinite(values)]
    if finite.size < 2 or finite.size < values.size // 2:
        return None
    middle = float(np.median(finite))
    spread = DIGITS if each.problem.dtype == "float64" else math.sqrt(DIGITS)
    steady = np.abs(finite - middle) <= spread * abs(middle)
    return middle if middle not in (0.0, 1.0) and bool(np.mean(steady) > 0.9) else None
