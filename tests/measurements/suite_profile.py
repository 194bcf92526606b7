"""CPU time of the quick tier by stage, each without the stages inside it.

`make profile-suite` runs the tier on a candidate in this process, which must be a fresh one.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

TARGET = "torch.nn.functional:scaled_dot_product_attention"
OUTSIDE = ("imports", "candidate")
"""Stages whose time the suite cannot reduce."""


class Stages:
    """CPU seconds by stage. A stage inside another stops the clock of the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running = ["pytest"]
        self.since = time.process_time()

    def _stop_clock(self) -> None:
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Everything inside is counted under this name."""
        self._stop_clock()
        self.running.append(name)
        try:
            yield
        finally:
            self._stop_clock()
            self.running.pop()

    def watch(self, name: str, holder: object, *attributes: str) -> None:
        """Counts these functions of a module or class under this name, wherever they are looked up later."""
        for attribute in attributes:
            setattr(holder, attribute, self.stage(name)(getattr(holder, attribute)))


def watched(stages: Stages) -> None:
    """Installs the clocks: before other modules import the functions by name."""
    from attention_conformance.reference import expected, stacking
    from attention_conformance.spec import covering, inputs, problem
    from attention_conformance.tests.harness.judge import comparison

    stages.watch("bounds", expected, "forward_bounds", "gradient_bounds", "_returned")
    stages.watch("reference", expected, "solve")
    stages.watch("reference", stacking, "solve_each")
    stages.watch("cases", inputs, "build")
    stages.watch("cases", covering, "combinations")
    stages.watch("cases", problem.Problem, "fresh")
    stages.watch("comparison", comparison, "compare")
    from attention_conformance.implementations.worker import remote
    from attention_conformance.tests.harness.judge import judge
    from attention_conformance.tests.harness.run import clause_items, post_run

    stages.watch("candidate", remote, "answer")
    stages.watch("candidate", judge, "function_answer")
    stages.watch("observing", post_run, "record_observations")
    stages.watch("clauses", clause_items.ClauseItem, "runtest")
    stages.watch("collection", clause_items.ClauseModule, "collect")


def report(stages: Stages) -> Iterator[str]:
    """The table: stage, seconds, share."""
    total = sum(stages.seconds.values())
    for name, seconds in sorted(stages.seconds.items(), key=lambda each: -each[1]):
        yield f"| {name} | {seconds:.2f} | {seconds / total:.0%} |"
    own = sum(seconds for name, seconds in stages.seconds.items() if name not in OUTSIDE)
    yield f"| all | {total:.2f} | 100% |"
    yield f"| the suite's own | {own:.2f} | {own / total:.0%} |"


def main() -> int:
    stages = Stages()
    with stages.stage("imports"):
        import numpy as np  # noqa: F401  # counted here, not where the suite imports it
        import pytest
        import torch  # noqa: F401
    with stages.stage("suite"):
        watched(stages)
    target = sys.argv[1] if len(sys.argv) > 1 else TARGET
    quiet = ("-q", "--no-summary", "-W", "ignore::pytest.PytestAssertRewriteWarning")  # some is imported already
    with TemporaryDirectory() as first_run:  # pytest reads the names of all tests of earlier runs
        status = pytest.main(["--candidate", target, "-o", f"cache_dir={first_run}", *quiet])
    stages._stop_clock()
    print(f"\n{target}\n\n| stage | CPU seconds | share |\n| --- | ---: | ---: |")
    print("\n".join(report(stages)))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
