"""`lance-assets`: tables looked at from a shell, with neither Dagster nor Spark loaded.

    main.py       the commands, and how they end; start here
    table_names.py     from `URI@version` to a table
    printing.py   tables for a terminal, JSON for programs
    history.py  show.py  diff.py  lineage.py  doctor.py  run.py      a command each
    indices.py    which rows an index covers        advice.py      what would do a table good

Nothing here writes to a table.
"""

EXIT_OK = 0
EXIT_FOUND = 1
EXIT_FAILED = 2
"""How a command ends: nobody has to do anything; it found what was asked for (doctor, diff --exit-code); it could not
look."""
