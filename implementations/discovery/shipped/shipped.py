"""The interfaces of shipped kernels: functions recognized by the names of their parameters, and how they are called.

Such a function becomes one of query, key and value in heads, (B, H, L, d), which takes the options that its signature
promises under the names of the suite. Conventions that its interface documents are claimed, unless a setting claims
others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

from attention_conformance.implementations.api.contract import Fit, Implementation, Result, any_case
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import required
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import Problem

torch = optional("torch")

RETURNING = ("return_softmax_lse", "return_attn_probs", "return_lse", "return_residual")
"""Flags by which functions return their log-sum-exps."""
APPENDED = frozenset({"k", "v"})
"""The parameters for new keys and values, which a function writes behind those of its cache."""
UNFED = frozenset({"block_table", "rotary_cos"})
"""What a sequence that is fed through a cache does not have."""
SQUARE = (2, 16, 16, 16)
"""A shape in which the axes of heads and of tokens have one extent, so that either order is taken."""


@dataclass(frozen=True)
class Shipped:
    """One function of an interface.

    Attributes:
        function: as it is shipped.
        names: of its parameters.
        own: its own names for the suite's options, as far as it has them.
        needs: those of these options that every call has to have, whatever their defaults are.
        always: what every call is given, by its own names: what it refuses otherwise.
    """

    function: Callable[..., Any]
    names: frozenset[str]
    own: Mapping[str, str]
    needs: frozenset[str] = frozenset()
    always: Mapping[str, object] = field(default_factory=dict)

    def keywords(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The given options under its own names, and what switches a causal flag off that is on by default."""
        given = {self.own[name]: value for name, value in options.items() if name in self.own}
        return {**self._switched_off, **given, **self.always}

    @cached_property
    def _switched_off(self) -> dict[str, Any]:
        flag = self.own.get("is_causal", "")
        parameter = safe_call(lambda: inspect.signature(self.function).parameters.get(flag)).value
        return {flag: False} if parameter is not None and parameter.default is True else {}


Call: TypeAlias = Callable[[Shipped, Any, Any, Any, dict[str, Any]], Any]
"""Calls a function with query, key, value (B, H, L, d) and the suite's options; gives its output in the same axes, or a
tuple of it and of weights (B, H, Lq, Lk) or log-sum-exps (B, H, Lq)."""


@dataclass(frozen=True)
class Interface:
    """What functions of one interface have in common.

    Attributes:
        name: of the function that documents it.
        named: the parameters by which it is recognized.
        fewer: those that are enough where the function has this very name.
        call: see `Call`.
        options: its own names for the suite's options; those without a parameter of that name are not claimed.
        settings: the conventions that it documents, by key.
        fit: see `Claims`.
        lacks: what it cannot offer, whatever its parameters are.
        offers: what it documents for an option that it takes, by the suite's name of that option.
        either_order: whether functions with these names exist in (B, H, L, d), too, so that a call has to decide.
        exact: whether a function with other parameters, too, is none of it.
        suits: whether a function with these names is of it, where that takes a call; None: all are.
        spellings: names that functions have for more of the suite's options, the first that one has is its own.
        seen_fit: the fit of a function, by calls, and what they show; in place of `fit`.
        ways: other calls that have to give the same answer, and the parameters that they need, by what they are.
        needed: what every call of a function has to have, by calls; None: nothing that has a default.
        start: what feeds a sequence through its cache piece by piece, see `Cached`; None where it has none.
    """

    name: str
    named: frozenset[str]
    call: Call
    options: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    fit: Fit = any_case
    lacks: frozenset[Feature] = frozenset()
    offers: Mapping[str, Feature] = field(default_factory=dict)
    either_order: bool = False
    exact: bool = False
    suits: Callable[[Callable[..., Any]], bool] | None = None
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seen_fit: Callable[[Shipped], tuple[Fit, str]] | None = None
    ways: Mapping[str, tuple[frozenset[str], Call]] = field(default_factory=dict)
    needed: Callable[[Shipped], frozenset[str]] | None = None
    start: Callable[[Shipped], Callable[[Any], Any]] | None = None
    fewer: frozenset[str] = frozenset()

    def recognizes(self, function: Callable[..., Any], names: Set[str]) -> bool:
        """Whether a function with these parameters is of it."""
        if self.exact:
            return self.named == names
        if self.fewer and self.fewer <= names:
            return self.named <= names or safe_call(lambda: function.__name__).value == self.name
        return self.named <= names

    def own(self, names: Set[str]) -> dict[str, str]:
        """The names of a function with these parameters for the suite's options, and for arrays of each head."""
        spelled = {o: next((name for name in each if name in names), "") for o, each in self.spellings.items()}
        own = {o: name for o, name in {**self.options, **spelled}.items() if name in names}
        return {o: name for o, name in of_heads(names).items() if name not in own.values()} | own


