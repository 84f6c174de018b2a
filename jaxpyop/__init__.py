"""TensorFlow's "a Python function as an op", for JAX.

``py_function``, ``numpy_function``, ``py_func`` and ``contrib.framework.py_func``
call a Python function from any JAX program: with and without ``jit``, and inside
``vmap``, ``grad``, ``scan`` and other transformations.
"""

from jaxpyop._host import install_guard as _install_guard

_install_guard()  # before anything below can make a CPU client

from jaxpyop import compat as compat  # noqa: E402
from jaxpyop import contrib as contrib  # noqa: E402
from jaxpyop._api import clear_records as clear_records  # noqa: E402
from jaxpyop._api import explain_traced as explain_traced  # noqa: E402
from jaxpyop._api import jit as jit  # noqa: E402
from jaxpyop._api import numerical as numerical  # noqa: E402
from jaxpyop._api import numpy_function as numpy_function  # noqa: E402
from jaxpyop._api import padded as padded  # noqa: E402
from jaxpyop._api import py_func as py_func  # noqa: E402
from jaxpyop._api import py_function as py_function  # noqa: E402
from jaxpyop._api import static as static  # noqa: E402
from jaxpyop._batches import map_batches as map_batches  # noqa: E402
from jaxpyop._config import config as config  # noqa: E402
from jaxpyop._host import Workers as Workers  # noqa: E402
from jaxpyop._host import report as report  # noqa: E402
from jaxpyop._host import reraise as reraise  # noqa: E402
from jaxpyop._jaxcore import warn_if_portable as _warn_if_portable  # noqa: E402
from jaxpyop._saved import export as export  # noqa: E402
from jaxpyop._saved import load as load  # noqa: E402
from jaxpyop._saved import register as register  # noqa: E402

_warn_if_portable()

__version__ = "0.1.0"
