"""Code as it is published: what is right in an uncommon way is not accused, and its wrong twin is."""

from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms, write


def failing(made: Implementation, *clauses: str) -> set[str]:
    found = run(made, clauses, ("float32",))
    assert any(each.checks for each in found)
    return {each.clause for each in found if each.status is Status.FAIL}


AGAIN = """
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.held = [q, k, v]
        with torch.no_grad():
            return attend(q, k, v)[0]

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            held = [x.detach().requires_grad_() for x in ctx.held]
            found = torch.autograd.grad(attend(*held)[0], held, grad)
        {after}
        return found

def f(q, k, v):
    return Again.apply(q, k, v)
"""


@pytest.mark.parametrize(("after", "wrong"), [("del ctx.held", False), ("ctx.held[1] = 2 * ctx.held[1]", True)])
def test_a_second_backward_pass_may_end_in_any_error_but_not_be_wrong(make: Make, after: str, wrong: bool) -> None:
    assert failing(make(AGAIN.format(after=after)), "gradients.in-turn") == ({"gradients.in-turn"} if wrong else set())


@pytest.mark.parametrize(("moved", "wrong"), [(4e-16, False), (1e-6, True)])
def test_relations_that_no_input_changes_are_compared_up_to_roundings(moved: float, wrong: bool) -> None:
    def answer(problem: Problem, device: str) -> Result:
        same = Result(0.0 * problem.query + 1 / 6)
        return replace(same, others={"farther on": Result(same.output + moved)})

    claims = Claims(Scope.MODULE, frozenset({Feature.AS_BUILT}))
    made = Implementation("candidate", claims, answer, modes={Feature.AS_BUILT: answer})
    assert failing(made, "modules.as-built") == ({"modules.as-built"} if wrong else set())


RELATIVE = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, d = num_heads, d_model // num_heads
        self.query_proj, self.out_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.key_proj, self.value_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.pos_proj = nn.Linear(d_model, d_model, bias=False)
        self.{first} = nn.Parameter(torch.randn(num_heads, d))
        self.{second} = nn.Parameter(torch.randn(num_heads, d))
    def forward(self, x, pos_embedding):
        q, k, v = (split(each(x), self.h) for each in (self.query_proj, self.key_proj, self.value_proj))
        place = split(self.pos_proj(pos_embedding), self.h)
        s = (q + self.{first}[:, None]) @ k.mT + (q + self.{second}[:, None]) @ place.mT
        return self.out_proj(((s / {width} ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("first", "second"), [("u_bias", "v_bias"), ("pos_bias_u", "pos_bias_v")])
def test_the_bias_v_of_relative_positions_is_none_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, width in (("right", "q.shape[-1]"), ("wrong", "x.shape[-1]")):
        write(tmp_path, f"{name}.py", START + RELATIVE.format(first=first, second=second, width=width))
    right, wrong = (candidate(f"{name}.py:f", {}) for name in ("right", "wrong"))
    assert right.findings.keys() >= {first, second}
    assert_conforms(right)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(wrong)
