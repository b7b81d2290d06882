"""Adapters that connect other training frameworks to the recorder. Each has one file, which imports it on use."""
