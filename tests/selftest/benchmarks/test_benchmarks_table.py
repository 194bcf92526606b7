"""The terminal table of a benchmark run: it has all results, also the bad ones."""

from dataclasses import replace

import pytest

from attention_conformance.tests.benchmarks import formatting
from attention_conformance.tests.benchmarks.benchmark_run import Interval, Measurement, Run, Speed
from attention_conformance.tests.benchmarks.text_table import LEGEND, lines
from attention_conformance.tests.selftest.benchmarks import benchmark_data

RUN = benchmark_data.invented()
TEXT = "\n".join(lines(RUN, 100))


def one(**fields: object) -> Measurement:
    return replace(RUN.measurements[0], **fields)  # type: ignore[arg-type]


def text(*measurements: Measurement, width: int = 100) -> str:
    return "\n".join(lines(replace(RUN, measurements=measurements, growths=()), width))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines(RUN, width))) <= width


def test_every_measurement_has_its_lines() -> None:
    for each in benchmark_data.IMPLEMENTATIONS:
        assert TEXT.count(f"\n  {each.name}") >= len(RUN.measurements) / len(benchmark_data.IMPLEMENTATIONS), each.name
    assert all(f"\n{name}: " in TEXT for name in benchmark_data.WORKLOADS)
    assert all(TEXT.count(f" {verdict}") >= 16 for verdict in (Speed.FASTER, Speed.SLOWER, Speed.SAME))


def test_the_head_has_the_machine_and_the_noise() -> None:
    head = TEXT.split("\n\n")[0]
    rates = ("float32 120 GFLOP/s", "18.0 GB/s", "noise 1.0 % .. 3")
    for text_of_head in (benchmark_data.MACHINE.processor, "2 threads", "torch 2.13.0", *rates):
        assert text_of_head in head


def test_no_time_without_a_verdict_of_speed() -> None:
    for verdict in (Speed.WRONG, Speed.IMPOSSIBLE, Speed.UNSUPPORTED, Speed.ERROR):
        shown_text = text(one(verdict=verdict, reason="because\nof\x1b[2Jthis", seconds=(0.0123,) * 5))
        assert f"{verdict}: because of\\x1b[2Jthis" in shown_text
        assert "12.3 ms" not in shown_text
    assert "12.3 ms" in text(one(verdict=Speed.FASTER, seconds=(0.0123,) * 5))


def test_a_missing_reason_is_reported() -> None:
    assert "error: no reason is known" in text(one(verdict=Speed.ERROR, reason=" "))


def test_an_incomplete_run_begins_with_it() -> None:
    assert next(lines(replace(RUN, complete=False))).startswith("INCOMPLETE")
    assert "INCOMPLETE" not in TEXT


def test_names_are_neither_cut_nor_interpreted() -> None:
    assert benchmark_data.LONG in TEXT
    assert benchmark_data.MARKUP in TEXT
    assert "\\u202e" in text(one(implementation="evil\u202ename"))


def test_the_adapters_cost_is_marked() -> None:
    assert " ms*" in text(one(adapter=True)) or " µs*" in text(one(adapter=True))
    assert "s*" not in text(one(adapter=False))


def test_an_empty_run_is_its_head() -> None:
    assert "noise not measured" in "\n".join(
        lines(Run(benchmark_data.MACHINE, benchmark_data.RATES, "now", complete=True), 100)
    )
    assert LEGEND[:10] not in text()


def test_growth_has_the_outcome_of_a_claim() -> None:
    assert "torch.sdpa.flash: memory ~ L^1.00 [0.96, 1.05]" in TEXT
    assert "; at most 1.1: holds" in TEXT.replace("\n    ", " ")
    assert "; at most 1.1: DOES NOT HOLD" in TEXT.replace("\n    ", " ")
    undecided = replace(RUN.growths[0], claimed=2.0, holds=None)
    assert "; at most 2: undecided" in "\n".join(lines(replace(RUN, growths=(undecided,)), 120))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0.0, "0 ns"),
        (3e-10, "0.300 ns"),
        (9.996e-7, "1000 ns"),
        (1e-6, "1.00 µs"),
        (0.0123, "12.3 ms"),
        (1.0, "1.00 s"),
        (5000.0, "5000 s"),
    ],
)
def test_seconds(value: float | None, expected: str) -> None:
    assert formatting.in_seconds(value) == expected


def test_other_units() -> None:
    assert [formatting.in_bytes(each) for each in (0, 999, 1000, 12_600_000)] == ["0 B", "999 B", "1.00 kB", "12.6 MB"]
    assert formatting.in_rate(1.21e12, "FLOP") == "1.21 TFLOP/s"
    percents = [formatting.in_percent(each) for each in (0.0, 1e-6, 0.0142, 0.0996, 0.62, 1.04)]
    assert percents == ["0.0 %", "<0.1%", "1.4 %", "10 %", "62 %", "104 %"]
    bounds = [formatting.in_bounds(each) for each in (None, 0.0, 0.004, 0.123, 2e17)]
    assert bounds == ["-", "0", "<0.01", "0.12", "2e+17"]
    assert formatting.as_ratio(Interval(0.9974, 0.9861, 1.0162)) == "0.997 [0.986, 1.016]"
    assert formatting.as_ratio(Interval(12.34, 12.1, 12.6)) == "12.3 [12.1, 12.6]"


def test_derived_figures() -> None:
    measurement = one(seconds=(2.0, 4.0, 3.0), floor=1.5, operations=600, bytes=300, resident=7, allocated=None)
    assert formatting.share_of_floor(measurement) == 0.5
    assert (formatting.achieved(measurement), formatting.intensity(measurement)) == (200.0, 2.0)
    assert (formatting.memory_of(measurement), formatting.memory_of(replace(measurement, allocated=0))) == (7, 0)
    assert formatting.quartiles(measurement.seconds) == (2.5, 3.5)
    empty = one(seconds=(), floor=None, operations=0, bytes=0)
    assert {formatting.share_of_floor(empty), formatting.achieved(empty), formatting.intensity(empty)} == {None}


def test_a_baseline_is_compared_with_itself() -> None:
    assert "1.00 [0.99, 1.01]" in text(one(verdict=Speed.BASELINE, speed=Interval(1.0, 0.99, 1.01)))


def test_clauses_and_what_was_not_run() -> None:
    assert "\n  DOES NOT HOLD speed.first-call [" in TEXT
    assert "\n  speed.time-growth: 1 holds, 1 undecided\n" in TEXT
    assert "NOT RUN: no GPU: --device cuda" in TEXT.split("\n\n")[0]
