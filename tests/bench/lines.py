"""Counts the lines of code and the files of each package, without blanks, comments and docstrings.

    python -m tests.bench.lines [FOLDER]

The folder is the package if none is named.
"""

import ast
import collections
import io
import pathlib
import sys
import tokenize

NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
)


def count(code):
    """The lines of code in a text."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    lines = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def packages(folder):
    """For each package directly in the folder, and for each file beside them: the lines of code, and the files."""
    lines, files = collections.Counter(), collections.Counter()
    for path in sorted(pathlib.Path(folder).rglob("*.py")):
        package = path.relative_to(folder).parts[0]
        lines[package] += count(path.read_text(encoding="utf-8"))
        files[package] += 1
    return {package: (lines[package], files[package]) for package in sorted(lines)}


def main(folder="jaxpyop"):
    """Print the counts, and their sums."""
    found = packages(folder)
    print(f"{'lines':>8}{'files':>8}")
    for package, (lines, files) in found.items():
        print(f"{lines:8,}{files:8}  {package}")
    lines, files = map(sum, zip(*found.values(), strict=True))
    print(f"{lines:8,}{files:8}  all")


if __name__ == "__main__":
    main(*sys.argv[1:])
