# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.strategies.handles import Collective as Collective
from poplin.strategies.handles import SingleDeviceCollective as SingleDeviceCollective
from poplin.strategies.handles import TorchCollective as TorchCollective
