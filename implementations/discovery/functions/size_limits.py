"""The sizes and scales that a function takes, by calls with others: what its own statement refuses is its limit.

An error from deeper inside is none: there the function has broken, which is for the suite to report. A kernel of an
accelerator states its limits where it is launched or compiled: what it raises there, and not on the processor, is one.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.claim_checks import PLAIN, PROBED, ClaimCheck, parts
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import as_written, documents_of
from attention_conformance.implementations.discovery.documented_lengths import states_no_more_queries
from attention_conformance.implementations.discovery.functions.several_needed import has_tables
from attention_conformance.implementations.discovery.probe import shape_of
from attention_conformance.implementations.discovery.tensor_cores import is_accelerated
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, Layout
from attention_conformance.spec.features import Feature

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512)
"""Head widths that are tried where one was refused."""
FIRST_WIDTHS, FIRST_BLOCKS = (64, 128, 32, 8), (64, 128, 32, 16, 256)
"""What kernels take that refuse the plain case, the most usual first."""
BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256)
VALUE_WIDTHS = (PLAIN.sizes.d_k // 2, 2 * PLAIN.sizes.d_k)
ODD_WIDTHS, ODD_LENGTHS = (5, 12), (5, 18)
UNEQUAL = (PLAIN.sized(key_length=32), PLAIN.sized(query_length=32))
"""Fewer queries than keys, and more."""
FEW_CAUSAL = tuple(replace(PLAIN, causal=True).sized(query_length=n, key_length=10 - n) for n in (4, 6))
"""The same under the flag, and small: what dies in a long call is still to be judged."""

OF_VALUES = re.compile(
    r"\b(?:d_?v|e_?v|d_?value|v_?(?:head_)?dim|value_(?:head_)?dim|(?:head_)?dim_v)\b", re.IGNORECASE
)
"""How the width of values is called where it is another one than that of keys."""
OF_PAIRS = "view_as_complex"
"""torch's function that takes no pairs at odd offsets, or with odd strides. In a file that calls it, what a view raises
where a transposed one is taken is a limit, too, though no statement of the function raises it."""
LENGTHS, FAST = (128, 1061), 0.1
"""Tokens of one head that show how much memory is needed, the longest that the quick tier has; and seconds of work on
the shorter ones beyond which the longer ones are not tried."""
FEWER = (512, 256)
"""Lengths that are tried where the longer one has no room."""
MOST_CALLS = 2048
"""Of a function that takes one head at a time, for one answer."""
UNUSUAL_SCALES = (-0.7, 0.0)
DOCUMENTED = "its documentation has no more queries than keys"


@dataclass(frozen=True)
class SizeLimits:
    """The fit of a function that takes some sizes only; see `Claims.fit`.

    Attributes:
        own: a fit that comes first.
        widths: the head widths that it takes, ascending; empty: all.
        fewer, more: whether there may be fewer, or more, queries than keys.
        of_causal: whether that is a limit under a causal flag alone.
        negative, zero: whether the scale may be so.
        wider: whether values may be wider than keys.
        longest: the most queries or keys; 0: any number.
        because: why there are no more, after "takes at most so many tokens".
    """

    own: Fit
    widths: tuple[int, ...] = ()
    fewer: bool = True
    more: bool = True
    of_causal: bool = False
    negative: bool = True
    zero: bool = True
    wider: bool = True
    longest: int = 0
    because: str = "in the memory that it may have"

    def __call__(self, case: Case) -> Case | Unsupported:
        """The nearest case of these sizes; no width is made smaller, no length larger."""
        fitted = self.own(case)
        if isinstance(fitted, Unsupported):
            return fitted
        if fitted.scale is not None and not self._takes(fitted.scale):
            return Unsupported(f"takes no scale of {fitted.scale:g}")
        sizes = fitted.sizes
        if self.longest and max(sizes.query_length, sizes.key_length) > self.longest:
            return Unsupported(f"takes at most {self.longest} tokens {self.because}")
        fewer = sizes.query_length < sizes.key_length and not self.fewer
        more = sizes.query_length > sizes.key_length and not self.more
        if (fewer or more) and (fitted.causal or not self.of_causal):
            length = min(sizes.query_length, sizes.key_length)  # the other one may be a million
            fitted = fitted.sized(query_length=length, key_length=length)
        if sizes.d_v > sizes.d_k and not self.wider:
            fitted = fitted.sized(d_v=sizes.d_k)
        if not self.widths:
            return fitted
        sizes = fitted.sizes
        d_k, d_v = self._width(sizes.d_k), self._width(sizes.d_v)
        if d_k is None or d_v is None:
            return Unsupported(f"takes head widths {', '.join(map(str, self.widths))} only")
        return fitted.sized(d_k=d_k, d_v=d_k if sizes.d_v == sizes.d_k else d_v)

    def _takes(self, scale: float) -> bool:
        return self.negative if scale < 0.0 else self.zero or scale > 0.0

    def _width(self, width: int) -> int | None:
        return next((each for each in self.widths if each >= width), None)


def claims_to_try(claims: Claims) -> Iterator[Claims]:
    """The same claims at sizes that kernels take which refuse those of the plain case."""
    for block in (0, *FIRST_BLOCKS):
        for width in (*FIRST_WIDTHS, PLAIN.sizes.d_k):
            if block or width != PLAIN.sizes.d_k:
                premises = replace(claims.premises, block=block or claims.premises.block)
                yield replace(claims, fit=SizeLimits(claims.fit, (width,)), premises=premises)


def with_size_limits(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with a fit to the sizes that the function does not refuse, and a note on each limit."""
    if check.run(PLAIN).error:
        return check, []
    notes: list[str] = []
    for limited in (_widths, _wider_values, _width_of_keys, _lengths, _unequal_lengths, _scales, _views, _memory):
        check, note = limited(check)
        notes += [note] if note else []
    return check, notes


