"""What documentation states of a candidate, and binds it or is no mistake of it: precision, shared heads, weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import answer, safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, PROBED
from attention_conformance.implementations.discovery.documented import sentences_of, states_wide_scores
from attention_conformance.implementations.discovery.documented_equations import (
    is_for_inference,
    states_own_unseen,
    states_unscaled,
    states_zero_key,
)
from attention_conformance.implementations.discovery.documented_rows import states_zeros_without_keys
from attention_conformance.implementations.discovery.mask_notes import EMPTY_ROWS, NOT_AS_STATED
from attention_conformance.implementations.discovery.probe import HALF, Floats, near
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import DefaultScale, EmptyRow, GroupOrder, LogBase, ProductPrecision
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES, Premise
from attention_conformance.spec.problem import Problem

WIDEST = "float64"
LOGS = r"\b(?:lse\w*|log[-_ ]?sum[-_ ]?exps?)\b"
NARROW = r"\b(?:float32|fp32|single precision)\b(?! (?:or|and) float64)"
NARROW_LOGS = re.compile(rf"{LOGS}(?:(?!\bnot\b|\bdtype of\b).){{0,60}}{NARROW}|{NARROW} {LOGS}", re.IGNORECASE)
"""Words for a log-sum-exp in float32, whatever the inputs are."""
TWO = r"(?:\bbase[- ](?:2|two)\b|\blog2\b(?! ?\(e\b))"
BASE_TWO = re.compile(rf"{LOGS}.{{0,60}}{TWO}|\bbase[- ](?:2|two) {LOGS}", re.IGNORECASE)
"""Words for one in base 2."""
NATURAL = re.compile(r"\b(?:natural|never|not|converted|internal\w*)\b", re.IGNORECASE)
"""Words in a sentence that speaks of base 2 and of logarithms to another one."""
TILED = re.compile(
    r"\bheads? (\w+) (?:uses?|reads?|shares?|takes?|attends? to|belongs? to|is) (?:(?:the )?[\w/]+ heads? )?"
    r"\1 ?(?:%|mod(?:ulo)?\b) ?\w+(?! ?(?:==|must))",
    re.IGNORECASE,
)
"""Words for heads of keys that are repeated one after another: "query head h uses kv head h % Hkv"."""
OTHER_WEIGHTS = re.compile(
    r"(?<!unlike )(?<!not )(?<!than )(?<!instead of )(?<!such as )(?<!like )(?<!versus )(?<!vs )"
    r"\b(sparsemax|entmax|softpick|sinkhorn|(?:squared|euclidean|l2) (?:(?:euclidean|l2) )?distances?"
    r"|(?:sigmoid|relu|linear|kernel|rbf|slot|gaussian[- ]kernel|l2|euclidean|distance|additive|bahdanau|polynomial"
    r"|differential|stick[- ]breaking|talking[- ]heads?|nystr[oö]m|hyperbolic|retention|fourier) attention)\b",
    re.IGNORECASE,
)
"""Names of what weighs keys by no softmax of their products with queries."""


def as_documented(made: Implementation, loaded: object, chosen: Collection[str], device: str) -> Implementation:
    """The candidate with what its documentation states, but for conventions that are chosen by name.

    Raises:
        TargetError: by its documentation it is another function of queries and keys, and it is seen to be one.
    """
    sentences = sentences_of(loaded)
    _refuse_others(made, loaded, device)
    made = _with_zero_key(made, loaded) if made.claims.premises.zero_attn else made
    if "default-scale" not in chosen and states_unscaled(loaded) and _is_softmax(made, device, 0.0):
        made = _choosing(made, "scores are not scaled", default_scale=DefaultScale.ONE)
    if Feature.CORE in made.claims and states_wide_scores(loaded):
        wide = replace(made.claims, features=made.claims.features | {Feature.WIDE_SCORES})
        made = _stating(made, "its scores are in float32 (wide-scores)", wide)
    if Feature.GROUPED in made.claims and "group-order" not in chosen and any(map(TILED.search, sentences)):
        made = _choosing(made, "heads of keys are repeated one after another", group_order=GroupOrder.TILED)
    made = _with_zeros_without_keys(made, loaded, chosen)
    if Feature.GRADIENTS in made.claims and is_for_inference(loaded) and _has_no_backward(made, device):
        why = "by its documentation it is for inference, and its backward pass raises"
        made = _without(made, Feature.GRADIENTS, why)
    return _with_logs(made, sentences, chosen) if Feature.LOG_SUM_EXP in made.claims else made


def _with_zeros_without_keys(made: Implementation, loaded: object, chosen: Collection[str]) -> Implementation:
    """With zeros for rows that masks empty, where it states these plainly and is seen to give other answers to all."""
    free = not any("row" in key for key in chosen)
    if not free or NOT_AS_STATED not in made.findings or not states_zeros_without_keys(loaded):
        return made
    findings = {name: found for name, found in made.findings.items() if name != NOT_AS_STATED}
    names = [name.replace("_", "-") for feature, name in EMPTY_ROWS.items() if feature in made.claims]
    conventions = made.claims.conventions.claiming(dict.fromkeys(names, str(EmptyRow.ZEROS)))
    stated = "a row without keys gets zeros, which it is not seen to get"
    return _stating(replace(made, findings=findings), stated, replace(made.claims, conventions=conventions))


def _refuse_others(made: Implementation, loaded: object, device: str) -> None:
    """Raises a TargetError for what no clause of the suite is about."""
    name = re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])", " ", getattr(loaded, "__name__", ""))
    about = "which no clause of the suite is about"
    other = next(filter(None, map(OTHER_WEIGHTS.search, (name, *sentences_of(loaded)[:1]))), None)
    if other is not None and _is_softmax(made, device, -0.5, 0.0) is False:
        raise TargetError(f"by its documentation it weighs keys by {other[1]!r}, {about}")
    if states_own_unseen(loaded) and _sees_no_first_key(made, device):
        raise TargetError(f"by its documentation a query does not see its own key, {about}")


def _without(made: Implementation, feature: Feature, why: str) -> Implementation:
    claims = replace(made.claims, features=made.claims.features - {feature})
    return _noting(replace(made, claims=claims), unclaimed(feature, why))


def _noting(made: Implementation, note: str) -> Implementation:
    return replace(made, about=f"{made.about}; {note}", unclaimed=(*made.unclaimed, note))


def _with_logs(made: Implementation, sentences: Sequence[str], chosen: Collection[str]) -> Implementation:
    """With what these sentences state of its log-sum-exp."""
    binary = any(BASE_TWO.search(each) and not NATURAL.search(each) for each in sentences)
    if binary and "log-sum-exp-base" not in chosen:
        made = _choosing(made, "its log-sum-exp is in base 2", log_sum_exp_base=LogBase.TWO)
    rest = tuple(dtype for dtype in made.claims.dtypes if dtype != WIDEST)
    in_float32 = made.claims.conventions.product_precision is ProductPrecision.FLOAT32  # its bounds hold for it
    if in_float32 or rest == made.claims.dtypes or not rest or not any(map(NARROW_LOGS.search, sentences)):
        return made
    narrow = replace(made, claims=replace(made.claims, dtypes=rest))
    return _noting(narrow, unclaimed(WIDEST, "by its documentation its log-sum-exp is in float32"))


def _choosing(made: Implementation, stated: str, **convention: DefaultScale | GroupOrder | LogBase) -> Implementation:
    """With a convention, and what is stated of it."""
    ((name, choice),) = convention.items()
    conventions = replace(made.claims.conventions, **convention)  # type: ignore[arg-type]
    text = f"{stated} ({name.replace('_', '-')}={choice})"
    return _stating(made, text, replace(made.claims, conventions=conventions))


def _stating(made: Implementation, stated: str, claims: Claims) -> Implementation:
    return replace(made, stated=(*made.stated, f"by its documentation {stated}"), claims=claims)


def _problem(made: Implementation, case: Case = PLAIN) -> Problem | None:
    """The case in the first dtype in which candidates are looked at; None where it is none of its cases."""
    fitted = fit(case, made.claims)
    dtype = next((each for each in PROBED if each in made.claims.dtypes), "")
    return None if isinstance(fitted, Unsupported) or not dtype else build(fitted, dtype)


def _output(made: Implementation, problem: Problem, device: str) -> Floats | None:
    """Its output without gradients; None where it raises."""
    found = safe_call(partial(answer, made.run, problem.forward_only().fresh(), device)).value
    return None if found is None else found.output.astype(np.float64)


def _is_softmax(made: Implementation, device: str, *powers: float) -> bool | None:
    """Whether its answer to a plain problem is that of a softmax of scores times one of these powers of d_k.

    None: it raises, or always does something else, too, than hiding later keys.
    """
    causal = made.claims.premises.causal
    only = replace(made.claims.premises, causal=False) == NO_PREMISES
    problem = _problem(made, PLAIN.sized(query_length=5, key_length=5) if causal else PLAIN) if only else None
    output = None if problem is None else _output(made, problem, device)
    if problem is None or output is None:
        return None
    if problem.scope is not Scope.OP:
        # imports torch, without which functions of NumPy are looked at
        from attention_conformance.implementations.discovery.modules.template import output_of_problem

        width = problem.parameters["w_q"].shape[-1] // problem.num_heads
        expected = (output_of_problem(problem, width**power, causal) for power in powers)
        return any(np.allclose(output, each, rtol=HALF, atol=HALF) for each in expected)
    query, key, value = (np.asarray(x, np.float64) for x in (problem.query, problem.key, problem.value))
    scores = query @ key.swapaxes(-1, -2)
    hidden = np.triu(np.full(scores.shape[-2:], -np.inf), 1) if causal else 0.0
    usual = (_softmax(scores * query.shape[-1] ** power + hidden) @ value for power in powers)
    return any(near(output, each, problem.dtype) for each in usual)


def _sees_no_first_key(made: Implementation, device: str) -> bool:
    """Whether another first token changes nothing of the first query's answer."""
    problem = _problem(made, PLAIN.sized(query_length=5, key_length=5))
    if problem is None:
        return False
    other = {name: array.copy() for name, array in problem.arrays().items() if name in INPUTS}
    for array in other.values():
        array[..., 0, :] = 1.0 - 2.0 * array[..., 0, :]
    one, two = (_output(made, each, device) for each in (problem, problem.with_arrays(other)))
    return one is not None and two is not None and np.array_equal(one[..., 0, :], two[..., 0, :], equal_nan=True)


