"""What pyproject.toml cannot say: the folders of the clone are installed below one name."""

from setuptools import find_packages, setup

NAME = "attention_conformance"
INSTALLED = ("spec*", "reference*", "implementations*", "tests*")
ROOMS = [
    f"{NAME}.{room}" for room in find_packages(include=INSTALLED, exclude=("tests.selftest*", "tests.measurements*"))
]

setup(
    script_name="setup.py",  # so that it is known, and left out of the package whose folder it lies in
    packages=[NAME, *ROOMS],
    package_dir={NAME: "."},
    package_data={
        NAME: ["py.typed", "pyproject.toml"],  # the settings of pytest, for runs of the installed command
        **{room: ["*.json", "*.js", "*.md", "assets/*", "chapters/*.md", "texts/*.md"] for room in ROOMS},
    },
)
