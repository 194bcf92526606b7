"""Adapter files: an adapter's text with its target and its claims, and the evidence for each of them in comments."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_conformance.implementations.discovery.auditor.adapter import Adapter
from attention_conformance.implementations.discovery.auditor.claims import (
    convention_topic,
    dtypes,
    features,
    premises,
    scope,
    settings,
)
from attention_conformance.implementations.discovery.auditor.findings import Facts, Finding
from attention_conformance.implementations.discovery.auditor.probe_interface import PARAMETERS
from attention_conformance.implementations.discovery.targets.loading import Target
from attention_conformance.spec.cases import MaskShape
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import DTYPES

WIDEST = 110
"""Columns of a line with a comment."""
ENUMS = ", ".join(sorted({type(value).__name__ for value in vars(Conventions()).values()}))
IMPORTS = (
    "from dataclasses import replace",
    "from pathlib import Path",
    "from typing import Any",
    "from attention_conformance.implementations.discovery.claim_checks import one_set_of_ids",
    "from attention_conformance.implementations.discovery.targets.loading import load_target",
    "from attention_conformance.implementations.adapters.mha_interface import one_mask",
    "from attention_conformance import Case, Claims, Conventions, Feature, Implementation",
    "from attention_conformance import MaskShape, Premises, Scope, Unsupported",
    f"from attention_conformance import {ENUMS}",
)
"""What an adapter may need."""
STANDARD = ("__future__", "collections.abc", "dataclasses", "pathlib", "typing")


def adapter_text(target: str, adapter: Adapter, findings: Sequence[Finding], folder: Path) -> str:
    """The text of an adapter file for a folder."""
    facts = Facts.of(findings)
    name = one_line(Target.parse(target).parts[-1])
    fit = "\n".join(_fit(adapter, facts))
    own = "\n".join(target_lines(target, folder))
    body = [adapter.text.strip("\n"), fit, "\n".join(_implementation(name, adapter, facts, bool(fit)))]
    text = "\n\n\n".join(part for part in body if part) + "\n"
    imports = imports_of([*adapter.imports, *IMPORTS], own + text)
    head = f'"""An adapter for {name}, written by `attention-conformance audit`: its claims were observed."""'
    open_topics = "".join(f"\n{line}" for line in _undetermined(findings))
    return "\n".join([head, "", *imports, "", own, "", "", text]) + (f"{open_topics}\n" if open_topics else "")


def one_line(text: str) -> str:
    """Text in one line that ends no comment and no docstring."""
    return "".join(c if c.isprintable() else " " for c in text).replace('"""', "'''").replace("\\", "/")


