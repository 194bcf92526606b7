"""The parser of the chapters, and what the specification's own chapters keep to."""

import re
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from pathlib import Path

import pytest

from attention_conformance.spec.clauses import (
    CHAPTERS,
    Clause,
    Level,
    SpecError,
    chapters,
    equations,
    load,
    specification,
)
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premise

CHAPTER = r"""# Chapter 1: scores

Introduction, which MUST not be read as a clause.

## scores.one

- level: MUST
- features: core, heads
- scope: op
- equation: 1.1
- sources: A; Vaswani 2017 3.2.1

It MUST
hold.

$$ s = q k \tag{1.1} $$

Erratum (B): the source says this,
and the truth is that.

More about it.

Erratum (A, C): they say nothing.

## scores.two

- level: MAY
- features: scale
- sources: torch SDPA
- status: measured
- presumes: no causal, no window

It MAY hold.
"""


def written(folder: Path, **texts: str) -> Path:
    """A folder with all chapters, empty but for those whose text is given."""
    for number, name in enumerate(chapters(), start=1):
        text = texts.get(name, f"# Chapter {number}: {name}\n")
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return folder


def message(folder: Path) -> str:
    with pytest.raises(SpecError) as caught:
        load(folder)
    return str(caught.value)


def test_a_clause_has_all_fields_of_its_section(tmp_path: Path) -> None:
    assert load(written(tmp_path, scores=CHAPTER))["scores.one"] == Clause(
        id="scores.one",
        chapter="scores",
        level=Level.MUST,
        features=frozenset({Feature.CORE, Feature.HEADS}),
        either=frozenset(),
        scope=Scope.OP,
        equation="1.1",
        sources=("A", "Vaswani 2017 3.2.1"),
        statement="It MUST hold.",
        notes=("More about it.",),
        errata=("Erratum (B): the source says this, and the truth is that.", "Erratum (A, C): they say nothing."),
        presumes=frozenset(),
        measured=False,
        kernels=Level.MUST,
        file="scores.md",
        line=5,
    )


def test_a_clause_without_optional_fields_and_one_with_others(tmp_path: Path) -> None:
    clause = load(written(tmp_path, scores=CHAPTER))["scores.two"]
    assert (clause.scope, clause.equation, clause.errata, clause.measured) == (None, None, (), True)
    assert clause.presumes == {Premise.CAUSAL, Premise.WINDOW}


def test_a_clause_may_bind_what_takes_half_types_alone_more(tmp_path: Path) -> None:
    text = CHAPTER.replace("- status: measured", "- status: measured\n- kernels: MUST")
    clause = load(written(tmp_path, scores=text))["scores.two"]
    assert clause.level_for(("float32", "bfloat16"), ()) is Level.MAY
    assert clause.level_for(("float32", "bfloat16"), {Feature.WIDE_SCORES}) is Level.MUST
    assert clause.level_for(("float16", "bfloat16"), ()) is Level.MUST


def test_scope_any_is_both_scopes(tmp_path: Path) -> None:
    text = CHAPTER.replace("scope: op", "scope: any")
    assert load(written(tmp_path, scores=text))["scores.one"].scope is None


def test_an_equation_may_stand_in_another_chapter(tmp_path: Path) -> None:
    other = "# Chapter 2: softmax\n\n$$ p \\tag{2.7} $$\n"
    text = CHAPTER.replace("equation: 1.1", "equation: 2.7")
    assert load(written(tmp_path, scores=text, softmax=other))["scores.one"].equation == "2.7"


def test_clauses_come_in_document_order(tmp_path: Path) -> None:
    later = CHAPTER.replace("Chapter 1: scores", "Chapter 2: softmax").replace("scores.", "softmax.")
    folder = written(tmp_path, scores=CHAPTER, softmax=later.replace("1.1", "2.1"))
    assert list(load(folder)) == ["scores.one", "scores.two", "softmax.one", "softmax.two"]


def test_clauses_are_frozen(tmp_path: Path) -> None:
    clauses = load(written(tmp_path, scores=CHAPTER))
    with pytest.raises(FrozenInstanceError):
        clauses["scores.one"].line = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        clauses["scores.one"] = clauses["scores.two"]  # type: ignore[index]


