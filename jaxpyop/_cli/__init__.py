"""The commands of ``python -m jaxpyop``: `demo` and `doctor`."""

from jaxpyop._cli.demo import main as run_demo
from jaxpyop._cli.doctor import main as run_doctor
