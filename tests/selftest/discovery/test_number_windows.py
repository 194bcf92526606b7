"""Windows that a function takes as one number: judged as they are seen, and not as their names may be read."""

import pytest

from attention_conformance.spec.conventions import Alignment
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

FUNCTION = """
def f(query, key, value, {parameters}):
    s = query @ key.mT / query.shape[-1] ** 0.5
    j = torch.arange(key.shape[2])
    i = torch.arange(query.shape[2])[:, None] + {start}
    if {window} is not None:
        s = s.masked_fill({hidden}, -torch.inf)
    return s.softmax(-1) @ value
"""
AT_END = "key.shape[2] - query.shape[2]"


def function(hidden: str, parameters: str = "window=None", start: str = "0") -> str:
    window = parameters.split(",")[-1].split("=")[0].strip()
    return FUNCTION.format(parameters=parameters, window=window, hidden=hidden, start=start)


def fails(make: Make, text: str) -> bool:
    made = make(text)
    assert Feature.WINDOW in made.claims
    found = run(made, ("window.*",), ("float32",))
    assert any(each.status in (Status.FAIL, Status.PASS) for each in found)
    return any(each.status is Status.FAIL for each in found)


@pytest.mark.parametrize(
    ("hidden", "meaning"),
    [
        ("i - j >= window", "a number of keys before the query, its own included"),
        ("i - j > window", "a number of keys before the query"),
        (
            "(i - j >= window) | (j > i)",
            "a number of keys before the query, and hides those after it, its own included",
        ),
        ("(i - j).abs() > window", "a number of keys before the query, and as many after it"),
        ("(i - j).abs() > window // 2", "a number of keys before the query, and as many after it, all together"),
    ],
)
def test_its_meaning_is_seen(make: Make, hidden: str, meaning: str) -> None:
    text = function(hidden)
    assert f"its 'window' is {meaning}" in make(text).stated
    assert not fails(make, text)


@pytest.mark.parametrize("hidden", ["(i - j >= window) | (j > i)", "(i - j).abs() > window // 2"])
def test_one_that_has_to_be_given_has_all_tokens_without_a_limit(make: Make, hidden: str) -> None:
    text = function(hidden, "window")
    assert "given a window of all tokens in 'window' where a problem has none" in make(text).stated
    assert not fails(make, text)


@pytest.mark.parametrize("start", ["0", AT_END])
def test_the_corner_is_seen(make: Make, start: str) -> None:
    made = make(function("i - j >= window", start=start))
    corner = Alignment.TOP_LEFT if start == "0" else Alignment.BOTTOM_RIGHT
    assert made.claims.conventions.causal_alignment is corner


@pytest.mark.parametrize(
    ("hidden", "wrong"),
    [
        ("i - j >= sliding_window", False),
        ("(i - j >= sliding_window) & (query.shape[2] > 4)", True),
        ("(i - j) // 4 * 4 >= sliding_window", True),
        ("(i - j >= sliding_window) & (j % 8 != 0)", True),
        ("j < 0", True),
    ],
)
def test_keys_that_are_farther_away_are_seen_by_none(make: Make, hidden: str, wrong: bool) -> None:
    assert fails(make, function(hidden, "sliding_window=None", AT_END)) is wrong


def test_a_window_and_the_flag_that_start_from_different_corners_fail(make: Make) -> None:
    flag = "(i - j >= window) | (causal & (j > i + key.shape[2] - query.shape[2]))"
    text = function(flag, "causal=False, window=None").replace(
        "if window is not None:", "window = window or 10**6\n    if True:"
    )
    assert fails(make, text)


def test_what_is_no_window_is_a_finding(make: Make) -> None:
    made = make(function("i // window != j // window"))
    assert Feature.WINDOW not in made.claims
    assert made.findings == {"window": "not judged: the keys that it shows are no window that the suite knows"}


def test_two_sides_are_taken_as_they_are(make: Make) -> None:
    hidden = "(i - j > window_size[0]) & (window_size[0] >= 0) | (j - i > window_size[1]) & (window_size[1] >= 0)"
    text = function(hidden.replace("(window_size[0] >= 0)", "torch.tensor(window_size[0] >= 0)"), "window_size=None")
    text = text.replace("(window_size[1] >= 0)", "torch.tensor(window_size[1] >= 0)")
    assert not fails(make, text)
