"""Tests of the benchmarks: timing, statistics, tables and pages."""
