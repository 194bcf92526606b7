"""Functions in other layouts: called with (B, H, L, d) through the layout and the arguments that their answers show."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.implementations.api.contract import Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import answer, repeatable, safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, PROBED
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.calls import (
    KINDS,
    UNSURE,
    FunctionCall,
    find_call,
    named_call,
)
from attention_conformance.implementations.discovery.functions.libraries import kinds_for
from attention_conformance.implementations.discovery.functions.one_input import OneInput
from attention_conformance.implementations.discovery.functions.one_sample import stacked
from attention_conformance.implementations.discovery.functions.three_axes import OF_QUERY
from attention_conformance.implementations.discovery.probe import first_part, near, parts_of
from attention_conformance.implementations.discovery.signatures import is_variadic, signature_of
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import INPUTS, OPTIONS, counts_keys
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

OP = "BHLD"
AXES = re.compile(OF_QUERY + r"([^()]+)\)", re.IGNORECASE)
"""The axes of a query, in documentation."""
OF_TOKENS = {"l", "lq", "lx", "l_q", "t", "tq", "n", "nq", "n_q", "s", "sq", "seq_len", "seqlen", "tokens", "length"}
OF_COMPONENTS = {"d", "dk", "d_k", "dq", "dh", "d_head", "head_dim", "hd", "c", "e", "dim", "width", "channels"}
"""Names of the last two axes of a query, in lower case, where tokens are its columns."""
OF_HEADS = {"h", "nh", "hq", "n_h", "heads", "n_heads", "num_heads", "n_head"}
OF_SAMPLES = {"b", "bs", "bsz", "nb", "batch", "batch_size"}
MASKS = {name for option in ("bool_mask", "float_mask") for name in OPTIONS[option].parameters}
EXCHANGED = str.maketrans("BH", "HB")
LENGTHS = set(OPTIONS["valid_lens"].parameters)
GATES = {"gate_logits"}


@dataclass(frozen=True)
class LaidOut:
    """A function, given query, key and value as (B, H, L, d), and its answer in the same layout.

    Attributes:
        function: what is called.
        call: in which layout and order, and what else it is given.
        masks_of_samples: whether masks have an axis for B alone where inputs have B and H in one.
        keys_transposed: whether the last two axes of its keys come in the other order than those of its other inputs.
        key_mask: its name for a mask of keys, (B, Lk).
        keys_of_samples: whether that mask, too, has an axis for B alone where inputs have B and H in one.
    """

    function: Callable[..., Any]
    call: FunctionCall
    masks_of_samples: bool = False
    keys_transposed: bool = False
    key_mask: str = "key_padding_mask"
    keys_of_samples: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function).parameters.values()
        taken = {*self.call.inputs, *self.call.widths, self.call.heads}
        rest = [p for p in own if p.name not in taken and not is_variadic(p)]
        options = [p.replace(kind=p.KEYWORD_ONLY, default=self.call.always.get(p.name, p.default)) for p in rest]
        kwargs = [p for p in own if p.kind is p.VAR_KEYWORD]
        inputs = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in INPUTS]
        return inspect.Signature([*inputs, *options, *kwargs])

    @property
    def forms(self) -> tuple[LaidOut, ...]:
        """The ways in which it may take masks: one that is given the number of heads can repeat those of a sample."""
        repeats = self.call.heads and "N" in self.call.axes and MASKS & set(self.__signature__.parameters)
        return (self, replace(self, masks_of_samples=True)) if repeats else (self,)

    @property
    def by_head(self) -> bool:
        """Whether it takes one head of one sample."""
        return len(self.call.axes) == len("LD")

    @property
    def about(self) -> str:
        """What differs from the suite's own call, for a note."""
        letters = ", ".join({"N": "B * H", "E": "H * d", "D": "d"}.get(axis, axis) for axis in self.call.axes)
        layout = f"called in its own layout ({letters})" if self.call.axes != OP else ""
        layout += " with its keys transposed" if self.keys_transposed else ""
        order = "" if self.call.order == INPUTS else f"its inputs come as {', '.join(self.call.order)}"
        given = {**self.call.always, **dict.fromkeys(self.call.widths, "d_k")}
        values = ", ".join(f"{name}={value}" for name, value in given.items())
        own = self.function.about if isinstance(self.function, OneInput) else ""
        return "; ".join(note for note in (layout, order, f"called with {values}" if values else "", own) if note)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if self.by_head:
            return self._head_by_head((query, key, value), options)
        given = [self._into(x) for x in (query, key, value)]
        masks = {name: self._mask(options[name], query, key) for name in (MASKS - {self.key_mask}) & set(options)}
        masks |= {name: self._of_heads(options[name], query) for name in self._rows(options)}
        masks |= {name: self._gates(options[name], value.shape[3]) for name in GATES & set(options)}
        answered = self._answer(given, {**options, **masks}, query)
        several = isinstance(answered, tuple | list)
        output, *others = parts_of(answered)
        back = self._back(output, query, value)
        return (back, *(self._part(part, query) for part in others)) if several else back

    def _answer(self, given: list[Any], options: dict[str, Any], query: Any) -> Any:
        named = dict(zip(INPUTS, given, strict=True))
        if self.keys_transposed:
            named["key"] = named["key"].swapaxes(-1, -2)
        arguments = [named[name] for name in self.call.order]
        filled = {name: value for name, value in self.call.always.items() if options.get(name) is None}
        options = {**options, **filled, **dict.fromkeys(self.call.widths, query.shape[-1])}
        if self.call.heads:
            options[self.call.heads] = query.shape[1]
        if self.call.keyword:
            return self.function(**dict(zip(self.call.inputs, arguments, strict=True)), **options)
        return self.function(*arguments, **options)

    def _into(self, x: Any) -> Any:
        """(B, H, L, d) in its layout."""
        axes = _separate(self.call.axes)
        permuted = self._permuted(x, OP, axes)
        sizes = dict(zip(OP, x.shape, strict=True)) | {"N": x.shape[0] * x.shape[1], "E": x.shape[1] * x.shape[3]}
        return permuted if axes == self.call.axes else permuted.reshape([sizes[axis] for axis in self.call.axes])

    def _back(self, output: Any, query: Any, value: Any) -> Any:
        """Its output as (B, H, Lq, d_v)."""
        sizes = dict(zip(OP, (*query.shape[:3], value.shape[3]), strict=True))
        axes = _separate(self.call.output)
        output = output if axes == self.call.output else output.reshape([sizes[axis] for axis in axes])
        return self._permuted(output, axes, OP)

    def _permuted(self, x: Any, axes: str, order: str) -> Any:
        if axes == order:
            return x
        moved = [axes.index(axis) for axis in order]
        return x.permute(moved) if self.call.framework == "torch" else x.transpose(moved)

    def _mask(self, mask: Any, query: Any, key: Any) -> Any:
        """A mask for B and H in one, where it has these in one."""
        if self.masks_of_samples or "N" not in self.call.axes or not hasattr(mask, "shape"):
            return mask
        return self._whole(mask, query, key).reshape((-1, query.shape[2], key.shape[2]))

    def _rows(self, options: Iterable[str]) -> set[str]:
        """What has a row for each sample, and has to have one for each of its heads where B and H are in one."""
        of_keys = set() if self.keys_of_samples or self.masks_of_samples else {self.key_mask}
        return {name for name in options if name in LENGTHS | of_keys or counts_keys(name)}

    def _of_heads(self, rows: Any, query: Any) -> Any:
        """Lengths, or a mask of keys, for B and H in one, where it has these in one."""
        if "N" not in self.call.axes or not hasattr(rows, "shape"):
            return rows
        heads = query.shape[1]
        return rows.repeat_interleave(heads, 0) if self.call.framework == "torch" else rows.repeat(heads, 0)

    def _gates(self, gates: Any, width: int) -> Any:
        """Logits for the output, as it lies; of the whole width where it has heads and width in one."""
        if not hasattr(gates, "shape"):
            return gates
        shape = (*gates.shape[:3], width if "E" in self.call.output else gates.shape[3])
        whole = self._broadcast(gates, shape)
        sizes = dict(zip(OP, shape, strict=True)) | {"N": shape[0] * shape[1], "E": shape[1] * shape[3]}
        permuted = self._permuted(whole, OP, _separate(self.call.output))
        return permuted.reshape([sizes[axis] for axis in self.call.output])

    def _whole(self, mask: Any, query: Any, key: Any) -> Any:
        shape = (*query.shape[:3], key.shape[2])
        return self._broadcast(mask, shape)

    def _broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(shape) if self.call.framework == "torch" else library_of(x).broadcast_to(x, shape)

    def _part(self, part: Any, query: Any) -> Any:
        """Another part of the answer, with B and H apart."""
        shape = tuple(getattr(part, "shape", ()))
        together = "N" in self.call.axes and shape[:1] == (query.shape[0] * query.shape[1],)
        return part.reshape((*query.shape[:2], *shape[1:])) if together else part

    def cotangents(self, cotangent: Any) -> list[Any]:
        """One for the output, (B, H, Lq, d_v), as its answer lies, for each of its calls."""
        if self.by_head:
            return [self._transposed(cotangent[at], self.call.output) for at in np.ndindex(*cotangent.shape[:2])]
        return [self._gates(cotangent, cotangent.shape[3])]

    def gradients(self, found: list[Any], shape: tuple[int, ...], role: str) -> Any:
        """Those of the input of this role and shape, (B, H, L, d), out of those of each call."""
        if self.keys_transposed and role == "key":
            found = [each.swapaxes(-1, -2) for each in found]
        if self.by_head:
            return np.stack([self._transposed(each, self.call.axes) for each in found]).reshape(shape)
        sizes, axes = dict(zip(OP, shape, strict=True)), _separate(self.call.axes)
        return self._permuted(found[0].reshape([sizes[axis] for axis in axes]), axes, OP)

    @staticmethod
    def _transposed(x: Any, axes: str) -> Any:
        """One head (L, d) with tokens as columns where these are the axes, and back."""
        return x.swapaxes(0, 1) if axes == "DL" else x

    def _head_by_head(self, given: tuple[Any, Any, Any], options: dict[str, Any]) -> Any:
        query, key, value = given
        if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
            raise ValueError("query, key and value have different numbers of samples or heads")
        arrays = {name for name, each in options.items() if hasattr(each, "shape")}
        masks = {name: self._whole(options[name], query, key) for name in (MASKS - {self.key_mask}) & arrays}
        gates = {name: options[name] for name in GATES & arrays}
        rows = {name: options[name] for name in self._rows(arrays)}
        outputs = []
        for at in np.ndindex(*query.shape[:2]):
            own = {**options, **{name: each[at] for name, each in (masks | gates).items()}}
            own |= {name: each[at[0]] for name, each in rows.items()}
            output = first_part(self._answer([self._transposed(x[at], self.call.axes) for x in given], own, query))
            outputs.append(self._transposed(output, self.call.output))
        shape = (*query.shape[:3], value.shape[3])
        if outputs:
            return stacked(outputs).reshape(shape)
        return query.new_zeros(shape) if self.call.framework == "torch" else library_of(query).zeros(shape, query.dtype)


