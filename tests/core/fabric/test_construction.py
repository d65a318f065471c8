"""Fabric's constructor, properties and life, in one process."""

import gc
import pickle
import warnings

import pytest
import torch

from poplin import Fabric, errors


@pytest.fixture
def fabric():
    with Fabric(accelerator="cpu", devices=1) as fabric:
        yield fabric


def test_what_was_chosen_can_be_read_and_explained(fabric):
    assert (fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.world_size) == (0, 0, 0, 1)
    assert fabric.is_global_zero
    assert fabric.device == torch.device("cpu")
    assert fabric.launched
    assert fabric.callbacks == ()
    assert fabric.loggers == []
    text = fabric.explain()
    for word in ("accelerator", "cpu", "single_device", "32-true", "poplin-core"):
        assert word in text


def test_without_a_logger_the_error_says_so(fabric):
    with pytest.raises(IndexError, match="no logger"):
        fabric.logger
    fabric.log("loss", 1.0)  # nothing to do is fine


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"accelerator": "cqu"}, ValueError),
        ({"strategy": "dpp"}, ValueError),
        ({"precision": "16-mixd"}, ValueError),
        ({"devices": 0}, ValueError),
        ({"devices": "two"}, ValueError),
        ({"devices": [0, 1]}, TypeError),
        ({"num_nodes": 0}, ValueError),
        ({"loggers": "csw"}, ValueError),
        ({"plugins": object()}, (TypeError, ValueError)),
    ],
)
def test_bad_input_is_one_error_of_our_own(arguments, error):
    with pytest.raises(error) as caught:
        Fabric(**{"accelerator": "cpu", "devices": 1, **arguments})
    assert isinstance(caught.value, errors.PoplinError)


def test_launch_runs_the_function_with_the_fabric_first(fabric):
    assert fabric.launch() is None
    assert fabric.launch(lambda fabric, x, y=0: (fabric.world_size, x, y), 1, y=2) == (1, 1, 2)


def test_launch_refuses_what_is_no_function(fabric):
    with pytest.raises(TypeError, match=r"launch\(main\)"):
        fabric.launch("the result of main()")
    with pytest.raises(TypeError, match="first parameter"):
        fabric.launch(lambda: None)


def test_run_of_a_subclass_launches_first():
    class Trainer(Fabric):
        def run(self, value):
            return self.launched, self._life.running, value

    class Deeper(Trainer):
        def run(self, value):
            return super().run(value + 1)

    with Trainer(accelerator="cpu", devices=1) as trainer:
        assert trainer.run(3) == (True, True, 3)
    with Deeper(accelerator="cpu", devices=1) as trainer:
        assert trainer.run(value=3) == (True, True, 4)


def test_after_close_every_method_says_that_it_is_closed():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.close()
    fabric.close()
    with pytest.raises(RuntimeError, match="closed"):
        fabric.setup(torch.nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match="closed"):
        fabric.launch()


class Witness:
    def __init__(self):
        self.seen = []

    def on_exception(self, exception):
        self.seen.append(exception)

    def on_close(self):
        self.seen.append("close")

    def on_after_setup(self, fabric, module):
        self.seen.append(("setup", module))

    def on_save(self, path, state):
        self.seen.append(("save", path))

    def on_load(self, path, state):
        self.seen.append(("load", path))


def test_an_exception_is_told_once_then_close():
    witness, error = Witness(), RuntimeError("mine")
    with pytest.raises(RuntimeError, match="mine"), Fabric(accelerator="cpu", devices=1, callbacks=witness) as fabric:
        fabric.launch(lambda fabric: (_ for _ in ()).throw(error))
    assert witness.seen == [error, "close"]


