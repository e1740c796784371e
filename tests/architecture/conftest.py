"""Tools of the project as modules."""

import importlib.util
import pathlib
from types import ModuleType

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def load(name: str) -> ModuleType:
    """A new module from a file of ``tools``."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check_imports() -> ModuleType:
    """A freshly imported module ``tools/check_imports.py``."""
    return load("check_imports")


@pytest.fixture
def check_defaults() -> ModuleType:
    """A new ``tools/check_defaults.py``."""
    return load("check_defaults")
