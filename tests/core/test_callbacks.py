"""Callbacks: who is called, with what, in which order, and what a slip of the pen gets."""

import functools
import warnings
from unittest.mock import Mock

import pytest

from poplin.callbacks import Callbacks, accepted_keywords, as_list
from poplin.utilities.typos import edit_distance, is_typo_of_hook


class Recorder:
    def __init__(self):
        self.calls = []

    def on_train_batch_end(self, **kwargs):
        self.calls.append(kwargs)


def test_one_call_serves_three_signatures():
    seen = []

    class All:
        def on_step(self, **kwargs):
            seen.append(("all", kwargs))

    class Some:
        def on_step(self, loss, lr=None):
            seen.append(("some", {"loss": loss, "lr": lr}))

    class None_:
        def on_step(self):
            seen.append(("none", {}))

    Callbacks([All(), Some(), None_()]).call("on_step", loss=1, epoch=2)
    assert seen == [("all", {"loss": 1, "epoch": 2}), ("some", {"loss": 1, "lr": None}), ("none", {})]


def test_a_positional_only_parameter_never_takes_a_keyword():
    seen = []

    class Callback:
        def on_step(self, batch, /, loss=None):
            seen.append((batch, loss))

    Callbacks([Callback()]).call("on_step", "a batch", batch="never", loss=1)
    assert seen == [("a batch", 1)]


def test_positional_arguments_are_passed_as_they_are():
    callback = Mock()
    Callbacks([callback]).call("on_step", 1, 2, three=3)
    callback.on_step.assert_called_once_with(1, 2, three=3)


def test_where_a_signature_cannot_be_read_everything_is_passed():
    seen = []

    class Unreadable:
        __signature__ = "no signature"  # inspect.signature raises TypeError

        def __call__(self, **kwargs):
            seen.append(kwargs)

    class Callback:
        on_step = Unreadable()

    assert accepted_keywords(Unreadable()) is None
    Callbacks([Callback()]).call("on_step", a=1)
    assert seen == [{"a": 1}]


def test_what_is_not_callable_is_warned_about_and_missing_methods_are_skipped():
    class Callback:
        on_step = "not a method"

    with pytest.warns(UserWarning, match=r"Callback\.on_step is not callable"):
        Callbacks([Callback(), object()]).call("on_step", loss=1)


def test_the_signature_is_inspected_once(monkeypatch):
    from poplin import callbacks as module

    inspected = []
    original = module.accepted_keywords
    monkeypatch.setattr(module, "accepted_keywords", lambda f: inspected.append(f) or original(f))
    all_ = Callbacks([Recorder(), Recorder()])
    for _ in range(3):
        all_.call("on_train_batch_end", loss=1)
    assert len(inspected) == 1


@pytest.mark.parametrize("wrap", [list, tuple, iter, lambda items: (item for item in items)])
def test_several_callbacks_may_come_in_any_of_these(wrap):
    one, two = object(), object()
    assert as_list(wrap([one, two])) == [one, two]


def test_what_can_be_iterated_but_is_no_collection_is_one_callback():
    class Iterable_(dict):
        pass

    callback = Iterable_(a=1)
    assert as_list(callback) == [callback]
    assert as_list(None) == []
    assert set(as_list({"a", "b"})) == {"a", "b"}


def test_the_users_list_is_never_changed():
    mine = [Recorder()]
    callbacks = Callbacks(as_list(mine))
    callbacks.add(Recorder())
    assert len(mine) == 1
    assert len(callbacks) == 2


def test_a_live_list_is_empty_until_somebody_has_the_hook():
    callbacks = Callbacks([object()])
    live = callbacks.live("on_train_batch_end")
    assert not live
    recorder = Recorder()
    callbacks.add(recorder)
    callbacks.add(recorder)  # once
    for fire in live:
        fire(loss=3)
    assert recorder.calls == [{"loss": 3}]


def test_hooks_fire_through_the_given_call():
    seen = []
    callbacks = Callbacks([Recorder()], fire=lambda name, **kwargs: seen.append((name, kwargs)))
    for fire in callbacks.live("on_train_batch_end"):
        fire(loss=1)
    assert seen == [("on_train_batch_end", {"loss": 1})]


def test_partial_and_static_hooks_work():
    seen = []

    class Callback:
        on_a = functools.partial(lambda tag, loss: seen.append((tag, loss)), "partial")
        on_b = staticmethod(lambda loss: seen.append(("static", loss)))
        on_c = classmethod(lambda cls, loss: seen.append((cls.__name__, loss)))

    for hook in ("on_a", "on_b", "on_c"):
        Callbacks([Callback()]).call(hook, loss=1, other=2)
    assert seen == [("partial", 1), ("static", 1), ("Callback", 1)]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("on_train_epoch_strat", "on_train_epoch_start"),
        ("on_train_epohc_end", "on_train_epoch_end"),
        ("on_tain_epoch_end", "on_train_epoch_end"),
        ("on_validaton_batch_end", "on_validation_batch_end"),
        ("on_trainepoch_end", "on_train_epoch_end"),
        ("no_train_epoch_end", "on_train_epoch_end"),
        ("on_bacwkard_start", "on_backward_start"),
    ],
)
def test_a_typo_is_one(name, known):
    assert is_typo_of_hook(name, known)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("on_train_epoch_end", "on_train_epoch_start"),
        ("on_train_batch_end", "on_train_epoch_end"),
        ("on_before_backward", "on_after_backward"),
        ("on_validation_model_eval", "on_validation_model_train"),
        ("on_step", "on_stop"),
        ("on_val", "on_eval"),
        ("on_train_end", "on_train_epoch_end"),
        ("on_fit_start", "on_fit_end"),
        ("on_save", "on_load"),
        ("on_foo", "on_bar"),
        ("on_train_epoch_start", "on_train_epoch_start"),
    ],
)
def test_another_word_is_no_typo(name, known):
    assert not is_typo_of_hook(name, known)


def test_a_typo_is_warned_about_once():
    callbacks = Callbacks([Recorder()])
    with pytest.warns(UserWarning, match="on_train_batch_end"):
        callbacks.call("on_train_bacth_end", loss=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callbacks.call("on_train_bacth_end", loss=1)
        callbacks.call("on_something_else_entirely")


def test_edit_distance_counts_swaps_as_one():
    assert edit_distance("start", "strat") == 1
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == 3


def test_every_hook_that_a_trainer_fires_may_meet_every_other_without_a_warning():
    hooks = [
        "on_train_epoch_start", "on_train_epoch_end", "on_train_batch_start", "on_train_batch_end",
        "on_before_backward", "on_after_backward", "on_before_zero_grad", "on_before_optimizer_step",
        "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_batch_start", "on_validation_batch_end",
        "on_validation_model_eval", "on_validation_model_train", "on_after_setup", "on_backward_start",
        "on_backward_end", "on_optimizer_step_start", "on_after_optimizer_step", "on_save", "on_load", "on_preempt",
        "on_exception", "on_close",
    ]  # fmt: skip
    assert [(a, b) for a in hooks for b in hooks if is_typo_of_hook(a, b)] == []
