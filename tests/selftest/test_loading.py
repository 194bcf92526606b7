"""Loading: what a target names, and the one line that every way of getting it wrong gives."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from attention_conformance.implementations.api.safe_call import error_line
from attention_conformance.implementations.discovery.loading import LISTED, Target, TargetError, load_target

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def error_of(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(target)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestFiles:
    def test_relative_and_absolute_paths_name_one_object(self, folder: Path) -> None:
        path = write(folder, "sub/mine.py", FUNCTIONS)
        found = load_target("sub/mine.py:attention")
        assert callable(found)
        assert load_target(f"{path}:attention") is found

    def test_dotted_name(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        assert getattr(load_target("mine.py:Owner.method"), "__qualname__", "") == "Owner.method"

    def test_any_object_is_given_back(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        assert load_target("mine.py:number") == 3

    def test_the_module_is_registered_under_a_private_name(self, folder: Path) -> None:
        start = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        write(folder, "json.py", f"{start}\n@dataclass\nclass D:\n    x: int\n")
        found = load_target("json.py:D")
        assert isinstance(found, type)
        assert found.__module__.startswith("_candidate_json_")
        assert found.__module__ in sys.modules
        assert pickle.loads(pickle.dumps(found(3))) == found(3)
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

    def test_warnings_of_the_import_are_no_errors(self, folder: Path) -> None:
        write(folder, "mine.py", "import warnings\nwarnings.warn('old', DeprecationWarning)\nNAME = 1\n")
        assert load_target("mine.py:NAME") == 1


class TestModules:
    def test_installed_module(self) -> None:
        assert load_target("json.decoder:JSONDecoder.decode") is __import__("json").JSONDecoder.decode

    def test_module_in_the_current_folder(self, folder: Path) -> None:
        write(folder, "package_of_loading/__init__.py", "")
        write(folder, "package_of_loading/part.py", FUNCTIONS)
        assert callable(load_target("package_of_loading.part:attention"))
        assert str(folder) not in sys.path


class TestMistakes:
    def test_no_colon(self) -> None:
        expected = "target 'mine.py' has no colon: write FILE.py:NAME or package.module:NAME"
        assert error_of("mine.py") == expected

    @pytest.mark.parametrize(("target", "missing"), [("mine.py:", "NAME"), (":attention", "file or module")])
    def test_half_a_target(self, target: str, missing: str) -> None:
        expected = f"target {target!r} has no {missing}: write FILE.py:NAME or package.module:NAME"
        assert error_of(target) == expected

    def test_no_such_file(self, folder: Path) -> None:
        write(folder, "two.py", FUNCTIONS)
        assert error_of("none.py:f") == "there is no file 'none.py': give a path from the current folder"

    def test_no_such_file_but_a_similar_one(self, folder: Path) -> None:
        write(folder, "sub/attention.py", FUNCTIONS)
        context = "there is no file 'sub/atention.py', but there is 'sub/attention.py'"
        assert error_of("sub/atention.py:f") == f"{context}: give a path from the current folder"

    def test_not_a_python_file(self, folder: Path) -> None:
        write(folder, "mine.txt", "")
        context = "'mine.txt' is no .py file: write FILE.py:NAME or package.module:NAME"
        assert error_of("mine.txt:f") == context

    def test_a_folder(self, folder: Path) -> None:
        (folder / "sub.py").mkdir()
        assert error_of("sub.py:f") == "'sub.py' is a folder: write FILE.py:NAME or package.module:NAME"

    @pytest.mark.parametrize("target", ["nowhere_at_all:f", "nowhere_at_all.part:f"])
    def test_no_such_module(self, target: str) -> None:
        context = "there is no module 'nowhere_at_all': install it, run from the folder that holds it, or write"
        assert error_of(target) == f"{context} FILE.py:NAME or package.module:NAME"

    def test_no_such_part_of_a_package(self) -> None:
        assert error_of("json.nothing:f").startswith("there is no module 'json.nothing': install it")

    def test_an_error_while_it_is_imported(self, folder: Path) -> None:
        write(folder, "mine.py", "x = 1\nx.missing\n")
        context = "AttributeError: 'int' object has no attribute 'missing' (mine.py, line 2)"
        assert error_of("mine.py:f") == f"importing 'mine.py' raised {context}: make the import work, then run again"
        assert not [m for m in sys.modules.values() if getattr(m, "__file__", "") == str(folder / "mine.py")]

    def test_an_error_in_what_it_calls_is_told_by_its_own_line(self, folder: Path) -> None:
        write(folder, "mine.py", "import json\n\njson.loads('{')\n")
        assert "(mine.py, line 3)" in error_of("mine.py:f")

    def test_a_message_of_many_lines(self, folder: Path) -> None:
        write(folder, "mine.py", "raise RuntimeError('first\\nsecond')\n")
        assert "raised RuntimeError: first (mine.py, line 1)" in error_of("mine.py:f")

    def test_a_syntax_error(self, folder: Path) -> None:
        write(folder, "mine.py", "x = 1\ndef f(:\n")
        context = "importing 'mine.py' raised SyntaxError: invalid syntax (mine.py, line 2)"
        assert error_of("mine.py:f") == f"{context}: make the import work, then run again"

    def test_a_package_that_it_needs_is_missing(self, folder: Path) -> None:
        write(folder, "mine.py", "import nowhere_at_all\n")
        context = error_of("mine.py:f")
        assert context.endswith("(mine.py, line 1): install 'nowhere_at_all', or put it next to the file")

    def test_a_relative_import(self, folder: Path) -> None:
        write(folder, "mine.py", "from .other import f\n")
        assert error_of("mine.py:f").endswith("(mine.py, line 1): name it as package.module:NAME")

    def test_an_error_inside_a_module(self, folder: Path) -> None:
        write(folder, "module_that_fails.py", "\nraise ValueError('no')\n")
        context = "importing 'module_that_fails' raised ValueError: no (module_that_fails.py, line 2)"
        assert error_of("module_that_fails:f") == f"{context}: make the import work, then run again"

    @pytest.mark.parametrize("target", ["exits_in_file.py:f", "exits_in_file:f"])
    def test_an_exit(self, folder: Path, target: str) -> None:
        write(folder, "exits_in_file.py", "import sys\nsys.exit(2)\n")
        context = f"importing {target[:-2]!r} ended with sys.exit(2) (exits_in_file.py, line 2)"
        assert error_of(target) == f'{context}: put what runs it under if __name__ == "__main__"'

    @pytest.mark.parametrize("target", ["interrupted_file.py:f", "interrupted_file:f"])
    def test_an_interrupt_is_none_of_its_business(self, folder: Path, target: str) -> None:
        write(folder, "interrupted_file.py", "raise KeyboardInterrupt\n")
        with pytest.raises(KeyboardInterrupt):
            load_target(target)


class TestNames:
    def test_the_nearest_name_and_all_callables(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        context = "'mine.py' has no name 'attentoin'; did you mean 'attention'? It has: Owner, attend, attention"
        assert error_of("mine.py:attentoin") == context

    def test_nothing_near(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        assert error_of("mine.py:zzz") == "'mine.py' has no name 'zzz'. It has: Owner, attend, attention"

    def test_no_callables(self, folder: Path) -> None:
        write(folder, "mine.py", "x = 1\n")
        assert error_of("mine.py:f") == "'mine.py' has no name 'f'. It has nothing that can be called"

    def test_imported_names_count_where_there_are_no_others(self, folder: Path) -> None:
        write(folder, "mine.py", "from math import exp\n")
        assert error_of("mine.py:f").endswith("It has: exp")

    def test_the_list_is_short(self, folder: Path) -> None:
        write(folder, "mine.py", "".join(f"def f{i:02}(): pass\n" for i in range(30)))
        assert error_of("mine.py:zzz").count(",") == LISTED - 1

    def test_within_a_class(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        context = "'Owner' has no name 'metod'; did you mean 'method'? It has: method"
        assert error_of("mine.py:Owner.metod") == context

    def test_within_a_number(self, folder: Path) -> None:
        write(folder, "mine.py", FUNCTIONS)
        context = "'number' has no name 'f'. It has nothing that can be called"
        assert error_of("mine.py:number.f") == context

    def test_reading_it_fails(self, folder: Path) -> None:
        write(folder, "mine.py", "def __getattr__(name):\n    raise RuntimeError('lazy')\n")
        assert error_of("mine.py:f") == "'mine.py' has 'f', but reading it raised RuntimeError: lazy"


def test_an_error_line_has_the_first_line_or_the_type() -> None:
    assert error_line(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert error_line(ValueError()) == "ValueError"


def test_parts_of_a_target(folder: Path) -> None:
    assert Target.parse("package.module:Owner.f").parts == ("package", "module", "Owner", "f")
    assert Target.parse("a/mine.py:f").parts == (*folder.resolve().parts, "a", "mine", "f")
    assert Target.parse("./mine.py:A.f").parts == Target.parse("mine.py:A.f").parts
