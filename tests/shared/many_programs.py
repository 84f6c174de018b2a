"""Many programs in one process of their own: its start is paid once, and a program that fails or hangs is named.

The module of the programs ends with

    if __name__ == "__main__":
        many_programs.main(PROGRAMS)
"""

import faulthandler
import subprocess
import sys
import traceback
import warnings

from tests.shared.processes import run_python


def run_module(module: str, *arguments: str, timeout: float = 240, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own. A failing program is an error that says which one, and why."""
    code = f"import runpy, sys; sys.argv = {['', *arguments]!r}; runpy.run_module({module!r}, run_name='__main__')"
    return run_python(code, timeout=timeout, **env)


def main(programs, *inputs, seconds=100):
    """Run all programs in this process, and end it, with an error if one of them failed or took too long.

    Args:
        programs: functions of the inputs.
        inputs: what they take.
        seconds: how long one of them may take.
    """
    warnings.simplefilter("error")
    failed = []
    for name, program in programs.items():
        print(f"begins: {name}", flush=True)
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            program(*inputs)
        except BaseException:
            failed.append(f"{name}\n{traceback.format_exc()}")
        faulthandler.cancel_dump_traceback_later()
    sys.exit("\n".join(failed) or None)
