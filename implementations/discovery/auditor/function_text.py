"""The text of an adapter that calls a function in its own way. Probes run this very text."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attention_conformance.implementations.discovery.auditor.keywords import Keywords
from attention_conformance.implementations.discovery.extras import AXES, Extra
from attention_conformance.implementations.discovery.functions.calls import FunctionCall
from attention_conformance.implementations.discovery.probe import Run
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import INPUTS, MaskForm

OP = "BHLD"
IMPORTS: Mapping[str, tuple[str, ...]] = {
    "torch": ("import torch", "from torch import Tensor"),
    "numpy": ("import numpy as np",),
    "jax": ("import jax.numpy as jnp",),
}
ARRAY_TYPES = {"torch": "Tensor", "numpy": "np.ndarray", "jax": "Any"}
MODULES = {"torch": "torch", "numpy": "np", "jax": "jnp"}
ONE_HEAD = {"LD": "", "DL": ".T"}
"""Layouts of one head of one sample, and what puts that of the suite into them, and back."""
ONE_FOR_ALL = {MaskForm.SAMPLE: "[:, 0]", MaskForm.SHARED: "[(0,) * (attn_mask.ndim - 2)]"}
"""The one of several masks that the fit makes equal."""


def imports(call: FunctionCall) -> list[str]:
    """The import lines that the text may need, without the target's own."""
    return [
        "from typing import Any",
        *IMPORTS[call.framework],
        f"from attention_conformance import {call.framework}_op",
    ]


def body(call: FunctionCall, keywords: Keywords) -> str:
    """The functions of an adapter, `call` last; `target` is the function itself."""
    parts = [_into(call)] if call.axes not in (OP, *ONE_HEAD) else []
    parts += [_back(call)] if call.output not in (OP, *ONE_HEAD) else []
    return "\n\n\n".join([*parts, _call(call, keywords)]) + "\n"


def is_plain(call: FunctionCall, keywords: Keywords) -> bool:
    """Whether the function is called as the suite calls one, so that nothing has to be adapted."""
    names, spelled = keywords.names, keywords.options.spelled
    same = all(name == own for name, own in names.items()) and "enable_gqa" in names
    masks = [spelled.get(option) for option in ("bool_mask", "float_mask")] == ["attn_mask", "attn_mask"]
    masks = masks and keywords.form is MaskForm.GIVEN and not keywords.masked_out
    padding = keywords.padding in ("", "key_padding_mask") and not keywords.padding_masked_out
    usual = (call.axes, call.output, call.keyword, call.order) == (OP, OP, False, INPUTS)
    always = call.always or call.widths or keywords.options.always or (keywords.returns_tuple and not keywords.extras)
    in_order = all(extra.axes == AXES[extra.name] for extra in keywords.extras) and (
        [extra.position for extra in keywords.extras] == list(range(1, len(keywords.extras) + 1))
    )
    return same and masks and padding and usual and not always and in_order


def _separate(axes: str) -> str:
    """The axes with those in one written separately."""
    return axes.replace("N", "BH").replace("E", "HD")


def _shape(axes: str) -> str:
    """The axes as a docstring shows them."""
    return f"({', '.join({'N': 'B * H', 'E': 'H * d', 'D': 'd'}.get(letter, letter) for letter in axes)})"


def _permuted(call: FunctionCall, name: str, axes: str, order: str) -> str:
    """An array of these axes with its axes in another order."""
    if axes == order:
        return name
    method = "permute" if call.framework == "torch" else "transpose"
    return f"{name}.{method}({', '.join(str(axes.index(letter)) for letter in order)})"


def _into(call: FunctionCall) -> str:
    array, axes = ARRAY_TYPES[call.framework], call.axes
    lines = [f"def into(x: {array}) -> {array}:", f'    """(B, H, L, d) as {_shape(axes)}."""']
    permuted = _permuted(call, "x", OP, _separate(axes))
    if "N" in axes or "E" in axes:
        at = axes.index("N") if "N" in axes else axes.index("E")
        sizes = [f"x.shape[{n}]" for n in range(4)]
        sizes[at : at + 2] = [f"x.shape[{at}] * x.shape[{at + 1}]"]
        lines += [f"    x = {permuted}"] if permuted != "x" else []
        lines += [f"    return x.reshape({', '.join(sizes)})"]
    else:
        lines += [f"    return {permuted}"]
    return "\n".join(lines)


