"""I/O manager: stores and loads data frames as Lance tables, and maps partition keys to rows."""
