"""Failed first: the clauses that failed in the last run of a candidate are checked before the others."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attention_conformance.tests.harness.run.session import SuiteSession
from attention_conformance.tests.report.verdict import Status


@dataclass(eq=False)
class FailingFirst:
    """Sorts by a file that has a clause a line, and writes it anew; without the file nothing is sorted.

    Attributes:
        file: where it is, with the clauses that failed.
    """

    state: SuiteSession
    file: Path

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """After all other orders."""
        yield
        failed = self.file.read_text(encoding="utf-8").split() if self.file.is_file() else []
        items.sort(key=lambda item: _clause(item) not in failed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Before the failures are explained, which may be interrupted."""
        failed = dict.fromkeys(v.clause for v in self.state.recorder.verdicts if v.status is Status.FAIL)
        self.file.write_text("\n".join(failed), encoding="utf-8")


def _clause(item: pytest.Item) -> str:
    planned = getattr(item, "planned", None)
    return planned.clause.id if planned is not None else ""
