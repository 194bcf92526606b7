"""Building: the text of an adapter for a module class, out of how it was found to be built and called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.audit import masks
from attention_conformance.implementations.discovery.audit.adapting import run_of
from attention_conformance.implementations.discovery.audit.findings import Facts
from attention_conformance.implementations.discovery.audit.forms import find_subject
from attention_conformance.implementations.discovery.audit.posing import Run
from attention_conformance.implementations.discovery.audit.shaping import shapes
from attention_conformance.implementations.discovery.audit.taking import Spy
from attention_conformance.implementations.discovery.constructors import Constructor, constructor
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.implementations.discovery.modules import Calling, Form, module_candidate
from attention_conformance.implementations.discovery.probing import PLAIN, Choosing
from attention_conformance.spec.features import Polarity
from attention_conformance.spec.inputs import build

CONSTRUCTION = {"dropout": "rated", "add_bias_kv": "bias_kv", "add_zero_attn": "zero_attn"}
"""What a constructor may be told, and when a problem asks for it."""
APART = {
    "bool_mask",
    "float_mask",
    "key_padding_mask",
    "is_causal",
    "scale",
    "need_weights",
    "average_attn_weights",
} | {
    "training",
    "dropout_p",
}
"""Options that are given in a way of their own."""


@dataclass(frozen=True)
class Module:
    """How a module class is built and called.

    Attributes:
        evaluating: it is put into evaluation mode, because it answers at random in training mode.
        extras: (position in the answer, name in `Result`).
    """

    make: Constructor
    calling: Calling
    evaluating: bool
    extras: tuple[tuple[int, str], ...]
    tupled: bool
    """It answers a tuple that begins with the output."""
    shaped: str = ""
    """The text of a subclass that stands for it, because its own constructor takes something else."""

    @property
    def name(self) -> str:
        """What is built."""
        return "Shaped" if self.shaped else "target"


def find_module(kind: type[nn.Module], device: str) -> Module:
    """How the class is built and called; the polarity of its masks is the one that was seen.

    Raises:
        TargetError: it cannot be built, filled with weights or called.
    """
    try:
        return _with_polarity(kind, device)
    except TargetError as error:
        for text, shaped in shapes(kind):
            with contextlib.suppress(TargetError):
                return replace(_with_polarity(shaped, device), shaped=text)
        raise error


def _with_polarity(kind: type[nn.Module], device: str) -> Module:
    found = _of_candidate(kind, Polarity.MASKED_OUT, device)
    subject, _ = find_subject(run(found, kind), device)
    if subject is None:
        return found
    seen = Facts.of([*masks.boolean(subject, Facts({})), *masks.padding(subject, Facts({}))])
    if masks.MASKED_OUT in (seen.answer("boolean mask"), seen.answer("key padding")):
        return _of_candidate(kind, Polarity.MAY_ATTEND, device)
    return found


def _of_candidate(kind: type[nn.Module], polarity: Polarity, device: str) -> Module:
    made = module_candidate("anonymous", kind, {"bool-mask": str(polarity)}, device)
    assert isinstance(made.run, TorchModule)
    chosen = made.run.call
    assert isinstance(chosen, Choosing)
    assert isinstance(chosen.function, Calling)
    plain = fit(PLAIN, made.claims)
    assert not isinstance(plain, Unsupported)
    problem = build(plain, "float32").forward_only()
    evaluating = not made.run.build(problem).training
    extras = tuple(zip(chosen.positions, made.run.extras, strict=True))
    spy = Spy(chosen.function)
    with contextlib.suppress(Exception):
        replace(made.run, call=spy, extras=())(problem.fresh(), device)
    return Module(constructor(kind), chosen.function, evaluating, extras, isinstance(spy.answer, tuple))


IMPORTS = [
    "from typing import Any",
    "from torch import nn",
    "from attention_conformance.implementations.discovery.spellings import find_places",
    "from attention_conformance.implementations.adapters.mha_interface import inputs_of, mask_options, polarised",
    "from attention_conformance.implementations.adapters.op_options import extra_options",
    "from attention_conformance.implementations.adapters.torch_module import torch_module",
    "from attention_conformance.implementations.adapters.tensors import Tensors",
    "from attention_conformance.spec.features import Polarity",
    "from attention_conformance.spec.problem import Problem",
]


def run(found: Module, kind: type[nn.Module]) -> Run:
    """A `run` out of the text itself."""
    return run_of([*IMPORTS, body(found)], made(found), kind)


def made(found: Module) -> str:
    """The expression that makes a `run` of `build` and `call`."""
    extras = "".join(f'"{name}",' for _, name in found.extras)
    return f"torch_module(build, call, find_places{f', extras=({extras})' if extras else ''})"


def body(found: Module) -> str:
    """The functions `build` and `call`."""
    first = [found.shaped, "", ""] if found.shaped else []
    return "\n".join([*first, *_build(found), "", "", *_call(found)]) + "\n"


def _build(found: Module) -> Iterator[str]:
    make = found.make
    yield "def build(problem: Problem) -> nn.Module:"
    yield '    """A module of the problem\'s widths."""'
    if make.widths:
        yield "    width, key_width, value_width = (x.shape[-1] for x in (problem.query, problem.key, problem.value))"
    else:
        yield "    width = problem.query.shape[-1]"
    yield f"    options: dict[str, Any] = {dict(make.options)!r}".replace("'", '"')
    if make.widths:
        yield "    if not width == key_width == value_width:"
        yield '        options |= {"kdim": key_width, "vdim": value_width}'
    for option, asked in CONSTRUCTION.items():
        if option in make.spelled:
            value = "problem.extension.dropout" if option == "dropout" else "True"
            yield f"    if problem.extension.{asked}:"
            yield f'        options["{make.spelled[option]}"] = {value}'
    if "num_kv_heads" in make.spelled:
        yield f'    options["{make.spelled["num_kv_heads"]}"] = problem.num_kv_heads'
    sizes = "embed_dim=width, num_heads=problem.num_heads" if make.named else "width, problem.num_heads"
    quiet = ".eval()  # it answers at random in training mode" if found.evaluating else ""
    yield f"    module: nn.Module = {found.name}({sizes}, **options)"
    yield f"    return module{quiet}"


