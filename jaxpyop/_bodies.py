"""What runs on the host: an op's body, and the bodies of its derivatives.

A body maps a flat list of arrays to a flat list of arrays. The derivatives of
a body are bodies too, over its inputs and their tangents or its results'
cotangents, so that every order is built from the same pieces. Bodies are
compared by identity: each belongs to one place in a program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _errors, _jaxcore, _paths, _results, _tape
from jaxpyop._inputs import PASS_IT, Inputs
from jaxpyop._pathtrace import PathTracer
from jaxpyop._spec import Leaf, ResultSpec, fill_shape, show_shape, with_shapes
from jaxpyop._tapetracer import TapeTracer

Struct = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Op:
    """Everything that the user said about an op."""

    api: str
    name: str
    func: Callable[..., Any]
    spec: ResultSpec
    output_shapes: Callable[..., Any] | None
    stateful: bool
    ordered: bool
    vmap_method: str
    casting: str
    on_jax: bool
    title: str
    copy: bool = True
    vjp: Callable[..., Any] | None = None
    executor: Any = None
    progress: bool = False
    traced: bool = False

    def which(self, k: int) -> str:
        """How an error begins about result `k`."""
        return "func returned" if len(self.spec.leaves) == 1 else f"func returned, as result {k},"

    @property
    def stateless_cure(self) -> str:
        """What to write where only a stateless op can go."""
        if self.spec.empty:
            return "it is stateful for having no result: return one, use it, and pass stateful=False"
        if self.ordered:
            return "pass stateful=False and leave ordered out, if its side effects may run any number of times"
        return "pass stateful=False if its side effects may run any number of times"


def is_inexact(x: Any) -> bool:
    """Whether a dtype's values have tangents."""
    return bool(jax.dtypes.issubdtype(x.dtype, np.inexact))


# For a scalar a compiled identity takes a third of the time of jnp.asarray.
_scalar_as_jax = jax.jit(lambda x: x)


def as_jax(array: Any) -> Any:
    """A jax.Array of what may be a view of memory that is not ours."""
    if isinstance(array, jax.Array):
        return array
    private = array.copy()  # so that aliasing it does no harm
    return _jaxcore.with_transfers(jnp.asarray if private.ndim else _scalar_as_jax, private)


_TRACER_ERRORS = (
    jax.errors.UnexpectedTracerError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
)


# ---------------------------------------------------------------------- bodies


def _is_numpy(value: Any) -> bool:
    return type(value) is np.ndarray or isinstance(value, np.generic)


def _advise(error: BaseException, title: str, what: str) -> None:
    note = f"{title}: if {what} uses a traced value of the code around it, {PASS_IT}"
    if TapeTracer.__name__ in str(error):
        note = f"{title}: if {what} keeps an input while JAX differentiates, keep jax.lax.stop_gradient(x); or {note}"
    if PathTracer.__name__ in str(error):
        note = (
            f"{title}: {what} kept a value of the abstract run that finds shapes; give output_shapes=, "
            "and stateful=True if what it keeps matters"
        )
    _errors.add_note(error, note)


def _advise_on_numpy(error: AttributeError, title: str) -> None:
    if error.name == "numpy" and isinstance(error.obj, jax.Array):
        error.add_note(f"{title}: func gets jax.Arrays: write np.asarray(x), float(x) or x.item()")