def attends_elsewhere(made: Implementation, device: str) -> bool:
    """Whether it answers in another layout, or attends along another axis.

    That is so where heads or components change each other, or each query sees the key at its place alone.
    """
    if made.claims.premises.window_left == made.claims.premises.window_right == 0:
        return True
    fitted = fit(PLAIN, made.claims)
    if isinstance(fitted, Unsupported):
        return False
    dtype = next((each for each in PROBED if each in made.claims.dtypes), PROBED[0])
    problem = build(fitted, dtype).forward_only()
    before = repeatable(partial(_answered, made, problem, device)).value
    if before is None:
        return False
    if before.output.shape != (*problem.query.shape[:3], problem.value.shape[3]):
        return True
    for first, others in ((np.s_[:, :1], np.s_[:, 1:]), (np.s_[..., :1], np.s_[..., 1:])):
        value = problem.value.copy()
        value[first] *= -1
        after = repeatable(partial(_answered, made, problem.but(value=value), device)).value
        if after is not None and not _alike(after.output[others], before.output[others], dtype):
            return True
    return False


def _answered(made: Implementation, problem: Problem, device: str) -> Result:
    return answer(made.run, problem.fresh(), device)


def _alike(one: Array, other: Array, dtype: str) -> bool:
    return near(np.asarray(one, float), np.asarray(other, float), dtype)


