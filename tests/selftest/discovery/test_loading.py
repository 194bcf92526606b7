"""Loading: what a target names, and the one line that every way of getting it wrong gives."""

import pickle
import sys
from pathlib import Path

import pytest

from attention_conformance.implementations.api.safe_call import error_line
from attention_conformance.implementations.discovery.targets.loading import LISTED, Target, TargetError, load_target
from attention_conformance.tests.selftest.discovery.making import write

FUNCTIONS = """
import math

def attention(query, key, value):
    return query

def attend(query, key, value):
    return query

class Owner:
    def method(self):
        return 1

def _private():
    return 0

number = 3
"""
SYNTAX = "write FILE.py:NAME or package.module:NAME"
INSTALL = f"install it, run from the folder that holds it, or {SYNTAX}"
MEND = ": make the import work, then run again"
LISTING = "It has: Owner, attend, attention"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(target)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestFiles:
    def test_relative_and_absolute_paths_name_one_object(self, folder: Path) -> None:
        path = write(folder, "sub/mine.py", FUNCTIONS)
        result = load_target("sub/mine.py:attention")
        assert callable(result)
        assert load_target(f"{path}:attention") is result

    def test_dotted_name(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        assert getattr(load_target("mine.py:Owner.method"), "__qualname__", "") == "Owner.method"

    def test_the_module_is_registered_under_a_private_name(self, folder: Path) -> None:
        start = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        write(folder, "json.py", f"{start}\n@dataclass\nclass D:\n    x: int\n")
        result = load_target("json.py:D")
        assert isinstance(result, type)
        assert result.__module__.startswith("_candidate_json_")
        assert result.__module__ in sys.modules
        assert pickle.loads(pickle.dumps(result(3))) == result(3)
        assert hasattr(sys.modules["json"], "dumps")

    def test_the_folder_is_importable_during_the_import_only(self, folder: Path) -> None:
        write(folder, "a/helper_of_loading.py", "NAME = 'a'\n")
        write(folder, "a/mine.py", "from helper_of_loading import NAME\n")
        before = list(sys.path)
        assert load_target("a/mine.py:NAME") == "a"
        assert sys.path == before

    def test_two_files_get_their_own_helpers(self, folder: Path) -> None:
        for name in ("a", "b"):
            write(folder, f"{name}/helper_of_both.py", f"NAME = {name!r}\n")
            write(folder, f"{name}/mine.py", "from helper_of_both import NAME\n")
        assert [load_target(f"{name}/mine.py:NAME") for name in ("a", "b", "a")] == ["a", "b", "a"]

    @pytest.mark.parametrize("start", ["", "import warnings\nwarnings.warn('old', DeprecationWarning)\n"])
    def test_any_object_is_returned_and_warnings_of_the_import_are_no_errors(self, folder: Path, start: str) -> None:
        write(folder, "mine.py", f"{start}number = 3\n")
        assert load_target("mine.py:number") == 3


class TestModules:
    def test_installed_module(self) -> None:
        assert load_target("json.decoder:JSONDecoder.decode") is __import__("json").JSONDecoder.decode

    def test_module_in_the_current_folder(self, folder: Path) -> None:
        write(folder, "package_of_loading/__init__.py", "")
        write(folder, "package_of_loading/part.py", FUNCTIONS)
        assert callable(load_target("package_of_loading.part:attention"))
        assert str(folder) not in sys.path


class TestMistakes:
    @pytest.mark.parametrize(
        ("file", "text", "target", "message"),
        [
            ("two.py", FUNCTIONS, "mine.py", f"target 'mine.py' has no colon: {SYNTAX}"),
            ("two.py", FUNCTIONS, "mine.py:", f"target 'mine.py:' has no NAME: {SYNTAX}"),
            ("two.py", FUNCTIONS, ":attention", f"target ':attention' has no file or module: {SYNTAX}"),
            ("two.py", FUNCTIONS, "none.py:f", "there is no file 'none.py': give a path from the current folder"),
            (
                "sub/attention.py",
                FUNCTIONS,
                "sub/atention.py:f",
                "there is no file 'sub/atention.py', but there is 'sub/attention.py'"
                ": give a path from the current folder",
            ),
            ("mine.txt", "", "mine.txt:f", f"'mine.txt' is no .py file: {SYNTAX}"),
            ("sub.py/mine.py", "", "sub.py:f", f"'sub.py' is a folder: {SYNTAX}"),
            ("mine.py", "", "nowhere_at_all:f", f"there is no module 'nowhere_at_all': {INSTALL}"),
            ("mine.py", "", "nowhere_at_all.part:f", f"there is no module 'nowhere_at_all': {INSTALL}"),
            ("mine.py", "", "json.nothing:f", f"there is no module 'json.nothing': {INSTALL}"),
        ],
    )
    def test_a_target_that_is_not_there(self, folder: Path, file: str, text: str, target: str, message: str) -> None:
        write(folder, file, text)
        assert error_of(target) == message

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = 1\nx.missing\n", f"AttributeError: 'int' object has no attribute 'missing' (mine.py, line 2){MEND}"),
            ("raise RuntimeError('first\\nsecond')\n", f"RuntimeError: first (mine.py, line 1){MEND}"),
            ("x = 1\ndef f(:\n", f"SyntaxError: invalid syntax (mine.py, line 2){MEND}"),
            (
                "import nowhere_at_all\n",
                "ModuleNotFoundError: No module named 'nowhere_at_all' (mine.py, line 1): "
                "install 'nowhere_at_all', or put it next to the file",
            ),
            (
                "from .other import f\n",
                "ImportError: attempted relative import with no known parent package (mine.py, line 1): "
                "name it as package.module:NAME",
            ),
        ],
    )
    def test_an_error_while_it_is_imported(self, folder: Path, text: str, message: str) -> None:
        write(folder, "mine.py", text)
        assert error_of("mine.py:f") == f"importing 'mine.py' raised {message}"
        assert not [m for m in sys.modules.values() if getattr(m, "__file__", "") == str(folder / "mine.py")]

    def test_an_error_in_what_it_calls_is_reported_at_its_own_line(self, folder: Path) -> None:
        write(folder, "mine.py", "import json\n\njson.loads('{')\n")
        assert "(mine.py, line 3)" in error_of("mine.py:f")

    def test_an_error_inside_a_module(self, folder: Path) -> None:
        write(folder, "module_that_fails.py", "\nraise ValueError('no')\n")
        message = f"ValueError: no (module_that_fails.py, line 2){MEND}"
        assert error_of("module_that_fails:f") == f"importing 'module_that_fails' raised {message}"

    @pytest.mark.parametrize("target", ["exits_in_file.py:f", "exits_in_file:f"])
    def test_an_exit(self, folder: Path, target: str) -> None:
        write(folder, "exits_in_file.py", "import sys\nsys.exit(2)\n")
        context = f"importing {target[:-2]!r} ended with sys.exit(2) (exits_in_file.py, line 2)"
        assert error_of(target) == f'{context}: put what runs it under if __name__ == "__main__"'

    @pytest.mark.parametrize("target", ["interrupted_file.py:f", "interrupted_file:f"])
    def test_an_interrupt_goes_through(self, folder: Path, target: str) -> None:
        write(folder, "interrupted_file.py", "raise KeyboardInterrupt\n")
        with pytest.raises(KeyboardInterrupt):
            load_target(target)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (FUNCTIONS, "attentoin", f"no name 'attentoin'; did you mean 'attention'? {LISTING}"),
        (FUNCTIONS, "zzz", f"no name 'zzz'. {LISTING}"),
        ("x = 1\n", "f", "no name 'f'. It has nothing that can be called"),
        ("from math import exp\n", "f", "no name 'f'. It has: exp"),
        (FUNCTIONS, "Owner.metod", "no name 'metod'; did you mean 'method'? It has: method"),
        (FUNCTIONS, "number.f", "no name 'f'. It has nothing that can be called"),
        ("def __getattr__(name): raise RuntimeError('lazy')\n", "f", "'f', but reading it raised RuntimeError: lazy"),
    ],
)
def test_a_name_that_is_not_there(folder: Path, text: str, name: str, message: str) -> None:
    write(folder, "mine.py", text)
    owner = name.rpartition(".")[0] or "mine.py"
    assert error_of(f"mine.py:{name}") == f"{owner!r} has {message}"


def test_the_list_of_names_is_short(folder: Path) -> None:
    write(folder, "mine.py", "".join(f"def f{i:02}(): pass\n" for i in range(30)))
    assert error_of("mine.py:zzz").count(",") == LISTED - 1


def test_an_error_line_has_the_first_line_or_the_type() -> None:
    assert error_line(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert error_line(ValueError()) == "ValueError"


def test_parts_of_a_target(folder: Path) -> None:
    assert Target.parse("package.module:Owner.f").parts == ("package", "module", "Owner", "f")
    assert Target.parse("a/mine.py:f").parts == (*folder.resolve().parts, "a", "mine", "f")
    assert Target.parse("./mine.py:A.f").parts == Target.parse("mine.py:A.f").parts
