"""Replay and scripts: each failure can be shown again, with the suite and without, and both are run here."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.tests.conformance.test_causal import SQUARE
from attention_conformance.tests.harness.explain.replay import FailureFile, ReplayError
from attention_conformance.tests.harness.explain.script import MOST_LINES
from attention_conformance.tests.selftest.discovery.making import START
from attention_conformance.tests.selftest.sessions import Sessions
from attention_conformance.tests.selftest.thorough import by_turns, thorough

RIGHT = """
def f(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return attend(query, key, value, attn_mask, is_causal, scale)[0]
"""
EMPTY_ROWS = ("--convention", "empty-row=nan")
WRONG = {
    "scaled": ("attend(query", "attend(2 * query", "scores.dot-product"),
    "causal": ("attn_mask, is_causal, scale", "attn_mask, False, scale", "causal.square"),
    "nan": ("scale)[0]", "scale)[0] * torch.nan", "scores.dot-product"),
    "masks": ("value, attn_mask, is", "value, None if attn_mask is None else attn_mask[:1], is", "masks.broadcast"),
    "shape": ("scale)[0]", "scale)[0][..., :1]", "values.width"),
    "dtype": ("scale)[0]", "scale)[0].float()", "scores.dot-product"),
    "query": ("attend(query, key, value", "attend(2 * query - query.detach(), key, value", "gradients.query"),
    "key": ("attend(query, key, value", "attend(query, 2 * key - key.detach(), value", "gradients.key"),
    "value": ("attend(query, key, value", "attend(query, key, 2 * value - value.detach()", "gradients.value"),
    "raises": ("return", "assert query.shape[-2] < 2 or not is_causal, 'no'\n    return", "causal.square"),
}
"""What is changed of RIGHT, and a clause that then fails."""
FILE = FailureFile("torch.sdpa.math", "causal.square", "float64", SQUARE, "output of sample 0 is 1")


def alone(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script run in another folder, without this suite on the path."""
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def forget_candidates() -> None:
    """The next session reads their files again, as a new process would."""
    for name in [name for name in sys.modules if name.startswith("_candidate_")]:
        del sys.modules[name]


def failing(sessions: Sessions, folder: Path, text: str, clause: str, *options: str, dtype: str = "float64") -> Path:
    """The failure file that a run of `f` writes."""
    source = folder / "mine.py"
    source.write_text(START + text)
    chosen = ("--candidate", f"{source}:f", "--clause", clause, "--dtype", dtype, *EMPTY_ROWS, *options)
    result = sessions.run(*chosen, "--report", str(folder / "report"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (file,) = (folder / "report" / "failures").glob("*.json")
    assert f"pytest --replay {file}" in result.stdout.str()
    return file


def of_wrong(sessions: Sessions, folder: Path, name: str) -> tuple[str, Path]:
    """The clause that one of WRONG fails, and the failure file."""
    old, new, clause = WRONG[name]
    return clause, failing(sessions, folder, RIGHT.replace(old, new, 1), clause)


@pytest.mark.parametrize("name", by_turns([*WRONG], 3))
def test_scripts_and_files_show_the_failure(sessions: Sessions, tmp_path: Path, name: str) -> None:
    clause, file = of_wrong(sessions, tmp_path, name)
    script = file.with_suffix(".py")
    lines = script.read_text().splitlines()
    assert len(lines) <= MOST_LINES
    assert not [line for line in lines if "implementations" in line or "harness" in line]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    broken = alone(script, elsewhere)
    assert broken.returncode == 1
    assert broken.stdout.startswith("expected ") or "Error" in broken.stderr or "expected" in broken.stderr
    again = sessions.run("--replay", str(file))
    assert again.ret == 1
    assert f"{clause} of f in float64 still fails: B=" in again.stdout.str()


@pytest.mark.parametrize("name", by_turns(["raises", "masks", "key"], 3))
def test_scripts_and_files_hold_when_it_is_mended(sessions: Sessions, tmp_path: Path, name: str) -> None:
    clause, file = of_wrong(sessions, tmp_path, name)
    (tmp_path / "mine.py").write_text(START + RIGHT)
    mended = alone(file.with_suffix(".py"), tmp_path)
    assert (mended.returncode, mended.stderr) == (0, "")
    assert mended.stdout.startswith("expected ")
    forget_candidates()
    held = sessions.run("--replay", str(file))
    assert held.ret == 0
    assert f"{clause} of f in float64 holds now: B=" in held.stdout.str()


NUMPY = """
def f(q, k, v, mask=None, causal=False):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(*s.shape[-2:], 1), s, -np.inf)
    if mask is not None:
        s = np.where(mask[..., ::-1], -np.inf, s)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return (p @ v).astype(q.dtype), p.astype(q.dtype)
"""


@pytest.mark.parametrize(
    ("clause", "call"),
    [
        ("causal.square", "causal=True"),
        pytest.param("masks.bool", "mask=~mask", marks=thorough),
    ],
)
def test_a_script_calls_as_the_suite_does(sessions: Sessions, tmp_path: Path, clause: str, call: str) -> None:
    masked_out = ("--convention", "bool-mask=masked-out")
    script = failing(sessions, tmp_path, NUMPY, clause, *masked_out, dtype="float32").with_suffix(".py")
    assert f"module.f(q, k, v, {call})" in script.read_text()
    assert "dtype=np.float32" in script.read_text()
    assert "torch" not in script.read_text()
    assert alone(script, tmp_path).returncode == 1


def test_a_failure_that_calls_before_bring_about_has_no_script(sessions: Sessions, tmp_path: Path) -> None:
    text = "calls = []\n" + RIGHT.replace("    return", "    calls.append(1)\n    return (1 + (len(calls) > 60)) *")
    file = failing(sessions, tmp_path, text, "shapes.combinations")
    assert not file.with_suffix(".py").exists()


WRONG_WEIGHTS = RIGHT.replace("scale)[0]", "scale)[:2]").replace("return a", "o, p = a") + "    return o, p * 2\n"
WRONG_WITH_MANY_KEYS = RIGHT.replace("return ", "return (2 if key.shape[-2] > 200 else 1) * ")


@pytest.mark.parametrize(
    ("text", "clause", "part"),
    [
        (WRONG_WEIGHTS, "softmax.weights", "got = got[1]"),
        (WRONG_WITH_MANY_KEYS, "shapes.large", "default_rng(0)"),
    ],
)
def test_scripts_of_weights_and_of_many_numbers(
    sessions: Sessions, tmp_path: Path, text: str, clause: str, part: str
) -> None:
    script = failing(sessions, tmp_path, text, clause).with_suffix(".py")
    assert part in script.read_text()
    assert len(script.read_text()) < 3000
    assert alone(script, tmp_path).returncode == 1


def test_a_module_has_no_script_and_is_replayed(sessions: Sessions, tmp_path: Path) -> None:
    text = """
class f(nn.MultiheadAttention):
    def forward(self, *inputs, **options):
        output, weights = super().forward(*inputs, **options)
        return output * 2, weights
"""
    file = failing(sessions, tmp_path, text, "projections.output")
    assert not file.with_suffix(".py").exists()
    assert sessions.run("--replay", str(file)).ret == 1


def test_a_relation_is_replayed_by_its_clause(sessions: Sessions, tmp_path: Path) -> None:
    text = RIGHT.replace("attend(query, key, value", "attend(query, key, value.clamp(max=5)")
    file = failing(sessions, tmp_path, text, "relations.linear-values")
    assert json.loads(file.read_text())["kind"] == ""
    again = sessions.run("--replay", str(file))
    assert again.ret == 1
    assert "values times" in again.stdout.str()


def test_without_a_report_the_first_failure_shows_all(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(START + RIGHT.replace("attend(query, key, value", "attend(query, key, 2 * value"))
    chosen = ("--clause", "scores.dot-product", "--clause", "values.w*", "--dtype", "float64", *EMPTY_ROWS)
    result = sessions.run("--candidate", f"{tmp_path / 'mine.py'}:f", *chosen)
    text = result.stdout.str()
    assert text.count("smallest failing case: B=1 H=1") == 1
    assert text.index("scores.dot-product (MUST)") < text.index("smallest") < text.index("= conformance =")
    script = text.partition("script that shows it without this suite:\n")[2].partition("sys.exit(not off <= bound)")
    (tmp_path / "script.py").write_text("".join(line[4:] for line in "".join(script[:2]).splitlines(keepends=True)))
    assert alone(tmp_path / "script.py", tmp_path).returncode == 1


@thorough
def test_two_processes_explain_as_one(sessions: Sessions, tmp_path: Path) -> None:
    chosen = ("--candidate", f"{sessions.file}:halved", "--clause", "causal.*", "--dtype", "float64")
    sessions.run(*chosen, "--report", str(tmp_path / "one"), diagnosed=True)
    result = sessions.apart(*chosen, "--report", str(tmp_path / "two"), "-n", "2")
    assert "smallest failing case: " in result.stdout
    assert ": an Implementation cannot be called without this suite" in result.stdout
    scripts = [
        {path.name: path.read_text() for path in (tmp_path / folder / "failures").iterdir()}
        for folder in ("one", "two")
    ]
    assert scripts[0] == scripts[1]
    assert len(scripts[0]) == 6


def test_files_of_an_earlier_run_are_removed(sessions: Sessions, tmp_path: Path) -> None:
    chosen = ("--clause", "causal.square", "--report", str(tmp_path))
    sessions.judge("halved", *chosen)
    (file,) = (tmp_path / "failures").iterdir()
    assert file.name == "causal.square--halved--float64.json"
    sessions.judge("right", *chosen)
    assert not list((tmp_path / "failures").iterdir())


def test_round_trip() -> None:
    assert FailureFile.from_json(FILE.to_json()) == FILE


def test_a_case_that_holds_is_reported(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "failure.json").write_text(FILE.to_json())
    result = sessions.run("--replay", str(tmp_path / "failure.json"))
    assert result.ret == 0
    assert "causal.square of torch.sdpa.math in float64 holds now: B=2" in result.stdout.str()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other/1"}, "format is 'other/1', expected 'attention-conformance/failure/2'"),
        ({"clause": "causal.sqare"}, "clause cannot be 'causal.sqare'"),
        ({"clause": None}, "clause cannot be None"),
        ({"dtype": "float31"}, "dtype cannot be 'float31'; choose from: float64, "),
        ({"tier": "quik"}, "tier cannot be 'quik'; choose from: quick, "),
        ({"case": {"sizes": {"batch": "two"}}}, "case.sizes.batch cannot be 'two'"),
        ({"case": 3}, "case must be an object"),
        ({"cotangent": [0, "1"]}, "cotangent cannot be [0, '1']"),
        ({"decimals": -1}, "decimals cannot be negative"),
        ({"decimals": True}, "decimals cannot be True"),
        ({"cotangent": [0, -1]}, "cotangent cannot be negative"),
        ({"conventions": []}, "conventions cannot be []"),
        ({"conventions": {"empty": "nan"}, "target": "FILE:right"}, "conventions: no convention is named 'empty'"),
        ({"extra": 1}, "failure has no field 'extra'"),
        ({"implementation": "torch.spda"}, "implementation 'torch.spda' is not built in"),
        ({"target": "nowhere.py:f"}, "target 'nowhere.py:f' cannot be used: there is no file 'nowhere.py'"),
        ({"device": "cuda:99"}, "device 'cuda:99' "),
        ({"part": "outputs", "kind": "number"}, "case and part do not go together"),
        ({"decimals": 99}, "decimals is 99, more than 30"),
        ({"case": {"score_std": math.nan}}, "case.score_std is nan: no numbers can be compared with it"),
        ({"case": {"score_std": 10**400}}, "case.score_std is inf: no numbers can be compared with it"),
        ({"case": {"score_std": -1}}, "case.score_std"),
        ({"case": {"extension": {"softcap": math.inf}}}, "case.extension.softcap is inf"),
        ({"case": {"sizes": {"num_heads": 0}}}, "case.sizes.num_heads is 0, and has to be 1 at least"),
        ({"case": {"sizes": {"query_length": -3}}}, "case.sizes.query_length is -3, and has to be 0 at least"),
        ({"case": {"sizes": {"num_kv_heads": 2}}}, "case.sizes.num_kv_heads is 2, which does not divide 3 heads"),
        ({"case": {"sizes": {"key_length": 10**9}}}, "elements, more than the 8388608 that are computed"),
        ({"case": {"sizes": {"d_k": 10**9}}}, "elements, more than the 8388608 that are computed"),
        ({"case": {"extension": {"cache_length": 10**9}}}, "elements, more than the 8388608"),
        ({"case": {"extension": {"relative_bias": 10**9}}}, "elements, more than the 8388608"),
        ({"case": {"causal": True, "seed": 77}}, "causal.square has no such case: B=2 H=3 Lq=5 Lk=7"),
        ({"case": {"score_std": 1e300}, "part": "output", "kind": "value"}, "compare nothing"),
        ({"clause": "projections.query"}, "clause projections.query is a clause of the module level"),
        ({"clause": "softmax.weights"}, "the implementation does not claim weights"),
        ({"case": {"extension": {"alibi": True}}}, "the implementation cannot be given the case: does not claim alibi"),
        ({"case": json.loads(SQUARE.as_self_attention().to_json())}, "the case is one of the module level"),
        ({"cotangent": [9], "part": "gradients.key", "kind": "number"}, "case and part do not go together"),
    ],
)
def test_malformed_files_are_refused_in_one_line(
    sessions: Sessions, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    data = {**json.loads(FILE.to_json()), **changes}
    data["target"] = data["target"].replace("FILE", str(sessions.file))
    (tmp_path / "failure.json").write_text(json.dumps(data))
    assert message in sessions.refused("--replay", str(tmp_path / "failure.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[" * 100_000, "it is no JSON"),
        (" " * 2**21, "it has more than 1048576 bytes, the most of a failure file"),
        ("{", "it is no JSON"),
        ("[]", "format is None"),
        ("\xff", "no text"),
    ],
)
def test_other_files_are_refused_in_one_line(
    sessions: Sessions, tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "failure.json").write_bytes(content.encode("latin-1"))
    error_line = sessions.refused("--replay", str(tmp_path / "failure.json"))
    assert error_line.startswith(f"ERROR: --replay {tmp_path / 'failure.json'}: ")
    assert message in error_line


def test_a_lacking_field_is_named() -> None:
    data = json.loads(FILE.to_json())
    for name in data:
        if name != "format":
            with pytest.raises(ReplayError, match=f"failure lacks the field '{name}'"):
                FailureFile.from_json(json.dumps({n: v for n, v in data.items() if n != name}))
