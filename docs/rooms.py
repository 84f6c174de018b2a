"""Draw `rooms.svg`: the folders of the package as boxes, each above the folders that it uses.

`python docs/rooms.py` writes the file. The names of the inner packages come from jaxpyop itself, so one that
moves moves in the picture. `tests/pages/test_how_it_works.py` compares the two.
"""

import pathlib
import re
import sys
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parent / "jaxpyop"
WIDTH, MARGIN, GAP = 758, 16, 12
# The widths of a character, in parts of the font size: an upper bound for common fonts.
MONO, SANS = 0.61, 0.56

STYLE = """
    .page { fill: #ffffff } .top { fill: #e8f0fb } .op { fill: #e9f6ea }
    .side { fill: #fdf3e1 } .ground { fill: #eeeeee }
    .box { stroke: #777777; stroke-width: 1.3 } .inner { fill: #ffffff; stroke: #999999; stroke-width: 1 }
    text { fill: #1c1c1c; font: 13px sans-serif } .name { font: bold 15px monospace } .room { font: 13px monospace }
    path { fill: none; stroke: #777777; stroke-width: 1.3 } .head { fill: #777777; stroke: none }
    @media (prefers-color-scheme: dark) {
      .page { fill: #16181d } .top { fill: #22304a } .op { fill: #1f3a26 }
      .side { fill: #45361a } .ground { fill: #303238 }
      .inner { fill: #16181d; stroke: #888888 } .box { stroke: #999999 } text { fill: #eeeeee }
    }
"""


def rooms_in(folder):
    """The files and folders in a package, the highest first: each stands before those that it uses."""
    found = [path for path in (PACKAGE / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    found = {path.stem: path for path in found if path.stem != "__init__"}
    uses = {name: used_by(path, folder) & set(found) - {name} for name, path in found.items()}
    floors = dict.fromkeys(found, 0)
    for _ in found:
        floors = {name: max((floors[used] + 1 for used in uses[name]), default=0) for name in found}
    return [f"{name}/" if found[name].is_dir() else name for name in sorted(found, key=lambda n: (-floors[n], n))]


def used_by(path, folder):
    files = path.rglob("*.py") if path.is_dir() else [path]
    name = re.compile(rf"jaxpyop\.{folder}\.(\w+)")
    return {found for file in files for found in name.findall(file.read_text(encoding="utf-8"))}


def text(words, x, y, kind="", size=13):
    width = len(words) * size * (SANS if not kind else MONO)
    assert x + width <= WIDTH - MARGIN / 2, f"too long: {words}"
    return f'  <text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


def box(x, y, width, height, kind, *lines):
    """A box with a name and captions, which have to fit."""
    yield f'  <rect class="{kind} box" rx="8" x="{x}" y="{y}" width="{width}" height="{height}"/>'
    for k, (line, style) in enumerate(lines):
        size = 15 if style == "name" else 13
        assert len(line) * size * (MONO if style else SANS) <= width - 24, f"too long for its box: {line}"
        yield text(line, x + 12, y + 24 + 20 * k, style, size)


def small_boxes(rooms, x, y, width):
    """Inner packages, as many in a row as there is place for; the last thing is the height of all rows."""
    left, top = x, y
    for room in rooms:
        wide = int(len(room) * 13 * MONO) + 18
        if left + wide > x + width:
            left, top = x, top + 34
        yield f'  <rect class="inner" rx="5" x="{left}" y="{top}" width="{wide}" height="26"/>'
        yield text(room, left + 9, top + 18, "room")
        left += wide + 8
    yield top + 26 - y


def split(parts):
    *drawn, height = parts
    return drawn, height


def arrow(x, start, end):
    yield f'  <path d="M{x} {start} V{end - 6}"/>'
    yield f'  <path class="head" d="M{x - 4} {end - 7} L{x + 4} {end - 7} L{x} {end} z"/>'


def draw():
    """The whole picture, as text."""
    third = (WIDTH - 2 * MARGIN - 2 * GAP) // 3
    columns = [MARGIN + k * (third + GAP) for k in range(3)]
    lines, y = [], MARGIN
    for x, name, caption in zip(
        columns,
        ("_cli/  __main__.py", "_api.py  _keywords.py", "compat/  contrib/"),
        ("python -m jaxpyop", "py_function, numpy_function", "TensorFlow's other names"),
        strict=True,
    ):
        lines += box(x, y, third, 56, "top", (name, "name"), (caption, ""))
        lines += arrow(x + third // 2, y + 56, y + (172 if name.startswith("compat") else 86))
    # Only the functions that compile and save programs use these two packages.
    for x, name, caption in ((columns[0], "_saved/", "export and load"), (columns[1], "_cut/", "jit: cut programs")):
        lines += box(x, y + 86, third, 56, "op", (name, "name"), (f"jaxpyop.{caption}", ""))
        lines += arrow(x + third // 2, y + 142, y + 172)
    y += 172
    inner, height = split(small_boxes(rooms_in("_op"), MARGIN + 12, y + 38, WIDTH - 2 * MARGIN - 24))
    lines += box(MARGIN, y, WIDTH - 2 * MARGIN, height + 50, "op", ("_op/", "name"))
    lines += [text("the user's request, as one JAX primitive", MARGIN + 60, y + 24), *inner]
    y += height + 50
    captions = {
        "_host": "from XLA to Python and back",
        "_tape": "autodiff of Python runs",
        "_traced": "an interpreter of Python",
    }
    drawn = {
        room: split(small_boxes(rooms_in(room), x + 12, y + 88, third - 24))
        for x, room in zip(columns, captions, strict=True)
    }
    height = max(height for _, height in drawn.values()) + 70
    for x, (room, (inner, _)) in zip(columns, drawn.items(), strict=True):
        lines += arrow(x + third // 2, y, y + 30)
        lines += box(x, y + 30, third, height, "side", (f"{room}/", "name"), (captions[room], ""))
        lines += inner
        lines += arrow(x + third // 2, y + 30 + height, y + 60 + height)
    y += height + 60
    ground = {
        "_config.py": "settings",
        "_functions.py": "code, closure, globals",
        "_jaxcore/": "JAX's internals",
    }
    for x, (name, caption) in zip(columns, ground.items(), strict=True):
        lines += box(x, y, third, 56, "ground", (name, "name"), (caption, ""))
    height = y + 56 + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        '     role="img" aria-label="The packages of jaxpyop: functions, op, host, tape and paths, JAX">',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="page" width="{WIDTH}" height="{height}"/>',
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(draw(), encoding="utf-8")
    sys.exit(0)