class UserBody:
    """The user's function between checked inputs and checked results."""

    def __init__(self, op: Op, inputs: Inputs) -> None:
        self.op = op
        self.inputs = inputs
        self.how = ""  # where shapes that were not promised come from
        self._shapes: dict[Any, list[Struct]] = {}
        # The usual case, arrays in and one array out, is worth a shortcut.
        alone = inputs.plain and not op.on_jax and op.spec.tree is None and op.output_shapes is None
        self._leaf = op.spec.leaves[0] if alone and op.spec.leaves else None

    def __getstate__(self) -> dict[str, Any]:
        # For another process, which has no use for the executor; shapes are checked here.
        op = dataclasses.replace(self.op, executor=None, output_shapes=None)
        return {"op": op, "inputs": self.inputs, "how": "", "_shapes": {}, "_leaf": self._leaf}

    def results(self, arrays: Sequence[Any]) -> list[Any]:
        """What the function returned, by the structure of `Tout`, unchecked."""
        op, inputs = self.op, self.inputs
        if inputs.plain:
            value = op.func(*arrays)
        else:
            if op.on_jax and any(impl is not None for impl in inputs.keys):
                arrays = inputs.wrap_keys(arrays)
            args, kwargs = inputs.join(arrays)
            value = op.func(*args, **kwargs)
        if op.spec.tree is None and isinstance(value, (np.ndarray, jax.Array)) and op.spec.leaves:
            return [value]
        return _results.match(op.spec, value, op.title)

    def __call__(self, *arrays: Any, lead: tuple[int, ...] = ()) -> list[Any]:
        op = self.op
        try:
            if (leaf := self._leaf) is not None:
                value = op.func(*arrays)
                if _is_numpy(value) and value.dtype == leaf.dtype and leaf.shape is None:
                    return [value]
                values = _results.match(op.spec, value, op.title)
            else:
                values = self.results(arrays)
        except _TRACER_ERRORS as error:
            _advise(error, op.title, "func")
            raise
        except AttributeError as error:
            _advise_on_numpy(error, op.title)
            raise
        leaves = self.promised(arrays, lead)
        values = [self._converted(k, value, leaf) for k, (value, leaf) in enumerate(zip(values, leaves))]
        self.check_shapes(values, leaves, lead)
        return values

    def _converted(self, k: int, value: Any, leaf: Leaf) -> Any:
        op = self.op
        if op.on_jax:
            return _results.to_jax(value, leaf, op.casting, op.which(k), op.title)
        if _is_numpy(value) and value.dtype == leaf.dtype:
            return value
        return _results.to_numpy(value, leaf, op.casting, op.which(k), op.title)

    def check_shapes(self, values: Sequence[Any], leaves: Sequence[Leaf], lead: tuple[int, ...]) -> None:
        """Raise unless the results have the promised shapes, after the batch axes `lead`."""
        for k, (value, leaf) in enumerate(zip(values, leaves)):
            if leaf.shape is not None and value.shape != (*lead, *leaf.shape):
                _results.check_shape(value.shape, leaf, lead, "promised", self.op.which(k), self.op.title)

    def promised(self, arrays: Sequence[Any], lead: tuple[int, ...] = ()) -> Sequence[Leaf]:
        """What is known of the results for inputs with the batch axes `lead`."""
        if self.op.output_shapes is None:
            return self.op.spec.leaves
        return self._asked([Struct(a.shape[len(lead) :], a.dtype) for a in arrays]).leaves

    def _asked(self, structs: Sequence[Struct]) -> ResultSpec:
        op = self.op
        assert op.output_shapes is not None
        if op.on_jax:
            structs = self.inputs.key_structs(structs)
        args, kwargs = self.inputs.join(structs)
        return with_shapes(op.spec, op.output_shapes(*args, **kwargs), op.title)

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        """The results' shapes and dtypes for inputs of these."""
        key = tuple([(s.shape, s.dtype) for s in structs])
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._resolve([Struct(s.shape, s.dtype) for s in structs])
        return found

    def learn(self, structs: Sequence[Struct], results: Sequence[Struct]) -> None:
        """Take note of shapes that came back, where none are promised."""
        if not self._shapes:
            self._shapes[tuple((s.shape, s.dtype) for s in structs)] = list(results)

    def _resolve(self, structs: Sequence[Struct]) -> list[Struct]:
        op = self.op
        spec = op.spec if op.output_shapes is None else self._asked(structs)
        if all(leaf.known for leaf in spec.leaves):
            return [Struct(leaf.shape, leaf.dtype) for leaf in spec.leaves]
        inferred, self.how = self._infer(structs)
        return [
            Struct(fill_shape(leaf, None if inferred is None else inferred[k], self.how, op.title), leaf.dtype)
            for k, leaf in enumerate(spec.leaves)
        ]

    def _infer(self, structs: Sequence[Struct]) -> tuple[list[Any] | None, str]:
        op = self.op
        if op.on_jax and not op.stateful:
            try:
                found = _paths.infer_shapes(lambda *arrays: self.results(arrays), structs)
                return [s.shape for s in found], "the shape that func has in the abstract"
            except _paths.PathError:
                pass  # values decide: assume what elementwise functions do
        logical = [s.shape if impl is None else s.shape[:-1] for s, impl in zip(structs, self.inputs.keys)]
        try:
            shape = np.broadcast_shapes(*logical)
        except ValueError:
            return None, "the inputs' shapes do not broadcast"
        return [shape] * len(op.spec.leaves), "the inputs' broadcast shape"


