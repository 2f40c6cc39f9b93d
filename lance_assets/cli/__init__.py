"""`lance-assets`: commands that inspect tables and operate on their versions, without Dagster or Spark.

main.py           the commands and their exit codes; start here
table_names.py    opens the table that `URI@version` names
printing.py       tables for a terminal, JSON for programs
history.py  show.py  diff.py  lineage.py  doctor.py  run.py      one command each
operate.py        the commands that write: tag, promote, untag, rollback, publish
recorded.py       versions of a run, from a Dagster instance
indices.py        coverage of indices        advice.py      recommendations of the doctor
pack_executors.py  executor_archive.py       archive for Spark's executors
"""

EXIT_OK = 0
"""Exit code if no action is needed."""
EXIT_FOUND = 1
"""Exit code if `doctor` reports a problem, or `diff --exit-code` a difference."""
EXIT_FAILED = 2
"""Exit code if the command failed."""
