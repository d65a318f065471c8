"""``poplin explain``: what would be chosen, and why."""


def test_a_choice_with_its_reasons(poplin):
    text = poplin("explain", "--accelerator", "cpu", "--devices", "1").stdout
    for word in ("accelerator", "cpu", "strategy", "single_device", "precision", "32-true", "poplin-core"):
        assert word in text


def test_what_cannot_be_chosen_is_one_error(poplin):
    for words, hint in (
        (["--strategy", "single_devise"], "single_device"),
        (["--accelerator", "cpu", "--devices", "0,0"], "devices"),
    ):
        done = poplin("explain", *words, code=1)
        assert hint in done.stderr
        assert "Traceback" not in done.stderr
