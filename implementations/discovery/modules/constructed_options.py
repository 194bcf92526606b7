"""Options of a constructor that are off by default, as those of a problem: a causal flag, scales, caps, rotations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import Booleans, changes, rows, sees_later
from attention_conformance.implementations.discovery.always_scores import with_scores
from attention_conformance.implementations.discovery.causal_names import OF_DECODERS, is_causal_flag, is_decoder_flag
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import documents_of, paragraphs_of
from attention_conformance.implementations.discovery.modules.built_otherwise import (
    flags_given_off,
    options_left_out,
    with_options,
)
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.module_runs import module_run
from attention_conformance.implementations.discovery.modules.plans import ModulePlan
from attention_conformance.implementations.discovery.modules.self_options import (
    alone_with,
    is_alone_with,
    promised_for_both,
    without_context,
)
from attention_conformance.implementations.discovery.modules.template import output_of_problem
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, words_of
from attention_conformance.spec.case_options import used_options
from attention_conformance.spec.cases import Case, Layout, MaskKind, Padding, Pattern
from attention_conformance.spec.conventions import CausalWithMask
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Problem

TOKENS = 9
SQUARE = PLAIN.sized(query_length=TOKENS, key_length=TOKENS)
FACTOR, CAP = 0.7, 1.5
"""A scale and a bound of scores with which it is looked at."""
SOFT_CAPS = {"softcap", "softcapping"}
CAPS = {"cap", "capping", *SOFT_CAPS}
"""Words of which the name of a bound of scores has one."""
PROMISED_SCALES = ("qk_scale", "softmax_scale", "sm_scale")
SCALES = (*PROMISED_SCALES, "attn_scale", "attention_scale", "scale", "scaling")
"""Names of a factor of scores; the first promise one."""
IDLE = "not judged: it changes nothing in the answer"
NO_TRIANGLE = "not judged: the keys that it hides are no triangle"
NO_FACTOR = "not judged: it is no factor of scores alone"
UNKNOWN = "not judged: what it changes is unknown"
OF_FACTORS = re.compile(r"\b(?:scal(?:e|es|ed|ing)|factors?|multipl\w+|temperature)\b", re.IGNORECASE)
"""Words for what a factor of scores is."""
RESERVES = re.compile(
    r"\b(?:un-?used|not (?:\w+ )?used|ignored?|deprecated|compat\w*|legacy|no (?:effect|longer)|nothing|reserved"
    r"|placeholder|only|unless|without|except|fused|flash|sdpa|eager|manual|removed|todo)\b",
    re.IGNORECASE,
)
"""Words for where it is none."""
CLAMPED = "not judged: scores are clamped"
CLAMPS = re.compile(r"\b(?:clamp|clip)\b")
NEXT_TO_FLAG = {
    Feature.BOOL_MASK: MASKED,
    Feature.FLOAT_MASK: replace(BIASED, pattern=Pattern.ALL),
    Feature.KEY_PADDING: replace(PLAIN, padding=Padding.RIGHT),
}
"""What is given next to a causal flag."""


@dataclass(frozen=True)
class ConstructedOption:
    """An option of a problem that a class is built with.

    Attributes:
        feature: what it claims.
        option: the suite's name of it.
        name: its own name.
        of_problem: what that is for a problem; None where it has none.
    """

    feature: Feature
    option: str
    name: str
    of_problem: Callable[[Problem], object]


@dataclass(frozen=True)
class BuiltFor:
    """What a class is built with for a problem: an option, next to others."""

    option: ConstructedOption
    others: Callable[[Problem], Mapping[str, object]] | None = None

    def __call__(self, problem: Problem) -> dict[str, object]:
        """The options by the class's own names."""
        value = self.option.of_problem(problem)
        others = self.others(problem) if self.others is not None else {}
        return {**others, **({} if value is None else {self.option.name: value})}


def with_constructed_options(plan: ModulePlan) -> tuple[ModulePlan, dict[str, str]]:
    """The plan with options that its constructor takes, as calls show what they do; why others are not judged."""
    why: dict[str, str] = {}
    premises = plan.check.claims.premises
    for option in _offered(plan.make) if not premises.length and not plan.make.window else ():
        if option.feature not in plan.check.claims and not premises.implies(option.feature):
            seen = SEEN[option.feature](plan, option)
            if isinstance(seen, str):
                silent = not seen or (seen == IDLE and words_of(option.name) & OF_DECODERS)  # it may be of caches alone
                why |= {} if silent else {option.name: seen}
            else:
                plan = _claimed(plan, option, seen)
    return plan, why


