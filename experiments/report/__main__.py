"""The command: `python -m experiments.report --help`."""

from experiments.report.document import main

main()
