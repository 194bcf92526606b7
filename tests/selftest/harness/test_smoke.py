"""The smoke step: mistakes of an adapter are named; answers that are wrong in another way are left to the clauses."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.implementations.builtin.compositions import eager, in_numpy
from attention_conformance.spec.conventions import Conventions, Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.run.smoke import smoke
from attention_conformance.tests.selftest.sessions import SUITE
from attention_conformance.tests.selftest.thorough import by_turns

PLAIN = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE})
MASKED = PLAIN | {Feature.BOOL_MASK}


def adapter(
    function: Callable[..., Any], *features: Feature, extras: tuple[str, ...] = (), **claimed: Any
) -> Implementation:
    claims = Claims(Scope.OP, PLAIN.union(features), **claimed)
    return Implementation("adapter", claims, torch_op(function, extras=extras))


def mistake_of(implementation: Implementation) -> str:
    (mistake,) = smoke(implementation, "cpu")
    return mistake.text


@pytest.mark.parametrize(
    "name",
    ["source.a", "source.d", "source.e.cross", "torch.sdpa", "torch.mha.weights", "inhouse.numpy", "inhouse.fused"],
)
def test_a_right_adapter_has_no_mistake(name: str) -> None:
    implementation = next(each for each in BUILTIN if each.name == name)
    assert smoke(implementation, "cpu") == ()


def test_a_wrong_answer_of_one_query_is_no_mistake_of_the_adapter() -> None:
    """As that of a decoder's step: its axes exchanged would make no problem."""
    one = adapter(lambda query, key, value: value[:, :, :1], fit=lambda case: case.sized(query_length=1))
    assert smoke(one, "cpu") == ()


def test_slopes_that_are_wrong_are_no_mistake_of_the_adapter() -> None:
    """There is one for each head, so that heads and tokens exchanged would make no problem."""
    wrong = adapter(lambda query, key, value, **_: value[:, :, : query.shape[2]], premises=Premises(alibi=True))
    assert smoke(wrong, "cpu") == ()


def refusing(*inputs: Tensor) -> Tensor:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value, scale=1.0),
        lambda query, key, value: (query @ key.mT).softmax(-2) @ value,
        lambda query, key, value: torch.zeros_like(query[..., : value.shape[-1]]),
        refusing,
    ],
)
def test_answers_that_are_wrong_in_another_way_are_no_mistake_of_the_adapter(wrong: Callable[..., Tensor]) -> None:
    assert smoke(adapter(wrong, Feature.VALUE_WIDTH), "cpu") == ()


def in_numpy_swapped(query: Any, key: Any, value: Any) -> Any:
    return in_numpy(query, value, key)


def blhd_inputs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return blhd_output(query, key, value)


def blhd_output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (blhd_output, "the output comes as (B, Lq, H, d): turn its axes to (B, H, Lq, d)"),
        (blhd_inputs, "(B, H, L, d) is read as (B, L, H, d): turn axes 1 and 2"),
        (lambda q, k, v: blhd_output(q, k, v).flatten(2), "the output has shape (2, 5, 12), expected (2, 3, 5, 4)"),
        (lambda q, k, v: eager(q, v, k), "key and value are swapped: "),
        (lambda q, k, v: eager(k, q, v), "query and key are swapped: "),
        (lambda q, k, v: eager(v, k, q), "query and value are swapped: "),
        (in_numpy_swapped, "key and value are swapped: "),
    ],
)
def test_inputs_and_outputs_in_another_form(function: Callable[..., Any], start: str) -> None:
    implementation = adapter(function)
    if function is in_numpy_swapped:
        implementation = Implementation("adapter", Claims(Scope.OP, PLAIN, dtypes=("float64",)), numpy_op(function))
    assert mistake_of(implementation).startswith(f"adapter: {start}")


