"""For authors of plugins: runners, fakes and compliance suites."""
