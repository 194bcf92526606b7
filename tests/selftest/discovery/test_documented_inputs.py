"""Modules over samples and tokens: where their text states which axis is which, they have to attend over the tokens."""

import pytest

from attention_conformance.implementations.discovery.documented_inputs import states_samples_first
from attention_conformance.tests.selftest.discovery.making import Make, failing

BODY = '''
class f(nn.Module):
    """{said}"""
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, n_heads{inner})

    def forward(self, x):
        {first}
        return self.inner(x, x, x)[0]
'''
TORCHS = {"said": "", "inner": "", "first": "pass"}
"""Its default, tokens first."""
SAMPLES_FIRST = [
    {"said": "x: (batch, seq_len, d_model)"},
    {"said": "Takes x of shape [B, T, C]."},
    {"first": "# x: [batch_size, seq_len, d_model]"},
    {"first": "B, T, C = x.shape"},
    {"first": "n, tokens, e = x.size()"},
    {"said": "x: input features with shape of (num_windows*B, N, C)"},
]
TOKENS_FIRST = [{"said": "x (L, N, E): tokens"}, {"first": "seq_len, batch, width = x.shape"}]


def text(**changes: str) -> str:
    first = changes.get("first", "")
    shown = f"{first}\n        pass" if first.startswith("#") else first or "pass"
    return BODY.format(**{**TORCHS, **changes, "first": shown})


@pytest.mark.parametrize(("stated", "inner"), [(SAMPLES_FIRST, ""), (TOKENS_FIRST, ", batch_first=True")])
def test_a_module_that_attends_over_its_samples_against_its_text_fails(
    make: Make, stated: list[dict[str, str]], inner: str
) -> None:
    for changes in stated:
        made = make(text(inner=inner, **changes))
        assert any("that its text states" in each for each in made.stated), changes
        assert failing(made, "scores.dot-product"), changes


@pytest.mark.parametrize(("stated", "inner"), [(TOKENS_FIRST, ""), (SAMPLES_FIRST, ", batch_first=True")])
def test_one_that_attends_over_its_tokens_holds(make: Make, stated: list[dict[str, str]], inner: str) -> None:
    for changes in stated:
        made = make(text(inner=inner, **changes))
        assert not made.stated, changes
        assert not failing(made, "scores.dot-product"), changes


SILENT = [
    {},
    {"said": "x: (batch, features)"},
    {"said": "x: (L, B, E) or (B, L, E)"},
    {"said": "x: (N, C, T)"},
    {"said": "x: (B * L, N, C)"},
    {"said": "The output is (B, L, E)."},
    {"first": "x = x + 0  # x: (batch, seq_len, d_model)"},
]


@pytest.mark.parametrize("changes", SILENT)
def test_where_nothing_states_it_the_layout_is_taken_as_seen(make: Make, changes: dict[str, str]) -> None:
    made = make(text(**changes))
    assert not made.stated
    assert not failing(made, "scores.dot-product")


def test_what_is_turned_after_it_was_taken_apart_is_samples_first() -> None:
    class Turned:
        def forward(self, x):  # type: ignore[no-untyped-def]
            B, T, C = x.shape  # noqa: N806
            x = x.transpose(0, 1)
            T, B, C = x.shape  # noqa: N806
            return x.view(B, T, C)

    assert states_samples_first(Turned) is True


def test_a_layout_that_is_chosen_is_stated_by_nothing_else() -> None:
    class Chosen:
        def __init__(self, width: int, batch_first: bool = False) -> None:
            pass

        def forward(self, x):  # type: ignore[no-untyped-def]
            L, B, E = x.shape  # noqa: N806
            return x.view(L, B, E)

    assert states_samples_first(Chosen) is None
