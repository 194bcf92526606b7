"""How pytest-benchmark gets the rounds of a measurement: its timer reads them, its `pedantic` mode makes statistics.

A round is measured in a pair with the baseline, and the number of rounds follows from the intervals, so that
pytest-benchmark cannot run the rounds by itself.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from attention_conformance.tests.benchmarks.benchmark_run import Measurement

PARAMETERS = ("workload", "level", "passes", "dtype", "device", "implementation", "baseline")
"""The fields that tell one measurement from another."""


class MeasuredRounds:
    """A timer for pytest-benchmark: each round starts at 0 and ends at the seconds that it was measured to take."""

    __name__ = "time.perf_counter"  # the clock of the measurement, and what files of pytest-benchmark have as timer
    readings: Iterator[float] = iter(())

    def of(self, measurement: Measurement) -> None:
        """Reads the rounds of this measurement from now on."""
        blocks = [seconds * measurement.calls for seconds in measurement.seconds or (0.0,)]
        self.readings = (reading for block in blocks for reading in (0.0, block))

    def __call__(self) -> float:
        return next(self.readings)


def extra_info(measurement: Measurement) -> dict[str, Any]:
    """All fields but the seconds: pytest-benchmark has none for them."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(measurement)))
    return {name: value for name, value in fields.items() if not name.endswith("seconds")}


def name_parameters(benchmarks: list[dict[str, Any]]) -> None:
    """Gives benchmarks of a file names as parameters, where pytest-benchmark has representations of our objects."""
    for benchmark in benchmarks:
        benchmark["params"] = {name: benchmark["extra_info"][name] for name in PARAMETERS}