class Push:
    """The tangents of a body's inexact results, forward mode.

    Takes the body's inputs, then a tangent for each input that `moving` marks.
    """

    def __init__(self, base: Any, moving: tuple[bool, ...]) -> None:
        self.base = base
        self.moving = moving

    def __call__(self, *arrays: Any) -> list[Any]:
        primals, tangents = self._take(arrays)
        outs, found = _tape.jvp(self.base, primals, tangents)
        return self._give(outs, found)

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        """The same from the record of the body's run."""
        primals, tangents = self._take(arrays)
        return self._give(self.base.shapes(primals), record.pushforward([_or_none(as_jax, t) for t in tangents]))

    def _take(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        count = len(self.moving)
        rest = iter(arrays[count:])
        return arrays[:count], [next(rest) if moves else None for moves in self.moving]

    def _give(self, outs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        return [_or_zeros(t, out) for out, t in zip(outs, tangents) if is_inexact(out)]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(structs[: len(self.moving)]) if is_inexact(s)]

    def transposed(self, given: tuple[bool, ...]) -> Pull:
        """The same linear map the other way round."""
        return Pull(self.base, given, self.moving)


class Pull:
    """The cotangents of a body's inputs, reverse mode.

    Takes the body's inputs, then a cotangent for each inexact result that
    `given` marks; returns one for each input that `wanted` marks.
    """

    def __init__(self, base: Any, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> None:
        self.base = base
        self.given = given
        self.wanted = wanted

    def __call__(self, *arrays: Any) -> list[Any]:
        primals = arrays[: len(self.wanted)]
        return self._give(primals, _tape.vjp(self.base, primals, self._cotangents(arrays, primals), self.wanted))

    def replay(self, record: Any, arrays: Sequence[Any]) -> list[Any]:
        """The same from the record of the body's run."""
        primals = arrays[: len(self.wanted)]
        cotangents = [_or_none(as_jax, c) for c in self._cotangents(arrays, primals)]
        return self._give(arrays, record.pullback(cotangents))

    def _cotangents(self, arrays: Sequence[Any], primals: Sequence[Any]) -> list[Any]:
        rest, given = iter(arrays[len(self.wanted) :]), iter(self.given)
        outs = self.base.shapes(primals)
        return [next(rest) if is_inexact(out) and next(given) else None for out in outs]

    def _give(self, primals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return [_or_zeros(c, p) for p, c, wants in zip(primals, cotangents, self.wanted) if wants]

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, wants in zip(structs, self.wanted) if wants]


def _or_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _or_zeros(value: Any, like: Any) -> Any:
    return jnp.zeros(like.shape, like.dtype) if value is None else value


class NumpyPush:
    """Stands for the tangents of a NumPy body, which only reverse mode has.

    Takes the body's inputs, its results, then the tangents.
    """

    def __init__(self, base: UserBody, moving: tuple[bool, ...]) -> None:
        self.base = base
        self.moving = moving

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s in self.base.shapes(structs[: len(self.moving)]) if is_inexact(s)]

    def __call__(self, *arrays: Any) -> list[Any]:
        raise NotImplementedError(
            f"{self.base.op.title}: forward-mode differentiation (jvp, jacfwd, linearize) needs a body of JAX "
            "operations: write it as a py_function; vjp= gives reverse mode (grad, vjp, jacrev)"
        )

    def transposed(self, given: tuple[bool, ...]) -> NumpyPull:
        if self.base.op.vjp is None:
            raise ValueError(
                f"{self.base.op.title}: a backward pass needs the gradient of a NumPy function; "
                "give one as vjp=f with f(inputs, outputs, cotangents), "
                "or keep the pass out with jax.lax.stop_gradient on its inputs"
            )
        return NumpyPull(self.base, given, self.moving)


class NumpyPull:
    """The user's `vjp=` function: the cotangents of a NumPy body's inputs.

    Takes the body's inputs, its results, then the cotangents that `given` marks.
    """

    def __init__(self, base: UserBody, given: tuple[bool, ...], wanted: tuple[bool, ...]) -> None:
        self.base = base
        self.given = given
        self.wanted = wanted

    def shapes(self, structs: Sequence[Struct]) -> list[Struct]:
        return [s for s, wants in zip(structs, self.wanted) if wants]

    def __call__(self, *arrays: Any) -> list[Any]:
        op, count = self.base.op, len(self.wanted)
        assert op.vjp is not None
        inputs, outputs = arrays[:count], arrays[count : count + len(op.spec.leaves)]
        cotangents = self._cotangents(arrays[count + len(outputs) :], outputs)
        try:
            found = op.vjp(tuple(inputs), tuple(outputs), cotangents)
        except _TRACER_ERRORS as error:
            _advise(error, op.title, "vjp")
            raise
        if count == 1 and not isinstance(found, (list, tuple)):
            found = (found,)
        if not isinstance(found, (list, tuple)) or len(found) != count:
            got = f"{len(found)} cotangents" if isinstance(found, (list, tuple)) else "a single value"
            raise ValueError(
                f"{op.title}: vjp returned {got} for {count} array inputs; return one cotangent each, None for zero"
            )
        return [self._checked(k, found[k], x) for k, x in enumerate(inputs) if self.wanted[k]]

    def _cotangents(self, rest: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
        it, given = iter(rest), iter(self.given)
        found = []
        for out in outputs:
            if not is_inexact(out):
                found.append(np.zeros(out.shape, jax.dtypes.float0))
            else:
                found.append(next(it) if next(given) else np.zeros(out.shape, out.dtype))
        return tuple(found)

    def _checked(self, k: int, value: Any, like: Any) -> Any:
        if value is None:
            return np.zeros(like.shape, like.dtype)
        which, title = f"vjp returned, for input {k},", self.base.op.title
        array = _results.to_numpy(value, Leaf(np.dtype(like.dtype)), self.base.op.casting, which, title)
        if array.shape != like.shape:
            raise ValueError(
                f"{title}: {which} shape {show_shape(array.shape)}; "
                f"a cotangent has its input's shape, {show_shape(like.shape)}"
            )
        return array
