"""How tight the bounds of half types are: the largest ratio of right styles, at sizes up to 4,096 keys.

`make bounds` prints the table, and fails if a right style exceeds a bound.
"""

import sys
from collections.abc import Mapping
from itertools import product

import numpy as np
import torch

from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.comparison import error_ratios
from attention_conformance.tests.measurements.pages import table
from attention_conformance.tests.selftest.reference.half_styles import RIGHT, Answering

PARTS = ("output", "gradients.query", "gradients.key", "gradients.value")
SIZES = (
    (2, 3, 5, 7, 4),
    (1, 2, 3, 33, 16),
    (2, 2, 17, 64, 32),
    (2, 2, 131, 131, 8),
    (1, 1, 70, 301, 4),
    (1, 2, 64, 300, 64),
    (1, 8, 1, 513, 64),
    (1, 2, 3, 1031, 4),
    (1, 2, 64, 1024, 32),
    (1, 4, 1, 2049, 64),
    (1, 1, 64, 2048, 64),
    (1, 1, 33, 4096, 64),
)
"""Samples, heads, queries, keys, width."""
SEEDS, STDS = range(2), (1.0, 3.0)


def answers_of(style: Answering, problem: Problem) -> Mapping[str, Array]:
    """Output and gradients of a style, by the names of the parts."""
    given = tensors(problem.but(needs=()), "cpu")
    answers = style(*(given[name] for name in ("query", "key", "value", "cotangent")))
    return {part: to_array(each) for part, each in zip(PARTS, answers, strict=True)}


def largest() -> dict[tuple[str, str, str], tuple[float, str]]:
    """The largest ratio, and its style, by dtype, part and direction; of single elements, too."""
    worst: dict[tuple[str, str, str], tuple[float, str]] = {}
    for dtype, seed, std, (batch, heads, queries, keys, width) in product(("bfloat16", "float16"), SEEDS, STDS, SIZES):
        case = Case(seed=seed, score_std=std).sized(
            batch=batch, num_heads=heads, query_length=queries, key_length=keys, d_k=width, d_v=width
        )
        problem = build(case, dtype)
        parts = solve(problem, returned=()).parts
        for name, style in RIGHT.items():
            for part, answer in answers_of(style, problem).items():
                values = answer.astype(np.float64)
                ratios = {each.name: each.ratio(values - parts[part].value) for each in parts[part].aligned}
                ratios["each element"] = float(error_ratios(values, parts[part]).max())
                for direction, ratio in ratios.items():
                    key = (dtype, part, direction)
                    worst[key] = max(worst.get(key, (0.0, "")), (ratio, name))
    return worst


def main() -> int:
    torch.set_num_threads(1)
    worst = largest()
    rows = [(*key, f"{ratio:.2f}", name) for key, (ratio, name) in sorted(worst.items())]
    print(table(("dtype", "part", "direction", "largest", "style"), rows))
    return 1 if max(ratio for ratio, _ in worst.values()) > 1.0 else 0


if __name__ == "__main__":
    sys.exit(main())
