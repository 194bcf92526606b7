"""Variants that are named after a code path of torch: they take it, and leaving it is an error."""

from dataclasses import replace

import pytest
import torch.nn.functional as F

from attention_conformance.implementations.adapters.code_path import OnPath
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Implementation, PathError, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.mha import TORCH_MODULES
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.observed_conventions import EMPTY_ROWS, observations
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

(FAST_PATH,) = (each for each in TORCH_MODULES if each.name == "torch.mha.fast-path")
(FLASH,) = (each for each in TORCH_OPS if each.name == "torch.sdpa.flash")
ON_PATH = [each for each in (*TORCH_MODULES, *TORCH_OPS) if isinstance(each.run, OnPath)]
CASES = (Case(), Case(mask=MaskKind.BOOL), Case(causal=True), Case(padding=Padding.RIGHT), Case().sized(num_heads=4))


def test_which_variants_stand_for_a_path() -> None:
    assert [each.name for each in ON_PATH] == ["torch.mha.fast-path", "torch.sdpa.math", "torch.sdpa.flash"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", ON_PATH, ids=lambda each: each.name)
def test_each_case_takes_the_path(implementation: Implementation, dtype: str) -> None:
    fitted = [fit(case, implementation.claims) for case in CASES]
    problems = [build(case, dtype).forward_only() for case in fitted if not isinstance(case, Unsupported)]
    assert len(problems) >= len(CASES) - 1
    for problem in problems:
        implementation.run(problem, "cpu")


@pytest.mark.parametrize("num_heads", [1, 3, 5])
def test_an_odd_number_of_heads_leaves_the_fast_path(num_heads: int) -> None:
    wide = replace(FAST_PATH.claims, fit=lambda case: case)
    odd = fit(Case().sized(num_heads=num_heads), wide)
    assert isinstance(odd, Case)
    with pytest.raises(PathError, match="_native_multi_head_attention"):
        FAST_PATH.run(build(odd, "float32").forward_only(), "cpu")
    even = fit(Case().sized(num_heads=num_heads), FAST_PATH.claims)
    assert isinstance(even, Case)
    assert even.sizes.num_heads == num_heads + 1


def test_a_float_mask_leaves_the_fast_path() -> None:
    features = FAST_PATH.claims.features | {Feature.FLOAT_MASK}
    case = fit(Case(mask=MaskKind.FLOAT), replace(FAST_PATH.claims, features=features))
    assert isinstance(case, Case)
    with pytest.raises(PathError):
        FAST_PATH.run(build(case, "float32").forward_only(), "cpu")


def test_a_variant_that_leaves_its_path_is_an_error() -> None:
    odd = replace(FAST_PATH, claims=replace(FAST_PATH.claims, fit=lambda case: case))
    (verdict,) = run(odd, ("softmax.over-keys",), ("float32",))
    assert verdict.status is Status.ERROR
    assert verdict.reason == (
        "torch answered without aten::_native_multi_head_attention, which this implementation stands for"
    )
    (verdict,) = run(FAST_PATH, ("softmax.over-keys",), ("float32",))
    assert verdict.status is Status.PASS


def test_a_kernel_of_another_name_is_an_error() -> None:
    assert isinstance(FLASH.run, OnPath)
    run_of_other = replace(FLASH.run, run=torch_op(lambda q, k, v, **options: F.softmax(q @ k.mT, -1) @ v))
    (verdict,) = run(replace(FLASH, run=run_of_other), ("softmax.over-keys",), ("float32",))
    assert verdict.status is Status.ERROR


def test_empty_tensors_need_no_kernel() -> None:
    empty = build(Case(sizes=Sizes(batch=0, d_v=Sizes.d_k)), "float32").forward_only()
    assert FLASH.run(empty, "cpu").output.shape == (0, Sizes.num_heads, Sizes.query_length, Sizes.d_k)


def test_empty_rows_of_the_fast_path_are_nan() -> None:
    by_question = observations(FAST_PATH, EMPTY_ROWS, ("float32",))
    assert by_question == {"row emptied by a boolean mask": "nan", "sample emptied by padding": "nan"}
