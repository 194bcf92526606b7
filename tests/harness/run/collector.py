"""The collector: takes the verdicts out of the reports of tests, those of other processes too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.session import LEFTOVERS, LOSSES, PROPERTY, USAGE_ERROR, SuiteSession
from attention_conformance.tests.report.log import decode


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
        elif report.when == "call" and report.failed and _is_chapter(report.nodeid):
            self.state.crashed = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and _is_chapter(report.nodeid):
            self.state.crashed = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        if self.losses is None:
            self.losses = TemporaryDirectory(prefix="attention-conformance-")
            node.config.add_cleanup(self.losses.cleanup)
        node.workerinput[LOSSES] = self.losses.name

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if planned := sum(map(_is_chapter, ids)):
            self.state.recorder.planned = planned
            self.begin(node.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self.state.leftovers += output.get(LEFTOVERS, ())
        if USAGE_ERROR in output:
            raise pytest.UsageError(output[USAGE_ERROR])


def _is_chapter(nodeid: str) -> bool:
    return "tests/conformance/" in nodeid
