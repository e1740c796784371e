"""Fail if code is too long: a source file with more than 500 lines, or a function with more than 60 lines.

Generated files are not checked. Their first line says that they are generated.
"""

import ast
import pathlib
import sys

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
GENERATED_MARK = "# Generated"


def oversized(path: pathlib.Path) -> list[str]:
    """One line for each part of ``path`` that is too long."""
    text = path.read_text()
    if text.startswith(GENERATED_MARK):
        return []
    findings = []
    line_count = text.count("\n")
    if line_count > FILE_LINES_MAX:
        findings.append(f"{path}: {line_count} lines (at most {FILE_LINES_MAX}): split it by noun")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                findings.append(
                    f"{path}:{node.lineno}: {node.name} has {size} lines (at most {FUNCTION_LINES_MAX})"
                )
    return findings


def main() -> int:
    paths = sorted(
        path for root in ("src", "bench", "tools", "examples") for path in pathlib.Path(root).rglob("*.py")
    )
    findings = [finding for path in paths for finding in oversized(path)]
    print("\n".join(findings) or f"{len(paths)} files, none too long")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
