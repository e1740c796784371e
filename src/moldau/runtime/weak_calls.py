"""Calls from the parts of an object back to this object, without a cycle of references."""

import weakref
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """A bound method that does not keep its object in memory. When the object is gone, calls do nothing.

    If a part calls its owner back, the two refer to each other, which is a cycle of references. A node has
    tens of thousands of objects of some classes. These objects must be freed by reference counts, because a
    garbage collection of so many objects takes a second.
    """
    # A WeakMethod does the same, but makes a bound method for each call, which takes a microsecond.
    owner = weakref.ref(method.__self__)  # type: ignore[attr-defined]
    function = method.__func__  # type: ignore[attr-defined]

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        alive = owner()
        if alive is not None:
            function(alive, *args, **kwargs)

    return call
