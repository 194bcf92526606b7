"""What a candidate always does to its scores: rotations and a softcap, fitted to the weights that answers reveal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always_angles import LENGTH, Angles, angles_of
from attention_conformance.implementations.discovery.always_norms import BareNorm, kinds, with_epsilon
from attention_conformance.implementations.discovery.always_slopes import (
    begins_interleaved,
    is_reordered,
    is_usual,
)
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.documented_equations import states_alibi
from attention_conformance.implementations.discovery.probe import (
    EVEN_HEADS,
    HALF,
    HEADS,
    WIDTHS,
    Interface,
    ObservedWeights,
    Recorder,
    Run,
    Setup,
    Subject,
    tiny_problem,
)
from attention_conformance.implementations.discovery.score_fits import Scores
from attention_conformance.implementations.discovery.signatures import ADAPTER, Options
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.cases import Case, Sharing
from attention_conformance.spec.conventions import NormKind, NormSpan, RotaryPairing
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import HALF as HALF_TYPES
from attention_conformance.spec.problem import Problem

PEAKED = Setup(query_length=5, key_length=5, score_std=2.0)
"""Scores of up to some twenty, so that a bound of 100 shows."""
BASES = (10000.0, 500000.0, 1000000.0)
"""Of rotations, as published models have them."""
LARGE = 8.0
"""Standard deviation of scores that are large enough for bounds to show in half types, as the usual ones are not."""
ALIBI_INSIDE = (
    "its scores always fall with the distance of a key, by slopes of {}, which are not those of ALiBi: "
    f"let it take them as `alibi_slopes`, {ADAPTER}"
)
MISTAKEN = "by its documentation its slopes are those of ALiBi, and as such they are judged; they are seen to be {}"
POWERS = (2, EVEN_HEADS, 8)
"""Numbers of heads for which there is one rule of slopes; some state those of 8 heads for any number."""


def with_scores(check: ClaimCheck, premises: Premises, written: object = None) -> tuple[ClaimCheck, Premises]:
    """The check with the pairing of its rotations, and the premises with what its weights show of its scores.

    `written`: the function or class as somebody wrote it, whose documentation is read.
    """
    if premises.block or premises.alibi:
        return check, premises
    width, observed = _observed(check, premises)
    if not _usable(observed):
        return check, premises
    capped = premises.softcap or Feature.SOFTCAP in check.claims
    scores = Scores.of(observed, _problem(check, width, observed.weights.shape[1], _setup(check, premises)), premises)
    if Feature.ALIBI not in check.claims and (slopes := scores.slopes()):
        return _sloped(check, premises, width, slopes, written)
    for caps in ((premises.softcap,),) if capped else ((None,), ()):
        found = _nearest(scores, list(_rotations(check, premises)), caps)
        if found is not None:
            (base, pairing), cap = found
            if cap is None and not capped and check.dtype in HALF_TYPES:
                large = _seen_at(check, premises, width, LARGE)
                cap = None if large is None else large.rotated(base, pairing).cap_of_large()
            conventions = replace(check.claims.conventions, rotary_pairing=pairing)
            claims = replace(check.claims, conventions=conventions if base else check.claims.conventions)
            return replace(check, claims=claims), replace(premises, rotary_base=base, softcap=cap)
    if premises.qk_norm:
        return check, premises
    check, always = _with_own_angles(check, premises) or _with_norms(check, premises, scores, width)
    return (check, always) if always != premises else _with_cosines(check, premises, scores, width)


def _sloped(
    check: ClaimCheck, premises: Premises, width: int, slopes: Sequence[float], written: object
) -> tuple[ClaimCheck, Premises]:
    """The same with the premise of ALiBi, by the rule that its slopes follow, or should by its documentation.

    Raises:
        TargetError: they follow none, and nothing states that they should.
    """
    if is_usual(slopes) or begins_interleaved(slopes):
        return check, replace(premises, alibi=True, interleaved=begins_interleaved(slopes))
    shown = ", ".join(f"{slope:.3g}" for slope in slopes)
    usual = _usual_at_powers(check, premises, width)
    falling = all(later < earlier for earlier, later in pairwise(slopes))  # equal ones are those of one head for each
    if is_reordered(slopes) or not states_alibi(written) or usual is None or not (usual or falling):
        raise TargetError(ALIBI_INSIDE.format(shown))
    return check.stating(MISTAKEN.format(shown)), replace(premises, alibi=True, interleaved=True)


def _usual_at_powers(check: ClaimCheck, premises: Premises, width: int) -> bool | None:
    """Whether for powers of two of heads its slopes are those of ALiBi; None where they are for some: its own rule."""
    seen = [safe_call(partial(_seen_at, check, premises, width, PEAKED.score_std, heads=n)).value for n in POWERS]
    usual = {scores is not None and is_usual(scores.slopes()) for scores in seen}
    return usual.pop() if len(usual) == 1 else None


def _with_own_angles(check: ClaimCheck, premises: Premises) -> tuple[ClaimCheck, Premises] | None:
    """The same with rotations of another base, or of a part of a head, as weights show them in heads of two widths.

    Raises:
        TargetError: it rotates by angles that no base has, or by others in other heads.
    """
    if Feature.ROTARY in check.claims or premises.rotary_dim is not None:
        return None
    found = [each for width in WIDTHS if (each := _angles(check, premises, width)) is not None]
    if not found or (found[0].base is not None and abs(found[0].factor - 1.0) > HALF):
        return None  # whose scale is another one, which is a mistake
    dims = {each.dim if each.dim < each.width else None for each in found}
    if len(dims) > 1 and len({each.dim / each.width for each in found}) == 1:
        narrowest = min(found, key=lambda each: each.width)
        check, dims = _of_one_width(check, narrowest), {narrowest.dim}
    bases = {each.meant_base for each in found if abs(each.factor - 1.0) < HALF}
    (dim, *others), base = dims, found[0].meant_base
    if others or bases != {base} or base is None or len(found) < 2:
        raise TargetError(f"it rotates queries and keys by angles of its own: let it take them as tables, {ADAPTER}")
    conventions = replace(check.claims.conventions, rotary_pairing=found[0].pairing)
    always = replace(premises, rotary_base=base, rotary_dim=dim)
    return replace(check, claims=replace(check.claims, conventions=conventions)), always


def _of_one_width(check: ClaimCheck, seen: Angles) -> ClaimCheck:
    """The check with heads of the width at which so many components were seen to be rotated, of others a like share."""
    claims = replace(check.claims, fit=partial(fit_width, check.claims.fit, seen.width))
    return replace(check, claims=claims).stating(f"judged with heads of {seen.width}: a share of each is rotated")


def fit_width(fit: Fit, width: int, case: Case) -> Case | Unsupported:
    """The fit of one whose premise holds for heads of one width."""
    d_v = width if case.sizes.d_v == case.sizes.d_k else case.sizes.d_v
    return fit(case.sized(d_k=width, d_v=d_v))


def _angles(check: ClaimCheck, premises: Premises, width: int) -> Angles | None:
    """The angles by which heads of a width are rotated, where these explain all of its weights."""
    scores = safe_call(partial(_seen_at, check, premises, width, PEAKED.score_std, LENGTH)).value
    if scores is None:
        return None
    scale = width**-0.5 if premises.scale is None else premises.scale
    for found in angles_of(scores.query, scores.key, scores.logs, scale, scores.faintest):
        if replace(scores, query=found.rotated(scores.query), key=found.rotated(scores.key)).fits(premises.softcap):
            return found
    return None


Rotation = tuple[float | None, RotaryPairing]


def has_unknown_scores(check: ClaimCheck) -> bool:
    """Whether its weights are shown, and neither the usual scores nor any that the suite looks for explain them."""
    premises = check.claims.premises
    known = premises.block or premises.alibi or premises.rotary_base or premises.softcap or premises.qk_norm
    width, observed = (0, None) if known else _observed(check, premises)
    if observed is None or not _usable(observed):
        return False
    scores = Scores.of(observed, _problem(check, width, observed.weights.shape[1], _setup(check, premises)), premises)
    rotations = list(_rotations(check, premises))
    return all(_nearest(scores, rotations, caps) is None for caps in ((None,), ()))


def _nearest(
    scores: Scores, rotations: Sequence[Rotation], caps: Sequence[float | None]
) -> tuple[Rotation, float | None] | None:
    """The rotation and the bound that explain the scores best, of those that do; no caps: any bound is tried."""
    found: dict[tuple[Rotation, float | None], float] = {}
    for each in rotations:
        moved = scores.rotated(*each)
        for cap in caps or (moved.best_cap(),):
            if moved.fits(cap):
                found[each, cap] = moved.off(cap)
    return min(found, key=lambda each: found[each], default=None)


def _with_norms(check: ClaimCheck, premises: Premises, scores: Scores, width: int) -> tuple[ClaimCheck, Premises]:
    """The same with norms of queries and keys without gains, where these explain the weights."""

    def small(norm: BareNorm, size: float) -> bool:
        if size not in seen:
            seen[size] = _seen_at(check, premises, width, size)
        at = seen[size]
        return at is not None and at.normalised(norm, check.dtype).rotated(base, pairing).fits(premises.softcap)

    seen: dict[float, Scores | None] = {}
    for kind, (base, pairing) in product(kinds(), _rotations(check, premises)):
        if not scores.normalised(kind, check.dtype).rotated(base, pairing).fits(premises.softcap):
            continue
        if (norm := with_epsilon(kind, small)) is not None:
            span = NormSpan.HEAD if _takes_gains(check) else NormSpan.BARE
            conventions = replace(
                check.claims.conventions, norm_kind=norm.kind, norm_span=span, norm_default=norm.default
            )
            conventions = replace(conventions, rotary_pairing=pairing) if base else conventions
            always = replace(premises, rotary_base=base, qk_norm=True, norm_epsilon=norm.epsilon)
            return replace(check, claims=replace(check.claims, conventions=conventions)), always
    return check, premises


def _with_cosines(check: ClaimCheck, premises: Premises, scores: Scores, width: int) -> tuple[ClaimCheck, Premises]:
    """The same with cosines times a number, the same in heads of other widths, where these explain the weights."""
    cosine = BareNorm(NormKind.L2)
    wide = safe_call(partial(_seen_at, replace(check, dtype="float64"), premises, width, PEAKED.score_std)).value
    factor = (wide or scores).normalised(cosine, check.dtype).factor()
    if premises.scale is not None or Feature.SCALE in check.claims or factor <= 0.0:
        return check, premises
    scaled = replace(premises, scale=factor)
    seen = [safe_call(partial(_seen_at, check, scaled, each, PEAKED.score_std)).value for each in WIDTHS]
    shown = [each.normalised(cosine, check.dtype).fits(premises.softcap) for each in seen if each is not None]
    if len(shown) < 2 or not all(shown):
        return check, premises
    check, found = _with_norms(check, scaled, replace(scores, premises=scaled), width)
    return (check, found) if found.qk_norm else (check, premises)


def _takes_gains(check: ClaimCheck) -> bool:
    """Whether the gains of its norms are options of its own."""
    options = getattr(check.function, "options", None)
    return isinstance(options, Options) and "query_norm" in options.named


def _seen_at(
    check: ClaimCheck, premises: Premises, width: int, size: float, length: int = 0, heads: int = 0
) -> Scores | None:
    """The scores of rows of some size; None where the candidate does not show its weights."""
    setup = replace(_setup(check, premises), score_std=size)
    setup = replace(setup, query_length=length, key_length=length) if length else setup
    interface = _interface(check, width)
    interface = replace(interface, num_heads=heads) if heads and interface.num_heads > 1 else interface
    observed = Subject(_run(check), interface, check.dtype, check.device).weights(setup)
    if not _usable(observed):
        return None
    return Scores.of(observed, _problem(check, width, observed.weights.shape[1], setup), premises)


def _usable(observed: ObservedWeights) -> bool:
    return not observed.error and observed.weights.ndim == 4 and bool(np.isfinite(observed.weights).all())


def _rotations(check: ClaimCheck, premises: Premises) -> Iterator[Rotation]:
    own = check.claims.conventions.rotary_pairing
    if premises.rotary_base or Feature.ROTARY in check.claims:
        yield premises.rotary_base, own
        return
    yield None, own
    yield from product(BASES, RotaryPairing)


def _setup(check: ClaimCheck, premises: Premises) -> Setup:
    """Of the length that is always that of its sequences, with a head of keys for all heads where it has one."""
    length = premises.length or PEAKED.key_length
    return replace(PEAKED, query_length=length, key_length=length, groups=HEADS if _one_key_head(check) else 1)


def _one_key_head(check: ClaimCheck) -> bool:
    """Whether it has one head of keys, whatever the number of those of queries."""
    fitted = fit(PLAIN.sized(num_heads=HEADS), check.claims)
    return not isinstance(fitted, Unsupported) and fitted.sizes.num_kv_heads == 1 < fitted.sizes.num_heads


def _observed(check: ClaimCheck, premises: Premises) -> tuple[int, ObservedWeights]:
    """The weights of the candidate, and the width of a head in which it shows them."""
    observed = ObservedWeights(np.empty(0), "no width")
    for width in WIDTHS:
        subject = Subject(_run(check), _interface(check, width), check.dtype, check.device)
        observed = subject.weights(_setup(check, premises))
        if not observed.error:
            return width, observed
    return WIDTHS[0], observed


def _run(check: ClaimCheck) -> Run:
    return lambda problem, device: check.adapt(Recorder(check.function))(problem, device)


def _interface(check: ClaimCheck, width: int) -> Interface:
    claims = check.claims
    heads = 1 if _one_key_head(check) else HEADS
    if claims.scope is Scope.OP:
        return Interface(width=width, num_heads=heads)
    sharing = Sharing.SELF if Feature.CROSS not in claims else Sharing.KEY_VALUE
    sharing = Sharing.NONE if Feature.KEY_VALUE in claims else sharing
    given = (Feature.BIAS in claims, Feature.OUTPUT_PROJECTION in claims, Feature.OUTPUT_BIAS in claims)
    heads = heads if Feature.HEADS in claims else 1
    return Interface(Scope.MODULE, heads, sharing, *given, width=width)


def _problem(check: ClaimCheck, width: int, heads: int, setup: Setup) -> Problem:
    """The problem of the op level that the candidate was given, perhaps as one of a module."""
    return tiny_problem(Interface(width=width, num_heads=heads // setup.groups), setup, check.dtype)
