"""Coarser dtypes: whether a candidate computes in float32 whatever its input is, seen without the right answer."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    MASKED,
    PLAIN,
    ClaimCheck,
    output_of,
)
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.implementations.discovery.rows_without_keys import fit_rows_with_keys, gets_nan_in_float64
from attention_conformance.implementations.discovery.tensor_cores import products_on_tensor_cores
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.conventions import ProductPrecision, SoftmaxPrecision
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem

STEP = 1e-8
"""Between inputs: what float64 bends there is its square, and float32 has a rounding error of several steps."""
BENDING, ROUNDING = 1e-10, 1e-5
"""Second differences between which float32 is seen, as shares of the output: float64 bends less."""
EXACT = 1e-13
"""How far float64 may be from float64 that was computed in another order, as a share of the largest element."""
STEEP, HUGE = 60.0, 2.0**20 + 1.0 / 3.0
"""A score among zeros, and a value among thirds: their product with the weights e^-60 is nothing."""
LEFT, FEW, LONG = 12.0, 1e-3, 257
"""A score among zeros, more than what it leaves to each other key, and more keys than most blocks hold at once."""
APART = 32.0
"""Roundings between equal shares that show that they are no numbers of their own size: those of an exponent, a sum, a
quotient and a few merges are a dozen at most."""
NAN_IN_FLOAT64 = "a row without keys gets nan in float64, as its fill is no number of float32: no such row is judged"
NAMED = re.compile(r"\bfloat32\b|\bfloat\(\)|torch\.float\b|type\(torch\.FloatTensor\)")
"""How code names the type that it computes in."""
OPTIONAL = {
    Feature.BOOL_MASK: (" with a mask", MASKED),
    Feature.FLOAT_MASK: (" with a mask", BIASED),
    Feature.KEY_PADDING: (" with padding", replace(PLAIN, padding=Padding.RIGHT)),
    Feature.VALID_LENS: (" with lengths", replace(PLAIN, padding=Padding.LENGTHS)),
    Feature.CAUSAL: (" with its causal flag", CAUSAL),
}
"""What it may be given, in words, and a case with it."""
KEY, OF_THE_SOFTMAX = "product-precision", "softmax-precision"
EXACT_DTYPE = "float64"


def with_precision(
    check: ClaimCheck, claims: Claims, settings: Mapping[str, str], written: object
) -> tuple[Claims, tuple[str, ...]]:
    """The claims with a coarser precision where that is seen and nothing is stated, and a note of each.

    `written`: the function or class as somebody wrote it, whose code may name float32.
    """
    if {KEY, OF_THE_SOFTMAX} & settings.keys():
        return claims, ()
    own = check if check.dtype in claims.dtypes else replace(check, dtype=EXACT_DTYPE)
    notes = []
    if _is_running_mean(own) or _is_left_to_one(own):
        claims = _claiming(claims, OF_THE_SOFTMAX, SoftmaxPrecision.ROW)
        kind = "each weight is exact to 1, not to its own size, as in a running mean or a merge by 1 - share"
        notes = [f"{kind} ({OF_THE_SOFTMAX}={SoftmaxPrecision.ROW})"]
    if (seen := products_on_tensor_cores(check)) is not ProductPrecision.WORKING:
        note = f"its accelerator reads float32 inputs of products as {seen.upper()} ({KEY}={seen})"
        return _claiming(claims, KEY, seen), (*notes, note)
    if EXACT_DTYPE not in claims.dtypes:
        return claims, tuple(notes)
    always = _in_float32(check) or _scale_in_float32(check)
    under = "" if always else _option_in_float32(replace(check, claims=claims), written)
    if not always and not under:
        return claims, tuple(notes)
    notes.append(f"computes in float32 for inputs in float64{under} ({KEY}={ProductPrecision.FLOAT32})")
    claims = _claiming(claims, KEY, ProductPrecision.FLOAT32)
    if not gets_nan_in_float64(check):
        return claims, tuple(notes)
    return replace(claims, fit=partial(fit_rows_with_keys, claims.fit)), (*notes, NAN_IN_FLOAT64)


def _claiming(claims: Claims, key: str, precision: ProductPrecision | SoftmaxPrecision) -> Claims:
    return replace(claims, conventions=claims.conventions.claiming({key: str(precision)}))


def _is_running_mean(check: ClaimCheck) -> bool:
    """Whether a huge value of next to no weight is lost with its digits where it comes first or last, and not both.

    A mean of equal values is exact then, which sums of weighted values seldom are.
    """
    fitted = fit(PLAIN.sized(key_length=6, query_length=6), check.claims)
    if isinstance(fitted, Unsupported) or check.claims.scope is not Scope.OP:
        return False
    problem = build(fitted, check.dtype).forward_only()
    query, key, value = (np.asarray(x) for x in (problem.query, problem.key, problem.value))
    if query.dtype not in (np.float32, np.float64):
        return False
    unit, small = float(np.finfo(query.dtype).eps), np.full_like(value, 1.0 / 3.0)
    level = np.zeros_like(key)
    aligned = {"query": np.ones_like(query), "value": small}
    errors = []
    for huge, heavy in ((0, -1), (-1, 0)):
        raised, mixed = level.copy(), small.copy()
        raised[..., heavy, :], mixed[..., huge, :] = STEEP / query.shape[-1] ** 0.5, HUGE
        errors.append(_last_row(check, problem.with_arrays({**aligned, "key": raised, "value": mixed})))
    equal = _last_row(check, problem.with_arrays({"value": small}))
    off = sorted(float(np.abs(each - 1.0 / 3.0).max()) for each in errors if each is not None)
    if equal is None or len(off) < len(errors):
        return False
    exact = bool((equal == small[..., -1, :]).all())
    return exact and off[0] <= unit and 100.0 * unit < off[1] <= 4.0 * unit * HUGE


def _is_left_to_one(check: ClaimCheck) -> bool:
    """Whether equal small shares differ by roundings of 1, as they do where blocks are merged by 1 - share.

    Each component of the values is huge at a key of its own, so that it shows the share of this key.
    """
    numbers = (LONG,) if check.claims.premises.causal else (1, LONG)  # some take as many queries as keys alone
    attempts = (fit(PLAIN.sized(key_length=LONG, query_length=queries), check.claims) for queries in numbers)
    fitted = next((each for each in attempts if isinstance(each, Case) and each.sizes.key_length >= LONG // 2), None)
    if fitted is None or check.claims.scope is not Scope.OP:
        return False
    problem = build(fitted, check.dtype).forward_only()
    query, key, value = (np.asarray(x) for x in (problem.query, problem.key, problem.value))
    if query.dtype not in (np.float32, np.float64) or key.shape[-2] <= value.shape[-1]:
        return False
    unit, length = float(np.finfo(query.dtype).eps), key.shape[-2]
    columns = np.arange(value.shape[-1])
    for heavy in (0, 1, length // 2 + 1, length - 1):
        keys, values = np.zeros_like(key), np.zeros_like(value)
        keys[..., heavy, :] = LEFT / query.shape[-1] ** 0.5
        others = np.delete(np.arange(length), heavy)
        values[..., others[np.linspace(0, len(others) - 1, len(columns)).astype(int)], columns] = 1.0
        shares = _last_row(check, problem.with_arrays({"query": np.ones_like(query), "key": keys, "value": values}))
        if shares is None or not 0.0 < shares.max() < FEW:
            return False
        if APART * unit * shares.max() < np.ptp(shares, axis=-1).max() <= 4.0 * unit:
            return True
    return False


def _last_row(check: ClaimCheck, problem: Problem) -> Floats | None:
    """The output for the last query, which sees all keys whatever is hidden from others."""
    output = safe_call(partial(_output, check, problem)).value
    return None if output is None or output.shape[:-1] != problem.query.shape[:-1] else output[..., -1, :]


def _option_in_float32(check: ClaimCheck, written: object) -> str:
    """With what alone it computes in float32, as where scores are cast before they are filled, as its code may name it.

    Its file is read: the step that casts may be in a function.
    """
    module = sys.modules.get(getattr(written, "__module__", ""))
    if not NAMED.search(code_of(module) or code_of(written)):
        return ""
    cases = ((words, case) for feature, (words, case) in OPTIONAL.items() if feature in check.claims)
    return next((words for words, case in cases if _in_float32(check, case)), "")


def _in_float32(check: ClaimCheck, case: Case = PLAIN) -> bool:
    """Whether the answer in float64 is rough at the scale of float32: its second difference along one direction."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, EXACT_DTYPE).forward_only()
    along = np.random.default_rng(0).standard_normal(problem.query.shape) * STEP
    before, here, after = (
        safe_call(partial(_output, check, problem.with_arrays({"query": problem.query + times * along}))).value
        for times in (-1.0, 0.0, 1.0)
    )
    if before is None or here is None or after is None:
        return False
    size = float(np.abs(here).max(initial=0.0))
    bend = float(np.abs(before - 2.0 * here + after).max(initial=0.0))
    return BENDING * size < bend < ROUNDING * size


