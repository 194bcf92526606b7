"""Chapter 32, quantised: keys and values as codes with scales give the answer of the numbers that they stand for."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.stored_keys import Codes, ScaledBy
from attention_conformance.tests.harness.judge.clause_tests import row, table

PLAIN = Case(seed=370)
LONG = replace(PLAIN, seed=371).sized(batch=1, num_heads=2, key_length=67)
GROUPED = PLAIN.sized(num_heads=6, num_kv_heads=3)
CONTEXT = "{case.extension.codes}, a scale for each {case.extension.scaled_by}"
FLOATS = (Codes.E4M3, Codes.E5M2)


def coded(case: Case, codes: Codes = Codes.INT8, scaled_by: ScaledBy = ScaledBy.TENSOR) -> Case:
    return case.extended(codes=codes, scaled_by=scaled_by)


def of_both(scaled_by: ScaledBy) -> list[Case]:
    """In both types of codes, with more keys, and with one query."""
    whole = [coded(PLAIN, codes, scaled_by) for codes in (Codes.INT8, Codes.E4M3)]
    return [*whole, coded(PLAIN.sized(query_length=1, batch=3, key_length=11), scaled_by=scaled_by)]


CLAUSES = table(
    row(
        "quantised.int8",
        *(coded(PLAIN), coded(PLAIN.sized(query_length=1)), coded(LONG), coded(replace(PLAIN, score_std=6.0))),
        context=CONTEXT,
    ),
    row(
        "quantised.float8",
        *(coded(case, codes) for codes in FLOATS for case in (PLAIN, PLAIN.sized(query_length=1), LONG)),
        context=CONTEXT,
    ),
    row(
        "quantised.head-scales",
        *of_both(ScaledBy.HEAD),
        coded(PLAIN.sized(num_heads=7), scaled_by=ScaledBy.HEAD),
        context=CONTEXT,
    ),
    row(
        "quantised.sample-scales",
        *of_both(ScaledBy.SAMPLE),
        coded(PLAIN.sized(num_heads=2), scaled_by=ScaledBy.SAMPLE),
        context=CONTEXT,
    ),
    row(
        "quantised.token-scales",
        *(*of_both(ScaledBy.TOKEN), coded(LONG, scaled_by=ScaledBy.TOKEN)),
        context=CONTEXT,
    ),
    row(
        "quantised.block-scales",
        *(*of_both(ScaledBy.BLOCK), coded(LONG, scaled_by=ScaledBy.BLOCK)),
        *(coded(PLAIN.sized(key_length=length), scaled_by=ScaledBy.BLOCK) for length in (9, 10)),
        context=CONTEXT,
    ),
    row(
        "quantised.grouped",
        *(coded(GROUPED, scaled_by=scaled_by) for scaled_by in (ScaledBy.HEAD, ScaledBy.TOKEN, ScaledBy.BLOCK)),
        context=CONTEXT,
    ),
    row(
        "quantised.causal",
        *(coded(replace(PLAIN, causal=True), scaled_by=scaled_by) for scaled_by in ScaledBy),
        coded(replace(PLAIN, causal=True, padding=Padding.LENGTHS).sized(query_length=2, key_length=11)),
        context=CONTEXT,
    ),
)
