import pytest
from hypothesis import given
from hypothesis import strategies as st

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.registry.names import Reference, fold, is_registrable, parse_reference


@pytest.mark.parametrize(
    "spelling", ["Single_Device", "single-device", "SINGLE.DEVICE", " single__device ", "single-_.device"]
)
def test_case_and_separators_make_no_difference(spelling):
    assert fold(spelling) == "single-device"


def test_precisions_keep_their_spelling():
    assert fold("16-mixed") == "16-mixed"
    assert parse_reference("16-mixed") == (None, None, "16-mixed")


@pytest.mark.parametrize("name", ["a", "0", "16-mixed", "bf16.true", "a_b-c.d", "x" * 200])
def test_these_can_be_registered(name):
    assert is_registrable(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a/b", "a:b", "é", "a\n", "_", "a,b"])
def test_these_cannot(name):
    assert not is_registrable(name)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("acme", (None, None, "acme")),
        ("dist:acme", (None, "dist", "acme")),
        ("strategies/acme", ("strategies", None, "acme")),
        ("strategy/dist:acme", ("strategies", "dist", "acme")),
        ("checkpoint-io/torch", ("checkpoint_ios", None, "torch")),
        ("Checkpoint_IOs/torch", ("checkpoint_ios", None, "torch")),
        ("ambient/guard", ("ambient", None, "guard")),
        (" dist : acme ", (None, "dist", "acme")),
    ],
)
def test_the_grammar(text, parts):
    assert parse_reference(text) == parts


@pytest.mark.parametrize("text", ["", " ", "/a", "a/", ":a", "dist:", "strategies/", "nonsense/a", "a/b/c"])
def test_what_names_nothing_is_an_error(text):
    with pytest.raises(ArgumentValueError):
        parse_reference(text)


def test_only_strings_are_names():
    with pytest.raises(ArgumentTypeError):
        parse_reference(3)


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["", "dist:", "strategies/"]),
)
def test_every_name_that_can_be_registered_can_be_looked_up(name, before):
    assert is_registrable(name)
    assert parse_reference(before + name).name == name
    assert fold(fold(name)) == fold(name) == fold(name.upper().replace("-", "_"))


def test_a_reference_prints_as_it_is_written():
    assert str(Reference("strategies", "dist", "acme")) == "strategies/dist:acme"
