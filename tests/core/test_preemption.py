"""Notices of preemption: noted, agreed on, and the signals given back."""

import os
import signal
import threading

import pytest

from poplin.environments import LocalEnvironment
from poplin.errors import UsageError
from poplin.preemption import READS_BETWEEN_AGREEMENTS, Preemption, notify_all
from poplin.testing.processes import Program
from poplin.testing.simulated import run_simulated


class Alone:
    world_size = 1


class Counting:
    """A strategy of two ranks of which the other says what it is told to."""

    world_size = 2

    def __init__(self):
        self.asked = 0
        self.other = False

    def reduce_boolean_decision(self, decision, all):
        assert not all
        self.asked += 1
        return decision or self.other


@pytest.fixture
def armed():
    made = []

    def arm(strategy, environment=None):
        preemption = Preemption(strategy, environment or LocalEnvironment())
        made.append(preemption)
        return preemption

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    yield arm
    for preemption in made:
        preemption.teardown()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_one_process_stops_at_the_next_read(armed, signum):
    preemption = armed(Alone())
    assert not preemption.should_stop()
    os.kill(os.getpid(), signum)
    assert preemption.should_stop()
    assert preemption.notified


def test_the_ranks_agree_at_most_16_reads_later_and_ask_no_more_often(armed):
    strategy = Counting()
    preemption = armed(strategy)
    assert not any(preemption.should_stop() for _ in range(20))
    assert strategy.asked == 1
    os.kill(os.getpid(), signal.SIGTERM)
    reads = [preemption.should_stop() for _ in range(READS_BETWEEN_AGREEMENTS)]
    assert reads == [False] * 11 + [True] * 5
    assert strategy.asked == 2


def test_another_ranks_notice_counts(armed):
    strategy = Counting()
    preemption = armed(strategy)
    strategy.other = True
    assert [preemption.should_stop() for _ in range(16)] == [False] * 15 + [True]


def test_all_ranks_see_it_at_the_same_read_whichever_got_the_signal():
    def loop(strategy):
        preemption = Preemption(strategy, None)
        preemption.arm = lambda: None  # signals are the process's, and these ranks are threads of it
        for read in range(1, 100):
            if strategy.global_rank == 1 and read == 21:
                preemption.notify(signal.SIGTERM)
            if preemption.should_stop():
                return read
        return None

    assert run_simulated(loop, 3) == [32, 32, 32]


def test_the_first_read_arms_it(armed):
    before = signal.getsignal(signal.SIGTERM)
    preemption = armed(Alone())
    assert signal.getsignal(signal.SIGTERM) == before
    assert not preemption.armed
    preemption.should_stop()
    assert signal.getsignal(signal.SIGTERM) != before
    assert preemption.armed
    preemption.teardown()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_of_the_users_is_called_and_given_back(armed):
    called = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    try:
        own = signal.getsignal(signal.SIGUSR1)
        preemption = armed(Alone())
        preemption.arm()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert preemption.should_stop()
        assert called == [signal.SIGUSR1]
        preemption.teardown()
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_signals_of_the_environment_are_listened_to(armed):
    class Scheduler(LocalEnvironment):
        preemption_signals = (signal.SIGUSR2,)

    before = signal.getsignal(signal.SIGUSR2)
    preemption = armed(Alone(), Scheduler())
    preemption.arm()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert preemption.should_stop()
    preemption.teardown()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_another_thread_can_not_arm_it(armed):
    preemption, caught = armed(Alone()), []

    def read():
        try:
            preemption.should_stop()
        except UsageError as error:
            caught.append(str(error))

    thread = threading.Thread(target=read, name="reader")
    thread.start()
    thread.join()
    assert "'reader'" in caught[0]
    preemption.arm()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_a_notice_can_come_from_the_launching_process(armed):
    assert not notify_all(signal.SIGTERM)
    preemption = armed(Alone())
    preemption.arm()
    assert notify_all(signal.SIGTERM)
    assert preemption.should_stop()


def test_a_second_signal_ends_the_process_and_an_echo_does_not():
    source = """
        import os, signal, sys, time
        from poplin.preemption import Preemption

        class Alone:
            world_size = 1

        preemption = Preemption(Alone(), None)
        print("before", preemption.should_stop(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        print("after", preemption.should_stop(), flush=True)
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGTERM)
        print("never", flush=True)
    """
    with Program(source) as program:
        assert program.end() == -signal.SIGTERM
        assert program.output.split() == ["before", "False", "after", "True"]


def test_an_unarmed_process_ends_as_ever():
    source = """
        import os, signal
        from poplin.preemption import Preemption

        class Alone:
            world_size = 1

        Preemption(Alone(), None)
        os.kill(os.getpid(), signal.SIGTERM)
    """
    with Program(source) as program:
        assert program.end() == -signal.SIGTERM