def _scale_in_float32(check: ClaimCheck) -> bool:
    """Whether its answer in float64 is that under a scale rounded to float32, which is what torch.tensor(d) gives."""
    fitted = fit(PLAIN.sized(d_k=6, d_v=6), check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, EXACT_DTYPE).forward_only()
    got = safe_call(partial(_output, check, problem)).value
    root = math.sqrt(fitted.sizes.d_k)
    short = np.float32(root)
    scales = {float(np.float32(1.0 / root)), 1.0 / float(short), float(np.float32(1.0) / short)}
    calls = [partial(_with_scale, problem, scale, causal) for scale in scales for causal in (False, True)]
    attempts = [safe_call(call).value for call in calls]
    if got is None:
        return False
    shown = [each for each in attempts if each is not None and each.shape == got.shape]
    return any(float(np.abs(each - got).max()) < EXACT * float(np.abs(each).max()) for each in shown)


def _with_scale(problem: Problem, scale: float, causal: bool) -> Floats:
    """The output of plain attention with a scale."""
    if problem.scope is not Scope.OP:
        # imports torch, without which functions of NumPy are looked at
        from attention_conformance.implementations.discovery.modules.template import output_of_problem

        return output_of_problem(problem, scale, causal)
    scores = problem.query @ problem.key.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -math.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    output: Floats = weights / weights.sum(-1, keepdims=True) @ problem.value
    return output


def _output(check: ClaimCheck, problem: Problem) -> Floats:
    return output_of(check.answer(problem))


def stated_dtype(signature: inspect.Signature) -> str:
    """The type of numbers that its parameter `dtype` has by default, and in which it computes; empty for none."""
    parameter = signature.parameters.get("dtype")
    if parameter is None or parameter.default in (None, parameter.empty):
        return ""
    name = str(parameter.default).removeprefix("torch.")
    return name if name in DTYPES else safe_call(lambda: np.dtype(parameter.default).name).value or ""
