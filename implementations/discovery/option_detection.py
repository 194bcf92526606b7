"""Beyond the core: which further options a candidate is asked for, after a call has shown that it bears them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.probing import PLAIN, Extras, Probe, alike
from attention_conformance.spec.cases import Case
from attention_conformance.spec.extensions import Packing
from attention_conformance.spec.features import Feature, ReturnedWeights
from attention_conformance.spec.inputs import build

CASES: Mapping[Feature, Case] = {
    Feature.GROUPED: PLAIN.sized(num_heads=6, num_kv_heads=3),
    Feature.DROPOUT: PLAIN.extended(dropout=0.5, draw=1),
    Feature.EVALUATION: PLAIN.extended(dropout=0.5, draw=1, evaluating=True),
    Feature.WINDOW: PLAIN.extended(left=3, right=1),
    Feature.SOFTCAP: PLAIN.extended(softcap=2.0),
    Feature.ROTARY: PLAIN.extended(rotary_base=100.0),
    Feature.QUERY_START: replace(PLAIN, causal=True).extended(query_start=2),
    Feature.ALIBI: PLAIN.extended(alibi=True),
    Feature.RELATIVE_BIAS: PLAIN.extended(relative_bias=2),
    Feature.SINKS: PLAIN.extended(sinks=True),
    Feature.ZERO_ATTN: PLAIN.extended(zero_attn=True),
    Feature.BIAS_KV: PLAIN.extended(bias_kv=True),
    Feature.HEAD_GATES: PLAIN.extended(head_gates=True),
    Feature.SEGMENTS: PLAIN.extended(packing=Packing.SEGMENTS),
    Feature.CUMULATIVE_LENGTHS: PLAIN.extended(packing=Packing.LENGTHS),
}
"""What is asked to see whether a claim is borne out; whether the answer is right is for the suite to find out."""


UNSHARED = "it answers fewer key heads, and shares them in no known order"
SWALLOWED = "its **kwargs takes it, and nothing changes"


def option_claims(probe: Probe, named: Set[Feature]) -> tuple[Probe, list[str]]:
    """The probe without the further claims that a call refutes, and notes on what that is.

    Args:
        probe: claims whatever could be.
        named: the features for which the candidate has a word of its own. Such a one is claimed if a call with it
            succeeds. What only a **kwargs takes has to change something as well; grouped heads without a word are
            claimed if key heads are seen to be shared.
    """
    refuted = {f: why for f in CASES if f in probe.claims and (why := _refuted(f, probe, named))}
    notes = [f"{f} not claimed: {why}" for f, why in refuted.items() if f in named or why == UNSHARED]
    if unheard := [f for f, why in refuted.items() if why == SWALLOWED]:
        notes.append(f"{', '.join(unheard)} not claimed: {SWALLOWED}")
    return without(probe, set(refuted)), notes


def without(probe: Probe, lost: Set[Feature]) -> Probe:
    """The probe with fewer claims."""
    return replace(probe, claims=replace(probe.claims, features=probe.claims.features - lost))


def _refuted(feature: Feature, probe: Probe, named: Set[Feature]) -> str:
    """Why the feature is not claimed; empty if it is."""
    case = CASES[feature]
    if feature is Feature.QUERY_START:
        case = replace(case, causal=Feature.CAUSAL in probe.claims)
    if error := probe.ask(case).error:
        return error
    if feature in named:
        return ""
    if feature is Feature.GROUPED:
        return _unshared(probe)
    return SWALLOWED if probe.ignores(case) else ""


def _unshared(probe: Probe) -> str:
    """Empty if fewer key heads are answered as if each was repeated for its query heads, side by side or in turn."""
    fitted = fit(CASES[Feature.GROUPED], probe.claims)
    assert not isinstance(fitted, Unsupported)
    problem = build(fitted, "float32").forward_only()
    grouped, groups = probe.answer(problem), problem.num_heads // problem.num_kv_heads
    if grouped.parts[0].shape != (*problem.query.shape[:-1], problem.value.shape[-1]):
        return "its answer has another shape"
    count = problem.num_kv_heads
    orders = [np.repeat(np.arange(count), groups), np.tile(np.arange(count), groups)]
    wholes = [probe.answer(replace(problem, key=problem.key[:, o], value=problem.value[:, o])) for o in orders]
    return "" if any(not whole.error and alike(grouped, whole) for whole in wholes) else UNSHARED


def drops_output(probe: Probe) -> bool:
    """Whether dropout is seen to leave zeros in the output, where dropped weights leave mixtures."""
    output = probe.ask(CASES[Feature.DROPOUT]).parts[0]
    return bool((output == 0).sum() * 4 > math.prod(output.shape))


def with_observed(probe: Probe, extras: Extras) -> Probe:
    """The probe with the claim where returned weights are seen to be taken, if it returns any and has dropout."""
    places = [place for place, name in extras.named if name in ("weights", "averaged_weights")]
    if not places or Feature.DROPOUT not in probe.claims:
        return probe
    sums = probe.ask(CASES[Feature.DROPOUT]).parts[places[0]].sum(-1)
    whole = bool((abs(sums - 1.0) < np.finfo(np.float32).eps ** 0.5).all())
    seen = ReturnedWeights.BEFORE_DROPOUT if whole else ReturnedWeights.AFTER_DROPOUT
    conventions = replace(probe.claims.conventions, returned_weights=seen)
    return replace(probe, claims=replace(probe.claims, conventions=conventions))


def one_set_of_ids(case: Case) -> Case | Unsupported:
    """The fit of an interface with one array of segment ids for queries and keys alike."""
    if case.extension.packing is Packing.EMPTY_SEGMENT:
        return Unsupported("queries and keys have the same segment ids, so that no query is without a key")
    packed = case.extension.packing is Packing.SEGMENTS
    return case.sized(query_length=case.sizes.key_length) if packed else case
