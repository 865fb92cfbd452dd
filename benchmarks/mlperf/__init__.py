"""Forecasts that published results of MLPerf Storage confirm, or do not."""
