"""For coding agents: a read-only MCP server for a folder of runs, and the skill that explains how to use it."""
