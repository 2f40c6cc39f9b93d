"""Development tools that `make` calls by name; users do not need them."""
