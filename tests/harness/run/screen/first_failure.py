"""The first failure: it is diagnosed and printed at once, while the rest is still checked."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from attention_conformance.tests.harness.explain.diagnosis.diagnosed import failing_checks
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck
from attention_conformance.tests.harness.run.plan.selection import hushed
from attention_conformance.tests.harness.run.plan.sharding import seconds
from attention_conformance.tests.harness.run.post_run import attempted
from attention_conformance.tests.harness.run.session import FirstDiagnosis, SuiteSession
from attention_conformance.tests.report.verdict import LOSSES, Status, Verdict
from attention_conformance.tests.report.views.first_screen import cause
from attention_conformance.tests.report.wording import one_line

FORM = "the candidate takes its inputs, or gives its answers, in another form"
"""Why a run ends at its first failure: all others would have the same cause."""


@dataclass(eq=False)
class FirstFailure:
    """Prints the cause of the first failure, and ends the run where an adapter is all that is wrong.

    Attributes:
        session: of pytest.
        done: whether it was printed.
    """

    state: SuiteSession
    session: pytest.Session
    terminal: pytest.TerminalReporter
    done: bool = False

    def __post_init__(self) -> None:
        self.terminal._show_progress_info = False  # the percentages next to pytest's letters

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, str, Any], tuple[str, str, Any]]:
        """Leaves out the letter, not what it stands for."""
        category, _, word = yield
        return category, "", word

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.done or report.when != "call" or not self.state.recorder.verdicts:
            return
        verdict = self.state.recorder.verdicts[-1]
        if verdict.status is not Status.FAIL or verdict.level != "MUST" or verdict.failure is None:
            return
        self.done = True
        for line in cause(verdict.implementation, self._cause(verdict)):
            self.terminal.write_line(line)
        if self.state.adapter_mistakes.get(verdict.implementation):
            self.session.shouldfail = FORM
        elif not self.session.config.option.maxfail:
            self.terminal.write_line("  the rest is still checked; --exitfirst stops here")

    def _cause(self, verdict: Verdict) -> str:
        """The diagnosis of what has failed so far, or the failure where it is no comparison."""
        assert verdict.failure is not None
        if mistakes := self.state.adapter_mistakes.get(verdict.implementation):
            return mistakes[0]
        (implementation,) = self.state.selection.implementations
        if verdict.failure.kind not in LOSSES and verdict.failure.part:
            with hushed():
                checks, dtypes = failing_checks([verdict]), [verdict.dtype]
                device = self.state.settings.device
                found, _ = attempted(lambda: diagnose(implementation, checks, device, dtypes, several=False))
            if found is not None and found.name:
                self.state.diagnosed = FirstDiagnosis(checks, dtypes, found)
                return f"so far, it {found}"
        place = f" ({verdict.failure.place})" if verdict.failure.place else ""
        return f"{verdict.clause} in {verdict.dtype}: {one_line(verdict.failure.message)}{place}"


def telling_first(planned: PlannedCheck) -> tuple[int, float]:
    """Sorts clauses that detect most mistakes in the least time before the others, those in the widest dtype first.

    Of the others, what takes least comes first.
    """
    name = planned.clause.id
    widest = planned.dtype == planned.implementation.claims.dtypes[0]
    return (TELLING.index(name), 0.0) if name in TELLING and widest else (len(TELLING), seconds(name))


TELLING = (
    *("scores.dot-product", "scores.scale-default", "values.weighted-sum", "causal.square"),
    *("causal.alignment", "masks.bool", "masks.float", "masks.key-padding"),
    *("grouped.order", "projections.query", "gradients.key", "masks.empty-row-padding"),
    *("returned.empty-row", "errors.negative-heads", "window.empty-rows", "positions.rotary-gradient"),
    *("returned.grouped-log-sum-exp", "dropout.rate-one", "sinks.empty-row", "cache.static"),
    *("head-gates.closed", "causal.empty-row-with-mask", "sinks.zero-attn-causal", "positions.sinusoids-length"),
    *("window.query-start", "head-gates.weights", "softcap.log-sum-exp", "grouped.weights"),
    *("window.with-padding", "positions.alibi-far", "shapes.empty-keys", "packed.ids"),
    *("grouped.whole-groups", "causal.any-scale", "sinks.bias-kv-weights", "softcap.small-scores"),
    *("numerics.nan-propagates", "window.gradients", "grouped.causal", "projections.output"),
    *("masks.zero-weight", "dropout.factors", "masks.no-influence", "errors.heads"),
    *("packed.empty-segment", "returned.mixture", "cache.query-start-rows", "cache.grouped"),
    *("dropout.seed", "cache.ring-positions", "head-gates.ablation", "head-gates.gradient"),
    *("sinks.softcap", "grouped.log-sum-exp", "sinks.zero-attn-and-bias-kv", "returned.log-sum-exp-with-gradients"),
    *("sinks.bias-kv-causal", "returned.base", "returned.grouped-weights", "sinks.masks"),
    *("masks.empty-row-bool", "sinks.zero-attn-weights", "softcap.explicit-scale", "cache.query-start"),
    *("cache.rotary", "positions.alibi-start", "causal.padded-start", "gradients.masked"),
    *("grouped.layouts", "window.open-side", "dropout.rate", "window.lengths"),
    *("softcap.large-scores", "packed.lengths", "scores.scale-zero", "cache.ring"),
    *("positions.rotary-start", "masks.padding-fill-value", "causal.empty-rows", "dropout.gradients"),
    *("numerics.bound", "softmax.weights", "dropout.returned-weights", "scores.bias-after-scale"),
    *("packed.lengths-positions", "causal.any-scores", "sinks.range", "masks.rank"),
)
"""Plain cases of each option, then clauses by how many defects of a sample of 113 they detect that those before them do
not, three times each, and by their time."""
