"""README.md does what it says: every Python block runs, and prints what is shown.

The blocks of one `##` section share a namespace. What a block prints is either
in the comments of its `print` lines or in the `text` block that follows it.
A block under a comment `<!-- script: NAME -->` is run as a file of its own; one
under `<!-- not run: ... -->` is TensorFlow's and is only parsed.
"""

import ast
import contextlib
import dataclasses
import io
import linecache
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import jaxpyop

ROOT = pathlib.Path(__file__).parents[1]
FENCE = re.compile(
    r"(?P<marker>^[ ]*<!--[^\n]*-->\n)?^(?P<indent>[ ]*)```(?P<language>\w*)\n(?P<text>.*?)^[ ]*```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"^\s*print\(.*\)\s\s*# (?P<said>.*)$")


@dataclasses.dataclass
class Block:
    code: str
    line: int
    expected: str
    where: str  # which of the two ways: "comments", "text" or "nothing"


def read(text):
    """The blocks to run, by section."""
    sections = {}
    fences = list(FENCE.finditer(text))
    for k, fence in enumerate(fences):
        if fence["language"] != "python" or fence["marker"]:
            continue
        heading = re.findall(r"^##? (.*)$", without_fences(text[: fence.start()]), re.MULTILINE)[-1]
        code = textwrap.dedent(fence["text"])
        following = fences[k + 1] if k + 1 < len(fences) else None
        line = text[: fence.start("text")].count("\n") + 1
        sections.setdefault(heading, []).append(Block(code, line, *expected_output(text, fence, code, following)))
    return sections


def marked(text, kind):
    """The Python blocks under comments of one kind, by what the comment says."""
    found = [
        (re.fullmatch(r"\s*<!-- ([\w ]+): (.*) -->\n", fence["marker"]), fence)
        for fence in FENCE.finditer(text)
        if fence["language"] == "python" and fence["marker"]
    ]
    return [(match[2], textwrap.dedent(fence["text"])) for match, fence in found if match[1] == kind]


def without_fences(text):
    return FENCE.sub("", text)


def expected_output(text, fence, code, following):
    if following and following["language"] == "text" and not text[fence.end() : following.start("indent")].strip():
        return textwrap.dedent(following["text"]), "text"
    said = [found["said"] for line in code.splitlines() if (found := COMMENT.match(line))]
    return "".join(f"{line}\n" for line in said), "comments" if said else "nothing"


def run(block, namespace):
    """What a block prints, run as the file `train.py`."""
    linecache.cache["train.py"] = (len(block.code), None, block.code.splitlines(keepends=True), "train.py")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block.code, "train.py", "exec"), namespace)
    return out.getvalue()


def same_numbers(text):
    """Without what differs from run to run: the numbers of errors."""
    return re.sub(r"\[jaxpyop error [0-9a-f]+-\d+\]", "[jaxpyop error N]", text)


README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = read(README)
SCRIPTS = dict(marked(README, "script"))
THEIRS = [code for of, code in marked(README, "not run") if of == "TensorFlow"]


@pytest.fixture(autouse=True)
def settings_of_a_new_process():
    with jaxpyop.config.override(transport="auto"):  # it shows in the text of JAX's errors
        yield
    linecache.cache.pop("train.py", None)


@pytest.mark.parametrize("section", SECTIONS)
def test_blocks_run_and_print_what_is_shown(section):
    namespace = {"__name__": "readme"}
    for block in SECTIONS[section]:
        printed = run(block, namespace)
        assert same_numbers(printed) == same_numbers(block.expected), f"README.md, line {block.line}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_print_what_is_shown(name, tmp_path):
    if "distributed" in SCRIPTS[name]:
        pytest.importorskip("distributed")
    said = [found["said"] for line in SCRIPTS[name].splitlines() if (found := COMMENT.match(line))]
    assert said
    (tmp_path / name).write_text(SCRIPTS[name], encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == said, done.stderr


@pytest.mark.parametrize("number", range(len(THEIRS)))
def test_the_blocks_of_tensorflow_are_python(number):
    assert "tf." in ast.unparse(ast.parse(THEIRS[number]))


def test_every_text_block_and_comment_is_compared():
    text = README
    blocks = [block for section in SECTIONS.values() for block in section]
    languages = [fence["language"] for fence in FENCE.finditer(text)]
    assert text.count("```") == 2 * len(languages)
    assert set(languages) == {"python", "text", "bash", "console"}
    assert languages.count("text") == sum(block.where == "text" for block in blocks)
    assert languages.count("python") == len(blocks) + len(SCRIPTS) + len(THEIRS)
    for block in blocks:
        prints = sum(line.lstrip().startswith("print(") for line in block.code.splitlines())
        assert block.where == "text" or prints == len(block.expected.splitlines()), f"README.md, line {block.line}"


SAMPLE = """
# top
```python
x = 1
print(x)  # {one}
```
## next
<!-- not run: other -->
```python
nonsense
```
- item

  ```python
  y = 2
  print(y)
  ```

  ```text
  {two}
  ```
"""


@pytest.mark.parametrize(("one", "two", "right"), [("1", "2", True), ("0", "2", False), ("1", "3", False)])
def test_the_comparison_itself(one, two, right):
    sections = read(SAMPLE.format(one=one, two=two))
    assert list(sections) == ["top", "next"]
    blocks = [block for section in sections.values() for block in section]
    assert [block.where for block in blocks] == ["comments", "text"]
    assert all(run(block, {}) == block.expected for block in blocks) is right


def test_a_link_inside_the_page_leads_somewhere():
    headings = re.findall(r"^##+ (.*)$", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
    links = re.findall(r"\]\(#([^)]+)\)", README)
    assert links
    assert set(links) <= anchors
