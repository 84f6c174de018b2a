"""README.md and the pages in docs/ do what they say: every Python block runs, and prints what is shown.

The blocks of one `##` section of a page share a namespace. What a block prints is either in the comments of
its `print` lines or in the `text` block that follows it. A block under a comment `<!-- script: NAME -->` is
run as a file of its own; one under `<!-- not run: TensorFlow -->` is only parsed; a `text` block under
`<!-- picture: ... -->` is nobody's output. Blocks in lists and in quotes are blocks, too. One that shows
something `wrong` may warn. And every link from page to page leads somewhere.
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
import warnings

import pytest

import jaxpyop

ROOT = pathlib.Path(__file__).parents[2]
LARGEST = 12_000  # bytes of README.md: one page
FENCE = re.compile(
    r"(?P<marker>^[ >]*<!--[^\n]*-->\n)?"
    r"^(?P<indent>[ >]*)```(?P<language>[\w{}]*)(?: [^\n]*)?\n(?P<text>.*?)^[ >]*```$",
    re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r"[ >]*<!-- (?P<kind>script|not run|picture): (?P<of>.*) -->\n")
COMMENT = re.compile(r"^\s*print\(.*\)\s\s*# (?P<said>.*)$")
LINK = re.compile(r"\]\((?P<file>[^()#\s]*)#?(?P<anchor>[^()\s]*)\)")


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
        if fence["language"] != "python" or kind_of(fence):
            continue
        heading = re.findall(r"^##? (.*)$", without_fences(text[: fence.start()]), re.MULTILINE)[-1]
        following = fences[k + 1] if k + 1 < len(fences) else None
        line = text[: fence.start("text")].count("\n") + 1
        block = Block(inside(fence), line, *expected_output(text, fence, following))
        sections.setdefault(heading, []).append(block)
    return sections


def kind_of(fence):
    """What the comment over a block says of it: "script", "not run", "picture" or nothing."""
    found = MARKER.fullmatch(fence["marker"] or "")
    return found and found["kind"]


def marked(text, kind, language="python"):
    """The blocks under comments of one kind, with what the comment says."""
    found = [fence for fence in FENCE.finditer(text) if kind_of(fence) == kind and fence["language"] == language]
    return [(MARKER.fullmatch(fence["marker"])["of"], inside(fence)) for fence in found]


def inside(fence):
    """The text of a block without what stands before it on every line in a list or in a quote."""
    return "".join(without_prefix(line, fence["indent"]) for line in fence["text"].splitlines(keepends=True))


def without_prefix(line, prefix):
    return line[len(prefix) :] if line.startswith(prefix) else line.removeprefix(prefix.rstrip())


def without_fences(text):
    return FENCE.sub("", text)


def expected_output(text, fence, following):
    between = text[fence.end() : following.start()] if following else ""
    if following and following["language"] == "text" and not kind_of(following) and not between.strip(" >\n"):
        return inside(following), "text"
    said = said_in(inside(fence))
    return "".join(f"{line}\n" for line in said), "comments" if said else "nothing"


def said_in(code):
    return [found["said"] for line in code.splitlines() if (found := COMMENT.match(line))]


def run(block, namespace):
    """What a block prints, run as the file `train.py`."""
    linecache.cache["train.py"] = (len(block.code), None, block.code.splitlines(keepends=True), "train.py")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        if re.search(r"\bwrong\b", block.code):
            warnings.simplefilter("ignore")
        with jaxpyop.config.override(constants="warn"):  # as it is for a reader
            exec(compile(block.code, "train.py", "exec"), namespace)
    return out.getvalue()


def same_numbers(text):
    """Without what differs from run to run: the numbers of errors."""
    return re.sub(r"\[jaxpyop error [0-9a-f]+-\d+\]", "[jaxpyop error N]", text)


FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
SECTIONS = {(page, heading): blocks for page, text in PAGES.items() for heading, blocks in read(text).items()}
SCRIPTS = {(page, name): code for page, text in PAGES.items() for name, code in marked(text, "script")}
THEIRS = {f"{page}-{k}": code for page, text in PAGES.items() for k, (_, code) in enumerate(marked(text, "not run"))}


def ids(keys):
    return [" ".join(key) for key in keys]


@pytest.fixture(autouse=True)
def settings_of_a_new_process():
    with jaxpyop.config.override(transport="auto"):  # it shows in the text of JAX's errors
        yield
    linecache.cache.pop("train.py", None)


@pytest.mark.parametrize(("page", "section"), SECTIONS, ids=ids(SECTIONS))
def test_blocks_run_and_print_what_is_shown(page, section):
    namespace = {"__name__": "readme"}
    for block in SECTIONS[page, section]:
        printed = run(block, namespace)
        assert same_numbers(printed) == same_numbers(block.expected), f"{page}, line {block.line}"


@pytest.mark.parametrize(("page", "name"), SCRIPTS, ids=ids(SCRIPTS))
def test_scripts_print_what_is_shown(page, name, tmp_path):
    code = SCRIPTS[page, name]
    said = said_in(code)
    assert said
    (tmp_path / name).write_text(code, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == said, done.stderr


@pytest.mark.parametrize("block", THEIRS)
def test_the_blocks_of_tensorflow_are_python(block):
    assert "tf." in ast.unparse(ast.parse(THEIRS[block]))


@pytest.mark.parametrize("page", PAGES)
def test_every_text_block_and_comment_is_compared(page):
    text = PAGES[page]
    blocks = [block for (of, _), section in SECTIONS.items() if of == page for block in section]
    languages = [fence["language"] for fence in FENCE.finditer(text)]
    assert text.count("```") == 2 * len(languages)
    assert set(languages) <= {"python", "text", "bash", "bibtex", "console", "{include}", "{toctree}"}
    shown = sum(block.where == "text" for block in blocks) + len(marked(text, "picture", "text"))
    assert languages.count("text") == shown
    apart = len(marked(text, "script")) + len(marked(text, "not run"))
    assert languages.count("python") == len(blocks) + apart
    for block in blocks:
        prints = sum(line.lstrip().startswith("print(") for line in block.code.splitlines())
        assert block.where == "text" or prints == len(block.expected.splitlines()), f"{page}, line {block.line}"


def test_every_comment_over_a_block_is_known():
    fences = [(page, fence) for page, text in PAGES.items() for fence in FENCE.finditer(text) if fence["marker"]]
    unknown = [(page, fence["marker"]) for page, fence in fences if not kind_of(fence)]
    assert unknown == [("README.md", "<!-- ci: demo -->\n"), ("README.md", "<!-- ci: test -->\n")]


def test_the_readme_is_one_page():
    assert len(PAGES["README.md"].encode()) <= LARGEST


# ------------------------------------------------------------------------- links


def anchors_of(text):
    """The anchors of the headings, as GitHub and Sphinx name them."""
    headings = re.findall(r"^##* (.*)$", without_fences(text), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def links_of(text):
    return [(found["file"], found["anchor"]) for found in LINK.finditer(without_fences(text))]


def dead_links(page, text, pages):
    """The links of a page to files that do not exist, or to headings that no page has."""
    for file, anchor in links_of(text):
        target = os.path.normpath(os.path.join(os.path.dirname(page), file)) if file else page
        target = target.replace(os.sep, "/")
        if file.startswith(("https:", "mailto:")):
            continue
        if not (target in pages or (ROOT / target).exists()) or target.startswith("docs/notebooks"):
            yield file
        elif anchor and anchor not in anchors_of(pages.get(target, "")):
            yield f"{file}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert list(dead_links(page, PAGES[page], PAGES)) == []


@pytest.mark.parametrize("page", PAGES)
def test_an_anchor_is_one_heading(page):
    linked = {anchor for _, anchor in links_of("".join(PAGES.values())) if anchor}
    anchors = [anchor for anchor in anchors_of(PAGES[page]) if anchor in linked]
    assert len(anchors) == len(set(anchors))


def test_the_front_page_links_to_every_page():
    linked = {file for file, _ in links_of(PAGES["README.md"])}
    assert {page for page in PAGES if page.startswith("docs/")} - linked == {"docs/index.md"}


# ------------------------------------------------------------------ the checks themselves

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

<!-- picture: boxes -->
```text
[ ]--[ ]
```
## last
> **A box.**
>
> ```python
> if True:
>     print(3)  # {three}
>
> print("wrong")
> ```
>
> ```text
> {three}
> wrong
> ```
"""


