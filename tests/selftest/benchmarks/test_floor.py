"""The floor counts the work of the equations; only impossible times are rejected."""

import time
from dataclasses import replace
from statistics import median

import pytest
import torch

from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Sharing
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import Packing
from attention_conformance.spec.inputs import build
from attention_conformance.tests.benchmarks import floor
from attention_conformance.tests.benchmarks import required_work as work_module
from attention_conformance.tests.benchmarks.benchmark_run import Rates
from attention_conformance.tests.benchmarks.required_work import Work, required_work, visible

PRODUCTS = {"float64": 1e9, "float32": 2e9, "bfloat16": 30e9, "float16": 1e9}
INVENTED = Rates(PRODUCTS, 1e6, {"1000": 8e6, "1000000": 1e6})
"""Narrow products fifteen times as fast as wide ones, float16 slower than float32; a cache of a thousand bytes."""
SQUARE = Case().sized(batch=2, num_heads=3, query_length=8, key_length=8, d_k=4, d_v=5)
FORM = ModuleForm(Sharing.SELF, 12, 12, 12, 12, output_projection=True)


def counted(case: Case, backward: bool = False) -> Work:
    problem = build(case, "float64")
    return required_work(problem if backward else problem.forward_only())


def test_scores_and_weighted_sum_are_counted() -> None:
    result = counted(SQUARE)
    assert result.operations == 2 * 2 * 3 * 8 * 8 * (4 + 5)
    assert result.bytes == 8 * 2 * 3 * 8 * (4 + 4 + 5 + 5)


def test_the_backward_pass_counts_two_products_for_one() -> None:
    there, back = counted(SQUARE), counted(SQUARE, backward=True)
    assert back.operations == 3 * there.operations
    assert back.bytes == 2 * there.bytes


def test_masked_pairs_are_not_counted() -> None:
    pairs = counted(SQUARE).operations // (8 * 8)
    assert counted(replace(SQUARE, causal=True)).operations == pairs * (8 * 9 // 2)
    assert counted(replace(SQUARE, causal=True).extended(window_left=1)).operations == pairs * (8 + 7)
    padded = replace(SQUARE, padding=Padding.LENGTHS)
    assert counted(padded).operations == pairs // 2 * 8 * (6 + 3)
    assert counted(padded).bytes == 8 * 3 * (2 * 8 * (4 + 5) + (6 + 3) * (4 + 5))


MASKED = (
    Case(),
    Case(mask=MaskKind.BOOL),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.HEADS_ONLY),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS_ONLY),
    Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.SHARED, causal=True),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE, padding=Padding.HOLES),
    Case(padding=Padding.QUERY_LENGTHS),
    Case(causal=True).extended(packing=Packing.SEGMENTS),
    Case(causal=True).extended(window_left=2, query_start=3, sinks=True, zero_attn=True),
    Case().sized(num_kv_heads=1).extended(window_left=2, window_right=1),
)


@pytest.mark.parametrize("alignment", Alignment)
@pytest.mark.parametrize("case", MASKED, ids=str)
def test_pairs_are_those_of_the_reference(case: Case, alignment: Alignment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "ROWS", 2)
    problem, conventions = build(case, "float64"), Conventions(causal_alignment=alignment)
    allowed = allowed_keys(problem, conventions)
    result = visible(problem, conventions)
    assert result.pairs == allowed.sum()
    assert result.keys == allowed.any((1, 2)).sum()


def test_a_module_counts_equation_15_1() -> None:
    case = replace(Case(module=FORM), causal=False).sized(batch=2, num_heads=3, query_length=8, key_length=8, d_v=4)
    rows, inner = 2 * 8, 12
    assert counted(case).operations == 2 * (4 * rows * 12 * inner + 2 * 3 * 8 * 8 * (4 + 4))


def test_a_module_may_project_one_query_back_instead_of_all_keys() -> None:
    form = replace(FORM, sharing=Sharing.KEY_VALUE)
    case = Case(module=form).sized(batch=1, num_heads=3, query_length=1, key_length=100, d_v=4)
    projected = 2 * 100 * 12 * 12 + 3 * 100 * (4 + 4)
    absorbed = 2 * 3 * (4 * 12 + 100 * 12)
    assert absorbed < projected
    assert counted(case).operations == 2 * (2 * 12 * 12 + absorbed)


