"""Scan the texts of rollouts without a model: which patterns they show, where, and whether these are rewarded.

from rlvitals.scan import scan
for finding in scan(groups).findings: print(finding.title, finding.cited)
"""

from rlvitals.scan.reading import Span
from rlvitals.scan.registry import Scanner, load_scanners, shipped_scanners
from rlvitals.scan.tally import Scan, Scans, scan

__all__ = ["Scan", "Scanner", "Scans", "Span", "load_scanners", "scan", "shipped_scanners"]
