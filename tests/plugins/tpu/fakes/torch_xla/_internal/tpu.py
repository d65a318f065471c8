"""Chips."""

import os


def num_available_devices():
    return int(os.environ["FAKE_REPLICAS"])