def test_a_folder_is_read_anew_and_the_own_chapters_once(tmp_path: Path) -> None:
    assert len(load(written(tmp_path, scores=CHAPTER))) == 2
    assert len(load(written(tmp_path))) == 0
    assert load() is load(CHAPTERS)


MALFORMED = {
    "id of another chapter": ("## scores.one", "## softmax.one", "5: 'softmax.one' is no clause of 'scores'"),
    "id with capitals": ("## scores.one", "## scores.One", "5: 'scores.One' is no clause of 'scores'"),
    "duplicate id": ("## scores.two", "## scores.one", "25: duplicate clause 'scores.one'"),
    "missing level": ("- level: MUST\n", "", "5: clause 'scores.one' lacks the field 'level'"),
    "missing features": ("- features: scale\n", "", "25: clause 'scores.two' lacks the field 'features'"),
    "missing sources": ("- sources: torch SDPA\n", "", "25: clause 'scores.two' lacks the field 'sources'"),
    "unknown field": ("- scope: op", "- reach: op", "9: unknown field '- reach: op'"),
    "field without value": ("- scope: op", "- scope:", "9: unknown field '- scope:'"),
    "statement among fields": ("3.2.1\n\nIt", "3.2.1\nIt", "12: unknown field 'It MUST'"),
    "duplicate field": ("- scope: op", "- level: MAY", "9: duplicate field 'level'"),
    "unknown level": ("level: MUST", "level: SHALL", "7: unknown level 'SHALL'"),
    "unknown feature": ("core, heads", "core, tails", "8: unknown feature 'tails'"),
    "empty feature": ("core, heads", "core,", "8: unknown feature ''"),
    "unknown scope": ("scope: op", "scope: all", "9: unknown scope 'all'"),
    "undefined equation": ("equation: 1.1", "equation: 1.2", "10: no chapter defines equation '1.2'"),
    "unknown source letter": ("sources: A;", "sources: F;", "11: unknown source 'F'"),
    "unknown source name": ("torch SDPA", "torch", "29: unknown source 'torch'"),
    "source run into another": ("sources: A;", "sources: AB;", "11: unknown source 'AB'"),
    "presumption of something": ("no causal", "causal", "31: what a clause presumes is 'no PREMISE'"),
    "unknown premise": ("no window", "no widow", "31: unknown premise 'widow'"),
    "unknown status": ("status: measured", "status: draft", "30: unknown status 'draft'"),
    "no statement": ("It MAY hold.\n", "", "25: clause 'scores.two' lacks a statement"),
    "equation for a statement": ("It MUST\nhold.\n\n", "", "5: clause 'scores.one' lacks a statement"),
    "statement without its level": ("It MUST\nhold", "It is\nso", "13: the statement of 'scores.one' lacks"),
    "level inside a word": ("It MAY", "It MAYBE", "33: the statement of 'scores.two' lacks"),
    "duplicate tag": ("More about it.", "$$ t \\tag{1.1} $$", "21: duplicate equation tag '1.1'"),
    "tag of another chapter": ("More about it.", "$$ t \\tag{2.1} $$", "21: equation tag '2.1' is not"),
    "tag without a number": ("More about it.", "$$ t \\tag{1.a} $$", "21: equation tag '1.a' is not"),
    "unknown erratum letter": ("Erratum (B)", "Erratum (F)", "18: an erratum begins with 'Erratum (X): '"),
    "erratum without a letter": ("Erratum (B):", "Erratum:", "18: an erratum begins with 'Erratum (X): '"),
    "wrong number in the heading": ("Chapter 1", "Chapter 2", "1: the heading must be"),
    "wrong name in the heading": ("1: scores", "1: values", "1: the heading must be"),
    "empty file": (CHAPTER, "", "1: the heading must be"),
}


