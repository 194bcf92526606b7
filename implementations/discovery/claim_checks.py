"""Claim checks: a few small calls that show which claims a candidate can have, before the suite judges them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.api.contract import Claims, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CallOutcome, guarded, repeatable, safe_call
from attention_conformance.implementations.api.watched_calls import aside
from attention_conformance.implementations.discovery.extra_options import CAUSAL_ONLY, DROPOUT, EXTRA_OPTIONS
from attention_conformance.implementations.discovery.extras import Extra, find_extras
from attention_conformance.implementations.discovery.probe import COARSE, HALF, NO_ANSWER, Floats, Recorder, near, wide
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.spec.conventions import EmptyRow, ReturnedWeights
from attention_conformance.spec.features import NOTHING, Feature, Packing, PositionIds, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import DTYPES, Problem

torch = optional("torch")

AdapterRun = Callable[..., Result]

PLAIN = Case(sizes=Sizes(batch=2, num_heads=3, query_length=16, key_length=16, d_k=16, d_v=16))
"""Sizes that every kernel should take: whether odd ones work is for the suite to find out."""
EXTENTS = {"B": 2, "H": 3, "Q": 16, "K": 16}
EVERYWHERE = frozenset(
    {Feature.CORE, Feature.HEADS, Feature.GRADIENTS, Feature.VIEWS, Feature.EMPTY_SIZES, Feature.ALTERNATIVES}
)
"""What every candidate is assumed to offer, unless a call shows that it does not."""
MASKED = replace(PLAIN, mask=MaskKind.BOOL)
BIASED = replace(PLAIN, mask=MaskKind.FLOAT)
CAUSAL = replace(PLAIN, causal=True)

OTHER_WIDTHS = (8, 32, 64, 128)
"""Of values, where those of queries and keys are others."""

OPTION_CASES = {
    Feature.GROUPED: PLAIN.sized(num_heads=6, num_kv_heads=3),
    Feature.DROPOUT: replace(PLAIN, extension=DROPOUT),
    Feature.EVALUATION: replace(PLAIN, extension=replace(DROPOUT, evaluation=True)),
    **{o.feature: replace(PLAIN, extension=o.example, causal=o.feature in CAUSAL_ONLY) for o in EXTRA_OPTIONS},
}
"""A case for each claim beyond the core; whether the answer is right is for the suite to find out."""
NOT_REPEATED = "it answers fewer key heads, and repeats them in no known order"
PROBED = tuple(dtype for dtype in ("float32", "float64", "bfloat16", "float16") if dtype in DTYPES)
"""The dtypes in which a candidate is probed: the first in which it answers."""
NO_EFFECT = "its **kwargs takes it, and nothing changes"
RAISES = "its **kwargs takes it, and it raises"


@dataclass(frozen=True)
class ClaimCheck:
    """A way to call a candidate, the claims that it may have at most, and where it runs.

    Attributes:
        function: what is called.
        adapt: makes a `run` of it, such as `torch_op`.
        claims: cases are fitted to them.
        dtype: in which it is probed.
        stated: what is taken as it was seen; see `Implementation`.
    """

    function: Callable[..., object]
    adapt: Callable[[Callable[..., Any]], AdapterRun]
    claims: Claims
    device: str = "cpu"
    dtype: str = PROBED[0]
    stated: tuple[str, ...] = ()

    def stating(self, *seen: str) -> ClaimCheck:
        """The same with more that is taken as it was seen, each once."""
        return replace(self, stated=tuple(dict.fromkeys((*self.stated, *seen))))

    def without(self, features: Set[Feature]) -> ClaimCheck:
        """The same with fewer claims."""
        return replace(self, claims=replace(self.claims, features=self.claims.features - features))

    def claiming(self, features: Set[Feature]) -> ClaimCheck:
        """The same with more claims."""
        return replace(self, claims=replace(self.claims, features=self.claims.features | features))

    def in_first_dtype(self) -> ClaimCheck:
        """The same, probed in the first dtype in which it answers the plain case, if there is one."""
        attempts = (replace(self, dtype=dtype) for dtype in PROBED)
        return next((each for each in attempts if not each.run(PLAIN).error), self)

    def run(self, case: Case, dtype: str = "", gradients: bool = False) -> CallOutcome[Any]:
        """What the candidate returns for a case, as near as the claims allow it. Whether it is right is not judged."""
        fitted = fit(case, self.claims)
        if isinstance(fitted, Unsupported):
            return CallOutcome(error=fitted.reason)
        problem = build(fitted, dtype or self.dtype)
        return self.answer(problem if gradients else problem.forward_only())

    def answer(self, problem: Problem) -> CallOutcome[Any]:
        """What the candidate returns for a problem."""
        recorder = Recorder(self.function)
        outcome = repeatable(lambda: self.adapt(recorder)(problem.fresh(), self.device))
        if recorder.answer is not NO_ANSWER:
            return CallOutcome(recorder.answer)  # an error of the adapter after the call is none of the candidate
        return outcome if outcome.error else CallOutcome()

    def ignores(self, case: Case) -> bool:
        """Whether it answers with the very numbers of the case without mask, lengths, causal flag and scale.

        Where the case has something beyond the core, it is that which is left out, and not what it presumes.
        """
        fitted = fit(case, self.claims)
        if isinstance(fitted, Unsupported):
            return False
        problem = build(fitted, self.dtype).forward_only()
        core = problem.but(attn_mask=None, key_padding_mask=None, valid_lens=None, causal=False, scale=None)
        presumed = next((o.presumed for o in EXTRA_OPTIONS if o.example == case.extension), NOTHING)
        without = core if case.extension == NOTHING else replace(problem, extension=presumed, extras={})
        first, second = self.answer(problem), self.answer(without)
        return not first.error and not second.error and equal_outputs(first, second)

    def succeeds(self, run: AdapterRun) -> bool:
        """Whether another `run` answers the plain case without an exception."""
        return not self.error_of(run)

    def error_of(self, run: AdapterRun, case: Case = PLAIN, gradients: bool = False) -> str:
        """What another `run` raises for a case; empty if it answers, or if the claims exclude such a case."""
        fitted = fit(case, self.claims)
        if isinstance(fitted, Unsupported):
            return ""
        problem = build(fitted, self.dtype)
        given = problem if gradients else problem.forward_only()
        return repeatable(lambda: run(given.fresh(), self.device)).error


def parts(outcome: CallOutcome[Any]) -> tuple[Any, ...]:
    """The answer as a tuple of output and extras."""
    return outcome.value if isinstance(outcome.value, tuple) else (outcome.value,)


def output_of(outcome: CallOutcome[Any], position: int = 0) -> Floats:
    """The output of an answer, or what is returned at another position, in float64.

    Raises:
        CandidateError: it is no array of numbers, or one that cannot be read.
    """
    return guarded(aside(partial(wide, parts(outcome)[position])))


def near_outputs(first: CallOutcome[Any], second: CallOutcome[Any], dtype: str) -> bool:
    """Whether two outputs are the same to half of the digits of the dtype: equal but for rounding."""
    return near(output_of(first), output_of(second), dtype)


def equal_outputs(first: CallOutcome[Any], second: CallOutcome[Any]) -> bool:
    """Whether two outputs hold the same numbers."""
    return bool(np.array_equal(output_of(first), output_of(second), equal_nan=True))


def check_answer(outcome: CallOutcome[Any], is_kind: Callable[[object], bool], expected: str) -> None:
    """Refuses an answer that is neither an array of the kind nor a tuple that begins with one.

    Raises:
        TargetError: the answer is something else, or there is none.
    """
    if outcome.error:
        raise TargetError(f"it cannot be called, in any of {', '.join(PROBED)}: {outcome.error}")
    answer = outcome.value
    if not parts(outcome) or not is_kind(parts(outcome)[0]):
        described = "None" if answer is None else f"an object of type {type(answer).__name__}"
        if isinstance(answer, tuple):
            described = f"a tuple of ({', '.join(type(part).__name__ for part in answer)})"
        raise TargetError(f"it returned {described}: return {expected}, or a tuple that begins with it")


def check_not_alone(outcome: CallOutcome[Any], expected: str) -> None:
    """Refuses a function's tuple of one, which is a slip of a comma; modules of published models return them.

    Raises:
        TargetError: the answer is such a tuple.
    """
    if isinstance(outcome.value, tuple) and len(outcome.value) == 1:
        raise TargetError(f"it returned a tuple of one: return {expected}, without a tuple around it")


def option_claims(check: ClaimCheck, named: Set[Feature]) -> tuple[ClaimCheck, list[str]]:
    """The check without the claims beyond the core that a call refutes, and notes on these.

    Args:
        check: claims everything that is possible.
        named: the features for which the candidate has a parameter. Such a one is claimed if a call with it succeeds.
            What only a **kwargs takes has to change something as well; grouped heads without a parameter are claimed
            if key heads are repeated.
    """
    refuted = {f: why for f in OPTION_CASES if f in check.claims and (why := _refuted(f, check, named))}
    notes = [unclaimed(f, why) for f, why in refuted.items() if f in named or why == NOT_REPEATED]
    implied = check.claims.premises.implies  # what is always done needs no option, and ignores one
    if ignored := [f for f, why in refuted.items() if why == NO_EFFECT and not implied(f)]:
        notes.append(unclaimed(", ".join(ignored), NO_EFFECT))
    return check.without(set(refuted)), notes


def _refuted(feature: Feature, check: ClaimCheck, named: Set[Feature]) -> str:
    """Why the feature is not claimed; empty if it is."""
    case = OPTION_CASES[feature]
    if feature is Feature.QUERY_START:
        case = replace(case, causal=Feature.CAUSAL in check.claims)
    if error := check.run(case).error:
        return error
    if feature in named:
        return ""
    if feature is Feature.GROUPED:
        return _not_repeated(check)
    return NO_EFFECT if check.ignores(case) else ""


def _not_repeated(check: ClaimCheck) -> str:
    """Empty if fewer key heads are answered as if each was repeated for its query heads, consecutively or in turn."""
    fitted = fit(OPTION_CASES[Feature.GROUPED], check.claims)
    assert not isinstance(fitted, Unsupported)
    problem = build(fitted, check.dtype).forward_only()
    grouped, count = check.answer(problem), problem.num_kv_heads
    if parts(grouped)[0].shape != (*problem.query.shape[:-1], problem.value.shape[-1]):
        return "its answer has another shape"
    groups = problem.num_heads // count
    orders = [np.repeat(np.arange(count), groups), np.tile(np.arange(count), groups)]
    repeated = [check.answer(replace(problem, key=problem.key[:, o], value=problem.value[:, o])) for o in orders]
    return "" if any(not each.error and near_outputs(grouped, each, check.dtype) for each in repeated) else NOT_REPEATED


def extras_seen(
    check: ClaimCheck, plain: CallOutcome[Any], extents: Mapping[str, int], scores: bool
) -> tuple[Extra, ...]:
    """What it returns after its output: where it can, seen with heads that are no more as wide as there are keys."""
    wider = check.run(PLAIN.sized(d_k=2 * PLAIN.sizes.d_k, d_v=2 * PLAIN.sizes.d_v))
    return find_extras(parts(plain if wider.error else wider), extents, scores=scores)


def drops_output(check: ClaimCheck) -> bool:
    """Whether dropout leaves zeros in the output, where dropped weights leave mixtures."""
    output = parts(check.run(OPTION_CASES[Feature.DROPOUT]))[0]
    return bool((output == 0).sum() * 4 > math.prod(output.shape))


def with_returned_weights(check: ClaimCheck, extras: Iterable[Extra]) -> ClaimCheck:
    """The check with the claim whether returned weights are those before dropout, if it has both."""
    positions = [extra.position for extra in extras if extra.name in ("weights", "averaged_weights")]
    if not positions or Feature.DROPOUT not in check.claims:
        return check
    sums = parts(check.run(OPTION_CASES[Feature.DROPOUT]))[positions[0]].sum(-1)
    before = bool((abs(sums - 1.0) < COARSE.get(check.dtype, HALF)).all())
    observed = ReturnedWeights.BEFORE_DROPOUT if before else ReturnedWeights.AFTER_DROPOUT
    conventions = replace(check.claims.conventions, returned_weights=observed)
    return replace(check, claims=replace(check.claims, conventions=conventions))


def core_claims(check: ClaimCheck, exact_dtype: bool = False) -> tuple[Claims, tuple[str, ...]]:
    """The claims without those of the core that a call refutes, and a note on each refuted one.

    Args:
        check: its plain call works.
        exact_dtype: whether a dtype counts only if the output has it: NumPy computes in other types silently.
    """
    dtypes, notes = _dtypes(check, exact_dtype)
    refuted = {}
    if Feature.VALUE_WIDTH in check.claims:
        refuted[Feature.VALUE_WIDTH] = _one_width(check)
    if Feature.GRADIENTS in check.claims:
        refuted[Feature.GRADIENTS] = why = no_gradients(check)
        refuted[Feature.MASK_GRADIENT] = why or _no_mask_gradient(check)
    refuted[Feature.EMPTY_SIZES] = _no_empty_sizes(check)
    lost = {feature: why for feature, why in refuted.items() if why and feature in check.claims}
    notes += [unclaimed(feature, why) for feature, why in lost.items()]
    return replace(check.without(set(lost)).claims, dtypes=dtypes), tuple(notes)


def _no_empty_sizes(check: ClaimCheck) -> str:
    """Why arrays without elements are not claimed: an error, or NaN without keys; empty if they are."""
    takes_masks = Feature.BOOL_MASK in check.claims and not check.run(MASKED).error
    masked = [MASKED.sized(batch=0)] if takes_masks else []
    empty = [PLAIN.sized(**{extent: 0}) for extent in ("key_length", "batch", "query_length")] + masked
    without_keys, *others = (check.run(case) for case in empty)
    if error := without_keys.error or next((each.error for each in others if each.error), ""):
        return error
    output = safe_call(lambda: output_of(without_keys)).value
    if output is not None and _is_of_biases(check, output, empty[0]):
        return "without keys it answers with the bias of the values"
    options: Any = getattr(check.function, "options", None)
    own, claimed = check.claims.conventions, check.claims.features
    kinds = {Feature.BOOL_MASK: own.empty_row_bool, Feature.FLOAT_MASK: own.empty_row_float}
    rows = {
        kind: row for kind, row in (kinds | {Feature.KEY_PADDING: own.empty_row_padding}).items() if kind in claimed
    }
    named = rows and options and {"attn_mask", "is_causal"} & set(options.spelled.values())
    alike = {*rows.values()} & {EmptyRow.NAN, EmptyRow.UNIFORM}  # where masks leave no key; a mean of none is NaN
    promised = not alike and (named or check.claims.scope is not Scope.OP)
    return "" if promised or output is None or not np.isnan(output).any() else "it answers NaN without keys"


def _is_of_biases(check: ClaimCheck, output: Floats, case: Case) -> bool:
    """Whether an answer without keys has the bias of the values, as where it is added after the weighted sum."""
    fitted = fit(case, check.claims)
    given = {} if isinstance(fitted, Unsupported) else build(fitted, check.dtype).parameters
    if not {"b_v", "w_o"} <= given.keys() or len(given["b_v"]) != len(given["w_o"]):
        return False
    row = given["b_v"].astype(np.float64) @ given["w_o"] + given.get("b_o", np.zeros(1))
    return output.size > 0 and near(output, np.broadcast_to(row, output.shape))


def _one_width(check: ClaimCheck) -> str:
    """Why values have to be as wide as keys; empty if they need not, or if there is one width alone."""
    for d_v in OTHER_WIDTHS:
        fitted = fit(PLAIN.sized(d_v=d_v), check.claims)
        if not isinstance(fitted, Unsupported) and fitted.sizes.d_v != fitted.sizes.d_k:
            return check.run(PLAIN.sized(d_v=d_v)).error
    return ""


def _dtypes(check: ClaimCheck, exact_dtype: bool) -> tuple[tuple[str, ...], list[str]]:
    errors = {dtype: check.run(PLAIN, dtype).error for dtype in DTYPES}
    for case in (MASKED, BIASED) if not all(errors.values()) else ():
        masked = {dtype: check.run(case, dtype).error for dtype in DTYPES}
        if not masked[check.dtype]:
            errors = {dtype: error or masked[dtype] for dtype, error in errors.items()}
    for dtype in (dtype for dtype, error in errors.items() if exact_dtype and not error):
        errors[dtype] = next(filter(None, (_other_dtype(check, case, dtype) for case in (PLAIN, MASKED, BIASED))), "")
    notes = [unclaimed(dtype, error) for dtype, error in errors.items() if error]
    return tuple(dtype for dtype, error in errors.items() if not error), notes


def _other_dtype(check: ClaimCheck, case: Case, dtype: str) -> str:
    """In which dtype it answers a case instead; empty where it is its own, or where there is no answer."""
    output: Any = next(iter(parts(check.run(case, dtype))), None)
    own = str(getattr(output, "dtype", dtype)).removeprefix("torch.")
    return "" if own == dtype else f"it answers in {own}{'' if case.mask is MaskKind.NONE else ' with a mask'}"


def refused_masks(check: ClaimCheck) -> dict[str, str]:
    """The option for the kind of mask that raises where the other one is answered, and how it raises."""
    if not {Feature.BOOL_MASK, Feature.FLOAT_MASK} <= check.claims.features:
        return {}
    errors = {"bool_mask": check.run(MASKED).error, "float_mask": check.run(BIASED).error}
    return {} if all(errors.values()) else {option: error for option, error in errors.items() if error}


def no_gradients(check: ClaimCheck) -> str:
    """Why its output does not require grad where its inputs do; empty if it does."""
    outcome = check.run(PLAIN, gradients=True)
    output = parts(outcome)[0] if parts(outcome) else None
    requires_grad = safe_call(lambda: bool(getattr(output, "requires_grad", False)))
    error = outcome.error or requires_grad.error
    if error or requires_grad.value or is_jax(output):
        return error
    return "its output does not require grad"


def _no_mask_gradient(check: ClaimCheck) -> str:
    """Why the gradient of an additive mask is not claimed: a backward pass of its own leaves it out; empty if not.

    Kernels take masks as constants. Where torch derives the backward pass, a mask without a gradient was detached.
    """
    fitted = fit(BIASED, check.claims)
    if not torch or Feature.MASK_GRADIENT not in check.claims or isinstance(fitted, Unsupported):
        return ""
    recorder = Recorder(check.function)
    problem = build(fitted, check.dtype).fresh()
    outcome = safe_call(lambda: check.adapt(recorder)(problem, check.device).gradients)
    if outcome.error or np.any((outcome.value or {}).get("attn_mask", True)):
        return ""
    return "its own backward pass gives none" if _has_own_backward(parts(CallOutcome(recorder.answer))[0]) else ""


def _has_own_backward(output: Any) -> bool:
    """Whether a `torch.autograd.Function` is among the steps that made a tensor."""
    waiting, seen = [getattr(output, "grad_fn", None)], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
    return False


def one_set_of_ids(case: Case) -> Case | Unsupported:
    """The fit of an interface with one array of ids, of segments or positions, for queries and keys alike."""
    if case.extension.packing is Packing.EMPTY_SEGMENT:
        return Unsupported("queries and keys have the same segment ids, so that no query is without a key")
    ids = case.extension.packing is Packing.SEGMENTS or case.extension.position_ids is not PositionIds.NONE
    return case.sized(query_length=case.sizes.key_length) if ids else case
