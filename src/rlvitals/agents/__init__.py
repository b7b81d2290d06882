"""What coding agents ask: a read-only MCP server over a folder of runs, and the skill that teaches how to use it."""