def imports_of(lines: Sequence[str], text: str) -> list[str]:
    """Import lines in groups, without the names that the text does not need."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, imported = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, set()).update(imported.split(", ") if imported else [])
    groups: list[list[str]] = [["from __future__ import annotations"], [], [], []]
    for module in sorted(names, key=lambda module: (bool(names[module]), module)):
        needed = sorted(name for name in names[module] if re.search(rf"\b{name}\b", text))
        group = 1 if module in STANDARD else 3 if module.startswith("attention_conformance") else 2
        if needed:
            line = f"from {module} import {', '.join(needed)}"
            lines_of_names = "".join(f"    {name},\n" for name in needed)
            groups[group].append(line if len(line) <= 120 else f"from {module} import (\n{lines_of_names})")
        elif not names[module] and re.search(rf"\b{module.split()[-1]}\.", text):
            groups[group].append(module)
    return "\n\n".join("\n".join(group) for group in groups if group).splitlines()


def target_lines(target: str, folder: Path) -> Iterator[str]:
    """The lines that define `target`."""
    parsed = Target.parse(target)
    outer, *inner = parsed.name.split(".")
    alias = "_outer" if inner else "target"
    path = Path(parsed.place).resolve()
    same_folder = parsed.is_file and path.parent == folder.resolve() and path.stem.isidentifier()
    module = Path.cwd() / parsed.place.replace(".", "/")
    installed = not (parsed.is_file or module.is_dir() or module.with_suffix(".py").exists())
    if same_folder or installed:
        yield f"from {path.stem if same_folder else parsed.place} import {outer} as {alias}"
        yield from [f"target = {'.'.join(['_outer', *inner])}"] if inner else []
    elif parsed.is_file:
        place = os.path.relpath(path, folder.resolve()).replace(os.sep, "/")
        yield f'target: Any = load_target(str(Path(__file__).parent / "{place}") + ":{parsed.name}")'
    else:
        yield f'target: Any = load_target("{target}")  # from the folder that holds it'


def _implementation(name: str, adapter: Adapter, facts: Facts, fitted: bool) -> Iterator[str]:
    yield "adapter = Implementation("
    yield f'    "{name}",'
    yield "    Claims("
    yield f"        Scope.{scope(facts).name},"
    yield "        frozenset("
    yield "            {"
    for feature in Feature:
        if feature in features(facts):
            yield _commented(f"                Feature.{feature.name},", _evidence(feature, facts))
    yield "            }"
    yield "        ),"
    if claimed := settings(facts):
        yield "        Conventions("
        conventions = Conventions().claiming(claimed)
        for key in claimed:
            field = key.replace("-", "_")
            value = getattr(conventions, field)
            line = f"            {field}={type(value).__name__}.{value.name},"
            yield _commented(line, facts.evidence(convention_topic(key)))
        yield "        ),"
    if (own_dtypes := dtypes(facts)) != tuple(DTYPES):
        listed = ", ".join(f'"{dtype}"' for dtype in own_dtypes)
        yield _commented(f"        dtypes=({listed}{',' if len(own_dtypes) == 1 else ''}),", facts.evidence("dtypes"))
    yield from ["        fit=fit,"] if fitted else []
    if premises(facts).causal:
        yield _commented("        premises=Premises(causal=True),", facts.evidence("causal"))
    yield "    ),"
    yield f"    {adapter.run_under(premises(facts))},"
    yield from [f"    construct={adapter.construct},"] if adapter.construct else []
    yield ")"


def _evidence(feature: Feature, facts: Facts) -> str:
    topics = {Feature.PROJECTIONS: "level", Feature.CORE: "plain answer"}
    finding = facts.findings.get(topics.get(feature, feature))
    if finding is None:
        return "its absence was refused" if feature in PARAMETERS else ""
    evidence = finding.evidence or finding.answer
    return evidence if finding.determined else f"undetermined: {evidence}"


def _commented(line: str, comment: str) -> str:
    room, comment = WIDEST - len(line) - 4, one_line(comment)
    comment = comment if len(comment) <= room else comment[: max(0, room - 3)] + "..."
    return f"{line}  # {comment}" if comment else line


def _undetermined(findings: Sequence[Finding]) -> Iterator[str]:
    """What could not be determined, as comments."""
    rest = [finding for finding in findings if not finding.determined]
    if rest:
        yield "# Not determined:"
        yield from (_commented(f"# - {finding.topic}:", finding.evidence).replace(":  # ", ": ") for finding in rest)


def _fit(adapter: Adapter, facts: Facts) -> Iterator[str]:
    """A function that changes a case into the nearest one that it supports, where it does not support all."""
    same_mask = adapter.mask_shape is not MaskShape.FULL
    narrow = facts.answer("width of the output") == "that of the heads" and scope(facts) is Scope.MODULE
    if not (same_mask or narrow or adapter.one_mask or adapter.one_set_of_ids):
        return
    yield "def fit(case: Case) -> Case | Unsupported:"
    yield '    """The nearest case that it supports."""'
    if same_mask:
        yield f"    case = replace(case, mask_shape=MaskShape.{adapter.mask_shape.name})"
    if narrow:
        yield "    if case.module is not None:"
        yield "        heads_width = case.sizes.num_heads * case.sizes.d_v"
        yield "        case = replace(case, module=replace(case.module, out_dim=heads_width))"
    if adapter.one_mask and adapter.one_set_of_ids:
        yield "    if isinstance(fitted := one_mask(case), Unsupported):"
        yield "        return fitted"
        yield "    return one_set_of_ids(fitted)"
    elif adapter.one_mask:
        yield "    return one_mask(case)  # its causal flag describes its attention mask"
    else:
        yield f"    return {'one_set_of_ids(case)' if adapter.one_set_of_ids else 'case'}"
