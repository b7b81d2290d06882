"""A run's files: layout, writer, reader, index. No other package reads or writes these files."""
