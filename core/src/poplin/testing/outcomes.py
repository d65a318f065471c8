"""What comes of a check."""

from __future__ import annotations

import unittest
from typing import Literal, NamedTuple

#: What can come of a check.
Status = Literal["passed", "failed", "not claimed"]


class ComplianceError(AssertionError):
    """A check failed. The message says what was expected, what was found, and which member of the interface it is."""


class NotClaimed(unittest.SkipTest):
    """The extension does not claim what a check is about. The message says by what it says so."""


class Outcome(NamedTuple):
    """What came of one check of one extension."""

    #: ``kind/name``, or the name of the distribution.
    subject: str
    #: Name of the suite.
    suite: str
    #: Name of the check; it reads like a requirement.
    check: str
    #: The member of the interface that it is about.
    member: str
    #: passed, failed or not claimed.
    status: Status
    #: Why, where it did not pass.
    message: str