def _back(call: FunctionCall) -> str:
    array, axes = ARRAY_TYPES[call.framework], _separate(call.output)
    lines = [
        f"def back(output: {array}, query: {array}, value: {array}) -> {array}:",
        f'    """{_shape(call.output)} as (B, H, Lq, d_v), with the extents of query and value."""',
    ]
    if axes != call.output:
        sizes = {"B": "query.shape[0]", "H": "query.shape[1]", "L": "query.shape[2]", "D": "value.shape[3]"}
        lines += [f"    output = output.reshape({', '.join(sizes[letter] for letter in axes)})"]
    return "\n".join([*lines, f"    return {_permuted(call, 'output', axes, OP)}"])


def _call(call: FunctionCall, keywords: Keywords) -> str:
    array = ARRAY_TYPES[call.framework]
    masks = ["attn_mask"] if keywords.mask else []
    masks += ["key_padding_mask"] if keywords.padding else []
    shapes = {"weights": "(B, H, Lq, Lk)", "averaged_weights": "(B, Lq, Lk)", "log_sum_exp": "(B, H, Lq)"}
    returned = "".join(f", {shapes[extra.name]}" for extra in keywords.extras)
    lines = [
        "def call(",
        *(f"    {name}: {array}," for name in INPUTS),
        *(["    *,"] if masks else []),
        *(f"    {name}: {array} | None = None," for name in masks),
        "    **options: Any,",
        f") -> {f'tuple[{array}, ...]' if keywords.extras else array}:",
        f'    """(B, H, Lq, d_k), (B, H, Lk, d_k), (B, H, Lk, d_v) -> (B, H, Lq, d_v){returned}."""',
        *(f"    {line}" for line in (*_options(call, keywords), *_answer(call, keywords))),
    ]
    return "\n".join(lines)


def _options(call: FunctionCall, keywords: Keywords) -> Iterator[str]:
    if "enable_gqa" in keywords.left_out:
        yield 'options.pop("enable_gqa", None)  # it has no such parameter: the shapes imply it'
    for of_key in keywords.one_for_both:
        yield f'options.pop("{of_key}", None)  # one array of ids for queries and keys'
    for name, own in keywords.names.items():
        if name != own:
            yield f'if "{name}" in options:'
            yield f'    options["{own}"] = options.pop("{name}")'
    for name, value in {**call.always, **keywords.options.always}.items():
        yield f'options.setdefault("{name}", {value!r})'
    if call.heads:
        yield f'options["{call.heads}"] = query.shape[1]'
    for name in call.widths:
        yield f'options["{name}"] = query.shape[3]'
    if keywords.mask:
        yield "if attn_mask is not None:"
        yield from (f"    {line}" for line in _mask(call, keywords))
    if keywords.padding:
        inverted = "~key_padding_mask  # True means masked out"
        yield "if key_padding_mask is not None:"
        given = inverted if keywords.padding_masked_out else "key_padding_mask"
        yield f'    options["{keywords.padding}"] = {given}'


