"""Code as it is published: what is right in an uncommon way is not accused, and its wrong twin is."""

from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms, failing, write

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


DOCUMENTED = '''
def f(q, k, v, mask=None, chunk=8):
    """Attention.

    Args:
        mask: booleans, False where a key is hidden{of_mask}
        chunk: an int
    """
    s = q @ k.mT / q.shape[-1] ** 0.5
    return (s if mask is None else torch.where(mask, s, torch.full_like(s, -torch.inf))).softmax(-1) @ v
'''


@pytest.mark.parametrize(("of_mask", "wrong"), [("", False), (", or ints 0 and 1", True)])
def test_what_is_documented_of_another_parameter_is_said_of_no_mask(make: Make, of_mask: str, wrong: bool) -> None:
    made = make(DOCUMENTED.format(of_mask=of_mask))
    assert Feature.BOOL_MASK in made.claims
    assert failing(made, "relations.alternatives") == ({"relations.alternatives"} if wrong else set())


PADDED = """
def f(q, k, v, key_padding_mask=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    if key_padding_mask is not None:
        s = s + torch.zeros(s.shape[0], 1, 1, s.shape[-1]).to(s).masked_fill(~key_padding_mask{shown}, -1e4)
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("shown", "wrong"), [("[:, None, None]", set()), ("[:, None, None].roll(1, -1)", {"masks.key-padding"})]
)
def test_padding_that_is_added_leaves_a_sample_without_keys_as_it_is(make: Make, shown: str, wrong: set[str]) -> None:
    made = make(PADDED.format(shown=shown))
    assert Feature.KEY_PADDING in made.claims
    assert "a row without keys gets what it gets without the mask" in made.stated
    assert failing(made, "masks.empty-row-padding", "masks.key-padding") == wrong


DIVIDED = '''
def f(q, k, v, {name}=None, mask=None, is_causal=None):
    """Attention.

    Args:
        {name}: a number for scores{default}
    """
    if mask is not None and is_causal is not None:
        raise ValueError("a mask or a flag")
    {name} = {name} if {name} else q.shape[-1] ** 0.5
    s = {scores}
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v
'''
QUOTIENT = "q @ k.mT / {name}"


@pytest.mark.parametrize(
    ("name", "default", "wrong"),
    [
        ("scale", " (default: d_k ** 0.5)", False),
        ("scale_factor", "; sqrt(d_k) by default", False),
        ("scale", "", True),
        ("scale", " (default: 1 / sqrt(d_k))", True),
    ],
)
def test_a_scale_that_is_documented_as_a_root_may_divide(make: Make, name: str, default: str, wrong: bool) -> None:
    made = make(DIVIDED.format(name=name, default=default, scores=QUOTIENT.format(name=name)))
    assert Feature.SCALE in made.claims
    assert (f"its {name!r} divides scores" in made.about) is not wrong
    assert ("scores.scale-explicit" in failing(made, "scores.scale-explicit")) is wrong
    assert wrong or not failing(made, "relations.alternatives")


def test_what_is_documented_as_a_root_has_to_divide_all_scores(make: Make) -> None:
    scores = "torch.cat([q[..., :1, :] @ k.mT / scale, q[..., 1:, :] @ k.mT], -2)"
    assert failing(make(DIVIDED.format(name="scale", default=" (sqrt(d_k))", scores=scores)), "scores.dot-product")


IN_WINDOW = '''
def f(Q, K, V, window_size):
    """Each query sees so many keys on each side.

    Q: queries of shape (seq_len, d_k)
    K: keys of shape (seq_len, d_k)
    """
    out = np.zeros((len(Q), V.shape[1]), V.dtype)
    for i in range(len(Q)):
        near = slice(max(0, i - window_size), min(len(Q), i + window_size + 1))
        s = Q[i] @ K[near].T / Q.shape[1] ** {power}
        e = np.exp(s - s.max())
        out[i] = e / e.sum() @ V[near]
    return out
'''


@pytest.mark.parametrize(("power", "wrong"), [("0.5", False), ("1.0", True)])
def test_a_window_that_a_function_of_one_head_needs_is_judged(make: Make, power: str, wrong: bool) -> None:
    made = make(IN_WINDOW.format(power=power))
    assert Feature.WINDOW in made.claims
    assert Feature.CROSS not in made.claims
    assert ("window.extent" in failing(made, "scores.dot-product", "window.*")) is wrong


SETTINGS = """
class f(nn.Module):
    def __init__(self, __C):
        super().__init__()
        self.__C = __C
        self.linear_v, self.linear_k, self.linear_q, self.linear_merge = (
            nn.Linear(__C.HIDDEN_SIZE, __C.HIDDEN_SIZE) for _ in range(4)
        )
        self.dropout = nn.Dropout(__C.DROPOUT_R)
    def forward(self, v, k, q, mask):
        q, k, v = (
            each.unflatten(-1, (self.__C.MULTI_HEAD, self.__C.HIDDEN_SIZE_HEAD)).transpose(1, 2)
            for each in (self.linear_q(q), self.linear_k(k), self.linear_v(v))
        )
        s = q @ k.mT / {width} ** 0.5
        p = self.dropout((s if mask is None else s.masked_fill(mask, -1e9)).softmax(-1))
        return self.linear_merge((p @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("width", "wrong"), [("self.__C.HIDDEN_SIZE_HEAD", False), ("self.__C.HIDDEN_SIZE", True)])
def test_settings_whose_name_python_changes_are_given(make: Make, width: str, wrong: bool) -> None:
    made = make(SETTINGS.format(width=width))
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())


