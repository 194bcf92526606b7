"""Adapting: the text of an adapter that calls a function as it was found to be called. What is probed is this text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from attention_conformance.implementations.discovery.audit.calling import INPUTS, Calling
from attention_conformance.implementations.discovery.audit.posing import Run
from attention_conformance.implementations.discovery.loading import TargetError

OP = "BHLD"


class MaskForm(StrEnum):
    """The shape in which an attention mask is taken."""

    GIVEN = "whatever broadcasts to (B, H, Lq, Lk)"
    FULL = "(B, H, Lq, Lk)"
    FLAT = "(B * H, Lq, Lk)"
    SAMPLE = "(B, Lq, Lk)"
    SHARED = "(Lq, Lk)"


ONE_OF = {MaskForm.SAMPLE: "[:, 0]", MaskForm.SHARED: "[(0,) * (attn_mask.ndim - 2)]"}
"""The one of masks that the fit asks to be alike."""


@dataclass(frozen=True)
class Extra:
    """A part of the answer after the output: where it is, its name in `Result`, and its axes, "BHQK" or "BHQ"."""

    position: int
    name: str
    axes: str


@dataclass(frozen=True)
class Taken:
    """What a function takes beside its inputs, and gives beside its output.

    Attributes:
        names: its own names for the suite's options; attention masks are apart.
        bool_mask, float_mask, padding: its names for the masks; empty: it has none.
        flipped, padding_flipped: whether True means masked out.
        always: what it is given in each call besides.
        drop: options that are left away, because it has no word for them and the shapes say it, too.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    bool_mask: str = ""
    float_mask: str = ""
    padding: str = ""
    flipped: bool = False
    padding_flipped: bool = False
    form: MaskForm = MaskForm.GIVEN
    always: Mapping[str, object] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    named: frozenset[str] = frozenset()
    """The options that it has a parameter of its own for."""
    seen: str = ""
    """What showed the polarity of its masks."""
    tupled: bool = False
    """It answers a tuple, or a list, that begins with the output."""


def imports(calling: Calling) -> list[str]:
    """The lines that the text of `body` needs, without the target's own."""
    lines = {
        "torch": ["import torch", "from torch import Tensor"],
        "numpy": ["import numpy as np"],
        "jax": ["import jax.numpy as jnp"],
    }[calling.framework]
    made_by = maker(calling)
    importing = f"from attention_conformance.implementations.adapters.{made_by} import {made_by}"
    return ["from typing import Any", *lines, importing]


def maker(calling: Calling) -> str:
    """The function that makes a `run` of a function."""
    return f"{calling.framework}_op"


def _kind(calling: Calling) -> str:
    return {"torch": "Tensor", "numpy": "np.ndarray", "jax": "Any"}[calling.framework]


def body(calling: Calling, taken: Taken) -> str:
    """The functions of an adapter, `call` last; `target` is the function itself."""
    parts = [_into(calling)] if calling.axes not in (OP, "LD") else []
    parts += [_back(calling)] if calling.output not in (OP, "LD") else []
    return "\n\n\n".join([*parts, _call(calling, taken)]) + "\n"


def is_plain(calling: Calling, taken: Taken) -> bool:
    """Whether the function is called as the suite calls one, so that nothing has to be adapted."""
    same = all(name == own for name, own in taken.names.items()) and "enable_gqa" in taken.names
    masked = taken.bool_mask == taken.float_mask == "attn_mask" and taken.form is MaskForm.GIVEN and not taken.flipped
    padded = taken.padding in ("", "key_padding_mask") and not taken.padding_flipped
    usual = (calling.axes, calling.output, calling.keyword, calling.order) == (OP, OP, False, INPUTS)
    whole = not calling.always and not taken.always and (not taken.tupled or bool(taken.extras))
    return same and masked and padded and usual and whole and [e.axes for e in taken.extras] == _usual(taken)


def _usual(taken: Taken) -> list[str]:
    """The axes of the extras as the suite takes them, if they follow the output one after another."""
    axes = {"weights": "BHQK", "averaged_weights": "BQK", "log_sum_exp": "BHQ"}
    return [axes[e.name] if e.position == n else "" for n, e in enumerate(taken.extras, start=1)]


def _spread(axes: str) -> str:
    """The axes with those in one taken apart."""
    return axes.replace("N", "BH").replace("E", "HD")


def _shape(axes: str) -> str:
    """The axes as a docstring shows them."""
    return f"({', '.join({'N': 'B * H', 'E': 'H * d', 'D': 'd'}.get(letter, letter) for letter in axes)})"


