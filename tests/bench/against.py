"""Compares the speed of this checkout with that of another one.

Fresh processes of the two checkouts take turns, because a process keeps what JAX has compiled, and because a busy
machine then slows both alike. Both run the cases of this checkout. A group is judged by our time beside that of JAX's
own callbacks in the same process, because the times themselves double when something else runs.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parents[2]
WORSE = 1.15


def rows(checkout, subject):
    """The rows of one run of a subject with the package of `checkout`, in a process of its own, by group and case."""
    with tempfile.TemporaryDirectory() as folder:
        # The process starts in a folder that has the one package and the other tests.
        for name, owner in (("jaxpyop", checkout), ("tests", HERE)):
            (pathlib.Path(folder) / name).symlink_to((owner / name).resolve(strict=True))
        command = [sys.executable, "-m", "tests.bench", subject, "--json"]
        environment = os.environ | {"PYTHONPATH": folder}
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False)
    return {(row["group"], row["case"]): row for row in json.loads(done.stdout)["rows"]}


def compare(other, subject, rounds):
    """For each row: its name, its time here divided by that there, and, in our first row of a group, `_beside` too."""
    runs = {HERE: [], other: []}
    for number in range(rounds):
        # Each checkout is the first one in every second round.
        for checkout in (HERE, other) if number % 2 else (other, HERE):
            runs[checkout].append(rows(checkout, subject))
    here, there = runs.values()
    # The title of a group may have a measured number in it, so that not all runs have the group.
    for key in [key for key in here[0] if all(key in run for run in here + there)]:
        is_first = here[0][key]["ratio"] is None
        beside = _beside(here, key[0]) / _beside(there, key[0]) if is_first else None
        yield ": ".join(key), _time(here, key) / _time(there, key), beside


def _time(runs, key):
    return statistics.median(run[key]["median"] for run in runs)


def _beside(runs, group):
    """Our time divided by the times of the other cases in the same process: the mean of the cases."""
    others = [key for key, row in runs[0].items() if key[0] == group and row["ratio"] is not None]
    return statistics.geometric_mean(statistics.median(run[key]["ratio"] for run in runs) for key in others)


def main(other, subjects, rounds):
    """Print the ratios, then those of the slower rows, and return 0."""
    print(f"{HERE} divided by {other}, medians of {rounds} rounds. Below 1, {HERE} is faster.")
    print("'beside' divides our times by those of the other cases first. On a busy machine, trust it alone.\n")
    print(f"{'time':>8}{'beside':>8}")
    worse, judged = [], 0
    for subject in subjects:
        for name, time, beside in compare(other.resolve(), subject, rounds):
            line = f"{time:8.2f}{'' if beside is None else f'{beside:.2f}':>8}  {name}"
            print(line, flush=True)
            judged += beside is not None
            worse += [line] if beside is not None and beside > WORSE else []
    said = f"{len(worse)} of {judged} groups take more than {WORSE} of the time beside the other cases"
    print(f"\n{said}", *worse, sep="\n")
    return 0
