"""Diagnosis: which known mistake, or which convention, explains the failures of a candidate, and when it fails."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions, ProductPrecision
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import DTYPES, HALF
from attention_conformance.tests.harness.explain.diagnosis.by_clauses import by_clauses
from attention_conformance.tests.harness.explain.diagnosis.causes import INTENDED, Hypothesis, repairs
from attention_conformance.tests.harness.explain.diagnosis.changed_inputs import changed_inputs
from attention_conformance.tests.harness.explain.diagnosis.conditions import Condition, conditions
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.equal_calls import differ, of_equal_calls
from attention_conformance.tests.harness.explain.diagnosis.hypotheses import following, hypotheses
from attention_conformance.tests.harness.explain.diagnosis.kept import kept
from attention_conformance.tests.harness.explain.diagnosis.magnitudes import parts, sizes
from attention_conformance.tests.harness.explain.diagnosis.naming import (
    RAISING,
    Explanation,
    conventions_that_help,
    explanation,
)
from attention_conformance.tests.harness.explain.diagnosis.narrowing import narrower, reads_tf32
from attention_conformance.tests.harness.explain.diagnosis.neighbours import neighbour
from attention_conformance.tests.harness.explain.diagnosis.observation import (
    Observation,
    Prober,
    observed,
)
from attention_conformance.tests.harness.explain.diagnosis.other_claims import holding, rounded_operands, stated
from attention_conformance.tests.harness.explain.diagnosis.places import (
    in_gradients,
    other_numbers,
    other_sizes,
    places,
    shared_exception,
    wider,
    wider_scores,
)
from attention_conformance.tests.harness.explain.diagnosis.probes import PROBES
from attention_conformance.tests.harness.explain.diagnosis.scoring import scored
from attention_conformance.tests.harness.explain.diagnosis.seen_keys import seen_keys
from attention_conformance.tests.harness.explain.diagnosis.summed import TERMS, summed
from attention_conformance.tests.harness.explain.diagnosis.ways import along_ways
from attention_conformance.tests.harness.explain.diagnosis.wholes import AS_BUILT, of_whole

MANY = 40
"""Failing cases that are observed."""
FEW = 6
"""Failing checks that were no comparisons, whose cases are observed all the same."""
JUDGED_AGAIN = 12
"""Failing clauses, at most, that are judged again for each mistake where the cases pass when they are run again."""
CLAUSES = 2
"""Failing clauses, at least, that wider bounds explain: almost any error fits into those of a single one."""
MADE = 3
"""Failing cases, at least: where fewer were observed, the first one with other numbers and lengths is."""
LONGER = (37, 5, 0, 12, 1)
"""By so many tokens those others are longer: a mistake does not show in all of them."""
EMPTIED = "rows without any key, and differ there alone"
SPOTS = 2
"""Places, at most, in which alone a mistake is looked for."""
CALLS = 200
"""Of the candidate, for cases that are made to see when it fails: a count, so that no clock changes a name."""


def diagnose(
    implementation: Implementation,
    checks: Sequence[FailingCheck],
    device: str = "cpu",
    dtypes: Collection[str] | None = None,
    unknown: Collection[str] = (),
    several: bool = True,
) -> Diagnosis | None:
    """Explains the failures of an implementation; None if there are none.

    `dtypes` are those in which it was checked; None: all that it claims. `unknown` are ids of defects that are not
    considered: a measurement hides them. Without `several`, two mistakes at once are not looked for.
    """
    if not checks:
        return None
    failed = [(each.clause, each.dtype) for each in checks]
    if name := holding(implementation, failed, tuple(stated({clause for clause, _ in failed})), device):
        return _claim(name, len(failed))
    with _one_thread():
        # What is dropped is drawn anew, and of a module with all of its parts nothing is expected.
        plain = [each for each in checks if not each.case.extension.dropout and each.clause != AS_BUILT]
        compared = [each for each in plain if each.part] or list(_seen_in_outputs(implementation, plain, device))
        if not compared:
            return _called_otherwise(implementation, checks, device, dtypes, unknown)
        return _of_cases(implementation, compared, checks, device, dtypes, unknown, several)


def _seen_in_outputs(
    implementation: Implementation, checks: Sequence[FailingCheck], device: str
) -> Iterator[FailingCheck]:
    """Those in whose cases the output is wrong by itself, whatever was checked there."""
    for each in checks[:FEW]:
        fitted = fit_to_explain(each.case, implementation.claims)
        if fitted == each.case and observed(implementation, each.case, each.dtype, ("output",), device).failing:
            yield replace(each, part="output")


def _of_cases(
    implementation: Implementation,
    compared: Sequence[FailingCheck],
    checks: Sequence[FailingCheck],
    device: str,
    dtypes: Collection[str] | None,
    unknown: Collection[str],
    several: bool,
) -> Diagnosis:
    seen = list(_observations(implementation, compared, device))
    failing, passing = ([each for each in seen if each.failing is kind] for kind in (True, False))
    checked = implementation.claims.dtypes if dtypes is None else dtypes
    alone = failing_alone(checked, compared)
    if any(_also_fails(implementation, failing, dtype, device) for dtype in checked if alone and dtype not in alone):
        alone = ()  # its cases are not among those of the other dtypes
    in_dtypes = (f"in {', '.join(alone)}",) if alone else ()
    by_chance = of_equal_calls(len(failing)) if differ(implementation, seen, compared, device) else None
    if not failing and len({each.clause for each in checks}) > JUDGED_AGAIN:  # it depends on time or earlier calls
        return by_chance or Diagnosis("", 0, len(checks), of_clauses=True)
    if not failing:  # by itself it is right: another way of calling it is not
        otherwise = _called_otherwise(implementation, checks, device, dtypes, unknown)
        named = otherwise if otherwise is not None and otherwise.name else None
        return named or by_chance or otherwise or Diagnosis("", 0, 0, when=in_dtypes)
    claimed = implementation.claims.conventions
    left = [each.without_empty_rows(claimed) for each in failing]
    empty = [each for each, rest in zip(failing, left, strict=True) if not rest.failing]
    both = [each.empty_rows_alone(claimed) for each, rest in zip(failing, left, strict=True) if rest.failing]
    both = [each for each in both if each.failing]
    whole = not (empty or both) or len(empty) == len(failing)
    if len(empty) < len(failing):  # what passes through such rows to gradients is their own affair
        failing = [rest for rest in left if rest.failing]
        passing = passing if whole else [each.without_empty_rows(claimed) for each in passing]
    else:
        empty = []
    triggers = _Triggers(implementation, failing, device, whole)
    failing += triggers.repeated(MADE - len(failing))
    listed = [h for h in hypotheses(implementation.claims.scope, claimed) if h.name not in unknown]
    clauses = {each.clause for each in checks}
    aside = [*empty, *both]
    if changed := changed_inputs(listed, failing, passing, claimed):
        return replace(changed, when=in_dtypes)
    if by_chance is not None:  # no condition holds of such cases
        found = explanation(listed, failing, passing, clauses, claimed, list, several=False)
        named = None if found is None else _named(found, None, len(failing), in_dtypes)
        return named or _of_state(implementation, failing, device) or by_chance
    found = explanation(listed, failing, passing, clauses, claimed, lambda: triggers.found, several, aside)
    if found is not None and (against := triggers.against(found, claimed)):
        failing = [*failing, *(each for each in against if each.failing)]
        passing = [*passing, *(each for each in against if not each.failing)]
        found = explanation(listed, failing, passing, clauses, claimed, lambda: triggers.found, several, aside)
        found = None if found is None or triggers.against(found, claimed) else found
    partly = found is None or found.rest not in ("", RAISING)
    if several and (partly or (found is not None and found.more_than_a_convention)):
        for convention in conventions_that_help(listed, failing, passing, claimed)[:1]:
            follower = following(implementation, convention)
            rest = _of_cases(follower, compared, checks, device, dtypes, unknown, several=False)
            if rest.explanation is not None and (partly or rest.options):
                return _combined(convention, rest, len(failing))
    if found is not None:
        own = {id(each) for h in found.hypotheses for each in scored(h, aside, (), claimed).explained}
        others = [each for each in aside if id(each) not in own]
        of_rows = [each for each in listed if _about_rows(each)]
        rows = explanation(of_rows, others, passing, set(), claimed, list, several=False) if len(others) > 1 else None
        explained = len(empty) if rows is not None else len([each for each in empty if id(each) in own])
        others_have = found.rest or (EMPTIED if explained < len(empty) else "")
        whole_of = replace(found, explains=found.explains + explained, rest=others_have)
        return _named(whole_of, rows, len(failing) + len(empty), in_dtypes)
    if other := neighbour(failing, passing):
        return Diagnosis(other.name, other.cases, len(failing), repair=other.repair)
    # Who rounds operands is off wherever anything is mixed; what passes speaks of another, small error.
    known = [] if passing else [(each.clause, each.dtype) for each in checks]
    name = rounded_operands(implementation, known, device) if known else ""
    if reads_tf32(implementation, failing, device):
        return replace(_claim(f"product-precision={ProductPrecision.TF32}", len(failing)), when=in_dtypes)
    if dtype := narrower(implementation, failing, device):
        claim = f"product-precision={dtype}" if name and dtype in set(ProductPrecision) else name
        claim = claim or f"softmax-precision={dtype}"
        repair = f"Compute in the dtype of the inputs, or add --convention {claim} if that is what it promises."
        options = () if in_dtypes else ("--convention", claim)
        number = len(failing)
        return Diagnosis(f"computed in {dtype}", number, number, repair=repair, when=in_dtypes, options=options)
    if name and len(clauses) >= CLAUSES:
        return _claim(name, len(failing))
    spots = [*places(wider(failing, triggers.prober))]
    if posed := _by_own_calls(implementation, failing, triggers.found, device):
        when = [*in_dtypes, *posed.when, *(each.words for each in triggers.found if not each.kept)]
        return replace(posed, when=tuple(when))
    mistakes = [each for each in listed if each.defect or "--" not in each.repair]  # conventions hold everywhere
    for spot in spots[:SPOTS]:
        there, elsewhere = ([spot.alone(each) for each in all_] for all_ in (failing, passing))
        found = explanation(mistakes, there, elsewhere, clauses, claimed, lambda: triggers.found, several=False)
        if found is not None and len([each for each in there if each.wrong_numbers]) > 1:
            return _named(found.only_sometimes(), None, len(failing), in_dtypes, spot.words)
    where = [spot.words for spot in spots]
    found_when = [each.words for each in triggers.found if not any(f"in {each.extent} from" in p for p in where)]
    size = [] if found_when else [*sizes(failing, passing, triggers.prober, claimed)]
    when = [*in_dtypes, *found_when, *size, *where, *parts(failing), *in_gradients(failing)]
    everywhere, raises = not passing and not when, shared_exception(failing)
    return Diagnosis("", 0, len(failing), when=tuple(when), everywhere=everywhere, raises=raises)


def _by_own_calls(
    implementation: Implementation, failing: Sequence[Observation], found: Sequence[Condition], device: str
) -> Diagnosis | None:
    """What calls show that are made for one question each: what is kept, and sums of many terms."""
    if any(each.kept for each in found):
        return _of_state(implementation, failing, device)
    dtype = failing[0].problem.dtype
    long = all(max(each.problem.query.shape[-2], each.problem.key.shape[-2]) >= TERMS for each in failing)
    return summed(implementation, dtype, device) if long else seen_keys(implementation, failing, device)


def _of_state(implementation: Implementation, failing: Sequence[Observation], device: str) -> Diagnosis | None:
    """What a second call has of the first one, seen in calls of the smallest failing case."""
    smallest = min(failing, key=lambda each: each.problem.query.size + each.problem.key.size)
    return kept(implementation, smallest.case, smallest.problem.dtype, device)


def _called_otherwise(
    implementation: Implementation,
    checks: Sequence[FailingCheck],
    device: str,
    dtypes: Collection[str] | None,
    unknown: Collection[str],
) -> Diagnosis | None:
    """What is wrong where the answers to cases are right."""

    def along(own: Implementation, wrong: Sequence[FailingCheck]) -> Diagnosis:
        return _of_cases(own, wrong, wrong, device, dtypes, unknown, several=False)

    found = along_ways(implementation, checks, device, along) or of_whole(implementation, checks, device)
    long = [e.dtype for e in checks if max(e.case.sizes.query_length, e.case.sizes.key_length) >= TERMS]
    for dtype in dict.fromkeys(long):
        found = found or summed(implementation, dtype, device)
    return found or by_clauses(implementation, checks, device, unknown)


def _combined(convention: Hypothesis, rest: Diagnosis, of: int) -> Diagnosis:
    """What is diagnosed where the convention is followed, and the convention."""
    explains, repair = of - rest.of + rest.explains, repairs([rest.repair, convention.repair])
    options = (*convention.options, *rest.options) if rest.options else ()
    second = (*rest.second, convention.name)
    return replace(rest, second=second, repair=repair, of=of, explains=explains, options=options)


def _claim(name: str, of: int) -> Diagnosis:
    """A convention under which everything that fails would hold."""
    return Diagnosis(name, of, of, repair=f"{INTENDED}{name}.", claim=True, options=("--convention", name))


def _named(
    found: Explanation, rows: Explanation | None, of: int, in_dtypes: tuple[str, ...], place: str = ""
) -> Diagnosis:
    """The name of an explanation, of a place alone if one is given, and of another one for rows without any key."""
    several = [*found.hypotheses, *(rows.hypotheses[:1] if rows is not None else ())]
    name, *second = [each.name for each in several]
    whole = (found.explains == of or found.rest == RAISING) and not (found.conditions or place or in_dtypes)
    intended = whole and all(each.options for each in several)
    options = tuple(option for each in several for option in each.options) if intended else ()
    return Diagnosis(
        name,
        found.explains,
        of,
        found.agrees,
        tuple(second),
        repairs([each.repair for each in several]),
        (*in_dtypes, *(each.words for each in found.conditions), *([place] if place else [])),
        rest=found.rest,
        options=options,
        explanation=found,
    )


def _about_rows(hypothesis: Hypothesis) -> bool:
    """Whether it is about rows without any key: many other mistakes leave NaN there."""
    return "empty-row" in (hypothesis.defect.clauses[0] if hypothesis.defect is not None else hypothesis.name)


class _Triggers:
    """When a candidate fails, found once, when it is needed."""

    def __init__(
        self, implementation: Implementation, failing: Sequence[Observation], device: str, whole: bool
    ) -> None:
        first = failing[0]
        parts = tuple(dict.fromkeys(part for each in failing for part in each.parts))
        self.failing = failing
        self.prober = Prober(implementation, first.problem.dtype, parts, device, CALLS, {}, whole)
        self.prober.raised = frozenset(each.raised for each in failing if each.raised)

    @cached_property
    def found(self) -> list[Condition]:
        """The conditions that every failing case fulfils."""
        return conditions(self.failing, self.prober)

    def against(self, found: Explanation, claimed: Conventions) -> list[Observation]:
        """Cases against one mistake: it is put to the test on the smallest failing one with other sizes and numbers."""
        base = min((each.case for each in self.failing), key=lambda case: len(str(case)))
        others = [*other_sizes(base), *other_numbers(base)]
        others += wider_scores(base) if self.prober.dtype not in HALF else ()
        made = map(self.prober.observe, [] if found.conditions else others)
        seen = [each for each in made if each is not None]
        scores = [scored(h, seen, seen, claimed) for h in found.hypotheses]
        known = {id(each) for score in scores for each in score.explained}
        wrong = {id(each) for score in scores for each in score.contradicting}
        return [e for e in seen if (id(e) not in known if e.failing else id(e) in wrong) and len(scores) == 1]

    def repeated(self, number: int) -> list[Observation]:
        """So many more failing cases at most: the first one with other numbers and lengths."""
        case = self.failing[0].case
        s = case.sizes
        if self.failing[0].heavy:
            return []
        longer = [case.sized(query_length=s.query_length + n, key_length=s.key_length + n) for n in LONGER]
        cases = [replace(each, seed=1001 + n) for n, each in enumerate(longer)] if number > 0 else []
        more = map(self.prober.observe, cases)
        return list(islice((each for each in more if each is not None and each.failing), max(number, 0)))


def failing_alone(checked: Collection[str], compared: Sequence[FailingCheck]) -> tuple[str, ...]:
    """The dtypes in which it fails, if it passes everything in the other dtypes that were checked; none otherwise."""
    failing = tuple(d for d in checked if any(each.dtype == d for each in compared))
    return failing if len(failing) < len(checked) else ()


def _also_fails(implementation: Implementation, failing: Sequence[Observation], dtype: str, device: str) -> bool:
    """Whether a case that fails in one dtype fails in another, too: the smallest, and the one farthest off."""
    cases = (
        min(failing, key=lambda each: each.problem.query.size + each.problem.key.size, default=None),
        max(failing, key=lambda each: max(each.errors.values()), default=None),
    )
    wanted = {each.case: each.parts for each in cases if each is not None}
    return any(observed(implementation, case, dtype, parts, device).failing for case, parts in wanted.items())


def _observations(
    implementation: Implementation, compared: Sequence[FailingCheck], device: str
) -> Iterator[Observation]:
    """The failing cases, each once, in the widest dtype in which it fails; then the probes in the widest of all."""
    dtypes = [dtype for dtype in DTYPES if any(each.dtype == dtype for each in compared)]
    parts: dict[tuple[Case, str], set[str]] = {}
    for each in sorted(compared, key=lambda each: dtypes.index(each.dtype)):
        parts.setdefault((each.case, each.dtype), set()).add(each.part)
    widest = [key for key in parts if key[1] == dtypes[0]] or list(parts)
    raised = set[str]()
    for case, dtype in widest[:MANY]:
        seen = observed(implementation, case, dtype, tuple(parts[case, dtype]), device)
        raised.add(seen.raised)
        yield seen
    wanted = tuple(dict.fromkeys(part for names in parts.values() for part in names)) or ("output",)
    for probe in PROBES:
        fitted = fit_to_explain(probe, implementation.claims)
        if not isinstance(fitted, Unsupported) and (fitted, dtypes[0]) not in parts:
            seen = observed(implementation, fitted, dtypes[0], wanted, device)
            if seen.is_evidence(raised):
                yield seen


@contextmanager
def _one_thread() -> Iterator[None]:
    """Thousands of tiny calls: threads that wait for one another take longer than the work."""
    torch = optional("torch")  # imported now, as the hypotheses call it
    threads = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)
