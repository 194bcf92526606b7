"""Masks: what each kind of mask does to the keys that a query uses, seen in the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.discovery.audit.findings import (
    ABSENT,
    IGNORED,
    OFFERED,
    Facts,
    Finding,
    spans,
    undetermined,
)
from attention_conformance.implementations.discovery.audit.posing import (
    HALF,
    KEYS,
    QUERIES,
    Asked,
    Floats,
    Seen,
    Subject,
)
from attention_conformance.spec.cases import MaskShape, Sharing
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array

Booleans = NDArray[np.bool_]
MAY_ATTEND, MASKED_OUT, AS_NUMBERS = "True may attend", "True is masked out", "added as 0 and 1"


def lengths(subject: Subject) -> tuple[int, int]:
    """Lq and Lk as they can be asked."""
    tied = subject.form.scope is Scope.MODULE and subject.form.sharing is Sharing.SELF
    return (KEYS if tied else QUERIES), KEYS


def holes(shape: tuple[int, ...], seed: int = 3) -> Booleans:
    """A mask with True and False in every row, different from row to row."""
    keep = np.random.default_rng(seed).random(shape) < 0.5
    if shape[-1] > 2:
        keep[..., 1], keep[..., 2] = True, False
    return keep


def full(subject: Subject, seed: int = 3) -> Booleans:
    """Such a mask for every sample, head, query and key, as far as masks may differ between them."""
    queries, keys = lengths(subject)
    return holes(mask_extents(subject, queries, keys), seed)


def mask_extents(subject: Subject, queries: int, keys: int) -> tuple[int, ...]:
    """The shape in which it takes an attention mask."""
    extents = {"B": 2, "H": subject.form.num_heads, "Lq": queries, "Lk": keys, "1": 1}
    return tuple(extents[axis] for axis in subject.form.mask_shape.value.split(","))


def row_told(mask: Array, seen: Seen, row: tuple[int, int, int] = (0, 0, 0)) -> str:
    """What one row of a mask says, and which keys were used."""
    true = np.flatnonzero(np.broadcast_to(mask, seen.weights.shape)[row])
    return f"query {row[2]}: True at keys {spans(true)}; used keys {spans(np.flatnonzero(seen.used()[row]))}"


def plain_weights(subject: Subject) -> Seen:
    """The weights where nothing is asked."""
    return subject.seen(Asked())


def unchanged(subject: Subject, seen: Seen, asked: Asked | None = None) -> bool:
    """Whether these are the weights of the plain question, bit for bit or nearly."""
    plain = subject.seen(asked or Asked())
    if plain.error or seen.weights.shape != plain.weights.shape:
        return False
    return bool((np.abs(seen.weights - plain.weights) <= HALF).all())


def _by_pattern(question: str, subject: Subject, seen: Seen, keep: Array) -> Finding:
    """What True means in a boolean mask."""
    if seen.error:
        return Finding(question, ABSENT, f"refused: {seen.error}")
    told = row_told(keep, seen)
    if seen.shows(keep):
        return Finding(question, MAY_ATTEND, told)
    if seen.shows(~np.asarray(keep, np.bool_)):
        return Finding(question, MASKED_OUT, told)
    if unchanged(subject, seen):
        return Finding(question, ABSENT, f"{IGNORED}: {told}")
    if np.allclose(_moved_by(seen, plain_weights(subject)), _centred(keep.astype(np.float64), seen), atol=16 * HALF):
        return Finding(question, AS_NUMBERS, f"{told}, and True added 1 to the score")
    return undetermined(question, told)


def _centred(added: Floats, seen: Seen) -> Floats:
    wide = np.broadcast_to(added, seen.weights.shape)
    return np.asarray(wide - wide.mean(-1, keepdims=True))


def _moved_by(seen: Seen, plain: Seen) -> Floats:
    """So much each score has been raised, up to a constant for each row."""
    with np.errstate(all="ignore"):
        moved = np.log(seen.weights) - np.log(plain.weights)
        return np.asarray(moved - moved.mean(-1, keepdims=True))


def boolean(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A boolean attention mask: its polarity, and the shapes in which it is taken."""
    keep = full(subject)
    found = _by_pattern("boolean mask", subject, subject.seen(Asked().given(attn_mask=keep)), keep)
    yield found
    if found.answer in (MAY_ATTEND, MASKED_OUT) and subject.form.mask_shape is MaskShape.FULL:
        shapes = mask_shapes(subject, found.answer == MASKED_OUT)
        others = {f"({shape})": wrong for shape, wrong in shapes.items() if wrong}
        answer = f"all but {' '.join(others)}" if len(others) < len(shapes) else "none"
        told = "; ".join(f"{shape}: {wrong}" for shape, wrong in others.items())
        yield Finding("mask shapes", answer if others else "all that broadcast", told)


