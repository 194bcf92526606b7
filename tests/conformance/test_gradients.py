"""Chapter 11, gradients: of every input and parameter, against the closed forms."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.worker.observer import LATER
from attention_conformance.reference.bounds.exact_weights import KEYS, WIDTH, excess, just_below_a_tie
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Poison, Scores, Sharing
from attention_conformance.spec.conventions import DefaultScale, EmptyRow
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import HALF, Array
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.comparison import part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

ORDINARY = (
    Case(seed=51),
    Case(seed=52, score_std=5.0, mask=MaskKind.BOOL),
    Case(seed=53, causal=True).sized(query_length=7),
    Case(seed=54, scale=0.3),
    Case(seed=55, padding=Padding.LEFT),
    Case(seed=56, padding=Padding.LENGTHS),
    Case(seed=57, score_std=3.0).sized(batch=1, query_length=17, key_length=33),
    Case(seed=59, score_std=0.5).sized(key_length=4),  # gentle: bfloat16 leaves its gradients some digits
)
RANKS = (MaskShape.HEADS_ONLY, MaskShape.KEYS_ONLY)
INPUTS = ("query", "key", "value")
ANY_SCALE = (
    *(Case(seed=n, scale=scale) for n, scale in ((73, 0.0), (74, -0.7), (75, -1.3))),
    Case(seed=76, scale=0.0).sized(query_length=19, key_length=131, d_k=16, d_v=16),
)
SQUARE = Case(seed=72).sized(query_length=5, key_length=5, d_v=4)

CLAUSES = table(
    row("gradients.query", *ORDINARY, parts=("gradients.query",)),
    row("gradients.key", *ORDINARY, parts=("gradients.key",)),
    row("gradients.value", *ORDINARY, parts=("gradients.value",)),
    row(
        "gradients.float-mask",
        *(Case(seed=61, mask=MaskKind.FLOAT, mask_shape=shape) for shape in MaskShape if shape not in RANKS),
        *(Case(seed=62, mask=MaskKind.INFINITE, mask_shape=shape) for shape in (MaskShape.FULL, MaskShape.SHARED)),
        parts=("gradients.attn_mask",),
    ),
)


@clause("gradients.any-scale")
def test_any_scale(judge: Judge) -> None:
    for case in judge.cases(*ANY_SCALE):
        context, problem = f"a scale of {case.scale:g}", judge.problem(case)
        expected, result = judge.expected(case, gradients=True), judge.answer(case, problem, context)
        if result is None:
            continue
        parts = judge.expanded(("output", "gradients"), problem)
        compared = {part: judge.compared(part, part_of(result, part), expected[part]) for part in parts}
        if case.scale is not None and case.scale < 0.0 and compared["output"].kind is not None:
            judge.unsupported.append(
                "its output under a negative scale is off, which is the advice of scores.scale-negative"
            )
            continue
        for part, comparison in compared.items():
            judge.record(case, comparison, context, part)


ONE_ARRAY = {Sharing.SELF: INPUTS, Sharing.KEY_VALUE: INPUTS[1:], Sharing.QUERY_KEY: INPUTS[:2]}
"""The roles that one array may have."""


@clause("gradients.shared-input")
def test_shared_input(judge: Judge) -> None:
    for case in judge.cases(*(replace(SQUARE, mask=mask) for mask in (MaskKind.BOOL, MaskKind.NONE))):
        problem = judge.problem(case)
        for sharing, roles in ONE_ARRAY.items():
            if len({getattr(problem, role).shape for role in roles}) > 1:
                continue  # it always has fewer heads of keys: the three cannot be one array
            shared = problem.but(**{name: getattr(problem, roles[0]) for name in roles})
            parts = judge.solve(shared).parts
            expected = _summed([parts[f"gradients.{name}"] for name in roles], judge.dtype)
            given = problem.but(sharing=sharing, needs=roles[:1]).with_arrays({})
            context = f"one array is {', '.join(roles)}"
            judge.assert_answers(case, given, expected, context, f"gradients.{roles[0]}")


def _summed(parts: Sequence[Expected], dtype: str) -> Expected:
    """The sum of gradients, each of which was rounded, by additions that round."""
    bound = np.sum([part.bound for part in parts], axis=0)
    sizes = np.sum([np.abs(part.value) for part in parts], axis=0) + bound
    additions = len(parts) - 1
    return Expected(
        np.sum([part.value for part in parts], axis=0), bound + 2.0 * additions * unit_roundoff(dtype) * sizes
    )


@clause("gradients.parameters")
def test_parameters(judge: Judge) -> None:
    for case in judge.cases(*ORDINARY[:3], Case(seed=58).sized(num_heads=2, d_k=6)):
        names = judge.problem(case).parameters
        judge.assert_conforms(case, *(f"gradients.{name}" for name in names))


@clause("gradients.masked")
def test_masked(judge: Judge) -> None:
    masked = Case(seed=63, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS)
    added = replace(masked, seed=65, mask=MaskKind.INFINITE)
    for case in judge.cases(masked, replace(masked, poison=Poison.LARGE), Case(seed=64, mask=MaskKind.BOOL), added):
        judge.assert_conforms(case, "gradients")
    for case in judge.cases(masked, added) if judge.claims.scope is Scope.OP else ():
        _assert_masked_get_nothing(judge, case)


def _assert_masked_get_nothing(judge: Judge, case: Case) -> None:
    problem = judge.problem(case)
    scores = (*problem.query.shape[:3], problem.key.shape[2])
    given = np.asarray(problem.attn_mask)
    mask = np.broadcast_to(given if given.dtype == bool else given != -np.inf, scores)[:, :, 0]
    if (result := judge.answer(case, problem)) is not None:
        for name in ("key", "value"):
            gradient = result.gradients.get(name)
            none = gradient is not None and gradient.shape[:3] == mask.shape and not gradient[~mask].any()
            judge.assert_that(case, none, f"a masked {name} has a gradient")


@clause("gradients.empty-row")
def test_empty_row(judge: Judge) -> None:
    by_bool, by_float = (Case(mask=kind, pattern=Pattern.EMPTY_ROW) for kind in (MaskKind.BOOL, MaskKind.INFINITE))
    claimed = judge.conventions
    emptied = {
        by_bool: claimed.empty_row_bool,
        replace(by_bool, seed=66, mask_shape=MaskShape.SHARED): claimed.empty_row_bool,
        replace(by_bool, seed=77, pattern=Pattern.EMPTY_IN_ONE): claimed.empty_row_bool,
        by_float: claimed.empty_row_float,
        Case(padding=Padding.EMPTY_SAMPLE): claimed.empty_row_padding,
        Case(padding=Padding.EMPTY_LENGTHS): claimed.empty_row_padding,
    }
    for case in judge.cases(*(case for case, answer in emptied.items() if answer is EmptyRow.ZEROS)):
        judge.assert_conforms(case, "gradients", context="a row without keys passes no gradient and harms no other")
    if set(emptied.values()) != {EmptyRow.ZEROS}:
        judge.unsupported.append(
            "claims another answer than zeros for a row without keys, whose gradients are unspecified"
        )


@clause("gradients.single-input")
def test_alone(judge: Judge) -> None:
    """A graph may be cut short where only some inputs need a gradient."""
    for case in judge.cases(Case(seed=67), *(Case(seed=n, mask=MaskKind.FLOAT) for n in (68, 69))):
        whole = judge.problem(case)
        for name in whole.needs:
            context = f"only {name} requires a gradient"
            expected = judge.expected(case, gradients=True)[f"gradients.{name}"]
            judge.assert_answers(case, replace(whole, needs=(name,)), expected, context, f"gradients.{name}")


@clause("gradients.in-turn")
def test_in_turn(judge: Judge) -> None:
    own = Case(seed=76, mask=MaskKind.BOOL if Feature.BOOL_MASK in judge.claims else MaskKind.NONE)
    for case in judge.cases(own) if judge.observes("in_turn") else ():
        problem, other = judge.problem(case), judge.problem(replace(case, seed=case.seed + 1000))
        later = other.with_arrays(problem.parameters)  # the same module
        try:
            result = judge.observer.in_turn(problem, later, judge.device)
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        if result is None:
            judge.unsupported.append("its forward and backward passes cannot be called apart")
            continue
        answers = {"a backward pass after a later call": (result, problem)} | {
            how: (each, later if how == LATER else problem) for how, each in result.others.items()
        }
        for how, (answer, given) in answers.items():
            expected = judge.solve(given).parts
            judge.compare(case, answer, expected, judge.expanded(("gradients",), given), how)


@clause("gradients.cotangent")
def test_cotangent(judge: Judge) -> None:
    for case in judge.cases(Case(seed=69), Case(seed=70, scores=Scores.RISING)):
        problem = judge.problem(case)
        assert problem.cotangent is not None
        ones = np.broadcast_to(np.ones((), problem.cotangent.dtype), problem.cotangent.shape)
        _assert_gradients(judge, case, ones, "every element of the cotangent is one 1")
        transposed = np.ascontiguousarray(problem.cotangent.swapaxes(-1, -2)).swapaxes(-1, -2)
        _assert_gradients(judge, case, transposed, "the cotangent is a transposed view")
        sparse = problem.cotangent.copy()
        sparse[..., :-1, :], sparse[..., 0] = 0, 0
        _assert_gradients(judge, case, sparse, "the cotangent is 0 but for the last query, and there in component 0")
    # In self-attention, as many keys come along, and the gradients of weights are sums over as many tokens.
    if Feature.CROSS in judge.claims and judge.claims.scope is Scope.OP:
        for case in judge.cases(Case(scores=Scores.EQUAL).sized(batch=1, num_heads=2, query_length=2049, key_length=3)):
            ones = np.ones_like(judge.problem(case).cotangent)
            _assert_gradients(
                judge, case, ones, "the cotangent is 1, and gradients of values are sums over 2049 queries"
            )


def _assert_gradients(judge: Judge, case: Case, cotangent: Array, context: str) -> None:
    problem = judge.problem(case).with_arrays({"cotangent": cotangent})
    expected = solve(problem, judge.conventions).parts
    passed = problem.fresh().with_arrays({"cotangent": cotangent})
    if (result := judge.answer(case, passed, context, as_is=True)) is not None:
        judge.compare(case, result, expected, judge.expanded(("gradients",), problem), context)


@clause("gradients.same-weights", dtypes=HALF)
def test_same_weights(judge: Judge) -> None:
    single = Case(seed=77).sized(batch=1, query_length=1, key_length=KEYS, d_k=WIDTH, d_v=WIDTH)
    fitted = fit(single, judge.claims)  # some take as many queries as keys alone
    alone = not judge.claims.premises.causal and isinstance(fitted, Case) and fitted.sizes.key_length == KEYS
    for case in judge.cases(single if alone else single.sized(query_length=KEYS)):
        problem = judge.problem(case)
        if problem.key.shape[-2] != KEYS:
            judge.unsupported.append(f"its claims exclude {KEYS} keys")
            continue
        size = just_below_a_tie(judge.dtype, problem.value.shape[-1])
        problem = changed(
            problem, query=np.ones_like, key=np.zeros_like, value=np.ones_like, cotangent=partial(_last, size=size)
        )
        result = judge.answer(case, problem)
        if result is None:
            continue
        assert problem.cotangent is not None
        d_value, d_key = (result.gradients[name] for name in ("value", "key"))
        usual = 1.0 if judge.conventions.default_scale is DefaultScale.ONE else problem.key.shape[-1] ** -0.5
        scale = usual if problem.scale is None else problem.scale
        found = excess(result.output, d_value, d_key, problem.query, problem.cotangent, scale)
        off = f"{found.weights:.2f} of what is stored may move them"
        judge.assert_that(case, found.weights <= 1.0, "weights of the backward pass are not those of the forward", off)
        moved = f"{found.centre:.2f} of what is stored may move them"
        judge.assert_that(case, found.centre <= 1.0, "gradients of keys are not 0 where all values are alike", moved)


def _last(cotangent: Array, size: float) -> Array:
    """The size in the last query, and 0 in all others."""
    cotangent[...] = 0
    cotangent[..., -1, :] = size
    return cotangent
