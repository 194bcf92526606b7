"""Kept: what a second call with the same sizes has from the first one, found by calls that are made for this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, Padding
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis
from attention_conformance.tests.harness.explain.diagnosis.observation import answered
from attention_conformance.tests.harness.judge.comparison import error_ratios

ROUNDS = 2
"""Pairs of calls, each with sizes that were not called before, in all of which the same has to be kept."""
SEEDS = (31, 32)
LONGER = 23
"""By so many tokens, and one more for each pair, cases are longer than the one that they are made of."""
PROJECTED = ("w_k", "w_v", "b_k", "b_v")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "mask": ("attn_mask",),
    "padding mask": ("key_padding_mask",),
    "masks": ("attn_mask", "key_padding_mask"),
    "valid lengths": ("valid_lens",),
    "queries": ("query",),
    "keys": ("key", "w_k", "b_k"),
    "values": ("value", "w_v", "b_v"),
    "keys and values": ("key", "value", *PROJECTED),
    "inputs": ("query", "key", "value"),
    "parameters": ("w_q", "w_o", "b_q", "b_o", *PROJECTED),
    "answer": ("query", "key", "value", "w_q", "w_o", "b_q", "b_o", *PROJECTED),
}
"""What may be kept, the least first, and the arrays of a problem that it is made of."""
LEFT: Mapping[str, Mapping[str, object]] = {
    "mask": {"mask": MaskKind.BOOL},
    "padding mask": {"padding": Padding.RIGHT},
    "causal flag": {"causal": True},
}
"""Options of a first call that a second one may still have."""


@dataclass(frozen=True)
class Calls:
    """A candidate that is called with problems one after the other.

    Attributes:
        implementation: its `run` is the way in which it is called.
    """

    implementation: Implementation
    dtype: str
    device: str

    def built(self, case: Case, longer: int) -> Problem | None:
        """The case with more tokens and samples, as sizes that were not called before; None if that is not claimed."""
        s = case.sizes
        more = {"key_length": s.key_length + longer, "batch": s.batch + 1 + longer % 2}
        if s.query_length == s.key_length:
            more["query_length"] = more["key_length"]
        fitted = fit_to_explain(case.sized(**more), self.implementation.claims)
        if isinstance(fitted, Unsupported) or fitted.sizes.key_length != more["key_length"]:
            return None
        return build(fitted, self.dtype).forward_only()

    def called(self, problem: Problem) -> Array | None:
        """The output of one call; None where it raises."""
        result, _ = answered(lambda: answer(self.implementation.run, problem.fresh(), self.device))
        return None if result is None else result.output

    def is_of(self, output: Array | None, problem: Problem) -> bool:
        """Whether an output is the right one for a problem."""
        expected = solve(problem, self.implementation.claims.conventions).parts["output"]
        if output is None or output.shape != expected.value.shape:
            return False
        return bool((error_ratios(output, expected) <= 1.0).all())


def kept(implementation: Implementation, case: Case, dtype: str, device: str) -> Diagnosis | None:
    """What a second call answers with of the first one, where the first is right and the second is not."""
    calls = Calls(implementation, dtype, device)
    rounds = [_kept_inputs(calls, case, LONGER + number) for number in range(ROUNDS)]
    same = [what for what in rounds[0] if all(what in each for each in rounds)]
    if same:
        return of_first_call(same[0], ROUNDS)
    for number, (what, change) in enumerate(LEFT.items()):
        longer = LONGER + ROUNDS * (number + 1)
        if all(_left_behind(calls, case, change, longer + each) for each in range(ROUNDS)):
            when = (f"after a call of the same sizes with a {what}",)
            repair = f"Change no buffer in a call that has a {what}: add it to a copy."
            return Diagnosis(f"{what} of an earlier call", ROUNDS, ROUNDS, agrees=ROUNDS, repair=repair, when=when)
    return None


def of_first_call(what: str, seen: int) -> Diagnosis:
    """That a second call answers with something of the first one, which was seen so often."""
    repair = f"Keep no {what} between calls, or no longer than their inputs are the same."
    when = ("from the second call with the same sizes on",)
    return Diagnosis(f"{what} of the first call in the second one", seen, seen, agrees=seen, repair=repair, when=when)


def _kept_inputs(calls: Calls, case: Case, longer: int) -> list[str]:
    """What of a first call explains the answer to a second one with other numbers; nothing where that is right."""
    first, second = (calls.built(replace(case, seed=seed), longer) for seed in SEEDS)
    if first is None or second is None or not calls.is_of(calls.called(first), first):
        return []
    output = calls.called(second)
    if calls.is_of(output, second):
        return []
    return [what for what, problem in _with_parts(first, second) if calls.is_of(output, problem)]


def _with_parts(first: Problem, second: Problem) -> Iterator[tuple[str, Problem]]:
    """The second problem with parts of the first one."""
    held, own = first.arrays(), second.arrays()
    for what, names in GROUPS.items():
        parts = {name: held[name] for name in names if name in held and name in own}
        if parts:
            yield what, second.with_arrays(parts)


def _left_behind(calls: Calls, case: Case, change: Mapping[str, object], longer: int) -> bool:
    """Whether a case that is right is answered with an option of the call in between when it comes again."""
    bare = replace(case, mask=MaskKind.NONE, padding=Padding.NONE, causal=False)
    plain = calls.built(replace(bare, seed=SEEDS[1]), longer)
    given = calls.built(replace(bare, seed=SEEDS[0], **change), longer)  # type: ignore[arg-type]
    if plain is None or given is None or not calls.is_of(calls.called(plain), plain):
        return False
    calls.called(given)
    output = calls.called(plain)
    masks = {"attn_mask": given.attn_mask, "key_padding_mask": given.key_padding_mask, "causal": given.causal}
    return not calls.is_of(output, plain) and calls.is_of(output, plain.but(**masks))
