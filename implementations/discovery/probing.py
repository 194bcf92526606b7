"""Probing: a few small calls that show what a candidate can be asked, before its claims are final."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.adapters.native import bound
from attention_conformance.implementations.api.contract import Claims, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.discovery.loading import TargetError, told
from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.spec.extensions import NOTHING
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem

Run = Callable[..., Result]

PLAIN = Case(sizes=Sizes(batch=2, num_heads=3, query_length=16, key_length=16, d_k=16, d_v=16))
"""Sizes that no kernel should mind: whether odd ones work is for the suite to find out."""
MASKED = replace(PLAIN, mask=MaskKind.BOOL)
BIASED = replace(PLAIN, mask=MaskKind.FLOAT)
CAUSAL = replace(PLAIN, causal=True)

_NOTHING = object()


@dataclass(frozen=True)
class Trial:
    """What came of one call: the answer as it was given, or the exception in a line."""

    answer: object = None
    error: str = ""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The answer as a tuple of output and extras."""
        return self.answer if isinstance(self.answer, tuple) else (self.answer,)


@dataclass
class _Spy:
    """Stands in for a function: keeps its whole answer, and hands on the output alone."""

    function: Callable[..., object]
    answer: object = field(default=_NOTHING)

    def __call__(self, *inputs: Any, **options: Any) -> object:
        self.answer = self.function(*inputs, **options)
        return self.answer[0] if isinstance(self.answer, tuple) and self.answer else self.answer


@dataclass(frozen=True)
class Probe:
    """A way to call a candidate, the claims that it may have at most, and where it runs.

    Attributes:
        function: what is called.
        adapt: makes a `run` of it, such as `torch_op`.
        claims: cases are fitted to them.
    """

    function: Callable[..., object]
    adapt: Callable[[Callable[..., Any]], Run]
    claims: Claims
    device: str = "cpu"

    def ask(self, case: Case, dtype: str = "float32", gradients: bool = False) -> Trial:
        """Asks the case, as near as the claims allow it. What the answer is worth is not judged."""
        fitted = fit(case, self.claims)
        if isinstance(fitted, Unsupported):
            return Trial(error=fitted.reason)
        problem = build(fitted, dtype)
        return self.answer(problem if gradients else problem.forward_only())

    def ignores(self, case: Case) -> bool:
        """Whether it answers, and gives the very numbers that it gives without mask, causal flag and scale.

        Where the case asks for something beyond the core, it is that which is left away.
        """
        fitted = fit(case, self.claims)
        if isinstance(fitted, Unsupported):
            return False
        problem = build(fitted, "float32").forward_only()
        core = replace(problem, attn_mask=None, causal=False, scale=None)
        bare = core if case.extension == NOTHING else replace(problem, extension=NOTHING, extras={})
        asked, unasked = self.answer(problem), self.answer(bare)
        return not asked.error and not unasked.error and same(asked, unasked)

    def answers(self, run: Run, case: Case) -> bool:
        """Whether a finished `run` answers the case without an exception."""
        fitted = fit(case, self.claims)
        assert not isinstance(fitted, Unsupported)
        try:
            with kept_global_state():
                run(build(fitted, "float32").forward_only().fresh(), self.device)
        except Exception:
            return False
        return True

    def answer(self, problem: Problem) -> Trial:
        """What it answers to the numbers of a problem."""
        spy = _Spy(self.function)
        try:
            with warnings.catch_warnings(), kept_global_state():
                warnings.simplefilter("ignore")
                self.adapt(spy)(problem.fresh(), self.device)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # SystemExit too. Once it has answered, what the adapter makes of that is no error of the call.
            if spy.answer is _NOTHING:
                return Trial(error=told(error))
        return Trial(answer=spy.answer)


def check_answer(trial: Trial, holds: Callable[[object], bool], wanted: str) -> None:
    """Refuses an answer that is neither an array of the kind nor a tuple of one and extras.

    Raises:
        TargetError: the answer is something else, or there is none.
    """
    if trial.error:
        raise TargetError(f"it cannot be called, though it has to work in float32 at least: {trial.error}")
    if not trial.parts or not holds(trial.parts[0]):
        came = _described(trial.answer)
        raise TargetError(f"it returned {came}: return {wanted}, or a tuple that begins with it")
    if isinstance(trial.answer, tuple) and len(trial.answer) == 1:
        raise TargetError(f"it returned a tuple of one: return {wanted}, without a tuple around it")


def _described(answer: object) -> str:
    if isinstance(answer, tuple):
        return f"a tuple of ({', '.join(type(part).__name__ for part in answer)})"
    return "None" if answer is None else f"an object of type {type(answer).__name__}"


EXTRA_FEATURES = {
    "weights": Feature.WEIGHTS,
    "averaged_weights": Feature.AVERAGED_WEIGHTS,
    "log_sum_exp": Feature.LOG_SUM_EXP,
}


@dataclass(frozen=True)
class Extras:
    """What an answer holds after the output: position -> name in `Result`, and notes on what is ignored."""

    named: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.named)

    def claimed(self, claims: Claims, alternatives: bool) -> Claims:
        """The claims, and that the named extras are returned; without ways, no more of those."""
        features = claims.features.union(EXTRA_FEATURES[name] for name in self.names)
        return replace(claims, features=features if alternatives else features - {Feature.ALTERNATIVES})

    def choosing(self, function: Callable[..., object]) -> Choosing:
        """The function, with only the output and the named extras in its answer."""
        return Choosing(function, tuple(position for position, _ in self.named))


