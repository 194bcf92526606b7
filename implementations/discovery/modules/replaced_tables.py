"""Tables of biases in whose place a bias that is given is used: T5 hands that of its first layer to the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import AsBuilt, Call, drawn, in_new_mode
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import said_of
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.bias_tables import Build, is_of_biases
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array, Problem

PUBLISHED = ("position_bias", "relative_attention_bias.weight")
"""The names of T5's bias and of its table."""
REPLACED = re.compile(r"\b(?:replac\w+|instead|in (?:the )?place of|in its place|overrid\w+)\b", re.IGNORECASE)
"""Words for a bias that is used in the place of a module's own."""


@dataclass(frozen=True)
class DrawnBias:
    """Numbers of each head, query and key, in a form."""

    form: MaskForm

    def given(self, query: torch.Tensor, key: torch.Tensor, heads: int) -> torch.Tensor:
        """Them for queries and keys (B, L, E)."""
        shape = len(query), heads, query.shape[1], key.shape[1]
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(query)
        of_form = {
            MaskForm.ONE_SAMPLE: whole[:1],
            MaskForm.HEADS: whole[0],
            MaskForm.SAMPLE: whole[:, 0],
            MaskForm.SHARED: whole[0, 0],
            MaskForm.FLAT: whole.flatten(0, 1),
        }
        return of_form.get(self.form, whole)


@dataclass(frozen=True, eq=False)
class InPlaceOfTable:
    """A module that is given a bias, whose own table then changes nothing.

    Attributes:
        path: of the table.
    """

    build: Build
    call: Call
    path: str

    def __call__(self, problem: Problem, device: str) -> Result:
        """Its output without numbers in the table; its `others` are that with some."""
        module = drawn(in_mode(built(self.build, problem, device), False))
        with_table = self._output(module, problem, device)
        with torch.no_grad():
            module.get_parameter(self.path).zero_()
        without = self._output(in_new_mode(module), problem, device)
        return Result(without, others={"with the given bias in the place of its own table": Result(with_table)})

    def _output(self, module: nn.Module, problem: Problem, device: str) -> Array:
        with torch.no_grad():
            return to_array(output_of(self.call(module, tensors(problem, device), problem)))


def with_replaced_tables(
    modes: Modes, make: Constructor, call: ModuleCall, biases: Mapping[str, MaskForm], problem: Problem | None
) -> Modes:
    """The modes with what its biases are given for, where names or documentation state that they replace its tables."""
    run = modes.get(Feature.AS_BUILT)
    if not isinstance(run, AsBuilt) or problem is None:
        return modes
    found = {how: each for how, each in _runs(make, call, biases) if not safe_call(partial(each, problem, "cpu")).error}
    return {**modes, Feature.AS_BUILT: replace(run, otherwise={**run.otherwise, **found})}


def _runs(make: Constructor, call: ModuleCall, biases: Mapping[str, MaskForm]) -> Iterator[tuple[str, InPlaceOfTable]]:
    whole = replace(make, left_out=(), held={}, norms=None)
    alone = replace(call, tap="").alone_with_itself()
    for name, form in biases.items():
        stated = any(map(REPLACED.search, said_of(make.kind, name)))
        given = Chosen(replace(alone, tables={**alone.tables, name: DrawnBias(form)}), ())
        for path in filter(is_of_biases, make.held):
            if stated or (name == PUBLISHED[0] and path.endswith(PUBLISHED[1])):
                yield f"given {name!r}", InPlaceOfTable(partial(built_for, whole, True), given, path)