@pytest.mark.parametrize(("old", "new", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_text_is_refused_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert CHAPTER.count(old) >= 1
    assert message(written(tmp_path, scores=CHAPTER.replace(old, new, 1))).startswith(f"scores.md:{expected}")


def test_a_chapter_has_its_introduction_equations_and_clauses() -> None:
    chapter = specification()["causal"]
    assert chapter.introduction[0].startswith("With the causal flag a query sees no key")
    assert chapter.equations["8.1"] == r"A_i = \lbrace j : j \le i \rbrace"
    assert chapter.clauses == tuple(clause for clause in load().values() if clause.chapter == "causal")


def test_every_equation_is_found_once_and_whole() -> None:
    assert sorted(equations()) == sorted(re.findall(r"\\tag\{(.*?)\}", own_text()))
    assert all(latex.count("{") == latex.count("}") and "$" not in latex for latex in equations().values())


def test_a_missing_chapter_is_refused(tmp_path: Path) -> None:
    (written(tmp_path) / "values.md").unlink()
    assert message(tmp_path) == "values.md:1: the chapter is missing"


def test_a_file_that_is_no_chapter_is_refused(tmp_path: Path) -> None:
    (written(tmp_path) / "kindness.md").write_text("# Chapter 16: kindness\n", encoding="utf-8")
    assert message(tmp_path) == "kindness.md:1: no chapter is named 'kindness'"


# The specification's own chapters.


def own_errata() -> list[str]:
    return [erratum for clause in load().values() for erratum in clause.errata]


def own_text() -> str:
    return "\n\n".join((CHAPTERS / f"{name}.md").read_text(encoding="utf-8") for name in chapters())


def test_every_chapter_has_clauses_in_order() -> None:
    assert tuple(dict.fromkeys(clause.chapter for clause in load().values())) == chapters()
    places = [(chapters().index(clause.chapter), clause.line) for clause in load().values()]
    assert all(first < second for first, second in pairwise(places))


@pytest.mark.parametrize("feature", sorted({*Feature} - {Feature.WIDE_SCORES}))
def test_every_feature_has_a_clause(feature: Feature) -> None:
    assert any(feature in clause.features for clause in load().values())


def test_wide_scores_make_advice_binding() -> None:
    for clause in ("numerics.half-range", "numerics.score-precision"):
        levels = [load()[clause].level_for(("float32", "float16"), claimed) for claimed in ((), (Feature.WIDE_SCORES,))]
        assert levels == [Level.SHOULD, Level.MUST]


@pytest.mark.parametrize("letter", "ABCDE")
def test_every_source_document_is_encoded_and_corrected(letter: str) -> None:
    assert any(source.split()[0] == letter for clause in load().values() for source in clause.sources)
    assert any(erratum.startswith(f"Erratum ({letter})") for erratum in own_errata())


def test_only_speed_is_measured() -> None:
    assert {clause.chapter for clause in load().values() if clause.measured} == {"speed"}


def test_equations_are_numbered_in_reading_order() -> None:
    tags = re.findall(r"\\tag\{(\d+)\.(\d+)\}", own_text())
    for number in range(1, len(chapters()) + 1):
        own = [int(tag) for chapter, tag in tags if int(chapter) == number]
        assert own == list(range(1, len(own) + 1))


def test_every_answer_to_every_convention_is_named_and_no_other() -> None:
    named = set(re.findall(r"`([a-z-]+)=([a-z0-9-]+)`", own_text()))
    default = Conventions()
    answers = {
        (key, str(answer))
        for (key, _), field in zip(default.items(), fields(default), strict=True)
        for answer in type(getattr(default, field.name))
    }
    assert named == answers


def test_the_default_of_every_convention_is_marked() -> None:
    marked = re.findall(r"`([a-z-]+)=([a-z0-9-]+)` \(the default\)", " ".join(own_text().split()))
    assert sorted(marked) == sorted(Conventions().items())


def test_references_to_equations_have_a_target() -> None:
    text = own_text()
    tags = set(re.findall(r"\\tag\{(.*?)\}", text))
    prose = re.sub(r"(?m)^- sources: .*$", "", text)
    references = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w])", prose))
    assert references == tags


def test_one_of_several_features_is_enough(tmp_path: Path) -> None:
    chapter = CHAPTER.replace("- features: core, heads", "- features: core, heads\n- either: bool-mask, float-mask", 1)
    clause = load(written(tmp_path, scores=chapter))["scores.one"]
    needed = {Feature.CORE, Feature.HEADS}
    assert clause.lacking(needed.__contains__) == "bool-mask or float-mask"
    assert not clause.lacking((needed | {Feature.FLOAT_MASK}).__contains__)
    assert clause.lacking({Feature.FLOAT_MASK, Feature.CORE}.__contains__) == "heads"
