"""Edits: the small changes of the stages that mistakes amount to, each a hypothesis that answers any problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any, TypeAlias

import torch

from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis
from attention_conformance.tests.harness.explain.diagnosis.magnitudes import parts_in_words
from attention_conformance.tests.harness.explain.stages.backward import backwards
from attention_conformance.tests.harness.explain.stages.bounded import bounded
from attention_conformance.tests.harness.explain.stages.changes import of_entry
from attention_conformance.tests.harness.explain.stages.emptied import unforeseen
from attention_conformance.tests.harness.explain.stages.held import held
from attention_conformance.tests.harness.explain.stages.inner_rotations import inner_rotations
from attention_conformance.tests.harness.explain.stages.joined import joined, reordered, widened
from attention_conformance.tests.harness.explain.stages.narrowed import angles, distances
from attention_conformance.tests.harness.explain.stages.recomputed import MAKING_SCORES, recomputing
from attention_conformance.tests.harness.explain.stages.several import together
from attention_conformance.tests.harness.explain.stages.staged import STAGE, STAGES, Stage, State, opened, run
from attention_conformance.tests.harness.explain.stages.staged_results import result_of
from attention_conformance.tests.harness.explain.stages.variants import by_overflow, variants

Stages: TypeAlias = tuple[Stage, ...]
Change: TypeAlias = Callable[[Stages], Stages]
LEFT_OUT, TWICE, MOVED, ENTRY, VARIANT, MEASURED = 2.0, 2.1, 2.2, 2.3, 2.4, 2.5
"""Ranks: which of two edits that explain the same is named."""
ORDERED: tuple[str, ...] = (
    "scale",
    "softcap",
    "ALiBi bias",
    "relative bias",
    "attention mask",
    "padding mask",
    "valid lengths",
)
ORDERED += ("causal triangle", "window", "documents", "sink", "softmax", "key and value of zeros", "head gates")
ORDERED += (
    "norm of the query",
    "norm of the key",
    "rotation of the query",
    "rotation of the key",
    "rotation of the query by tables",
    "rotation of the key by tables",
    "learned key and value",
)
"""Stages whose place among the others may be mistaken."""


@dataclass(frozen=True)
class Edit:
    """One change of the stages.

    Attributes:
        words: what is wrong, as a clause.
        repair: what to do, one sentence.
        change: makes it in a list of stages; a ValueError where a stage that it is about is missing.
        about: the stages, and entries before them, without which it changes nothing.
        rank: see `Hypothesis`.
    """

    words: str
    repair: str
    change: Change
    about: tuple[tuple[Stage, str], ...]
    rank: float

    @property
    def backward(self) -> bool:
        """Whether gradients alone are wrong."""
        return "gradient" in self.words

    @property
    def by_overflow(self) -> bool:
        """Whether it shows by NaN and infinities alone."""
        return self.words in by_overflow()

    def affects(self, problem: Problem, conventions: Conventions) -> bool:
        """Whether its answer may differ from the right one."""
        if self.backward and problem.cotangent is None:
            return False
        if problem.extension.dropout:
            return True  # and what it answers is drawn
        states = _before(problem, conventions)
        return all(_present(stage, entry, states[STAGES.index(stage)]) for stage, entry in self.about)

    def answer(self, problem: Problem, conventions: Conventions) -> Result:
        """What an implementation with this mistake answers."""
        return next(self.answers(problem, conventions))

    def answers(self, problem: Problem, conventions: Conventions) -> Iterator[Result]:
        """What an implementation with this mistake answers, and what else where it empties rows: these have no rule."""
        states, stages = _before(problem, conventions), self.change(STAGES)
        pairs = enumerate(zip(stages, STAGES, strict=False))
        same = next((n for n, (own, right) in pairs if own is not right), min(len(stages), len(STAGES)))
        last = _ended(problem, stages[same:], states[same])
        yield result_of(problem, last)
        for filling in EmptyRow if unforeseen(last) else ():
            yield result_of(problem, _ended(problem, stages[same:], states[same] | {"unforeseen": filling}))


def _ended(problem: Problem, stages: Stages, state: State) -> State:
    with torch.set_grad_enabled(problem.cotangent is not None):
        *_, last = run(stages, state)
    return last


def both(one: Edit, two: Edit, claimed: Conventions) -> Hypothesis:
    """Two mistakes at once, by the name of the second one."""
    change: Change = lambda stages: two.change(one.change(stages))  # noqa: E731
    return hypothesis(Edit(two.words, two.repair, change, (), two.rank), claimed)


def _present(stage: Stage, entry: str, state: State) -> bool:
    return stage.active(state) and (not entry or state.get(entry) is not None)


@lru_cache(maxsize=256)
def _before(problem: Problem, conventions: Conventions) -> tuple[State, ...]:
    """The state before each stage of right attention, and after the last one."""
    with torch.set_grad_enabled(problem.cotangent is not None):
        return tuple(run(STAGES, opened(problem, conventions)))


@lru_cache(maxsize=4)
def edited(claimed: Conventions) -> list[Hypothesis]:
    """Every edit as a hypothesis."""
    return [hypothesis(edit, claimed) for edit in _all()]


def hypothesis(edit: Edit, claimed: Conventions) -> Hypothesis:
    answers: Callable[[Problem], Iterator[Result]] = lambda problem: edit.answers(problem, claimed)  # noqa: E731
    affects = lambda problem: not edit.about or edit.affects(problem, claimed)  # noqa: E731
    first: Callable[[Problem], Result] = lambda problem: edit.answer(problem, claimed)  # noqa: E731
    return Hypothesis(edit.words, edit.repair, first, rank=edit.rank, affects=affects, edit=edit, several=answers)


def alone(edit: Edit, parts: tuple[str, ...], claimed: Conventions) -> Hypothesis:
    """An edit of these parts alone: the others are right."""

    def answer(problem: Problem) -> Result:
        with torch.set_grad_enabled(problem.cotangent is not None):
            wrong, right = edit.answer(problem, claimed), result_of(problem, _before(problem, claimed)[-1])
        returned = {name: getattr(wrong, name) for name in RETURNED if name in parts}
        gradients = {n: (wrong if f"gradients.{n}" in parts else right).gradients[n] for n in right.gradients}
        return replace(right, **returned, gradients=gradients)

    affects = lambda problem: edit.affects(problem, claimed)  # noqa: E731
    where = parts_in_words(parts)
    words = edit.words if edit.words.replace(" the ", " ").startswith(where) else f"{edit.words}, in the {where} alone"
    own = any(parts == (f"gradients.{entry}",) for _, entry in edit.about)  # nearer than what comes after it
    return Hypothesis(words, edit.repair, answer, rank=edit.rank - own * OWN, affects=affects, edit=edit)


OWN = 0.01
"""By how much a mistake that changes the gradient of its own entry alone comes before others of its rank."""


def in_parts(chosen: Mapping[str, Hypothesis]) -> Hypothesis:
    """Several gradients, each as another hypothesis has it."""

    def answer(problem: Problem) -> Result:
        answers = {part.removeprefix("gradients."): each.answer(problem) for part, each in chosen.items()}
        first = next(iter(answers.values()))
        return replace(first, gradients={**first.gradients, **{n: a.gradients[n] for n, a in answers.items()}})

    words = ", and ".join(each.name for each in chosen.values())
    repair = " ".join(dict.fromkeys(each.repair for each in chosen.values()))
    affects = lambda problem: any(each.affects(problem) for each in chosen.values())  # noqa: E731
    return Hypothesis(words, repair, answer, rank=VARIANT, affects=affects)


@lru_cache(maxsize=1)
def _all() -> tuple[Edit, ...]:
    return (
        *_left_out(),
        *_unmasked(),
        *_twice(),
        *_moved(),
        *_of_entries(),
        *_together(),
        *_always(),
        *_always_causal(),
        *_inside(),
        *_inputs(),
        *_variants(),
        *_joined(),
        *_slips(),
        *_recomputed(),
    )


def _left_out() -> Iterator[Edit]:
    for stage in STAGES:
        if stage.needs or stage.name == "scale":
            change = partial(_replaced, stage, ())
            yield Edit(f"{stage.name} left out", f"Apply the {stage.name}.", change, ((stage, ""),), LEFT_OUT)


def _unmasked() -> Iterator[Edit]:
    """All masks left out at once; each stage stands for those that a problem has."""
    hiding = [stage for stage in STAGES if "hidden" in stage.reads]
    without: Change = lambda all_: tuple(stage for stage in all_ if stage not in hiding)  # noqa: E731
    for stage in hiding:
        yield Edit("all masks left out", "Apply every mask that is given.", without, ((stage, ""),), VARIANT)


def _twice() -> Iterator[Edit]:
    for stage in STAGES[:-1]:
        again = Stage(stage.name, stage.change, stage.reads, stage.needs)
        change = partial(_replaced, stage, (stage, again))
        yield Edit(f"{stage.name} applied twice", f"Apply the {stage.name} once.", change, ((stage, ""),), TWICE)


def _moved() -> Iterator[Edit]:
    for first, second in combinations([stage for stage in STAGES if stage.name in ORDERED], 2):
        repair, about = f"Apply the {first.name} before the {second.name}.", ((first, ""), (second, ""))
        later: Change = lambda all_, f=first, s=second: _replaced(s, (s, f), _replaced(f, (), all_))  # type: ignore[misc]  # noqa: E731
        steps = STAGES.index(second) - STAGES.index(first)
        rank = MOVED + (ENTRY - MOVED) * steps / len(STAGES)  # the shortest move that explains it
        yield Edit(f"{first.name} after the {second.name}", repair, later, about, rank)
        earlier: Change = lambda all_, f=first, s=second: _replaced(f, (s, f), _replaced(s, (), all_))  # type: ignore[misc]  # noqa: E731
        yield Edit(f"{second.name} before the {first.name}", repair, earlier, about, rank)


def _of_entries() -> Iterator[Edit]:
    for stage in STAGES:
        for entry in stage.reads:
            for words, repair, change in of_entry(stage.name, entry):
                inserted = Stage(words, partial(_with, entry, change), (entry,), entry)
                yield Edit(words, repair, partial(_replaced, stage, (inserted, stage)), ((stage, entry),), ENTRY)


def with_entry(stage: Stage, entry: str, words: str, change: Callable[[Any], Any], rank: float) -> Edit:
    """An entry changed before a stage."""

    def changed(state: State) -> State:
        return {entry: change(state.get(entry))}

    within = Stage(words, lambda state: stage.change(state | changed(state)), stage.reads, stage.needs)
    inserted = (within,) if entry in OF_HIDING else (Stage(words, changed, (entry,)), stage)
    repair = f"Apply the {stage.name} as it is given."
    return Edit(words, repair, partial(_replaced, stage, inserted), ((stage, ""),), rank)


OF_HIDING = ("hidden", "dimmed")
"""Entries that a mask may change for itself: those that follow hide as they should."""


def _with(entry: str, change: Callable[[State], Any], state: State) -> State:
    return {entry: change(state)}


def _together() -> Iterator[Edit]:
    """Several entries changed in the same way."""
    for name, entries, words, change in together():
        stage = STAGE[name]
        inserted = Stage(words, partial(_each, entries, change), entries, entries[0])
        edit = partial(_replaced, stage, (inserted, stage))
        repair = next((text for word, text in OF_SEVERAL.items() if word in words), "Take them as they are.")
        yield Edit(words, repair, edit, ((STAGES[-1], entries[0]),), ENTRY)


OF_SEVERAL = {
    "heads ": "Split the width into heads and tokens by view(B, L, H, d).transpose(1, 2), and merge it the other way.",
    "rounded": "Keep the dtype of the inputs.",
    "normalised": "Take them with the lengths that they have.",
}
"""How a change of several entries is repaired, by a word of what is wrong."""


def _each(entries: tuple[str, ...], change: Callable[[Any], Any], state: State) -> State:
    return {entry: change(state[entry]) for entry in entries if state.get(entry) is not None}


def _always() -> Iterator[Edit]:
    """Options that nobody gave."""
    for entry, value, words in (("causal", True, "causal flag"), ("rotary_base", 10000.0, "rotary embedding")):
        inserted = Stage(words, lambda state, e=entry, v=value: {e: v if state[e] is None else state[e]}, ())  # type: ignore[misc]
        change = partial(_replaced, STAGES[0], (inserted, STAGES[0]))
        yield Edit(f"{words} applied without being given", f"Apply the {words} only if it is given.", change, (), ENTRY)


def _always_causal() -> Iterator[Edit]:
    """Slips of a triangle that is there without being given."""
    inserted = Stage("causal flag", lambda state: {"causal": True}, ())
    for edit in (*_moved(), *_of_entries(), *_variants()):
        if TRIANGLE in {stage for stage, _ in edit.about} and all(
            stage is TRIANGLE or not stage.needs for stage, _ in edit.about
        ):
            change: Change = lambda stages, own=edit.change: (inserted, *own(stages))  # type: ignore[misc]  # noqa: E731
            yield Edit(f"always causal, and {edit.words}", edit.repair, change, (), VARIANT)


TRIANGLE = STAGE["causal triangle"]


def _inside() -> Iterator[Edit]:
    """Slips of a rotation that nobody asked for."""
    for words, added, slip in inner_rotations():
        change = partial(_rotated_inside, added, slip)
        yield Edit(words, "Rotate queries and keys alike, each by its position.", change, (), VARIANT)


def _rotated_inside(added: Stage, slip: dict[Stage, Stages], stages: Stages) -> Stages:
    return added, *(by for stage in stages for by in slip.get(stage, (stage,)))


def _inputs() -> Iterator[Edit]:
    """Inputs in other roles."""
    for sources in product(ROLES, repeat=3):
        if sources != ROLES:
            words = ", ".join(f"{role} made of the {source}" for role, source in zip(ROLES, sources, strict=True))
            inserted = Stage(words, lambda s, all_=sources: {r: s[n] for r, n in zip(ROLES, all_, strict=True)}, ROLES)  # type: ignore[misc]
            change = partial(_replaced, STAGES[0], (inserted, STAGES[0]))
            yield Edit(words, "Take query, key and value in this order.", change, (), ENTRY)


ROLES = ("query", "key", "value")
RETURNED = ("weights", "averaged_weights", "log_sum_exp")


def _variants() -> Iterator[Edit]:
    """Stages that do something else."""
    for name, words, repair, change in (*variants(), *reordered(), *widened(), *backwards(), *distances()):
        stage = STAGE[name]
        own = Stage(words, change, stage.reads, stage.needs)
        yield Edit(words, repair, partial(_replaced, stage, (own,)), ((stage, ""),), VARIANT)


def _joined() -> Iterator[Edit]:
    """One of two masks is enough."""
    for one, two, either in joined():
        change: Change = lambda all_, a=one, b=two, e=either: _replaced(b, (e,), _replaced(a, (), all_))  # type: ignore[misc]  # noqa: E731
        words, repair = f"{one.name} or {two.name} enough", "Show a query the keys that all masks show."
        yield Edit(words, repair, change, ((one, ""), (two, "")), VARIANT)


def _slips() -> Iterator[Edit]:
    """Several stages at once: backward passes, and angles."""
    for words, repair, slip in (*held(), *angles()):
        change = partial(_exchanged, dict(slip))
        yield Edit(words, repair, change, tuple((stage, "") for stage in slip), VARIANT)
    for words, repair, slip in bounded():
        yield Edit(words, repair, partial(_exchanged, dict(slip)), ((STAGE["window"], ""),), VARIANT)


def _exchanged(slip: dict[Stage, Stage], stages: Stages) -> Stages:
    return tuple(slip.get(stage, stage) for stage in stages)


def _recomputed() -> Iterator[Edit]:
    """What is wrong in the scores of a backward pass alone, from which it makes the weights anew."""
    mixing = STAGE["weighted sum"]
    of_scores = [edit for edit in (*_left_out(), *_of_entries()) if _may_be_recomputed(edit)]
    for edit in of_scores:
        change = partial(_replaced, mixing, (recomputing(edit.change),))
        words = f"{edit.words}, where the gradient makes the weights anew"
        repair = f"{edit.repair.removesuffix('.')}, in the backward pass, too."
        yield Edit(words, repair, change, edit.about, VARIANT)


def _may_be_recomputed(edit: Edit) -> bool:
    (stage, entry), *_ = edit.about
    off_by_one = stage.name in ("causal triangle", "window") and edit.words.startswith(OFF_BY_ONE)
    ignored = entry in ("window_left", "window_right") and edit.words.endswith(
        ("ignored", "one too large", "one too small")
    )
    return stage in MAKING_SCORES and (edit.rank == LEFT_OUT or off_by_one or ignored)


OFF_BY_ONE = ("the causal", "positions of queries one too", "positions of queries counted")


def _replaced(stage: Stage, by: Stages, stages: Stages) -> Stages:
    """The stages with others in place of one.

    Raises:
        ValueError: it is not among them.
    """
    at = stages.index(stage)
    return *stages[:at], *by, *stages[at + 1 :]
