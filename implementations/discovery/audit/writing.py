"""Writing: a ready adapter file, whose claims are the findings with the evidence beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attention_conformance.implementations.discovery.audit.claiming import (
    CHOICES,
    FEATURES,
    PARAMETERS,
    dtypes,
    features,
    scope,
    settings,
)
from attention_conformance.implementations.discovery.audit.convention import Convention
from attention_conformance.implementations.discovery.audit.findings import Facts, Finding
from attention_conformance.implementations.discovery.loading import Target
from attention_conformance.spec.cases import MaskShape
from attention_conformance.spec.features import Conventions, Feature, Scope
from attention_conformance.spec.problem import DTYPES

WIDEST = 110
"""Columns of a line with a comment."""
BY_FEATURE = {feature: question for question, feature in FEATURES.items()}


def adapter_text(target: str, convention: Convention, findings: Sequence[Finding], folder: Path) -> str:
    """The text of an adapter file that is to lie in a folder."""
    facts = Facts.of(findings)
    name = Target.parse(target).parts[-1]
    fit = list(_fit(convention, facts))
    own = "\n".join(_target_lines(target, folder))
    body = [convention.text.strip("\n"), "\n".join(fit), "\n".join(_adapter(name, convention, facts, bool(fit)))]
    text = "\n\n\n".join(part for part in body if part) + "\n"
    imports = _imports([*convention.imports, *IMPORTS], own + text)
    head = f'"""An adapter for {_safe(name)}, written by `attention-conformance audit`: what it claims was seen."""'
    opened = "".join(f"\n{line}" for line in _open(findings))
    return "\n".join([head, "", *imports, "", own, "", "", text]) + (f"{opened}\n" if opened else "")


NAMES = ", ".join(
    ["Conventions", "Feature", "Scope", *{type(value).__name__ for value in vars(Conventions()).values()}]
)
IMPORTS = (
    "from dataclasses import replace",
    "from pathlib import Path",
    "from typing import Any",
    "from attention_conformance.implementations.discovery.option_detection import one_set_of_ids",
    "from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported",
    "from attention_conformance.implementations.discovery.loading import load_target",
    "from attention_conformance.implementations.adapters.mha_interface import one_mask",
    "from attention_conformance.spec.cases import Case, MaskShape",
    f"from attention_conformance.spec.features import {NAMES}",
)
"""What an adapter may need."""


def _safe(text: str) -> str:
    """Text in one line that ends no comment and no docstring."""
    return "".join(c if c.isprintable() else " " for c in text).replace('"""', "'''").replace("\\", "/")


STANDARD = ("__future__", "collections.abc", "dataclasses", "pathlib", "typing")
OURS = ("implementations", "spec")


