"""Compares the reference with others' test cases and implementations: `make peers` writes docs/peers.md."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import jax_op
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions, SoftmaxPrecision
from attention_conformance.spec.features import NOTHING
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.measurements.onnx_cases import (
    ATTENTION,
    ROTARY,
    NotExpressibleError,
    difference,
    onnx_cases,
)
from attention_conformance.tests.measurements.pages import write_page
from attention_conformance.tests.measurements.torch_samples import sample_difference, torch_samples

RANDOM_CASES = 8
"""Each has shapes of its own, for which JAX compiles every operation."""
DOCUMENTED = Conventions(softmax_precision=SoftmaxPrecision.FLOAT32)
"""JAX states that its softmax is in float32 at most."""


@dataclass(frozen=True)
class Outcome:
    """One case: why it is not expressible, or how the answers differ; neither, where they agree."""

    name: str
    odd: str = ""
    differs: str = ""


def from_onnx(operator: str) -> Iterator[Outcome]:
    """Every node case of the operator against the reference."""
    for case in onnx_cases(operator):
        try:
            yield Outcome(case.name, differs=difference(case))
        except NotExpressibleError as reason:
            yield Outcome(case.name, odd=str(reason))


def from_jax() -> Iterator[Outcome]:
    """Random cases against jax.nn.dot_product_attention, gradients included."""
    import jax

    run = jax_op(partial(_by_jax, jax.nn.dot_product_attention))
    for number in range(RANDOM_CASES):
        case = random_case(number)
        problem = build(case, ("float64", "float32")[number % 2])
        problem = replace(problem, needs=("query", "key", "value"))
        parts, answer = solve(problem, DOCUMENTED, returned=()).parts, run(problem, "cpu")
        named = {"output": answer.output, **{f"gradients.{n}": x for n, x in answer.gradients.items()}}
        compared = (compare(name, np.asarray(x), parts[name], problem.dtype) for name, x in named.items())
        wrong = [each.message for each in compared if each.kind is not None]
        yield Outcome(f"{number}: {case}", differs="; ".join(wrong[:1]))


def from_torch() -> Iterator[Outcome]:
    """The samples of torch's own tests, each answered by torch; dropped weights are those that it drops."""
    for sample in torch_samples():
        yield Outcome(sample.name, differs=sample_difference(sample))


def _by_jax(attention: Callable[..., Any], query: Any, key: Any, value: Any, **options: Any) -> Any:
    """With the axes (B, L, H, d), and a mask or a bias."""
    mask, window = options.get("attn_mask"), options.get("window_size")
    boolean = mask is not None and mask.dtype == bool
    lengths = options.get("valid_lens")
    answer = attention(
        *(x.swapaxes(1, 2) for x in (query, key, value)),
        bias=None if mask is None or boolean else mask,
        mask=mask if boolean else None,
        is_causal=options.get("is_causal", False),
        scale=options.get("scale"),
        key_value_seq_lengths=None if lengths is None else lengths.astype("int32"),
        local_window_size=window,
        implementation="xla",
    )
    return answer.swapaxes(1, 2)


def random_case(number: int) -> Case:
    """Sizes, masks and options, drawn so that no row is left without a key."""
    rng = np.random.default_rng([number, 29])
    heads = int(rng.choice([1, 2, 3, 4, 6]))
    groups = int(rng.choice([n for n in (1, 2, 3) if heads % n == 0]))
    keys = int(rng.integers(2, 20))
    queries = int(rng.integers(1, keys + 1))
    width = int(rng.integers(1, 17))
    kind = (MaskKind.NONE, MaskKind.BOOL, MaskKind.FLOAT)[rng.integers(3)]
    masked = kind is not MaskKind.NONE
    window = not masked and rng.integers(3) == 0
    left, right = (int(side) for side in rng.integers(4, size=2))
    case = Case(
        seed=number,
        score_std=float(rng.uniform(0.3, 6.0)),
        scale=float(rng.uniform(0.1, 1.5)) if rng.integers(2) else None,
        mask=kind,
        mask_shape=(MaskShape.FULL, MaskShape.SAMPLE)[rng.integers(2)],
        causal=not masked and bool(rng.integers(2)),
        padding=Padding.LENGTHS if not masked and not window and rng.integers(2) else Padding.NONE,
        extension=replace(NOTHING, window_left=left, window_right=right) if window else NOTHING,
    )
    sizes = {"batch": int(rng.integers(1, 4)), "query_length": queries, "key_length": keys}
    return case.sized(num_heads=heads, num_kv_heads=heads // groups, d_k=width, d_v=width, **sizes)


SOURCES: Mapping[str, tuple[str, Callable[[], Iterator[Outcome]]]] = {
    "node cases of ONNX Attention": ("onnx", partial(from_onnx, ATTENTION)),
    "node cases of ONNX RotaryEmbedding": ("onnx", partial(from_onnx, ROTARY)),
    "samples of torch's tests of scaled_dot_product_attention": ("torch", from_torch),
    "random cases for jax.nn.dot_product_attention, with gradients": ("jax", from_jax),
}
"""What is compared, the package that has it, and how."""


def measured(name: str) -> tuple[list[str], list[Outcome]]:
    """A row of the table, and the cases that do not agree."""
    package, outcomes = SOURCES[name]
    try:
        version = importlib.metadata.version(package)
        found = list(outcomes())
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return [name, f"{package}, or what it needs, is not installed", "-", "-", "-"], []
    expressible = [each for each in found if not each.odd]
    agreeing = [each for each in expressible if not each.differs]
    row = [name, f"{package} {version}", *(str(len(each)) for each in (found, expressible, agreeing))]
    return row, [each for each in found if each.odd or each.differs]


def main() -> int:
    results = [measured(name) for name in SOURCES]
    rest = [each for _, others in results for each in others]
    write_page(
        "peers.md", rows=[row for row, _ in results], rest=[[each.name, each.odd or each.differs] for each in rest]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
