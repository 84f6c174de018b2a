"""The default of `max_record_bytes`: a share of the memory that the process's control groups leave to it."""

import pytest

from jaxpyop._config import _share_of_memory

GIB = 2**30
ABOVE = 10**18
# The control groups of the process, and the files of their limits.
GROUPS = {
    "version 2": ("0::/a/b", {"a/b/memory.max": 4 * GIB}),
    "version 2, a group around it": ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": 4 * GIB}),
    "version 2, in a container": ("0::/docker/1234", {"memory.max": 4 * GIB}),
    "version 1": ("5:cpu,cpuacct:/a\n4:memory:/a", {"memory/a/memory.limit_in_bytes": 4 * GIB}),
    "version 1, a group around it": (
        "4:hugetlb,memory:/a/b",
        {"memory/a/b/memory.limit_in_bytes": ABOVE, "memory/a/memory.limit_in_bytes": 4 * GIB},
    ),
    "version 1, in a container": ("4:memory:/docker/1234", {"memory/memory.limit_in_bytes": 4 * GIB}),
}


@pytest.mark.parametrize(("groups", "limits"), GROUPS.values(), ids=GROUPS)
def test_the_smallest_limit_counts(groups, limits, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 2**20)  # the memory of a large machine
    files = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": limit for name, limit in limits.items()}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert _share_of_memory(str(tmp_path)) == 4 * GIB // 8


def test_without_groups_the_memory_of_the_machine_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 2**20)
    assert _share_of_memory(str(tmp_path)) == 2**40 // 8
