"""README.md does what it says: every Python block runs, and prints what is shown.

The blocks of one `##` section share a namespace. What a block prints is either
in the comments of its `print` lines or in the `text` block that follows it.
A block under a comment `<!-- not run: ... -->` is not run.
"""

import contextlib
import dataclasses
import io
import linecache
import pathlib
import re
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
        if fence["language"] != "python" or "not run" in (fence["marker"] or ""):
            continue
        heading = re.findall(r"^##? (.*)$", without_fences(text[: fence.start()]), re.MULTILINE)[-1]
        code = textwrap.dedent(fence["text"])
        following = fences[k + 1] if k + 1 < len(fences) else None
        line = text[: fence.start("text")].count("\n") + 1
        sections.setdefault(heading, []).append(Block(code, line, *expected_output(text, fence, code, following)))
    return sections


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


SECTIONS = read((ROOT / "README.md").read_text(encoding="utf-8"))


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


def test_every_text_block_and_comment_is_compared():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block for section in SECTIONS.values() for block in section]
    languages = [fence["language"] for fence in FENCE.finditer(text)]
    assert text.count("```") == 2 * len(languages)
    assert set(languages) == {"python", "text", "bash"}
    assert languages.count("text") == sum(block.where == "text" for block in blocks)
    assert languages.count("python") == len(blocks) + text.count("<!-- not run")
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
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    }
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert links
    assert set(links) <= anchors
