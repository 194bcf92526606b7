"""The collector: takes the verdicts out of the reports of tests, those of other processes too."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run.clause_items import ClauseModule
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.session import ENDS, LEFTOVERS, LOSSES, PROPERTY, USAGE_ERROR, SuiteSession
from attention_conformance.tests.report.log import decode
from attention_conformance.tests.report.verdict import Verdict

OF_CLAUSES = "of_clauses"
"""The attribute of the report of a collected file that states whether it is one of the suite's own."""


@dataclass(eq=False)
class Collector:
    """Receives the reports of a session, its workers' too.

    Attributes:
        begin: starts the report.
        losses: the folder in which the processes of a session count how often each has lost a candidate.
    """

    state: SuiteSession
    begin: Callable[[pytest.Config], None]
    losses: TemporaryDirectory[str] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        verdicts = [value for name, value in report.user_properties if name == PROPERTY]
        if report.when == "call" and verdicts:
            self.state.recorder.add(decode(str(verdicts[0])))
            if unwritten := self.state.recorder.unwritten:
                pytest.exit(f"--report: {unwritten}: make room, or give another folder", ExitStatus.INTERRUPTED)
        elif report.when == "call" and report.failed and _is_clause(report.nodeid):
            self.state.crashed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Marks the report, which another process of the session may read."""
        report = yield
        vars(report)[OF_CLAUSES] = isinstance(collector, ClauseModule)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and getattr(report, OF_CLAUSES, False):
            self.state.crashed = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if self.losses is None:
            self.losses = TemporaryDirectory(prefix="attention-conformance-")
            node.config.add_cleanup(self.losses.cleanup)
        node.workerinput[LOSSES] = self.losses.name

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if planned := sum(map(_is_clause, ids)):
            self.state.recorder.planned = planned
            self.begin(node.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self.state.leftovers += output.get(LEFTOVERS, ())
        self.state.ends += [each for each in map(decode, output.get(ENDS, ())) if isinstance(each, Verdict)]
        if USAGE_ERROR in output:
            raise pytest.UsageError(output[USAGE_ERROR])


def _is_clause(nodeid: str) -> bool:
    """By its name, as where its file is depends on the settings of whoever runs pytest; no function has a dot in it."""
    return nodeid.partition("::")[2].partition("[")[0] in load()
