"""flex_attention: its options together, the few kernels that are compiled, and one of them."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.catalogue import ABSENT, ON_REQUEST
from attention_conformance.implementations.builtin.flex import COMPILED, EAGER, missing, uncompiled
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import Packing
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.reference.test_family import assert_agrees

EVERYTHING = Case(sizes=Sizes(num_heads=6, num_kv_heads=3), mask=MaskKind.INFINITE, padding=Padding.LEFT, causal=True)
CASES = {
    "every score_mod": EVERYTHING.extended(softcap=3.0, alibi=True, relative_bias=1, query_start=3),
    "every mask_mod": replace(EVERYTHING, mask=MaskKind.BOOL).extended(
        window_left=3, window_right=1, packing=Packing.SEGMENTS
    ),
    "sinks over rows without keys": Case(padding=Padding.EMPTY_SAMPLE).extended(sinks=True, packing=Packing.LENGTHS),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_options_go_together(name: str, dtype: str) -> None:
    assert assert_agrees(EAGER, dtype, CASES[name], "output", "log_sum_exp").checks == 2


def test_the_way_it_is_called_is_put_back() -> None:
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    with pytest.raises(ZeroDivisionError), uncompiled():
        raise ZeroDivisionError
    assert flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is before


def test_a_few_kernels_are_compiled() -> None:
    fitted = fit(Case(causal=True, padding=Padding.LEFT), COMPILED.claims)
    assert fitted == Case(causal=True, padding=Padding.LEFT).sized(d_v=4)
    assert fit(Case().sized(key_length=8), COMPILED.claims) == Unsupported(
        "each shape is compiled anew, and only two are checked"
    )
    three = Case(causal=True, padding=Padding.LEFT).extended(softcap=2.0)
    assert fit(three, COMPILED.claims) == Unsupported(
        "each combination is compiled anew, and no more than two options are combined"
    )


def test_it_is_absent_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert missing() == "torch.compile needs a C++ compiler, and there is no no-such-compiler"


def test_it_is_on_request_or_absent() -> None:
    assert (COMPILED in ON_REQUEST) is not (COMPILED.name in ABSENT)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_compiled_kernel() -> None:
    torch._dynamo.reset()
    (verdict,) = run(COMPILED, ("causal.square",), ("float32",))
    assert verdict.status is Status.PASS
    assert verdict.checks
