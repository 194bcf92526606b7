"""Serving kernels recognised: by the families of their names, and by calls that show how their arrays lie.

A storage may be right where each component is answered for itself, and twice the values are twice the output; of
several it is that in which samples, heads, queries and keys have the effects of these. No right answer is known here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import jax_array
from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always import SAME
from attention_conformance.implementations.discovery.claim_checks import PROBED
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.block_sizes import OF_PATTERNS
from attention_conformance.implementations.discovery.functions.calls import IS_KIND, KINDS
from attention_conformance.implementations.discovery.functions.given_sizes import counts
from attention_conformance.implementations.discovery.functions.inputs_first import InputsFirst
from attention_conformance.implementations.discovery.functions.libraries import kinds_for
from attention_conformance.implementations.discovery.functions.served import Request, Served
from attention_conformance.implementations.discovery.functions.serving_names import (
    OF_KEYS,
    Part,
    inputs_in,
    parts_of,
    reads_cache,
    serves,
    words_in,
)
from attention_conformance.implementations.discovery.functions.stored_axes import OP, Storage, extents
from attention_conformance.implementations.discovery.probe import HALF, Floats, near, shape_of, wide
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES
from attention_conformance.spec.problem import DTYPES

WIDE = 64
"""The width of the larger probes."""
FEW = 3
"""Groups of probes that are tried at least: another size may show a better storage."""
MOST = 5
"""Points of what behaves as attention in every respect."""
BOTH = ("BLHD", "BHLD")
PACKED = ("THD", "HTD")
SINGLE = ("BHD", "B1HD", "BH1D", "BE")
OF_PAGES, OF_TOKENS = ("PSHD", "PHSD", "HPSD"), ("NHD", "HND")
UNLIKE_PAGES = (("PHCSX", "PHDS"), ("PHDS", "PHSD"), ("PHDS", "PHDS"), ("PHCSX", "PHSD"), ("PHSD", "PHDS"))
"""Of keys and of values, where the places of a page lie last: a token of it is read across the widths."""
OUTPUTS = ("BLHD", "BHLD", "BLE", "THD", "HTD", "TE", "BHD", "B1HD", "BH1D", "BE")
LOGS = ("BHL", "BLH", "HT", "TH", "BH")
INTEGERS = ("int32", "int64", "list")
OF_PARTS, SIZES = {"partition", "part", "split", "chunk", "tile"}, {"size", "len", "length", "tokens"}
"""Words in the names of how many keys are answered apart and merged."""
PAGE_SIZES = (1, 4, 8, 16, 64, 128, 256)
PLACES = {Part.PAIR: "2", Part.TRIPLE: "3"}


@dataclass(frozen=True)
class Sizes:
    """Of a probe: samples, heads, key heads, queries where there may be several, keys, width and tokens of a page."""

    batch: int = 2
    heads: int = 6
    key_heads: int = 3
    queries: int = 5
    keys: int = 8
    width: int = 16
    page: int = 4


OF_PROBES = (Sizes(), Sizes(key_heads=6), Sizes(2, 4, 2, 16, 32, 64, 16), Sizes(2, 4, 4, 16, 32, 64, 16))
"""With fewer key heads and with as many, small ones and such as kernels take that want multiples of 16."""


@dataclass(frozen=True)
class Probe:
    """A kernel in one storage, and the arrays with which it is called.

    Attributes:
        served: the kernel.
        framework, dtype: of its arrays.
    """

    served: Served
    sizes: Sizes
    framework: str
    dtype: str
    device: str

    def arrays(self, queries: int = 0) -> tuple[Floats, Floats, Floats]:
        """Query, key and value; as many queries as keys where these have the same documents."""
        s, rng = self.sizes, np.random.default_rng(6)
        alike = {Part.ENDS, Part.SEGMENTS, Part.TRIPLE} & {*self.served.parts.values()}
        length = 1 if self.served.storage.single else queries or (s.keys if alike else s.queries)
        query = rng.standard_normal((s.batch, s.heads, length, s.width)) / 2
        key, value = rng.standard_normal((2, s.batch, s.key_heads, s.keys, s.width))
        return query, key, value

    def output(self, *arrays: Floats, **options: Any) -> Floats | None:
        """Its output (B, H, Lq, d), if it is a finite one."""
        answer = safe_call(lambda: self.served(*map(self._native, arrays), **{**self._usual, **options})).value
        first = answer[0] if isinstance(answer, tuple) else answer
        made: Floats | None = safe_call(partial(wide, first)).value if IS_KIND[self.framework](first) else None
        return made if made is not None and np.isfinite(made).all() else None

    @property
    def _usual(self) -> dict[str, Any]:
        """The tokens of a page, and no causal mask where there is a flag."""
        paged = {"page_size": self.sizes.page} if self.served.paged else {}
        return paged | ({"causal": False} if "causal" in self.served.passed else {})

    def _native(self, array: Floats) -> Any:
        typed = array.astype(DTYPES[self.dtype])
        if self.framework == "torch":
            return to_tensor(typed).to(self.device)
        return jax_array(typed) if self.framework == "jax" else typed

    def as_answered(self) -> Probe | None:
        """The same with the axes in which it answers, by the shape of a first answer; None where it has none."""
        query, key, value = self.arrays()
        given = (self._native(query), self._native(key), self._native(value))
        request = Request(self.served, *given, self._usual)
        answer = safe_call(lambda: self.served.answer(request)).value
        output, *others = answer if isinstance(answer, tuple | list) and answer else (answer,)
        if not IS_KIND[self.framework](output):
            return None
        sizes = dict(zip(OP, query.shape, strict=True))
        axes, logs = (_axes_of(x, among, sizes) for x, among in ((output, OUTPUTS), ([*others, None][0], LOGS)))
        storage = replace(self.served.storage, output=axes, logs=logs)
        return replace(self, served=replace(self.served, storage=storage)) if axes else None

    def points(self) -> int:
        """How much it behaves as attention in this storage; 0 where it does not at all."""
        arrays = self.arrays()
        if (plain := self.output(*arrays)) is None:
            return 0
        changed = partial(self._changed, plain, arrays)
        doubled = self.output(*arrays[:2], 2.0 * arrays[2])
        linear = doubled is not None and near(doubled, 2.0 * plain, self.dtype)
        if not linear or not _only_first(changed(2, ..., 0), 3):
            return 0
        head, last = changed(2, slice(None), 0), changed(2, ..., -1, slice(None))
        share = self.sizes.heads // self.sizes.key_heads
        of_heads = head is not None and int(head.any((0, 2, 3)).sum()) == share
        of_last = last is not None and bool(last.any((1, 2, 3)).all())
        alone = _only_first(changed(2, 0), 0), _only_first(changed(0, ..., 0, slice(None)), 2)
        return 1 + of_heads + of_last + sum(alone)

    def _changed(self, plain: Floats, arrays: tuple[Floats, ...], number: int, *at: Any) -> Any:
        """Where the answer changes with a part of an array."""
        other = [array.copy() for array in arrays]
        other[number][at] *= -1.0
        output = self.output(*other)
        return None if output is None else np.abs(output - plain) > SAME.get(self.dtype, HALF) * (1.0 + np.abs(plain))


def _axes_of(x: Any, among: Iterable[str], sizes: Mapping[str, int]) -> str:
    shape = [*getattr(x, "shape", ())]
    return next((axes for axes in among if extents(axes, sizes) == shape), "")


def _only_first(changed: Any, axis: int) -> bool:
    """Whether the first slice along an axis changes, and no other."""
    return changed is not None and bool(changed.any()) and not bool(np.delete(changed, 0, axis).any())


def served(function: Callable[..., Any], device: str, by_name: bool) -> Served | None:
    """The function as a serving kernel; None where it is none, or no call shows how.

    Args:
        function: any function.
        device: where it runs.
        by_name: whether its names alone have to state that it is one.
    """
    function = function.function if isinstance(function, InputsFirst) else function
    signature = safe_call(lambda: signature_of(function)).value
    parts = parts_of(signature.parameters.values()) if signature else {}
    if signature is None or not inputs_in(parts) or (by_name and not serves(parts)):
        return None
    if _is_whole(signature, parts):
        return None
    left = [p.name for p in signature.parameters.values() if required(p) and p.name not in parts]
    unknown = [name for name in left if name not in KNOWN_NAMES]
    inputs_alone = not {*parts.values()} - {*inputs_in(parts)}
    if (by_name and inputs_alone) or not all(map(counts, unknown)):
        return None
    sizes = [dict(zip(unknown, each, strict=True)) for each in product(*map(counts, unknown))]
    appending = any(part is Part.NEW_KEY and required(signature.parameters[name]) for name, part in parts.items())
    made = partial(Served, function, parts, appending=appending)
    several = [made(sizes=own, storage=storage) for own, storage in product(sizes, storages(parts))]
    found = _best(several, device)
    if found is None or (not by_name and found.served.storage.single and _answers_several(function)):
        return None
    return _completed(found)


def _answers_several(function: Callable[..., Any]) -> bool:
    """Whether it answers as many queries as keys: judged by single ones, it would be right whatever those get."""
    several = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    arrays = (to_array_of(several) for to_array_of in (np.copy, to_tensor))
    return any(shape_of(safe_call(partial(function, x, x, x)).value) == several.shape for x in arrays)


def _is_whole(signature: inspect.Signature, parts: Mapping[str, Part]) -> bool:
    """Whether it takes all keys, and a cache next to them only where there is one."""
    needed = {part: required(signature.parameters[name]) for name, part in parts.items()}
    return needed.get(Part.NEW_KEY, False) and not any(needed.get(part) for part in (Part.KEY, Part.PAIR))


def _best(several: Iterable[Served], device: str) -> Probe | None:
    """The kernel in the storage in which it behaves as attention the most."""
    best, points = None, 0
    for number, group in enumerate(_groups([*several], device)):
        for each in group:
            probe = each.as_answered()
            if probe and (seen := probe.points()) > points:
                best, points = probe, seen
            if points == MOST:
                return best
        if points == MOST - 1 and number >= FEW:
            break
    return best


def _groups(several: Sequence[Served], device: str) -> Iterator[list[Probe]]:
    """The probes with one kind of arrays and one size, the likelier first."""
    kinds = kinds_for(several[0].kernel, KINDS) if several else []
    usual = [each for each in several if each.storage.integers == INTEGERS[0]]
    for dtype, kind in product(PROBED, kinds):
        for sizes in OF_PROBES if kind == "torch" or dtype == PROBED[0] else ():
            taken = several if kind == "torch" and sizes.width < WIDE else usual
            yield [Probe(each, sizes, kind, dtype, device) for each in taken]


def storages(parts: Mapping[str, Part]) -> Iterator[Storage]:
    """How a kernel with these parameters may have its arrays, the likelier first."""
    kinds = {*parts.values()}
    paged, packed = bool({Part.TABLE, Part.PAGES} & kinds), bool({Part.ENDS, Part.QUERY_ENDS} & kinds)
    ragged = not paged and bool({Part.ENDS, Part.KEY_ENDS} & kinds)
    each_token = Part.PAGES in kinds and not {Part.LAST_PAGE, Part.PAGE_SIZE, Part.LENGTHS} & kinds
    keys = OF_TOKENS if each_token else OF_PAGES if paged else PACKED if ragged else BOTH
    place = next((digit for part, digit in PLACES.items() if part in kinds), "")
    placed = [axes[:at] + place + axes[at:] for axes in keys for at in range(len(axes))] if place else keys
    queries = PACKED if packed else (*BOTH, *SINGLE)
    for integers, query, key in product(INTEGERS, queries, placed):
        if place != PLACES[Part.TRIPLE] or key.replace(place, "") == query:
            yield Storage(query, key, integers=integers)
    across = UNLIKE_PAGES if keys is OF_PAGES and not place else ()
    for integers, query, (key, values) in product(INTEGERS, queries, across):
        yield Storage(query, key, integers=integers, values=values)


def _completed(found: Probe) -> Served:
    """The kernel with the pages that it takes, small parts of keys, and whether its queries stand at the end."""
    made = replace(found.served, at_end=reads_cache(found.served.parts) or _stands_at_end(found))
    for size in PAGE_SIZES if made.paged else ():
        if _takes_pages(found, size):
            made = replace(made, storage=replace(made.storage, pages=size))
            break
    names = _partitions(made)
    if len(names) != 1:
        return made
    parted = replace(found, served=replace(made, partition=names[0], parted=True))
    taken = all(_takes_pages(parted, count * made.storage.pages) for count in (1, 3))
    return replace(made, partition=names[0]) if taken else made


def _takes_pages(found: Probe, size: int) -> bool:
    """Whether it answers with pages of so many tokens."""
    several = replace(found, sizes=replace(found.sizes, page=size, keys=size * (2 if size > 1 else 5)))
    return several.output(*several.arrays()) is not None


def _partitions(made: Served) -> list[str]:
    """Its parameters that count the keys of a part by their names and defaults, where parts are no pattern of keys."""
    numbers = [p.name for p in made.own.parameters.values() if type(p.default) is int and p.default > 1]
    words = {name: words_in(name) for name in numbers if name not in {*made.parts, *made.sizes, *made.passed.values()}}
    if not words or OF_PATTERNS.search(code_of(as_written(made.kernel))):
        return []
    return [name for name, own in words.items() if own & OF_PARTS and own <= OF_PARTS | SIZES | OF_KEYS]


def _stands_at_end(found: Probe) -> bool:
    """Whether its first query, causal by a flag or always, sees keys up to the one at its place, and no more."""
    if found.served.storage.single:
        return False
    flag = {"causal": True} if "causal" in found.served.passed else {}
    arrays = found.arrays()
    if (plain := found.output(*arrays, **flag)) is None or (ahead := found.sizes.keys - plain.shape[2]) < 1:
        return False
    seen = []
    for key in (ahead, ahead + 1):
        other = arrays[2].copy()
        other[:, :, key] *= -1.0
        output = found.output(*arrays[:2], other, **flag)
        seen.append(output is not None and not near(output[:, :, 0], plain[:, :, 0], found.dtype))
    return seen == [True, False]
