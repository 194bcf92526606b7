"""Probes of masks: what each kind of mask does to the keys that a query uses, observed in the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.discovery.auditor.findings import (
    ABSENT,
    ALWAYS,
    MASKED_OUT,
    MAY_ATTEND,
    OFFERED,
    Facts,
    Finding,
)
from attention_conformance.implementations.discovery.probe import (
    HALF,
    KEYS,
    PLAIN_SETUP,
    QUERIES,
    Floats,
    ObservedWeights,
    Setup,
    Subject,
    spans,
)
from attention_conformance.spec.cases import MaskShape
from attention_conformance.spec.conventions import Alignment, CausalWithMask
from attention_conformance.spec.problem import Array

Booleans = NDArray[np.bool_]
AS_NUMBERS = "added as 0 and 1"
SQUARE = Setup(query_length=KEYS)


def holes(shape: tuple[int, ...], seed: int = 3) -> Booleans:
    """A mask with True and False in every row, different from row to row."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    if shape[-1] > 2:
        mask[..., 1], mask[..., 2] = True, False
    return mask


def mask_extents(subject: Subject, queries: int = 0) -> tuple[int, ...]:
    """The shape in which it takes an attention mask."""
    queries = queries or (KEYS if subject.self_attention else QUERIES)
    extents = {"B": 2, "H": subject.interface.num_heads, "Lq": queries, "Lk": KEYS, "1": 1}
    return tuple(extents[axis] for axis in subject.interface.mask_shape.value.split(","))


def as_polarity(visible: Booleans, polarity: str) -> Booleans:
    """The mask in which True means what the polarity states."""
    return ~visible if polarity == MASKED_OUT else visible.copy()


def _row_evidence(mask: Array, observed: ObservedWeights) -> str:
    """What the first row of a mask contains, and which keys were used."""
    true = np.flatnonzero(np.broadcast_to(mask, observed.weights.shape)[0, 0, 0])
    return f"query 0: True at keys {spans(true)}; used keys {observed.keys_of((0, 0, 0))}"


def unchanged(subject: Subject, observed: ObservedWeights, setup: Setup = PLAIN_SETUP) -> bool:
    """Whether these are the weights of a plain setup, but for rounding."""
    plain = subject.weights(setup)
    if plain.error or observed.weights.shape != plain.weights.shape:
        return False
    return bool((np.abs(observed.weights - plain.weights) <= HALF).all())


def without_effect(subject: Subject, topic: str, observed: ObservedWeights) -> Finding | None:
    """That something is not offered, because it was refused or changes nothing; None where it has an effect."""
    if observed.error:
        return Finding.refused(topic, observed.error)
    return Finding.ignored(topic) if unchanged(subject, observed) else None


def _boolean_finding(topic: str, subject: Subject, observed: ObservedWeights, mask: Booleans) -> Finding:
    """What True means in a boolean mask."""
    if observed.error:
        return Finding.refused(topic, observed.error)
    evidence = _row_evidence(mask, observed)
    if observed.shows(mask):
        return Finding(topic, MAY_ATTEND, evidence)
    if observed.shows(~mask):
        return Finding(topic, MASKED_OUT, evidence)
    if unchanged(subject, observed):
        return Finding.ignored(topic, evidence)
    added = _score_changes(observed, subject.weights())
    if np.allclose(added, _centred(mask.astype(np.float64), observed), atol=16 * HALF):
        return Finding(topic, AS_NUMBERS, f"{evidence}, and True added 1 to the score")
    return Finding.undetermined(topic, evidence)


def _centred(added: Floats, observed: ObservedWeights) -> Floats:
    wide = np.broadcast_to(added, observed.weights.shape)
    return np.asarray(wide - wide.mean(-1, keepdims=True))


def _score_changes(observed: ObservedWeights, plain: ObservedWeights) -> Floats:
    """By how much each score is higher than in the plain answer, up to a constant for each row."""
    with np.errstate(all="ignore"):
        change = np.log(observed.weights) - np.log(plain.weights)
        return np.asarray(change - change.mean(-1, keepdims=True))


