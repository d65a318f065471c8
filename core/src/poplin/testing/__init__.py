"""For authors of plugins: compliance suites, runners of real processes, and fakes.

Subclass a suite in a test file (its docstring says how), or run ``poplin plugins check NAME``. ``docs/compliance.md``
lists every check.
"""

from poplin.faces import lazy_face

__all__ = [
    "SEVERAL",
    "Case",
    "CheckpointIOCompliance",
    "Compliance",
    "ComplianceError",
    "LoggerCompliance",
    "NotClaimed",
    "Outcome",
    "PrecisionCompliance",
    "Program",
    "RanksFailedError",
    "StrategyCompliance",
    "bind_strategy",
    "check",
    "error_of",
    "free_port",
    "make_distribution",
    "plugin_source",
    "report",
    "requirement",
    "run_ranks",
    "run_simulated",
    "run_suite",
    "start_strategy",
    "suite_for",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "SEVERAL": "poplin.testing.requirement:SEVERAL",
        "Case": "poplin.testing.case:Case",
        "CheckpointIOCompliance": "poplin.testing.suites.checkpoint_io:CheckpointIOCompliance",
        "Compliance": "poplin.testing.compliance:Compliance",
        "ComplianceError": "poplin.testing.outcomes:ComplianceError",
        "LoggerCompliance": "poplin.testing.suites.logger:LoggerCompliance",
        "NotClaimed": "poplin.testing.outcomes:NotClaimed",
        "Outcome": "poplin.testing.outcomes:Outcome",
        "PrecisionCompliance": "poplin.testing.suites.precision:PrecisionCompliance",
        "Program": "poplin.testing.processes:Program",
        "RanksFailedError": "poplin.testing.ranks:RanksFailedError",
        "StrategyCompliance": "poplin.testing.suites.strategy:StrategyCompliance",
        "bind_strategy": "poplin.testing.strategies:bind_strategy",
        "check": "poplin.testing.checking:check",
        "error_of": "poplin.testing.strategies:error_of",
        "free_port": "poplin.testing.ranks:free_port",
        "make_distribution": "poplin.testing.distributions:make_distribution",
        "plugin_source": "poplin.testing.distributions:plugin_source",
        "report": "poplin.testing.ranks:report",
        "requirement": "poplin.testing.requirement:requirement",
        "run_ranks": "poplin.testing.ranks:run_ranks",
        "run_simulated": "poplin.testing.simulated:run_simulated",
        "run_suite": "poplin.testing.checking:run_suite",
        "start_strategy": "poplin.testing.strategies:start_strategy",
        "suite_for": "poplin.testing.checking:suite_for",
    },
)
