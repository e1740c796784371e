"""Tools of the project as modules."""

import importlib.util
import pathlib
from types import ModuleType

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


@pytest.fixture
def check_imports() -> ModuleType:
    """A new ``tools/check_imports.py``."""
    spec = importlib.util.spec_from_file_location("check_imports", TOOLS / "check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