@pytest.mark.parametrize(
    ("one", "two", "three", "right"),
    [("1", "2", "3", True), ("0", "2", "3", False), ("1", "3", "3", False), ("1", "2", "4", False)],
)
def test_the_comparison_itself(one, two, three, right):
    sections = read(SAMPLE.format(one=one, two=two, three=three))
    assert list(sections) == ["top", "next", "last"]
    blocks = [block for section in sections.values() for block in section]
    assert [block.where for block in blocks] == ["comments", "text", "text"]
    assert all(run(block, {}) == block.expected for block in blocks) is right


def test_blocks_that_are_not_run():
    assert marked(SAMPLE, "not run") == [("other", "nonsense\n")]
    assert marked(SAMPLE, "picture", "text") == [("boxes", "[ ]--[ ]\n")]


@pytest.mark.parametrize(("code", "allowed"), [("# wrong\n", True), ("# right\n", False)])
def test_what_is_wrong_may_warn(code, allowed):
    block = Block(f"{code}import warnings\nwarnings.warn('look out')\n", 1, "", "nothing")
    with contextlib.nullcontext() if allowed else pytest.raises(UserWarning, match="look out"):
        run(block, {})


LINKS = {
    "[a](other.md)": [],
    "[a](other.md#a-heading-of-f)": [],
    "[a](#here)": [],
    "[a](../README.md)": [],
    "[a](https://example.org/x#y)": [],
    "```python\nx[0](1)\n```\n": [],
    "[a](gone.md)": ["gone.md"],
    "[a](other.md#gone)": ["other.md#gone"],
    "[a](#gone)": ["#gone"],
    "[a](../README.md#gone)": ["../README.md#gone"],
    "[a](notebooks/1_quickstart.ipynb)": ["notebooks/1_quickstart.ipynb"],
}


@pytest.mark.parametrize("link", LINKS)
def test_the_check_of_links(link):
    page = f"# Page\n## Here\n{link}\n"
    pages = {"docs/page.md": page, "docs/other.md": "# Other\n### A heading, of `f`\n", "README.md": "# x\n"}
    assert list(dead_links("docs/page.md", page, pages)) == LINKS[link]
