"""Other forms: modules that are no attention with a mistake, but something else, of which no answer can be expected."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import torch

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always import rows, with_premises
from attention_conformance.implementations.discovery.always_scores import has_unknown_scores
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented_equations import states_scaled
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.narrow_windows import refuse_chunks_apart
from attention_conformance.implementations.discovery.modules.promises import has_published_interface, is_unscaled
from attention_conformance.implementations.discovery.modules.template import NORM_AXES, Variant, output_of_problem
from attention_conformance.implementations.discovery.probe import Floats, near
from attention_conformance.implementations.discovery.signatures import REMEDY
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES
from attention_conformance.spec.problem import Array, Problem

MUCH = 0.25
"""The share of an answer that is more than a mistake."""
SCALES, POINTS, TIMES = (1.0 / 8.0, 8.0), 25, 5
"""Factors of the usual scale that are looked for, how many are tried between two, and how often between the nearest."""
EXPLAINED, SAME_FACTOR = 1e-3, 1e-2
"""The share of an answer that a factor may leave over, and how far two of them may be apart that are the same."""

SCALED_ROTATIONS = re.compile(r"yarn|\bntk|(rope|rotary)_?scal|llama3_?rope|longrope", re.IGNORECASE)
"""What the text of a class has whose rotations are slower than usual, by rules that the suite does not know."""
OF_SCORES = re.compile(r"\w*l2_?norm\w*|\bF\.normalize|(?<!self)\.norm(?=\()|\w*temperature\w*", re.IGNORECASE)
"""What the text of a class has whose scores may follow rules of their own: norms without gains, and factors."""
WIDTH = r"(?:d_?k|\w*head\w*|\w*dim\w*|size\(-1\)|shape\[-1\])"
ROOT = re.compile(rf"(?<!r)sqrt\([^()\n]*\b{WIDTH}|\b{WIDTH}\)? ?\*\* ?\(?-? ?0?\.5")
"""The root of a head's width in code."""


def _has_norms(variant: Variant) -> bool:
    """Whether its scores are those of norms that are known, or of these with a mistake."""
    return (variant.known or variant.slip in NORM_AXES) and (variant.cosine or variant.normalised)


def refuse_other_forms(make: Constructor, call: ModuleCall, check: ClaimCheck, variant: Variant | None) -> None:
    """Refuses what answers as no attention that is known, and has more in it, or elsewhere, than a mistake explains.

    Raises:
        TargetError: it is such a one.
    """
    published = isinstance(make.kind, type) and has_published_interface(make.kind)
    if published:
        return
    refuse_chunks_apart(make, check)
    named = "" if variant is not None and _has_norms(variant) else _names_scores(make.kind)
    # heads that are small enough to read it may be too small for a part of them
    if named and has_unknown_scores(with_premises(check, NO_PREMISES)[0]):
        raise TargetError(f"its text names {named!r}, and its scores are none that the suite knows: {REMEDY}")
    if variant is not None and (variant.known or is_unscaled(make.kind, variant)):
        return
    if variant is None:
        _refuse_small_heads(make, call)
    problem = _problem(check)
    if problem is None:
        return
    if _scales_rotations(make.kind) and with_premises(check, NO_PREMISES)[0].claims.premises.rotary_base is None:
        raise TargetError(f"its text names scaled rotations, whose angles are unknown: {REMEDY}")
    if _has_more_than_values(check, problem):
        raise TargetError(f"its answer depends on its inputs without their values, too: {REMEDY}")
    if all(_reads_elsewhere(check, each) for each in (problem, _problem(check, 1) or problem)):
        raise TargetError(f"which of its weights are those of the values is unknown: {REMEDY}")
    if make.held and (scale := _own_scale(check)) and not (_is_slip(scale, problem) and _is_scaled(make.kind)):
        given = ", ".join(repr(path) for path in make.held)
        raise TargetError(f"its scores are {scale:.3g} times the usual ones, next to {given}: {REMEDY}")


def _names_scores(kind: object) -> str:
    """What the text of a class names that changes scores by rules of its own; empty where nothing is named."""
    found = OF_SCORES.search(code_of(kind))
    return found.group() if found else ""


def _is_scaled(kind: object) -> bool:
    """Whether its text states that its scores are scaled, or its forward takes the root of a width for something."""
    return states_scaled(kind) or ROOT.search(code_of(getattr(kind, "forward", None))) is not None


def _scales_rotations(kind: object) -> bool:
    return bool(SCALED_ROTATIONS.search(code_of(kind)))


def _refuse_small_heads(make: Constructor, call: ModuleCall) -> None:
    """Refuses what answers, but not at the sizes at which its form is looked for, so that only its names are known.

    Raises:
        TargetError: it raises there.
    """
    with torch.random.fork_rng(devices=[]):
        module = in_mode(built(make), False)
        outcome = safe_call(lambda: call.plain(module, [torch.randn(2, make.tokens, make.width)] * 3, make.heads))
    if outcome.error:
        width = make.width // make.heads
        raise TargetError(f"what it does is unknown, as heads of {width} components raise {outcome.error}: {REMEDY}")