def _permuted(calling: Calling, name: str, order: tuple[int, ...]) -> str:
    if order == tuple(range(len(order))):
        return name
    method = "permute" if calling.framework == "torch" else "transpose"
    return f"{name}.{method}({', '.join(map(str, order))})"


def _into(calling: Calling) -> str:
    kind, axes = _kind(calling), calling.axes
    lines = [f"def into(x: {kind}) -> {kind}:", f'    """(B, H, L, d) as {_shape(axes)}."""']
    rotated = _permuted(calling, "x", tuple(OP.index(letter) for letter in _spread(axes)))
    if "N" in axes or "E" in axes:
        at = axes.index("N") if "N" in axes else axes.index("E")
        sizes = [f"x.shape[{n}]" for n in range(4)]
        sizes[at : at + 2] = [f"x.shape[{at}] * x.shape[{at + 1}]"]
        lines += [f"    x = {rotated}"] if rotated != "x" else []
        lines += [f"    return x.reshape({', '.join(sizes)})"]
    else:
        lines += [f"    return {rotated}"]
    return "\n".join(lines)


def _back(calling: Calling) -> str:
    kind, axes = _kind(calling), calling.output
    head = f"def back(output: {kind}, query: {kind}, value: {kind}) -> {kind}:"
    lines = [head, f'    """{_shape(axes)} as (B, H, Lq, d_v), whose extents query and value tell."""']
    if "N" in axes or "E" in axes:
        sizes = {"B": "query.shape[0]", "H": "query.shape[1]", "L": "query.shape[2]", "D": "value.shape[3]"}
        lines += [f"    output = output.reshape({', '.join(sizes[letter] for letter in _spread(axes))})"]
    lines += [f"    return {_permuted(calling, 'output', tuple(_spread(axes).index(letter) for letter in OP))}"]
    return "\n".join(lines)


def _call(calling: Calling, taken: Taken) -> str:
    kind = _kind(calling)
    masks = ["attn_mask"] if taken.bool_mask or taken.float_mask else []
    masks += ["key_padding_mask"] if taken.padding else []
    lines = [
        "def call(",
        *(f"    {name}: {kind}," for name in INPUTS),
        *(["    *,"] if masks else []),
        *(f"    {name}: {kind} | None = None," for name in masks),
        "    **options: Any,",
        f") -> {f'tuple[{kind}, ...]' if taken.extras else kind}:",
        f'    """(B, H, Lq, d_k), (B, H, Lk, d_k), (B, H, Lk, d_v) -> (B, H, Lq, d_v){_also(taken)}."""',
        *(f"    {line}" for line in (*_options(calling, taken), *_answer(calling, taken))),
    ]
    return "\n".join(lines)


def _also(taken: Taken) -> str:
    shapes = {"weights": "(B, H, Lq, Lk)", "averaged_weights": "(B, Lq, Lk)", "log_sum_exp": "(B, H, Lq)"}
    return "".join(f", {shapes[extra.name]}" for extra in taken.extras)


def _options(calling: Calling, taken: Taken) -> Iterator[str]:
    if "enable_gqa" in taken.drop:
        yield 'options.pop("enable_gqa", None)  # there is no word for it: the shapes say it'
    if "key_segments" in taken.drop and "query_segments" in taken.names:
        yield 'options.pop("key_segments", None)  # one array of ids for queries and keys'
    for name, own in taken.names.items():
        if name != own:
            yield f"if {_quoted(name)} in options:"
            yield f"    options[{_quoted(own)}] = options.pop({_quoted(name)})"
    for name, value in {**calling.always, **taken.always}.items():
        yield f"options.setdefault({_quoted(name)}, {value!r})"
    if calling.heads:
        yield f"options[{_quoted(calling.heads)}] = query.shape[1]"
    if taken.bool_mask or taken.float_mask:
        yield "if attn_mask is not None:"
        yield from (f"    {line}" for line in _masked(calling, taken))
    if taken.padding:
        flipped = "~key_padding_mask  # True means masked out" if taken.padding_flipped else "key_padding_mask"
        yield "if key_padding_mask is not None:"
        yield f"    options[{_quoted(taken.padding)}] = {flipped}"


def _quoted(text: str) -> str:
    return f'"{text}"'