def _mask(call: FunctionCall, keywords: Keywords) -> Iterator[str]:
    boolean = f"attn_mask.dtype == {'torch.bool' if call.framework == 'torch' else 'bool'}"
    bool_name, float_name = (keywords.options.spelled.get(option, "") for option in ("bool_mask", "float_mask"))
    name = f'"{keywords.mask}"'
    if bool_name and float_name and bool_name != float_name:
        yield f'name = "{bool_name}" if {boolean} else "{float_name}"'
        name = "name"
    if not bool_name:
        yield f"if {boolean}:"
        yield f'    raise TypeError("{float_name} is a bias, which is added: it takes no boolean mask")'
    value = f"~attn_mask if {boolean} else attn_mask" if keywords.masked_out else "attn_mask"
    if keywords.form in (MaskForm.FULL, MaskForm.FLAT) or call.axes in ONE_HEAD:
        yield from [f"attn_mask = {value}  # True means masked out"] if keywords.masked_out else []
        shape = "(*query.shape[:3], key.shape[2])"
        broadcast = f"{MODULES[call.framework]}.broadcast_to(attn_mask, {shape})"
        value = f"attn_mask.expand{shape}" if call.framework == "torch" else broadcast
    if call.axes in ONE_HEAD:
        yield f"attn_mask = {value}"
        return
    if keywords.form is MaskForm.FLAT:
        yield f"attn_mask = {value}"
        value = "attn_mask.reshape(-1, *attn_mask.shape[2:])"
    if keywords.form in ONE_FOR_ALL:
        value = (f"({value})" if keywords.masked_out else value) + ONE_FOR_ALL[keywords.form]
    comment = "  # True means masked out" if keywords.masked_out and "~" in value else ""
    yield f"options[{name}] = {value}{comment}"


def _answer(call: FunctionCall, keywords: Keywords) -> Iterator[str]:
    if call.axes in ONE_HEAD:
        yield from _head_by_head(call, keywords)
        return
    given = {name: name if call.axes == OP else f"into({name})" for name in INPUTS}
    answer = f"target({_arguments(call, given)}, **options)"
    if keywords.returns_tuple:
        yield f"answer = {answer}"
    output = "answer[0]" if keywords.returns_tuple else answer
    output = output if call.output == OP else f"back({output}, query, value)"
    yield f"return {', '.join([output, *(_extra(call, extra) for extra in keywords.extras)])}"


def _arguments(call: FunctionCall, given: Mapping[str, str]) -> str:
    arguments = [given[name] for name in call.order]
    if call.keyword:
        arguments = [f"{own}={each}" for own, each in zip(call.inputs, arguments, strict=True)]
    return ", ".join(arguments)


def _head_by_head(call: FunctionCall, keywords: Keywords) -> Iterator[str]:
    """One call for each head of each sample."""
    given = {name: f"{name}[b, h]{ONE_HEAD[call.axes]}" for name in INPUTS}
    yield "outputs = []"
    yield "for b in range(query.shape[0]):"
    yield "    for h in range(query.shape[1]):"
    if keywords.mask:
        yield f'        masks = {{}} if attn_mask is None else {{"{keywords.mask}": attn_mask[b, h]}}'
    options = ", **{**options, **masks}" if keywords.mask else ", **options"
    first = "[0]" if keywords.returns_tuple else ""
    yield f"        outputs.append(target({_arguments(call, given)}{options}){first}{ONE_HEAD[call.output]})"
    yield f"return {MODULES[call.framework]}.stack(outputs).reshape(*query.shape[:3], value.shape[3])"


def _extra(call: FunctionCall, extra: Extra) -> str:
    part = f"answer[{extra.position}]"
    if "N" in extra.axes:
        return f"{part}.reshape(*query.shape[:2], *{part}.shape[1:])"
    return _permuted(call, part, extra.axes, AXES[extra.name])


def expression(call: FunctionCall, keywords: Keywords, name: str = "call") -> str:
    """The expression that makes a `run` of `call`, or of `target` itself."""
    extras = "".join(f'"{extra.name}",' for extra in keywords.extras)
    return f"{call.framework}_op({name}{f', extras=({extras})' if extras else ''})"


def run_of_call(call: FunctionCall, keywords: Keywords, function: Callable[..., Any]) -> Run:
    """A `run` from the text itself."""
    return run_of([*imports(call), body(call, keywords)], expression(call, keywords), function)


def run_of(lines: list[str], expression: str, target: object) -> Run:
    """The value of an expression after the lines of text, where `target` is the target.

    Raises:
        TargetError: a package that the text imports is not installed.
    """
    space: dict[str, Any] = {"target": target}
    try:
        exec(compile("\n".join(["from __future__ import annotations", *lines]), "<adapter>", "exec"), space)
    except ModuleNotFoundError as error:
        raise TargetError(f"{error.name} is not installed") from error
    run: Run = eval(expression, space)
    return run