def _has_no_backward(made: Implementation, device: str) -> bool:
    """Whether it answers a plain problem, and its backward pass raises, as where a cache is written in place."""
    problem = _problem(made)
    if problem is None or _output(made, problem, device) is None:
        return False
    return bool(safe_call(partial(answer, made.run, problem.fresh(), device)).error)


def has_zero_key(made: Implementation, loaded: object, device: str) -> bool:
    """Whether it states that each softmax has one more term, exp(0), and its weights are seen to sum to less than one.

    They are seen where all tokens are equal, and yet more of them change the answer.
    """
    stated = not made.claims.premises.zero_attn and states_zero_key(loaded)
    problem = _problem(made) if stated else None
    if problem is None:
        return False
    equal = {n: np.broadcast_to(x[..., :1, :], x.shape) for n, x in problem.arrays().items() if n in INPUTS}
    fewer = {name: array[..., :2, :] for name, array in equal.items()}
    many, few = (_output(made, problem.with_arrays(each), device) for each in (equal, fewer))
    return many is not None and few is not None and not near(many[..., -1, :], few[..., -1, :], problem.dtype)


@dataclass(frozen=True)
class Unweighted:
    """A `run` whose result holds no weights."""

    run: Callable[[Problem, str], Result]

    def __call__(self, problem: Problem, device: str) -> Result:
        return replace(self.run(problem, device), weights=None, averaged_weights=None)


def _with_zero_key(made: Implementation, loaded: object) -> Implementation:
    """What has that premise: whether the weights that it returns are of the key of zeros, too, is not known."""
    for feature in (Feature.WEIGHTS, Feature.LOG_SUM_EXP):
        if feature in made.claims:
            made = _without(made, feature, "whether it is of the key of zeros, too, is not known")
    others = {name: Unweighted(run) for name, run in made.alternatives.items() if "weights" not in name}
    left = frozenset() if others else frozenset({Feature.ALTERNATIVES})
    claims = replace(made.claims, features=made.claims.features - left)
    made = replace(made, alternatives=others, claims=claims)
    stated = f"a key of zeros takes part in each softmax ({Premise.ZERO_ATTN})"
    return _stating(made, stated, claims) if states_zero_key(loaded) else made


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Floats = powers / powers.sum(-1, keepdims=True)
    return weights
