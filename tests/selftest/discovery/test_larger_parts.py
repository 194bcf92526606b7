"""What is more than attention is refused and not accused; a mask that has to be given is; old ways are understood."""

import pytest

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing, refused

BLOCK = """
class f(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.norm, self.last = n_heads, nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
    def train(self, mode=True):
        super().train(mode)
    def forward(self, {inputs}):
        q, k, v = (split(part(each), self.h) for part, each in zip((self.q, self.k, self.v), {each}))
        a = self.o(attend(q, k, v)[0].transpose(1, 2).flatten(2))
        return {answer}
"""
SELF = {"inputs": "x", "each": "(x, x, x)"}


def test_a_train_of_its_own_may_return_nothing(make: Make) -> None:
    assert_conforms(make(BLOCK.format(**SELF, answer="a")))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            "self.last(self.norm(x + a) + self.o(self.norm(x + a)))",
            "its answer depends on its inputs without their values, too",
        ),
        ("torch.cat([a[:, :1], x[:, 1:]], 1)", "it answers the first token alone, and gives back the others"),
    ],
)
def test_a_block_and_class_attention_are_refused(make: Make, answer: str, why: str) -> None:
    assert refused(make, BLOCK.format(**SELF, answer=answer)).startswith(why)


@pytest.mark.parametrize("shown", ["mask", "~mask"])
def test_a_mask_that_has_to_be_given_hides_nothing_where_a_problem_has_none(make: Make, shown: str) -> None:
    made = make(
        "def f(query, key, value, mask):\n"
        "    s = query @ key.mT / query.shape[-1] ** 0.5\n"
        f"    s[..., ~({shown})] = -torch.inf\n"
        "    return s.softmax(-1) @ value\n"
    )
    assert Feature.BOOL_MASK in made.claims
    assert_conforms(made)


GROUPED = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, self.k_h, width = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, width // self.h * self.k_h) for _ in "kv")
    def forward(self, x, attention_mask=None):
        q, k, v = (split(f(x), h) for f, h in ((self.q, self.h), (self.k, self.k_h), (self.v, self.k_h)))
        k, v = (each.repeat_interleave(self.h // self.k_h, 1) for each in (k, v))
        s = q @ k.mT / q.shape[-1] ** 0.5 + torch.full(q.shape[-2:-1] * 2, -torch.inf).triu(1)
        if attention_mask is not None:
            s = s + (1.0 - attention_mask[:, None, None].to(s.dtype)) * -1e9
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_heads_of_keys_in_settings_and_rows_that_are_emptied_twice(make: Make) -> None:
    made = make(GROUPED)
    assert Feature.GROUPED in made.claims
    assert "rows that causality and padding empty together not claimed" in made.about
    case = Case(padding=Padding.LEFT)
    assert isinstance(fit(case, made.claims), Unsupported)
    assert_conforms(made)


HEADED = """
class f(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.qkv, self.o = n_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        {own}
    def forward(self, x):
        q, k, v = map({parts}, (x, x, x), (0, 1, 2))
        s = q @ k.mT * q.shape[-1] ** -0.5
        a = {after}
        return {answer}
    def stacked(self, x, at):
        return split(self.qkv(x).chunk(3, -1)[at], self.h)
    def rolled(self, x, at):
        return split(self.qkv(x).roll(5, -1).chunk(3, -1)[at], self.h)
"""
OTHER_FORMS = {
    "it adds its input, and none of its layers gives the rest alone": {
        "after": "s.softmax(-1) @ v",
        "answer": "x + F.linear(a.transpose(1, 2).flatten(2), self.o.weight)",
    },
    "its answer depends on its inputs without their values, too": {
        "after": "s.softmax(-1) @ v + q",
        "answer": "self.o(a.transpose(1, 2).flatten(2))",
    },
    "its scores are 0.577 times the usual ones, next to 'table'": {
        "own": "self.table = nn.Parameter(torch.randn(2, d_model))",
        "after": "((s + (x @ self.table.mT).sum(-1)[:, None, None]) / 3**0.5).softmax(-1) @ v",
        "answer": "self.o(a.transpose(1, 2).flatten(2))",
    },
}


@pytest.mark.parametrize("why", OTHER_FORMS)
def test_what_is_no_attention_with_a_mistake_is_refused(make: Make, why: str) -> None:
    assert refused(make, HEADED.format(**{"own": "", "parts": "self.stacked", **OTHER_FORMS[why]})).startswith(why)


def test_weights_that_lie_in_no_known_way_are_not_judged(make: Make) -> None:
    text = HEADED.format(
        own="", parts="self.rolled", after="s.softmax(-1) @ v", answer="self.o(a.transpose(1, 2).flatten(2))"
    )
    assert "values" in refused(make, text)


@pytest.mark.parametrize("after", ["(s * 0.6).softmax(-1) @ v", "s.softmax(1) @ v", "s.softmax(-1) @ k"])
def test_an_attention_with_a_mistake_is_judged(make: Make, after: str) -> None:
    text = HEADED.format(own="", parts="self.stacked", after=after, answer="self.o(a.transpose(1, 2).flatten(2))")
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(text))


ROOTED = {
    "own": "self.table = nn.Parameter(torch.randn(2, d_model))",
    "after": "(q @ k.mT / {root} + (x @ self.table.mT).sum(-1)[:, None, None] / q.shape[-1] ** 0.5).softmax(-1) @ v",
    "answer": "self.o(a.transpose(1, 2).flatten(2))",
    "parts": "self.stacked",
}


@pytest.mark.parametrize(("root", "wrong"), [("q.shape[-1] ** 0.5", False), ("1", True)])
def test_what_takes_the_root_of_a_width_scales_its_scores(make: Make, root: str, wrong: bool) -> None:
    made = make(HEADED.format(**{**ROOTED, "after": ROOTED["after"].format(root=root)}))
    assert bool(failing(made, "scores.dot-product")) is wrong


@pytest.mark.parametrize(("root", "wrong"), [("q.shape[-1] ** 0.5", False), ("1", True)])
def test_what_states_that_it_is_scaled_has_to_be(make: Make, root: str, wrong: bool) -> None:
    text = HEADED.format(**{**ROOTED, "after": ROOTED["after"].format(root=root).replace("q.shape[-1] ** 0.5", "2")})
    stated = '    """Scaled dot-product attention with a bias."""\n    def __init__'
    made = make(text.replace("    def __init__", stated, 1))
    assert bool(failing(made, "scores.dot-product")) is wrong