def test_a_callback_that_fails_while_closing_never_hides_the_first_error():
    class Bad:
        def on_exception(self, exception):
            raise ValueError("second")

        def on_close(self):
            raise ValueError("third")

    witness = Witness()

    with (
        pytest.warns(UserWarning, match="second"),
        pytest.warns(UserWarning, match="third"),
        pytest.raises(RuntimeError, match="first"),
        Fabric(accelerator="cpu", devices=1, callbacks=[Bad(), witness]),
    ):
        raise RuntimeError("first")
    assert [str(seen) for seen in witness.seen] == ["first", "close"]  # the others are told all the same


def test_a_callback_may_close_the_fabric_itself():
    class Closer:
        def on_close(self):
            fabric.barrier()  # still there
            fabric.close()

    fabric = Fabric(accelerator="cpu", devices=1, callbacks=Closer())
    fabric.close()


def test_on_after_setup_fires_once_for_each_module():
    witness = Witness()
    with Fabric(accelerator="cpu", devices=1, callbacks=[witness]) as fabric:
        one = fabric.setup(torch.nn.Linear(1, 1))
        two = fabric.setup_module(torch.nn.Linear(1, 1))
    assert witness.seen == [("setup", one), ("setup", two), "close"]


def test_a_logger_is_given_numbers_and_is_finalized():
    class Log:
        def __init__(self):
            self.seen = []

        def log_metrics(self, metrics, step=None):
            self.seen.append((metrics, step))

        def finalize(self, status):
            self.seen.append(status)

    log, other = Log(), Log()
    with Fabric(accelerator="cpu", devices=1, loggers=[log, other]) as fabric:
        assert fabric.logger is log
        fabric.log("loss", torch.tensor(0.5), step=3)
        fabric.log_dict({"a": 1, "b": 2.5})
        with pytest.raises((TypeError, ValueError), match="picture"):
            fabric.log("picture", torch.zeros(3))
    assert log.seen == [({"loss": 0.5}, 3), ({"a": 1, "b": 2.5}, None), "success"] == other.seen


def test_a_fabric_pickles_before_it_is_launched():
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[Witness()])
    copy = pickle.loads(pickle.dumps(fabric))
    assert copy.explain() == fabric.explain()
    assert len(copy.callbacks) == 1
    fabric.close()


def test_print_prints_on_rank_zero(fabric, capsys):
    fabric.print("hello", end="!")
    assert capsys.readouterr().out == "hello!"


def test_an_unclosed_fabric_is_collected_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fabric(accelerator="cpu", devices=1)
        gc.collect()


def test_no_backward_sync_wants_what_was_set_up(fabric):
    with pytest.raises(TypeError, match="setup"):
        fabric.no_backward_sync(torch.nn.Linear(1, 1))
    module = fabric.setup(torch.nn.Linear(1, 1))
    with fabric.no_backward_sync([module, module]), fabric.no_backward_sync(module, enabled=False):
        pass


def test_what_is_made_in_the_init_contexts_is_on_the_device(fabric):
    with fabric.init_tensor():
        assert torch.zeros(1).device == fabric.device
    with fabric.init_module(empty_init=True):
        assert torch.nn.Linear(2, 2).weight.device == fabric.device
    with pytest.warns(DeprecationWarning, match="init_module"), fabric.sharded_model():
        pass


def test_collectives_are_the_identity_on_one_device(fabric):
    data = {"a": torch.tensor([1.0, 2.0]), "b": [torch.tensor(3)]}
    assert fabric.broadcast("object") == "object"
    assert fabric.all_gather(data)["a"].shape == (2,)
    assert torch.equal(fabric.all_reduce(data)["a"], torch.tensor([1.0, 2.0]))
    fabric.barrier("here")
    with fabric.rank_zero_first():
        pass


def test_a_step_really_trains(fabric):
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model(torch.ones(2, 4)).pow(2).mean()
    fabric.backward(loss)
    norm = fabric.clip_gradients(model, optimizer, max_norm=0.5)
    assert norm > 0
    optimizer.step()
    assert not torch.equal(before, model.weight)
    with pytest.raises(ValueError, match=r"clip_val|max_norm"):
        fabric.clip_gradients(model, optimizer)