def _widths(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    given = _limits(check)
    free = _with(check, replace(given, widths=())) if given.widths else check
    rotated = has_tables(check.function)
    widths = (1, *ODD_WIDTHS) if rotated else ODD_WIDTHS
    tried, limited = _tried(free, [PLAIN.sized(d_k=n, d_v=n) for n in widths], rotated or bool(given.widths))
    if not any(limited):
        return free, ""
    dtypes = [each for each in PROBED if not free.run(PLAIN, each).error] if is_accelerated(check) else [check.dtype]
    taken = tuple(w for w in WIDTHS if not any(free.run(PLAIN.sized(d_k=w, d_v=w), each).error for each in dtypes))
    limits = replace(given, widths=taken or given.widths)
    return _with(check, limits), _refused(f"head widths other than {', '.join(map(str, limits.widths))}", tried)


def _wider_values(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    narrower, wider = (PLAIN.sized(d_v=width) for width in VALUE_WIDTHS)
    outcome = check.run(wider)
    if Feature.VALUE_WIDTH not in check.claims or not outcome.refused or check.run(narrower).error:
        return check, ""
    return _with(check, replace(_limits(check), wider=False)), _refused("values wider than keys", [outcome])


def _width_of_keys(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    """Without values of another width where its answer is as wide as its keys, and nothing states a width of values."""
    if Feature.VALUE_WIDTH not in check.claims or any(map(OF_VALUES.search, documents_of(as_written(check.function)))):
        return check, ""
    if not any(_is_as_wide_as_keys(check, PLAIN.sized(d_v=width)) for width in VALUE_WIDTHS):
        return check, ""
    return check.without({Feature.VALUE_WIDTH}), unclaimed("value-width", "its answer is as wide as its keys")


def _is_as_wide_as_keys(check: ClaimCheck, case: Case) -> bool:
    """Whether its output (B, H, Lq, d) has the width of its keys, and not that of its values."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported) or fitted.sizes.d_v == fitted.sizes.d_k:
        return False
    shape = shape_of(parts(check.run(case))[0])
    return len(shape) == 4 and shape[-1] == fitted.sizes.d_k


def _lengths(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    given = check.claims.premises.block
    if check.claims.premises.length:
        return check, ""
    free = _in_blocks(check, 0)
    tried, limited = _tried(free, [PLAIN.sized(query_length=n, key_length=n) for n in ODD_LENGTHS], given > 0)
    if not any(limited):
        return free, ""
    for block in BLOCKS:
        if not any(free.run(PLAIN.sized(query_length=n, key_length=n)).error for n in (block, 3 * block)):
            return _in_blocks(check, block), _refused(f"lengths that are no multiples of {block}", tried)
    return check, ""


def _in_blocks(check: ClaimCheck, block: int) -> ClaimCheck:
    return replace(check, claims=replace(check.claims, premises=replace(check.claims.premises, block=block)))


def _unequal_lengths(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    flags = (False, True) if Feature.CAUSAL in check.claims else (False,)
    for causal in flags:
        refused, limited = _tried(check, FEW_CAUSAL if causal else UNEQUAL, has_tables(check.function))
        stated = states_no_more_queries(as_written(check.function), causal)
        fewer, more = limited[0], limited[1] or stated
        if fewer or more:
            limits = replace(_limits(check), fewer=not fewer, more=not more, of_causal=causal)
            what = f"{_which(not fewer, not more)} queries than keys{' under a causal flag' if causal else ''}"
            return _with(check, limits), _refused(what, refused) if any(limited) else unclaimed(what, DOCUMENTED)
    return check, ""


def _memory(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    """A limit of lengths where a table of triples of tokens, say, has no room in memory; slow ones are not tried."""
    one = PLAIN.sized(batch=1, num_heads=1, num_kv_heads=0, d_k=1, d_v=1)
    short, long = (one.sized(query_length=n, key_length=n) for n in LENGTHS)
    begun = time.process_time()
    if check.run(short).error or time.process_time() - begun > FAST:
        return check, ""
    outcome = check.run(long)
    if MemoryError.__name__ not in outcome.error:
        return check, ""
    taken = (n for n in FEWER if not check.run(one.sized(query_length=n, key_length=n)).error)
    limits = replace(_limits(check), longest=next(taken, LENGTHS[0]))
    return _with(check, limits), _refused(f"more than {limits.longest} tokens", [outcome])


def without_unequal_lengths(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with as many queries as keys where it raises otherwise, if it is always causal or rotates; and a note.

    Without a flag nothing promises which of the later keys other queries see, and where keys are.
    """
    tried = [check.run(case) for case in UNEQUAL] if Feature.CROSS in check.claims else []
    if not any(each.error for each in tried) or check.run(PLAIN).error:
        return check, []
    fewer, more = (not each.error for each in tried)
    limits = replace(_limits(check), fewer=fewer, more=more)
    return _with(check, limits), [_refused(f"{_which(fewer, more)} queries than keys", tried)]


def _which(fewer: bool, more: bool) -> str:
    return " or ".join(word for word, taken in (("fewer", fewer), ("more", more)) if not taken)


def _scales(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    scales = UNUSUAL_SCALES if Feature.SCALE in check.claims else ()
    tried = [check.run(replace(PLAIN, scale=scale)) for scale in scales]
    if not any(each.refused for each in tried):
        return check, ""
    negative, zero = (not each.refused for each in tried)
    which = " or ".join(word for word, taken in (("below 0", negative), ("of 0", zero)) if not taken)
    return _with(check, replace(_limits(check), negative=negative, zero=zero)), _refused(f"a scale {which}", tried)


def _views(check: ClaimCheck) -> tuple[ClaimCheck, str]:
    if Feature.VIEWS not in check.claims:
        return check, ""
    outcome = check.run(replace(PLAIN, layout=Layout.TRANSPOSED))
    if not outcome.error and OF_PAIRS in _file_text(check.function):
        others = (check.run(replace(PLAIN, layout=layout)) for layout in Layout)
        outcome = next((each for each in others if each.error), outcome)
    elif not outcome.refused:
        return check, ""
    return (check.without({Feature.VIEWS}), _refused("views", [outcome])) if outcome.error else (check, "")


def _file_text(function: object) -> str:
    """The text of the file in which somebody wrote the function."""
    return code_of(sys.modules.get(getattr(as_written(function), "__module__", None) or ""))


def _tried(check: ClaimCheck, cases: Sequence[Case], known: bool) -> tuple[list[CallOutcome[Any]], list[bool]]:
    """What each case gives, and whether it is beyond a limit: where one is known already, whatever it raises."""
    tried = [check.run(case) for case in cases]
    pairs = zip(cases, tried, strict=True)
    return tried, [(known and bool(each.error)) or _is_limit(check, case, each) for case, each in pairs]


def _is_limit(check: ClaimCheck, case: Case, outcome: CallOutcome[Any]) -> bool:
    """Whether what a case raises is a limit of the function, or of its kernel for an accelerator.

    What raises on the processor too, which answers the plain case, has broken.
    """
    if outcome.refused or not outcome.error or not is_accelerated(check):
        return outcome.refused
    there = replace(check, device="cpu")
    return bool(there.run(PLAIN).error) or not there.run(case).error


def fit_few_heads(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one that is called for each head of each sample: tens of thousands of calls would take minutes."""
    fitted = fit(case)
    if isinstance(fitted, Unsupported) or fitted.sizes.batch * fitted.sizes.num_heads <= MOST_CALLS:
        return fitted
    return Unsupported(f"it takes one head at a time, and is called at most {MOST_CALLS:,} times")


def with_equal_lengths(check: ClaimCheck, of_causal: bool = False) -> ClaimCheck:
    """The check with as many queries as keys; `of_causal`: under a causal flag alone."""
    return _with(check, replace(_limits(check), fewer=False, more=False, of_causal=of_causal))


def with_longest(check: ClaimCheck, longest: int, because: str) -> ClaimCheck:
    """The check with so many tokens at most; see `SizeLimits`."""
    limits = _limits(check)
    fewer = not limits.longest or longest < limits.longest
    return _with(check, replace(limits, longest=longest, because=because)) if fewer else check


def _limits(check: ClaimCheck) -> SizeLimits:
    given = check.claims.fit
    return given if isinstance(given, SizeLimits) else SizeLimits(given)


def _refused(what: str, outcomes: list[CallOutcome[Any]]) -> str:
    return unclaimed(what, next(each.error for each in outcomes if each.error))


def _with(check: ClaimCheck, limits: SizeLimits) -> ClaimCheck:
    return replace(check, claims=replace(check.claims, fit=limits))
