"""Fixtures that load the programs in ``tools/`` as modules."""

import importlib.util
import pathlib
from types import ModuleType

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def load(name: str) -> ModuleType:
    """Load ``tools/NAME.py`` as a new module."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check_imports() -> ModuleType:
    """A freshly loaded module ``tools/check_imports.py``."""
    return load("check_imports")


@pytest.fixture
def check_purity() -> ModuleType:
    """A freshly loaded module ``tools/check_purity.py``."""
    return load("check_purity")


@pytest.fixture
def check_size() -> ModuleType:
    """A freshly loaded module ``tools/check_size.py``."""
    return load("check_size")


@pytest.fixture
def check_defaults() -> ModuleType:
    """A freshly loaded module ``tools/check_defaults.py``."""
    return load("check_defaults")
