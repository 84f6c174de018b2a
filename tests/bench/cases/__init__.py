"""What the benchmark compares: groups of cases that do the same work, with our own case first.

Each subject has a list of functions that make its groups. `case` holds what they share.
"""

from tests.bench.cases import batches, calls, cut, executors, gradients, native, programs

SUBJECTS = {
    "calls": calls.GROUPS,
    "cut": cut.GROUPS,
    "programs": programs.GROUPS,
    "batches": batches.GROUPS,
    "gradients": gradients.GROUPS,
    "native": native.GROUPS,
    "traced": programs.TRACED,
    "others": [calls.calls_of_tensorflow],
    "executors": executors.GROUPS,
}
# What is measured if no subject is named: all but those that take minutes.
QUICK = [subject for subject in SUBJECTS if subject != "executors"]
