"""The tasks there are. A new one is a file that defines it, and its name here."""

from experiments.tasks import classification
from experiments.tasks.task import Task

TASKS: dict[str, Task] = {task.name: task for task in classification.TASKS}
"""What can be learnt, by name, in the order in which a command line lists them."""
