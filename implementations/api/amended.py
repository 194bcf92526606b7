"""Claims that the caller adds to those of an implementation, or takes from them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches

from attention_conformance.implementations.api.contract import FUNCTIONS, MODES, Implementation
from attention_conformance.spec.features import Feature

WITH_RUNS = MODES | {Feature.ALTERNATIVES, *FUNCTIONS.values()}
"""Features that need a run or a function of their own, which an adapter has to bring."""


@dataclass(frozen=True)
class Amendments:
    """What the caller states of an implementation in addition to what it claims itself.

    Attributes:
        claim: names of features.
        without: the same, or names in `Implementation.findings`.
        premises: as `Premises.assuming` takes them.
    """

    claim: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    premises: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.claim or self.without or self.premises)

    def options(self) -> list[str]:
        """As options of the command line."""
        named = {"--claim": self.claim, "--without": self.without, "--premise": self.premises}
        return [word for option, values in named.items() for value in values for word in (option, value)]

    def of(self, implementation: Implementation) -> Implementation:
        """The implementation with these claims.

        Raises:
            ValueError: a feature or premise that does not exist, or that cannot be claimed or left out.
        """
        if not self:
            return implementation
        findings = {name: why for name, why in implementation.findings.items() if name not in self.without}
        known = {name for name in implementation.findings if name not in list(Feature)}
        claimed, left_out = set(_features(self.claim)), set(_features(n for n in self.without if n not in known))
        if Feature.CORE in left_out:
            raise ValueError(f"{Feature.CORE} cannot be left out: every implementation claims it")
        if lacking := sorted((claimed & WITH_RUNS) - implementation.claims.features):
            raise ValueError(f"{lacking[0]} needs a run of its own, which an adapter brings: see docs/adapter.md")
        claims = implementation.claims
        return replace(
            implementation,
            claims=replace(
                claims,
                features=(claims.features | claimed) - left_out,
                premises=claims.premises.assuming(self.premises),
            ),
            findings=findings,
            modes={mode: run for mode, run in implementation.modes.items() if mode not in left_out},
            alternatives={} if Feature.ALTERNATIVES in left_out else implementation.alternatives,
            functions={n: f for n, f in implementation.functions.items() if FUNCTIONS[n] not in left_out},
        )


AS_CLAIMED = Amendments()
"""None."""


def _features(names: Iterable[str]) -> Iterable[Feature]:
    for name in names:
        if name not in list(Feature):
            near = get_close_matches(name, list(Feature), 1)
            meant = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(Feature)}"
            raise ValueError(f"no feature is named {name!r}; {meant}")
        yield Feature(name)
