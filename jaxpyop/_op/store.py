"""The store of what forward passes leave for backward passes, and the tokens by which it is found there."""

from __future__ import annotations

import secrets

import numpy as np

from jaxpyop._config import config, follow
from jaxpyop._tape import Records

TOKEN = np.dtype(np.uint32)
NO_RECORD = np.iinfo(TOKEN).max  # of a run in another process; no store gives it
# Processes that compute together each have a store: a token of one should not
# be found in another.
RECORDS = Records(config.max_records, config.max_record_bytes, first=1 + secrets.randbelow(2**31))


follow(lambda: RECORDS.resize(config.max_records, config.max_record_bytes))


def clear_records() -> None:
    """Let go of all records that ``py_function`` keeps for backward passes to come.

    As :func:`jax.clear_caches` does with programs. A record holds the arrays of
    a forward pass until as many others have come as ``config.max_records``
    and ``config.max_record_bytes`` allow; a backward pass whose record is gone
    calls the function again. TensorFlow's ``tf.py_function`` keeps a tape for
    each forward pass in the same way, and has no means to let it go.

    Returns:
        None.

    Raises:
        RuntimeError: not here, but in the backward pass of a stateful op, whose
            function cannot be called again.

    Example:
        >>> import jax, jax.numpy as jnp, jaxpyop
        >>> f = lambda x: jaxpyop.py_function(lambda x: x**2, [x], jnp.float32)
        >>> y, pullback = jax.vjp(jax.jit(f), 3.0)
        >>> jaxpyop.clear_records()
        >>> print(pullback(1.0)[0])
        6.0
    """
    RECORDS.clear()
