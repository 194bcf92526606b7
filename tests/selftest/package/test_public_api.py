"""The public names, `check` and `parametrize_with_clauses`: what users of the package hold in their hands."""

import ast
import importlib
import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import attention_conformance
from attention_conformance import (
    Claims,
    ClauseCheck,
    Conformance,
    ExpectedFailure,
    Feature,
    Implementation,
    Scope,
    Unsupported,
    check,
    parametrize_with_clauses,
    torch_op,
)
from attention_conformance.implementations.worker.remote import Remote, end_process
from attention_conformance.tests.harness.run.arguments import arguments
from attention_conformance.tests.report.views import VIEWS

SOME = ("scores.dot-product", "masks.bool", "causal.square")


def right(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def late(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Sees the next position as well, and prints."""
    print("<b>called</b>")
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(2), float("-inf"))
    output: torch.Tensor = scores.softmax(dim=-1) @ value
    return output


def adapter(*expected: ExpectedFailure, **changes: Any) -> Implementation:
    features = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.CAUSAL})
    claims = replace(Claims(Scope.OP, features, dtypes=("float64", "float32")), **changes)
    return Implementation("own.<i>late</i>", claims, torch_op(late), expected_failures=expected)


def stated() -> dict[str, str]:
    """The names that type checkers see, and where from."""
    body = ast.parse(Path(attention_conformance.__file__).read_text(encoding="utf-8")).body
    (block,) = (node for node in body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_every_name_is_what_type_checkers_see() -> None:
    for name, module in stated().items():
        assert getattr(attention_conformance, name) is getattr(importlib.import_module(module), name)
    assert {*attention_conformance.__all__} == {*stated(), "__version__"}


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'atention'"):
        attention_conformance.atention  # noqa: B018


def test_importing_the_package_is_cheap(tmp_path: Path) -> None:
    program = """
import sys, attention_conformance
from attention_conformance import Case, Feature, parametrize_with_clauses
parametrize_with_clauses("my:adapter")
print({"torch", "numpy"} & {*sys.modules})"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_right_function_conforms() -> None:
    report = check(right, clauses=SOME, dtypes="float32")
    assert report.verdict is Conformance.CONFORMS
    assert report.failures == ()
    assert [(v.clause, v.dtype) for v in report.verdicts] == [(SOME[0], "float32"), (SOME[2], "float32")]
    assert "right" in str(report)
    assert "conforms" in str(report)


def test_a_mistake_is_named_with_its_case(capsys: pytest.CaptureFixture[str]) -> None:
    report = check(adapter(), clauses=["scores.*", "causal.square"])
    assert report.verdict is Conformance.FAILS
    assert [(f.clause, f.dtype, f.level) for f in report.failures] == [
        ("causal.square", "float64", "MUST"),
        ("causal.square", "float32", "MUST"),
    ]
    assert report.failures[0].message.startswith("query 0 of head 0 (sample 0) may see key 0, yours also saw key 1")
    assert "causal=True" in report.failures[0].case
    assert "`next-position-seen`" in report.diagnosis
    assert capsys.readouterr().out == ""


def test_a_notebook_gets_escaped_html() -> None:
    html = check(adapter(), clauses="causal.square", dtypes="float32")._repr_html_()
    assert "own.&lt;i&gt;late&lt;/i&gt;: fails" in html
    assert "<td>causal.square</td><td>float32</td><td>MUST</td>" in html
    assert "<i>" not in html


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text(f"import torch\n{inspect.getsource(late)}")
    report = check(f"{file}:late", clauses="causal.square", dtypes="float64")
    page = report.write(tmp_path / "new" / "report")
    assert page.name == "report.html"
    assert {path.name for path in page.parent.iterdir()} == {*VIEWS, "events.jsonl", "failures"}
    assert {path.suffix for path in (page.parent / "failures").iterdir()} == {".json", ".py"}
    assert f"attention-conformance check {file}:late" in page.read_text(encoding="utf-8")


def test_a_target_has_limits(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def mine(query, key, value):\n    return query @ key.mT @ value\n")
    loaded = arguments(f"{file}:mine", (), (), "quick", "cpu", {}, 2.5, "4G").implementation
    assert isinstance(loaded.run, Remote)
    assert (loaded.run.door.deadline, loaded.run.door.memory) == (2.5, 2**32)
    end_process(loaded)


def test_expected_failures_change_the_verdict() -> None:
    known = ExpectedFailure("causal.square", "sees one more", "https://example.org/1")
    assert check(adapter(known), clauses="causal.square").verdict is Conformance.CONFORMS
    outdated = ExpectedFailure("scores.dot-product", "is repaired", "https://example.org/1")
    assert check(adapter(outdated), clauses="scores.dot-product").verdict is Conformance.ERROR


def test_what_is_not_claimed_is_not_checked() -> None:
    report = check(right, clauses="dropout.*")
    assert report.verdict is Conformance.NOTHING_CHECKED
    assert report.verdicts == ()


def test_conventions_are_taken_as_on_the_command_line() -> None:
    choice: dict[str, Any] = {"clauses": "masks.empty-row-bool", "dtypes": "float64"}
    zeros = check(F.scaled_dot_product_attention, **choice)
    nan = check(F.scaled_dot_product_attention, **choice, conventions={"empty-row": "nan"})
    assert (zeros.verdict, nan.verdict) == (Conformance.CONFORMS, Conformance.FAILS)


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (ValueError, {"clauses": "maskz.*"}, "clauses 'maskz.\\*' selects nothing; there are for example: masks"),
        (ValueError, {"dtypes": ["float31"]}, "dtypes 'float31' selects nothing; there are for example: float32"),
        (ValueError, {"tier": "fast"}, "tier 'fast' selects nothing"),
        (ValueError, {"device": "nowhere"}, "device 'nowhere' is not available here"),
        (ValueError, {"conventions": {"empty": "nan"}}, "no convention is named 'empty'; did you mean 'empty-row'"),
        (ValueError, {"target": "late.py"}, "target 'late.py' has no colon: write FILE.py:NAME"),
        (ValueError, {"target": torch.nn.Linear(1, 1)}, "Linear: it is an instance of Linear: give the class"),
        (
            ValueError,
            {"target": "a.py:f", "deadline": 0},
            "deadline 0 is no time: give seconds, more than 0 and at most",
        ),
        (ValueError, {"target": "a.py:f", "memory": "8X"}, "'8X' is no size of memory"),
        (ValueError, {"memory": "8G"}, "an object is called in this one: give the target as FILE.py:NAME"),
        (TypeError, {"target": 5}, "target: 5 is of type int; give FILE.py:NAME"),
        (TypeError, {"dtypes": [torch.float32]}, "dtypes: torch.float32 is of type dtype; give strings"),
    ],
)
def test_arguments_that_cannot_be_used_are_named_with_a_remedy(
    error: type[Exception], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(error, match=message):
        check(**{"target": right, **arguments})


def clause_check(implementation: Implementation, clause: str) -> ClauseCheck:
    """The check of one clause in float64, as a test receives it."""
    (parameter,) = parametrize_with_clauses(implementation, clauses=clause, dtypes="float64").args[1]
    (value,) = parameter.values
    assert isinstance(value, ClauseCheck)
    return value


def test_a_clause_that_is_no_must_is_an_xfail() -> None:
    failing = clause_check(adapter(), "causal.square")
    with pytest.raises(pytest.fail.Exception, match="yours also saw key 1"):
        failing.check()
    with pytest.raises(pytest.xfail.Exception, match="yours also saw key 1"):
        replace(failing, level="SHOULD").check()


def test_a_clause_without_a_case_that_fits_is_skipped() -> None:
    implementation = adapter(fit=lambda case: Unsupported("its sizes are fixed"))
    with pytest.raises(pytest.skip.Exception, match="its sizes are fixed"):
        clause_check(implementation, "scores.dot-product").check()