def boolean_mask(subject: Subject) -> Finding:
    """The polarity of a boolean attention mask."""
    mask = holes(mask_extents(subject))
    observed = subject.weights(PLAIN_SETUP.given(attn_mask=mask))
    return _boolean_finding("bool-mask", subject, observed, mask)


def boolean(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A boolean attention mask: its polarity, and the shapes in which it is taken."""
    finding = boolean_mask(subject)
    yield finding
    if finding.answer in (MAY_ATTEND, MASKED_OUT) and subject.interface.mask_shape is MaskShape.FULL:
        shapes = mask_shapes(subject, finding.answer)
        wrong = {f"({shape})": error for shape, error in shapes.items() if error}
        answer = f"all but {' '.join(wrong)}" if len(wrong) < len(shapes) else "none"
        evidence = "; ".join(f"{shape}: {error}" for shape, error in wrong.items())
        yield Finding("mask shapes", answer if wrong else "all that broadcast", evidence)


@dataclass(frozen=True)
class ShapeError:
    """Why a mask of a shape has not the effect that it should have: it was refused by an error, or is misread."""

    refusal: str

    def __str__(self) -> str:
        return f"refused: {self.refusal}" if self.refusal else "other keys are used"


def mask_shapes(subject: Subject, polarity: str) -> dict[MaskShape, ShapeError | None]:
    """What is wrong with a mask of each shape; None where it has the effect that it should have."""
    return {shape: _shape_error(subject.with_masks(shape), polarity) for shape in MaskShape}


def _shape_error(subject: Subject, polarity: str) -> ShapeError | None:
    visible = holes(mask_extents(subject), seed=5)
    if subject.interface.mask_shape is MaskShape.QUERIES:
        visible = np.ones_like(visible)
    observed = subject.weights(PLAIN_SETUP.given(attn_mask=as_polarity(visible, polarity)))
    return None if not observed.error and observed.shows(visible) else ShapeError(observed.error)


def additive(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A float attention mask: what its entries do to the scores, and what minus infinity does."""
    visible = holes(mask_extents(subject))
    mask = np.random.default_rng(4).standard_normal(visible.shape)
    observed = subject.weights(PLAIN_SETUP.given(attn_mask=mask))
    if absent := without_effect(subject, "float-mask", observed):
        yield absent
        return
    yield _added(mask, observed, subject.weights(), subject.interface.width)
    observed = subject.weights(PLAIN_SETUP.given(attn_mask=np.where(visible, mask, -np.inf)))
    answer = "masks" if observed.shows(visible) else "undetermined"
    yield Finding("minus infinity in a float mask", answer, observed.error or _row_evidence(visible, observed))


def _added(mask: Floats, observed: ObservedWeights, plain: ObservedWeights, width: int) -> Finding:
    """By what factor the entries of a mask reach the scores."""
    entries, changes = _centred(mask, observed), _score_changes(observed, plain)
    if not np.isfinite(changes).all():
        return Finding.undetermined("float-mask", "some weights are zero or NaN")
    factor = float((changes * entries).sum() / (entries**2).sum())
    if np.abs(changes - factor * entries).max() > 16 * HALF:
        return Finding.undetermined("float-mask", "the scores changed by other amounts than its entries")
    known = {"added": 1.0, "added before the scale": width**-0.5, "subtracted": -1.0}
    fits = [name for name, value in known.items() if abs(factor - value) <= 16 * HALF]
    return Finding.the_one("float-mask", fits[:1], f"an entry x changed its score by {factor:.3g} x")


def key_padding(subject: Subject) -> Finding:
    """The polarity of a mask (B, Lk) over keys."""
    mask = holes((2, KEYS))
    observed = subject.weights(PLAIN_SETUP.given(key_padding_mask=mask))
    return _boolean_finding("key-padding", subject, observed, mask[:, None, None])


def padding(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A mask (B, Lk) over keys, and counts of leading keys."""
    yield key_padding(subject)
    counts = np.array([3, 5])
    observed = subject.weights(PLAIN_SETUP.given(valid_lens=counts))
    visible = np.arange(KEYS) < counts[:, None, None, None]
    yield without_effect(subject, "valid-lens", observed) or Finding.offered(
        "valid-lens",
        observed.shows(visible),
        f"sample 0: {counts[0]} keys are real; query 0 used keys {observed.keys_of((0, 0, 0))}",
    )


CORNERS: Mapping[str, int] = {Alignment.TOP_LEFT: 0, Alignment.BOTTOM_RIGHT: 1}


def triangle(queries: int, keys: int, corner: str) -> Booleans:
    """(Lq, Lk): the keys that a causal flag leaves."""
    return np.tri(queries, keys, CORNERS[corner] * (keys - queries), dtype=np.bool_)


def causal_flag(subject: Subject) -> Finding:
    """The causal flag, with as many queries as keys."""
    plain = subject.weights(SQUARE)
    if not plain.error and plain.shows(triangle(KEYS, KEYS, "top-left")):
        used = plain.keys_of((0, 0, 2))
        return Finding("causal", ALWAYS, f"Lq {KEYS}, Lk {KEYS}: without a flag, query 2 used keys {used}")
    observed = subject.weights(SQUARE.given(causal=True))
    if observed.error:
        return Finding.refused("causal", observed.error)
    evidence = f"Lq {KEYS}, Lk {KEYS}: query 2 used keys {observed.keys_of((0, 0, 2))}"
    triangular = observed.shows(triangle(KEYS, KEYS, "top-left"))
    if unchanged(subject, observed, SQUARE):
        return Finding.ignored("causal", evidence)
    return Finding.offered("causal", triangular, evidence)


def causal(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The causal flag, and the corner where its triangle starts."""
    finding = causal_flag(subject)
    yield finding
    if finding.answer != ABSENT:
        tied = Finding.undetermined("causal-alignment", "Lq is always Lk")
        flag = finding.answer != ALWAYS
        corner = tied if subject.self_attention else _alignment(subject, flag)
        lengths = facts.answer("valid-lens") == OFFERED and corner.answer == Alignment.BOTTOM_RIGHT
        yield _end_of_lengths(subject, corner, flag) if lengths else corner


def _end_of_lengths(subject: Subject, corner: Finding, flag: bool) -> Finding:
    """Whether the last query stands at the last key, or at the last real key of its sample."""
    queries, counts = 3, np.array([4, KEYS])
    observed = subject.weights(Setup(query_length=queries, key_length=KEYS).given(causal=flag, valid_lens=counts))
    real = np.arange(KEYS) < counts[:, None, None]
    patterns = {
        Alignment.BOTTOM_RIGHT: triangle(queries, KEYS, Alignment.BOTTOM_RIGHT) & real,
        Alignment.BOTTOM_RIGHT_REAL: np.stack([np.tri(queries, KEYS, n - queries, dtype=np.bool_) for n in counts]),
    }
    shown = [str(name) for name, pattern in patterns.items() if observed.shows(pattern[:, None])]
    evidence = f"sample 0: {counts[0]} keys are real; query 0 used keys {observed.keys_of((0, 0, 0))}"
    return Finding(corner.topic, shown[0], f"{corner.evidence}; {evidence}") if shown else corner


def _alignment(subject: Subject, flag: bool) -> Finding:
    evidence, fits = [], set(CORNERS)
    for queries, keys in ((3, 5), (5, 3)):
        observed = subject.weights(Setup(query_length=queries, key_length=keys).given(causal=flag))
        if observed.error:
            evidence.append(f"Lq {queries}, Lk {keys}: {observed.error}")
            continue
        row = queries - 3
        evidence.append(f"Lq {queries}, Lk {keys}: query {row} used keys {observed.keys_of((0, 0, row))}")
        fits &= {corner for corner in CORNERS if _shows_rows(observed, triangle(queries, keys, corner))}
    return Finding.the_one("causal-alignment", fits, "; ".join(evidence))


def _shows_rows(observed: ObservedWeights, pattern: Booleans) -> bool:
    """Whether it shows the pattern, in all rows that have a key."""
    rows = pattern.any(-1)
    return replace(observed, weights=observed.weights[:, :, rows]).shows(pattern[rows])


def causal_with_mask(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The causal flag combined with a mask."""
    polarity = facts.polarity("bool-mask")
    if facts.answer("causal") != OFFERED or not polarity:
        return
    visible = holes(mask_extents(subject, KEYS), seed=6)
    visible[..., 0] = True
    setup = SQUARE.given(attn_mask=as_polarity(visible, polarity), causal=True)
    dtypes = [dtype for dtype in ("float32", "float64") if dtype in facts.answer("dtypes")]
    observed = {dtype: replace(subject, dtype=dtype).weights(setup) for dtype in dtypes or [subject.dtype]}
    if facts.answer("value-width") == OFFERED:
        observed["value-width"] = subject.weights(replace(setup, d_v=11))
    answers = {name: _combination(each, visible) for name, each in observed.items()}
    evidence = "; ".join(f"{name}: {answer}" for name, answer in answers.items())
    distinct = sorted(set(answers.values()))
    if distinct == [CausalWithMask.ERROR, CausalWithMask.INTERSECT]:
        yield Finding("causal-with-mask", CausalWithMask.EITHER, evidence)
    else:
        first = next(iter(observed.values())).error
        yield Finding.the_one("causal-with-mask", distinct, first if len(distinct) == 1 else evidence)


def _combination(observed: ObservedWeights, visible: Booleans) -> str:
    if observed.error:
        return str(CausalWithMask.ERROR)
    corner = triangle(KEYS, KEYS, "top-left")
    known = {
        CausalWithMask.INTERSECT: visible & corner,
        CausalWithMask.FLAG_ALONE: corner,
        CausalWithMask.MASK_ALONE: visible,
    }
    return next((str(name) for name, pattern in known.items() if observed.shows(pattern)), "other keys")


def masks_offered(subject: Subject, facts: Facts, visible: Booleans, real: Booleans) -> Iterator[tuple[str, Setup]]:
    """The setup of each kind of mask that is offered, by its name: bool, float (with minus infinity) or padding.

    `visible`, in the shape of `mask_extents`, is what attention masks leave; `real`, (B, Lk), what padding masks leave.
    """
    if polarity := facts.polarity("bool-mask"):
        yield "bool", PLAIN_SETUP.given(attn_mask=as_polarity(visible, polarity))
    if facts.answer("minus infinity in a float mask") == "masks":
        yield "float", PLAIN_SETUP.given(attn_mask=np.where(visible, 0.0, -np.inf))
    if polarity := facts.polarity("key-padding"):
        yield "padding", PLAIN_SETUP.given(key_padding_mask=as_polarity(real, polarity))


def empty_rows(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The answer for a query without keys, for each kind of mask that is offered."""
    visible = holes(mask_extents(subject))
    visible[..., 1, :] = False
    real = np.repeat([[True], [False]], KEYS, axis=1)
    for kind, setup in masks_offered(subject, facts, visible, real):
        yield empty_row(
            subject, f"empty-row-{kind}", setup, (1, slice(None)) if kind == "padding" else (slice(None), 1)
        )
    if facts.answer("causal-alignment") in (Alignment.BOTTOM_RIGHT, Alignment.BOTTOM_RIGHT_REAL):
        setup = Setup(query_length=5, key_length=3).given(causal=True)
        yield empty_row(subject, "empty-row-causal", setup, (slice(None), 0))


def empty_row(subject: Subject, topic: str, setup: Setup, where: tuple[int | slice, int | slice]) -> Finding:
    """The answer for some queries, (sample, query), that have no key."""
    observed = subject.weights(setup)
    if observed.error:
        return Finding(topic, "refused", observed.error)
    sample, row = where
    rows = observed.weights[sample, :, row]
    plain = subject.weights(Setup(query_length=setup.query_length, key_length=setup.key_length))
    evidence = "its weights: " + " ".join(f"{x:.3g}" for x in rows.reshape(-1, rows.shape[-1])[0])
    known = {
        "zeros": np.zeros_like(rows),
        "nan": np.full_like(rows, np.nan),
        "uniform": np.full_like(rows, 1.0 / rows.shape[-1]),
        "as if unmasked": plain.weights[sample, :, row],
    }
    fits = [a for a, e in known.items() if np.allclose(rows, e, rtol=0.0, atol=HALF, equal_nan=True)]
    return Finding.the_one(topic, fits[:1], evidence)
