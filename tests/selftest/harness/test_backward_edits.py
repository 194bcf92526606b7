"""Stages with another backward pass, and masks that are put together wrongly, answer as code that does so."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.diagnosis.edits import Edit, _all
from attention_conformance.tests.harness.explain.stages.accumulated import TILES
from attention_conformance.tests.harness.explain.stages.backward import LOST

CLAIMED = Conventions()
CASE = Case().sized(query_length=5, key_length=7)
GROUPED = Case().sized(num_heads=4, num_kv_heads=2)


def edit(words: str) -> Edit:
    return next(each for each in _all() if each.words == words)


def gradients(case: Case, of_scores: Callable[[Tensor, Tensor], Tensor]) -> tuple[Problem, dict[str, Tensor]]:
    """Those by hand, where `of_scores` makes dS of P and dP, with what is added up in them."""
    problem = build(case, "float64")
    query, key, value, along = (
        torch.from_numpy(np.array(x)) for x in (problem.query, problem.key, problem.value, problem.cotangent)
    )
    times, by = query.shape[1] // key.shape[1], query.shape[-1] ** -0.5
    keys, values = (x.repeat_interleave(times, 1) for x in (key, value))
    weights = (query @ keys.mT * by).softmax(-1)
    scores = of_scores(weights, along @ values.mT)
    return problem, {"query": scores @ keys * by, "key": scores.mT @ query * by, "value": weights.mT @ along}


def right(p: Tensor, dp: Tensor) -> Tensor:
    return p * (dp - (p * dp).sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("words", "of_scores"),
    [
        ("with its sum over the queries", lambda p, dp: p * (dp - (p * dp).sum(-2, keepdim=True))),
        ("with its sum not multiplied by the weights", lambda p, dp: p * dp - (p * dp).sum(-1, keepdim=True)),
        ("with the weights on its sum alone", lambda p, dp: dp - p * (p * dp).sum(-1, keepdim=True)),
        ("not multiplied by the weights", lambda p, dp: dp - (p * dp).sum(-1, keepdim=True)),
    ],
)
def test_a_backward_pass_of_the_softmax(words: str, of_scores: Callable[[Tensor, Tensor], Tensor]) -> None:
    problem, expected = gradients(CASE, of_scores)
    made = edit(f"gradient of the softmax {words}").answer(problem, CLAIMED)
    for name, array in expected.items():
        assert np.allclose(made.gradients[name], array)


@pytest.mark.parametrize(
    ("words", "of"),
    [
        ("averaged over a group", lambda x: x.unflatten(1, (2, 2)).mean(2)),
        ("of the last head of a group alone", lambda x: x.unflatten(1, (2, 2))[:, :, 1]),
        ("of the first head of a group alone", lambda x: x.unflatten(1, (2, 2))[:, :, 0]),
        ("added up over heads in another order", lambda x: x.unflatten(1, (2, 2)).sum(1)),
    ],
)
def test_a_gradient_of_a_group(words: str, of: Callable[[Tensor], Tensor]) -> None:
    problem, whole = gradients(GROUPED, right)
    for name in ("key", "value"):
        made = edit(f"gradient of the {name} {words}").answer(problem, CLAIMED)
        assert np.allclose(made.gradients[name], of(whole[name]))


def test_gradients_to_which_one_tile_alone_adds() -> None:
    last_keys, first_queries = torch.arange(7) >= 6, torch.arange(5)[:, None] < 2
    problem, expected = gradients(CASE, lambda p, dp: right(p, dp) * last_keys)
    made = edit("gradient of the query from the last tile of 2 keys alone").answer(problem, CLAIMED)
    assert np.allclose(made.gradients["query"], expected["query"])
    problem, expected = gradients(CASE, lambda p, dp: right(p, dp) * first_queries)
    made = edit("gradient of the key from the first tile of 2 queries alone").answer(problem, CLAIMED)
    assert np.allclose(made.gradients["key"], expected["key"])


def test_gradients_are_lost_after_some_tokens() -> None:
    problem, whole = gradients(CASE, right)
    for names in LOST:
        words = f"gradient of the {' and '.join(names)} lost after the first {TILES[1]} tokens"
        made = edit(words).answer(problem, CLAIMED)
        for name, array in whole.items():
            kept = (torch.arange(array.shape[-2])[:, None] < TILES[1]) | torch.tensor(name not in names)
            assert np.allclose(made.gradients[name], array * kept)


def test_the_numbers_are_right_whatever_the_gradient() -> None:
    problem = build(GROUPED, "float64")
    outputs = [each.answer(problem, CLAIMED).output for each in _all() if each.words.startswith("gradient of the ")]
    assert len(outputs) > len(TILES)
    assert all(np.allclose(output, outputs[0]) for output in outputs)


def test_one_of_two_masks_is_enough() -> None:
    case = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE, padding=Padding.RIGHT)
    problem = build(case, "float64").forward_only()
    joint = problem.arrays()["attn_mask"] | problem.arrays()["key_padding_mask"][:, None, None, :]
    one = problem.but(attn_mask=joint, key_padding_mask=None)
    made = edit("attention mask or padding mask enough").answer(problem, CLAIMED)
    assert np.allclose(made.output, solve(one, CLAIMED).parts["output"].value)


def test_masks_where_a_key_is_added() -> None:
    problem = build(Case(mask=MaskKind.BOOL).extended(zero_attn=True), "float64").forward_only()
    mask = problem.arrays()["attn_mask"]
    late = edit("attention mask of the next key where one is added").answer(problem, CLAIMED)
    near = edit("attention mask hides the added key").answer(problem, CLAIMED)
    without = problem.but(extension=replace(problem.extension, zero_attn=False))
    assert np.allclose(near.output, solve(without, CLAIMED).parts["output"].value)
    assert late.weights is not None
    assert np.array_equal(late.weights[..., 1:] == 0.0, np.broadcast_to(~mask, late.weights[..., 1:].shape))
