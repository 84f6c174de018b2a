"""Write the figures of one run of `tests.bench` into README.md and `guide/speed.md`, `speed.csv` and `speed.svg`.

    python -m tests.bench --json > docs/speed.json
    python docs/speed.py

All figures on these pages come from that one file. They stand between the comments `<!-- speed: NAME -->` and
`<!-- speed: end -->`. `tests/pages/test_speed.py` fails when a page and the file differ.
"""

import csv
import io
import json
import pathlib
import re
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).parent
PAGES = (HERE.parent / "README.md", HERE / "guide" / "speed.md")
# The rows of the picture: a label, a group of `tests.bench`, and the cases beside ours.
COMPARED = (
    ("`float32[1]` under `jit`", "float32[1] under jit", ("jax.pure_callback",)),
    ("the same, stateful", "the same, stateful", ("io_callback",)),
    ("ordered, 200 times in a `scan`", "ordered, 200 times in a scan", ("io_callback",)),
    ("40 MB, `np.negative`", "40 MB np.negative under jit", ("jax.pure_callback",)),
    ("40 MB, `out=True`", "40 MB np.negative(x, out=out)", ("jax.pure_callback",)),
    ("`vmap` over 1000 scalars", "vmap over 1000 scalars, sequential", ("jax.pure_callback",)),
    (
        "gradient of an `if` on a value",
        "log-Huber gradient, first branch",
        ("jax.vjp in pure_callback", "tf.py_function"),
    ),
    ('`mode="traced"`, an `if`', "mode='traced', an if on a value", ("jax.lax.cond by hand",)),
    ("gradient of a loop, traced", "gradient of a loop on values", ("py_function, eager", "jax.vjp in pure_callback")),
    ("tracing 50 ops", "tracing 50 ops, no shapes given", ("jax.pure_callback",)),
)
# Those of them that README.md shows, because they are the three uses: a call, a batch and a gradient.
SUMMARY = {
    "`float32[1]` under `jit`": "`float32[1]` under `jit`",
    "`vmap` over 1000 scalars": "`vmap` over 1000 scalars",
    "gradient of a loop, traced": 'gradient of a loop on values, `mode="traced"`',
}
# The cases whose name is more than one name of JAX.
NAMES = {
    "jax.lax.cond by hand": "`jax.lax.cond`",
    "jax.vjp in pure_callback": "`jax.vjp` in `pure_callback`",
    "py_function, eager": 'jaxpyop\'s `mode="eager"`',
}
UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


def shown(microseconds):
    """A time with two or three digits."""
    scale, unit = next((scale, unit) for scale, unit in UNITS if microseconds >= scale or scale == 1)
    value = microseconds / scale
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


class Run:
    """One run of `tests.bench`."""

    def __init__(self, file=HERE / "speed.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        self.about, self.rows = found["about"], found["rows"]

    def group(self, title):
        """The cases of a group, ours first."""
        return [row for row in self.rows if row["group"] == title]

    def compared(self):
        """For each row of COMPARED: the label, our case, and those beside it that this run has."""
        for label, title, others in COMPARED:
            ours, *rest = self.group(title)
            yield label, ours, [row for row in rest if row["case"] in others]


def summary(run):
    """The table of README.md."""
    yield f"Time per call ({run.about}):"
    yield ""
    yield "| | jaxpyop | other |"
    yield "|---|---|---|"
    for label, ours, others in run.compared():
        if label not in SUMMARY:
            continue
        names = (NAMES.get(row["case"], f"`{row['case']}`") for row in others)
        beside = "; ".join(f"{name} {shown(row['median'])}" for name, row in zip(names, others, strict=True))
        yield f"| {SUMMARY[label]} | {shown(ours['median'])} | {beside} |"


def measured(run):
    """What the figures were measured with."""
    yield f"Measured with {run.about}."


def table(run):
    """The whole table, as the lines of a file that a spreadsheet, GitHub and Sphinx show as a table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["case", "", "median", "middle half", "ratio"])
    title = None
    for row in run.rows:
        name = "" if row["group"] == title else row["group"]
        title = row["group"]
        ratio = "ours" if row["ratio"] is None else f"{row['ratio']:#.2g}".rstrip(".")
        middle = f"{shown(row['low'])} to {shown(row['high'])}"
        writer.writerow([name, row["case"], shown(row["median"]), middle, ratio])
    return out.getvalue()


def sentence(run):
    """The figures that the page on speed begins with."""
    small, stateful = run.group("float32[1] under jit"), run.group("the same, stateful")
    time = {row["case"]: row for row in small}
    dispatch = stateful[0]["median"] - small[0]["median"]
    yield (
        f"On the machine below, a compiled program calls a function in {shown(small[0]['median'])}; "
        f"`jax.pure_callback` takes {shown(time['jax.pure_callback']['median'])}. "
        f"A side effect adds about {shown(dispatch)}, nearly all of it because JAX then takes a slower path."
    )


BLOCKS = {"summary": summary, "measured": measured, "sentence": sentence}
BLOCK = re.compile(r"(<!-- speed: (\w+) -->\n)(.*?)(<!-- speed: end -->)", re.DOTALL)


def filled(text, run):
    """A page with the figures of a run."""

    def fill(found):
        return "\n".join([found[1].rstrip(), *BLOCKS[found[2]](run), found[4]])

    return BLOCK.sub(fill, text)


# ----------------------------------------------------------------------- picture

# So narrow that the letters can be read on a phone.
WIDTH, LEFT, BAR, ROW = 440, 16, 190, 64
STYLE = """
    .page { fill: #ffffff } .ours { fill: #2f6fbf } .other { fill: #b9bcc4 }
    text { fill: #1c1c1c; font: 13px sans-serif } .label { font-weight: bold }
    @media (prefers-color-scheme: dark) {
      .page { fill: #16181d } .ours { fill: #6fa8ee } .other { fill: #5b606b } text { fill: #eeeeee }
    }
"""


def bar(y, kind, share, words):
    wide = max(2, round(BAR * share))
    yield f'  <rect class="{kind}" x="{LEFT}" y="{y}" width="{wide}" height="15" rx="2"/>'
    yield f'  <text x="{LEFT + wide + 8}" y="{y + 12}">{escape(words)}</text>'


def picture(run):
    """Two bars for each comparison: our time, and the other. The slower of the two has the full length."""
    lines, y = [], 14
    for label, ours, others in run.compared():
        other = others[0]
        longest = max(ours["median"], other["median"])
        lines.append(f'  <text class="label" x="{LEFT}" y="{y + 12}">{escape(label.replace("`", ""))}</text>')
        lines += bar(y + 19, "ours", ours["median"] / longest, f"{ours['case']} {shown(ours['median'])}")
        lines += bar(y + 36, "other", other["median"] / longest, f"{other['case']} {shown(other['median'])}")
        y += ROW
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img"',
        '     aria-label="Time per call of jaxpyop beside JAX\'s own callbacks, as in the table">',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="page" width="{WIDTH}" height="{y}"/>',
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


def main():
    """Write all of it."""
    run = Run()
    (HERE / "speed.svg").write_text(picture(run), encoding="utf-8")
    (HERE / "speed.csv").write_text(table(run), encoding="utf-8")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), run), encoding="utf-8")


if __name__ == "__main__":
    main()
