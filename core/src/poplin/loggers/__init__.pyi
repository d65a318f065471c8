# Written by core/generate_stubs.py from the tables of the lazy faces and registry/known.toml; change those.
from poplin.loggers.csv import CSVLogger as CSVLogger
from poplin.loggers.folder import FolderLogger as FolderLogger
from poplin.loggers.folder import as_dictionary as as_dictionary
from poplin.loggers.hyperparameters import plain_values as plain_values
from poplin.loggers.logger import Logger as Logger
from poplin.loggers.logger import rank_zero_experiment as rank_zero_experiment
from poplin.loggers.metrics import to_numbers as to_numbers
from poplin_tensorboard.logger import TensorBoardLogger as TensorBoardLogger
