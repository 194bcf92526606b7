"""Tables of biases that are learned for distances: which row a pair of tokens reads, seen in the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, Call, drawn, in_new_mode
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.built_otherwise import options_left_out, with_options
from attention_conformance.implementations.discovery.modules.constructor_names import Size
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.problem import Array, Problem

COUNTS, DISTANCES = (
    ("num_buckets", "relative_attention_num_buckets"),
    ("max_distance", "relative_attention_max_distance"),
)
"""Attributes of modules with the buckets of T5, by the names that they have there."""
ONE_SIDED, BOTH_SIDED = ("is_decoder", "causal", "is_causal"), ("bidirectional",)
"""Attributes that state whether all buckets are of keys before the query; a mask may hide later ones elsewhere."""
LONGEST, MOST_BUCKETS = 140, 64
"""Tokens, and rows of a table, that are looked at."""
RAISED = 4.0
"""By how much the biases of one row are raised, so that its keys have most of the weight."""
SIDES = (2, 8)
"""Rows and columns of a window: one that is square does not show which of both a table is counted by."""
LEAST_BUCKETS = 3
"""Fewer than these have none for single distances on each side."""
Build = Callable[[Problem], nn.Module]
Numbers: TypeAlias = tuple[int, int]
"""Of buckets, and the distance from which on all keys share one."""
Otherwise: TypeAlias = tuple[str, Constructor, Numbers, bool | None]
"""A text, the class as it is built otherwise, its numbers, and whether its buckets are of one side, where known."""


@dataclass(frozen=True, eq=False)
class Tables:
    """A module with a table of biases, as it is built for a problem, and as it is called.

    Attributes:
        path: of the table, whose first axis are its rows.
    """

    build: Build
    call: Call
    path: str

    def answers(self, problem: Problem, device: str) -> Iterator[Array]:
        """The output, and then that with the biases of each row raised, in a new mode: some keep biases in theirs."""
        module = drawn(in_mode(built(self.build, problem, device), False))
        table = module.get_parameter(self.path)
        with torch.no_grad():
            yield self._output(module, problem, device)
            for row in table:
                before = row.clone()
                row += RAISED
                yield self._output(in_new_mode(module), problem, device)
                row.copy_(before)

    def _output(self, module: nn.Module, problem: Problem, device: str) -> Array:
        return to_array(output_of(self.call(module, tensors(problem, device), problem)))


@dataclass(frozen=True, eq=False)
class BucketRows:
    """Which rows of a table of T5's buckets the last query reads for keys before it, and the first for those after it.

    All tokens are alike but one, whose weight rises where the row that its pair reads is raised, and nowhere else.

    Attributes:
        tables: the module.
        count: rows of the table.
        longest: the distance from which on all keys share a row.
        one_sided: whether all rows are of keys before the query, as the module states; None: it states nothing.
    """

    tables: Tables
    count: int
    longest: int
    one_sided: bool | None = None

    def __call__(self, problem: Problem, device: str) -> Result:
        """The rows of equation 33.1, (1, pairs, 1); its `others` are those that are read."""
        tokens = min(self.longest + 4, LONGEST)
        far = sorted({*range(1, 4), *(int(1.3**n) for n in range(5, 20)), tokens - 1})
        pairs = [(tokens - 1, tokens - 1 - d) for d in far if d < tokens] + [(0, d) for d in far if d < tokens]
        draw = np.random.default_rng(3)
        usual, other = draw.standard_normal((2, problem.query.shape[-1]))
        x = np.tile(usual, (len(pairs) + 1, tokens, 1))
        for sample, (_, key) in enumerate(pairs):
            x[sample, key] = other
        arrays = {name: x.astype(problem.query.dtype) for name in INPUTS}
        moved = [_sizes(each, pairs) for each in self.tables.answers(problem.with_arrays(arrays), device)]
        first, raised = moved[0], np.array(moved[1:])
        causal = not (first[len(pairs) // 2 :] > ROUNDINGS * first.max()).any()
        one_sided = causal or bool(self.one_sided)
        chosen = [
            n for n, pair in enumerate(pairs) if not (one_sided and pair[0] == 0) and self._is_sure(pair, one_sided)
        ]
        expected = [self._row(pairs[n], one_sided) for n in chosen]
        read = [int(raised[:, n].argmax()) for n in chosen]
        whole, seen = (np.array(rows, np.float64)[None, :, None] for rows in (expected, read))
        return Result(whole, others={"of T5's buckets": Result(seen)})

    def _place(self, distance: int, one_sided: bool) -> tuple[int, float]:
        """How many buckets are of one distance each, and where among the others a distance is."""
        count = self.count if one_sided else self.count // 2
        exact = count // 2
        if distance < exact:
            return exact, 0.0
        return exact, (count - exact) * math.log(distance / exact) / math.log(self.longest / exact)

    def _is_sure(self, pair: tuple[int, int], one_sided: bool) -> bool:
        """Whether no rounding decides between two buckets."""
        place = self._place(abs(pair[0] - pair[1]), one_sided)[1]
        return place == 0.0 or abs(place - round(place)) > ROUNDINGS**0.5

    def _row(self, pair: tuple[int, int], one_sided: bool) -> int:
        distance, count = abs(pair[0] - pair[1]), self.count if one_sided else self.count // 2
        exact, place = self._place(distance, one_sided)
        row = distance if distance < exact else min(exact + int(place), count - 1)
        return row if one_sided or pair[1] < pair[0] else row + count


def _sizes(output: Array, pairs: list[tuple[int, int]]) -> Array:
    """How far each pair's query is from where it is without another token; the last sample has none."""
    rows = [output[sample, query] - output[-1, query] for sample, (query, _) in enumerate(pairs)]
    return np.asarray(np.linalg.norm(rows, axis=-1))