WIDE_HEADS = """
class f(nn.Module):
    def __init__(self, in_d, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_linear, self.k_linear, self.v_linear = (nn.Linear(in_d, n_heads * in_d) for _ in range(3))
        self.out_layer, self.normalize = nn.Linear(n_heads * in_d, in_d), nn.LayerNorm(in_d)
    def forward(self, q, k, v, mask=None):
        q, k, v = (split(x, self.n_heads) for x in (self.q_linear(q), self.k_linear(k), self.v_linear(v)))
        s = q @ k.mT / k.shape[-1] ** 0.5
        p = {weights}
        return self.normalize(self.out_layer((p @ v).transpose(1, 2).flatten(2)))
"""


@pytest.mark.parametrize(
    ("weights", "wrong"),
    [
        ("(s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1)", False),
        ("s.softmax(-1) if mask is None else s.softmax(-1).masked_fill(~mask, -torch.inf)", True),
    ],
)
def test_heads_as_wide_as_the_inputs_are_judged_one_alone(make: Make, weights: str, wrong: bool) -> None:
    made = make(WIDE_HEADS.format(weights=weights))
    assert made.findings.keys() == {"n_heads"}
    assert Feature.BOOL_MASK in made.claims
    assert ("masks.bool" in failing(made, "masks.bool", "scores.dot-product")) is wrong


IN_BLOCKS = """
def f(query, key, value, query_chunk_size={size}, key_chunk_size={size}):
    queries, keys = query.shape[2] // query_chunk_size, key.shape[2] // key_chunk_size
    blocks = query.reshape(*query.shape[:2], queries, query_chunk_size, -1)
    s = blocks @ key.reshape(*key.shape[:2], 1, keys * key_chunk_size, -1).mT / query.shape[-1] ** {power}
    return (s.softmax(-1) @ value[:, :, None]).flatten(2, 3)
"""


@pytest.mark.parametrize(("power", "wrong"), [("0.5", False), ("1.0", True)])
def test_smaller_blocks_are_given_where_usual_lengths_are_refused(make: Make, power: str, wrong: bool) -> None:
    made = make(IN_BLOCKS.format(size=2048, power=power))
    assert "given blocks of at most 4 tokens in 'query_chunk_size', 'key_chunk_size'" in made.about
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())


