"""Count the comments of a folder, and those that are fragments behind a line of code.

    python -m tests.shared.comments [FOLDER]

A comment is a sentence above the code that it is about. Marks for tools, such as `noqa`, do not count.
"""

import ast
import io
import pathlib
import sys
import tokenize

MARKS = ("# noqa", "# pyright", "# type:")
BLANK = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def strings(code):
    """The lines of docstrings and of other strings that stand alone."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, node.end_lineno + 1)


def count(code):
    """The lines of code, the comments behind code, and the comments that stand alone."""
    lines, behind, alone = set(), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            if not token.string.startswith(MARKS):
                behind += bool(token.line[: token.start[1]].strip())
                alone += not token.line[: token.start[1]].strip()
        elif token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(strings(code))), behind, alone


def count_all(folder):
    """The same for all files in a folder."""
    counts = [count(path.read_text(encoding="utf-8")) for path in pathlib.Path(folder).rglob("*.py")]
    return tuple(map(sum, zip(*counts, strict=True)))


def main(folder="jaxpyop"):
    """Print the counts."""
    lines, behind, alone = count_all(folder)
    share = behind / max(1, behind + alone)
    print(f"{folder}: {lines} lines of code, {behind + alone} comments, {share:.0%} of them behind a line of code")


if __name__ == "__main__":
    main(*sys.argv[1:])
