"""Scripts: a counterexample as a program of a few lines, which needs NumPy and the candidate, but not this suite."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.discovery.auditor.recorded_call import (
    RecordedCall,
    program_fails,
    recorded_call,
)
from attention_conformance.implementations.discovery.targets.loading import Target
from attention_conformance.implementations.worker.remote import Remote
from attention_conformance.reference.visibility import in_force, visibility
from attention_conformance.spec.cases import Layout
from attention_conformance.spec.conventions import Alignment, DefaultScale, EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.reduction import Counterexample, Outcome, fits, outcome
from attention_conformance.tests.harness.judge.comparison import error_ratios
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.report.verdict import FailureKind

MOST_LINES = 25
TOO_MANY = "the smallest failing case has too many numbers"
LETTERS = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask", "key_padding_mask": "pad"}
PARTS = ("output", "weights", "log_sum_exp", *(f"gradients.{name}" for name in ("query", "key", "value", "attn_mask")))


class NoScriptError(Exception):
    """There is no script; the message has the reason."""


def script(
    counterexample: Counterexample,
    judge: Judge,
    target: str,
    settings: Mapping[str, str],
    clause: str,
    premises: Sequence[str] = (),
) -> str:
    """The program: it prints expected and got, and its exit status is 1 if the candidate still fails.

    Raises:
        NoScriptError: there is no such program; the message has the reason.
    """
    run = judge.implementation.run
    if not target:
        raise NoScriptError("a command starts it" if isinstance(run, Remote) else "it is no candidate, but built in")
    if isinstance(run, Remote) and (reason := run.lacks("recorded_call", judge.device)):
        raise NoScriptError(reason)
    if judge.claims.scope is not Scope.OP:
        raise NoScriptError("a module takes more lines")
    failing = counterexample.outcome
    if failing.part not in PARTS:
        raise NoScriptError(f"{failing.part} has no formula of a few lines")
    if failing.problem.layout is not Layout.CONTIGUOUS:
        raise NoScriptError(f"the failure needs arrays laid out as {failing.problem.layout}")
    drawn = not fits(failing)
    if drawn:
        failing = _drawn(failing, judge)
    call = _recorded(target, settings, judge, failing.problem, premises)
    text = "\n".join(_lines(failing, judge, call, target, clause, drawn)) + "\n"
    if text.count("\n") > MOST_LINES:
        raise NoScriptError(f"it would take more than {MOST_LINES} lines")
    if not _fails(text, judge):
        raise NoScriptError("the failure depends on the calls before it")
    return text


def _drawn(failing: Outcome, judge: Judge) -> Outcome:
    """The same problem with numbers that NumPy draws in the script."""
    problem = failing.problem
    if problem.cotangent is not None:
        raise NoScriptError(TOO_MANY)
    arrays, namespace = problem.arrays(), {"np": np, "rng": np.random.default_rng(0)}
    for name in arrays:
        if arrays[name].size > 1:
            arrays[name] = np.asarray(eval(_draw(name, arrays[name]), namespace)).astype(arrays[name].dtype)
    again = outcome(judge, problem.with_arrays(arrays), failing.part)
    if not again.fails_like(failing):
        raise NoScriptError(f"{TOO_MANY}, and random numbers do not show the failure")
    return again


def _draw(name: str, array: Array) -> str:
    if array.dtype.kind == "b":
        raise NoScriptError(f"{name} has too many numbers")
    return f"rng.standard_normal({array.shape})"


def _recorded(
    target: str, settings: Mapping[str, str], judge: Judge, problem: Problem, premises: Sequence[str]
) -> RecordedCall:
    """How the suite calls the function on the problem."""
    run = judge.implementation.run
    try:
        if isinstance(run, Remote):
            return run.recorded_call(problem, judge.device)
        return recorded_call(target, settings, problem, judge.device, premises)
    except CandidateError as error:  # such as scripted functions, which hide their signature from a wrapper
        raise NoScriptError(f"its calls cannot be observed: {error}") from None


def _fails(text: str, judge: Judge) -> bool:
    run = judge.implementation.run
    return run.program_fails(text) if isinstance(run, Remote) else program_fails(text)


def _lines(failing: Outcome, judge: Judge, call: RecordedCall, target: str, clause: str, drawn: bool) -> Iterator[str]:
    tensors = call.tensors
    if not tensors and judge.dtype == "bfloat16":
        raise NoScriptError("NumPy has no bfloat16")
    formula = list(_formula(failing, judge))
    _require_equal(formula, failing)
    name = Target.parse(target).name
    yield f'"""{clause}: {name} in {judge.dtype} against NumPy. Exit status 1 if they differ."""'
    yield "import importlib.util, sys"
    yield "import numpy as np, torch" if tensors else "import numpy as np"
    yield from _loading(Target.parse(target))
    if drawn:
        yield "rng = np.random.default_rng(0)"
    yield from _inputs(failing, judge, tensors, drawn)
    yield f"got = module.{name}({_arguments(failing.problem, call)})"
    yield from _selecting(failing, call)
    names = [LETTERS.get(n, "g") for n in failing.problem.arrays()]
    wide = "x.detach().cpu().double().numpy()" if tensors else "x.astype(float)"
    floats = [n for n, array in zip(names, failing.problem.arrays().values(), strict=True) if array.dtype.kind != "b"]
    masks = [f"{n.upper()} = {n}{'.cpu().numpy()' if tensors else ''}" for n in names if n not in floats]
    yield "; ".join([f"{', '.join(map(str.upper, floats))} = ({wide} for x in ({', '.join(floats)}))", *masks])
    yield from formula
    yield from _judging(failing, judge, tensors)


def _loading(target: Target) -> Iterator[str]:
    if not target.is_file:
        yield f"sys.path.insert(0, {str(Path.cwd())!r})"
        yield f"module = importlib.import_module({target.place!r})"
        return
    path = Path(target.place).resolve()
    yield f"sys.path.insert(0, {str(path.parent)!r})"
    yield f'spec = importlib.util.spec_from_file_location("candidate", {str(path)!r})'
    yield 'module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)'
    yield "spec.loader.exec_module(module)"


def _inputs(failing: Outcome, judge: Judge, tensors: bool, drawn: bool) -> Iterator[str]:
    problem = failing.problem
    place = "" if judge.device == "cpu" else f', device="{judge.device}"'
    for name, array in problem.arrays().items():
        numbers = _draw(name, array) if drawn and array.size > 1 else literal(array)
        grad = ", requires_grad=True" if problem.cotangent is not None and name in problem.needs else ""
        kind = "bool" if array.dtype.kind == "b" else judge.dtype
        made = f"torch.tensor({numbers}, dtype=torch.{kind}{place}{grad})"
        shaped = f".reshape({array.shape})" if array.size == 0 else ""
        if not tensors:
            made = f"np.array({numbers}, dtype=np.{kind})"
        yield f"{LETTERS.get(name, 'g')} = {made}{shaped}"


def literal(array: Array) -> str:
    """An array as nested lists, every number as short as its dtype allows."""
    if array.ndim:
        return f"[{', '.join(literal(np.asarray(part)) for part in array)}]"
    if array.dtype.kind == "b":
        return str(bool(array))
    number = float(array)
    if not np.isfinite(number):
        return "np.nan" if np.isnan(number) else ("np.inf" if number > 0 else "-np.inf")
    short = next(text for text in (f"{number:.{d}g}" for d in range(1, 18)) if array.dtype.type(float(text)) == array)
    return short if {".", "e"} & set(short) else f"{short}.0"


def _arguments(problem: Problem, call: RecordedCall) -> str:
    options = [f"{name}={_argument(value, problem)}" for name, value in call.options.items()]
    return ", ".join(["q", "k", "v", *options])


def _argument(given: str | Array, problem: Problem) -> str:
    if isinstance(given, str):
        return given
    for name in ("attn_mask", "key_padding_mask"):
        array = problem.arrays().get(name)
        if array is not None and array.shape == given.shape and array.dtype == given.dtype:
            if np.array_equal(array, given):
                return LETTERS[name]
            if array.dtype.kind == "b" and np.array_equal(array, ~given):
                return f"~{LETTERS[name]}"
    raise NoScriptError("one of its arguments has no short form")


def _selecting(failing: Outcome, call: RecordedCall) -> Iterator[str]:
    """Selects the part that fails from what was returned."""
    if call.several:
        yield f"got = got[{_position(failing, call.parts)}]"
    if failing.part.startswith("gradients."):
        leaf = LETTERS[failing.part.removeprefix("gradients.")]
        yield f"got, = torch.autograd.grad(got, {leaf}, g, materialize_grads=True)"


def _position(failing: Outcome, parts: Mapping[int, Array]) -> int:
    if failing.part not in ("weights", "log_sum_exp") or failing.got is None:
        return 0
    for number, array in parts.items():
        if number and array.shape == failing.got.shape:
            return number
    raise NoScriptError(f"{failing.part} could not be found in what it returned")


def _formula(failing: Outcome, judge: Judge) -> Iterator[str]:
    """Attention in float64, from Q, K, V, MASK, PAD and G; the result is `want`."""
    problem = in_force(failing.problem, judge.conventions)
    visible = visibility(problem, judge.conventions)
    default = "1.0" if judge.conventions.default_scale is DefaultScale.ONE else "K.shape[-1] ** -0.5"
    scale = default if problem.scale is None else problem.scale
    yield f"S = Q @ K.swapaxes(-1, -2) * {scale}"
    if problem.attn_mask is not None:
        yield "S = np.where(MASK, S, -np.inf)" if problem.attn_mask.dtype.kind == "b" else "S = S + MASK"
    if problem.key_padding_mask is not None:
        yield "S = np.where(PAD[:, None, None], S, -np.inf)"
    if problem.causal:
        corner = judge.conventions.causal_alignment is not Alignment.TOP_LEFT
        offset = problem.key.shape[-2] - problem.query.shape[-2] if corner else 0
        yield f"S = np.where(np.tri(*S.shape[-2:], {offset}), S, -np.inf)"
    if failing.part == "log_sum_exp":
        yield "want = S.max(-1) + np.log(np.exp(S - S.max(-1, keepdims=True)).sum(-1))"
        return
    yield "P = np.exp(S - S.max(-1, keepdims=True)); P = P / P.sum(-1, keepdims=True)"
    empty = {answer: rows.any() for answer, rows in visible.answers.items() if answer is not EmptyRow.NAN}
    for answer in (answer for answer, rows in empty.items() if rows):
        yield f"P[np.isneginf(S).all(-1)] = {'0.0' if answer is EmptyRow.ZEROS else '1 / S.shape[-1]'}"
    if failing.part.startswith("gradients."):
        yield from _gradient(failing.part.removeprefix("gradients."), problem, scale)
    elif failing.part == "weights":
        yield "want = P"
    elif np.isfinite(problem.value.astype(np.float64)).all():
        yield "want = P @ V"
    else:
        yield "want = np.where(P[..., None] == 0, 0, P[..., None] * V[:, :, None]).sum(-2)"


def _gradient(name: str, problem: Problem, scale: object) -> Iterator[str]:
    if name == "value":
        yield "want = P.swapaxes(-1, -2) @ G"
        return
    yield "D = G @ V.swapaxes(-1, -2); D = P * (D - (P * D).sum(-1, keepdims=True))"
    gradients = {"query": f"D @ K * {scale}", "key": f"D.swapaxes(-1, -2) @ Q * {scale}"}
    yield f"want = {gradients.get(name, 'D.reshape(MASK.shape)')}"


def _require_equal(formula: list[str], failing: Outcome) -> None:
    """Refuses a formula whose result differs from the reference."""
    if failing.expected is None:
        return
    arrays = {LETTERS.get(n, "g").upper(): a for n, a in failing.problem.widened().arrays().items()}
    namespace: dict[str, Any] = {"np": np, **arrays}
    try:
        with np.errstate(all="ignore"):
            exec("\n".join(formula), namespace)
        ratios = error_ratios(namespace["want"], failing.expected)
    except ValueError:
        ratios = np.full(1, np.inf)
    if not (ratios <= 1.0).all():
        raise NoScriptError("its formula takes more lines")


def _judging(failing: Outcome, judge: Judge, tensors: bool) -> Iterator[str]:
    if failing.expected is None:
        failing = replace(failing, expected=judge.solve(failing.problem).parts[failing.part])
    assert failing.expected is not None
    formed = failing.got is not None and failing.got.shape == failing.expected.value.shape
    first = (0,) * failing.expected.value.ndim
    at = failing.worst if formed and failing.got is not None and failing.got.size else first
    kind = "x.dtype is not q.dtype" if tensors else "x.dtype != q.dtype"
    wrong = "tuple(got.shape) != want.shape"
    if failing.comparison.kind is FailureKind.DTYPE:
        wrong = f"{wrong} or {kind.replace('x.', 'got.')}"
    yield f'if {wrong}: sys.exit(f"got {{tuple(got.shape)}} in {{got.dtype}}, expected {{want.shape}} in {{q.dtype}}")'
    if not failing.expected.value.size:
        return
    yield f"at, bound = {at}, {float(failing.expected.bound[at])!r}"
    yield "want, got = float(want[at]), float(got[at])"
    yield "off = 0.0 if got == want or got != got and want != want else abs(got - want)"
    yield 'print(f"expected {want:.9g}, got {got:.9g}, off by {off:.3g}: {off / (bound or 1e-323):.3g} x the bound")'
    yield "sys.exit(not off <= bound)"