OTHER_BLOCKS = """
def f(query, key, value, q_block_size=512, k_block_size=512):
    found = []
    for at in range(0, query.shape[2], q_block_size):
        s = query[:, :, at : at + q_block_size] @ key.mT / query.shape[-1] ** 0.5
        top, total, out = -torch.inf, 0.0, 0.0
        for begin in range(0, key.shape[2]{rest}, k_block_size):
            part = s[..., begin : begin + k_block_size]
            most = torch.maximum(torch.as_tensor(top), part.amax(-1, keepdim=True))
            e, less = (part - most).exp(), (torch.as_tensor(top) - most).exp()
            total = total * less + e.sum(-1, keepdim=True)
            top, out = most, out * less + e @ value[:, :, begin : begin + k_block_size]
        found.append(out / total)
    return torch.cat(found, 2)
"""


@pytest.mark.parametrize(
    ("rest", "wrong"), [("", False), (" - key.shape[2] % k_block_size * (k_block_size < 8)", True)]
)
def test_sizes_of_blocks_change_no_answer(make: Make, rest: str, wrong: bool) -> None:
    made = make(OTHER_BLOCKS.format(rest=rest))
    assert "with q_block_size=3, k_block_size=3" in made.alternatives
    assert failing(made, "relations.alternatives") == ({"relations.alternatives"} if wrong else set())


OF_NUMPY = """
class Dense:
    def __init__(self, inputs, units):
        self.w, self.b = np.random.randn(inputs, units), np.zeros(units)
        self.v, self.m, self.v_hat, self.m_hat = (np.zeros_like(self.w) for _ in range(4))
        self.vb, self.mb, self.vb_hat, self.mb_hat = (np.zeros_like(self.b) for _ in range(4))
    def forward(self, x):
        return x @ self.w + self.b
    def backward(self, error):
        return error @ self.w.T

class f:
    def __init__(self, d_model=512, heads_num=8, dropout=0.1):
        self.h, self.rate = heads_num, dropout
        self.Q_linear, self.K_linear, self.V_linear, self.O_linear = (Dense(d_model, d_model) for _ in range(4))
    def split(self, x):
        return x.reshape(len(x), -1, self.h, x.shape[-1] // self.h).transpose(0, 2, 1, 3)
    def join(self, x):
        return x.transpose(0, 2, 1, 3).reshape(len(x), x.shape[2], -1)
    def forward(self, query, key, value, mask, training=True):
        layers = (self.Q_linear, query), (self.K_linear, key), (self.V_linear, value)
        self.q, self.k, self.v = (self.split(layer.forward(x)) for layer, x in layers)
        s = self.q @ self.k.swapaxes(-1, -2) / self.q.shape[-1] ** 0.5
        s = np.where(np.asarray(mask)[:, None] == 0, -np.inf, s)
        e = np.exp(s - s.max(-1, keepdims=True))
        self.p = e / e.sum(-1, keepdims=True)
        if training:
            raise RuntimeError("it draws numbers")
        return self.O_linear.forward(self.join(self.p @ self.v))
    def backward(self, error):
        error = self.split(self.O_linear.backward(error))
        v, p = self.p.swapaxes(-1, -2) @ error, error @ self.v.swapaxes(-1, -2)
        s = self.p * (p - (p * self.p).sum(-1, keepdims=True)) / self.q.shape[-1] ** 0.5{wrong}
        layers = (self.Q_linear, s @ self.k), (self.K_linear, s.swapaxes(-1, -2) @ self.q), (self.V_linear, v)
        return tuple(layer.backward(self.join(x)) for layer, x in layers)
"""


@pytest.mark.parametrize("wrong", ["", " / len(error)"])
def test_a_class_of_arrays_is_judged_with_its_backward_pass_and_not_in_training(make: Make, wrong: str) -> None:
    made = make(OF_NUMPY.format(wrong=wrong))
    assert not made.findings
    assert failing(made, "modules.as-built", dtype="float64") == ({"modules.as-built"} if wrong else set())
