"""Reading the pages: README.md, CONTRIBUTING.md and docs/, with their code blocks.

What a block prints is either in the comments of its `print` lines or in the `text` block that follows it. A block
under a comment `<!-- script: NAME -->` is a file of its own; one under `<!-- not run: TensorFlow -->` is only parsed;
a `text` block under `<!-- picture: ... -->` is nobody's output. Blocks in lists and in quotes are blocks, too.
"""

import dataclasses
import importlib.util
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
FENCE = re.compile(
    r"(?P<marker>^[ >]*<!--[^\n]*-->\n)?"
    r"^(?P<indent>[ >]*)```(?P<language>[\w{}]*)(?: [^\n]*)?\n(?P<text>.*?)^[ >]*```$",
    re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r"[ >]*<!-- (?P<kind>script|not run|picture): (?P<of>.*) -->\n")
COMMENT = re.compile(r"^\s*print\(.*\)\s\s*# (?P<said>.*)$")


@dataclasses.dataclass
class Block:
    code: str
    line: int
    expected: str
    where: str  # which of the two ways: "comments", "text" or "nothing"


def sections_of(text):
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


FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}


def load_script(path):
    """The module in a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