def _separate(axes: str) -> str:
    return axes.replace("N", "BH").replace("E", "HD")


def states_columns(written: object) -> bool:
    """Whether its documentation states that the tokens of a query lie along its last axis, behind its components."""
    shapes = _stated_axes(written)
    return any(len(axes) > 1 and axes[-1] in OF_TOKENS and axes[-2] in OF_COMPONENTS for axes in shapes)


def states_heads_first(written: object) -> bool:
    """Whether its documentation states that the first axis of a query are heads, and a later one samples."""
    return any(axes[0] in OF_HEADS and OF_SAMPLES & {*axes[1:]} for axes in _stated_axes(written))


def _stated_axes(written: object) -> list[list[str]]:
    """The shapes of a query in its documentation."""
    text = inspect.getdoc(written) or ""
    signature = safe_call(lambda: inspect.signature(written)).value  # type: ignore[arg-type]  # whatever it is
    first = next(iter(signature.parameters), "query") if signature is not None else "query"
    own = re.findall(rf"\b{re.escape(first)}\b[^()\n]{{0,40}}\(([^()]+)\)", text)
    return [re.split(r"[,\s]+", axes.strip().lower()) for axes in (*AXES.findall(text), *own)]


def _seen_or_named(function: Callable[..., Any], device: str, kinds: Iterable[str]) -> FunctionCall | None:
    """How it is called by what it answers, or else by the names and the documentation of its inputs."""
    with suppress(TargetError):
        call = find_call(function, device, kinds, completed=True)
        if UNSURE not in call.evidence:
            return call
    lengths_first = any(axes[0] in OF_TOKENS and len(axes) == 3 for axes in _stated_axes(as_written(function)))
    with suppress(TargetError):
        return named_call(function, device, "LBE" if lengths_first else "BLE", kinds)
    return None


def laid_out(function: Callable[..., Any], device: str) -> tuple[LaidOut, ...]:
    """The ways in which the suite can call it in a layout of its own; none where none is seen, or not sure."""
    kinds = kinds_for(function, KINDS)
    call = _seen_or_named(function, device, kinds)
    if call is None or (call.axes.endswith("DL") and not states_columns(as_written(function))):
        return ()
    if {"B", "H"} <= {*call.axes} and states_heads_first(as_written(function)):
        call = replace(call, axes=call.axes.translate(EXCHANGED), output=call.output.translate(EXCHANGED))
    if isinstance(function, OneInput) and function.in_blocks:
        return LaidOut(replace(function, axes=function.in_blocks), replace(call, order=INPUTS)).forms
    return LaidOut(function, call).forms
