"""The device, for Poplin: all else is the default."""

from poplin.accelerators import Accelerator


class AcmeAccelerator(Accelerator):
    device_type = "acme"
    roles = ("auto", "gpu")
    priority = 50

    @staticmethod
    def name():
        return "acme"
