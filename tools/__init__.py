"""What developing the project needs and using it does not; `make` calls these by name."""
