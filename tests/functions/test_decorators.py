"""`py_function`, `numpy_function` and `py_func` as decorators: of functions, of methods, with keyword arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpyop

F = jnp.float32
every_decorator = pytest.mark.parametrize("function", [jaxpyop.py_function, jaxpyop.numpy_function, jaxpyop.py_func])


@every_decorator
def test_a_decorated_function_keeps_its_name_and_signature(function):
    @function(Tout=F)
    def scaled(x, m=2.0, *, by=1.0):
        """Scale."""
        return x * m * by

    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Scale.")
    three = F(3)
    assert scaled(three) == 6
    assert scaled(three, 3.0) == scaled(three, m=3.0) == 9
    assert scaled(three, by=three) == 18
    assert jax.jit(lambda x: scaled(x=x, m=x, by=x))(three) == 27


@every_decorator
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_the_dtypes_are_those_of_the_settings_at_each_call(function):
    double = function(Tout=np.float64)(lambda x: 2 * x)
    for _ in range(2):
        assert double(1.5).dtype == np.float32
        with jax.enable_x64(True):
            assert double(1.5).dtype == np.float64


@every_decorator
def test_methods_of_all_kinds(function):
    class Model:
        factor = 2.0

        def __init__(self, w):
            self.w = w

        @function(Tout=F)
        def plain(self, x):
            return x * self.w

        @classmethod
        @function(Tout=F)
        def of_class(cls, x):
            return x * cls.factor

        @staticmethod
        @function(Tout=F)
        def static(x, y=1.0):
            return x + y

        @function(Tout=F)
        def __call__(self, x):
            return x - self.w

    model = Model(5.0)
    assert model.plain(F(3)) == model.plain(x=F(3)) == 15
    assert Model.of_class(F(3)) == 6
    assert Model.static(F(3)) == 4
    assert jax.jit(model)(F(3)) == -2
    assert [Model(w).plain(F(1)) for w in (1.0, 2.0)] == [1, 2]


def test_a_function_of_the_shapes_gets_keyword_inputs():
    op = jaxpyop.numpy_function(Tout=F, output_shapes=lambda x, n: (n.shape[0],))(lambda x, n: np.zeros(len(n)))
    assert jax.jit(lambda x, n: op(x, n=n))(F(1), jnp.ones(4)).shape == (4,)


def test_a_method_that_returns_itself():
    class Bar:
        n = 0

        @jaxpyop.py_func(Tout=None)
        def update(self, k):
            self.n += int(k)
            return self

    bar = Bar()
    assert bar.update(3) is None
    assert bar.n == 3