@dataclass(frozen=True)
class Choosing:
    """A function with only the output and the extras at some positions in its answer."""

    function: Callable[..., object]
    positions: tuple[int, ...]

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """What is chosen of the function's answer."""
        return self._chosen(self.function(*inputs, **options))

    def bound_call(self, *inputs: Any, **options: Any) -> Callable[[], Any]:
        """The same, made ready."""
        call = bound(self.function, *inputs, **options)
        return lambda: self._chosen(call())

    def _chosen(self, answer: Any) -> Any:
        if not isinstance(answer, tuple):
            return answer
        return (answer[0], *(answer[position] for position in self.positions)) if self.positions else answer[0]


def find_extras(trial: Trial, scope: Scope) -> Extras:
    """Tells extras by their shapes in the answer to PLAIN.

    (B, H, Lq, Lk) are weights, (B, H, Lq) is a log-sum-exp, and (B, Lq, Lk) of a module averaged weights.
    """
    s = PLAIN.sizes
    shapes = {
        (s.batch, s.num_heads, s.query_length, s.key_length): "weights",
        (s.batch, s.num_heads, s.query_length): "log_sum_exp",
    }
    if scope is Scope.MODULE:
        shapes[(s.batch, s.query_length, s.key_length)] = "averaged_weights"
    found: dict[str, int] = {}
    notes: list[str] = []
    for position, extra in enumerate(trial.parts[1:], start=1):
        shape = tuple(getattr(extra, "shape", ()))
        name = shapes.get(shape)
        if name is not None and name not in found:
            found[name] = position
        elif extra is not None:
            notes.append(f"part {position} of its answer is ignored: {type(extra).__name__} {shape}")
    return Extras(tuple((position, name) for name, position in found.items()), tuple(notes))


def settle(probe: Probe, answers_in_kind: bool = False) -> tuple[Claims, tuple[str, ...]]:
    """The probe's claims without those that a call refutes, and a note on each refuted one.

    Args:
        probe: its plain call works.
        answers_in_kind: whether a half type counts only if the answer comes in it: NumPy widens in silence.
    """
    dtypes, notes = _dtypes(probe, answers_in_kind)
    refuted = {}
    if Feature.VALUE_WIDTH in probe.claims:
        refuted[Feature.VALUE_WIDTH] = probe.ask(PLAIN.sized(d_v=8)).error
    if Feature.GRADIENTS in probe.claims:
        refuted[Feature.GRADIENTS] = refuted[Feature.MASK_GRADIENT] = no_gradients(probe)
    refuted[Feature.EMPTY_SIZES] = _not_empty(probe)
    lost = {feature: why for feature, why in refuted.items() if why and feature in probe.claims}
    notes += [f"{feature} not claimed: {why}" for feature, why in lost.items()]
    return replace(probe.claims, features=probe.claims.features - set(lost), dtypes=dtypes), tuple(notes)


def _dtypes(probe: Probe, answers_in_kind: bool) -> tuple[tuple[str, ...], list[str]]:
    errors = {dtype: probe.ask(PLAIN, dtype).error for dtype in DTYPES}
    for case in (MASKED, BIASED) if not all(errors.values()) else ():
        found = {dtype: probe.ask(case, dtype).error for dtype in DTYPES}
        if not found["float32"]:
            errors = {dtype: error or found[dtype] for dtype, error in errors.items()}
    for dtype in ("bfloat16", "float16"):
        if answers_in_kind and not errors[dtype]:
            output = probe.ask(PLAIN, dtype).parts[0]
            errors[dtype] = "" if output.dtype == DTYPES[dtype] else f"it answers in {output.dtype}"
    notes = [f"{dtype} not claimed: {error}" for dtype, error in errors.items() if error]
    return tuple(dtype for dtype, error in errors.items() if not error), notes


def no_gradients(probe: Probe) -> str:
    """Why its output does not require grad where its inputs do; empty if it does."""
    trial = probe.ask(PLAIN, gradients=True)
    if trial.error:
        return trial.error
    differentiable = bool(trial.parts) and (getattr(trial.parts[0], "requires_grad", False) or is_jax(trial.parts[0]))
    return "" if differentiable else "its output does not require grad"


def _not_empty(probe: Probe) -> str:
    trials: Iterable[Trial] = (probe.ask(PLAIN.sized(**{extent: 0})) for extent in ("key_length", "batch"))
    return next((trial.error for trial in trials if trial.error), "")


def alike(first: Trial, second: Trial) -> bool:
    """Whether two answers are the same to half of their digits: equal but for rounding."""
    one, other = (np.asarray(_host(trial.parts[0]), dtype=np.float64) for trial in (first, second))
    near = np.finfo(np.float32).eps ** 0.5
    return one.shape == other.shape and bool((np.abs(one - other) <= near * (1.0 + np.abs(other))).all())


def _host(answer: Any) -> Any:
    return answer.detach().cpu() if isinstance(answer, torch.Tensor) else answer


def same(first: Trial, second: Trial) -> bool:
    """Whether two answers hold the same numbers."""
    one, other = (np.asarray(_host(trial.parts[0]), dtype=np.float64) for trial in (first, second))
    return bool(np.array_equal(one, other, equal_nan=True))
