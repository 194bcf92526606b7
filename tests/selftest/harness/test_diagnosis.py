"""The diagnosis names mistakes and conventions of which it does not know the code, and accuses nobody else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.defects import catalogue
from attention_conformance.implementations.discovery.read_bits import CELL
from attention_conformance.spec.cases import Case, MaskKind, Pattern
from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.explain.diagnosis import by_clauses, naming
from attention_conformance.tests.harness.explain.diagnosis import diagnosis as diagnosing
from attention_conformance.tests.harness.explain.diagnosis.causes import factors_of_gradients
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck, failing_checks
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose, failing_alone
from attention_conformance.tests.harness.explain.diagnosis.observation import observed
from attention_conformance.tests.harness.run.runner import run

CORE = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH})


def diagnosis_of(function: Callable[..., Tensor]) -> Diagnosis | None:
    implementation = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(function))
    verdicts = run(implementation, dtypes=("float64",))
    return diagnose(implementation, failing_checks(verdicts), dtypes=("float64",))


def diagnosed(function: Callable[..., Tensor]) -> Diagnosis:
    diagnosis = diagnosis_of(function)
    assert diagnosis is not None
    return diagnosis


def scaled_late(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    scale = options.pop("scale", None)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT
    for name in ("attn_mask", "key_padding_mask"):
        if name in options:
            mask = options[name] if name == "attn_mask" else options[name][:, None, None, :]
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if "is_causal" in options:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    output: Tensor = torch.nan_to_num(torch.softmax(scores, -1)) * factor @ value
    return output


def inverted_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.pop("attn_mask", None)
    if mask is not None and mask.dtype is torch.bool:
        mask = mask.logical_not()
    return Steps()(query, key, value, attn_mask=mask, **options)


def sees_the_next_token(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    def late(scores: Tensor) -> Tensor:
        rows, columns = (torch.arange(extent) for extent in scores.shape[-2:])
        return torch.where(columns > rows[:, None] + 1, -torch.inf, scores)

    return Steps(add_causal=late)(query, key, value, is_causal=is_causal, **options)


def from_the_other_corner(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
    def bottom_right(scores: Tensor) -> Tensor:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        return scores.masked_fill(~visible, -torch.inf)

    return Steps(add_causal=bottom_right)(query, key, value, is_causal=is_causal, **options)


@pytest.mark.parametrize(
    ("function", "chapter"),
    [(scaled_late, "scores"), (sees_the_next_token, "causal")],
)
def test_a_mistake_is_named(function: Callable[..., Tensor], chapter: str) -> None:
    diagnosis = diagnosed(function)
    (defect,) = (d for d in catalogue() if d.id == diagnosis.name)
    assert defect.chapter == chapter
    assert diagnosis.explains == diagnosis.of > 0
    assert diagnosis.repair in str(diagnosis)


def test_the_other_polarity_is_named() -> None:
    diagnosis = diagnosed(inverted_masks)
    assert "inver" in diagnosis.name or diagnosis.name.startswith("bool-mask=")


def test_a_convention_that_was_not_claimed_is_named() -> None:
    diagnosis = diagnosed(from_the_other_corner)
    assert diagnosis.name == "causal-alignment=bottom-right"
    assert "--convention causal-alignment=bottom-right" in str(diagnosis)
    assert diagnosis.options == ("--convention", "causal-alignment=bottom-right")


def test_a_right_one_is_never_diagnosed() -> None:
    assert diagnosis_of(Steps()) is None


def test_where_nothing_known_matches_the_pattern_is_named() -> None:
    def peculiar(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = Steps()(query, key, value, **options)
        offset = 0.125 * (torch.arange(output.shape[1], dtype=output.dtype) > 0)[:, None, None]
        return output + offset if "attn_mask" in options else output

    diagnosis = diagnosed(peculiar)
    assert not diagnosis.name
    assert "it fails only with a mask, and only in heads from 1 on (counted from 0)" in str(diagnosis)


def test_conventions_that_explain_everything_together_are_options_of_the_next_command() -> None:
    def cornered(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any) -> Tensor:
        numbers = from_the_other_corner(query, key, value, is_causal, **options)
        seen = torch.arange(query.shape[-2])[:, None] >= query.shape[-2] - key.shape[-2]
        return torch.where(seen, numbers, torch.nan) if is_causal else numbers

    lengths = ((7, 5), (9, 6), (5, 7), (4, 9))
    cases = (Case(seed=n, causal=True).sized(query_length=lq, key_length=lk) for n, (lq, lk) in enumerate(lengths))
    diagnosis = judged_op(cornered, *cases)
    options = iter(diagnosis.options)
    assert set(zip(options, options, strict=True)) == {
        ("--convention", "causal-alignment=bottom-right"),
        ("--convention", "empty-row-causal=nan"),
    }


def test_a_dtype_that_was_not_checked_proves_nothing() -> None:
    checks = [FailingCheck("scores.dot-product", Case(), "float64", "output")]
    assert failing_alone(("float64",), checks) == ()
    assert failing_alone(("float64", "float32"), checks) == ("float64",)


def test_a_gradient_of_another_size_is_named_by_the_number() -> None:
    def larger(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        copy = key * 1.0
        if copy.requires_grad:
            copy.register_hook(lambda gradient: gradient * -1.0)
        return Steps()(query, copy, value, **options)

    assert diagnosed(larger).name == "gradient of key negated"


def test_two_gradients_with_one_factor_are_named_together() -> None:
    def twice_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        copies = query * 1.0, key * 1.0
        for copy in copies:
            if copy.requires_grad:
                copy.register_hook(lambda gradient: gradient * 1.5)
        return Steps()(copies[0], copies[1], value, **options)

    implementation = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(twice_scaled))
    parts = ("gradients.key", "gradients.query")
    (found,) = factors_of_gradients(observed(implementation, Case(), "float32", parts, "cpu"), parts, Conventions())
    assert found.name == "gradient of key and the gradient of query multiplied by 1.5"


def test_a_wrong_gradient_of_the_mask_is_compared_with_cases_that_have_no_mask() -> None:
    def peculiar(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        mask = options.get("attn_mask")
        if mask is not None and mask.requires_grad:
            options["attn_mask"] = mask * 1.0
            options["attn_mask"].register_hook(
                lambda gradient: gradient * torch.linspace(1.25, 1.75, gradient.shape[-1])
            )
        return Steps()(query, key, value, **options)

    diagnosis = diagnosed(peculiar)
    assert not diagnosis.name
    assert diagnosis.pattern == "it fails only with a mask of numbers, and only in the gradient of attn_mask"


def judged_op(function: Callable[..., Tensor], *cases: Case) -> Diagnosis:
    implementation = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(function))
    checks = [FailingCheck("shapes.large", case, "float64", "output") for case in cases]
    diagnosis = diagnose(implementation, checks, dtypes=("float64",))
    assert diagnosis is not None
    return diagnosis


LONG = Case().sized(key_length=70)


def test_a_limit_is_found_between_two_lengths() -> None:
    def cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if key.shape[-2] > 41:
            return 1.5 * Steps()(query, key, value, **options) - 0.5
        return Steps()(query, key, value, **options)

    assert judged_op(cut, LONG).when == ("with more than 41 keys",)


def test_of_cases_with_thousands_of_heads_only_the_trigger_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = Steps()(query, key, value, **options)
        return torch.cat((output[:4096], output[4096:] + 1.0))

    monkeypatch.setattr(naming, "scored", lambda *_: pytest.fail("a hypothesis was tried"))
    beyond = Case().sized(batch=4099, num_heads=1, query_length=1, key_length=2)
    assert judged_op(launched, beyond).when == ("in samples from 4096 on (counted from 0)",)


def test_a_mistake_under_a_condition_is_named_with_it() -> None:
    def unscaled_when_masked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, key, value, **({"scale": 1.0, **options} if "attn_mask" in options else options))

    diagnosis = judged_op(unscaled_when_masked, Case(mask=MaskKind.BOOL), Case(mask=MaskKind.FLOAT))
    assert diagnosis.name == "no-scale"
    assert diagnosis.when == ("with a mask", "without a scale")


def test_a_second_call_with_the_same_sizes() -> None:
    first: dict[tuple[int, ...], Tensor] = {}

    def remembers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, first.setdefault((*query.shape, *key.shape), key), value, **options)

    remembers(*(torch.ones(extents) for extents in ((2, 3, 5, 4), (2, 3, 70, 4), (2, 3, 70, 3))))
    diagnosis = judged_op(remembers, LONG)
    assert diagnosis.name == "keys of the first call in the second one"
    assert diagnosis.when == ("from the second call with the same sizes on",)


def test_an_exception_where_options_meet_is_a_finding_of_its_own() -> None:
    def halves(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if "attn_mask" in options and "is_causal" in options:
            raise ValueError("a mask and a causal flag")
        return Steps()(query, key, value, **options) / 2

    masked = replace(LONG, mask=MaskKind.BOOL)
    diagnosis = judged_op(halves, LONG, masked, replace(masked, causal=True))
    assert diagnosis.name == "output multiplied by 0.5"
    assert 2 < diagnosis.explains < diagnosis.of
    assert str(diagnosis).endswith("; the others all have an exception of their own: Return the weighted sum as it is.")


def test_a_wrong_output_is_compared_where_something_else_was_checked() -> None:
    def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return Steps()(query[..., :64], key[..., :64], value, scale=query.shape[-1] ** -0.5)

    implementation = Implementation("candidate", Claims(Scope.OP, CORE), torch_op(narrow))
    diagnosis = diagnose(implementation, [FailingCheck("relations.grad-mode", Case().sized(d_k=80), "float64", "")])
    assert diagnosis is not None
    assert not diagnosis.of_clauses
    assert not diagnosis.name
    assert "with more than 64 components of a query" in diagnosis.when


def test_nan_shows_no_step() -> None:
    def divided(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        steps = Steps(softmax=lambda scores: scores.exp(), mix=lambda e, v: e @ v)
        whole = steps(query, key, torch.ones_like(value), **options)
        return torch.where(whole == 0.0, 0.0, steps(query, key, value, **options) / whole)

    claims = Claims(Scope.OP, OP_FEATURES)
    case = Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
    checks = [FailingCheck("gradients.empty-row", case, "float64", "gradients.value")]
    diagnosis = diagnose(Implementation("candidate", claims, torch_op(divided)), checks)
    assert diagnosis is not None
    assert "in the gradient of value alone" not in diagnosis.name


def test_a_number_in_the_denominator_is_measured() -> None:
    def adds(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
        output: Tensor = exponentials @ value / (exponentials.sum(-1, keepdim=True) + 0.003)
        return output

    implementation = Implementation("candidate", Claims(Scope.OP, CORE), torch_op(adds))
    diagnosis = diagnose(implementation, [FailingCheck("softmax.rows-sum-to-one", LONG, "float64", "output")])
    assert diagnosis is not None
    assert diagnosis.name == "0.003 added to the sum of the exponentials"


def test_roundings_to_a_narrower_dtype_are_seen() -> None:
    def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return Steps()(*(x.bfloat16() for x in (query, key, value))).to(query.dtype)

    implementation = Implementation("candidate", Claims(Scope.OP, CORE), torch_op(narrow))
    diagnosis = diagnose(implementation, [FailingCheck("scores.dot-product", Case(), "float32", "output")])
    assert diagnosis is not None
    assert diagnosis.name == "computed in bfloat16"


def test_operands_that_are_read_as_tensor_cores_do_are_a_claim_to_make() -> None:
    def cut(x: Tensor) -> Tensor:
        return (x.contiguous().view(torch.int32) & -CELL).view(torch.float32) if x.dtype == torch.float32 else x

    def reads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = cut(query) @ cut(key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        return cut(scores.softmax(-1)) @ cut(value)

    implementation = Implementation("candidate", Claims(Scope.OP, CORE), torch_op(reads))
    diagnosis = diagnose(implementation, [FailingCheck("scores.dot-product", Case(), "float32", "output")])
    assert diagnosis is not None
    assert diagnosis.options == ("--convention", "product-precision=tf32")


class LosesTheLastKey(torch.autograd.Function):
    """A softmax whose backward pass leaves the last of many keys out of a sum."""

    @staticmethod
    def forward(context: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        context.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (weights,) = context.saved_tensors
        parts = weights * gradients[0]
        total = parts[..., : -1 if parts.shape[-1] > 8 else None].sum(-1, keepdim=True)
        return torch.sub(parts, weights * total)


def test_a_small_error_that_most_cases_do_not_have_is_no_rounding_of_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, nothing in (("explanation", None), ("narrower", ""), ("conditions", []), ("sizes", [])):
        monkeypatch.setattr(diagnosing, name, lambda *_, of=nothing: of)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights: Tensor = LosesTheLastKey.apply(query @ key.mT / query.shape[-1] ** 0.5)  # type: ignore[no-untyped-call]
        return weights @ value

    implementation = Implementation("candidate", Claims(Scope.OP, CORE | {Feature.GRADIENTS}), torch_op(attention))
    many = Case(seed=1).sized(batch=1, num_heads=1, query_length=1, key_length=300)
    check = FailingCheck("shapes.large", many, "float32", "gradients.query")
    diagnosis = diagnose(implementation, [check], dtypes=("float32",))
    assert diagnosis is not None
    assert not diagnosis.name.startswith("product-precision")


def test_failures_that_do_not_come_again_name_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_clauses, "_failure_summaries", lambda *_: frozenset())
    monkeypatch.setattr(by_clauses, "hypotheses", lambda *_: pytest.fail("each mistake was judged"))
    right = Implementation("right", Claims(Scope.OP, OP_FEATURES), torch_op(Steps()))
    diagnosis = by_clauses.by_clauses(right, [FailingCheck("masks.broadcast", Case(), "float32", "")], "cpu", ())
    assert "no known mistake explains the failures; none showed when" in str(diagnosis)


def test_many_failures_that_do_not_come_again_are_compared_with_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosing, "by_clauses", lambda *_: pytest.fail("each mistake was judged"))
    right = Implementation("right", Claims(Scope.OP, OP_FEATURES), torch_op(Steps()))
    checks = [FailingCheck(clause, Case(), "float32", "output") for clause in list(load())[:20]]
    assert "none showed when the checks were run again" in str(diagnose(right, checks, dtypes=("float32",)))


def test_a_refusal_of_what_no_check_gave_is_no_failure() -> None:
    """A flag with a mask is refused: what is wrong is one thing, which has a condition and a size."""

    def larger(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if "attn_mask" in options and options.get("is_causal"):
            raise NotImplementedError("a mask with the flag")
        return Steps()(query, key, value, **options) * (1.1 if key.shape[-2] > 255 else 1.0)

    diagnosis = judged_op(larger, *(Case(seed=n).sized(key_length=length) for n, length in enumerate((257, 300))))
    assert diagnosis.name == "output multiplied by 1.1"
    assert diagnosis.when == ("with more than 255 keys",)