@dataclass(frozen=True)
class ShippedCall:
    """A function of an interface as one of query, key and value (B, H, L, d).

    Attributes:
        returning: whether it is made to return its log-sum-exps, where it has a flag for them.
    """

    interface: Interface
    shipped: Shipped
    returning: bool = True

    @property
    def flag(self) -> str:
        """The name of the flag by which it returns its log-sum-exps; empty where it has none."""
        return next((name for name in RETURNING if name in self.shipped.names), "")

    @property
    def __signature__(self) -> inspect.Signature:  # what inspect.signature reads
        kind, options = inspect.Parameter.POSITIONAL_OR_KEYWORD, ["enable_gqa", *self.shipped.own]
        inputs = [inspect.Parameter(name, kind) for name in ("query", "key", "value")]
        whole = safe_call(lambda: inspect.signature(self.shipped.function)).value
        own = dict(whole.parameters) if whole else {}
        needed = {
            o for o, n in self.shipped.own.items() if n in of_heads({n}).values() and n in own and required(own[n])
        }
        optional = [inspect.Parameter(name, kind, default=None) for name in options if name not in needed]
        return inspect.Signature([*inputs, *(inspect.Parameter(name, kind) for name in sorted(needed)), *optional])

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        given = {name: option for name, option in options.items() if option is not None and name != "enable_gqa"}
        shipped = self.shipped
        if self.returning and self.flag:
            given[self.flag], own = True, {**shipped.own, self.flag: self.flag}
            shipped = replace(shipped, own=own)
        return self.interface.call(shipped, query, key, value, given)

    def without_log_sum_exp(self) -> ShippedCall:
        """The same where only the output is returned."""
        return replace(self, returning=False)

    def other_ways(self) -> dict[str, ShippedCall]:
        """The same by other calls, by what they are."""
        ways = {way: call for way, (names, call) in self.interface.ways.items() if names <= self.shipped.names}
        return {way: replace(self, interface=replace(self.interface, call=call)) for way, call in ways.items()}

    @cached_property
    def fitting(self) -> tuple[Fit, str]:
        """The fit of its claims, and what calls have shown of that."""
        seen = self.interface.seen_fit
        return seen(self.shipped) if seen else (self.interface.fit, "")

    def claimed(self, features: frozenset[Feature]) -> frozenset[Feature]:
        """Those of these features that it offers, and what it documents for the options that it takes."""
        offered = {feature for option, feature in self.interface.offers.items() if option in self.shipped.own}
        return (features | offered) - self.interface.lacks

    @property
    def notes(self) -> list[str]:
        """How it is called."""
        documented = ", ".join(f"{key}={value}" for key, value in self.interface.settings.items())
        called = f"called as {self.interface.name}" + (f", with {documented}" if documented else "")
        return [note for note in (called, self.fitting[1]) if note]


def _always_causal(interface: Interface, shipped: Shipped) -> Shipped:
    """The function with its causal flag set in every call, where a statement of its own refuses the others."""
    flag = shipped.own.get("is_causal")
    if torch is None or flag is None or flag not in shipped.names:
        return shipped
    own = {option: name for option, name in shipped.own.items() if name != flag}
    causal = replace(shipped, own=own, always={flag: True})
    query = torch.ones(SQUARE)
    for dtype in (torch.float32, torch.bfloat16):
        x = query.to(dtype)
        usual, other = (safe_call(partial(interface.call, each, x, x, x, {})) for each in (shipped, causal))
        if not usual.refused:
            return shipped
        if not other.error:
            return causal
    return shipped