@dataclass(frozen=True, eq=False)
class WindowRows:
    """For each row of a table of a window's offsets, which queries read it: those with a key at one offset."""

    tables: Tables

    def __call__(self, problem: Problem, device: str) -> Result:
        """The queries of each offset, (1, rows, tokens), sorted; its `others` are those that are seen."""
        down, along = SIDES
        places = [(y, x) for y in range(down) for x in range(along)]
        offsets = [(y, x) for y in range(1 - down, down) for x in range(1 - along, along)]
        expected = [[0 <= p + y < down and 0 <= q + x < along for p, q in places] for y, x in offsets]
        x = np.random.default_rng(4).standard_normal((1, len(places), problem.query.shape[-1]))
        given = problem.with_arrays({name: x.astype(problem.query.dtype) for name in INPUTS})
        first, *raised = self.tables.answers(given, device)
        most = ROUNDINGS * np.abs(first).max()
        seen = [(np.abs(each - first) > most).any((0, 2)).tolist() for each in raised]
        whole, read = (np.array(sorted(rows), np.float64)[None] for rows in (expected, seen))
        return Result(whole, others={"of offsets in a window": Result(read)})


def tables_of(make: Constructor, module: nn.Module, call: Call) -> Mapping[str, BucketRows | WindowRows]:
    """What of a module's tables can be looked at, by a text for messages; `module` is one of its instances."""
    found: dict[str, BucketRows | WindowRows] = {}
    for owner in module.modules():
        count, longest = (_number(owner, names) for names in (COUNTS, DISTANCES))
        usual = _buckets(make, call, count, longest, _one_sided(owner))
        found |= usual
        otherwise = [*_with_other_numbers(make, count, longest), *_with_other_sides(make, count, longest)]
        for how, other, numbers, sides in otherwise if usual else ():
            others = _buckets(other, call, *numbers, _one_sided(owner) if sides is None else sides)
            found |= {f"{how}, {text}": each for text, each in others.items()}
    if make.window in (Size.WINDOW, Size.WINDOW_SIDES):
        name = next(name for name, size in make.sizes.items() if size is make.window)
        sizes = {other: size for other, size in make.sizes.items() if other != name}
        oblong = replace(make, sizes=sizes, options={**make.options, name: SIDES}, tokens=math.prod(SIDES))
        tables = partial(Tables, partial(built_for, oblong, True), call)
        count = math.prod(2 * side - 1 for side in SIDES)
        paths = [
            path
            for path, p in oblong(oblong.width, oblong.heads).named_parameters()
            if len(p) == count and is_of_biases(path)
        ]
        found |= {f"the rows of {path}": WindowRows(tables(path)) for path in paths}
    return found


def _buckets(make: Constructor, call: Call, count: int, longest: int, one_sided: bool | None) -> dict[str, BucketRows]:
    """The tables of so many buckets, by a text."""
    if not (0 < count <= MOST_BUCKETS and longest > count // 2):
        return {}
    module = safe_call(partial(make, make.width, make.heads)).value
    parameters = module.named_parameters() if module is not None else ()
    paths = [path for path, p in parameters if len(p) == count and is_of_biases(path)]
    tables = partial(Tables, partial(built_for, make, True), call)
    return {f"the rows of {path}": BucketRows(tables(path), count, longest, one_sided) for path in paths}


def _with_other_sides(make: Constructor, count: int, longest: int) -> Iterator[Otherwise]:
    """The class as it is built with the flag that states whether all buckets are of keys before the query."""
    options = options_left_out(make)
    names = BOTH_SIDED if any(option.name in BOTH_SIDED for option in options) else ONE_SIDED
    for option in options:
        if option.name in names and isinstance(option.default, bool):
            other, one_sided = not option.default, option.default is (option.name in BOTH_SIDED)
            made = with_options(make, {option.name: other})
            yield f"built with {option.name}={other}", made, (count, longest), one_sided


def _with_other_numbers(make: Constructor, count: int, longest: int) -> Iterator[Otherwise]:
    """The class as it is built with another number of buckets, or largest distance, than these; by a text."""
    for name in dict.fromkeys((*(option.name for option in options_left_out(make)), *make.options)):
        numbers = count, longest
        if name.endswith(COUNTS):
            numbers = _other(count, LEAST_BUCKETS), longest
        if name.endswith(DISTANCES):
            numbers = count, _other(longest, count)
        if numbers != (count, longest):
            number = numbers[not name.endswith(COUNTS)]
            yield f"built with {name}={number}", with_options(make, {name: number}), numbers, None


def _other(number: int, least: int) -> int:
    """Half of it, or twice if that would be too few."""
    return number // 2 if number // 2 > least else 2 * number


def _one_sided(owner: nn.Module) -> bool | None:
    """Whether a module states that it reads distances to keys before the query alone."""
    for names, meant in ((BOTH_SIDED, False), (ONE_SIDED, True)):
        stated = next((value for name in names if isinstance(value := getattr(owner, name, None), bool)), None)
        if stated is not None:
            return stated is meant
    return None


def _number(owner: nn.Module, names: Collection[str]) -> int:
    """What the module has by one of these names, or an object of settings that it keeps; 0 if nothing has."""
    kept = (each for each in vars(owner).values() if not isinstance(each, nn.Module | torch.Tensor))
    found = (safe_call(partial(getattr, each, name, 0)).value for each in (owner, *kept) for name in names)
    return next((number for number in found if isinstance(number, int) and number), 0)


def is_of_biases(path: str) -> bool:
    """Whether a parameter is a table of biases of relative positions by its name."""
    words = words_of(path.replace(".", "_"))
    return bool(words & {"relative", "rel"}) and bool(words & {"bias", "table", "embedding"})
