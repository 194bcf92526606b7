"""Whole modules: what is left out where the answer is known is in place where relations are checked."""

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, refused
from attention_conformance.tests.selftest.thorough import thorough

GATED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.to_gate = {gate}
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = attend(q, k, v{options})[0]
        return {returned}
"""
LINEAR = "nn.Linear(dim, heads)"
RESHAPED = "self.to_gate(x).sigmoid().reshape(len(x), self.h, -1, 1)"
TRANSPOSED = "self.to_gate(x).sigmoid().mT[..., None]"
CUT = "self.to_gate(x).sigmoid().detach().mT[..., None]"
OUT = "self.out((y * {opened}).transpose(1, 2).flatten(2))"
TABLE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_attention_bias = nn.Embedding(8, heads)
    def forward(self, x, past=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        last, n = k.shape[2], q.shape[2]
        at = torch.arange(last)
        far = self.relative_attention_bias((at[:, None] - at).clamp(0, 7)).permute(2, 0, 1)
        later = torch.ones(n, last, dtype=torch.bool).triu(last - n + 1)
        s = (q @ k.mT / q.shape[-1] ** 0.5 + far[:, {rows}]).masked_fill(later, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)
"""


def gated(opened: str, causal: bool = False, gate: str = LINEAR) -> str:
    options = ", causal=True" if causal else ""
    return GATED.format(gate=gate, options=options, returned=OUT.format(opened=opened))


def is_caught(make: Make, text: str) -> bool:
    made = make(text)
    assert Feature.AS_BUILT in made.claims
    (found,) = run(made, ("modules.as-built",), ("float32",))
    assert found.status in (Status.FAIL, Status.PASS)
    return found.status is Status.FAIL


@pytest.mark.parametrize(
    ("opened", "causal", "wrong"),
    [(TRANSPOSED, False, False), (TRANSPOSED, True, False), (RESHAPED, False, True), (CUT, True, True)],
)
def test_gates_are_in_place(make: Make, opened: str, causal: bool, wrong: bool) -> None:
    """They are moved with their tokens, and let gradients through."""
    assert is_caught(make, gated(opened, causal)) is wrong


@pytest.mark.parametrize(("rows", "wrong"), [("last - n :", False), (":n", True)])
def test_a_table_is_in_place_where_tokens_come_in_pieces(make: Make, rows: str, wrong: bool) -> None:
    assert is_caught(make, TABLE.format(rows=rows)) is wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_training_is_evaluation_where_nothing_is_dropped(make: Make, wrong: bool) -> None:
    """Dropout by a function is seen, as its answers differ, and is no mistake."""
    dropped = "F.dropout(self.to_gate(x), 0.5, self.training).sigmoid().mT[..., None]"
    assert (
        is_caught(make, gated("(self.training + self.to_gate(x)).sigmoid().mT[..., None]" if wrong else dropped))
        is wrong
    )


@pytest.mark.parametrize(
    ("spread", "wrong"), [("repeat_interleave(x.shape[-1] // self.h)", False), ("repeat({})", True)]
)
def test_heads_move_with_all_their_parameters(make: Make, spread: str, wrong: bool) -> None:
    each = f"self.to_gate.{spread.format('x.shape[-1] // self.h')}.unflatten(0, (self.h, -1))[:, None]"
    assert is_caught(make, gated(each, gate="nn.Parameter(torch.ones(heads))")) is wrong


@pytest.mark.parametrize(("opened", "idle"), [("(1 + 0 * self.to_gate(x)).mT[..., None]", True), (TRANSPOSED, False)])
def test_a_parameter_that_changes_nothing_is_not_judged(make: Make, opened: str, idle: bool) -> None:
    assert ("to_gate.weight" in make(gated(opened)).findings) is idle


def test_a_part_that_knows_places_may_do_so(make: Make) -> None:
    placed = "nn.Parameter(torch.zeros(99, heads))"
    assert not is_caught(make, gated("(1 + self.to_gate[: x.shape[1]]).mT[..., None]", gate=placed))