def test_a_module_that_takes_the_sequence_first() -> None:
    module = next(each for each in BUILTIN if each.name == "torch.mha")

    def rotated(problem: Problem, device: str) -> Result:
        inputs = {name: problem.arrays()[name].swapaxes(0, 1) for name in ("query", "key", "value")}
        result = module.run(problem.with_arrays(inputs), device)
        return replace(result, output=result.output.swapaxes(0, 1))

    claims = replace(module.claims, features=frozenset(MASKED | module.claims.features) - {Feature.KEY_PADDING})
    mistakes = smoke(replace(module, run=rotated, claims=claims), "cpu")
    assert "(B, L, width) is read as (L, B, width)" in mistakes[0].text


def test_an_inverted_boolean_mask() -> None:
    def hides(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return eager(query, key, value, None if attn_mask is None else ~attn_mask)

    assert mistake_of(adapter(hides, Feature.BOOL_MASK)) == (
        "adapter: the boolean mask is read the other way round (True hides): add --convention bool-mask=masked-out or "
        "invert it"
    )
    claimed = replace(
        adapter(hides, Feature.BOOL_MASK, conventions=Conventions(bool_mask=Polarity.MASKED_OUT)),
        run=torch_op(hides, polarity=Polarity.MASKED_OUT),
    )
    assert smoke(claimed, "cpu") == ()


def test_an_inverted_padding_mask() -> None:
    def hides(query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return eager(query, key, value, None if key_padding_mask is None else ~key_padding_mask[:, None, None])

    claimed = Conventions(bool_mask=Polarity.MASKED_OUT)
    assert mistake_of(adapter(hides, Feature.KEY_PADDING, conventions=claimed)).startswith(
        "adapter: the padding mask is read the other way round (True lets attend): add --convention bool-mask=may"
    )


def test_a_mask_that_is_wrong_in_another_way_is_not_called_inverted() -> None:
    def per_sample(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        first = None if attn_mask is None or attn_mask.ndim < 4 else ~attn_mask[:1]
        return eager(query, key, value, attn_mask if first is None else first)

    assert smoke(adapter(per_sample, Feature.BOOL_MASK), "cpu") == ()


def weighing(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    return weights @ value, weights


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda weights: weights.mT, "the weights come as (B, H, Lk, Lq): turn their axes to (B, H, Lq, Lk)"),
        (lambda weights: weights.transpose(0, 1), "the weights come as (H, B, Lq, Lk)"),
        (lambda weights: weights.mean(1), "the weights are averaged over the heads"),
    ],
)
def test_weights_of_another_form(changed: Callable[[Tensor], Tensor], message: str) -> None:
    def weighed(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = weighing(*inputs)
        return output, changed(weights)

    assert message in mistake_of(adapter(weighed, Feature.WEIGHTS, extras=("weights",)))


def test_weights_that_are_claimed_and_not_returned() -> None:
    assert "none are returned" in mistake_of(adapter(eager, Feature.WEIGHTS))


@pytest.mark.parametrize("processes", by_turns([(), ("-n", "1")], 2))
def test_a_run_names_the_mistake_before_the_first_verdict_and_in_its_diagnosis(
    pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    file = pytester.makepyfile(
        hidden="import torch\n\n"
        "def attention(query, key, value, attn_mask=None):\n"
        "    scores = query @ key.mT / query.shape[-1] ** 0.5\n"
        "    if attn_mask is not None and attn_mask.dtype is torch.bool:\n"
        "        scores = scores.masked_fill(attn_mask, float('-inf'))\n"
        "    elif attn_mask is not None:\n"
        "        scores = scores + attn_mask\n"
        "    return scores.softmax(-1) @ value\n"
    )
    result = pytester.runpytest_subprocess(
        *SUITE, "--candidate", f"{file}:attention", "--clause", "masks.bool", "--dtype", "float64", *processes
    )
    lines = [line for line in result.outlines if "adapter: the boolean mask is read the other way round" in line]
    assert lines[0].startswith("attention: adapter: ")
    assert lines[1].startswith("  diagnosis  adapter: ")
    assert not any("matches" in line or "fails as" in line for line in result.outlines)
    assert any("--convention bool-mask=masked-out" in line and "meant to do so" in line for line in result.outlines)
