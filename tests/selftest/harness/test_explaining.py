"""Explaining: every formula of the specification as plain characters, and a clause with all that is known of it."""

import re

import pytest

from attention_conformance.implementations.builtin.catalogue import BUILTIN, ON_REQUEST
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import CHAPTERS, load
from attention_conformance.tests.harness.explain.clause_page import WIDTH, explanation
from attention_conformance.tests.harness.explain.plain_math import formula, line
from attention_conformance.tests.selftest.sessions import Sessions

CLAUSES = load()
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(CHAPTERS.glob("*.md"))]
FORMULAS = [
    match[1] or match[2] for text in TEXTS for match in re.finditer(r"\$\$(.+?)\$\$|\$(.+?)\$", text, re.DOTALL)
]
SETS = {"{": r"\lbrace", "}": r"\rbrace"}


def explained(identifier: str) -> str:
    return "\n".join(explanation(CLAUSES[identifier], (*BUILTIN, *ON_REQUEST)))


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"s_{ij} = \tau \sum_{c=0}^{d_k-1} q_{ic} \, k_{jc} \tag{1.1}", "s_ij = τ Σ_(c=0 … d_k−1) q_ic k_jc"),
        (r"\tau = \frac{1}{\sqrt{d_k}} \tag{1.2}", "τ = 1/√(d_k)"),
        (r"\frac{1}{H} \sum_h p_{bhij} \text{ (before)}", "(1/H) Σ_h p_bhij (before)"),
        (r"A_i = \lbrace j : j \le i \rbrace", "A_i = {j : j ≤ i}"),
        (r"g'_j = 10^{-17} \, V^\top W^Q", "g′_j = 10⁻¹⁷ Vᵀ W^Q"),
        (r"d\sigma_h = - \sum_{b, i} x", "dσ_h = −Σ_(b,i) x"),
        (r"\tilde p_{b} \ne e^{\ell_1 - \ell}", "p̃_b ≠ e^(ℓ_1−ℓ)"),
        (r"\begin{pmatrix} a & -b \\ c & d \end{pmatrix} x", "(a, −b; c, d) x"),
        (r"\kappa(h) = \lfloor h / g \rfloor, \qquad H \bmod 2", "κ(h) = ⌊h / g⌋,   H mod 2"),
        (r"\min_{j \in A_i} v_{jc} \le a^{\text{mask}}_{ij}", "min_(j∈A_i) v_jc ≤ a_ij^mask"),
    ],
)
def test_formulas(latex: str, plain: str) -> None:
    assert formula(latex) == plain


def test_every_formula_of_the_specification_is_plain() -> None:
    assert len(FORMULAS) > 250
    for latex in FORMULAS:
        plain = formula(latex)
        assert "\\" not in plain
        assert plain == " ".join(plain.split(" ")).strip()
        assert {sign: plain.count(sign) for sign in SETS} == {sign: latex.count(tex) for sign, tex in SETS.items()}
        assert plain.count("(") == plain.count(")"), plain
        assert plain.isprintable(), plain


def test_letters_and_digits_of_a_formula_are_kept() -> None:
    for latex in FORMULAS:
        bare = re.sub(r"\\(tag|begin|end)\{.*?\}|\\text\{|\\[A-Za-z]+", " ", latex)
        plain = formula(latex).replace("Pr(", "(").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹ℝ", "0123456789R"))
        assert sorted(re.findall(r"[A-Z0-9]", bare)) == sorted(re.findall(r"[A-Z0-9]", plain)), plain


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="not known"):
        formula(r"\unheardof x")


def test_formulas_within_text() -> None:
    assert line(r"The factor $\tau$ is not $d_{out}$.") == "The factor τ is not d_out."


@pytest.mark.parametrize("identifier", CLAUSES)
def test_every_clause_can_be_explained(identifier: str) -> None:
    text = explained(identifier)
    assert text.startswith(f"{identifier} ({CLAUSES[identifier].level}, chapter {CLAUSES[identifier].chapter})")
    assert not set("\\$") & set(text)
    titles = ("applies to", "why it matters", "sources", "what breaks it", "known to deviate")
    headings = [part for part in text.splitlines() if part.endswith(":") and not part.startswith(" ")]
    assert headings == [f"{title}:" for title in titles]
    assert f"  ({CLAUSES[identifier].equation})  " in text or CLAUSES[identifier].equation is None
    for part in text.splitlines():
        assert len(part) <= WIDTH or "https://" in part or part.startswith("  ("), part


def test_what_breaks_a_clause() -> None:
    text = " ".join(explained("causal.square").split())
    for defect in catalogue():
        first = defect.clauses[0] == "causal.square"
        assert (f"{defect.id} ({defect.severity}): {defect.text.does} {defect.matters}" in text) is first
        assert (defect.id in text) is ("causal.square" in defect.clauses) or not re.search(rf"\b{defect.id}\b", text)


def test_who_deviates() -> None:
    (entry, *_), name = next((i.expected_failures, i.name) for i in BUILTIN if i.expected_failures)
    text = " ".join(explained(entry.clause).split())
    assert f"{name} in " in text
    assert f"{entry.reason} {entry.link}" in text


def test_a_note_below_a_clause_is_shown() -> None:
    assert "Convention: `causal-alignment=top-left` (the default)" in explained("causal.alignment")


def test_explain_prints_the_clauses_that_are_named(sessions: Sessions) -> None:
    result = sessions.run("--explain", "causal.square", "--explain", "values.*")
    assert result.ret == 0
    identifiers = re.findall(r"^([a-z.-]+) \((?:MUST|SHOULD|MAY), chapter", result.stdout.str(), re.MULTILINE)
    assert identifiers == [name for name in CLAUSES if name.startswith("values.") or name == "causal.square"]


def test_explain_suggests_the_nearest(sessions: Sessions) -> None:
    start = "ERROR: --explain 'causal.sqare' selects nothing; there are for example: causal.square"
    assert sessions.refused("--explain", "causal.sqare").startswith(start)
