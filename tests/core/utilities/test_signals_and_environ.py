"""Environment variables on loan, unwinding by SIGTERM, the exception hook, the shield of dataloader workers."""

import os
import signal
import sys
import threading
import time

import pytest

from poplin.errors import ArgumentValueError
from poplin.testing.processes import Program
from poplin.utilities import unwinding
from poplin.utilities.environ import EnvironmentVariables, environment_variables, seconds_from_environment
from poplin.utilities.excepthook import ExceptionHook


def test_variables_are_given_back_and_what_others_changed_is_theirs(monkeypatch):
    monkeypatch.setenv("POPLIN_TEST_A", "before")
    monkeypatch.delenv("POPLIN_TEST_B", raising=False)
    monkeypatch.setenv("POPLIN_TEST_C", "before")
    variables = EnvironmentVariables()
    variables.set({"POPLIN_TEST_A": "1", "POPLIN_TEST_B": "2", "POPLIN_TEST_C": "3"})
    variables.set({"POPLIN_TEST_A": None})
    assert "POPLIN_TEST_A" not in os.environ
    os.environ["POPLIN_TEST_C"] = "the user's"
    variables.restore()
    variables.restore()
    assert os.environ["POPLIN_TEST_A"] == "before"
    assert "POPLIN_TEST_B" not in os.environ
    assert os.environ["POPLIN_TEST_C"] == "the user's"


def test_variables_are_given_back_after_an_error(monkeypatch):
    monkeypatch.delenv("POPLIN_TEST_A", raising=False)
    with pytest.raises(ValueError, match="boom"), environment_variables({"POPLIN_TEST_A": "1"}):
        raise ValueError("boom")
    assert "POPLIN_TEST_A" not in os.environ


def test_seconds_are_read_with_care(monkeypatch):
    monkeypatch.setenv("POPLIN_TEST_A", "1.5")
    assert seconds_from_environment("POPLIN_TEST_A", 3.0) == 1.5
    monkeypatch.setenv("POPLIN_TEST_A", "")
    assert seconds_from_environment("POPLIN_TEST_A", 3.0) == 3.0
    for text in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv("POPLIN_TEST_A", text)
        with pytest.raises(ArgumentValueError, match="POPLIN_TEST_A"):
            seconds_from_environment("POPLIN_TEST_A", 3.0)


def test_sigterm_unwinds_once_and_is_given_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert unwinding.install()
    assert unwinding.install()
    cleaned = []

    def told_to_end():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # must not cut this block short
            time.sleep(0.01)
            cleaned.append(True)

    try:
        with pytest.raises(unwinding.Terminated) as caught:
            told_to_end()
        assert caught.value.code == 143
        assert cleaned
    finally:
        unwinding.restore()
        assert signal.getsignal(signal.SIGTERM) is not before[0]
        unwinding.restore()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_handler_of_the_users_is_left_alone():
    def mine(number, frame):
        raise AssertionError

    previous = signal.signal(signal.SIGTERM, mine)
    try:
        assert not unwinding.install()
        assert signal.getsignal(signal.SIGTERM) is mine
        unwinding.restore()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_another_thread_sets_no_handler():
    before, results = signal.getsignal(signal.SIGTERM), []

    def use():
        results.append(unwinding.install())
        unwinding.restore()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert results == [False]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_hook_that_others_cover_hands_on_when_it_is_removed(monkeypatch):
    printed, told = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error))

    def action(error, hand_on):
        told.append(error)
        hand_on()

    hook = ExceptionHook(action)
    covered = sys.excepthook
    sys.excepthook = lambda *error: covered(*error)
    second = ExceptionHook(action)  # as with a second Fabric
    error = ValueError("boom")
    sys.excepthook(ValueError, error, None)
    assert told == [error, error]
    assert len(printed) == 1
    second.remove()
    hook.remove()
    sys.excepthook(ValueError, error, None)
    assert told == [error, error]
    assert len(printed) == 2


def test_a_shielded_loader_worker_outlives_the_groups_signal_and_obeys_its_rank():
    source = """
        import multiprocessing, os, signal, sys, time
        from poplin.utilities.signals import shield_loader_worker

        def work(ready):
            shield_loader_worker()
            shield_loader_worker()
            ready.set()
            time.sleep(60)

        if __name__ == "__main__":
            signal.signal(signal.SIGTERM, lambda *_: print("noted", flush=True))
            workers = []
            for _ in range(2):
                ready = multiprocessing.Event()
                workers.append(multiprocessing.Process(target=work, args=(ready,), daemon=True))
                workers[-1].start()
                ready.wait()
            print("up", flush=True)
            time.sleep(1)
            print("alive", [worker.is_alive() for worker in workers], flush=True)
            workers[0].terminate()
            workers[0].join(5)
            print("obeyed", workers[0].exitcode, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)  # the second one must not outlive its rank
    """
    with Program(source) as program:
        program.wait_for(lambda output: "up" in output)
        program.send(signal.SIGTERM, group=True)
        assert program.end() == -signal.SIGKILL
        lines = program.output.split("\n")
        assert "noted" in lines
        assert "alive [True, True]" in lines
        assert "obeyed 0" in lines


@pytest.mark.parametrize("meant", [KeyboardInterrupt, GeneratorExit, unwinding.Terminated])
def test_what_is_meant_for_the_process_is_let_through(meant):
    with pytest.raises(meant):
        unwinding.let_through(meant())
    for other in (SystemExit(3), RuntimeError(), BaseException()):
        unwinding.let_through(other)
