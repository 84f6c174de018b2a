"""The commands of ``python -m jaxpyop``: `demo`, `doctor`, and `bench`, which measures the groups in `cases`."""

from jaxpyop._cli.bench import main as run_bench
from jaxpyop._cli.demo import main as run_demo
from jaxpyop._cli.doctor import main as run_doctor

__all__ = ["run_bench", "run_demo", "run_doctor"]
