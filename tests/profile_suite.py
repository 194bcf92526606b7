"""The suite's own profile: where the quick tier's time goes, stage by stage, each without the stages inside it.

`python -m tests.profile_suite [TARGET]` runs the tier on a candidate in this process, which must be a fresh one.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from tempfile import TemporaryDirectory
from typing import Any

TARGET = "torch.nn.functional:scaled_dot_product_attention"
OUTSIDE = ("imports", "candidate")
"""What the suite can do nothing about."""


class Stages:
    """CPU seconds by stage. A stage inside another stops the clock of the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running = ["pytest"]
        self.since = time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What happens inside is counted under this name."""
        self._turn()
        self.running.append(name)
        try:
            yield
        finally:
            self._turn()
            self.running.pop()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted under this name."""

        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return call(*args, **kwargs)

        return counted

    def watch(self, name: str, holder: object, *attributes: str) -> None:
        """Counts these functions of a module or class under this name, for all who look them up from now on."""
        for attribute in attributes:
            setattr(holder, attribute, self.timed(name, getattr(holder, attribute)))


def watched(stages: Stages) -> None:
    """Puts the clocks in. What is imported by name elsewhere has to be replaced before that import."""
    import reference.solving
    import spec.building
    import spec.covering
    import spec.problems
    import tests.harness.comparison

    stages.watch("bounds", reference.solving, "forward_bounds", "gradient_bounds", "_returned")
    stages.watch("reference", reference.solving, "solve")
    import reference.stacking

    stages.watch("reference", reference.stacking, "solve_each")
    stages.watch("cases", spec.building, "build")
    stages.watch("cases", spec.covering, "combinations")
    stages.watch("cases", spec.problems.Problem, "fresh")
    stages.watch("comparison", tests.harness.comparison, "compare")
    import tests.harness.finishing
    import tests.harness.judge
    import tests.harness.plugin as plugin

    stages.watch("candidate", tests.harness.judge, "_guarded")
    stages.watch("observing", tests.harness.finishing, "_observe")
    stages.watch("clauses", plugin.ClauseItem, "runtest")
    stages.watch("collection", plugin, "pytest_pycollect_makeitem")


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
        import torch.fx.experimental.symbolic_shapes  # noqa: F401  # as the first backward pass does
    with stages.stage("suite"):
        watched(stages)
    target = sys.argv[1] if len(sys.argv) > 1 else TARGET
    quiet = ("-q", "--no-summary", "-W", "ignore::pytest.PytestAssertRewriteWarning")  # some is imported already
    with TemporaryDirectory() as first_run:  # pytest reads the names of all tests of earlier runs
        status = pytest.main(["--candidate", target, "-o", f"cache_dir={first_run}", *quiet])
    stages._turn()
    print(f"\n{target}\n\n| stage | CPU seconds | share |\n| --- | ---: | ---: |")
    print("\n".join(report(stages)))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
