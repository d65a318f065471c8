# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.loggers.csv import CSVLogger as CSVLogger
from poplin.loggers.logger import Logger as Logger
from poplin.loggers.logger import rank_zero_experiment as rank_zero_experiment
from poplin_tensorboard.logger import TensorBoardLogger as TensorBoardLogger