def given_option(plan: ModulePlan, name: str, value: object) -> ClaimCheck:
    """The check of the class as it is built with this option."""
    make = with_options(plan.make, {name: value})
    return replace(plan.check, adapt=partial(module_run, make, evaluating=plan.evaluating))


def _offered(make: Constructor) -> Iterator[ConstructedOption]:
    """Options that are off by default, or as it is given them where it has to be, by their names."""
    for each in (*options_left_out(make), *flags_given_off(make)):
        words, flag = words_of(each.name), each.default is False
        off = each.default is None or (not flag and each.default == 0)
        if (is_causal_flag(each) and flag) or is_decoder_flag(each):
            yield ConstructedOption(Feature.CAUSAL, "is_causal", each.name, lambda problem: problem.causal or None)
        elif off and each.name in SCALES:
            yield ConstructedOption(Feature.SCALE, "scale", each.name, lambda problem: problem.scale)
        elif off and _is_a_cap(each):
            yield ConstructedOption(Feature.SOFTCAP, "softcap", each.name, lambda p: p.extension.softcap)
        elif flag and "alibi" in words:
            yield ConstructedOption(Feature.ALIBI, "alibi_slopes", each.name, lambda p: p.extension.alibi or None)
        elif flag and words & {"rope", "rotary"}:
            yield ConstructedOption(
                Feature.ROTARY, "rotary_base", each.name, lambda p: p.extension.rotary_base is not None or None
            )


def _is_a_cap(option: Parameter) -> bool:
    words = words_of(option.name)
    return KNOWN_NAMES.get(option.name) == "softcap" or bool(words & CAPS and words & {"soft", *SOFT_CAPS})


def _causal(plan: ModulePlan, option: ConstructedOption) -> Claims | str:
    """A triangle, or one that begins a key too early or too late, which is a mistake."""
    given = given_option(plan, option.name, True)
    usual, seen = _keys(plan.check), _keys(given)
    if usual is None or seen is None or not usual.all():
        return NO_TRIANGLE
    claims = plan.check.claims
    if seen.all() and claims.alone and not promised_for_both(plan.call, plan.make.kind, option.name):
        claims, given = alone_with(claims, {Feature.CAUSAL}), without_context(given)
        seen = _keys(given)
    if seen is None or seen.all():
        return IDLE
    triangles = (np.tri(TOKENS, k=later, dtype=bool) for later in (-1, 0, 1))
    if not any(np.array_equal(seen, each) for each in triangles):
        return NO_TRIANGLE
    return _with_masks(replace(claims, fit=partial(_square, claims.fit)), given)


def _with_masks(claims: Claims, given: ClaimCheck) -> Claims:
    """With what the flag means next to a mask: both hide, or the mask alone, or that raises and is not claimed."""
    masks = [case for feature, case in NEXT_TO_FLAG.items() if feature in claims]
    later = [any(sees_later(given, case)) for case in masks[:2]]
    strided = [replace(case, layout=Layout.TRANSPOSED) for case in masks]  # what torch refuses depends on the strides
    refused = any(given.run(case, gradients=g).error for case in [*masks, *strided] for g in (False, True))
    if refused or (any(later) and not all(later)):
        own = replace(claims.conventions, causal_with_mask=CausalWithMask.ERROR)
        return replace(claims, conventions=own, fit=partial(_without_masks, claims.fit))
    alone = CausalWithMask.MASK_ALONE if any(later) else claims.conventions.causal_with_mask
    return replace(claims, conventions=replace(claims.conventions, causal_with_mask=alone))


def _keys(check: ClaimCheck) -> Booleans | None:
    """(L, L), True = the query sees the key; None where it does not answer."""
    seen = dict(changes(check, SQUARE, at=tuple(range(TOKENS))))
    return np.stack([seen[key] for key in range(TOKENS)], -1) if len(seen) == TOKENS else None


def _scale(plan: ModulePlan, option: ConstructedOption) -> Claims | str:
    """A factor, as a call shows; where its name promises one, what is seen needs not be one."""
    given, fitted = given_option(plan, option.name, FACTOR), fit(PLAIN, plan.check.claims)
    if isinstance(fitted, Unsupported):
        return fitted.reason
    problem = build(fitted, plan.check.dtype).forward_only()
    answer, usual = rows(given, problem), rows(plan.check, problem)
    if answer is None or usual is None or near(answer, usual, plan.check.dtype):
        stated = option.name in PROMISED_SCALES and states_scale(plan.make.kind, option.name)
        return _fitted(plan, _positive) if stated and plan.norms is None and answer is not None else IDLE
    factor = near(answer, output_of_problem(problem, FACTOR, plan.check.claims.premises.causal), plan.check.dtype)
    return _fitted(plan, _positive) if factor or option.name in PROMISED_SCALES else NO_FACTOR


