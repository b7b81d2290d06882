"""Turn plain data into readable output. Nothing here reads run files or the clock."""