COUNTED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, prefix_len=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        seen = (at <= at[:, None])[None]
        if prefix_len is not None:
            seen = seen | (at < {count})
        return self.out(attend(q, k, v, seen[:, None])[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("count", "wrong"), [("prefix_len[:, None, None]", False), ("prefix_len.max()", True)])
def test_counts_of_a_sample_are_its_own(make: Make, count: str, wrong: bool) -> None:
    """What they mean is unknown, and needs not be known: a sample alone gets its answer."""
    assert is_caught(make, COUNTED.format(count=count)) is wrong


def test_nothing_is_claimed_where_all_parts_are_known(make: Make) -> None:
    assert Feature.AS_BUILT not in make(gated("1", gate="None")).claims


def test_heads_inside_a_wider_axis_are_not_moved(make: Make) -> None:
    """What lies next to other things in one axis is not moved with the heads: where is unknown."""
    text = """
class f(nn.Module):
    def __init__(self, dim, heads, r=4):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.lora_a, self.lora_b = nn.Linear(dim, r, bias=False), nn.Linear(r, 3 * dim, bias=False)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.qkv(x) + self.lora_b(self.lora_a(x))).chunk(3, -1))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
    assert not is_caught(make, text)


OPTIONAL = """
class f(nn.Module):
    def __init__(self, dim, heads, qk_norm=False, gated=None):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        norm = nn.LayerNorm if qk_norm else lambda width: nn.Identity()
        self.q_norm, self.k_norm = norm(dim // heads), norm(dim // heads)
        self.gate = nn.Linear(dim, heads) if gated else None
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = attend(self.q_norm(q), self.{norm}(k), v)[0]
        if self.gate is not None:
            y = y * self.gate(x).sigmoid(){opened}[..., None]
        return self.out(y.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("opened", "wrong"), [(".mT", False), (".reshape(len(x), self.h, -1)", True)])
def test_an_option_that_is_off_is_turned_on(make: Make, opened: str, wrong: bool) -> None:
    assert is_caught(make, OPTIONAL.format(norm="k_norm", opened=opened)) is wrong


@pytest.mark.parametrize(("norm", "idle"), [("k_norm", False), ("q_norm", True)])
def test_what_an_option_adds_and_nothing_reads_is_not_judged(make: Make, norm: str, idle: bool) -> None:
    assert ("k_norm.weight" in make(OPTIONAL.format(norm=norm, opened=".mT")).findings) is idle


UNKNOWN = """
class f(nn.Module):
    def __init__(self, dim, heads, rank):
        super().__init__()
        self.h, self.mixed = heads, nn.Linear(dim, heads * rank)
        self.down, self.up = nn.Linear(dim, rank), nn.Linear(rank, 2 * heads * rank)
        self.out = nn.Linear(heads * rank, dim)
    def forward(self, x, past=None):
        held = self.down(x) if past is None else torch.cat([past[0], self.down({new})], 1)
        k, v = (split(each, self.h) for each in self.up(held).chunk(2, -1))
        n, last = x.shape[1], held.shape[1]
        seen = torch.ones(n, last, dtype=torch.bool).tril(last - n)
        y = attend(split(self.mixed(x), self.h), k, v, seen)[0]
        return self.out(y.transpose(1, 2).flatten(2)), held[None].expand(2, -1, -1, -1)
"""


@pytest.mark.parametrize(("new", "wrong"), [("x", False), ("x.flip(1)", True)])
def test_an_unknown_form_is_judged_by_relations_alone(make: Make, new: str, wrong: bool) -> None:
    text = UNKNOWN.format(new=new)
    assert "rank" in refused(make, text)
    made = candidate("mine.py:f", {}, in_part=True)
    assert [*made.findings] == ["its numbers"]
    (found,) = run(made, dtypes=("float32",))
    assert (found.clause, found.status) == ("modules.as-built", Status.FAIL if wrong else Status.PASS)


@thorough
def test_an_unknown_form_is_refused_where_samples_are_not_kept_apart(make: Make) -> None:
    text = UNKNOWN.format(new="x").replace("self.down(x)", "self.down(x).cumsum(0)")
    assert refused(make, text)
    with pytest.raises(TargetError):
        candidate("mine.py:f", {}, in_part=True)


BUCKETS = """
class f(nn.Module):
    def __init__(self, dim, heads, num_buckets=8, max_distance=20):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        ahead, half = at - at[:, None], self.num_buckets // 2
        far, exact = ahead.abs(), half // 2
        log = (far.clamp(1) / exact).log() / math.log(self.max_distance {over})
        near = torch.where(far < exact, far, (exact + (log * (half - exact)).long()).clamp(max=half - 1))
        biases = self.relative_attention_bias(near + half * (ahead > 0)).permute(2, 0, 1)
        return self.out(attend(q, k, v, biases)[0].transpose(1, 2).flatten(2))
"""
OWN_SIZES = "class Sizes:\n    num_buckets, max_distance = 8, 20\n"
KEPT_BUCKETS = OWN_SIZES + (
    BUCKETS.replace("self.num_buckets, self.max_distance = num_buckets, max_distance", "")
    .replace(", num_buckets=8, max_distance=20", "")
    .replace("Embedding(num_buckets", "Embedding(Sizes.num_buckets")
    .replace("self.max_distance", "self.cfg.max_distance")
    .replace("self.num_b", "self.cfg.num_b")
    .replace("super().__init__()", "super().__init__(); self.cfg = Sizes()")
)
WINDOW = """
class f(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        down, along = window_size
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * down - 1) * (2 * along - 1), num_heads))
        y, x = (each.flatten() for each in torch.meshgrid(torch.arange(down), torch.arange(along), indexing="ij"))
        rows = (y[:, None] - y + down - 1) * (2 * {side} - 1) + x[:, None] - x + along - 1
        self.register_buffer("rows", rows)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        biases = self.relative_position_bias_table[self.rows].permute(2, 0, 1)
        return self.out(attend(q, k, v, biases)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (BUCKETS.format(over="/ exact"), False),
        (BUCKETS.format(over=""), True),
        (KEPT_BUCKETS.format(over="/ exact"), False),
        (KEPT_BUCKETS.format(over=""), True),
        (WINDOW.format(side="along"), False),
        (WINDOW.format(side="down"), True),
    ],
)
def test_pairs_of_tokens_read_their_rows_of_a_table(make: Make, text: str, wrong: bool) -> None:
    assert is_caught(make, text) is wrong


LAYER = """
class f:
    def __init__(self, d_model, num_heads):
        draw = np.random.default_rng(0)
        self.h = num_heads
        self.Wq, self.Wk, self.Wv, self.Wo = draw.standard_normal((4, d_model, d_model)) / d_model**0.5
    def heads(self, x):
        return x.reshape(*x.shape[:2], self.h, -1).swapaxes(1, 2)
    def joined(self, x):
        return x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1)
    def forward(self, x):
        q, k, v = (self.heads(x @ w) for w in (self.Wq, self.Wk, self.Wv))
        s = q @ k.swapaxes(-1, -2) / float(np.sqrt(q.shape[-1]))
        e = np.exp(s - s.max(-1, keepdims=True))
        self.held = q, k, v, e / e.sum(-1, keepdims=True)
        return self.joined(self.held[3] @ v) @ self.Wo
    def backward(self, dout):
        q, k, v, p = self.held
        do = self.heads(dout @ self.Wo.T)
        dp = do @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / float(np.sqrt(q.shape[-1]))
        dv, dk = p.swapaxes(-1, -2) @ do, ds.swapaxes(-1, -2) @ q
        return {returned}
"""
DX = "self.joined(ds @ k) @ self.Wq.T + self.joined(dk) @ self.Wk.T"


@pytest.mark.parametrize(("returned", "wrong"), [(DX + " + self.joined(dv) @ self.Wv.T", False), (DX, True)])
def test_what_a_class_of_numpy_returns_from_its_backward_pass_is_the_slope(
    make: Make, returned: str, wrong: bool
) -> None:
    assert is_caught(make, LAYER.format(returned=returned)) is wrong


def test_a_backward_pass_that_returns_no_gradient_of_its_input_is_not_judged(make: Make) -> None:
    assert Feature.AS_BUILT not in make(LAYER.format(returned="None")).claims


CONFIGURED = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, width = config.n_head, config.n_embd
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.gated, self.first = getattr(config, "gated", False), getattr(config, "batch_first", True)
        if self.gated:
            self.gate = nn.Linear(width, self.h)
    def forward(self, x):
        if not self.first:
            self.first, x = True, x.transpose(0, 1)
            answer, self.first = self(x).transpose(0, 1), False
            return answer
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        y = attend(q, k, v)[0]
        if self.gated:
            y = y * self.gate(x).sigmoid(){opened}[..., None]
        return y.transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(("opened", "wrong"), [(".mT", False), (".reshape(len(x), self.h, -1)", True)])
def test_a_setting_that_is_off_is_turned_on(make: Make, opened: str, wrong: bool) -> None:
    """Without an output projection heads in another order are outputs in another order; axes of inputs stay."""
    assert is_caught(make, CONFIGURED.format(opened=opened)) is wrong


REMEMBERING = """
class f(nn.Module):
    def __init__(self, dim, heads, causal=False, num_memories=0):
        super().__init__()
        self.h, self.causal, self.qkv, self.out = heads, causal, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.kept = nn.Parameter(torch.randn(2, heads, num_memories, dim // heads)) if num_memories else None
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if self.kept is not None:
            k, v = (torch.cat([m.expand(len(x), -1, -1, -1), each], 2) for m, each in zip(self.kept, (k, v)))
        n, last = q.shape[2], k.shape[2]
        seen = torch.ones(n, last, dtype=torch.bool).tril({first}) if self.causal else None
        return self.out(attend(q, k, v, seen)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("first", "wrong"), [("last - n", False), ("0", True)])
def test_two_options_leave_what_both_leave_alone(make: Make, first: str, wrong: bool) -> None:
    assert is_caught(make, REMEMBERING.format(first=first)) is wrong


REMEMBERED = """
class f(nn.Module):
    def __init__(self, dim, heads, num_mem_kv=0):
        super().__init__()
        self.h, self.m, self.qkv, self.out = heads, num_mem_kv, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        if num_mem_kv:
            self.mem_kv = nn.Parameter(torch.randn(2, heads, num_mem_kv, dim // heads))
    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if self.m:
            k, v = (torch.cat([m.expand(len(x), -1, -1, -1), each], 2) for m, each in zip(self.mem_kv, (k, v)))
        mask = None if mask is None else F.pad(mask, {padded}, value=True)[:, None, None]
        return self.out(attend(q, k, v, mask)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("padded", "wrong"), [("(self.m, 0)", False), ("(0, self.m)", True)])
def test_a_mask_hides_the_same_tokens_with_an_option(make: Make, padded: str, wrong: bool) -> None:
    assert is_caught(make, REMEMBERED.format(padded=padded)) is wrong