def _masked(calling: Calling, taken: Taken) -> Iterator[str]:
    boolean = f"attn_mask.dtype == {'torch.bool' if calling.framework == 'torch' else 'bool'}"
    name = _quoted(taken.bool_mask or taken.float_mask)
    if taken.bool_mask and taken.float_mask and taken.bool_mask != taken.float_mask:
        yield f"name = {_quoted(taken.bool_mask)} if {boolean} else {_quoted(taken.float_mask)}"
        name = "name"
    if not taken.bool_mask:
        yield f"if {boolean}:"
        yield f'    raise TypeError("{taken.float_mask} is a bias, which is added: it takes no boolean mask")'
    value = f"~attn_mask if {boolean} else attn_mask" if taken.flipped else "attn_mask"
    if taken.form in (MaskForm.FULL, MaskForm.FLAT) or calling.axes == "LD":
        yield from [f"attn_mask = {value}  # True means masked out"] if taken.flipped else []
        shape = "(*query.shape[:3], key.shape[2])"
        module = "np" if calling.framework == "numpy" else "jnp"
        wide = f"{module}.broadcast_to(attn_mask, {shape})"
        value = f"attn_mask.expand{shape}" if calling.framework == "torch" else wide
    if calling.axes == "LD":
        yield f"attn_mask = {value}"
        return
    if taken.form is MaskForm.FLAT:
        yield f"attn_mask = {value}"
        value = "attn_mask.reshape(-1, *attn_mask.shape[2:])"
    if taken.form in ONE_OF:
        value = (f"({value})" if taken.flipped else value) + ONE_OF[taken.form]
    comment = "  # True means masked out" if taken.flipped and "~" in value else ""
    yield f"options[{name}] = {value}{comment}"


def _answer(calling: Calling, taken: Taken) -> Iterator[str]:
    if calling.axes == "LD":
        yield from _each(calling, taken)
        return
    rotated = {name: name if calling.axes == OP else f"into({name})" for name in INPUTS}
    called = f"target({_arguments(calling, rotated)}, **options)"
    if taken.tupled:
        yield f"answer = {called}"
    output = "answer[0]" if taken.tupled else called
    back = output if calling.output == OP else f"back({output}, query, value)"
    yield f"return {', '.join([back, *(_extra(calling, extra) for extra in taken.extras)])}"


def _arguments(calling: Calling, given: Mapping[str, str]) -> str:
    arguments = [given[name] for name in calling.order]
    if calling.keyword:
        arguments = [f"{own}={each}" for own, each in zip(calling.inputs, arguments, strict=True)]
    return ", ".join(arguments)


def _each(calling: Calling, taken: Taken) -> Iterator[str]:
    """One head of one sample after the other."""
    given = {name: f"{name}[b, h]" for name in INPUTS}
    yield "outputs = []"
    yield "for b in range(query.shape[0]):"
    yield "    for h in range(query.shape[1]):"
    if name := taken.bool_mask or taken.float_mask:
        yield f"        masked = {{}} if attn_mask is None else {{{_quoted(name)}: attn_mask[b, h]}}"
    masked = ", **{**options, **masked}" if taken.bool_mask or taken.float_mask else ", **options"
    yield f"        outputs.append(target({_arguments(calling, given)}{masked}){'[0]' if taken.tupled else ''})"
    stack = {"torch": "torch.stack", "numpy": "np.stack", "jax": "jnp.stack"}[calling.framework]
    yield f"return {stack}(outputs).reshape(*query.shape[:3], value.shape[3])"


def _extra(calling: Calling, extra: Extra) -> str:
    part, axes = f"answer[{extra.position}]", extra.axes
    wanted = "".join(letter for letter in "BHQK" if letter in axes.replace("N", "BH"))
    if "N" in axes:
        return f"{part}.reshape(*query.shape[:2], *{part}.shape[1:])"
    return _permuted(calling, part, tuple(axes.index(letter) for letter in wanted))


def made(calling: Calling, taken: Taken) -> str:
    """The expression that makes a `run` of `call`."""
    extras = "".join(f'"{extra.name}",' for extra in taken.extras)
    return f"{maker(calling)}(call{f', extras=({extras})' if extras else ''})"


def live(calling: Calling, taken: Taken, function: Callable[..., Any]) -> Run:
    """A `run` out of the text itself.

    Raises:
        TargetError: the framework is not installed.
    """
    return run_of([*imports(calling), body(calling, taken)], made(calling, taken), function)


def run_of(lines: list[str], expression: str, target: object) -> Run:
    """What an expression of the text gives, where `target` is the target.

    Raises:
        TargetError: a package that the text imports is not installed.
    """
    space: dict[str, Any] = {"target": target}
    try:
        exec(compile("\n".join(["from __future__ import annotations", *lines]), "<adapter>", "exec"), space)
    except ModuleNotFoundError as error:
        raise TargetError(f"{error.name} is not installed") from error
    found: Run = eval(expression, space)
    return found
