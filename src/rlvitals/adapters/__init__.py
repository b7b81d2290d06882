"""Where other people's frameworks meet the recorder: one file for each, importing it only when used."""