def of_heads(names: Set[str]) -> dict[str, str]:
    """Those of these parameters that take arrays of each head, such as sinks, by the suite's names of such options."""
    arrays = [keyword for option in CASE_OPTIONS if option.draw for keyword in option.keywords.items()]
    found = {own: next((name for name in (own, *others) if name in names), "") for own, others in arrays}
    return {own: name for own, name in found.items() if name}


def as_shipped(function: Callable[..., Any], interfaces: Iterable[Interface]) -> ShippedCall | None:
    """The function by the interface whose parameters it has; None where there is no such interface."""
    if isinstance(function, ShippedCall):
        return function
    parameters = safe_call(lambda: inspect.signature(function).parameters).value
    names = frozenset(parameters or ())
    for interface in interfaces:
        if interface.recognizes(function, names) and (interface.suits is None or interface.suits(function)):
            if interface.either_order and _heads_first(function):
                return None
            shipped = Shipped(function, names, interface.own(names))
            needs = interface.needed(shipped) if interface.needed else shipped.needs
            return ShippedCall(interface, _always_causal(interface, replace(shipped, needs=needs)))
    return None


def _heads_first(function: Callable[..., Any]) -> bool:
    """Whether it works on (B, H, L, d): whether another key changes only the slice of the output at its own place."""
    assert torch
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(SQUARE, generator=generator) for _ in range(3))
    other = key.clone()
    other[:, 0] *= -1.0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        outcomes = [safe_call(partial(function, *(x.to(dtype) for x in (query, each, value)))) for each in (key, other)]
        outputs = [first(outcome.value)[0] for outcome in outcomes]
        if all(isinstance(output, torch.Tensor) and output.shape == SQUARE for output in outputs):
            changed = torch.ne(*outputs).any(dim=0).any(dim=-1).any(dim=-1)
            return bool(changed[0]) and not bool(changed[1:].any())
    return False


@dataclass(frozen=True, eq=False)
class WithCache:
    """A `run` of a function that has a cache, too: problems that come in pieces are fed through it."""

    whole: Callable[[Problem, str], Result]
    fed: Callable[[Problem, str], Result]

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        return (self.fed if problem.extension.chunks else self.whole)(problem, device)


def with_cache(made: Implementation, call: ShippedCall) -> Implementation:
    """The implementation with the claims of its interface's cache, if there is one."""
    start = call.interface.start
    if (
        start is None
        or UNFED & call.shipped.needs
        or not call.shipped.names >= APPENDED
        or Feature.CAUSAL not in made.claims
    ):
        return made
    from attention_conformance.implementations.adapters.cached import cached

    features = made.claims.features | {Feature.CACHE, Feature.STATIC_CACHE}
    run = WithCache(made.run, cached(start(call.shipped)))
    return replace(made, run=run, claims=replace(made.claims, features=features))


def tokens_first(x: Any) -> Any:
    """(B, H, L, d) as (B, L, H, d), contiguous where it was so before, as callers of such a function have it."""
    swapped = x.swapaxes(1, 2)
    return swapped.contiguous() if torch and isinstance(x, torch.Tensor) and x.is_contiguous() else swapped


def called_tokens_first(
    shipped: Shipped, given: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """The answer to inputs (B, H, L, d) of a function that takes and gives (B, L, H, d), and what is returned after it.

    What it writes into its inputs is written into the given ones.
    """
    passed = [tokens_first(x) for x in given]
    output, extras = first(shipped.function(*passed, **keywords))
    _write_back(given, passed)
    return output.swapaxes(1, 2), extras


def _write_back(given: Iterable[Any], passed: Iterable[Any]) -> None:
    """Writes into the caller's tensors what a function has written into the copies that it was passed.

    Arrays of other kinds are passed as views, or cannot be written into.
    """
    with torch.no_grad():
        for own, copy in zip(given, passed, strict=True):
            if not isinstance(own, torch.Tensor):
                continue
            if own.data_ptr() != copy.data_ptr() and not torch.equal(own.swapaxes(1, 2), copy):
                own.data.copy_(copy.swapaxes(1, 2))


def first(answer: Any) -> tuple[Any, tuple[Any, ...]]:
    """The output, and what is returned after it."""
    return (answer[0], tuple(answer[1:])) if isinstance(answer, tuple | list) else (answer, ())


def joined(output: Any, *extras: Any) -> Any:
    """The output alone, or a tuple that begins with it."""
    return (output, *extras) if extras else output