def mask_shapes(subject: Subject, flip: bool) -> dict[MaskShape, str]:
    """Why a mask of a shape does not do what it says, by shape; empty where it does."""
    return {shape: _taken(subject, shape, flip) for shape in MaskShape}


def _taken(subject: Subject, shape: MaskShape, flip: bool) -> str:
    shaped = replace(subject, form=replace(subject.form, mask_shape=shape))
    keep = holes(mask_extents(shaped, *lengths(subject)), seed=5)
    if shape is MaskShape.QUERIES:
        keep = np.ones_like(keep)
    seen = subject.seen(Asked().given(attn_mask=keep ^ flip))
    return f"refused: {seen.error}" if seen.error else "" if seen.shows(keep) else "other keys are used"


def additive(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A float attention mask: what becomes of its entries, and of minus infinity."""
    mask = np.random.default_rng(4).standard_normal(full(subject).shape)
    seen, plain = subject.seen(Asked().given(attn_mask=mask)), plain_weights(subject)
    if seen.error:
        yield Finding("float mask", ABSENT, f"refused: {seen.error}")
        return
    if unchanged(subject, seen):
        yield Finding("float mask", ABSENT, IGNORED)
        return
    yield _added(mask, seen, plain, subject.form.width)
    keep = full(subject)
    seen = subject.seen(Asked().given(attn_mask=np.where(keep, mask, -np.inf)))
    answer = "masks" if seen.shows(keep) else "undetermined"
    yield Finding("minus infinity in a float mask", answer, seen.error or row_told(keep, seen))


def _added(mask: Floats, seen: Seen, plain: Seen, width: int) -> Finding:
    """By what factor the entries of a mask reach the scores."""
    wanted, got = _centred(mask, seen), _moved_by(seen, plain)
    if not np.isfinite(got).all():
        return undetermined("float mask", "some weights are zero or NaN")
    factor = float((got * wanted).sum() / (wanted**2).sum())
    told = f"an entry x moved its score by {factor:.3g} x"
    if np.abs(got - factor * wanted).max() > 16 * HALF:
        return undetermined("float mask", "the scores moved by other amounts than its entries")
    known = {"added": 1.0, "added before the scale": width**-0.5, "subtracted": -1.0}
    near = [name for name, value in known.items() if abs(factor - value) <= 16 * HALF]
    return Finding("float mask", near[0], told) if near else undetermined("float mask", told)


def padding(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A mask (B, Lk) over keys, and counts of leading keys."""
    _, keys = lengths(subject)
    keep = holes((2, keys))
    seen = subject.seen(Asked().given(key_padding_mask=keep))
    yield _by_pattern("key padding", subject, seen, keep[:, None, None])
    counts = np.array([3, 5])
    yield _leading(subject, counts, counts[:, None, None, None])


def _leading(subject: Subject, counts: Array, limits: Array) -> Finding:
    keep = np.arange(lengths(subject)[1]) < limits
    seen = subject.seen(Asked().given(valid_lens=counts))
    if seen.error:
        return Finding("valid lengths", ABSENT, f"refused: {seen.error}")
    if unchanged(subject, seen):
        return Finding("valid lengths", ABSENT, IGNORED)
    told = f"sample 0: {counts[0]} keys are real; query 0 used keys {spans(np.flatnonzero(seen.used()[0, 0, 0]))}"
    if not seen.shows(keep):
        return undetermined("valid lengths", told)
    return Finding("valid lengths", OFFERED, told)


CORNERS: Mapping[str, int] = {"top-left": 0, "bottom-right": 1}


def triangle(queries: int, keys: int, corner: str) -> Booleans:
    """(Lq, Lk): what a causal flag leaves."""
    return np.tri(queries, keys, CORNERS[corner] * (keys - queries), dtype=np.bool_)


def causal(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The causal flag, and the corner where its triangle starts."""
    queries, keys = lengths(subject)
    square = replace(Asked(), query_length=keys)
    seen = subject.seen(square.given(causal=True))
    if seen.error:
        yield Finding("causal flag", ABSENT, f"refused: {seen.error}")
        return
    told = f"Lq {keys}, Lk {keys}: query 2 used keys {spans(np.flatnonzero(seen.used()[0, 0, 2]))}"
    if unchanged(subject, seen, square):
        already = seen.shows(triangle(keys, keys, "top-left"))
        yield Finding("causal flag", "always" if already else ABSENT, f"{IGNORED}: {told}")
        if not already:
            return
    elif seen.shows(triangle(keys, keys, "top-left")):
        yield Finding("causal flag", OFFERED, told)
    else:
        yield undetermined("causal flag", told)
    yield _corner(subject) if queries != keys else undetermined("causal alignment", "Lq is always Lk")


def _corner(subject: Subject) -> Finding:
    told, fitting = [], set(CORNERS)
    for queries, keys in ((3, 5), (5, 3)):
        seen = subject.seen(replace(Asked(), query_length=queries, key_length=keys).given(causal=True))
        if seen.error:
            told.append(f"Lq {queries}, Lk {keys}: {seen.error}")
            continue
        row = queries - 3
        used = spans(np.flatnonzero(seen.used()[0, 0, row]))
        told.append(f"Lq {queries}, Lk {keys}: query {row} used keys {used}")
        fitting &= {corner for corner in CORNERS if _shows_rows(seen, triangle(queries, keys, corner))}
    evidence = "; ".join(told)
    if len(fitting) != 1:
        return undetermined("causal alignment", evidence)
    return Finding("causal alignment", fitting.pop(), evidence)


def _shows_rows(seen: Seen, pattern: Booleans) -> bool:
    """Whether it shows the pattern, in all rows that have a key."""
    rows = pattern.any(-1)
    kept = replace(seen, weights=seen.weights[:, :, rows])
    return kept.shows(pattern[rows])


def with_mask(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The causal flag beside a mask."""
    if facts.answer("causal flag") != OFFERED or not facts.answer("boolean mask").startswith("True"):
        return
    keys = lengths(subject)[1]
    keep = holes(mask_extents(subject, keys, keys), seed=6)
    keep[..., 0] = True
    given = ~keep if facts.answer("boolean mask") == MASKED_OUT else keep
    asked = replace(Asked(), query_length=keys).given(attn_mask=given, causal=True)
    dtypes = [dtype for dtype in ("float32", "float64") if dtype in facts.answer("dtypes")]
    seen = {dtype: replace(subject, dtype=dtype).seen(asked) for dtype in dtypes or [subject.dtype]}
    if facts.answer("d_v other than d_k") == OFFERED:
        seen["d_v other than d_k"] = subject.seen(replace(asked, d_v=11))
    tri = triangle(keys, keys, "top-left")
    answers = {name: _both(each, keep, tri) for name, each in seen.items()}
    distinct = sorted({answer for answer in answers.values() if answer})
    evidence = "; ".join(f"{name}: {answer}" for name, answer in answers.items() if answer)
    if distinct == ["both hold", "refused"]:
        yield Finding("causal flag beside a mask", "both hold, or refused", evidence)
    elif len(distinct) == 1:
        yield Finding("causal flag beside a mask", distinct[0], next(iter(seen.values())).error)
    else:
        yield undetermined("causal flag beside a mask", evidence)


def _both(seen: Seen, keep: Booleans, tri: Booleans) -> str:
    if seen.error:
        return "refused"
    known = {"both hold": keep & tri, "the flag alone": tri, "the mask alone": keep}
    return next((name for name, pattern in known.items() if seen.shows(pattern)), "other keys")


def empty_rows(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The answer for a query without keys, for each kind of mask that it knows."""
    keys = lengths(subject)[1]
    keep = full(subject)
    keep[..., 1, :] = False
    polarity = facts.answer("boolean mask")
    if polarity.startswith("True"):
        given = ~keep if polarity == MASKED_OUT else keep
        yield empty(subject, "row emptied by a boolean mask", Asked().given(attn_mask=given), (slice(None), 1))
    if facts.answer("minus infinity in a float mask") == "masks":
        given = np.where(keep, 0.0, -np.inf)
        yield empty(subject, "row emptied by minus infinity", Asked().given(attn_mask=given), (slice(None), 1))
    padded = facts.answer("key padding")
    if padded.startswith("True"):
        real = np.ones((2, keys), np.bool_)
        real[1] = False
        given = ~real if padded == MASKED_OUT else real
        yield empty(subject, "sample emptied by padding", Asked().given(key_padding_mask=given), (1, slice(None)))
    if facts.answer("causal alignment") == "bottom-right":
        asked = replace(Asked(), query_length=5, key_length=3).given(causal=True)
        yield empty(subject, "row emptied by the causal flag", asked, (slice(None), 0))


def empty(subject: Subject, question: str, asked: Asked, where: tuple[int | slice, int | slice]) -> Finding:
    problem = subject.problem(asked)
    seen = subject.seen(asked)
    if seen.error:
        return Finding(question, "refused", seen.error)
    sample, row = where
    rows = seen.weights[sample, :, row]
    plain = subject.seen(replace(Asked(), query_length=asked.query_length, key_length=asked.key_length))
    told = "its weights: " + " ".join(f"{x:.3g}" for x in rows.reshape(-1, rows.shape[-1])[0])
    known = {
        "zeros": np.zeros_like(rows),
        "nan": np.full_like(rows, np.nan),
        "uniform": np.full_like(rows, 1.0 / problem.key.shape[-2]),
        "as if unmasked": plain.weights[sample, :, row],
    }
    for answer, expected in known.items():
        if np.allclose(rows, expected, rtol=0.0, atol=HALF, equal_nan=True):
            return Finding(question, answer, told)
    return undetermined(question, told)
