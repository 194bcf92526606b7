"""Several processes: of the suite, where a candidate dies, and of a candidate, where one of them does."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.safe_call import LostError
from attention_conformance.implementations.worker.door import Door
from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.limits import DEATHS
from attention_conformance.implementations.worker.ranks import MODULE
from attention_conformance.implementations.worker.remote import (
    Remote,
    commanded_candidate,
    end_process,
    loss_of,
    share_losses,
)
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.conformance.test_causal import SQUARE
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.sessions import OF_NUMPY, Sessions
from attention_conformance.tests.selftest.thorough import by_turns, thorough

DYING = f"""import os, sys
{OF_NUMPY}

def attention(query, key, value, is_causal=False):
    if is_causal and query.shape[-2] > 6 and (OFTEN or query.shape[-2] == 17 and query.dtype == np.float64):
        print("goodbye", file=sys.stderr)
        DIES
    return right(query, key, value, is_causal)
"""
ABORTING = DYING.replace("DIES", "os.abort()")
OFTEN, ONCE = ABORTING.replace("OFTEN", "True"), ABORTING.replace("OFTEN", "False")
LEAVING = DYING.replace("OFTEN", "True").replace("DIES", "os._exit(0)")
SPANNING = """
import os, time, torch
import torch.distributed as dist


def attention(query, key, value, is_causal=False):
    rank, count = dist.get_rank(), dist.get_world_size()
    rows = torch.arange(query.shape[-2])[rank::count]
    scores = query[:, :, rows] @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        LOST if rank == 1 and query.shape[-2] > 6 else None
        scores = scores.masked_fill(torch.arange(key.shape[-2]) > rows[:, None], float("-inf"))
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    output[:, :, rows] = scores.softmax(-1) @ value
    dist.all_reduce(output)
    return output
"""
"""Attention of which each process of a group has its share of the queries; on longer causal ones process 1 is lost."""
SOME = ("--clause", "causal.square", "--clause", "scores.dot-product", "--dtype", "float64")
MORE = (*SOME, "--clause", "scores.*", "--dtype", "float32")


def judged(
    sessions: Sessions, folder: Path, text: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A run in a process of its own, and its report."""
    folder.mkdir()
    file = folder / "dying.py"
    file.write_text(text)
    arguments = ("--candidate", f"{file}:attention", "--report", str(folder), *options)
    result = sessions.apart(*arguments)
    return result, json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize(
    ("text", "same"),
    [pytest.param(ONCE, True, id="once"), pytest.param(OFTEN, False, id="often", marks=thorough)],
)
def test_deaths_end_with_the_same_verdicts_on_two_processes(
    sessions: Sessions, tmp_path: Path, text: str, same: bool
) -> None:
    """A candidate that is lost too often is given up by all, but where one process is in a clause it ends that."""
    verdicts = []
    for processes in ("0", "2"):
        result, report = judged(sessions, tmp_path / processes, text, *MORE, "-n", processes)
        assert result.returncode == ExitStatus.FAILS, result.stdout + result.stderr
        assert report["completion"]["complete"] is True
        (entry,) = report["implementations"]
        assert entry["verdict"] == "fails"
        verdicts.append({(v["clause"], v["dtype"]): (v["status"], v["failure"]) for v in entry["verdicts"]})
        failure = verdicts[-1]["causal.square", "float64"][1]
        assert failure["kind"] == "died"
        assert "died of SIGABRT (Aborted); its last output: goodbye" in failure["message"]
    assert verdicts[0].keys() == verdicts[1].keys()
    assert verdicts[0] == verdicts[1] or not same


@pytest.mark.parametrize("processes", by_turns(["2", "0"], 2))
def test_what_ends_the_judges_process_ends_no_run_well(sessions: Sessions, tmp_path: Path, processes: str) -> None:
    result, report = judged(sessions, tmp_path / "run", LEAVING, *SOME, "-n", processes, "--in-process")
    assert result.returncode == ExitStatus.INTERRUPTED, result.stdout + result.stderr
    assert report["completion"]["complete"] is False
    assert "conforms" not in {entry["verdict"] for entry in report["implementations"]}
    output = result.stdout + result.stderr
    assert (
        "by os._exit(0): without --in-process that is its failure" in output
        if processes == "0"
        else "crashed" in output
    )


def test_what_leaves_as_it_is_imported_ends_no_run_well(sessions: Sessions, tmp_path: Path) -> None:
    result, report = judged(sessions, tmp_path / "run", "import os\nos._exit(0)\n", *SOME, "--in-process")
    assert result.returncode == ExitStatus.INTERRUPTED
    assert report["completion"] == {"complete": False, "reason": "the run has not ended", "verdicts": 0}


def test_losses_count_together_where_processes_share_them(tmp_path: Path) -> None:
    claims = Claims(Scope.OP, frozenset({Feature.CORE}))
    judges = [[Implementation(name, claims, Remote(Door({}, ()), {})) for name in ("lost", "kept")] for _ in range(2)]
    for judge in judges:
        share_losses(judge, tmp_path)
    for number in range(DEATHS):
        assert not loss_of(judges[1][0])
        run = judges[number % 2][0].run
        assert isinstance(run, Remote)
        run.door._lost("died of a test")
    reason = f"its process was lost {DEATHS} times, last because it died of a test"
    assert [[loss_of(each) for each in judge] for judge in judges] == [[reason, ""], [reason, ""]]


WAYS = {
    "ends": ("os._exit(3)", "its last output: process 1 of 2 ended its process with exit status 3"),
    "is killed": ("os.kill(os.getpid(), 9)", "its last output: process 1 of 2 died of SIGKILL"),
    "keeps silent": ("time.sleep(600)", "gave no answer within 4"),
}


@pytest.mark.parametrize("way", by_turns(list(WAYS), 3))
def test_a_candidate_that_spans_processes_is_judged_by_what_the_first_says(tmp_path: Path, way: str) -> None:
    lost, words = WAYS[way]
    (tmp_path / "spanning.py").write_text(SPANNING.replace("LOST", lost))
    command = [*module_command(MODULE), "--processes", "2", f"{tmp_path / 'spanning.py'}:attention"]
    spanning = commanded_candidate(shlex.join(command), {}, deadline=4.0)
    try:
        (verdict,) = run(spanning, ("scores.dot-product",), ("float32",))
        assert verdict.status is Status.PASS
        with pytest.raises(LostError, match=words):
            spanning.run(Judge(spanning, "float32").problem(SQUARE), "cpu")
    finally:
        end_process(spanning)
    assert isinstance(spanning.run, Remote)
    assert spanning.run.door.left == []
