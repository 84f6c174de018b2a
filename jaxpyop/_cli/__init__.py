"""What a person types after ``python -m jaxpyop``: `demo`, `doctor` and `bench`, which compares what is in `cases`."""

from jaxpyop._cli.bench import main as run_bench
from jaxpyop._cli.demo import main as run_demo
from jaxpyop._cli.doctor import main as run_doctor

__all__ = ["run_bench", "run_demo", "run_doctor"]
