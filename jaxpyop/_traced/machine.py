"""The state of an interpretation, and the two things that are hard: a branch on a traced value, and a loop on one."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop import _dtypes
from jaxpyop import _jaxcore as core
from jaxpyop._config import config
from jaxpyop._traced.loop import bind_loop
from jaxpyop._traced.values import *

Place = tuple[Obj, str]  # a slot
Forms = dict[Any, Form]  # the form of what each place holds; None is the place of what a thunk returns
Thunk = Callable[[], Any]

_ATTEMPTS = 14
# A function of more turns and calls than these is refused, because each becomes a part of the program.
_MOST_STEPS = 20_000
# A function with more sides of branches than these is refused: to compile them takes minutes, or hours if nested.
_MOST_SIDES = 1_000
# After so many sides, what a branch gives is hidden from XLA's fusion. Under `vmap` it is a choice, and what is chosen
# from would be copied into each place that reads it, so that long programs took minutes to compile.
_MANY_SIDES = 20
# The status of a frame: how a block was left. If it is not known, it is a number with a range. Outside of loops that is
# from NORMAL to RETURN, so that what is not normal is a return.
NORMAL, RETURN, BREAK, CONTINUE = 0, 1, 2, 3
_BOUND = "pass max_steps="


class Machine:
    """One interpretation of one function.

    Attributes:
        max_steps: how many turns of each loop a backward pass may keep.
        label: how errors of JAX name the function.
        journal: for each branch or loop that is being interpreted, what the slots held before it changed them.
        floor: objects that were born before must not be changed, and why.
        frames: the variables of the calls that are being interpreted.
        taken: on which values it depends whether the path that is being interpreted is taken: each is to be as the bool
            beside it. Under `vmap`, JAX runs both sides of a branch, and a loop on a side that is not taken might not
            end. So it does not begin.
        line: the user's file, and the line that is being interpreted.
        node: the expression that is being evaluated, or the statement that may raise.
        returned: the line and the expression or statement with which a function last returned.
        raised: has one slot, the number of the error that Python would have raised first. 0 stands for none.
        errors: the errors that the program may raise, with their numbers.
        auto: whether the function is called instead if the program might fail where Python does not.
        branches: how many sides of branches were traced.
        steps: how many calls, and turns of loops that are unrolled, were interpreted.
        unable: why errors cannot be noted here, or nothing.
        tells_names: whether texts name the values that are not known, because they are of an error.
    """

    # Whether nobody asks for more than the shapes of the results. `Shapes` has what is otherwise there.
    only_shapes = False
    joining = Joining
    unknown: Callable[[Sequence[Any]], list[Any]]

    def __init__(self, max_steps: int | None, label: str) -> None:
        self.max_steps, self.label = max_steps, label
        self.journal: list[dict[Place, Any]] = [{}]
        self.floor, self.frames = (0, ""), list[Obj]()
        self.taken: tuple[tuple[Any, bool], ...] = ()
        self.line: tuple[str, int] = core.NOWHERE
        self.node: ast.AST = ast.Name("")
        self.returned = self.line, self.node
        self.raised = Obj("raised", {"number": 0})
        self.errors: dict[Any, tuple[int, Exception]] = {}
        self.tells_names = self.auto = False
        self.branches, self.steps, self.unable = 0, 0, ""

    def counted(self, item: Any = None) -> Any:
        """Counts a call, or the turn of a loop that begins with this item."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise Refused(f"more than {_MOST_STEPS} calls and turns of loops are unrolled", "use jax.lax.fori_loop")
        return item

    def write(self, obj: Obj, key: str, value: Any) -> None:
        """Changes a slot. Nothing else does."""
        if key != "items":  # each item is checked when it comes in, because all of them would take long
            check_no_iterators(value)
        if obj.birth < self.floor[0] and obj is not self.raised:
            raise Refused(f"{self.floor[1]} changes a variable or an object of its caller", "return the value")
        self.journal[-1].setdefault((obj, key), obj.slots.get(key, UNDEF))
        _put(obj, key, value)

    @contextlib.contextmanager
    def having(self, **values: Any) -> Iterator[None]:
        """Sets attributes for a block, for example `floor`."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    @contextlib.contextmanager
    def not_raising(self, why: str) -> Iterator[None]:
        """Refuses what Python may raise, because it is not known here whether it comes to that."""
        with self.having(unable=why):
            try:
                yield
            except PyRaise as e:
                e.on_a_path = True
                raise

    def unchanged(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Refuses changes of what was there before."""
        return self.having(floor=(next(Obj.births), what))

    @contextlib.contextmanager
    def undoing(self) -> Iterator[dict[Place, Any]]:
        """Undoes all changes in the end."""
        journal: dict[Place, Any] = {}
        self.journal.append(journal)
        try:
            with self.not_raising(self.unable):
                yield journal
        finally:
            for (obj, key), old in self.journal.pop().items():
                _put(obj, key, old)

    def name_of(self, obj: Obj, key: str) -> str:
        """How an error names a slot: the variable, or the variable that the object is in."""
        names = (name for frame in reversed(self.frames) for name, v in frame.slots.items() if v is obj)
        return key if obj.cls == "frame" else next(names, key)

    # ------------------------------------------------------------- what Python raises

    # A program cannot raise in the middle. So it notes the number of the first error, and goes on with whatever numbers
    # come out. After that no loop begins or goes on, and nothing runs that has an effect or may not end. When the
    # program is over, Python is called to raise the error.

    def check(self, wrong: Any, error: Exception, of_python: bool = True) -> None:
        """Python raises `error` here if a bool holds, which may be traced. If not `of_python`, the program alone does.

        Raises:
            Refused: the function can be called instead, which does not raise.
        """
        if self.auto and not of_python:
            raise Refused(f"perhaps {error}")
        if wrong is True:
            raise PyRaise(error)
        if wrong is not False:
            self.note(wrong, error, self.line, ast.unparse(self.node).partition("\n")[0])

    def note(self, wrong: Any, error: Exception, where: tuple[str, int], expression: str) -> None:
        if why := self.unable or _why_no_call():
            raise Refused(f"Python may raise {type(error).__name__} ({error}), {why}", RAISING)
        error = copied(error)
        error.add_note(f"{where[0]}:{where[1]}: `{expression}`")
        key = type(error), str(error), *error.__notes__
        number, _ = self.errors.setdefault(key, (len(self.errors) + 1, error))
        before = raw(self.raised.slots["number"])
        val = wide(lambda: jnp.where(wrong & (before == 0), np.int64(number), before))
        self.write(self.raised, "number", Num("i", val, 0, FAR))

    def unraised(self) -> Any:
        """Whether Python has raised nothing so far: True, or a traced bool."""
        number = self.raised.slots["number"]
        return True if number == 0 else wide(lambda: number.val == 0)

    def is_taken(self) -> Any:
        """Whether the path that is being interpreted is taken: True, or a traced bool."""
        go = self.unraised()
        for value, truth in self.taken:
            go = (value if truth else ~value) & go
        return go

    # ------------------------------------------------------------------- a branch

    def record(self, run: Thunk, taken: tuple[tuple[Any, bool], ...]) -> tuple[Any, Any, Forms, PyRaise | None, bool]:
        """Traces a thunk where `taken` holds, and undoes what it changes.

        Returns:
            The jaxpr as a function, its constants, the form of what it returned and of each place that it changed, the
            error that it raises, after which nobody asks for anything else of it, and whether it has effects.
        """
        found: Forms = {}
        error: PyRaise | None = None
        self.branches += 1
        if self.branches > _MOST_SIDES:
            remedy = "use jnp.where, or write `for i in range(n)`, which becomes a loop of the program"
            raise Refused(f"more than {_MOST_SIDES} sides of branches are interpreted", remedy, self.line)

        def step() -> list[Any]:
            nonlocal error
            mark = next(Obj.births)
            with self.having(taken=taken), self.undoing() as journal:
                try:
                    values: dict[Any, Any] = {None: run()}
                except PyRaise as e:
                    if not e.can_be_noted():
                        raise
                    error, values = e, {None: UNSEEN}
                    self.note(np.bool_(True), e.error, e.where or self.line, e.expression or ast.unparse(self.node))
                changed = [p for p in journal if p[0].birth < mark and (p[0] is self.raised or error is None)]
                values.update((p, p[0].slots.get(p[1], UNDEF)) for p in changed)
                memo: dict[Obj, Form] = {}
                found.update((place, form_of(v, mark, memo)) for place, v in values.items())
                flat = Flattening(mark)
                for place, form in () if self.only_shapes else found.items():
                    flat.put(form, values[place])
                return flat.leaves

        if self.only_shapes:
            step()
            return lambda: (), (), found, error, False
        jaxpr, consts = core.opened(core.make_jaxpr(step, []))
        return functools.partial(core.run_jaxpr, jaxpr), consts, found, error, bool(jaxpr.effects)

    def branch(self, pred: Any, yes: Thunk, no: Thunk) -> Any:
        """The value of one of two thunks, and its changes. `pred` is a bool, or a traced one."""
        if isinstance(pred, bool):
            return yes() if pred else no()
        sides = [self.record(run, (*self.taken, (pred, truth))) for run, truth in ((yes, True), (no, False))]
        places = list(dict.fromkeys([*sides[0][2], *sides[1][2]]))
        # A place that one side leaves alone has, on that side, the value from before.
        outside, joining = next(Obj.births), self.joining()
        now = {p: form_of(p[0].slots.get(p[1], UNDEF), outside, {}) for p in places if p}
        for _, _, forms, error, _ in sides:
            over = [p for p in places if p and ((error and p not in forms) or _is_over(p, forms, now))]
            forms.update(dict.fromkeys(over, const(UNSEEN)))
        # A place that one side leaves unseen comes last. If another place holds the same object, it takes that one.
        places.sort(key=lambda p: any((side[2].get(p) or now[p]).value is UNSEEN for side in sides))
        joined = {p: joining.join(*(side[2][p] if p in side[2] else now[p] for side in sides)) for p in places}
        leaves: Any = []  # both sides may have the same constants
        if self.only_shapes:
            leaves = self.unknown(structs_of(list(joined.values())))
        elif structs_of(list(joined.values())) or any(side[4] for side in sides):
            # What both sides use is one operand, so that a backward pass has one cotangent of it.
            operands = {id(c): c for side in sides for c in side[1]}
            both = [functools.partial(self._side, side, joined, list(operands)) for side in sides]
            leaves = jax.lax.cond(pred, *both, *operands.values())
            leaves = jax.lax.optimization_barrier(leaves) if self.branches > _MANY_SIDES else leaves
        filling = Filling(leaves)
        values = {p: filling.get(form) for p, form in joined.items()}
        for p, v in values.items():
            if p:
                self.write(p[0], p[1], v)
        if sides[0][3] and sides[1][3]:
            raise PyRaise(sides[1][3].error)
        return values.get(None)

    def _side(self, side: tuple[Any, ...], joined: Forms, ids: list[int], *operands: Any) -> list[Any]:
        """Runs one side of a branch again, and brings what it leaves to the form that both sides have."""
        run, consts, forms, *_ = side
        mark, given = next(Obj.births), dict(zip(ids, operands))
        filling = Filling(run(*(given[id(c)] for c in consts)))
        values = {p: filling.get(form) for p, form in forms.items()}
        flat = Flattening(mark)
        for p, form in joined.items():
            flat.put(form, values[p] if p in values else p[0].slots.get(p[1], UNDEF))
        return flat.leaves

    def lifted(self, f: Callable[..., Any], *vs: Any) -> Any:
        """`f(*vs)`, by a branch for each alternative of the Unions among them."""
        if any(v is UNDEF for v in vs):
            raise PyRaise(UnboundLocalError("a variable has no value here; give it one before"))
        i = next((i for i, v in enumerate(vs) if isinstance(v, Union)), None)
        if i is None:
            return f(*vs)
        if any(isinstance(v, Iter) for v in vs):
            raise Refused("an iterator beside a value of several kinds", "write list(...)")
        u, last = vs[i], len(vs[i].alts) - 1
        of = lambda k: self.lifted(f, *vs[:i], u.alts[k], *vs[i + 1 :])
        one_of = lambda k: of(k) if k == last else self.branch(u.tag == k, lambda: of(k), lambda: one_of(k + 1))
        return one_of(0)

    # --------------------------------------------------------------------- a loop

    def loop(self, go: Any, turn: Thunk, most_turns: int | None = None) -> None:
        """Runs `turn`, a thunk that says whether to go on, while it does. `go` is the first answer, traced.

        The forms of what the loop carries grow until a turn keeps them. `most_turns` is how many turns there can be, if
        that is known.
        """
        bound = self.max_steps if most_turns is None else most_turns
        forms: Forms = {}
        for _ in range(_ATTEMPTS):
            body, found = self._turn(forms, turn)
            if _same(found, forms):
                break
            forms = found
        else:
            raise Refused("what the loop carries has another form after each turn")
        if self.auto and bound is None and any(map(_dtypes.is_inexact, structs_of(list(forms.values())))):
            raise Refused("a backward pass through a loop on values needs to know how many turns there can be", _BOUND)
        if self.only_shapes:
            out = self.unknown(self._state_of(forms))
        else:
            flat = Flattening(next(Obj.births))
            for p, form in forms.items():
                flat.put(form, p[0].slots.get(p[1], UNDEF))
            state = [go & self.is_taken(), *flat.leaves]
            out = wide(bind_loop, body, state, bound, f"{self.label}: {self.line[0]}:{self.line[1]}")
        filling = Filling(out[1:])
        for p, form in forms.items():
            self.write(p[0], p[1], filling.get(form))

    def _turn(self, forms: Forms, turn: Thunk) -> tuple[Any, Forms]:
        """Traces a turn that begins with values of these forms.

        Returns:
            Its jaxpr, and the forms before and after it as one.
        """
        users, found = _dtypes.x64_enabled(), Forms()

        def step(*leaves: Any) -> list[Any]:
            mark = next(Obj.births)
            with jax.enable_x64(users), self.having(taken=((leaves[0], True),)), self.undoing() as journal:
                filling = Filling(leaves[1:])
                for p, form in forms.items():
                    self.write(p[0], p[1], filling.get(form))
                goes = turn()
                changed = [p for p in journal if p[0].birth < mark]
                values = {p: p[0].slots.get(p[1], UNDEF) for p in dict.fromkeys([*forms, *changed])}
                self._compare(forms, values, journal, mark, found)
                flat = Flattening(mark)
                for p in forms if _same(found, forms) and not self.only_shapes else ():
                    flat.put(forms[p], values[p])
                if self.only_shapes:
                    return []
                goes = goes & self.unraised()
                return [goes if is_array(goes) else jnp.asarray(np.bool_(goes)), *flat.leaves]

        structs = self._state_of(forms)
        if self.only_shapes:
            return step(*self.unknown(structs)), found
        # Without 64 bits, JAX 0.12 gives the leaves 32.
        return wide(core.make_jaxpr, step, structs), found

    def _state_of(self, forms: Forms) -> list[Any]:
        """The types of what a loop carries. The first is whether it goes on."""
        return [jax.ShapeDtypeStruct((), np.bool_), *structs_of(list(forms.values()))]

    def _compare(self, forms: Forms, values: Any, journal: Any, mark: int, found: Forms) -> None:
        """Joins the forms of what a turn leaves with those that it began with, place by place."""
        memo: dict[Obj, Form] = {}
        outside, joining = next(Obj.births), self.joining(widening=True)
        for p, value in values.items():
            new = form_of(value, mark, memo)
            start = form_of(journal.get(p, value), outside, {})
            before = forms.get(p, start)
            found[p] = (Joining() if p[1] == "$status" else joining).join(before, new)
            if not self.only_shapes:
                _check_carried(self.name_of(*p), before, new)


