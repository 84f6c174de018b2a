"""The examples on the pages run, and print what is shown; a new one is found here and needs no test.

The blocks of one `##` section of a page share a namespace. A block that shows something `wrong` may warn.
"""

import ast
import contextlib
import io
import linecache
import re
import subprocess
import sys
import warnings

import pytest

import jaxpyop
from tests.pages.pages import FENCE, PAGES, marked, said_in, sections_of
from tests.shared.processes import clean_environment
from tests.shared.tables import named

SECTIONS = {(page, heading): blocks for page, text in PAGES.items() for heading, blocks in sections_of(text).items()}
SCRIPTS = {(page, name): code for page, text in PAGES.items() for name, code in marked(text, "script")}
NOT_RUN = [(page, k, *found) for page, text in PAGES.items() for k, found in enumerate(marked(text, "not run"))]
THEIRS = {f"{page}-{k}": (of, code) for page, k, of, code in NOT_RUN}
# What the code of another library, or of a program with a user at it, names.
NAMES = {"TensorFlow": "tf.", "it waits for the keyboard": "running.join("}
NAMES |= {"Slurm": "Client(", "dask-jobqueue": "SLURMCluster(", "dask-kubernetes": "KubeCluster("}


# The recipes use large libraries, and the others are programs that take long to compile.
SLOW = ("recipes/", "guide/rules.md", "hangs.md Find the line", "traced.md Loops", "tensorflow.md A whole script")
SLOW += ("gradients.md Gradients", "pure_callback.md A gradient", "export.md Derivatives", "hangs.md The causes")


def rows(table):
    """The rows of a table of sections."""
    sections = {" ".join(key): key for key in table}
    return named(sections, [name for name in sections if any(part in name for part in SLOW)])


def run(block, namespace):
    """What a block prints, run as the file `train.py`."""
    linecache.cache["train.py"] = (len(block.code), None, block.code.splitlines(keepends=True), "train.py")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        if re.search(r"\bwrong\b", block.code):
            warnings.simplefilter("ignore")
        with jaxpyop.config.override(constants="warn"):  # as it is for a reader
            exec(compile(block.code, "train.py", "exec"), namespace)
    linecache.cache.pop("train.py")
    return out.getvalue()


def without_error_numbers(text):
    return re.sub(r"\[jaxpyop error [0-9a-f]+-\d+\]", "[jaxpyop error N]", text)


@pytest.mark.parametrize(("page", "section"), rows(SECTIONS))
def test_blocks_run_and_print_what_is_shown(page, section):
    namespace = {"__name__": "readme"}
    for block in SECTIONS[page, section]:
        printed = run(block, namespace)
        assert without_error_numbers(printed) == without_error_numbers(block.expected), f"{page}, line {block.line}"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), rows(SCRIPTS))
def test_scripts_print_what_is_shown(page, name, tmp_path):
    code = SCRIPTS[page, name]
    assert said_in(code)
    (tmp_path / name).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=200
    )
    assert done.stdout.splitlines() == said_in(code), done.stderr


@pytest.mark.parametrize("block", THEIRS)
def test_the_blocks_of_other_libraries_are_python(block):
    of, code = THEIRS[block]
    assert NAMES[of] in ast.unparse(ast.parse(code))


@pytest.mark.parametrize("page", PAGES)
def test_every_text_block_and_comment_is_compared(page):
    text = PAGES[page]
    blocks = [block for (of, _), section in SECTIONS.items() if of == page for block in section]
    languages = [fence["language"] for fence in FENCE.finditer(text)]
    assert text.count("```") == 2 * len(languages)
    shown = sum(block.where == "text" for block in blocks) + len(marked(text, "picture", "text"))
    assert languages.count("text") == shown
    apart = len(marked(text, "script")) + len(marked(text, "not run"))
    assert languages.count("python") == len(blocks) + apart
    for block in blocks:
        prints = sum(line.lstrip().startswith("print(") for line in block.code.splitlines())
        assert block.where == "text" or prints == len(block.expected.splitlines()), f"{page}, line {block.line}"