def _imports(lines: Sequence[str], text: str) -> list[str]:
    """Import lines in three groups, without the names that the text does not need."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, given = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, set()).update(given.split(", ") if given else [""])
    kept = {module: _needed(given, text) for module, given in names.items()}
    told = {m: _import_line(m, given) for m, given in kept.items() if given or ("" in names[m] and _used(m, text))}
    groups: list[list[str]] = [["from __future__ import annotations"], [], [], []]
    for module in sorted(told, key=lambda name: ("" not in names[name], name)):
        group = 1 if module in STANDARD else 3 if module.split(".")[0] in OURS else 2
        groups[group].append(told[module])
    return "\n\n".join("\n".join(group) for group in groups if group).splitlines()


def _needed(names: set[str], text: str) -> list[str]:
    return sorted(name for name in names if name and re.search(rf"\b{name}\b", text))


def _used(line: str, text: str) -> bool:
    """Whether the text uses what a line `import x` or `import x as y` names."""
    return re.search(rf"\b{line.split()[-1]}\.", text) is not None


def _import_line(module: str, names: list[str]) -> str:
    return f"from {module} import {', '.join(names)}" if names else module


def _target_lines(target: str, folder: Path) -> Iterator[str]:
    """The lines that make `target`."""
    parsed = Target.parse(target)
    outer, *inner = parsed.name.split(".")
    alias = "_outer" if inner else "target"
    path = Path(parsed.place).resolve()
    beside = parsed.is_file and path.parent == folder.resolve() and path.stem.isidentifier()
    installed = not parsed.is_file and not _in_current_folder(parsed.place)
    if beside or installed:
        yield f"from {path.stem if beside else parsed.place} import {outer} as {alias}"
        yield from [f"target = {'.'.join(['_outer', *inner])}"] if inner else []
    elif parsed.is_file:
        place = os.path.relpath(path, folder.resolve()).replace(os.sep, "/")
        yield f'target: Any = load_target(str(Path(__file__).parent / "{place}") + ":{parsed.name}")'
    else:
        yield f'target: Any = load_target("{target}")  # from the folder that holds it'


def _in_current_folder(module: str) -> bool:
    place = Path.cwd() / module.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").exists()


def _conventions(facts: Facts) -> Mapping[str, object]:
    """The conventions that are no defaults, by the names of their fields."""
    made = Conventions().claiming(settings(facts))
    return {key.replace("-", "_"): getattr(made, key.replace("-", "_")) for key in settings(facts)}


def _adapter(name: str, convention: Convention, facts: Facts, fitted: bool) -> Iterator[str]:
    yield "adapter = Implementation("
    yield f'    "{_safe(name)}",'
    yield "    Claims("
    yield f"        Scope.{scope(facts).name},"
    yield "        frozenset("
    yield "            {"
    for feature in Feature:
        if feature in features(facts):
            yield _commented(f"                Feature.{feature.name},", _evidence(feature, facts))
    yield "            }"
    yield "        ),"
    if changed := _conventions(facts):
        yield "        Conventions("
        questions = {choice.key.replace("-", "_"): choice.question for choice in CHOICES}
        for field, value in changed.items():
            line = f"            {field}={type(value).__name__}.{getattr(value, 'name', value)},"
            yield _commented(line, facts.evidence(questions[field]))
        yield "        ),"
    if (taken := dtypes(facts)) != tuple(DTYPES):
        listed = ", ".join(f'"{dtype}"' for dtype in taken)
        yield _commented(f"        dtypes=({listed}{',' if len(taken) == 1 else ''}),", facts.evidence("dtypes"))
    yield from ["        fit=fit,"] if fitted else []
    yield "    ),"
    yield f"    {convention.made},"
    yield from [f"    construct={convention.construct},"] if convention.construct else []
    yield ")"


def _evidence(feature: Feature, facts: Facts) -> str:
    question = {Feature.HEADS: "heads", Feature.PROJECTIONS: "level", Feature.CORE: "plain answer"}.get(feature)
    question = question or BY_FEATURE.get(feature, "")
    found = facts.found.get(question)
    if found is None:
        return "its absence was refused" if feature in PARAMETERS.values() else ""
    told = found.evidence or found.answer
    return told if found.determined else f"undetermined: {told}"


def _commented(line: str, evidence: str) -> str:
    room = WIDEST - len(line) - 4
    told = _safe(evidence)
    told = told if len(told) <= room else told[: max(0, room - 3)] + "..."
    return f"{line}  # {told}" if told else line


def _open(findings: Sequence[Finding]) -> Iterator[str]:
    """What could not be determined, as comments."""
    left = [finding for finding in findings if not finding.determined]
    if left:
        yield "# Not determined:"
        yield from (_commented(f"# - {finding.question}:", finding.evidence).replace(":  # ", ": ") for finding in left)


def _fit(convention: Convention, facts: Facts) -> Iterator[str]:
    """A function that turns a case into the nearest one that can be asked, where not every one can."""
    shared = convention.mask_shape is not MaskShape.FULL
    narrow = facts.answer("width of the output") == "that of the heads" and scope(facts) is Scope.MODULE
    if not (shared or narrow or convention.one_mask or convention.one_set_of_ids):
        return
    yield "def fit(case: Case) -> Case | Unsupported:"
    yield '    """The nearest case that it can be asked."""'
    if shared:
        yield f"    case = replace(case, mask_shape=MaskShape.{convention.mask_shape.name})"
    if narrow:
        yield "    if case.module is not None:"
        yield "        heads_width = case.sizes.num_heads * case.sizes.d_v"
        yield "        case = replace(case, module=replace(case.module, out_dim=heads_width))"
    if convention.one_mask and convention.one_set_of_ids:
        yield "    if isinstance(left := one_mask(case), Unsupported):"
        yield "        return left"
        yield "    return one_set_of_ids(left)"
    elif convention.one_mask:
        yield "    return one_mask(case)  # its causal flag describes its attention mask"
    elif convention.one_set_of_ids:
        yield "    return one_set_of_ids(case)"
    else:
        yield "    return case"
