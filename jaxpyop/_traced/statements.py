"""Statements. To add one, write a method `do_<name of the ast class in lower case>`."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpyop._traced.machine import BREAK, CONTINUE, NORMAL, RETURN
from jaxpyop._traced.user_functions import Functions, contains
from jaxpyop._traced.values import *

# How many turns of a `for` with a traced exit are unrolled.
_UNROLLED = 8
# A loop over more constants than these becomes a loop of the program, too, if there is a branch in each turn.
_MANY_TURNS = 64
Loop = ast.While | ast.For


def _leaves(statements: list[ast.stmt]) -> bool:
    """Whether a block always ends with a return or the like."""
    return bool(statements) and isinstance(statements[-1], (ast.Return, ast.Raise, ast.Break, ast.Continue))


class Statements(Functions):
    """Executes statements in a frame."""

    def block(self, statements: list[ast.stmt], env: Obj) -> None:
        for i, s in enumerate(statements):
            rest = statements[i + 1 :]
            if isinstance(s, ast.If) and rest and (_leaves(s.body) or _leaves(s.orelse)):
                # What follows belongs to the other side. So the program has one branch, and no status to test.
                yes, no = (s.body, [*s.orelse, *rest]) if _leaves(s.body) else ([*s.body, *rest], s.orelse)
                return self.statement(ast.copy_location(ast.If(s.test, yes, no), s), env)
            self.statement(s, env)
            status = env.slots["$status"]
            if isinstance(status, Num):
                if rest:
                    self.if_normal(env, functools.partial(self.block, rest, env))
                return None
            if status != NORMAL:
                return None
        return None

    def statement(self, s: ast.stmt, env: Obj) -> None:
        with self.having(line=(env.slots["$outer"].__code__.co_filename, s.lineno), node=s):
            try:
                method = getattr(self, f"do_{type(s).__name__.lower()}", None)
                if method is None:
                    remedy = "write an if" if isinstance(s, ast.Try) else "leave it out"
                    raise Refused(f"the statement `{ast.unparse(s).splitlines()[0]}` is not in the language", remedy)
                method(s, env)
            except Refused as e:
                e.where = e.where or self.line
                raise

    def if_normal(self, env: Obj, run: Callable[[], Any]) -> None:
        """Runs what follows, unless the block was left. On each side it is known whether it was."""
        status = env.slots["$status"]
        if not isinstance(status, Num):
            return run()

        def go() -> None:
            self.write(env, "$status", NORMAL)
            run()

        def skip() -> None:
            left = status.hi if status.hi == NORMAL + 1 else Num("i", status.val, NORMAL + 1, status.hi)
            self.write(env, "$status", left)

        return self.branch(self.truth(self.compare(ast.Eq, status, NORMAL)), go, skip)

    # ------------------------------------------------------------ simple statements

    def do_expr(self, s: ast.Expr, env: Obj) -> None:
        self.eval(s.value, env)

    def do_pass(self, s: ast.Pass, env: Obj) -> None:
        pass

    do_nonlocal = do_pass

    def do_assign(self, s: ast.Assign, env: Obj) -> None:
        value = self.eval(s.value, env)
        for t in s.targets:
            self.assign(t, value, env)

    def do_annassign(self, s: ast.AnnAssign, env: Obj) -> None:
        if s.value is not None:
            self.assign(s.target, self.eval(s.value, env), env)

    def do_augassign(self, s: ast.AugAssign, env: Obj) -> None:
        t = s.target
        if isinstance(t, ast.Name):
            old, put = self.load(t.id, env), lambda v: self.store(t.id, v, env)
        else:
            box, named = self.eval(t.value, env), isinstance(t, ast.Attribute)
            key = t.attr if isinstance(t, ast.Attribute) else self.eval(t.slice, env)
            get, change = (self.get_attr, self.set_attr) if named else (self.get_item, self.set_item)
            old, put = get(box, key), lambda v: change(box, key, v)
        right = self.eval(s.value, env)
        if isinstance(old, Obj) and old.cls is list and isinstance(s.op, ast.Add):
            self.list_method(old, "extend", [right])
            return put(old)
        alts = old.alts if isinstance(old, Union) else [old]
        if any(isinstance(a, (Obj, list, dict, set, np.ndarray)) for a in alts):
            raise Refused(f"`{ast.unparse(t)}` is an object that is changed in place", "write x = x + y")
        return put(self.binary(type(s.op), old, right))

    def do_delete(self, s: ast.Delete, env: Obj) -> None:
        for t in s.targets:
            if not isinstance(t, ast.Name):
                raise Refused("`del` of an item or an attribute", "make a new object without it")
            self.load(t.id, env)
            self.store(t.id, UNDEF, env)

    def do_return(self, s: ast.Return, env: Obj) -> None:
        self.write(env, "$ret", None if s.value is None else self.eval(s.value, env))
        self.write(env, "$status", RETURN)
        self.returned = self.line, self.node

    def do_break(self, s: ast.Break, env: Obj) -> None:
        self.write(env, "$status", BREAK)

    def do_continue(self, s: ast.Continue, env: Obj) -> None:
        self.write(env, "$status", CONTINUE)

    def do_assert(self, s: ast.Assert, env: Obj) -> None:
        def fail() -> None:
            raised = PyRaise(AssertionError(*([self._told(s.msg, env)] if s.msg else [])))
            raised.expression = ast.unparse(s)
            raise raised

        if __debug__:  # `python -O` leaves it out
            self.choose(s.test, env, lambda: None, fail)

    def _told(self, e: ast.expr, env: Obj) -> Any:
        """The text of an error. It names values that are not known, because the program does not tell them."""
        with self.having(tells_names=True):
            return self.eval(e, env)

    def do_raise(self, s: ast.Raise, env: Obj) -> None:
        def raise_(error: Any) -> None:
            error = error() if isinstance(error, type) and issubclass(error, BaseException) else error
            if not isinstance(error, Exception):
                raise Refused("a raise of what is no Exception")
            raised = PyRaise(error)
            raised.expression = ast.unparse(s)
            raise raised

        self.lifted(raise_, self._told(s.exc, env) if s.exc else None)

    # ---------------------------------------------------------------------- branches

    def do_if(self, s: ast.If, env: Obj) -> None:
        self.choose(s.test, env, lambda: self.block(s.body, env), lambda: self.block(s.orelse, env))

    def choose(self, test: ast.expr, env: Obj, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """What one of two sides gives. Each knows how the test ended."""
        before = dict(env.slots)
        t = self.truth(self.eval(test, env))

        def side(truth: bool, run: Callable[[], Any]) -> Any:
            if not isinstance(t, bool):
                self.refine(test, truth, env, dict(before))
            return run()

        return self.branch(t, lambda: side(True, yes), lambda: side(False, no))

    # ------------------------------------------------------------------------- loops

    def do_while(self, s: ast.While, env: Obj) -> None:
        test = lambda: self.truth(self.eval(s.test, env))
        while True:
            self.counted()
            t = test()
            if t is False:
                return self.block(s.orelse, env)
            if t is not True:
                break
            self.block(s.body, env)
            status = env.slots["$status"]
            if isinstance(status, Num):
                t = self._goes_on(s, env, test)
                break
            if status in (BREAK, RETURN):
                return self.write(env, "$status", NORMAL if status == BREAK else status)
            self.write(env, "$status", NORMAL)
        self._loop_of_program(s, env, t, test, lambda: None)
        return self._leave_loop(s, env)

    def _loop_of_program(
        self, s: Loop, env: Obj, go: Any, test: Callable[[], Any], begin: Callable[[], None], most: int | None = None
    ) -> None:
        """Runs the turns of a loop that depends on values. Each begins with `begin`, and there are at most `most`."""

        def turn() -> Any:
            self.write(env, "$status", NORMAL)
            begin()
            self.block(s.body, env)
            return self._goes_on(s, env, test)

        if go is not False:
            self.loop(jnp.asarray(True) if go is True else go, turn, most)

    def _goes_on(self, s: Loop, env: Obj, test: Callable[[], Any]) -> Any:
        """After a turn: whether there is another one."""
        self._clear(s, env, BREAK)
        alive = self.truth(self.compare(ast.Eq, env.slots["$status"], NORMAL))
        return self.truth(self.branch(alive, lambda: self.truth_value(test()), lambda: False))

    def _leave_loop(self, s: Loop, env: Obj) -> None:
        """After a loop: its `break` is over, and `else` runs if there was none. A `break` there is the outer loop's."""
        status = env.slots["$status"]
        endless = isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and not contains(ast.Break, s)
        if isinstance(status, Num) and endless:
            # Only a return leaves such a loop.
            self.write(env, "$status", RETURN)
            return
        self._clear(s, env, RETURN)

        def no_break() -> None:
            self.write(env, "$status", NORMAL)
            self.block(s.orelse, env)

        def left() -> None:
            if not contains(ast.Break, s):
                self.write(env, "$status", RETURN)

        if s.orelse:
            self.branch(self.truth(self.compare(ast.Eq, status, NORMAL)), no_break, left)

    def _clear(self, s: Loop, env: Obj, most: int) -> None:
        """After a turn or a loop, a status above `most` has done what it does, and is normal again."""
        status = env.slots["$status"]
        exits = ((RETURN, ast.Return), (BREAK, ast.Break))
        highest = max((n for n, kind in exits if n <= most and contains(kind, s)), default=NORMAL)
        if isinstance(status, Num) and highest > NORMAL:
            val = wide(lambda: jnp.where(status.val > most, np.int64(NORMAL), status.val))
            self.write(env, "$status", Num("i", val, NORMAL, highest))
        elif isinstance(status, Num) or status > most:
            self.write(env, "$status", NORMAL)

    def do_for(self, s: ast.For, env: Obj) -> None:
        it = self.known_length(self.eval(s.iter, env))
        self.lifted(lambda i: self._for_range(s, i, env) if isinstance(i, TracedRange) else self._for(s, i, env), it)

    def _for(self, s: ast.For, items: Any, env: Obj) -> None:
        def turn(item: Any) -> None:
            self.assign(s.target, item, env)
            self.block(s.body, env)

        values, before = self.lazily(items), self.branches
        length, item_of = self.by_index(items)
        for n in itertools.count():
            left = isinstance(env.slots["$status"], Num)
            with self._if_python_asks(env) if left else contextlib.nullcontext():
                item = next(values, UNDEF)
            if item is UNDEF:
                break
            # The other turns are one loop, because the program would grow with each of them.
            rest = functools.partial(self._for_range, s, TracedRange(n, length, 1), env, length - n, item_of)
            if left and length - n > _UNROLLED:
                self.if_normal(env, rest)
                break
            is_many = n == _UNROLLED and length - n > _MANY_TURNS
            if is_many and self.branches - before >= n and self._became_loop(rest):
                break
            self.if_normal(env, functools.partial(turn, item))
            self._clear(s, env, BREAK)
            if env.slots["$status"] in (BREAK, RETURN):
                break
        self._leave_loop(s, env)

    @contextlib.contextmanager
    def _if_python_asks(self, env: Obj) -> Iterator[None]:
        """For the next item after an exit that depends on values: it is not known whether Python asks for it.

        So it must change nothing, and no loop may begin in it if Python does not.
        """
        what, stays = "an iterator in a loop with an exit", self.compare(ast.Eq, env.slots["$status"], NORMAL)
        taken = self.having(taken=(*self.taken, (self.truth(stays), True)))
        with taken, self.unchanged(what), self.not_raising(f"in {what}"):
            yield

    def _became_loop(self, rest: Callable[[], None]) -> bool:
        """Makes a loop of the turns that are left, if they can be one: the index is not a constant there."""
        errors = dict(self.errors)
        try:
            rest()
        except Refused:
            self.errors = errors
            return False
        return True

    def _for_range(
        self, s: ast.For, r: TracedRange, env: Obj, most: int | None = None, item_of: Any = lambda i: i
    ) -> None:
        """Runs a loop over the items of a range. If there are at most `most` turns, they are the last of a loop."""
        key = f"$i{s.lineno}.{s.col_offset}"
        below = ast.Lt if r.step > 0 else ast.Gt
        self.write(env, key, r.start)
        test = lambda: self.truth(self.compare(below, env.slots[key], r.stop))

        def begin() -> None:
            i = env.slots[key]
            if isinstance(i, Num):
                # The test says so.
                (lo, hi), (lowest, highest) = bounds(i), bounds(r.stop)
                lo, hi = (lo, min(hi, highest - 1)) if r.step > 0 else (max(lo, lowest + 1), hi)
                i = Num("i", i.val, lo, hi) if lo <= hi else i
            self.assign(s.target, item_of(i), env)
            self.write(env, key, self.binary(ast.Add, i, r.step))

        self._loop_of_program(s, env, test(), test, begin, most)
        self.write(env, key, UNDEF)
        if most is None:
            self._leave_loop(s, env)

    # ------------------------------------------------------------------------------- with

    def do_with(self, s: ast.With, env: Obj) -> None:
        for item in s.items:
            call = item.context_expr
            known = (contextlib.nullcontext, jax.named_scope)
            if item.optional_vars or not isinstance(call, ast.Call) or self.eval(call.func, env) not in known:
                raise Refused(f"`with {ast.unparse(item)}` is not in the language", "leave it out")
            self.eval(call, env)
        self.block(s.body, env)
