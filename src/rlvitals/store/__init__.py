"""A run's files: layout, writer, reader, index. The only code that touches them."""
