"""Steps of backward passes, head numbers, half positions and loops over tiles that are wrong answer as code that is."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, QkNorm, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.conditions import conditions
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.diagnosis.edits import alone, in_parts
from attention_conformance.tests.harness.explain.diagnosis.magnitudes import parts
from attention_conformance.tests.harness.explain.diagnosis.observation import Prober, observed
from attention_conformance.tests.harness.explain.diagnosis.places import in_gradients
from attention_conformance.tests.selftest.harness.test_backward_edits import edit

CLAIMED = Conventions()


def arrays(case: Case) -> tuple[Any, dict[str, Tensor]]:
    problem = build(case, "float64")
    given = {name: torch.from_numpy(np.array(x)) for name, x in problem.arrays().items()}
    return problem, given | {"along": torch.from_numpy(np.array(problem.cotangent))}


def slopes(output: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    made = torch.autograd.grad(output, [given[name] for name in ("query", "key", "value")], given["along"])
    return dict(zip(("query", "key", "value"), made, strict=True))


def test_a_derivative_of_the_softcap() -> None:
    problem, given = arrays(Case(score_std=3.0).extended(softcap=2.0))
    query, key, value = (given[name].requires_grad_() for name in ("query", "key", "value"))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    tanh = torch.tanh(scores / 2.0).detach()
    linear = scores * (1.0 - tanh)
    expected = slopes((2.0 * tanh + linear - linear.detach()).softmax(-1) @ value, given)
    made = edit("gradient of the softcap by 1 - t in place of 1 - t^2, t the tanh").answer(problem, CLAIMED)
    assert all(np.allclose(made.gradients[name], array) for name, array in expected.items())


def test_a_norm_whose_size_is_a_constant_in_the_gradient() -> None:
    problem, given = arrays(Case().extended(qk_norm=QkNorm.HEAD, norm_epsilon=0.25))
    query, key, value = (given[name].requires_grad_() for name in ("query", "key", "value"))

    def normed(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 0.25).sqrt().detach() * gain

    scores = normed(query, given["query_norm"]) @ normed(key, given["key_norm"]).mT * query.shape[-1] ** -0.5
    expected = slopes(scores.softmax(-1) @ value, given)
    made = edit("size in the norm of the query and the key taken for a constant in the gradient").answer(
        problem, CLAIMED
    )
    assert all(np.allclose(made.gradients[name], array) for name, array in expected.items())
    assert np.allclose(made.output, solve(problem, CLAIMED).parts["output"].value)


def test_weights_that_are_made_anew_without_the_causal_triangle() -> None:
    problem, given = arrays(Case(causal=True).sized(query_length=5, key_length=5))
    query, key, value, along = (given[name] for name in ("query", "key", "value", "along"))
    by = query.shape[-1] ** -0.5
    scores = query @ key.mT * by
    right = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    weights = (scores - right.logsumexp(-1, keepdim=True)).exp()
    inner = along @ value.mT - (along * (right.softmax(-1) @ value)).sum(-1, keepdim=True)
    of_scores = weights * inner
    expected = {"query": of_scores @ key * by, "key": of_scores.mT @ query * by, "value": weights.mT @ along}
    words = "causal triangle left out, where the gradient makes the weights anew"
    made = edit(words).answer(problem, CLAIMED)
    assert all(np.allclose(made.gradients[name], array) for name, array in expected.items())


def test_a_mask_of_heads_that_are_split_in_the_wrong_order() -> None:
    case = Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.FULL).sized(num_heads=6, num_kv_heads=2)
    problem, given = arrays(case)
    mask = given["attn_mask"].unflatten(1, (3, 2)).transpose(1, 2).flatten(1, 2)
    other = problem.but(attn_mask=mask.numpy()).forward_only()
    made = edit("mask of heads that are counted by groups first").answer(problem.forward_only(), CLAIMED)
    assert np.allclose(made.output, solve(other, CLAIMED).parts["output"].value)


def test_distances_that_are_counted_in_a_half_type() -> None:
    problem, given = arrays(Case().sized(query_length=2, key_length=300, batch=1).extended(alibi=True))
    query, key, value, heads = (given[name] for name in ("query", "key", "value", "alibi_slopes"))
    ahead = torch.arange(300).bfloat16() - torch.arange(2).bfloat16()[:, None]
    scores = query @ key.mT * query.shape[-1] ** -0.5 - heads[..., None, None] * ahead.abs().double()
    made = edit("distances of the ALiBi bias counted in bfloat16").answer(problem.forward_only(), CLAIMED)
    assert np.allclose(made.output, scores.softmax(-1) @ value)


def test_a_loop_over_tiles_that_ends_too_early() -> None:
    problem, given = arrays(Case(causal=True, seed=2).sized(query_length=19, key_length=19))
    query, key, value = (given[name] for name in ("query", "key", "value"))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(19, 19).triu(1).bool(), -torch.inf)
    scores[..., 16:, 16:] = -torch.inf  # 19 // 8 tiles for the last queries
    words = "number of tiles of 8 keys for 8 queries rounded down"
    made = edit(words).answer(problem.forward_only(), CLAIMED)
    assert np.allclose(made.output, scores.softmax(-1) @ value)


def test_what_an_earlier_call_left_behind_is_a_condition() -> None:
    spoilt: set[int] = set()

    def keeping(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = Steps()(query, key, value, **options)
        if "key_padding_mask" in options:
            spoilt.add(key.shape[-2])
            return output
        return output.flip(-2) if key.shape[-2] in spoilt else output

    candidate = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(keeping))
    for case in (Case(padding=Padding.RIGHT), Case()):
        seen = observed(candidate, case, "float64", ("output",), "cpu")
    prober = Prober(candidate, "float64", ("output",), "cpu", 200, {}, True)
    assert [each.words for each in conditions([seen], prober)] == ["after a call of the same sizes with padding"]


def test_where_a_gradient_is_lost() -> None:
    def losing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kept = torch.cat([key[..., :3, :], key[..., 3:, :].detach()], -2)
        weights: Tensor = (query @ kept.mT * query.shape[-1] ** -0.5).softmax(-1)
        return weights @ value

    candidate = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(losing))
    cases = [Case(seed=seed).sized(key_length=length) for seed, length in enumerate((7, 9))]
    failing = [observed(candidate, case, "float64", ("gradients.key",), "cpu") for case in cases]
    assert list(in_gradients(failing)) == ["in keys from 3 on (counted from 0), which get 0"]
    assert list(parts(failing)) == ["in the gradient of key"]


def test_gradients_of_different_mistakes_are_explained_one_by_one() -> None:
    case = Case().sized(num_heads=4, num_kv_heads=2)
    problem = build(case, "float64")
    words = ("gradient of the key of the last head of a group alone", "gradient of the value averaged over a group")
    one, two = (edit(each) for each in words)
    both = in_parts({p: alone(e, (p,), CLAIMED) for p, e in (("gradients.key", one), ("gradients.value", two))})
    made, right = both.answer(problem), solve(problem, CLAIMED).parts
    assert both.name == ", and ".join(words)
    for name, expected in (
        ("key", one.answer(problem, CLAIMED).gradients["key"]),
        ("value", two.answer(problem, CLAIMED).gradients["value"]),
        ("query", right["gradients.query"].value),
    ):
        assert np.allclose(made.gradients[name], expected)


def test_the_size_of_a_tile_is_named_after_cases_that_tell_it_from_others() -> None:
    def short(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        for row in range(query.shape[-2] if is_causal else 0):
            last = min(row // 32 * 32 + 31, query.shape[-2] - 1)
            scores[..., row, min(row + 1, -(-last // 32) * 32) :] = -torch.inf
        weights: Tensor = scores.softmax(-1).nan_to_num(0.0)
        return weights @ value

    own = frozenset(
        {Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH, Feature.CAUSAL}
    )
    candidate = Implementation("candidate", Claims(Scope.OP, own), torch_op(short))
    cases = [Case(causal=True, seed=n).sized(query_length=n, key_length=n) for n in (1, 33, 65)]
    checks = [FailingCheck("causal.square", case, "float64", "output") for case in cases]
    found = diagnose(candidate, checks, dtypes=("float64",))
    assert found is not None
    assert found.name == "number of tiles of 32 keys for 32 queries one short where the last key begins a tile"
