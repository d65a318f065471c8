# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.launchers.launcher import Launcher as Launcher
from poplin.launchers.multiprocessing import MultiProcessingLauncher as MultiProcessingLauncher
from poplin.launchers.subprocess import SubprocessLauncher as SubprocessLauncher
