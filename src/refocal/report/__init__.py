"""The report: labelled scores to numbers, numbers to one page that says what to do."""

from refocal.report.report import Comparison as Comparison, Report as Report
