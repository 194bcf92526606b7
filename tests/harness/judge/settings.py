"""The record of how a run was started: what its judges use, and what a command has to repeat."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from attention_conformance.implementations.api.amended import AS_CLAIMED, Amendments
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.worker.limits import CALL
from attention_conformance.implementations.worker.remote import commanded_candidate, isolated_candidate
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.tiers import tier_of


@dataclass(frozen=True)
class RunSettings:
    """What a run was started with; an empty tuple selects everything.

    Attributes:
        candidates: targets such as FILE.py:NAME.
        commands: command lines that start candidates, each a worker of its own.
        python: the interpreter of the environment in which targets are loaded; empty: this one.
        implementations, clauses: patterns of names.
        conventions: what the candidates claim, by key.
        report: the folder of the report, if there is one.
        amendments: what they claim in addition, or not.
        expected: the file of expected failures; None looks in the folder of each candidate.
        propose: whether entries for such a file are printed.
        isolated: whether each candidate is called in a process of its own.
        deadline: seconds for a small call there.
        memory: bytes that each may allocate there; None: half of what is free.
        budget: seconds for the whole run; None: as long as it takes.
        shard: which part of the run is checked, such as "2/4"; empty: all of it.
        first_screen: whether one screen is printed in place of pytest's output, and telling clauses are checked first.
    """

    candidates: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    python: str = ""
    implementations: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    conventions: Mapping[str, str] = field(default_factory=dict)
    amendments: Amendments = AS_CLAIMED
    device: str = "cpu"
    tier: str = "quick"  # as `tier_of` reads it
    report: Path | None = None
    expected: Path | None = None
    propose: bool = False
    isolated: bool = True
    deadline: float = CALL
    memory: int | None = None
    budget: float | None = None
    shard: str = ""
    first_screen: bool = False

    @property
    def all_builtin(self) -> bool:
        """Whether every built-in implementation is selected."""
        return not self.has_candidates and not self.implementations

    @property
    def has_candidates(self) -> bool:
        """Whether candidates are judged, and nothing that is built in."""
        return bool(self.candidates or self.commands)

    def loader(self) -> Callable[[str], Implementation]:
        """What makes an implementation of a target; see `discovery.candidates.candidate` for what it raises."""
        if self.isolated:
            return partial(
                isolated_candidate,
                settings=self.conventions,
                device=self.device,
                deadline=self.deadline,
                python=self.python,
                memory=self.memory,
                premises=self.amendments.premises,
            )
        premises = self.amendments.premises
        return partial(candidate, settings=self.conventions, device=self.device, premises=premises, in_part=True)

    def commanded(self, command: str) -> Implementation:
        """The candidate that a command line starts; see `commanded_candidate` for what is raised."""
        return commanded_candidate(command, self.conventions, self.device, self.deadline, self.memory)

    def judge(self, implementation: Implementation, dtype: str, until: float | None = None) -> Judge:
        """A new judge of an implementation; see `Judge` for `until`."""
        return Judge(implementation, dtype, self.device, tier_of(self.tier), until=until, selected=self.dtypes)
