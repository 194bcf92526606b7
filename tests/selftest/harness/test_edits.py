"""Mistakes that no list has are named by the change of the stages that they amount to, or located."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.conditions import conditions
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.diagnosis.edits import edited
from attention_conformance.tests.harness.explain.diagnosis.observation import Prober, observed
from attention_conformance.tests.harness.explain.diagnosis.probes import PROBES
from attention_conformance.tests.harness.explain.stages.staged import STAGES, opened, run
from attention_conformance.tests.harness.explain.stages.staged_results import result_of

FLOAT_MASKS = [Case(mask=MaskKind.FLOAT), Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED, seed=3)]
BOOL_MASKS = [Case(mask=MaskKind.BOOL), Case(mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED, seed=3)]
OTHERS = Conventions().claiming(
    {"causal-alignment": "bottom-right", "group-order": "tiled", "window-count": "including"}
)


def diagnosed(function: Callable[..., Tensor], cases: list[Case], part: str = "output") -> Diagnosis:
    claims = Claims(Scope.OP, OP_FEATURES | {Feature.WINDOW, Feature.SOFTCAP})
    checks = [FailingCheck("shapes.large", case, "float64", part) for case in cases]
    diagnosis = diagnose(Implementation("candidate", claims, torch_op(function)), checks, dtypes=("float64",))
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize("claimed", [Conventions(), OTHERS])
def test_the_stages_are_the_specification(claimed: Conventions) -> None:
    for case in PROBES[::2]:
        if not case.extension.bias_kv:
            problem = build(case, "float64")
            *_, last = run(STAGES, opened(problem, claimed))
            result, parts = result_of(problem, last), solve(problem, claimed).parts
            np.testing.assert_allclose(result.output, parts["output"].value, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(result.gradients["key"], parts["gradients.key"].value, rtol=1e-10, atol=1e-12)


OF_SAMPLES = [Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SAMPLE, seed=seed) for seed in (0, 3)]


def heads_before_samples(scores: Tensor, mask: Tensor) -> Tensor:
    whole = mask.expand(scores.shape)
    return correct.add_mask(scores, whole.transpose(0, 1).reshape(scores.shape))


def masked_for_the_last_sample(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, mask[-1:] if mask.ndim == 4 else mask)


def thirteen(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -13.0) if mask.dtype is torch.bool else correct.add_mask(scores, mask)


@pytest.mark.parametrize(
    ("steps", "cases", "words"),
    [
        (Steps(add_mask=masked_for_the_last_sample), FLOAT_MASKS[:1], "mask of the last sample for all"),
        (Steps(add_mask=heads_before_samples), OF_SAMPLES, "mask with samples and heads laid out in another order"),
        (Steps(add_mask=thirteen), BOOL_MASKS, "attention mask puts -13 in place of scores"),
        (Steps(mix=lambda weights, value: weights.flip(1) @ value), [Case(), Case(seed=1)], "reverse order"),
    ],
)
def test_a_mistake_is_named_by_the_change_of_a_stage(steps: Steps, cases: list[Case], words: str) -> None:
    found = diagnosed(steps, cases)
    assert words in found.name
    assert (found.explains, found.second) == (found.of, ())


def over_the_queries(query: Tensor, key: Tensor, value: Tensor) -> Any:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-2, keepdim=True) @ value


def coarse_values(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value.half().to(value)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (over_the_queries, "exponentials divided by their sum over the queries"),
        (coarse_values, "value rounded to float16 before the weighted sum"),
    ],
)
def test_a_change_answers_as_the_mistake_does(function: Callable[..., Tensor], words: str) -> None:
    problem = build(Case(), "float64")
    mine = next(each for each in edited(Conventions()) if each.name == words).answer(problem)
    theirs = torch_op(function)(problem.fresh(), "cpu")
    assert near(mine.output, theirs.output, "float64")
    assert near(mine.gradients["value"], theirs.gradients["value"], "float64")


def test_of_moves_that_explain_the_same_the_shortest_is_named() -> None:
    ranks = {each.name: each.rank for each in edited(Conventions())}
    assert ranks["softcap after the causal triangle"] < ranks["causal triangle before the scale"]


def test_a_mistake_in_either_of_two_options_has_both_as_its_trigger() -> None:
    def peculiar(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **options: Any) -> Tensor:
        output = Steps()(query, key, value, scale=scale, **options)
        return output if scale is None and not options.get("softcap") else output + torch.sin(query[..., :1])

    claims = Claims(Scope.OP, OP_FEATURES | {Feature.SOFTCAP})
    candidate = Implementation("candidate", claims, torch_op(peculiar))
    cases = (Case(scale=0.3), Case(seed=1).extended(softcap=2.0))
    failing = [observed(candidate, case, "float64", ("output",), "cpu") for case in cases]
    prober = Prober(candidate, "float64", ("output",), "cpu", 200, {}, True)
    assert [each.words for each in conditions(failing, prober)] == ["with scale=0.3 or softcap"]


def test_a_wrong_backward_pass_is_named_by_what_it_forgets() -> None:
    def unmasked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        right = Steps()(query, key, value, **options)
        options.pop("attn_mask", None)
        astray = Steps()(query, key, value, **options)
        return right.detach() + astray - astray.detach()

    found = diagnosed(unmasked, FLOAT_MASKS, "gradients.key")
    assert found.name == "attention mask left out, in the gradients of query, key, value and attn_mask alone"


def test_what_has_no_name_has_a_place_and_a_trigger() -> None:
    def peculiar(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = Steps()(query, key, value, **options)
        if "attn_mask" in options or output.shape[1] < 2:
            return output
        return output + torch.sin(query[..., :1].detach()) * (torch.arange(output.shape[1]) > 1)[:, None, None]

    found = diagnosed(peculiar, [Case(), Case(seed=1)])
    assert not found.name
    assert found.when[:2] == ("without a mask", "in heads from 2 on (counted from 0)")


def test_an_exception_is_quoted_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def bad(query, key, value, **options):\n    return query.reshape(1, -1, 19)\n")
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = diagnosed(module.bad, [Case(), Case(seed=1)])
    assert f"({file}:2)" in str(found)
    assert "raised RuntimeError: shape '[1, -1, 19]' is invalid" in str(found)


def test_a_premise_that_would_make_it_conform_is_printed() -> None:
    def always(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return Steps()(query, key, value, is_causal=True)

    features = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH})
    candidate = Implementation("candidate", Claims(Scope.OP, features), torch_op(always))
    found = diagnose(candidate, [FailingCheck("softmax.over-keys", Case(), "float64", "output")], dtypes=("float64",))
    assert found is not None
    assert found.name == "premise causal"
    assert "add --premise causal" in str(found)


def test_an_answer_of_nan_is_explained_by_nan_alone() -> None:
    def spoilt(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = Steps()(query, key, value, **options)
        return output.masked_fill(torch.arange(output.shape[-2])[:, None] == 2, torch.nan)

    implementation = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(spoilt))
    seen = observed(implementation, Case(), "float64", ("output",), "cpu")
    right = solve(seen.problem).parts["output"].value
    same = right.copy()
    same[..., 2, :] = np.nan
    other = same.copy()
    other[..., 0, :] += 1.0
    near = [seen.distance(Result(answer)) <= 1.0 for answer in (right, same, other)]
    assert near == [False, True, False]
