"""How a wrapper is the object it wraps: an instance of a made subclass that shares the original's ``__dict__``.

Since the class is a real subclass and the dictionary is one and the same, ``isinstance``, attributes in both
directions, hooks, state dicts and nested use need no code: they are simply true. What a wrapper knows beyond that
stands in one slot, its *link*. What is left to do is keep the user's class machinery from noticing the subclass.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from poplin.errors import ArgumentTypeError, UsageError

R = TypeVar("R", bound="Shared")

#: The slot that holds the link; every made class has exactly this one, so that their layouts are equal.
LINK = "_poplin_link"
#: The attribute of a made class that says for which class it was made.
USER_CLASS = "_poplin_user_class"

_set_class = object.__dict__["__class__"].__set__
_LOCK = threading.RLock()
#: (role, id of the user's class, variant) → made class. Weak: a class made in a function can go when its user goes.
#: The id stays valid as long as the entry does, because the made class holds the user's.
_CLASSES: WeakValueDictionary[tuple[Any, ...], type] = WeakValueDictionary()
_METACLASSES: dict[type, type] = {}


class Shared:
    """What all wrappers have in common. The link has at least ``original``."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # code of the user's that clones itself by type(self).__new__(type(self)) means its own class
        user_class = vars(cls).get(USER_CLASS)
        if user_class is None:
            raise UsageError(f"A {cls.__name__} is made by Fabric's setup methods, around an object of yours.")
        return user_class.__new__(user_class, *args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if USER_CLASS not in vars(cls):  # the user's registries hear of the user's classes only
            super().__init_subclass__(**kwargs)

    @property
    def __class__(self) -> type:
        # what code that asks `self.__class__` means is the user's class, be it to construct another or to change it
        return type(link_of(self).original)

    @__class__.setter
    def __class__(self, changed: type) -> None:
        self._poplin_follow(changed)

    def _poplin_follow(self, changed: type) -> None:
        """Give the original the class ``changed``, as parametrizations do to a module, and follow it."""
        original = link_of(self).original
        before = type(original)
        original.__class__ = changed
        try:
            change_class(self, self._poplin_class_for(changed))
        except BaseException:
            original.__class__ = before
            raise

    def _poplin_class_for(self, user_class: type) -> type:
        raise NotImplementedError

    def __copy__(self) -> Any:
        rebuild, (original, *others) = self.__reduce_ex__(2)
        return rebuild(copy.copy(original), *others)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """``(rebuild, (original, ...))``: by this wrappers are pickled and deep-copied.

        There is no ``__deepcopy__``: a compiled module would find it through its attributes, and lose itself.
        """
        raise NotImplementedError


class Kept:
    """What a copy shares with what it was copied from.

    Args:
        precision: it goes along in a pickle.
        guard: it doesn't, because it belongs to a Fabric of this process.
    """

    def __init__(self, precision: Any, guard: Any = None) -> None:
        self.precision = precision
        self.guard = guard

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (self.precision,)


def _deepcopy(wrapper: Shared, memo: dict[int, Any]) -> Any:
    """For classes whose own ``__deepcopy__`` would copy the user's object and forget the wrapper."""
    rebuild, (original, *others) = wrapper.__reduce_ex__(2)
    return rebuild(copy.deepcopy(original, memo), *others)


class _Made:
    """Mixed into the metaclass of made classes: what is done to such a class is done to the user's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return vars(cls).get(USER_CLASS, super().__call__)(*args, **kwargs)  # type: ignore[misc]

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith(("__", "_abc_")) or USER_CLASS not in vars(cls):
            super().__setattr__(name, value)
        else:
            setattr(vars(cls)[USER_CLASS], name, value)


def link_of(wrapper: Any) -> Any:
    """The wrapper's link."""
    return object.__getattribute__(wrapper, LINK)


def share(made: type[R], original: Any, link: Any) -> R:
    """An instance of ``made`` that shares everything with ``original``.

    Raises:
        ArgumentTypeError: the object keeps data where a second one can't reach it (its class derives from ``list``,
            ``dict`` or a class in C).
    """
    try:
        wrapper: R = object.__new__(made)
    except TypeError as error:
        raise ArgumentTypeError(
            f"A {type(original).__name__} can't be set up, because it keeps data outside of its __dict__ ({error}). "
            "Let it hold the list, dict or C object as an attribute instead of deriving from its class."
        ) from None
    object.__setattr__(wrapper, "__dict__", original.__dict__)
    object.__setattr__(wrapper, LINK, link)
    return wrapper


def change_class(wrapper: Shared, made: type) -> None:
    """Swap the made class of ``wrapper`` for another one."""
    _set_class(wrapper, made)


def made_class(
    role: type[R], user_class: type, variant: tuple[Any, ...], namespace: Callable[[], dict[str, Any]]
) -> type[R]:
    """The subclass of ``role`` and ``user_class``, made once for each ``variant``.

    Args:
        role: the kind of wrapper.
        user_class: the class of what is wrapped.
        variant: what decides the namespace.
        namespace: what the class defines itself.
    """
    key = (role, id(user_class), variant)
    with _LOCK:
        made = _CLASSES.get(key)
        if made is None:
            members = {
                "__module__": user_class.__module__,
                "__qualname__": user_class.__qualname__,
                "__doc__": user_class.__doc__,
                "__slots__": (LINK,),
                USER_CLASS: user_class,
                **slot_delegates(user_class),
                **namespace(),
            }
            if hasattr(user_class, "__del__"):  # the user's object is finalised once, when it goes itself
                members["__del__"] = lambda self: None
            if hasattr(user_class, "__deepcopy__"):
                members["__deepcopy__"] = _deepcopy
            made = _CLASSES[key] = _make(user_class, role, members)
    return made


def _make(user_class: type, role: type, members: dict[str, Any]) -> type:
    """Make a class without running the ``__new__`` and ``__init__`` of the user's metaclass, which may keep lists."""
    kind = _made_metaclass(type(user_class))
    maker: Any = ABCMeta if issubclass(kind, ABCMeta) else type
    arguments = (user_class.__name__, (role, user_class), members)
    try:
        made = maker.__new__(kind, *arguments)
    except TypeError:  # a metaclass written in C insists on its own
        made = kind(*arguments)
    assert isinstance(made, type)
    return made


def _made_metaclass(kind: type) -> type:
    made = _METACLASSES.get(kind)
    if made is None:
        try:
            made = type(kind).__new__(type(kind), kind.__name__, (_Made, kind), {"__module__": kind.__module__})
        except TypeError:
            made = kind
        _METACLASSES[kind] = made
    return made


class Delegate:
    """A member of the user's class that is read and written on the user's own object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, owner: type) -> Any:
        if wrapper is None:
            return getattr(vars(owner).get(USER_CLASS, owner.__base__), self.name)
        return getattr(link_of(wrapper).original, self.name)

    def __set__(self, wrapper: Any, value: Any) -> None:
        setattr(link_of(wrapper).original, self.name, value)

    def __delete__(self, wrapper: Any) -> None:
        delattr(link_of(wrapper).original, self.name)


def slot_delegates(user_class: type) -> dict[str, Any]:
    """Delegates for what the user's classes keep in slots, which are not in the shared ``__dict__``."""
    return {
        name: Delegate(name)
        for base in user_class.__mro__
        for name, value in vars(base).items()
        if inspect.ismemberdescriptor(value)
    }


def own_members(user_class: type, base: type) -> Iterator[tuple[str, Any]]:
    """What the user's classes define beyond ``base``, special methods aside: ``(name, value)`` as looked up."""
    seen: set[str] = set()
    for owner in user_class.__mro__:
        for name, value in vars(owner).items():
            if name in seen:
                continue
            seen.add(name)
            if owner not in base.__mro__ and not (name.startswith("__") and name.endswith("__")):
                yield name, value


def is_method(value: Any) -> bool:
    """Whether a class member becomes a bound method when it is read from an instance."""
    return (
        callable(value)
        and not isinstance(value, (type, staticmethod, classmethod))
        and hasattr(type(value), "__get__")
        and not hasattr(type(value), "__set__")
    )


def on_original(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a method of a wrapper that runs on the user's own object.

    Where that returns itself, as ``train()`` does, the caller gets the wrapper.
    """

    def method(self: Shared, /, *args: Any, **kwargs: Any) -> Any:
        original = link_of(self).original
        result = getattr(original, name)(*args, **kwargs)
        return self if result is original else result

    return looking_like(function, method, name)


def looking_like(function: Any, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``method`` with the name, signature and documentation of ``function``, as far as it has them."""
    if not inspect.isroutine(function):  # a descriptor that computes its function: there is nothing to copy yet
        method.__name__ = name
        return method
    functools.update_wrapper(method, function)
    method.__name__ = name
    return method


def delegates(user_class: type, base: type) -> dict[str, Any]:
    """Everything that the user's classes define beyond ``base``, run, read and written on the user's own object."""
    return {
        name: on_original(name, value) if is_method(value) else Delegate(name)
        for name, value in own_members(user_class, base)
        if is_method(value) or hasattr(type(value), "__set__")
    }


def has_own(original: Any, name: str) -> bool:
    """Whether the user's object has an attribute ``name`` of its own, found without running any of its code."""
    if name in original.__dict__ or any(name in vars(owner) for owner in type(original).__mro__):
        return True
    registries = ("_parameters", "_buffers", "_modules")
    return any(name in (original.__dict__.get(registry) or ()) for registry in registries)
