"""The compliance suites, one for each kind of extension and one for packages."""