def _why_no_call() -> str:
    """Why programs do not call Python to raise an error, or nothing."""
    if config.errors == "refuse":
        return "and jaxpyop.config.errors is 'refuse'"
    return "" if core.all_have_callbacks() else "and a backend of this process cannot call Python"


def _is_over(place: Place, forms: Forms, now: Forms) -> bool:
    """Whether a variable has no value on a path that returned, and nobody will ask for it."""
    obj, name = place
    status = forms.get((obj, "$status"))
    has_returned = status is not None and status.value == RETURN and name not in obj.slots["$later"]
    return has_returned and (forms.get(place) or now[place]).value is UNDEF


def _put(obj: Obj, key: str, value: Any) -> None:
    if value is UNDEF:
        obj.slots.pop(key, None)
    else:
        obj.slots[key] = value


def _same(a: Forms, b: Forms) -> bool:
    first: dict[Form, int] = {}
    second: dict[Form, int] = {}
    return [(p, form_key(f, first)) for p, f in a.items()] == [(p, form_key(f, second)) for p, f in b.items()]


def _check_carried(name: str, before: Form, new: Form) -> None:
    """Refuses what would grow from turn to turn: the shape of an array, the length of a list."""
    if before.kind == new.kind == "arr" and before.own[0] != new.own[0]:
        shapes = f"the shape {before.own[0]} before a turn of the loop, and {new.own[0]} after it"
        raise Refused(f"`{name}` has {shapes}", "give it one shape")
    if before.kind == new.kind == "group" and before.own[0] is new.own[0] is tuple and before.own != new.own:
        raise Refused(f"`{name}` has another length after each turn of the loop", "use an array of a fixed length")