def _call(found: Module) -> Iterator[str]:
    calling = found.calling
    shapes = "(B, Lq, width), (B, Lk, key_width), (B, Lk, value_width)" if calling.inputs == 3 else "(B, L, width)"
    yield "def call(module: nn.Module, given: Tensors, problem: Problem) -> Any:"
    yield f'    """{shapes} -> (B, Lq, out_width){", and what comes with it" if found.extras else ""}."""'
    names = ["query", "key", "value"][: calling.inputs]
    yield f"    {', '.join(names)} = inputs_of(given)" if calling.inputs == 3 else '    query = given["query"]'
    yield from (f"    {line}" for line in _options(calling))
    rotated = [f"{name}.transpose(0, 1)" if calling.length_first else name for name in names]
    called = f"module({', '.join(rotated)}, **options)"
    if found.tupled:
        yield f"    answer = {called}"
    output = "answer[0]" if found.tupled else called
    output += ".transpose(0, 1)" if calling.length_first else ""
    yield f"    return {', '.join([output, *(f'answer[{position}]' for position, _ in found.extras)])}"


def _options(calling: Calling) -> Iterator[str]:
    spelled = calling.options.spelled
    polarity = f"Polarity.{calling.polarity.name}"
    masked = "bool_mask" in spelled or "float_mask" in spelled
    fixed = {**calling.options.always, **calling.asked}
    yield f"options: dict[str, Any] = {fixed!r}".replace("'", '"')
    if masked or "key_padding_mask" in spelled or "is_causal" in spelled:
        yield f"asked = dict(mask_options(given, problem, {polarity}))  # attn_mask is (B * H, Lq, Lk) here"
    else:
        yield "asked: dict[str, Any] = {}"
    if not (calling.hint and "bool_mask" in spelled) and "is_causal" in spelled:
        yield "if problem.causal:"
        yield '    del asked["attn_mask"]  # its flag stands alone'
    if masked and calling.form is not Form.FLAT:
        yield 'if "attn_mask" in given:'
        yield from (f"    {line}" for line in _formed(calling, polarity))
    if further := sorted(set(spelled) - APART):
        yield f"known = {further!r}".replace("'", '"')
        yield "asked |= {name: option for name, option in extra_options(problem, given).items() if name in known}"
    if "scale" in spelled:
        yield "if problem.scale is not None:"
        yield '    asked["scale"] = problem.scale'
    if own := {name: other for name, other in _renamed(spelled).items() if name != other}:
        yield f"names = {own!r}".replace("'", '"')
        yield "options |= {names.get(name, name): option for name, option in asked.items()}"
    else:
        yield "options |= asked"


def _renamed(spelled: object) -> dict[str, str]:
    assert isinstance(spelled, dict)
    mask = spelled.get("bool_mask", spelled.get("float_mask"))
    named = {o: own for o, own in spelled.items() if o not in ("bool_mask", "float_mask")}
    return named | ({"attn_mask": mask} if mask else {})


def _formed(calling: Calling, polarity: str) -> Iterator[str]:
    if calling.form is Form.FULL:
        yield 'asked["attn_mask"] = asked["attn_mask"].unflatten(0, (-1, problem.num_heads))  # (B, H, Lq, Lk)'
    else:
        yield f'mask = polarised(given["attn_mask"], {polarity})'
        yield 'asked["attn_mask"] = mask[(0,) * (mask.ndim - 2)]  # (Lq, Lk): the fit asks for one for all'
