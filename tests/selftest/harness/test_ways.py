"""What is wrong in calls that no reference answers: named with what is kept, dropped, summed or seen there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.spec.cases import Case, MaskKind, ModuleForm, Padding, Sharing
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.diagnosis.kept import kept
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, observed
from attention_conformance.tests.harness.explain.diagnosis.seen_keys import seen_keys
from attention_conformance.tests.harness.explain.diagnosis.summed import summed
from attention_conformance.tests.harness.explain.diagnosis.ways import along_ways
from attention_conformance.tests.harness.explain.diagnosis.wholes import AS_BUILT, LATER, LOST

EVALUATION = "in evaluation mode"


def op(function: Callable[..., Tensor]) -> Implementation:
    return Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(function))


def two_ways(function: Callable[..., Tensor]) -> Implementation:
    """One that is right, and called in evaluation mode is this function."""
    claims = Claims(Scope.OP, OP_FEATURES | {Feature.ALTERNATIVES})
    return Implementation("candidate", claims, op(Steps()).run, alternatives={EVALUATION: torch_op(function)})


def with_way(function: Callable[..., Tensor]) -> Diagnosis:
    found = diagnose(two_ways(function), [FailingCheck("relations.alternatives", Case(), "float64", "output")])
    assert found is not None
    return found


def test_values_that_are_kept_along_one_way_are_named_with_it() -> None:
    first: dict[object, Tensor] = {}

    def remembers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, key, first.setdefault((query.shape, key.shape, value.shape), value), **options)

    found = with_way(remembers)
    assert found.name == "values of the first call in the second one"
    assert found.when == (EVALUATION, "from the second call with the same sizes on")


def test_dropout_along_one_way_is_named() -> None:
    def drops(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return torch.dropout(Steps()(query, key, value, **options), 0.5, train=True)

    assert with_way(drops).name == "unexpected dropout"


def test_what_fails_along_one_way_alone_is_diagnosed_there() -> None:
    def unscaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, key, value, **{**options, "scale": 1.0})

    def diagnosed(implementation: Implementation, wrong: Sequence[FailingCheck]) -> Diagnosis:
        assert implementation.run is both.alternatives[EVALUATION]
        assert len({each.case for each in wrong}) > 1
        return Diagnosis("no-scale", len(wrong), len(wrong))

    both = two_ways(unscaled)
    found = along_ways(both, [FailingCheck("relations.alternatives", Case(), "float64", "output")], "cpu", diagnosed)
    assert found is not None
    assert (found.name, found.when) == ("no-scale", (EVALUATION,))


def test_a_mask_that_an_earlier_call_left_behind_is_named() -> None:
    hidden: dict[object, Tensor] = {}

    def leaves(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        sizes = query.shape, key.shape
        if "key_padding_mask" in options:
            hidden[sizes] = options["key_padding_mask"]
        elif sizes in hidden:
            options["key_padding_mask"] = hidden[sizes]
        return Steps()(query, key, value, **options)

    found = kept(op(leaves), Case(), "float64", "cpu")
    assert found is not None
    assert found.name == "padding mask of an earlier call"
    assert found.when == ("after a call of the same sizes with a padding mask",)


def test_nothing_is_kept_by_a_right_one() -> None:
    assert kept(op(Steps()), Case(), "float64", "cpu") is None


def in_tiles(query: Tensor, key: Tensor, value: Tensor, wide: torch.dtype, narrow: torch.dtype) -> Tensor:
    """Weighted values are added up in one type, exponentials in the other."""
    scores = (query.float() @ key.float().mT) * query.shape[-1] ** -0.5
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    output = torch.zeros(*scores.shape[:-1], value.shape[-1], dtype=narrow)
    total = torch.zeros(*scores.shape[:-1], 1, dtype=wide)
    for own, values in zip(powers.split(64, -1), value.float().split(64, -2), strict=True):
        output = (output.float() + own @ values).to(narrow)
        total = (total.float() + own.sum(-1, keepdim=True)).to(wide)
    return (output.float() / total.float()).to(query.dtype)


@pytest.mark.parametrize(
    ("wide", "narrow", "name"),
    [
        (torch.float32, torch.bfloat16, "weighted values summed over keys in bfloat16"),
        (torch.bfloat16, torch.float32, "exponentials summed over keys in bfloat16"),
        (torch.float32, torch.float32, ""),
    ],
)
def test_sums_in_a_half_type_are_named(wide: torch.dtype, narrow: torch.dtype, name: str) -> None:
    run = torch_op(lambda query, key, value: in_tiles(query, key, value, wide, narrow))
    claims = Claims(Scope.OP, frozenset({Feature.CORE, Feature.CROSS, Feature.VALUE_WIDTH}))
    found = summed(Implementation("candidate", claims, run), "bfloat16", "cpu")
    assert (found.name if found is not None else "") == name


class Causal(nn.Module):
    """A module that is right as a whole, and keeps keys and values as its fields state."""

    def __init__(self, keeps: bool = False) -> None:
        super().__init__()
        self.linear, self.keeps, self.held = nn.Linear(4, 4), keeps, dict[object, Tensor]()

    def forward(self, x: Tensor, context: Tensor, past: int = 0, back: int = 99) -> Tensor:
        """Each token sees itself and earlier ones, as far back as its window; in pieces, as many more as are past."""
        if self.keeps:
            context = self.held.setdefault(context.shape, context)
        scores = self.linear(x) @ context.mT
        ahead = torch.arange(scores.shape[-1]) - torch.arange(scores.shape[-2])[:, None] - past
        made: Tensor = scores.masked_fill((ahead > 0) | (ahead < -back), -torch.inf).softmax(-1) @ context
        return made


def in_pieces(late: int = 0, back: int = 99) -> Callable[[nn.Module, dict[str, Tensor], Problem], Tensor]:
    """The last two tokens by themselves, next to what was kept; with so many more past tokens than there are."""

    def call(module: nn.Module, given: dict[str, Tensor], problem: Problem) -> Tensor:
        x = given["query"]
        start = x.shape[1] - 2
        return torch.cat([module(x[:, :start], x[:, :start]), module(x[:, start:], x, start + late, back)], 1)

    return call


def of_whole(build: Callable[[], nn.Module], call: Any, case: Case, **options: Any) -> Diagnosis:
    run = AsBuilt(lambda problem: build(), call, **options)
    claims = Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}))
    whole = Implementation("candidate", claims, run, modes={Feature.AS_BUILT: run})
    found = diagnose(whole, [FailingCheck(AS_BUILT, case, "float64", "output")])
    assert found is not None
    return found


def as_a_whole(module: nn.Module, given: dict[str, Tensor], problem: Problem) -> Tensor:
    made: Tensor = module(given["query"], given["query"])
    return made


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (in_pieces(late=1), f"{LATER}: token 2 sees token 3"),
        (in_pieces(back=1), f"{LOST}: token 2 does not see token 0"),
        (lambda module, given, problem: 2.0 * in_pieces()(module, given, problem), ""),
    ],
)
def test_of_pieces_it_is_told_what_they_see(pieces: Any, name: str) -> None:
    case = replace(Case(seed=315).sized(batch=3, query_length=4, key_length=4), causal=True)
    case = replace(case, module=ModuleForm(Sharing.SELF, 4, 4, 4, 4))
    found = of_whole(Causal, as_a_whole, case, causal=True, pieces={"in pieces through past": pieces})
    assert found.name == name
    assert found.when[0] == "in pieces through past"


def test_keys_that_a_module_keeps_are_named() -> None:
    def across(module: nn.Module, given: dict[str, Tensor], problem: Problem) -> Tensor:
        made: Tensor = module(given["query"], given["key"], 9)
        return made

    case = Case(seed=315).sized(batch=3, query_length=4, key_length=5)
    case = replace(case, module=ModuleForm(Sharing.NONE, 4, 4, 4, 4))
    found = of_whole(lambda: Causal(keeps=True), across, case, prefixes=False)
    assert found.name == "keys and values of the first call in the second one"
    assert "from the second call" in found.pattern


def observed_of(function: Callable[..., Tensor], case: Case) -> tuple[Implementation, list[Observation]]:
    own = op(function)
    return own, [observed(own, replace(case, seed=seed), "float64", ("output",), "cpu") for seed in (1, 2)]


def test_hidden_keys_that_are_seen_are_named_with_what_hides_them() -> None:
    def small(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mask = options["key_padding_mask"][:, None, None, :]
        scores = query @ key.mT * query.shape[-1] ** -0.5
        output: Tensor = scores.masked_fill(mask, -1e-9).softmax(-1) @ value
        return output

    found = seen_keys(*observed_of(small, Case(padding=Padding.RIGHT)), "cpu")
    assert found is not None
    assert found.name.startswith("keys that the padding mask hides are seen")


def test_keys_of_other_samples_are_named() -> None:
    def late(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        keys, values = (torch.cat([x, x.roll(-1, 0)[:, :, :1]], -2) for x in (key, value))
        return Steps()(query, keys, values)

    found = seen_keys(*observed_of(late, Case()), "cpu")
    assert found is not None
    assert found.name.startswith("keys of other samples are seen, such as query 0 of sample 0")


def test_who_sees_what_is_allowed_is_not_accused_of_seeing_more() -> None:
    def halves(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, key, value, **options) / 2.0

    assert seen_keys(*observed_of(halves, Case(padding=Padding.RIGHT, mask=MaskKind.BOOL)), "cpu") is None
