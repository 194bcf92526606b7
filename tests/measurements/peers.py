"""Compares the reference with others' test cases and implementations: `make peers` writes docs/peers.md."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import jax_op
from attention_conformance.implementations.api.contract import Result
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions, SoftmaxPrecision
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.run.vectors.onnx_cases import (
    ATTENTION,
    ROTARY,
    NotExpressibleError,
    difference,
    onnx_cases,
)
from attention_conformance.tests.measurements.eager_functions import EAGER, Eager
from attention_conformance.tests.measurements.inhouse_answers import inhouse_difference, inhouse_of
from attention_conformance.tests.measurements.pages import write_page
from attention_conformance.tests.measurements.random_cases import random_case
from attention_conformance.tests.measurements.torch_samples import problem_of, sample_difference, torch_samples

OF_JAX = 8
"""Each has shapes of its own, for which JAX compiles every operation."""
OF_TRANSFORMERS = 64
DOCUMENTED = Conventions(softmax_precision=SoftmaxPrecision.FLOAT32)
"""JAX states that its softmax is in float32 at most."""


@dataclass(frozen=True)
class Outcome:
    """One case: why it is not expressible, or how the answers differ; neither, where they agree.

    `inhouse`: how an in-house implementation differs from the reference; None: there is none that takes the case.
    """

    name: str
    odd: str = ""
    differs: str = ""
    inhouse: str | None = None


def from_onnx(operator: str) -> Iterator[Outcome]:
    """Every node case of the operator against the reference."""
    for case in onnx_cases(operator):
        try:
            yield Outcome(case.name, differs=difference(case), inhouse=inhouse_of(case))
        except NotExpressibleError as reason:
            yield Outcome(case.name, odd=str(reason))


def from_jax() -> Iterator[Outcome]:
    """Random cases against jax.nn.dot_product_attention."""
    import jax

    run = jax_op(partial(_by_jax, jax.nn.dot_product_attention))
    return _against(run, map(random_case, range(OF_JAX)), DOCUMENTED)


def from_transformers(eager: Eager) -> Iterator[Outcome]:
    """Random cases against the eager function of one model."""
    return _against(eager.run, eager.cases(OF_TRANSFORMERS), eager.conventions)


def from_torch() -> Iterator[Outcome]:
    """The samples of torch's own tests, each answered by torch; dropped weights are those that it drops."""
    for sample in torch_samples():
        inhouse = None if sample.options.get("dropout_p") else inhouse_difference(problem_of(sample))
        yield Outcome(sample.name, differs=sample_difference(sample), inhouse=inhouse)


def _against(
    run: Callable[[Problem, str], Result], cases: Iterable[Case], conventions: Conventions
) -> Iterator[Outcome]:
    """In float64 and float32 by turns; output, gradients, and weights where they are returned."""
    for number, case in enumerate(cases):
        problem = build(case, ("float64", "float32")[number % 2])
        answer, parts = run(problem, "cpu"), solve(problem, conventions, returned=("weights",)).parts
        named = {"output": answer.output, **{f"gradients.{name}": x for name, x in answer.gradients.items()}}
        named |= {} if answer.weights is None else {"weights": answer.weights}
        compared = (compare(name, np.asarray(x), parts[name], problem.dtype) for name, x in named.items())
        wrong = next((each.message for each in compared if each.kind is not None), "")
        yield Outcome(f"{number}: {case}", differs=wrong, inhouse=inhouse_difference(problem))


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


SOURCES: Mapping[str, tuple[str, Callable[[], Iterator[Outcome]]]] = {
    "node cases of ONNX Attention": ("onnx", partial(from_onnx, ATTENTION)),
    "node cases of ONNX RotaryEmbedding": ("onnx", partial(from_onnx, ROTARY)),
    "samples of torch's tests of scaled_dot_product_attention": ("torch", from_torch),
    "random cases for jax.nn.dot_product_attention": ("jax", from_jax),
    **{
        f"random cases for eager_attention_forward of {each.model}": ("transformers", partial(from_transformers, each))
        for each in EAGER
    },
}
"""What is compared, the package that has it, and how."""


def measured(name: str) -> tuple[list[str], list[Outcome]]:
    """A row of the table, and the cases that do not agree."""
    package, outcomes = SOURCES[name]
    try:
        version = importlib.metadata.version(package)
        found = list(outcomes())
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return [name, f"{package}, or what it needs, is not installed", "-", "-", "-", "-"], []
    expressible = [each for each in found if not each.odd]
    agreeing = [each for each in expressible if not each.differs]
    answered = [each for each in expressible if each.inhouse is not None]
    alike = f"{sum(not each.inhouse for each in answered)} of {len(answered)}"
    row = [name, f"{package} {version}", *(str(len(each)) for each in (found, expressible, agreeing)), alike]
    return row, [each for each in found if each.odd or each.differs or each.inhouse]


def who_is_right(outcome: Outcome) -> str:
    """For a case that does not agree: with whom the in-house implementations are."""
    if outcome.odd:
        return "not expressible"
    if outcome.inhouse is None:
        return "not known: no in-house implementation takes it"
    if outcome.inhouse:
        return f"not known: {outcome.inhouse}"
    return "the reference, with which the in-house implementations agree"


def main() -> int:
    results = [measured(name) for name in SOURCES]
    rest = [each for _, others in results for each in others]
    shown = [[each.name, each.odd or each.differs or "it agrees", who_is_right(each)] for each in rest]
    write_page("peers.md", rows=[row for row, _ in results], rest=shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