def test_the_floor_is_the_larger_of_two_times() -> None:
    assert floor.floor_seconds(Work(4_000_000_000, 1), "float32", INVENTED) == 2.0
    assert floor.floor_seconds(Work(1, 5_000_000), "float32", INVENTED) == 5.0


def test_a_narrow_dtype_may_be_widened() -> None:
    assert floor.floor_seconds(Work(4_000_000_000, 1), "float16", INVENTED) == 4 / 30
    assert floor.floor_seconds(Work(4_000_000_000, 1), "float64", INVENTED) == 4.0


def test_a_wide_product_may_be_made_of_three_narrow_ones() -> None:
    assert floor.least_seconds(Work(4_000_000_000, 1), "float32", INVENTED) == 0.4
    for dtype in INVENTED.matmul:
        assert floor.least_seconds(Work(10**9, 10**6), dtype, INVENTED) <= floor.floor_seconds(
            Work(10**9, 10**6), dtype, INVENTED
        )


def test_small_sets_move_faster() -> None:
    assert [floor.bandwidth(size, INVENTED) for size in (10, 1000, 999_999, 1_000_000, 10**9)] == [8e6] * 3 + [1e6] * 2
    disturbed = Rates({}, 9e6, {"1000": 8e6, "1000000": 9e6})
    assert floor.bandwidth(1000, disturbed) == 9e6
    assert floor.bandwidth(1000, Rates({}, 3e6)) == 3e6


def test_the_best_of_several_measurements_counts() -> None:
    busy = Rates({"float64": 5e8, "float32": 3e9}, 2e6, {"1000": 1e6, "1000000": 2e6})
    best = floor.fastest(INVENTED, busy)
    assert best.matmul == {**INVENTED.matmul, "float32": 3e9}
    assert best.bandwidth == 2e6
    assert best.by_set == {"1000": 8e6, "1000000": 2e6}


def test_a_time_below_the_floor_is_impossible() -> None:
    done = Work(4_000_000_000, 1)
    assert floor.faster_than_possible([0.01, 0.01, 9.0], done, "float32", INVENTED, lambda: INVENTED) == (
        "took 0.01 s, but the machine needs at least 0.4 s for the work"
    )


def test_rates_of_a_busy_moment_make_no_time_impossible() -> None:
    busy = Rates({name: rate / 100 for name, rate in INVENTED.matmul.items()}, 1e4)
    done = Work(4_000_000_000, 1)
    assert floor.least_seconds(done, "float32", busy) > 1.0
    assert floor.faster_than_possible([1.0], done, "float32", busy, lambda: INVENTED) == ""


def test_nothing_is_measured_again_for_an_ordinary_time() -> None:
    def never() -> Rates:
        raise AssertionError

    assert floor.faster_than_possible([0.5], Work(4_000_000_000, 1), "float32", INVENTED, never) == ""


def test_a_computed_product_is_possible_here_and_a_cached_one_is_not() -> None:
    """Disturbances make the computed one slower, and it stays possible."""
    known = floor.rates("cpu", ("float32",))
    query, side = torch.randn(1, 4, 1024, 64), 4 * 1024 * 1024 * 128
    done = Work(2 * side, 4 * query.numel() * 4)
    cached = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    computed, returned = [], []
    for _ in range(9):
        start = time.perf_counter()
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
        middle = time.perf_counter()
        cached.view_as(cached)
        computed.append(middle - start)
        returned.append(time.perf_counter() - middle)
    assert floor.faster_than_possible(computed, done, "float32", known, lambda: floor.limits("cpu", ("float32",))) == ""
    assert median(returned) < floor.least_seconds(done, "float32", known)


def test_the_machine_is_named() -> None:
    result = floor.machine("cpu")
    assert result.processor
    assert result.cores >= 1
    assert result.threads == torch.get_num_threads()
    assert set(result.versions) == {"python", "torch", "numpy"}