def _problem(check: ClaimCheck, tokens: int = 6, heads: int = 3) -> Problem | None:
    case = PLAIN.sized(query_length=tokens, key_length=tokens, num_heads=heads, num_kv_heads=0)
    fitted = fit(case, check.claims)
    return None if isinstance(fitted, Unsupported) else build(fitted, check.dtype).forward_only()


def _zeros(problem: Problem, *names: str) -> Problem:
    arrays = problem.arrays()
    return problem.with_arrays({name: np.zeros_like(arrays[name]) for name in names if name in arrays})


def _has_more_than_values(check: ClaimCheck, problem: Problem) -> bool:
    """Whether its inputs reach its answer without any values, nearly as much as by them; a little is a mistake."""
    without = _zeros(problem, "w_v", "b_v")
    arrays = problem.arrays()
    moved = without.with_arrays({name: 0.5 - arrays[name] for name in INPUTS if name in arrays})
    whole, one, other = (rows(check, each) for each in (problem, without, moved))
    if whole is None or one is None or other is None or near(whole, one, check.dtype):
        return False
    return float(np.abs(one - other).max()) > MUCH * float(np.abs(whole - one).max())


def _reads_elsewhere(check: ClaimCheck, problem: Problem) -> bool:
    """Whether tokens that are all alike, and scores that are all equal, give something else than their projected value.

    Whatever normalises the weights, along whatever axis, only multiplies that.
    """
    arrays = problem.arrays()
    alike = {name: np.repeat(arrays[name][:, :1], arrays[name].shape[1], 1) for name in INPUTS if name in arrays}
    biases = [name for name in problem.parameters if name.startswith("b_")]
    equal = _zeros(problem, "w_q", "w_k", *biases).with_arrays(alike)
    got = rows(check, equal)
    return got is not None and not any(_multiple(got, each) for each in _projected(equal))


def _projected(problem: Problem) -> Iterator[Floats]:
    """The value of each token through the weights of values and of the output, or through the former alone."""
    arrays: dict[str, Array] = problem.arrays()
    value = arrays.get("value", arrays.get("key", arrays["query"])).astype(np.float64)
    heads = value @ arrays["w_v"].astype(np.float64)
    times = problem.num_heads // problem.num_kv_heads
    each = heads.reshape(*heads.shape[:2], problem.num_kv_heads, -1).repeat(times, 2)
    yield each.reshape(*heads.shape[:2], -1)
    if "w_o" in arrays:
        yield each.reshape(*heads.shape[:2], -1) @ arrays["w_o"].astype(np.float64)


def _multiple(got: Floats, expected: Floats) -> bool:
    """Whether some row of an answer, in all samples, is but for a little a multiple of the expected one."""
    if got.shape != expected.shape:
        return False
    times = (got * expected).sum(-1, keepdims=True) / (expected * expected).sum(-1, keepdims=True)
    rest = np.abs(got - times * expected).max((0, 2))
    return bool((rest <= MUCH * np.abs(got).max((0, 2))).any())


def _own_scale(check: ClaimCheck) -> float:
    """The factor of the usual scale that explains its answers, with few heads as with many; 0 where none does.

    One that depends on the number of heads is that of all of them together, a mistake.
    """
    problems = [_problem(check, heads=heads) for heads in (2, 3)]
    few, many = (0.0 if each is None else _factor(check, each) for each in problems)
    return many if math.isclose(few, many, rel_tol=SAME_FACTOR) else 0.0


def _is_slip(scale: float, problem: Problem) -> bool:
    """Whether a factor of the usual scale is that of scores that are not scaled, or scaled twice."""
    root = math.sqrt(problem.parameters["w_q"].shape[-1] / problem.num_heads)
    return any(math.isclose(scale, each, rel_tol=SAME_FACTOR) for each in (root, 1.0 / root))


def _factor(check: ClaimCheck, problem: Problem) -> float:
    """The factor of the usual scale that explains an answer; 0 where none does."""
    got = rows(check, problem)
    width = problem.parameters["w_q"].shape[-1] // problem.num_heads
    if got is None or problem.num_heads != problem.num_kv_heads:
        return 0.0

    def off(factor: float, causal: bool) -> float:
        return float(np.abs(output_of_problem(problem, factor * width**-0.5, causal) - got).max())

    for causal in (False, True):
        low, high = (math.log(each) for each in SCALES)
        for _ in range(TIMES):
            tried = np.linspace(low, high, POINTS)
            at = int(np.argmin([off(math.exp(each), causal) for each in tried]))
            low, high = tried[max(at - 1, 0)], tried[min(at + 1, POINTS - 1)]
        best = math.exp((low + high) / 2)
        explained = off(best, causal) < EXPLAINED * float(np.abs(got).max())
        if explained and not math.isclose(best, 1.0, rel_tol=SAME_FACTOR):
            return best
    return 0.0
