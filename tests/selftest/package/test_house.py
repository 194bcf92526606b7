"""The house: rooms import only rooms below them, files are short, names are unique, and every room has a purpose."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention_conformance.spec.clauses import chapters

ROOT = Path(__file__).parents[3]
NAME = "attention_conformance"
TOPS = ("spec", "reference", "implementations", "tests")
ROOMS = (
    "spec",
    "reference",
    "implementations.api",
    "implementations.adapters",
    "implementations.builtin",
    "implementations.discovery",
    "implementations.worker",
    "implementations.defects",
    "implementations.packages",
    "tests.report",
    "tests.harness.judge",
    "tests.conformance",
    "tests.harness.explain",
    "tests.harness.run",
    "tests.benchmarks",
    "tests.cli",
    "tests.measurements",
    "tests.selftest",
)
"""Lowest first: a room imports only itself and rooms before it."""
FURTHER_LIMITS = {
    **{room: ("spec", "implementations") for room in ROOMS if room.startswith("implementations")},
    "tests.report": ("spec", "tests.report"),
}
"""The implementations never see what is expected of them; the report holds plain records."""
LONGEST = 400
TOPICS = {name.replace("-", "_") for name in chapters()}
SAME_NAME = {"__init__", "__main__", "conftest", *TOPICS, *(f"test_{topic}" for topic in TOPICS)}
"""Several rooms have a file of this name: those that Python and pytest know, and one a chapter, with its topic."""
SAME_TOPIC = {
    "cached": "the adapter of caches, and the in-house cache",
    "encodings": "encodings of positions, right and wrong",
    "transforms": "transforms of a function, and the mistakes of their own",
}
KNOWN_NAMES = {
    "options": "of attention calls, and of the command line",
}
"""Files with one name that mean different things."""

READING = ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index")
WORDS_READ = {
    "unexpected keyword argument": "Python's own message",
    "relative import": "Python's own message",
    "'numpy.ndarray' object has no attribute": "NumPy's own message",
    "model name": "a line of the system's file on the processor",
    "random state": "the beginning of the names of such states",
    "more than 1 ": "a pattern of words, before it is a message",
    "computed in": "the beginning of the names of such diagnoses",
}
"""Sentences that the rooms look for in a text, and whose they are. Messages of the suite are for people alone."""


def files() -> list[Path]:
    """The Python files of the rooms."""
    return sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py"))


def module_of(path: Path) -> str:
    """Such as `tests.cli.main`; a room itself has the name of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room that a module lies in; empty for the folders above the rooms."""
    return next((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), "")


def imports(source: str) -> Iterator[str]:
    """The modules and names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def upward(path: Path) -> Iterator[str]:
    """The rooms that a file imports though its own does not allow it."""
    own = room_of(module_of(path))
    for name in imports(path.read_text(encoding="utf-8")):
        name = name.removeprefix(f"{NAME}.")
        room = room_of(name)
        limited = not name.startswith(FURTHER_LIMITS.get(own, ("",)))
        if own and room and (ROOMS.index(room) > ROOMS.index(own) or limited):
            yield room


def assigned(source: str) -> Iterator[str]:
    """The constants of a file."""
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def words_read(source: str) -> Iterator[str]:
    """The words of a sentence that code looks for in a text: the beginning of a protocol by messages."""
    tree = ast.parse(source)
    constants = {ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=[first, *_]) if method in READING:
                looked_for = first
            case ast.Compare(ops=[ast.In() | ast.NotIn()], left=left, comparators=[right]):
                if isinstance(right, ast.Tuple | ast.Set | ast.List):
                    continue
                looked_for = left
            case _:
                continue
        text = constants.get(ast.unparse(looked_for), looked_for)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and " " in text.value.strip():
            yield text.value


def test_imports_run_only_downwards() -> None:
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        assert {*upward(path)} == set(), name


def test_every_file_lies_in_a_room() -> None:
    above = {path.relative_to(ROOT).as_posix() for path in files() if not room_of(module_of(path))}
    assert above == {"implementations/__init__.py", "tests/__init__.py", "tests/harness/__init__.py"}


def test_no_import_is_relative() -> None:
    for path in files():
        assert [name for name in imports(path.read_text(encoding="utf-8")) if name.startswith(".")] == [], path


def test_no_file_is_long() -> None:
    long = {path.relative_to(ROOT).as_posix() for path in files() if path.read_bytes().count(b"\n") > LONGEST}
    assert not long


def test_no_constant_is_given_two_values() -> None:
    for path in files():
        counts = Counter(assigned(path.read_text(encoding="utf-8")))
        assert [name for name, count in counts.items() if count > 1] == [], path


def test_no_message_is_a_protocol() -> None:
    rooms = [path for path in files() if room_of(module_of(path)) != "tests.selftest"]
    read = {words for path in rooms for words in words_read(path.read_text(encoding="utf-8"))}
    assert read == set(WORDS_READ)
    assert [*words_read('notes = [each for each in about if "not claimed" in each]')] == ["not claimed"]
    assert [*words_read('BEGINS = "computed in"\nname.startswith(BEGINS)')] == ["computed in"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_states_what_it_is_for(room: str) -> None:
    text = (ROOT / room.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))


def test_two_modules_with_one_name_mean_the_same() -> None:
    counts = Counter(path.stem for path in files() if path.stem not in SAME_NAME)
    assert {name for name, count in counts.items() if count > 1} == {*SAME_TOPIC, *KNOWN_NAMES}
