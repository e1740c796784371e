"""Checks whether Java and the packages that Spark jobs need are installed. A broker does not need them. The
packages are not imported."""

import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Final

from moldau.client.errors import ToolError

PACKAGES: Final = ("pyspark", "pyarrow", "pyiceberg", "numpy", "pandas", "fastavro", "msgspec")


def missing_packages(packages: Sequence[str] = PACKAGES) -> str | None:
    """One line that says what to install; ``None`` if nothing is missing."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"the pipeline needs {', '.join(absent)}: pip install 'moldau[spark]'"


def missing_java() -> str | None:
    """One line that says what to install; ``None`` if nothing is missing."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if os.access(os.path.join(home, "bin", "java"), os.X_OK):
            return None
        return f"JAVA_HOME is {home}, where there is no bin/java: install Java 17 or newer"
    if shutil.which("java"):
        return None
    return "Spark needs Java: install Java 17 or newer, or set JAVA_HOME"


def check_requirements() -> None:
    """Raises :class:`ToolError` if a package or Java is missing."""
    reason = missing_packages() or missing_java()
    if reason is not None:
        raise ToolError(reason)