def states_scale(kind: object, name: str) -> bool:
    """Whether documentation states without reserve that this parameter is a factor of scores."""
    lines = [line for text in documents_of(kind) for line in paragraphs_of(text)]
    said = [re.sub(rf"\b{re.escape(name)}\b", "", line) for line in lines if re.search(rf"\b{re.escape(name)}\b", line)]
    return any(map(OF_FACTORS.search, said)) and not any(map(RESERVES.search, said))


def _softcap(plan: ModulePlan, option: ConstructedOption) -> Claims | str:
    given = given_option(plan, option.name, CAP)
    if near_outputs(given.run(PLAIN), plan.check.run(PLAIN), plan.check.dtype):
        return IDLE
    soft = {"soft", *SOFT_CAPS} & words_of(option.name)
    return plan.check.claims if soft or not CLAMPS.search(code_of(plan.make.kind)) else CLAMPED


def _premise(plan: ModulePlan, option: ConstructedOption) -> Claims | str:
    """Slopes or rotations, as weights show them."""
    given, before = given_option(plan, option.name, True), plan.check.claims.premises
    try:
        check, always = with_scores(given, before, plan.make.kind)
    except TargetError as error:
        return f"not judged: {error}"
    of_feature = {Feature.ALIBI: always.alibi, Feature.ROTARY: always.rotary_base}
    if not of_feature[option.feature]:
        return IDLE if near_outputs(given.run(PLAIN), plan.check.run(PLAIN), plan.check.dtype) else UNKNOWN
    own = {n: getattr(always, n) for n in ("alibi", "interleaved", "rotary_base", "rotary_dim")}
    claims = replace(plan.check.claims, conventions=check.claims.conventions)
    return replace(claims, fit=partial(_as_always, Premises(**own), option.feature, claims.fit))


def _fitted(plan: ModulePlan, fitting: Callable[[Fit, Case], Case | Unsupported]) -> Claims:
    return replace(plan.check.claims, fit=partial(fitting, plan.check.claims.fit))


def _square(own: Fit, case: Case) -> Case | Unsupported:
    """The fit of a flag: as many keys as queries."""
    fitted = own(case)
    if isinstance(fitted, Unsupported) or not fitted.causal:
        return fitted
    return fitted.sized(key_length=fitted.sizes.query_length)


def _without_masks(own: Fit, case: Case) -> Case | Unsupported:
    """The fit of a flag that excludes masks."""
    fitted = own(case)
    if isinstance(fitted, Unsupported) or not fitted.causal:
        return fitted
    hidden = fitted.mask is not MaskKind.NONE or fitted.padding is not Padding.NONE
    return Unsupported("takes no mask where it is built with its causal flag") if hidden else fitted


def _positive(own: Fit, case: Case) -> Case | Unsupported:
    """The fit of a scale, whose default stands for 0 in many constructors."""
    fitted = own(case)
    if isinstance(fitted, Unsupported) or fitted.scale is None or fitted.scale > 0.0:
        return fitted
    return Unsupported(f"is built with no scale of {fitted.scale:g}")


def _as_always(always: Premises, feature: Feature, own: Fit, case: Case) -> Case | Unsupported:
    """The fit of slopes by a rule, and of rotations of a base: as many keys as queries."""
    fitted = own(case)
    if isinstance(fitted, Unsupported) or feature not in {each.feature for each in used_options(fitted.extension)}:
        return fitted
    fitted = always.under(fitted)
    return fitted.sized(key_length=fitted.sizes.query_length)


SEEN: Mapping[Feature, Callable[[ModulePlan, ConstructedOption], Claims | str]] = {
    Feature.CAUSAL: _causal,
    Feature.SCALE: _scale,
    Feature.SOFTCAP: _softcap,
    Feature.ALIBI: _premise,
    Feature.ROTARY: _premise,
}


def _claimed(plan: ModulePlan, option: ConstructedOption, claims: Claims) -> ModulePlan:
    others = plan.make.of_problem
    make = replace(plan.make, of_problem=BuiltFor(option, others))
    claims = replace(claims, features=claims.features | {option.feature})
    implied = plan.call.options.implied | {option.option}
    call = replace(plan.call, options=replace(plan.call.options, implied=implied))
    adapt = partial(module_run, make, evaluating=plan.evaluating)
    check = replace(plan.check, claims=claims, adapt=adapt, function=call)
    alone = ", in self-attention alone" if is_alone_with(claims, option.feature) else ""
    stated = check.stating(f"built with {option.name!r} for {option.feature}{alone}")
    return replace(plan, make=make, call=call, check=stated)
